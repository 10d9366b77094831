//! The log of books that run ahead of the database: what was booked and is not in the database yet,
//! each batch made durable before anybody is told of it.
//!
//! Two files, which are written in turn: while the database takes what is in one, batches go to the other.
//! A batch is a head of generation, length and checksum, and MessagePack: who booked it when at which rate, and
//! an entry for each decision. Each turn is another generation and begins at the beginning of its file, so its
//! blocks are there already and a batch costs
//! one write and one `fdatasync`. What is read back are, of both files, the batches from the beginning on
//! whose heads have one generation and whose checksums agree, the older generation first: a batch that
//! was cut off was told to nobody. To book again what the database has does nothing, so old batches
//! do no harm.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_domain::settlement::Report;
use tollgate_domain::{PendingRecord, RequestId, SpendCounters, Timestamp};
use tollgate_pricing::Rate;

use crate::error::StoreError;
use crate::files::{private, sync_folder_of};

/// An entry of the log.
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
    pub(in super::super) fn append_to(&self, entries: &mut Vec<u8>) {
        // It cannot fail: memory takes everything.
        let _ = rmp_serde::encode::write_named(entries, self);
    }
}

/// Who booked a batch when, and what was decided.
pub(super) fn entries(
    mut batch: &[u8],
) -> Result<(Booked<'static>, impl Iterator<Item = Result<Logged<'static>, StoreError>>), StoreError>
{
    let booked = rmp_serde::from_read(&mut batch).map_err(unreadable)?;
    let entries = std::iter::from_fn(move || {
        let is_over = batch.is_empty();
        (!is_over).then(|| rmp_serde::from_read(&mut batch).map_err(unreadable))
    });
    Ok((booked, entries))
}

/// What a batch begins with: who booked it when, and at which rate. Whoever books it again may be set to
/// another.
#[derive(Serialize, Deserialize)]
pub(super) struct Booked<'a> {
    pub(super) node_id: Cow<'a, str>,
    pub(super) at: Timestamp,
    pub(super) service_charge_rate: Rate,
}

/// Bytes of a batch before its entries: generation, length, checksum.
const HEAD: usize = 8 + 4 + 4;
const HEAD_SIZE: u64 = 8 + 4 + 4;
/// The file grows by this, so that it seldom does.
const GROWTH: u64 = 256 * 1024;

pub(super) struct Log {
    /// That of even generations and that of odd ones.
    files: [Space; 2],
    generation: u64,
    /// Where the next batch goes.
    end: u64,
    buffer: Vec<u8>,
}

/// A file, and how long it is.
struct Space {
    file: File,
    length: u64,
}

/// What stands in a file: batches of one generation.
struct Found {
    generation: u64,
    batches: Vec<Vec<u8>>,
}

impl Log {
    /// Opens the files of the log, or makes them; with the batches that were made durable, in their order.
    pub(super) fn open(
        paths: &[PathBuf; 2],
        now: Timestamp,
    ) -> Result<(Self, Vec<Vec<u8>>), StoreError> {
        let files = Space::both(paths)?;
        let found = Found::all(&files)?;
        // Beyond any generation that was.
        let known = found.last().map_or(0, |found| found.generation);
        let generation = known.saturating_add(1).max(now.unix_micros().unsigned_abs());
        let log = Self { files, generation, end: 0, buffer: Vec::new() };
        Ok((log, Found::batches(found).collect()))
    }

    /// The batches that were made durable, in their order.
    pub(super) fn read(paths: &[PathBuf; 2]) -> Result<impl Iterator<Item = Vec<u8>>, StoreError> {
        Ok(Found::batches(Found::all(&Space::both(paths)?)?))
    }

