//! The audit of the sums by metadata. The sets that have the same pairs, but for the keys that are left out of later ones, are
//! compared together.
//!
//! On some days the sets have not all calls, for instance of a program that keeps no sets. No query reads them, and they
//! are not compared.

use std::collections::{BTreeSet, HashMap, HashSet};

use diesel::prelude::*;
use tollgate_domain::{Id as _, MerchantId, Metadata};

use super::findings::{Audit, CHUNK};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rollups::{HighCardinalityKeys, QueuedCall, RollupSums, SET_WIDTHS, slot, slot_of};
use crate::rows::{MetadataSetRow, SetRollupRow, from_json};
use crate::schema::{metadata_rollups, metadata_sets};
use crate::tables::merchants;
use crate::usage;

/// The recalculated sums of sets.
#[derive(Default)]
pub(super) struct RecomputedSets {
    merchants: BTreeSet<Id<MerchantId>>,
    left_out: HighCardinalityKeys,
    /// The merchants, widths and days that are not compared.
    incomplete: HashSet<(Id<MerchantId>, i32, i64)>,
    sets: HashMap<(Id<AnyId>, i32), SetTotals>,
}

/// The sums of a set in rows of one width.
struct SetTotals {
    row: MetadataSetRow,
    recomputed: WidthTotals,
    kept: WidthTotals,
}

#[derive(Default, PartialEq, Eq)]
struct WidthTotals {
    sums: RollupSums,
    /// It changes when a call is counted in another slot.
    times: i128,
}

impl WidthTotals {
    fn add(&mut self, slot: i64, sums: RollupSums) {
        self.sums += sums;
        let times = i128::from(slot).saturating_mul(sums.requests);
        self.times = self.times.saturating_add(times);
    }
}

impl RecomputedSets {
    /// Begins with no records.
    pub(super) fn new(conn: &mut Conn) -> Result<Self, StoreError> {
        let merchants = merchants::present(conn)?;
        let mut incomplete = HashSet::new();
        for &merchant_id in &merchants {
            for width in SET_WIDTHS {
                let days = usage::days_without_sets(conn, merchant_id.get(), width)?;
                incomplete.extend(days.into_iter().map(|day| (merchant_id, width, day)));
            }
        }
        let left_out = HighCardinalityKeys::all(conn)?;
        Ok(Self { merchants, left_out, incomplete, sets: HashMap::new() })
    }

    /// Adds the sums of a call.
    pub(super) fn add(&mut self, call: &QueuedCall, sums: RollupSums) {
        let Some(set) = self.left_out.set_of(call.merchant_id, &call.metadata) else { return };
        for width in SET_WIDTHS {
            let slot = slot_of(width, slot(call.created_at));
            if let Some(totals) = self.totals(&set, width, slot) {
                totals.recomputed.add(slot, sums);
            }
        }
    }

    /// The totals of a set, unless the slot is not compared.
    fn totals(&mut self, set: &MetadataSetRow, width: i32, slot: i64) -> Option<&mut SetTotals> {
        if self.incomplete.contains(&(set.merchant_id, width, slot_of(96, slot))) {
            return None;
        }
        let totals = self.sets.entry((set.set_id, width));
        let (recomputed, kept) = Default::default();
        Some(totals.or_insert_with(|| SetTotals { row: set.clone(), recomputed, kept }))
    }

    /// Compares the stored sums from a quarter hour on. The calls in the queue are not added to them yet.
    pub(super) fn compare(
        mut self,
        conn: &mut Conn,
        queued: &[QueuedCall],
        first_slot: i64,
        audit: &mut Audit,
    ) -> Result<(), StoreError> {
        queued.iter().for_each(|call| self.add(call, RollupSums::default() - call.sums));
        let of_now = self.sets_of_now(conn)?;
        let mut after = (Id(MerchantId::from_bytes([0; 16])), 0, 0, Id::default());
        loop {
            let rows = rows_after(conn, after, first_slot)?;
            let Some(last) = rows.last() else { break };
            after = (last.merchant_id, last.width, last.slot, last.set_id);
            for row in &rows {
                match of_now.get(&row.set_id) {
                    // The sums of a merchant that moves here are here before it.
                    _ if !self.merchants.contains(&row.merchant_id) => {}
                    None => audit.compare(format!("usage of unknown set {}", row.set_id), 1, 0),
                    Some(None) => {}
                    Some(Some(set)) => {
                        if let Some(totals) = self.totals(set, row.width, row.slot) {
                            totals.kept.add(row.slot, RollupSums::from(row));
                        }
                    }
                }
            }
        }
        let mut totals: Vec<_> = self.sets.into_iter().collect();
        totals.sort_by_key(|(key, _)| *key);
        for ((_, width), SetTotals { row, recomputed, kept }) in totals {
            let MetadataSetRow { merchant_id, metadata, .. } = row;
            let what = format!("usage of {}, {metadata} in rows of {width}", merchant_id.get());
            audit.compare_sums(&what, kept.sums, recomputed.sums);
            if kept.times != recomputed.times {
                audit.compare(format!("{what}: times"), 1, 0);
            }
        }
        Ok(())
    }

    /// For each set, the set in which its calls would be now. `None` if they would be in none.
    fn sets_of_now(
        &self,
        conn: &mut Conn,
    ) -> Result<HashMap<Id<AnyId>, Option<MetadataSetRow>>, StoreError> {
        let rows: Vec<MetadataSetRow> =
            metadata_sets::table.select(MetadataSetRow::as_select()).load(conn)?;
        let of_now = rows.into_iter().map(|row| {
            let metadata: Metadata = from_json("metadata_sets.metadata", &row.metadata)?;
            Ok((row.set_id, self.left_out.set_of(row.merchant_id.get(), &metadata)))
        });
        of_now.collect()
    }
}

/// The next rows of sums after those of a merchant, a width, a slot and a set.
fn rows_after(
    conn: &mut Conn,
    (last_merchant, last_width, last_slot, last_set): (Id<MerchantId>, i32, i64, Id<AnyId>),
    first_slot: i64,
) -> Result<Vec<SetRollupRow>, StoreError> {
    use metadata_rollups::{merchant_id, set_id, slot, width};
    // This is `(a, b, c, d) > (w, x, y, z)`, which diesel cannot express.
    let of_slot = slot.gt(last_slot).or(slot.eq(last_slot).and(set_id.gt(last_set)));
    let of_merchant = width.gt(last_width).or(width.eq(last_width).and(of_slot));
    Ok(metadata_rollups::table
        .filter(slot.ge(first_slot))
        .filter(merchant_id.ge(last_merchant))
        .filter(merchant_id.gt(last_merchant).or(of_merchant))
        .order((merchant_id, width, slot, set_id))
        .limit(CHUNK)
        .select(SetRollupRow::as_select())
        .load(conn)?)
}
