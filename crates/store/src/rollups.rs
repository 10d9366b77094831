//! The roll-ups: sums over settled calls, and the other rows that are derived from them.
//!
//! A settlement writes the call to a queue, in its own transaction. `fold` takes calls from the queue and adds them to
//! the sums, to the index of their metadata, and to the outbox for webhooks that want single calls. One transaction
//! does this for many calls. So each call is added once, and no call waits for it.
//!
//! A call is added to the series of all calls of its merchant, to the series of the calls that are like it (in customer,
//! spend key, meter, provider, model and status), and for each pair of its metadata to one of the calls that are like
//! it and have the pair. So sums by any dimension, under any filter, are sums over series. Series of fewer dimensions
//! make the usual sums short. A call is also added to the set of the calls with the same metadata, for queries about
//! several keys. Other queries about several keys read records.

mod known;
mod metadata;
mod queue;
mod series;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use diesel::prelude::*;
use tollgate_domain::{MerchantId, Timestamp};

use crate::archived;
use crate::batch_size::BatchSize;
use crate::conn::Conn;
use crate::dialect::{self, SeriesPlace};
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::missing_prices;
use crate::records::{RecordWalk, WalkedRecords};
use crate::rows::{RequestIndexRow, RollupRow, SeriesRow};
use crate::schema::{
    high_cardinality_keys, metadata_rollups, metadata_sets, request_index, rollup_queue,
    usage_rollups, usage_series,
};
use crate::tables::webhooks;

use known::KnownAt;
pub(crate) use known::KnownSeries;
pub(crate) use metadata::{HighCardinalityKeys, MetadataRollups, SET_WIDTHS};
pub(crate) use queue::{
    CONNECTION, FAILURE, IN_BUDGET, METER, MODEL, PROVIDER, QueuedCall, RUN, SOCKET, SPEND_KEY,
    WOULD_REFUSE, is_indexed, queued, queued_since,
};
pub(crate) use series::{CALLS, key_with, series_of, wider, widths_of};
pub use sums::RollupSums;
pub(crate) use sums::{RollupKey, slot, slot_of};

/// The number of entries of the index that are inserted at once.
const ENTRIES_AT_ONCE: usize = 3_000;

/// The number of calls that are folded in one transaction on PostgreSQL, where no call waits, and the most on SQLite. A sum that
/// many calls share is written once for all of them.
const CALLS_AT_ONCE: usize = 1_024;

/// The memory that the folds of a process share.
pub(crate) struct FoldMemory {
    pub(crate) known: KnownSeries,
    /// The number of calls that are folded in one transaction on SQLite, if the queue is short.
    size: BatchSize,
}

impl Default for FoldMemory {
    fn default() -> Self {
        Self { known: KnownSeries::default(), size: BatchSize::new(16, 4, 128) }
    }
}

/// The result of folding in one transaction.
#[derive(Default)]
pub(crate) struct FoldResult {
    pub(crate) calls: usize,
    place: SeriesPlace,
    rollups: Rollups,
    by_metadata: MetadataRollups,
}

impl FoldResult {
    /// Remembers the series of a committed transaction, which need not be written again.
    pub(crate) fn committed(self, memory: &FoldMemory) {
        let ids = self.rollups.series_ids().chain(self.by_metadata.set_ids());
        memory.known.learn(&self.place, ids);
    }
}