    /// Adds a batch and makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when there is no room for it. [`StoreError::Interrupted`] when it may
    /// be there or not: only to [open](Log::open) the log again tells.
    pub(super) fn append(&mut self, booked: &Booked<'_>, lines: &[u8]) -> Result<(), StoreError> {
        self.buffer.clear();
        self.buffer.resize(HEAD, 0);
        rmp_serde::encode::write_named(&mut self.buffer, booked)
            .map_err(|cause| unusable(io::Error::other(cause)))?;
        self.buffer.extend_from_slice(lines);
        let [even, odd] = &mut self.files;
        let space = if self.generation.is_multiple_of(2) { even } else { odd };
        let end = self.end.saturating_add(size(&self.buffer));
        space.make_room(end).map_err(unusable)?;
        let (head, body) = self.buffer.split_at_mut(HEAD);
        let length =
            u32::try_from(body.len()).map_err(|cause| unusable(io::Error::other(cause)))?;
        let checksum = check(self.generation, body);
        let fields = self.generation.to_le_bytes().into_iter();
        let fields = fields.chain(length.to_le_bytes()).chain(checksum.to_le_bytes());
        head.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        let written = space.file.write_all_at(&self.buffer, self.end);
        written.and_then(|()| space.file.sync_data()).map_err(|cause| {
            log::error!("the log of the ledger cannot be written: {cause}");
            StoreError::Interrupted
        })?;
        self.end = end;
        Ok(())
    }

    /// How many bytes of this generation there are.
    pub(super) const fn len(&self) -> u64 {
        self.end
    }

    /// From here on batches go to the other file. What stood there must be in the database.
    pub(super) const fn turn(&mut self) {
        self.generation += 1;
        self.end = 0;
    }

    /// Everything in it is in the database, and nobody goes on writing it.
    pub(super) fn close(self) -> io::Result<()> {
        self.files.iter().try_for_each(|space| {
            space.file.set_len(0)?;
            space.file.sync_all()
        })
    }
}

impl Found {
    /// What stands in both files, the older generation first.
    fn all(files: &[Space; 2]) -> Result<Vec<Self>, StoreError> {
        let mut found = files.iter().map(Space::read).collect::<Result<Vec<_>, _>>()?;
        found.sort_unstable_by_key(|found| found.generation);
        Ok(found)
    }

    fn batches(found: Vec<Self>) -> impl Iterator<Item = Vec<u8>> {
        found.into_iter().flat_map(|found| found.batches)
    }
}

impl Space {
    fn both([even, odd]: &[PathBuf; 2]) -> Result<[Self; 2], StoreError> {
        Ok([Self::open(even).map_err(unusable)?, Self::open(odd).map_err(unusable)?])
    }

    fn open(path: &Path) -> io::Result<Self> {
        let file = private().read(true).create(true).truncate(false).open(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            // What will be durable in it is lost if its name is.
            sync_folder_of(path)?;
        }
        Ok(Self { file, length })
    }

