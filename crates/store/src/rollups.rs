//! The roll-ups: sums over settled calls, and the other rows that are derived from them.
//!
//! A settlement writes the call to a queue, in its own transaction. `fold` takes calls from the queue and adds them to
//! the sums, to the index of their metadata, and to the outbox for webhooks that want single calls. One transaction
//! does this for many calls. So each call is added once, and no call waits for it.
//!
//! A call is added to the series of all calls of its merchant, to the series of the calls that are like it (in customer,
//! spend key, meter, provider, model and status), and for each pair of its metadata to one of the calls that are like
//! it and have the pair. So sums by any dimension, under any filter, are sums over series. Series of fewer dimensions
//! make the usual sums short. Only a query about two keys of metadata reads records.

mod queue;
mod series;
mod sums;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use diesel::prelude::*;
use tollgate_domain::Timestamp;

use crate::archived;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::missing_prices;
use crate::records::{RecordWalk, WalkedRecords};
use crate::rows::{RequestIndexRow, RollupRow, SeriesRow};
use crate::schema::{request_index, rollup_queue, usage_rollups, usage_series};
use crate::tables::webhooks;

pub(crate) use queue::{
    CONNECTION, FAILURE, IN_BUDGET, METER, MODEL, PROVIDER, QueuedCall, RUN, SOCKET, SPEND_KEY,
    WOULD_REFUSE, is_indexed, queued, queued_since,
};
pub(crate) use series::{CALLS, key_with, series_of, wider, widths_of};
pub use sums::RollupSums;
pub(crate) use sums::{RollupKey, slot};

/// The number of series that are remembered. Then all are forgotten, which costs a few writes.
const REMEMBERED: usize = 65_536;
/// The most rows of a statement. PostgreSQL takes 65,535 values.
const AT_ONCE: usize = 3_000;

/// The most that is folded in one transaction.
struct FoldLimits {
    groups: i64,
    /// The number of calls, apart from those of the last group.
    calls: usize,
}

impl FoldLimits {
    /// On SQLite calls wait for the transaction.
    const SQLITE: Self = Self { groups: 64, calls: 128 };
    /// On PostgreSQL no call waits, and a sum that many calls share is written once for all of them.
    const POSTGRES: Self = Self { groups: 256, calls: 1_024 };
}

/// The series that this process knows of, so that it writes each once.
#[derive(Default)]
pub(crate) struct KnownSeries(Mutex<HashSet<Id<AnyId>>>);

impl KnownSeries {
    fn lock(&self) -> MutexGuard<'_, HashSet<Id<AnyId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all series: the database may be another one, or in an earlier state.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Adds series whose transaction is committed.
    fn learn(&self, written: impl Iterator<Item = Id<AnyId>>) {
        let mut known = self.lock();
        if known.len() > REMEMBERED {
            known.clear();
        }
        known.extend(written);
    }
}

/// The result of folding in one transaction.
#[derive(Default)]
pub(crate) struct FoldResult {
    pub(crate) calls: usize,
    rollups: Rollups,
}

impl FoldResult {
    /// Remembers the series of a committed transaction, which need not be written again.
    pub(crate) fn committed(self, known: &KnownSeries) {
        known.learn(self.rollups.series_ids());
    }
}

/// Takes calls from the queue, oldest first, and adds them to all derived rows. Must be called in a write transaction,
/// until no call is left.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn fold(
    conn: &mut Conn,
    known: &KnownSeries,
    now: Timestamp,
) -> Result<FoldResult, StoreError> {
    let most = match dialect::has_row_locks(conn) {
        true => FoldLimits::POSTGRES,
        false => FoldLimits::SQLITE,
    };
    let (mut numbers, mut calls, mut last) = (Vec::new(), Vec::new(), None);
    // A group that cannot be read stays in the queue and does not delay the others.
    while numbers.is_empty() {
        let groups = dialect::lock_queued_calls(conn, last, most.groups)?;
        let Some((number, _)) = groups.last() else { break };
        last = Some(*number);
        for (number, group) in groups {
            if calls.len() >= most.calls {
                break;
            }
            if let Some(group) = queue::read(number, &group) {
                numbers.push(number);
                calls.extend(group);
            }
        }
    }
    if numbers.is_empty() {
        return Ok(FoldResult::default());
    }
    if dialect::has_row_locks(conn) {
        // A database that has lost commits may have lost series.
        known.forget();
    }
    let mut rollups = Rollups::default();
    calls.iter().for_each(|call| rollups.add(call));
    rollups.write(conn, known)?;
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
    Ok(FoldResult { calls: calls.len(), rollups })
}

/// As [`fold`], but does nothing while another node folds in its turn.
///
/// # Errors
/// As [`fold`].
pub(crate) fn fold_in_turn(
    conn: &mut Conn,
    known: &KnownSeries,
    now: Timestamp,
) -> Result<FoldResult, StoreError> {
    match dialect::try_lock_rollup_queue(conn)? {
        true => fold(conn, known, now),
        false => Ok(FoldResult::default()),
    }
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
        dialect::insert_index_rows(conn, &gained)?;
    }
    Ok(dialect::delete_index_rows(conn, &lost)?)
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
            let slot = quarter - quarter.rem_euclid(i64::from(width));
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
    pub(crate) fn write(&self, conn: &mut Conn, known: &KnownSeries) -> Result<(), StoreError> {
        let unknown: Vec<_> = {
            let known = known.lock();
            self.series.iter().filter(|row| !known.contains(&row.series_id)).cloned().collect()
        };
        for rows in unknown.chunks(AT_ONCE) {
            dialect::insert_series(conn, rows)?;
        }
        let rows: Vec<_> = self.rows().collect();
        Ok(dialect::add_rollups(conn, &rows)?)
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

/// Computes the roll-ups and the index again from all records. Must be called in a write transaction, while no calls are booked.
///
/// # Errors
/// [`StoreError`] when the database fails, or when records of it are in the archive.
pub fn rebuild(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    const CHUNK: i64 = 10_000;
    if archived::until(conn)?.is_some() {
        let why = "the roll-ups of archived records cannot be computed again".to_owned();
        return Err(StoreError::Unavailable(why));
    }
    let known = KnownSeries::default();
    loop {
        let folded = fold(conn, &known, now)?;
        if folded.calls == 0 {
            break;
        }
    }
    diesel::delete(usage_rollups::table).execute(conn)?;
    diesel::delete(usage_series::table).execute(conn)?;
    diesel::delete(request_index::table).execute(conn)?;
    known.forget();
    let mut walk = RecordWalk::default();
    loop {
        let WalkedRecords { rows, is_last } = walk.next(conn, CHUNK)?;
        if is_last {
            return Ok(());
        }
        let mut rollups = Rollups::default();
        let mut entries = BTreeSet::new();
        for row in &rows {
            let call = QueuedCall::settled(&row.settled_call(None)?, now);
            rollups.add(&call);
            let [gained, _] = call.index_rows();
            entries.extend(gained);
        }
        rollups.write(conn, &known)?;
        for rows in Vec::from_iter(entries).chunks(AT_ONCE) {
            dialect::insert_index_rows(conn, rows)?;
        }
        known.learn(rollups.series_ids());
    }
}
