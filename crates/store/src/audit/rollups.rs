//! The audit of the roll-ups. The sums of each series are compared in every width, with the times of its calls, and the
//! index of records by the number of entries of each pair.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use diesel::prelude::*;
use tollgate_domain::{Id as _, MerchantId, RequestId};

use super::findings::{Audit, CHUNK};
use super::metadata::RecomputedSets;
use crate::archived::ArchivedUntil;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rollups::{self, QueuedCall, RollupSums, series_of, slot, slot_of, widths_of};
use crate::rows::{RequestIndexRow, RollupRow, SeriesRow};
use crate::schema::{self, request_index, usage_rollups, usage_series};
use crate::tables::merchants;

/// The recalculated sums.
#[derive(Default)]
pub(super) struct RecomputedRollups {
    series: HashMap<Id<AnyId>, SeriesTotals>,
    /// The numbers of entries of the index, by merchant and pair.
    entries: BTreeMap<IndexKey, [i64; 2]>,
    /// The records whose entries are not compared.
    leaving: Option<Range<Id<RequestId>>>,
    /// The series that are not compared.
    absent: HashSet<Id<AnyId>>,
    sets: RecomputedSets,
}

type IndexKey = (Id<MerchantId>, String, String);

/// The sums of the calls of a series.
struct SeriesTotals {
    row: SeriesRow,
    sums: RollupSums,
    /// The times of its calls in each width.
    times: BTreeMap<i32, i128>,
    /// Whether the row of the series was found.
    is_listed: bool,
    /// The widths of which rows were found.
    found: BTreeSet<i32>,
}

/// The contribution of a row to the times of its series: it changes when a call is counted in another slot.
fn times(slot: i64, requests: i128) -> i128 {
    i128::from(slot).saturating_mul(requests)
}

impl RecomputedRollups {
    /// Begins with no records.
    pub(super) fn new(conn: &mut Conn, until: Option<ArchivedUntil>) -> Result<Self, StoreError> {
        // The entries of a month that is being deleted leave before its records.
        let leaving = until.and_then(|until| until.leaving_requests());
        Ok(Self { leaving, sets: RecomputedSets::new(conn)?, ..Self::default() })
    }

    /// Adds a record, unless it is from before the end of the archived months.
    pub(super) fn add(&mut self, call: &QueuedCall, until: Option<ArchivedUntil>) {
        if slot(call.created_at) >= first_slot(until) {
            self.add_sums(call, call.sums);
            self.sets.add(call, call.sums);
        }
    }

    /// Adds the entries of a record in the index.
    pub(super) fn add_entries(&mut self, call: &QueuedCall) {
        let is_leaving = |leaving: &Range<_>| leaving.contains(&Id(call.request_id));
        if self.leaving.as_ref().is_some_and(is_leaving) {
            return;
        }
        for (key, value) in call.index_pairs() {
            let [_, count] = self.entries.entry((Id(call.merchant_id), key, value)).or_default();
            *count += 1;
        }
    }

    fn add_sums(&mut self, call: &QueuedCall, more: RollupSums) {
        let of_call = slot(call.created_at);
        for row in series_of(call) {
            let series = self.series.entry(row.series_id).or_insert_with(|| SeriesTotals {
                row,
                sums: RollupSums::default(),
                times: BTreeMap::new(),
                is_listed: false,
                found: BTreeSet::new(),
            });
            series.sums += more;
            for &width in widths_of(&series.row.key) {
                let slot = slot_of(width, of_call);
                let sum = series.times.entry(width).or_default();
                *sum = sum.saturating_add(times(slot, more.requests));
            }
        }
    }

    /// Compares the sums of a series in one width.
    fn check(&mut self, found: &WidthSums, audit: &mut Audit) {
        let (series_id, width) = found.of;
        if self.absent.contains(&series_id) {
            return;
        }
        let series = self.series.get_mut(&series_id);
        let Some(series) = series.filter(|one| widths_of(&one.row.key).contains(&width)) else {
            let what = format!("usage of unknown series {series_id} in rows of {width}");
            return audit.compare_sums(&what, found.sums, RollupSums::default());
        };
        series.found.insert(width);
        let what = format!("usage of {} in rows of {width}", name(&series.row));
        audit.compare_sums(&what, found.sums, series.sums);
        if series.times.get(&width) != Some(&found.times) {
            audit.compare(format!("{what}: times"), 1, 0);
        }
    }
}

/// The stored sums of a series in one width.
#[derive(Default)]
struct WidthSums {
    /// The series and the width.
    of: (Id<AnyId>, i32),
    sums: RollupSums,
    times: i128,
}

/// The name of a series for people.
fn name(row: &SeriesRow) -> String {
    let SeriesRow {
        merchant_id, key, value, connection_id, spend_key_id, budget_id, meter_id, ..
    } = row;
    let mut name = merchant_id.to_string();
    let ids = [
        connection_id.map(|id| id.to_string()),
        spend_key_id.map(|id| id.to_string()),
        budget_id.map(|id| id.to_string()),
        meter_id.map(|id| id.to_string()),
        row.provider.clone(),
        row.model.clone(),
        row.status.filter(|status| *status == 3).map(|_| "error".to_owned()),
        Some(if value.is_empty() { key.clone() } else { format!("{key} = {value}") }),
    ];
    for part in ids.into_iter().flatten() {
        name.push_str(", ");
        name.push_str(&part);
    }
    name
}

