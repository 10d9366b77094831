//! What ended calls add to the roll-ups.
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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use diesel::dsl::exists;
use diesel::prelude::*;
use sha2::{Digest, Sha256};
use tollgate_domain::RequestRecord;

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::rows::{RequestRow, to_json};
use crate::schema::{requests, usage_rollups, usage_series, usage_tags};
use crate::usage::{NARROW, RollupKey, RollupRow, SeriesRow, Sums, TagRow, WIDE, slot, traits};

/// A key with more values than this has many.
const FEW_VALUES: usize = 32;
/// How many keys and series a writer remembers; then it begins anew, which costs a few writes.
const REMEMBERED: usize = 65_536;
/// How many ids of series of traits it remembers; the others are computed.
const REMEMBERED_TRAITS: usize = 4_096;
/// How many rows a statement has at most: PostgreSQL takes 65,535 values.
const AT_ONCE: usize = 3_000;
/// Among how many rows writers spread what they add to one series: what is locked by one is not
/// waited for by most others.
const SHARDS: u64 = 4;

/// What this process knows of series, so that it writes each once.
#[derive(Default)]
pub(crate) struct Series(Mutex<Known>);

#[derive(Default)]
struct Known {
    series: HashSet<String>,
    /// The ids of series of [traits], by owner, key and value: nearly every call has the same.
    of_traits: HashMap<String, String>,
    /// The values seen of each merchant's keys, by their hashes, until they are many.
    values: HashMap<(String, String), HashSet<u64>>,
}

impl Series {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is there: it may be another database, or an earlier state of this one.
    pub(super) fn forget(&self) {
        let mut known = self.known();
        known.series.clear();
        known.of_traits.clear();
    }

    /// Learns of series whose transaction is committed.
    fn learn(&self, written: impl Iterator<Item = String>) {
        let mut known = self.known();
        if known.series.len() > REMEMBERED {
            known.series.clear();
            known.of_traits.clear();
        }
        known.series.extend(written);
    }
}

impl Known {
    fn has_many(&mut self, merchant_id: &str, key: &str, value: &str) -> bool {
        if self.values.len() > REMEMBERED {
            self.values.clear();
        }
        let values = self.values.entry((merchant_id.to_owned(), key.to_owned())).or_default();
        if values.len() <= FEW_VALUES {
            values.insert(hash(&value));
        }
        values.len() > FEW_VALUES
    }
}

