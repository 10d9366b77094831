//! The roll-ups: sums over settled calls, and the other rows that are derived from them.
//!
//! A settlement writes the call to a queue, in its own transaction. `fold` takes calls from the queue and adds them to
//! the sums, to the index of their metadata, and to the outbox for webhooks that want single calls. One transaction
//! does this for many calls. So each call is added once, and no call waits for it.
//!
//! A call is added to the series of its merchant and of its customer. It is also added, in wide rows only, to the
//! series of its spend key, of its model, and of failed calls: only charts read these.
//!
//! A metadata key has few values, or many (users, sessions). The pairs of keys with few values are one series of the
//! merchant and one of the customer. Such sets of pairs are few, so a query reads few of them. A call with a key of
//! many values has one more series, of its whole metadata, which is found by each pair of such a key. A query reads the
//! series of the first kind that contain all its pairs, and the series of the second kind that one of its pairs finds.
//! No call is in both, and it does not matter when a key came to have many values.

mod queue;
mod sums;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use diesel::prelude::*;
use sha2::{Digest, Sha256};
use tollgate_domain::{Id as _, MerchantId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::missing_prices;
use crate::records::Walk;
use crate::rows::{RequestIndexRow, RollupRow, SeriesRow, TagRow, to_json};
use crate::schema::{rollup_queue, usage_rollups, usage_series, usage_tags};
use crate::tables::webhooks;

pub(crate) use queue::{CONNECTION, FAILURE, METER, QueuedCall, queued, queued_since};
pub use sums::Sums;
pub(crate) use sums::{MODEL, NARROW, RollupKey, STATUS, WIDE, is_trait, pairs, slot, traits};

/// The number of values above which a key has many.
const FEW_VALUES: usize = 32;
/// The number of keys and series that are remembered. Then all are forgotten, which costs a few writes.
const REMEMBERED: usize = 65_536;
/// The number of remembered ids of series of traits. The others are computed.
const REMEMBERED_TRAITS: usize = 4_096;
/// The most rows of a statement. PostgreSQL takes 65,535 values.
const AT_ONCE: usize = 3_000;
/// The calls that are folded in one transaction, apart from the last group: on SQLite calls wait for it.
const FOLDED_AT_ONCE: usize = 128;
/// The number of groups that are read at once.
const GROUPS_AT_ONCE: i64 = 64;

/// The series that this process knows, so that it writes each once.
#[derive(Default)]
pub(crate) struct Series(Mutex<Known>);

#[derive(Default)]
struct Known {
    series: HashSet<Id<AnyId>>,
    /// The ids of series of [traits], by owner, key and value: nearly all calls share them.
    of_traits: HashMap<String, Id<AnyId>>,
    /// The hashes of the values seen of each merchant's keys, until there are many.
    values: HashMap<(MerchantId, String), HashSet<u64>>,
}

impl Series {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all series: the database may be another one, or in an earlier state.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        known.series.clear();
        known.of_traits.clear();
    }

    /// Adds series whose transaction is committed.
    fn learn(&self, written: impl Iterator<Item = Id<AnyId>>) {
        let mut known = self.known();
        if known.series.len() > REMEMBERED {
            known.series.clear();
            known.of_traits.clear();
        }
        known.series.extend(written);
    }
}

impl Known {
    fn has_many(&mut self, merchant_id: MerchantId, key: &str, value: &str) -> bool {
        if self.values.len() > REMEMBERED {
            self.values.clear();
        }
        let values = self.values.entry((merchant_id, key.to_owned())).or_default();
        if values.len() <= FEW_VALUES {
            values.insert(hash(&value));
        }
        values.len() > FEW_VALUES
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The result of folding in one transaction.
#[derive(Default)]
pub(crate) struct Folded {
    pub(crate) calls: usize,
    rollups: Rollups,
}

impl Folded {
    /// Remembers the series of a committed transaction, which need not be written again.
    pub(crate) fn committed(self, series: &Series) {
        series.learn(self.rollups.series.into_iter().map(|row| row.series_id));
    }
}

/// Takes calls from the queue, oldest first, and adds them to all derived rows. Must be called in a write transaction,
/// until no call is left.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn fold(conn: &mut Conn, series: &Series, now: Timestamp) -> Result<Folded, StoreError> {
    let (mut numbers, mut calls, mut last) = (Vec::new(), Vec::new(), None);
    // A group that cannot be read stays in the queue and does not delay the others.
    while numbers.is_empty() {
        let groups = dialect::lock_queued_calls(conn, last, GROUPS_AT_ONCE)?;
        let Some((number, _)) = groups.last() else { break };
        last = Some(*number);
        for (number, group) in groups {
            if calls.len() >= FOLDED_AT_ONCE {
                break;
            }
            if let Some(group) = queue::read(number, &group) {
                numbers.push(number);
                calls.extend(group);
            }
        }
    }
    if numbers.is_empty() {
        return Ok(Folded::default());
    }
    if dialect::has_row_locks(conn) {
        // A database that has lost commits may have lost series.
        series.forget();
    }
    let mut rollups = Rollups::default();
    calls.iter().for_each(|call| rollups.add(series, call));
    rollups.write(conn)?;
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
    Ok(Folded { calls: calls.len(), rollups })
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
    sums: BTreeMap<RollupKey, Sums>,
    series: BTreeSet<SeriesRow>,
    tags: BTreeSet<TagRow>,
}

type Pairs<'a> = BTreeMap<&'a String, &'a String>;

impl Rollups {
    pub(crate) fn add(&mut self, series: &Series, call: &QueuedCall) {
        let merchant_id = Id(call.merchant_id).of_any();
        let connection_id = call.connection_id.map(|id| Id(id).of_any());
        self.add_to(merchant_id, &[NARROW, WIDE], call);
        if let Some(connection_id) = connection_id {
            self.add_to(connection_id, &[NARROW, WIDE], call);
        }
        if let Some(spend_key_id) = call.spend_key_id {
            self.add_to(Id(spend_key_id).of_any(), &[WIDE], call);
        }
        let known = &mut *series.known();
        for (key, value) in &call.traits {
            // No id and no key contains this character.
            let name = format!("{merchant_id}\0{key}\0{value}");
            if let Some(id) = known.of_traits.get(&name) {
                self.add_to(*id, &[WIDE], call);
                continue;
            }
            let found_by = [(key.clone(), value.clone())];
            let id =
                self.series(known, call.merchant_id, merchant_id, None, &Pairs::new(), &found_by);
            self.add_to(id, &[WIDE], call);
            if known.series.contains(&id) {
                if known.of_traits.len() >= REMEMBERED_TRAITS {
                    known.of_traits.clear();
                }
                known.of_traits.insert(name, id);
            }
        }
        let metadata = &call.metadata;
        if metadata.is_empty() {
            return;
        }
        let (rare, common): (Pairs<'_>, Pairs<'_>) =
            metadata.iter().partition(|(key, value)| known.has_many(call.merchant_id, key, value));
        if !common.is_empty() {
            let by_owner = [(String::new(), String::new())];
            let id = self.series(known, call.merchant_id, merchant_id, None, &common, &by_owner);
            self.add_to(id, &[NARROW, WIDE], call);
            if let Some(owner) = connection_id {
                let id =
                    self.series(known, call.merchant_id, owner, connection_id, &common, &by_owner);
                self.add_to(id, &[NARROW, WIDE], call);
            }
        }
        if !rare.is_empty() {
            let by_pairs: Vec<_> =
                rare.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let all = metadata.iter().collect();
            let id =
                self.series(known, call.merchant_id, merchant_id, connection_id, &all, &by_pairs);
            self.add_to(id, &[NARROW], call);
        }
    }