/// Takes calls from the queue, oldest first, and adds them to all derived rows. Must be called in a write transaction,
/// until no call is left.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn fold(
    conn: &mut Conn,
    memory: &FoldMemory,
    now: Timestamp,
) -> Result<FoldResult, StoreError> {
    let begun = Instant::now();
    // An eighth of the queue at least. So it does not grow while groups are committed faster than folds.
    let (enough_calls, enough_groups, groups_at_once) = match dialect::has_row_locks(conn) {
        true => (CALLS_AT_ONCE, 0, 256),
        false => (memory.size.rows(), queue::length(conn)? / 8, 4),
    };
    let is_enough = |calls: usize, groups: usize| {
        calls >= CALLS_AT_ONCE || calls >= enough_calls && groups >= enough_groups
    };
    let (mut numbers, mut calls, mut last) = (Vec::new(), Vec::new(), None);
    while !is_enough(calls.len(), numbers.len()) {
        let groups = dialect::fold::lock_queued_calls(conn, last, groups_at_once)?;
        let Some((number, _)) = groups.last() else { break };
        last = Some(*number);
        for (number, group) in groups {
            if is_enough(calls.len(), numbers.len()) {
                break;
            }
            // A group that cannot be read stays in the queue and does not delay the others.
            if let Some(group) = queue::read(number, &group) {
                numbers.push(number);
                calls.extend(group);
            }
        }
    }
    if numbers.is_empty() {
        return Ok(FoldResult::default());
    }
    let known = memory.known.only_at(dialect::series_place(conn)?);
    let mut rollups = Rollups::default();
    calls.iter().for_each(|call| rollups.add(call));
    rollups.write(conn, &known)?;
    let by_metadata = add_by_metadata(conn, &calls, &known)?;
    index(conn, &calls)?;
    let wanted = webhooks::requests_wanted_since(conn)?;
    let is_wanted = |call: &&QueuedCall| {
        wanted.get(&call.merchant_id).is_some_and(|since| *since <= call.settled_at)
    };
    let events = calls.iter().filter(is_wanted).flat_map(|call| call.events(now));
    let events: Vec<_> = events.collect();
    if !events.is_empty() {
        dialect::insert_events(conn, &events)?;
    }
    let missing = calls.iter_mut();
    let missing = missing.filter_map(|call| Some((call.merchant_id, call.missing_price.take()?)));
    missing_prices::report(conn, missing, now)?;
    let folded = rollup_queue::table.filter(rollup_queue::number.eq_any(numbers));
    diesel::delete(folded).execute(conn)?;
    memory.size.adapt(calls.len(), begun.elapsed());
    Ok(FoldResult { calls: calls.len(), place: known.place, rollups, by_metadata })
}

/// As [`fold`], but does nothing while another node folds in its turn.
///
/// # Errors
/// As [`fold`].
pub(crate) fn fold_in_turn(
    conn: &mut Conn,
    memory: &FoldMemory,
    now: Timestamp,
) -> Result<FoldResult, StoreError> {
    match dialect::fold::try_lock_rollup_queue(conn)? {
        true => fold(conn, memory, now),
        false => Ok(FoldResult::default()),
    }
}

/// Adds calls to the sums by metadata.
fn add_by_metadata(
    conn: &mut Conn,
    calls: &[QueuedCall],
    known: &KnownAt<'_>,
) -> Result<MetadataRollups, StoreError> {
    let keys = HighCardinalityKeys::of(conn, calls.iter().map(|call| call.merchant_id))?;
    let rollups = MetadataRollups::of(calls, &keys);
    rollups.write(conn, known)?;
    Ok(rollups)
}

/// Updates the index of records. A corrected call may lose an entry and gain it again.
fn index(conn: &mut Conn, calls: &[QueuedCall]) -> Result<(), StoreError> {
    let mut changes: BTreeMap<RequestIndexRow, i32> = BTreeMap::new();
    for [gained, lost] in calls.iter().map(QueuedCall::index_rows) {
        gained.into_iter().for_each(|row| *changes.entry(row).or_default() += 1);
        lost.into_iter().for_each(|row| *changes.entry(row).or_default() -= 1);
    }
    let (mut gained, mut lost) = (Vec::new(), Vec::new());
    for (row, change) in changes {
        match change {
            1.. => gained.push(row),
            0 => {}
            _ => lost.push(row),
        }
    }
    if !gained.is_empty() {
        dialect::fold::insert_index_rows(conn, &gained)?;
    }
    Ok(dialect::fold::delete_index_rows(conn, &lost)?)
}

/// Sums to be added.
#[derive(Default)]
pub(crate) struct Rollups {
    sums: BTreeMap<RollupKey, RollupSums>,
    /// The series of the sums.
    series: BTreeSet<SeriesRow>,
}

impl Rollups {
    pub(crate) fn add(&mut self, call: &QueuedCall) {
        for series in series_of(call) {
            self.add_sums(&series, slot(call.created_at), call.sums);
        }
    }

