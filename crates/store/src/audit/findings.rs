//! What an audit finds, and whose it is.

use std::collections::HashMap;
use std::fmt;

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, Cycle, MerchantId, RequestId, SpendCounters, SpendKeyId};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::schema::{connections, merchants, spend_keys};

/// How many rows are read at a time.
pub(super) const CHUNK: i64 = 5_000;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// How many wallets were recomputed.
    pub wallets: usize,
    /// How many movements they rest on.
    pub transactions: usize,
    /// How many records were read.
    pub requests: usize,
    /// How many of them are on their way.
    pub pending: usize,
    /// What does not agree.
    pub differences: Vec<Difference>,
}

/// Something kept that is not what the ledger says. Amounts in units of 10⁻¹⁰ USD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What was compared, such as `wallet wal_… balance`.
    pub what: String,
    /// What is kept.
    pub kept: i64,
    /// What the ledger says.
    pub recomputed: i64,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kept {}, recomputed {}", self.what, self.kept, self.recomputed)
    }
}

impl Audit {
    pub(super) fn compare_spend(
        &mut self,
        id: Id<SpendKeyId>,
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
                self.compare(format!("spend key {id} {cycle:?} {what}"), kept, recomputed);
            }
        }
    }

    /// The number of a record is none of its wallet, or another's.
    pub(super) fn number_is_wrong(&mut self, request_id: Id<RequestId>, kept: i64) {
        let what = format!("number of {request_id} on its wallet");
        self.differences.push(Difference { what, kept, recomputed: 0 });
    }

    pub(super) fn compare(&mut self, what: String, kept: i64, recomputed: i64) {
        if kept != recomputed {
            self.differences.push(Difference { what, kept, recomputed });
        }
    }
}

/// The ids of merchants, connections and spend keys with their kinds, which counters and series do not have.
pub(super) struct Owners(HashMap<Id<AnyId>, String>);

impl Owners {
    pub(super) fn read(conn: &mut Conn) -> Result<Self, StoreError> {
        let all: Vec<Id<MerchantId>> =
            merchants::table.select(merchants::merchant_id).load(conn)?;
        let mut owners: HashMap<_, _> = all.into_iter().map(Id::named).collect();
        let all: Vec<Id<ConnectionId>> =
            connections::table.select(connections::connection_id).load(conn)?;
        owners.extend(all.into_iter().map(Id::named));
        let all: Vec<Id<SpendKeyId>> =
            spend_keys::table.select(spend_keys::spend_key_id).load(conn)?;
        owners.extend(all.into_iter().map(Id::named));
        Ok(Self(owners))
    }

    pub(super) fn name(&self, id: Id<AnyId>) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}