    fn add_to(&mut self, series_id: Id<AnyId>, widths: &[i32], call: &QueuedCall) {
        for &width in widths {
            let slot = slot(call.created_at);
            let slot = slot - slot.rem_euclid(i64::from(width));
            let merchant_id = Id(call.merchant_id);
            let meter_id = call.meter_id.map(|id| Id(id).of_any()).unwrap_or_default();
            let sums =
                self.sums.entry((merchant_id, series_id, width, slot, meter_id)).or_default();
            *sums += call.sums;
        }
    }

    /// Returns the id of the series of these pairs, and adds the series unless it is known.
    fn series(
        &mut self,
        known: &Known,
        merchant_id: MerchantId,
        owner_id: Id<AnyId>,
        connection_id: Option<Id<AnyId>>,
        pairs: &Pairs<'_>,
        found_by: &[(String, String)],
    ) -> Id<AnyId> {
        let identity = Sha256::digest(to_json(&(owner_id, connection_id, pairs, found_by)));
        let identity =
            identity.iter().take(16).fold(0_u128, |all, byte| (all << 8) | u128::from(*byte));
        let series_id = Id(AnyId::from_bytes(identity.to_be_bytes()));
        if !known.series.contains(&series_id) {
            self.series.insert(SeriesRow {
                merchant_id: Id(merchant_id),
                series_id,
                connection_id,
                metadata: to_json(pairs),
            });
            self.tags.extend(found_by.iter().map(|(key, value)| TagRow {
                merchant_id: Id(merchant_id),
                owner_id,
                key: key.clone(),
                value: value.clone(),
                series_id,
            }));
        }
        series_id
    }

    /// Adds the sums to the rows of the database. The rows of each table ascend, so transactions do not deadlock.
    fn write(&self, conn: &mut Conn) -> Result<(), StoreError> {
        let series: Vec<_> = self.series.iter().cloned().collect();
        for rows in series.chunks(AT_ONCE) {
            dialect::insert_series(conn, rows)?;
        }
        let tags: Vec<_> = self.tags.iter().cloned().collect();
        for rows in tags.chunks(AT_ONCE) {
            dialect::insert_tags(conn, rows)?;
        }
        let rows: Vec<_> = self.rows().collect();
        Ok(dialect::add_rollups(conn, &rows)?)
    }

    /// The sums as rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RollupRow> + '_ {
        self.sums.iter().map(|(key, sums)| RollupRow::new(*key, sums))
    }

    /// The new series, each with its tags.
    pub(crate) fn tagged(self) -> impl Iterator<Item = (TagRow, SeriesRow)> {
        let series: HashMap<_, _> =
            self.series.into_iter().map(|row| (row.series_id, row)).collect();
        let tags = self.tags.into_iter();
        tags.filter_map(move |tag| Some((tag.clone(), series.get(&tag.series_id)?.clone())))
    }
}

/// Computes the roll-ups again from all records. Must be called in a write transaction, while no calls are booked.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn rebuild(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    const CHUNK: i64 = 10_000;
    let series = Series::default();
    loop {
        let folded = fold(conn, &series, now)?;
        if folded.calls == 0 {
            break;
        }
    }
    diesel::delete(usage_rollups::table).execute(conn)?;
    diesel::delete(usage_tags::table).execute(conn)?;
    diesel::delete(usage_series::table).execute(conn)?;
    let series = Series::default();
    let mut walk = Walk::default();
    loop {
        let rows = walk.next(conn, CHUNK)?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut rollups = Rollups::default();
        for row in &rows {
            let call = QueuedCall::settled(&row.settled_call(None)?, now);
            rollups.add(&series, &call);
        }
        rollups.write(conn)?;
        series.learn(rollups.series.into_iter().map(|row| row.series_id));
    }
}
