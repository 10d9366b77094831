//! The log of books that run ahead of the database: what was booked and is not in the database yet,
//! each batch made durable before anybody is told of it.
//!
//! One file. A batch is a head of generation, length and checksum, and lines of JSON. Once all of it
//! is in the database the file is written from its beginning again, under the next generation, so that
//! its blocks are there already and a batch costs one write and one `fdatasync`. What is read
//! back are the batches from the beginning on whose heads have one generation and whose checksums
//! agree: one that was cut off was told to nobody. To book again what the database has does nothing,
//! so old batches do no harm.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tollgate_domain::settlement::Report;
use tollgate_domain::{PendingRecord, RequestId, SpendCounters, Timestamp};

use crate::error::StoreError;

/// A line of the log.
#[derive(Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(in super::super) enum Logged<'a> {
    /// A call was admitted.
    Admitted {
        pending: Cow<'a, PendingRecord>,
        /// The counters of its spend key, with it.
        counters: Option<Cow<'a, SpendCounters>>,
    },
    /// A call has ended, as the report says, or as nobody knows.
    Settled { request_id: RequestId, report: Option<Cow<'a, Report>> },
}

impl Logged<'_> {
    pub(in super::super) fn append_to(&self, lines: &mut Vec<u8>) {
        // It cannot fail: no map of ours has keys other than text, and memory takes everything.
        let _ = serde_json::to_writer(&mut *lines, self);
        lines.push(b'\n');
    }
}

/// The first line of a batch: who booked it when.
#[derive(Serialize, Deserialize)]
pub(super) struct Booked<'a> {
    pub(super) node_id: Cow<'a, str>,
    pub(super) at: Timestamp,
}

/// Bytes of a batch before its lines: generation, length, checksum.
const HEAD: usize = 8 + 4 + 4;
const HEAD_SIZE: u64 = 8 + 4 + 4;
/// The file grows by this, so that it seldom does.
const GROWTH: u64 = 256 * 1024;

pub(super) struct Log {
    file: File,
    generation: u64,
    /// Where the next batch goes.
    end: u64,
    /// How long the file is.
    length: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Opens the log, or makes it. Batches of other processes can be [read](Log::read) until the first
    /// is added.
    pub(super) fn open(path: &Path, now: Timestamp) -> Result<Self, StoreError> {
        let options = File::options().create(true).truncate(false).read(true).write(true).clone();
        let file = options.open(path).map_err(unusable)?;
        let length = file.metadata().map_err(unusable)?.len();
        // Beyond any generation that a process before has come to.
        let generation = now.unix_micros().unsigned_abs();
        Ok(Self { file, generation, end: 0, length, buffer: Vec::new() })
    }

    /// The batches that were made durable and not [cleared](Log::clear), in their order.
    pub(super) fn read(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut batches = Vec::new();
        let (mut at, mut first) = (0, None);
        loop {
            let mut head = [0; HEAD];
            if at + HEAD_SIZE > self.length {
                return Ok(batches);
            }
            self.file.read_exact_at(&mut head, at).map_err(unusable)?;
            let (generation, length, checksum) = parse(&head);
            at += HEAD_SIZE;
            if *first.get_or_insert(generation) != generation
                || generation == 0
                || at + u64::from(length) > self.length
            {
                return Ok(batches);
            }
            let mut lines = vec![0; usize::try_from(length).unwrap_or_default()];
            self.file.read_exact_at(&mut lines, at).map_err(unusable)?;
            if check(generation, &lines) != checksum {
                return Ok(batches);
            }
            at += u64::from(length);
            batches.push(lines);
        }
    }

    /// Adds a batch and makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when there is no room for it. [`StoreError::Interrupted`] when it may
    /// be there or not: only to [read](Log::read) the log tells.
    pub(super) fn append(&mut self, booked: &Booked<'_>, lines: &[u8]) -> Result<(), StoreError> {
        self.buffer.clear();
        self.buffer.resize(HEAD, 0);
        serde_json::to_writer(&mut self.buffer, booked).map_err(|cause| unusable(cause.into()))?;
        self.buffer.push(b'\n');
        self.buffer.extend_from_slice(lines);
        let end = self.end.saturating_add(size(&self.buffer));
        self.make_room(end).map_err(unusable)?;
        let (head, body) = self.buffer.split_at_mut(HEAD);
        let length =
            u32::try_from(body.len()).map_err(|cause| unusable(io::Error::other(cause)))?;
        let checksum = check(self.generation, body);
        let fields = self.generation.to_le_bytes().into_iter();
        let fields = fields.chain(length.to_le_bytes()).chain(checksum.to_le_bytes());
        head.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        let written = self.file.write_all_at(&self.buffer, self.end);
        written.and_then(|()| self.file.sync_data()).map_err(|cause| {
            log::error!("the log of the ledger cannot be written: {cause}");
            StoreError::Interrupted
        })?;
        self.end = end;
        Ok(())
    }

    /// How many bytes wait in it.
    pub(super) const fn len(&self) -> u64 {
        self.end
    }

    /// Everything in it is in the database.
    pub(super) const fn clear(&mut self) {
        self.generation += 1;
        self.end = 0;
    }

    /// Everything in it is in the database, and nobody goes on writing it.
    pub(super) fn close(self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.sync_all()
    }

    /// Room that is there on the disk, and not only in the name of the file: a batch must not fail for
    /// want of it, nor pay for it.
    fn make_room(&mut self, end: u64) -> io::Result<()> {
        if end <= self.length {
            return Ok(());
        }
        let length = end.next_multiple_of(GROWTH);
        let zeros = vec![0; usize::try_from(length - self.length).unwrap_or_default()];
        let grown = self.file.write_all_at(&zeros, self.length);
        let grown = grown.and_then(|()| self.file.sync_all());
        match grown {
            Ok(()) => self.length = length,
            Err(_) => self.file.set_len(self.length)?,
        }
        grown
    }
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn unusable(cause: io::Error) -> StoreError {
    StoreError::Unavailable(format!("the log of the ledger: {cause}"))
}

fn check(generation: u64, lines: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&generation.to_le_bytes());
    hasher.update(lines);
    hasher.finalize()
}

fn parse(head: &[u8; HEAD]) -> (u64, u32, u32) {
    let number = |range: std::ops::Range<usize>| {
        let bytes = head.get(range).into_iter().flatten().rev();
        bytes.fold(0_u64, |all, byte| (all << 8) | u64::from(*byte))
    };
    let small = |range| u32::try_from(number(range)).unwrap_or_default();
    (number(0..8), small(8..12), small(12..16))
}
