//! The findings of an audit, and the names of their owners.

use std::collections::HashMap;
use std::fmt;

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, Cycle, MerchantId, RequestId, SpendCounters, SpendKeyId};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rollups::RollupSums;
use crate::rows::RollupRow;
use crate::schema::{connections, merchants, spend_keys};

/// The number of rows that are read at once.
pub(super) const CHUNK: i64 = 5_000;

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// The number of recalculated wallets.
    pub wallets: usize,
    /// The number of ledger lines read.
    pub transactions: usize,
    /// The number of calls read.
    pub requests: usize,
    /// The number of those calls that are in flight.
    pub pending: usize,
    /// The differences found.
    pub differences: Vec<Difference>,
}

/// A stored value that differs from the recalculated one. Amounts are in units of 10⁻¹⁰ USD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The compared value, such as `wallet wal_… balance`.
    pub what: String,
    /// The stored value.
    pub kept: i64,
    /// The value recalculated from the ledger.
    pub recomputed: i64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kept {}, recomputed {}", self.what, self.kept, self.recomputed)
    }
}

impl Audit {
    pub(super) fn compare_sums(&mut self, what: &str, kept: RollupSums, recomputed: RollupSums) {
        let shown =
            |sum: i128| i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX });
        let each = kept.each().into_iter().zip(recomputed.each());
        for (name, (kept, recomputed)) in RollupRow::SUM_NAMES.iter().zip(each) {
            if kept != recomputed {
                let name = name.replace('_', " ");
                self.compare(format!("{what}: {name}"), shown(kept), shown(recomputed));
            }
        }
    }

    pub(super) fn compare_spend(
        &mut self,
        name: &str,
        kept: &SpendCounters,
        recomputed: &SpendCounters,
    ) {
        for cycle in [Cycle::Daily, Cycle::Weekly, Cycle::Monthly, Cycle::Total] {
            let of = |counters: &SpendCounters| {
                [
                    counters.spent.get(cycle).units(),
                    counters.held.get(cycle).units(),
                    i64::try_from(*counters.requests.get(cycle)).unwrap_or(i64::MAX),
                ]
            };
            for (what, (kept, recomputed)) in
                ["spent", "held", "requests"].iter().zip(of(kept).into_iter().zip(of(recomputed)))
            {
                self.compare(format!("{name} {cycle:?} {what}"), kept, recomputed);
            }
        }
    }

    /// Adds a record whose number is out of the range of its wallet, or is taken.
    pub(super) fn add_wrong_number(&mut self, request_id: Id<RequestId>, kept: i64) {
        let what = format!("number of {request_id} on its wallet");
        self.differences.push(Difference { what, kept, recomputed: 0 });
    }

    pub(super) fn compare(&mut self, what: String, kept: i64, recomputed: i64) {
        if kept != recomputed {
            self.differences.push(Difference { what, kept, recomputed });
        }
    }
}

/// The names of merchants, connections and spend keys by id. Counters and series store ids without a kind.
pub(super) struct OwnerNames(HashMap<Id<AnyId>, String>);

impl OwnerNames {
    pub(super) fn read(conn: &mut Conn) -> Result<Self, StoreError> {
        let all: Vec<Id<MerchantId>> =
            merchants::table.select(merchants::merchant_id).load(conn)?;
        let mut owners: HashMap<_, _> = all.into_iter().map(Id::with_text).collect();
        let all: Vec<Id<ConnectionId>> =
            connections::table.select(connections::connection_id).load(conn)?;
        owners.extend(all.into_iter().map(Id::with_text));
        let all: Vec<Id<SpendKeyId>> =
            spend_keys::table.select(spend_keys::spend_key_id).load(conn)?;
        owners.extend(all.into_iter().map(Id::with_text));
        Ok(Self(owners))
    }

    pub(super) fn name(&self, id: Id<AnyId>) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}
