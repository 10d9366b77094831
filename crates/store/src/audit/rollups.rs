//! The audit of the roll-ups. Series of merchants, customers and spend keys are compared row by row. Series by metadata
//! and by traits are compared by the total of each pair.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::prelude::*;
use tollgate_domain::{Id as _, MeterId, PendingRecord, RequestRecord};

use super::findings::{Audit, CHUNK, Owners};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rollups::{
    self, NARROW, RollupKey, Rollups, Series, Sums, WIDE, is_trait, pairs, slot, traits,
};
use crate::rows::{RollupRow, SeriesRow, TagRow, time};
use crate::schema::{usage_rollups, usage_series, usage_tags};

/// A merchant or customer, and a pair of metadata.
type PairKey = (Id<AnyId>, String, String);

/// The stored and the recalculated sums.
#[derive(Default)]
pub(super) struct Recomputed {
    rows: BTreeMap<RollupKey, [Sums; 2]>,
    pairs: BTreeMap<PairKey, [Sums; 2]>,
}

impl Recomputed {
    /// Adds a record.
    pub(super) fn add(&mut self, call: &PendingRecord, record: &RequestRecord) {
        let more = Sums::of(record);
        let created_at = call.created_at.unix_micros();
        let meter_id = call.meter.map(|meter| Id(meter.meter_id).of_any()).unwrap_or_default();
        let mut add = |owner: Id<AnyId>, widths: &[i32]| {
            for &width in widths {
                let slot = slot(created_at);
                let slot = slot - slot.rem_euclid(i64::from(width));
                let key = (Id(call.merchant_id), owner, width, slot, meter_id);
                let [_, sums] = self.rows.entry(key).or_default();
                *sums += more;
            }
        };
        if let Some(spend_key_id) = call.spend_key_id {
            add(Id(spend_key_id).of_any(), &[WIDE]);
        }
        let merchant_id = Id(call.merchant_id).of_any();
        for (key, value) in traits(record) {
            let pair = (merchant_id, key.to_owned(), value);
            let [_, sums] = self.pairs.entry(pair).or_default();
            *sums += more;
        }
        let connection_id = call.connection_id.map(|id| Id(id).of_any());
        for owner in [Some(merchant_id), connection_id].into_iter().flatten() {
            add(owner, &[NARROW, WIDE]);
            for (key, value) in record.metadata.iter() {
                let key = (owner, key.clone(), value.clone());
                let [_, sums] = self.pairs.entry(key).or_default();
                *sums += more;
            }
        }
    }

    fn keep(&mut self, row: RollupRow, pairs_of: &HashMap<Id<AnyId>, Vec<PairKey>>) {
        let sums = Sums::from(&row);
        let Some(pairs) = pairs_of.get(&row.series_id) else {
            let key = (row.merchant_id, row.series_id, row.width, row.slot, row.meter_id);
            let [kept, _] = self.rows.entry(key).or_default();
            *kept += sums;
            return;
        };
        for pair in pairs {
            if row.width == NARROW || is_trait(&pair.1) {
                let [kept, _] = self.pairs.entry(pair.clone()).or_default();
                *kept += sums;
            }
        }
    }
}

pub(super) fn compare(
    conn: &mut Conn,
    mut recomputed: Recomputed,
    owners: &Owners,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    // The calls in the queue count as if they were in the roll-ups.
    let mut unfolded = Rollups::default();
    rollups::queued(conn)?.iter().for_each(|call| unfolded.add(&Series::default(), call));
    let rows: Vec<_> = unfolded.rows().collect();
    let pairs_of = pairs_by_series(conn, unfolded)?;
    rows.into_iter().for_each(|row| recomputed.keep(row, &pairs_of));
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
        rows.into_iter().for_each(|row| recomputed.keep(row, &pairs_of));
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
    for ((owner, key, value), sums) in recomputed.pairs {
        let owner = owners.name(owner);
        audit.compare_sums(&format!("usage of {owner} with {key} = {value}"), sums);
    }
    Ok(())
}

/// The pairs that a query finds each series by, with their owners.
fn pairs_by_series(
    conn: &mut Conn,
    unfolded: Rollups,
) -> Result<HashMap<Id<AnyId>, Vec<PairKey>>, StoreError> {
    let mut found: HashMap<Id<AnyId>, Vec<PairKey>> = HashMap::new();
    let tags: Vec<(TagRow, SeriesRow)> = usage_tags::table
        .inner_join(usage_series::table.on(usage_series::series_id.eq(usage_tags::series_id)))
        .select((TagRow::as_select(), SeriesRow::as_select()))
        .load(conn)?;
    let tags: BTreeSet<_> = tags.into_iter().chain(unfolded.tagged()).collect();
    for (tag, series) in tags {
        let of_series = found.entry(series.series_id).or_default();
        if tag.key.is_empty() {
            let all = pairs(&series)?.into_iter();
            of_series.extend(all.map(|(key, value)| (tag.owner_id, key, value)));
        } else {
            let owners = [Some(tag.owner_id), series.connection_id].into_iter().flatten();
            of_series.extend(owners.map(|owner| (owner, tag.key.clone(), tag.value.clone())));
        }
    }
    Ok(found)
}

impl Audit {
    fn compare_sums(&mut self, what: &str, [kept, recomputed]: [Sums; 2]) {
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