    fn read(&self) -> Result<Found, StoreError> {
        let mut found = Found { generation: 0, batches: Vec::new() };
        let mut at = 0;
        while at + HEAD_SIZE <= self.length {
            let mut head = [0; HEAD];
            self.file.read_exact_at(&mut head, at).map_err(unusable)?;
            let (generation, length, checksum) = parse(&head);
            at += HEAD_SIZE;
            let is_first = found.batches.is_empty();
            if generation == 0
                || !(is_first || generation == found.generation)
                || at + u64::from(length) > self.length
            {
                break;
            }
            let mut lines = vec![0; usize::try_from(length).unwrap_or_default()];
            self.file.read_exact_at(&mut lines, at).map_err(unusable)?;
            if check(generation, &lines) != checksum {
                break;
            }
            at += u64::from(length);
            found.generation = generation;
            found.batches.push(lines);
        }
        Ok(found)
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

/// An entry whose batch's checksum agrees: another version wrote it.
fn unreadable(cause: rmp_serde::decode::Error) -> StoreError {
    let way_out = "start the version that wrote it and stop it; what is in the log is booked and nowhere else";
    StoreError::Corrupt { what: "log of the ledger", value: format!("{cause}; {way_out}") }
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

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn priced() -> Value {
        json!({
            "usage": {"quantities": {"input": 51, "output": 20}, "provider_cost": "0.0000000001"},
            "usage_source": "partial",
            "base": {"input": "0.0000076500", "output": "922337203.6854775807"},
            "price_source": "catalog"
        })
    }

    /// With all that there can be in them, and with as little.
    #[test]
    fn entries_read_back_as_they_were_written() {
        let full = json!({
            "request_id": "req_01M82HFQ2D8PV0WRZSBMD9CQ5G", "merchant_id": "mch_01M82HFMX5AN6YEP4PGEGEN3WD",
            "reference_id": "0", "connection_id": "con_7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "spend_key_id": "spk_00000000000000000000000000", "wallet_id": "wal_01M82HFN0DTRCBJ7BJNADWBV21",
            "merchant_wallet_id": "wal_01M82HFMX5AN6YEP4PGEGEN3WE",
            "meter": {"meter_id": "mtr_01M82HFN06XS0FNSJ47RGXMGGD", "version": -1},
            "disable_billing": true,
            "forwarded": {
                "provider": "openai", "endpoint": "POST https://example.com/\"v1\"\n", "metered": true,
                "provider_key_type": "unmanaged", "model": "gpt-4o-mini", "metadata": {"user": "Ω\u{0}", "": ""},
                "input_estimate": priced()
            },
            "spend_hold": "-0.0000000001", "wallet_hold": "-922337203.6854775808",
            "credit_hold": {"cycle": "0.0000000000", "bundle": "1.0000000000", "in_cycle": i64::MIN},
            "merchant_hold": "922337203.6854775807", "created_at": "2026-11-22T21:09:39.537142Z"
        });
        let mut least = full.clone();
        for absent in
            ["reference_id", "connection_id", "spend_key_id", "wallet_id", "meter", "credit_hold"]
        {
            least[absent] = Value::Null;
        }
        let report = json!({
            "ending": "not_sent", "provider_status": 200, "model": "m", "response_id": "", "priced": priced(),
            "applied": [{
                "model": "gpt-4o*", "list": "custom", "source": "s", "effective_from": "2026-01-31",
                "hours": {"from": "22:30", "to": "06:00"}, "tiers": ["batch"], "above_input_tokens": u64::MAX,
                "prices": {"input": "0.150000000000000001"}, "part": {"model": "m", "quantities": {"input": 1}}
            }],
            "missing": {"provider": "p", "model": "m", "unit": "u"}, "timestamp": "1969-12-31T23:59:59.999999Z"
        });
        let nothing = json!({
            "ending": "answered", "provider_status": null, "model": null, "response_id": null, "priced": priced(),
            "timestamp": "9999-12-31T23:59:59Z"
        });
        let counters = SpendCounters {
            last_used_at: Some(of(json!("2026-11-22T00:00:00Z"))),
            ..SpendCounters::default()
        };
        let request_id = of(full["request_id"].clone());
        let admitted =
            |pending, counters| Logged::Admitted { pending: Cow::Owned(of(pending)), counters };
        let settled = |report| Logged::Settled { request_id, report };
        let written = [
            admitted(full, Some(Cow::Owned(counters))),
            admitted(least, None),
            settled(Some(Cow::Owned(of(report)))),
            settled(Some(Cow::Owned(of(nothing)))),
            settled(None),
        ];
        let booked = Booked {
            node_id: "nod_1".into(),
            at: Timestamp::from_unix_micros(-1),
            service_charge_rate: "0.019".parse().unwrap(),
        };
        let mut batch = rmp_serde::to_vec_named(&booked).unwrap();
        written.iter().for_each(|line| line.append_to(&mut batch));
        let (head, read) = entries(&batch).unwrap();
        assert_eq!((&*head.node_id, head.at), ("nod_1", booked.at));
        assert_eq!(head.service_charge_rate, booked.service_charge_rate);
        let text = |line: &Logged<'_>| serde_json::to_value(line).unwrap();
        let read: Vec<_> = read.map(|line| text(&line.unwrap())).collect();
        assert_eq!(read, written.each_ref().map(text));

        let cut = batch.len() - 1;
        let (_, mut read) = entries(&batch[..cut]).unwrap();
        assert!(read.any(|line| line.is_err()), "what is no entry ends nothing silently");
    }
}