    /// Adds the sums of calls of a series in a quarter hour to the rows of all widths.
    pub(crate) fn add_sums(&mut self, series: &SeriesRow, quarter: i64, sums: RollupSums) {
        for &width in widths_of(&series.key) {
            let slot = slot_of(width, quarter);
            *self.sums.entry((series.series_id, width, slot)).or_default() += sums;
        }
        if !self.series.contains(series) {
            self.series.insert(series.clone());
        }
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.sums.len()
    }

    /// Adds the sums to the rows of the database. The rows of each table ascend, so transactions do not deadlock.
    pub(crate) fn write(&self, conn: &mut Conn, known: &KnownAt<'_>) -> Result<(), StoreError> {
        let unknown = known.unknown(&self.series, |series| series.series_id);
        dialect::fold::insert_series(conn, &unknown)?;
        let rows: Vec<_> = self.rows().collect();
        Ok(dialect::fold::add_rollups(conn, &rows)?)
    }

    /// The sums as rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RollupRow> + '_ {
        self.sums.iter().map(|(key, sums)| sums::to_row(key, sums))
    }

    /// The ids of the series of the sums.
    fn series_ids(&self) -> impl Iterator<Item = Id<AnyId>> + '_ {
        self.series.iter().map(|row| row.series_id)
    }
}

/// The first and the last day with sums of a merchant, by their first quarter hours.
pub(crate) fn first_and_last_day(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Option<(i64, i64)>, StoreError> {
    let all = usage_series::table
        .filter(usage_series::merchant_id.eq(Id(merchant_id)))
        .filter(usage_series::key.eq(key_with(None, &[])))
        .select(usage_series::series_id);
    let all: Option<Id<AnyId>> = all.first(conn).optional()?;
    let Some(all) = all else { return Ok(None) };
    let days = usage_rollups::table
        .filter(usage_rollups::series_id.eq(all))
        .filter(usage_rollups::width.eq(96))
        .select((diesel::dsl::min(usage_rollups::slot), diesel::dsl::max(usage_rollups::slot)));
    let (first, last): (Option<i64>, Option<i64>) = days.first(conn)?;
    Ok(first.zip(last))
}

/// Computes the roll-ups and the index again from all records. Must be called in a write transaction, while no calls are
/// booked. A process that has folded before must not fold again.
///
/// # Errors
/// [`StoreError`] when the database fails, or when records of it are in the archive.
pub fn rebuild(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    const CHUNK: i64 = 10_000;
    if archived::until(conn)?.is_some() {
        let why = "the roll-ups of archived records cannot be computed again".to_owned();
        return Err(StoreError::Unavailable(why));
    }
    while fold(conn, &FoldMemory::default(), now)?.calls > 0 {}
    diesel::delete(usage_rollups::table).execute(conn)?;
    diesel::delete(usage_series::table).execute(conn)?;
    diesel::delete(metadata_rollups::table).execute(conn)?;
    diesel::delete(metadata_sets::table).execute(conn)?;
    diesel::delete(high_cardinality_keys::table).execute(conn)?;
    diesel::delete(request_index::table).execute(conn)?;
    // What this transaction has written.
    let written = KnownSeries::default();
    let known = written.only_at(dialect::series_place(conn)?);
    let mut walk = RecordWalk::default();
    loop {
        let WalkedRecords { rows, is_last } = walk.next(conn, CHUNK)?;
        if is_last {
            return Ok(());
        }
        let mut rollups = Rollups::default();
        let mut entries = BTreeSet::new();
        let mut calls = Vec::with_capacity(rows.len());
        for row in &rows {
            let call = QueuedCall::of_record(row)?;
            rollups.add(&call);
            let [gained, _] = call.index_rows();
            entries.extend(gained);
            calls.push(call);
        }
        rollups.write(conn, &known)?;
        // As many as are folded at once: a key with many values is left out before there are many times too many sets.
        for calls in calls.chunks(CALLS_AT_ONCE) {
            let by_metadata = add_by_metadata(conn, calls, &known)?;
            written.learn(&known.place, by_metadata.set_ids());
        }
        for rows in Vec::from_iter(entries).chunks(ENTRIES_AT_ONCE) {
            dialect::fold::insert_index_rows(conn, rows)?;
        }
        written.learn(&known.place, rollups.series_ids());
    }
}