pub(super) fn compare(
    conn: &mut Conn,
    mut recomputed: RecomputedRollups,
    until: Option<ArchivedUntil>,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let queued = rollups::queued(conn)?;
    // A merchant that moves here has sums and entries before it is here.
    recomputed.absent = absent_series(conn)?;
    std::mem::take(&mut recomputed.sets).compare(conn, &queued, first_slot(until), audit)?;
    let entries = std::mem::take(&mut recomputed.entries);
    compare_index(conn, &queued, entries, recomputed.leaving.as_ref(), audit)?;
    // The calls in the queue are in no row yet.
    queued.iter().for_each(|call| recomputed.add_sums(call, RollupSums::default() - call.sums));
    compare_rows(conn, &mut recomputed, first_slot(until), audit)?;
    compare_series(conn, &mut recomputed, audit)?;
    for series in recomputed.series.values() {
        let SeriesTotals { row, sums, is_listed, found, .. } = series;
        if *sums == RollupSums::default() {
            continue;
        }
        if !is_listed {
            audit.compare(format!("series of {}", name(row)), 0, 1);
        }
        for width in widths_of(&row.key).iter().filter(|width| !found.contains(width)) {
            let what = format!("usage of {} in rows of {width}", name(row));
            audit.compare_sums(&what, RollupSums::default(), *sums);
        }
    }
    Ok(())
}

/// The first quarter hour that is compared: that after the archived months.
fn first_slot(until: Option<ArchivedUntil>) -> i64 {
    until.map_or(i64::MIN, |until| slot(until.at.unix_micros()))
}

fn compare_rows(
    conn: &mut Conn,
    recomputed: &mut RecomputedRollups,
    first_slot: i64,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let mut after = (Id::default(), 0, 0);
    let mut current = WidthSums::default();
    loop {
        let rows = rows_after(conn, after, first_slot)?;
        let Some(last) = rows.last() else { break };
        after = (last.series_id, last.width, last.slot);
        for row in &rows {
            let of_row = (row.series_id, row.width);
            if current.of != of_row {
                let done =
                    std::mem::replace(&mut current, WidthSums { of: of_row, ..Default::default() });
                recomputed.check(&done, audit);
            }
            let sums = RollupSums::from(row);
            current.sums += sums;
            current.times = current.times.saturating_add(times(row.slot, sums.requests));
        }
    }
    recomputed.check(&current, audit);
    Ok(())
}

/// The next rows of the roll-ups after those of a series, a width and a slot.
fn rows_after(
    conn: &mut Conn,
    (last_series, last_width, last_slot): (Id<AnyId>, i32, i64),
    first_slot: i64,
) -> Result<Vec<RollupRow>, StoreError> {
    use usage_rollups::{series_id, slot, width};
    // This is `(a, b, c) > (x, y, z)`, which diesel cannot express.
    let beyond = width.gt(last_width).or(width.eq(last_width).and(slot.gt(last_slot)));
    Ok(usage_rollups::table
        .filter(slot.ge(first_slot))
        .filter(series_id.ge(last_series))
        .filter(series_id.gt(last_series).or(beyond))
        .order((series_id, width, slot))
        .limit(CHUNK)
        .select(RollupRow::as_select())
        .load(conn)?)
}

/// Compares the rows of series.
fn compare_series(
    conn: &mut Conn,
    recomputed: &mut RecomputedRollups,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let rows: Vec<SeriesRow> = usage_series::table.select(SeriesRow::as_select()).load(conn)?;
    for row in rows {
        match recomputed.series.get_mut(&row.series_id) {
            Some(series) if series.row == row => series.is_listed = true,
            // A corrected call leaves a series without calls.
            None => {}
            Some(_) => audit.compare(format!("series {} of {}", row.series_id, name(&row)), 1, 0),
        }
    }
    Ok(())
}

/// The series of merchants that are not here.
fn absent_series(conn: &mut Conn) -> Result<HashSet<Id<AnyId>>, StoreError> {
    let present = schema::merchants::table.select(schema::merchants::merchant_id);
    let absent = usage_series::table.filter(usage_series::merchant_id.ne_all(present));
    let absent: Vec<Id<AnyId>> = absent.select(usage_series::series_id).load(conn)?;
    Ok(absent.into_iter().collect())
}

/// Compares the numbers of entries of the index of records, except for those of the records that are `leaving`.
fn compare_index(
    conn: &mut Conn,
    queued: &[QueuedCall],
    mut entries: BTreeMap<IndexKey, [i64; 2]>,
    leaving: Option<&Range<Id<RequestId>>>,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let pair = (request_index::merchant_id, request_index::key, request_index::value);
    let none = Id(RequestId::from_bytes([0; 16]));
    let leaving = leaving.cloned().unwrap_or(none..none);
    let is_before = request_index::request_id.lt(leaving.start);
    let stored: Vec<(Id<MerchantId>, String, String, i64)> = request_index::table
        .filter(is_before.or(request_index::request_id.ge(leaving.end)))
        .group_by(pair)
        .select((
            request_index::merchant_id,
            request_index::key,
            request_index::value,
            diesel::dsl::count_star(),
        ))
        .load(conn)?;
    let merchants = merchants::present(conn)?;
    let stored = stored.into_iter().filter(|(id, ..)| merchants.contains(id));
    let stored = stored.map(|(id, key, value, count)| ((id, key, value), count));
    let queued = queued.iter().filter(|call| !leaving.contains(&Id(call.request_id)));
    let queued = queued.flat_map(|call| {
        let [gained, lost] = call.index_rows();
        let counted = |rows: Vec<RequestIndexRow>, count: i64| {
            rows.into_iter().map(move |row| ((row.merchant_id, row.key, row.value), count))
        };
        counted(gained, 1).chain(counted(lost, -1))
    });
    for (pair, more) in stored.chain(queued) {
        let [kept, _] = entries.entry(pair).or_default();
        *kept += more;
    }
    for ((merchant, key, value), [kept, expected]) in entries {
        audit.compare(format!("index of {merchant} by {key} = {value}"), kept, expected);
    }
    Ok(())
}
