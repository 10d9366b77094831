//! The sums of archived months, with which an audit begins that does not read the archive.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::prelude::*;
use tollgate_domain::{Id as _, MeterId};

use super::findings::{Audit, OwnerNames};
use crate::archived::ArchivedUntil;
use crate::archived_sums::OwnerSums;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::{ArchivedSumRow, CounterKey};
use crate::schema::{archived_months, archived_sums};

/// The sums of the months that are in the archive and are not read.
pub(super) struct ArchivedSums {
    pub(super) until: ArchivedUntil,
    /// The records and costs of wallets, spend keys and budgets.
    owners: HashMap<Id<AnyId>, (i64, i64)>,
    /// The costs by wallet that ledger lines of archived calls have.
    pub(super) booked: HashMap<Id<AnyId>, i64>,
}

impl ArchivedSums {
    /// The records and the costs of an owner.
    pub(super) fn of(&self, owner: Id<AnyId>) -> (i64, i64) {
        self.owners.get(&owner).copied().unwrap_or_default()
    }
}

/// Reads the sums of the months that are in the archive. Those of tier counters go to `counters`.
pub(super) fn read(
    conn: &mut Conn,
    until: ArchivedUntil,
    counters: &mut BTreeMap<CounterKey, i64>,
) -> Result<ArchivedSums, StoreError> {
    let rows = rows(conn)?;
    let mut sums = ArchivedSums { until, owners: HashMap::new(), booked: HashMap::new() };
    for row in rows {
        if row.meter_id == Id::default() {
            let (records, amount) = sums.owners.entry(row.owner_id).or_default();
            *records = records.saturating_add(row.records);
            *amount = amount.saturating_add(row.amount);
        } else {
            let meter_id = Id(MeterId::from_bytes(*row.meter_id.get().as_bytes()));
            let key = (row.merchant_id, row.owner_id, meter_id, row.period);
            let counter = counters.entry(key).or_default();
            *counter = counter.saturating_add(row.amount);
        }
    }
    Ok(sums)
}

fn rows(conn: &mut Conn) -> Result<Vec<ArchivedSumRow>, StoreError> {
    // Sums of a month that is not marked yet are those of records that are here.
    Ok(archived_sums::table
        .filter(archived_sums::month.eq_any(archived_months::table.select(archived_months::month)))
        .select(ArchivedSumRow::as_select())
        .load(conn)?)
}

/// Compares the sums of the archived months with those of their records.
pub(super) fn compare(
    conn: &mut Conn,
    recomputed: OwnerSums,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let of = |rows: Vec<ArchivedSumRow>| -> BTreeMap<_, _> {
        let sum = |row: ArchivedSumRow| {
            let key = (row.month, row.merchant_id, row.owner_id, row.meter_id, row.period);
            (key, (row.records, row.amount))
        };
        rows.into_iter().map(sum).collect()
    };
    let (kept, recomputed) = (of(rows(conn)?), of(recomputed.rows()));
    let owners = OwnerNames::read(conn)?;
    let keys: BTreeSet<_> = kept.keys().chain(recomputed.keys()).collect();
    for key in keys {
        let [kept, recomputed] =
            [&kept, &recomputed].map(|of| of.get(key).copied().unwrap_or_default());
        let (month, _, owner, ..) = key;
        let what = format!("archived sums of {} of {month}", owners.name(*owner));
        audit.compare(format!("{what}, records"), kept.0, recomputed.0);
        audit.compare(format!("{what}, amount"), kept.1, recomputed.1);
    }
    Ok(())
}
