//! The rows of tier counters.

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{MerchantId, MeterId, PendingRecord, TierPeriod};

use crate::ids::{AnyId, Id};
use crate::schema::tier_counters;

#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Queryable,
    Selectable,
    Insertable,
    AsChangeset,
    Serialize,
    Deserialize,
)]
#[diesel(table_name = tier_counters)]
pub(crate) struct TierCounterRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) owner_id: Id<AnyId>,
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) period: String,
    pub(crate) used: i64,
}

impl TierCounterRow {
    pub(crate) fn new(key: &CounterKey, used: i64) -> Self {
        let (merchant_id, owner_id, meter_id, period) = key.clone();
        Self { merchant_id, owner_id, meter_id, period, used }
    }

    pub(crate) fn key(&self) -> CounterKey {
        (self.merchant_id, self.owner_id, self.meter_id, self.period.clone())
    }
}

/// The key of a tier counter: merchant, owner, meter and period.
pub(crate) type CounterKey = (Id<MerchantId>, Id<AnyId>, Id<MeterId>, String);

/// Returns the key of the tier counter of a call: that of its spend key, else of its customer, else of its merchant, in
/// the period of its admission.
pub(crate) fn counter_key(
    call: &PendingRecord,
    meter_id: MeterId,
    period: TierPeriod,
) -> CounterKey {
    (Id(call.merchant_id), counter_owner(call), Id(meter_id), period.key(call.created_at))
}

/// Returns the owner of the tier counter of a call.
pub(crate) fn counter_owner(call: &PendingRecord) -> Id<AnyId> {
    match (call.spend_key_id, call.connection_id) {
        (Some(id), _) => Id(id).untyped(),
        (None, Some(id)) => Id(id).untyped(),
        (None, None) => Id(call.merchant_id).untyped(),
    }
}
