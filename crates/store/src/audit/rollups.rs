//! The audit of the roll-ups. Series of merchants, customers and spend keys are compared row by row, series of pairs by
//! their total, and the index of records by the number of entries of each pair.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::prelude::*;
use tollgate_domain::{Id as _, MerchantId, MeterId, PendingRecord, RequestRecord, RequestStatus};

use super::findings::{Audit, CHUNK, OwnerNames};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rollups::{
    self, NARROW, QueuedCall, RollupKey, RollupSums, Rollups, WIDE, index_pairs, slot, traits,
};
use crate::rows::{PairRow, RequestIndexRow, RollupRow, time};
use crate::schema::{request_index, usage_pairs, usage_rollups};

/// The stored and the recalculated sums.
#[derive(Default)]
pub(super) struct RecomputedRollups {
    rows: BTreeMap<RollupKey, [RollupSums; 2]>,
    /// By the series of a pair.
    pairs: HashMap<Id<AnyId>, PairTotals>,
    /// The numbers of entries of the index, by merchant and pair.
    entries: BTreeMap<IndexKey, [i64; 2]>,
}

type IndexKey = (Id<MerchantId>, String, String);

/// The total of the calls of a merchant or a customer with a pair.
struct PairTotals {
    merchant_id: Id<MerchantId>,
    /// The width of the rows of the series.
    width: i32,
    owner: Id<AnyId>,
    key: String,
    value: String,
    sums: [RollupSums; 2],
}

impl RecomputedRollups {
    /// Adds a record.
    pub(super) fn add(&mut self, call: &PendingRecord, record: &RequestRecord) {
        let more = RollupSums::of(record);
        let created_at = call.created_at.unix_micros();
        let meter_id = call.meter.map(|meter| Id(meter.meter_id).untyped()).unwrap_or_default();
        let mut add = |owner: Id<AnyId>, widths: &[i32]| {
            for &width in widths {
                let slot = slot(created_at);
                let slot = slot - slot.rem_euclid(i64::from(width));
                let key = (Id(call.merchant_id), owner, width, slot, meter_id);
                let [_, sums] = self.rows.entry(key).or_default();
                *sums += more;
            }
        };
        let merchant_id = Id(call.merchant_id).untyped();
        let connection_id = call.connection_id.map(|id| Id(id).untyped());
        let owners = || [Some(merchant_id), connection_id].into_iter().flatten();
        owners().for_each(|owner| add(owner, &[NARROW, WIDE]));
        if let Some(spend_key_id) = call.spend_key_id {
            add(Id(spend_key_id).untyped(), &[WIDE]);
        }
        let mut add = |owner: Id<AnyId>, width: i32, key: &String, value: &String| {
            let series = self.pairs.entry(rollups::series_of(owner, (key, value)));
            let of_pair = series.or_insert_with(|| PairTotals {
                merchant_id: Id(call.merchant_id),
                width,
                owner,
                key: key.clone(),
                value: value.clone(),
                sums: Default::default(),
            });
            let [_, sums] = &mut of_pair.sums;
            *sums += more;
        };
        for (key, value) in traits(record) {
            add(merchant_id, WIDE, &key.to_owned(), &value);
        }
        for owner in owners() {
            record.metadata.iter().for_each(|(key, value)| add(owner, NARROW, key, value));
        }
        let meter_id = call.meter.map(|meter| meter.meter_id);
        let has_failed = record.status == RequestStatus::Error;
        let pairs = index_pairs(call.connection_id, meter_id, &record.metadata, has_failed);
        for (key, value) in pairs {
            let [_, count] = self.entries.entry((Id(call.merchant_id), key, value)).or_default();
            *count += 1;
        }
    }

    fn keep(&mut self, row: &RollupRow) {
        let sums = RollupSums::from(row);
        let [kept, _] = match self.pairs.get_mut(&row.series_id) {
            Some(of_pair) if of_pair.width == row.width => &mut of_pair.sums,
            _ => {
                let key = (row.merchant_id, row.series_id, row.width, row.slot, row.meter_id);
                self.rows.entry(key).or_default()
            }
        };
        *kept += sums;
    }
}