/// Which of the rows of a series this thread adds to: on SQLite, where one writes at a time, the one.
fn shard(conn: &Conn) -> i32 {
    match dialect::has_row_locks(conn) {
        true => {
            let writer = (std::process::id(), std::thread::current().id());
            i32::try_from(hash(&writer) % SHARDS).unwrap_or_default()
        }
        false => 0,
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a batch adds.
#[derive(Default)]
pub(super) struct Rollups {
    sums: BTreeMap<RollupKey, Sums>,
    series: BTreeSet<SeriesRow>,
    tags: BTreeSet<TagRow>,
}

type Pairs<'a> = BTreeMap<&'a String, &'a String>;

impl Rollups {
    /// Adds an ended call, or what the correction of one makes of it.
    pub(super) fn add(
        &mut self,
        series: &Series,
        row: &RequestRow,
        record: &RequestRecord,
        more: Sums,
    ) {
        let (merchant_id, connection_id) = (&row.merchant_id, row.connection_id.as_ref());
        self.add_to(merchant_id, &[NARROW, WIDE], row, more);
        if let Some(connection_id) = connection_id {
            self.add_to(connection_id, &[NARROW, WIDE], row, more);
        }
        if let Some(spend_key_id) = &row.spend_key_id {
            self.add_to(spend_key_id, &[WIDE], row, more);
        }
        let known = &mut *series.known();
        for (key, value) in traits(record) {
            // No id and no key has such a letter.
            let name = format!("{merchant_id}\0{key}\0{value}");
            if let Some(id) = known.of_traits.get(&name) {
                self.add_to(id, &[WIDE], row, more);
                continue;
            }
            let found_by = [(key.to_owned(), value)];
            let id = self.series(known, merchant_id, None, &Pairs::new(), &found_by);
            self.add_to(&id, &[WIDE], row, more);
            if known.series.contains(&id) {
                if known.of_traits.len() >= REMEMBERED_TRAITS {
                    known.of_traits.clear();
                }
                known.of_traits.insert(name, id);
            }
        }
        let metadata = &record.metadata;
        if metadata.is_empty() {
            return;
        }
        let (rare, common): (Pairs<'_>, Pairs<'_>) =
            metadata.iter().partition(|(key, value)| known.has_many(merchant_id, key, value));
        if !common.is_empty() {
            let by_owner = [(String::new(), String::new())];
            let id = self.series(known, merchant_id, None, &common, &by_owner);
            self.add_to(&id, &[NARROW, WIDE], row, more);
            if let Some(owner) = connection_id {
                let id = self.series(known, owner, connection_id, &common, &by_owner);
                self.add_to(&id, &[NARROW, WIDE], row, more);
            }
        }
        if !rare.is_empty() {
            let by_pairs: Vec<_> =
                rare.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let all = metadata.iter().collect();
            let id = self.series(known, merchant_id, connection_id, &all, &by_pairs);
            self.add_to(&id, &[NARROW], row, more);
        }
    }

    fn add_to(&mut self, series_id: &str, widths: &[i32], row: &RequestRow, more: Sums) {
        for &width in widths {
            let slot = slot(row.created_at);
            let slot = slot - slot.rem_euclid(i64::from(width));
            let meter_id = row.meter_id.clone().unwrap_or_default();
            *self.sums.entry((series_id.to_owned(), width, slot, meter_id)).or_default() += more;
        }
    }

    /// The id of the series of these pairs; it is made unless it is known.
    fn series(
        &mut self,
        known: &Known,
        owner_id: &str,
        connection_id: Option<&String>,
        pairs: &Pairs<'_>,
        found_by: &[(String, String)],
    ) -> String {
        let identity = Sha256::digest(to_json(&(owner_id, connection_id, pairs, found_by)));
        let identity =
            identity.iter().take(16).fold(0_u128, |all, byte| (all << 8) | u128::from(*byte));
        let series_id = format!("{identity:032x}");
        if !known.series.contains(&series_id) {
            self.series.insert(SeriesRow {
                series_id: series_id.clone(),
                connection_id: connection_id.cloned(),
                metadata: to_json(pairs),
            });
            self.tags.extend(found_by.iter().map(|(key, value)| TagRow {
                owner_id: owner_id.to_owned(),
                key: key.clone(),
                value: value.clone(),
                series_id: series_id.clone(),
            }));
        }
        series_id
    }

    /// Writes the series that are new, and answers what was added to all, to be
    /// [added](dialect::add_rollups) to what stands there. Rows of each table ascend, and nothing is locked
    /// afterwards, so batches never wait for each other in a circle.
    pub(super) fn write_series(&self, conn: &mut Conn) -> Result<Vec<RollupRow>, StoreError> {
        let series: Vec<_> = self.series.iter().cloned().collect();
        for rows in series.chunks(AT_ONCE) {
            dialect::insert_series(conn, rows)?;
        }
        let tags: Vec<_> = self.tags.iter().cloned().collect();
        for rows in tags.chunks(AT_ONCE) {
            dialect::insert_tags(conn, rows)?;
        }
        let shard = shard(conn);
        let rows = self.sums.iter().map(|(key, sums)| RollupRow::new(key.clone(), shard, sums));
        Ok(rows.collect())
    }

    /// What was added is written, durably: its series need not be written again.
    pub(super) fn written(self, known: &Series) {
        known.learn(self.series.into_iter().map(|row| row.series_id));
    }
}

/// Adds up all records if a migration has left that to be done. Call it while nothing else is booked.
pub(crate) fn rebuild_if_emptied(conn: &mut Conn) -> Result<(), StoreError> {
    conn.write(|conn| {
        let has_sums = diesel::select(exists(usage_rollups::table.select(usage_rollups::width)))
            .get_result::<bool>(conn)?;
        let ended = requests::table.filter(requests::outcome.is_not_null());
        let has_records = diesel::select(exists(ended)).get_result::<bool>(conn)?;
        if has_sums || !has_records {
            return Ok(());
        }
        log::info!("adding up all records");
        rebuild(conn)
    })
}

/// Adds up all records anew. Call it in a write transaction, while nothing else is booked.
pub(crate) fn rebuild(conn: &mut Conn) -> Result<(), StoreError> {
    const CHUNK: i64 = 20_000;
    diesel::delete(usage_rollups::table).execute(conn)?;
    diesel::delete(usage_tags::table).execute(conn)?;
    diesel::delete(usage_series::table).execute(conn)?;
    let series = Series::default();
    let mut after = String::new();
    loop {
        let rows: Vec<RequestRow> = requests::table
            .filter(requests::request_id.gt(&after))
            .order(requests::request_id)
            .limit(CHUNK)
            .select(RequestRow::as_select())
            .load(conn)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after.clone_from(&last.request_id);
        let mut rollups = Rollups::default();
        for row in rows.iter().filter(|row| !row.is_pending()) {
            let record = row.to_record(None)?;
            rollups.add(&series, row, &record, Sums::of(&record));
        }
        let rows = rollups.write_series(conn)?;
        dialect::add_rollups(conn, &rows)?;
        rollups.written(&series);
    }
}
