//! The rows of open calls: calls that are admitted and not settled.

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, CreditHold, ForwardedRequest, MerchantId, MeterId, MeterVersion, NodeId,
    PendingRecord, RequestId, RunId, SpendKeyId, WalletId,
};
use tollgate_pricing::Amount;

use super::budgets::{budgets_of, stored_budgets};
use super::values::{from_json, time, to_json};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::open_calls;

/// The row of a call that is admitted and not settled.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = open_calls, treat_none_as_default_value = false)]
pub(crate) struct OpenCallRow {
    pub(crate) request_id: Id<RequestId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) node_id: Id<NodeId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    pub(crate) wallet_id: Option<Id<WalletId>>,
    pub(crate) merchant_wallet_id: Id<WalletId>,
    pub(crate) meter_id: Option<Id<MeterId>>,
    pub(crate) meter_version: Option<i32>,
    pub(crate) disable_billing: bool,
    pub(crate) spend_hold: i64,
    pub(crate) wallet_hold: i64,
    pub(crate) cycle_hold: i64,
    pub(crate) bundle_hold: i64,
    pub(crate) credit_cycle: Option<i64>,
    pub(crate) merchant_hold: i64,
    pub(crate) forwarded: String,
    pub(crate) created_at: i64,
    pub(crate) budgets: Option<String>,
    pub(crate) run_id: Option<String>,
    pub(crate) is_ahead: bool,
}

impl OpenCallRow {
    /// Creates the row of a call that `node_id` has admitted.
    pub(crate) fn new(call: &PendingRecord, node_id: NodeId) -> Self {
        Self {
            request_id: Id(call.request_id),
            merchant_id: Id(call.merchant_id),
            node_id: Id(node_id),
            connection_id: call.connection_id.map(Id),
            spend_key_id: call.spend_key_id.map(Id),
            wallet_id: call.wallet_id.map(Id),
            merchant_wallet_id: Id(call.merchant_wallet_id),
            meter_id: call.meter.map(|meter| Id(meter.meter_id)),
            meter_version: call.meter.map(|meter| meter.version),
            disable_billing: call.disable_billing,
            spend_hold: call.spend_hold.units(),
            wallet_hold: call.wallet_hold.units(),
            cycle_hold: call.credit_hold.map_or(0, |hold| hold.cycle.units()),
            bundle_hold: call.credit_hold.map_or(0, |hold| hold.bundle.units()),
            credit_cycle: call.credit_hold.map(|hold| hold.in_cycle),
            merchant_hold: call.merchant_hold.units(),
            forwarded: to_json(&call.forwarded),
            created_at: call.created_at.unix_micros(),
            budgets: stored_budgets(&call.budgets),
            run_id: call.run_id.as_ref().map(ToString::to_string),
            is_ahead: call.ahead,
        }
    }
}

impl TryFrom<&OpenCallRow> for PendingRecord {
    type Error = StoreError;

    fn try_from(row: &OpenCallRow) -> Result<Self, StoreError> {
        Ok(Self {
            request_id: row.request_id.get(),
            merchant_id: row.merchant_id.get(),
            reference_id: None,
            connection_id: row.connection_id.map(Id::get),
            spend_key_id: row.spend_key_id.map(Id::get),
            wallet_id: row.wallet_id.map(Id::get),
            merchant_wallet_id: row.merchant_wallet_id.get(),
            meter: meter_version(row.meter_id, row.meter_version),
            disable_billing: row.disable_billing,
            forwarded: from_json::<ForwardedRequest>("open_calls.forwarded", &row.forwarded)?,
            spend_hold: Amount::from_units(row.spend_hold),
            wallet_hold: Amount::from_units(row.wallet_hold),
            credit_hold: row.credit_cycle.map(|in_cycle| CreditHold {
                cycle: Amount::from_units(row.cycle_hold),
                bundle: Amount::from_units(row.bundle_hold),
                in_cycle,
            }),
            merchant_hold: Amount::from_units(row.merchant_hold),
            enforcement: None,
            budgets: budgets_of(row.budgets.as_deref())?,
            run_id: row.run_id.clone().map(RunId::stored),
            report: None,
            ahead: row.is_ahead,
            created_at: time(row.created_at),
        })
    }
}

/// Returns the meter version that prices a call.
pub(super) fn meter_version(
    meter_id: Option<Id<MeterId>>,
    version: Option<i32>,
) -> Option<MeterVersion> {
    let (meter_id, version) = meter_id.zip(version)?;
    Some(MeterVersion { meter_id: meter_id.get(), version })
}