pub(super) fn compare(
    conn: &mut Conn,
    mut recomputed: RecomputedRollups,
    owners: &OwnerNames,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    // The calls in the queue count as if they were in the roll-ups.
    let mut unfolded = Rollups::default();
    let queued = rollups::queued(conn)?;
    queued.iter().for_each(|call| unfolded.add(call));
    compare_index(conn, &queued, recomputed.entries, audit)?;
    recomputed.entries = BTreeMap::new();
    unfolded.rows().for_each(|row| recomputed.keep(&row));
    let mut after = (Id::default(), 0, 0, Id::default());
    loop {
        use usage_rollups::{meter_id, series_id, slot, width};
        let (last_series, last_width, last_slot, last_meter) = after;
        // This is `(a, b, …) > (x, y, …)`, which diesel cannot express.
        let beyond = slot.gt(last_slot).or(slot.eq(last_slot).and(meter_id.gt(last_meter)));
        let rows: Vec<RollupRow> = usage_rollups::table
            .filter(series_id.ge(last_series))
            .filter(
                series_id
                    .gt(last_series)
                    .or(width.gt(last_width))
                    .or(width.eq(last_width).and(beyond)),
            )
            .order((series_id, width, slot, meter_id))
            .limit(CHUNK)
            .select(RollupRow::as_select())
            .load(conn)?;
        let Some(last) = rows.last() else { break };
        after = (last.series_id, last.width, last.slot, last.meter_id);
        rows.iter().for_each(|row| recomputed.keep(row));
    }
    for ((_, owner, width, slot, meter_id), sums) in recomputed.rows {
        let at = time(slot.saturating_mul(15 * 60 * 1_000_000));
        let plural = if width == NARROW { "" } else { "s" };
        let meter = match meter_id == Id::default() {
            true => "without meter".to_owned(),
            false => format!("under {}", MeterId::from_bytes(*meter_id.get().as_bytes())),
        };
        let owner = owners.name(owner);
        let what = format!("usage of {owner} in {width} quarter hour{plural} from {at} {meter}");
        audit.compare_sums(&what, sums);
    }
    let mut listed: BTreeSet<PairRow> = unfolded.into_pairs().collect();
    let rows: Vec<PairRow> = usage_pairs::table.select(PairRow::as_select()).load(conn)?;
    listed.extend(rows);
    for PairTotals { merchant_id, width, owner, key, value, sums } in recomputed.pairs.into_values()
    {
        let what = format!("usage of {} with {key} = {value}", owners.name(owner));
        audit.compare_sums(&what, sums);
        if width == WIDE {
            let is_listed = listed.contains(&PairRow { merchant_id, key, value });
            audit.compare(format!("{what}: pair"), i64::from(is_listed), 1);
        }
    }
    Ok(())
}

/// Compares the numbers of entries of the index of records.
fn compare_index(
    conn: &mut Conn,
    queued: &[QueuedCall],
    mut entries: BTreeMap<IndexKey, [i64; 2]>,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let pair = (request_index::merchant_id, request_index::key, request_index::value);
    let stored: Vec<(Id<MerchantId>, String, String, i64)> = request_index::table
        .group_by(pair)
        .select((
            request_index::merchant_id,
            request_index::key,
            request_index::value,
            diesel::dsl::count_star(),
        ))
        .load(conn)?;
    let stored = stored.into_iter().map(|(id, key, value, count)| ((id, key, value), count));
    let queued = queued.iter().flat_map(|call| {
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

impl Audit {
    fn compare_sums(&mut self, what: &str, [kept, recomputed]: [RollupSums; 2]) {
        const NAMES: [&str; 7] = [
            "requests",
            "tokens",
            "usage cost",
            "fee",
            "service charge",
            "wallet cost",
            "merchant cost",
        ];
        let shown =
            |sum: i128| i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX });
        let each = kept.each().into_iter().zip(recomputed.each());
        for (name, (kept, recomputed)) in NAMES.iter().zip(each) {
            if kept != recomputed {
                self.compare(format!("{what}: {name}"), shown(kept), shown(recomputed));
            }
        }
    }
}
