//! The roll-ups: sums over settled calls, and what else is derived from them.
//!
//! A settlement writes the call to a queue, in its own transaction. `fold` takes calls from the queue and adds
//! them to the sums, to the index of their metadata, and to the outbox for webhooks that want single calls: in one
//! transaction, for many calls at once. So a call is added once, and the path of calls does not wait for it.
//!
//! A call is added to the series of its merchant and of its connection, and to that of its spend key, of
//! its model, and of those that failed: the last three in wide rows only, for only charts ask for them. Of
//! its metadata, the pairs
//! whose keys have few values are a series of the merchant and of the connection each: their sets are
//! few, so a question reads few of them. With pairs of keys that have many values (users, sessions)
//! nearly every set is another. Such a call has one more series, of its whole metadata, which is found
//! by each of those pairs. So a question is answered by the series of the few, all of whose pairs
//! are in what they keep, and by those that are found by a pair with many; no call is in both, and it
//! does not matter when a key came to have many.

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

/// A key with more values than this has many.
const FEW_VALUES: usize = 32;
/// How many keys and series a writer remembers; then it begins anew, which costs a few writes.
const REMEMBERED: usize = 65_536;
/// How many ids of series of traits it remembers; the others are computed.
const REMEMBERED_TRAITS: usize = 4_096;
/// How many rows a statement has at most: PostgreSQL takes 65,535 values.
const AT_ONCE: usize = 3_000;
/// How many calls are folded in one transaction, but for the last group: on SQLite calls wait for it.
const FOLDED_AT_ONCE: usize = 128;
/// How many groups are read for them.
const GROUPS_AT_ONCE: i64 = 64;

/// What this process knows of series, so that it writes each once.
#[derive(Default)]
pub(crate) struct Series(Mutex<Known>);

#[derive(Default)]
struct Known {
    series: HashSet<Id<AnyId>>,
    /// The ids of series of [traits], by owner, key and value: nearly every call has the same.
    of_traits: HashMap<String, Id<AnyId>>,
    /// The values seen of each merchant's keys, by their hashes, until they are many.
    values: HashMap<(MerchantId, String), HashSet<u64>>,
}

impl Series {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is there: it may be another database, or an earlier state of this one.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        known.series.clear();
        known.of_traits.clear();
    }

    /// Learns of series whose transaction is committed.
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

/// What a transaction has folded.
#[derive(Default)]
pub(crate) struct Folded {
    pub(crate) calls: usize,
    rollups: Rollups,
}

impl Folded {
    /// It is committed: its series need not be written again.
    pub(crate) fn committed(self, series: &Series) {
        series.learn(self.rollups.series.into_iter().map(|row| row.series_id));
    }
}

/// Takes calls from the queue, oldest first, and adds them to everything that is derived from calls. Call it in a
/// write transaction, until it finds none.
///
/// # Errors
/// Those of the store.
pub(crate) fn fold(conn: &mut Conn, series: &Series, now: Timestamp) -> Result<Folded, StoreError> {
    let (mut numbers, mut calls, mut last) = (Vec::new(), Vec::new(), None);
    // Groups that cannot be read stay where they are, and keep no other waiting.
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

/// Brings the index of records up to date. A call that was corrected may lose an entry and gain it again.
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
            // No id and no key has such a letter.
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

    /// The id of the series of these pairs; it is made unless it is known.
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

    /// Adds them to the rows of the database. Rows of each table ascend, so transactions never wait for each other
    /// in a circle.
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

    /// The series that are new, each with its tags.
    pub(crate) fn tagged(self) -> impl Iterator<Item = (TagRow, SeriesRow)> {
        let series: HashMap<_, _> =
            self.series.into_iter().map(|row| (row.series_id, row)).collect();
        let tags = self.tags.into_iter();
        tags.filter_map(move |tag| Some((tag.clone(), series.get(&tag.series_id)?.clone())))
    }
}

/// Adds up all records again. Call it in a write transaction, while nothing else is booked.
///
/// # Errors
/// Those of the store.
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
