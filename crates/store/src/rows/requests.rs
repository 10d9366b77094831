//! The rows of records of settled calls, and of their corrections, index entries and references.

use std::sync::Arc;

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, CreditHold, FeeModel, ForwardedRequest, MerchantId, MeterId, MeterVersion,
    PendingRecord, PricedUsage, RequestId, RequestRecord, RequestStatus, RunId, SpendKeyId,
    Timestamp, WalletId,
};
use tollgate_pricing::Amount;

use super::budgets::{budgets_of, stored_budgets};
use super::open_calls::meter_version;
use super::values::{from_json, time, to_json};
use crate::codes::EnumCode;
use crate::error::StoreError;
use crate::ids::Id;
use crate::outcome::StoredOutcome;
use crate::schema::{corrections, reported_usage, request_index, requests};
use crate::settled_call::SettledCall;

/// The record of a settled call.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
// With defaults, every combination of absent values would be another insert statement.
#[diesel(table_name = requests, treat_none_as_default_value = false)]
pub(crate) struct RequestRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) request_id: Id<RequestId>,
    pub(crate) sequence: i64,
    pub(crate) reference_id: Option<String>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) spend_key_id: Option<Id<SpendKeyId>>,
    pub(crate) wallet_id: Option<Id<WalletId>>,
    pub(crate) merchant_wallet_id: Id<WalletId>,
    pub(crate) meter_id: Option<Id<MeterId>>,
    pub(crate) meter_version: Option<i32>,
    pub(crate) disable_billing: bool,
    pub(crate) status: EnumCode<RequestStatus>,
    pub(crate) credit_cycle: Option<i64>,
    pub(crate) wallet_cost: i64,
    pub(crate) merchant_cost: i64,
    pub(crate) counted_units: i64,
    pub(crate) swept: bool,
    pub(crate) forwarded: String,
    pub(crate) outcome: String,
    pub(crate) created_at: i64,
    pub(crate) settled_at: Option<i64>,
    pub(crate) budgets: Option<String>,
    pub(crate) run_id: Option<String>,
}

impl RequestRow {
    /// Converts the row to a settled call. `meter` is the model that priced it, if it must be
    /// shown.
    pub(crate) fn settled_call(&self, meter: Option<&FeeModel>) -> Result<SettledCall, StoreError> {
        Ok(SettledCall {
            call: Arc::new(self.call()?),
            record: Arc::new(self.to_record(meter)?),
            wallet_paid: Amount::from_units(self.wallet_cost),
            merchant_paid: Amount::from_units(self.merchant_cost),
            counted_units: self.counted_units,
            missing_price: None,
        })
    }

    /// Applies a correction to the record.
    pub(crate) fn correct(&mut self, correction: CorrectionRow) {
        self.status = correction.status;
        self.wallet_cost = correction.wallet_cost;
        self.merchant_cost = correction.merchant_cost;
        self.counted_units = correction.counted_units;
        self.outcome = correction.outcome;
        self.settled_at = Some(correction.created_at);
        self.swept = false;
    }

    /// Returns the meter version that prices the call.
    pub(crate) fn meter(&self) -> Option<MeterVersion> {
        meter_version(self.meter_id, self.meter_version)
    }

    /// Returns the call, without holds.
    pub(crate) fn call(&self) -> Result<PendingRecord, StoreError> {
        Ok(PendingRecord {
            request_id: self.request_id.get(),
            merchant_id: self.merchant_id.get(),
            reference_id: self.reference_id.clone(),
            connection_id: self.connection_id.map(Id::get),
            spend_key_id: self.spend_key_id.map(Id::get),
            wallet_id: self.wallet_id.map(Id::get),
            merchant_wallet_id: self.merchant_wallet_id.get(),
            meter: self.meter(),
            disable_billing: self.disable_billing,
            forwarded: from_json::<ForwardedRequest>("requests.forwarded", &self.forwarded)?,
            spend_hold: Amount::ZERO,
            wallet_hold: Amount::ZERO,
            credit_hold: self
                .credit_cycle
                .map(|in_cycle| CreditHold { in_cycle, ..CreditHold::default() }),
            merchant_hold: Amount::ZERO,
            enforcement: None,
            budgets: budgets_of(self.budgets.as_deref())?,
            run_id: self.run_id.clone().map(RunId::stored),
            report: None,
            ahead: false,
            created_at: time(self.created_at),
        })
    }

    /// Converts the row to a record of the domain.
    pub(crate) fn to_record(&self, meter: Option<&FeeModel>) -> Result<RequestRecord, StoreError> {
        let mut record = tollgate_domain::settlement::in_flight(&self.call()?, meter);
        from_json::<StoredOutcome<'_>>("requests.outcome", &self.outcome)?.apply(&mut record)?;
        record.sequence = u64::try_from(self.sequence).ok();
        record.status = self.status.0;
        record.settled_at = self.settled_at.map(time);
        record.swept = self.swept;
        Ok(record)
    }
}

impl From<&SettledCall> for RequestRow {
    fn from(settled: &SettledCall) -> Self {
        let SettledCall { call, record, .. } = settled;
        // The estimate is only needed for a call without a report.
        let estimate = PricedUsage::nothing();
        let forwarded = ForwardedRequest { input_estimate: estimate, ..call.forwarded.clone() };
        Self {
            request_id: Id(call.request_id),
            merchant_id: Id(call.merchant_id),
            sequence: record.sequence.and_then(|number| number.try_into().ok()).unwrap_or_default(),
            reference_id: call.reference_id.clone(),
            connection_id: call.connection_id.map(Id),
            spend_key_id: call.spend_key_id.map(Id),
            wallet_id: call.wallet_id.map(Id),
            merchant_wallet_id: Id(call.merchant_wallet_id),
            meter_id: call.meter.map(|meter| Id(meter.meter_id)),
            meter_version: call.meter.map(|meter| meter.version),
            disable_billing: call.disable_billing,
            status: EnumCode(record.status),
            credit_cycle: call.credit_hold.map(|hold| hold.in_cycle),
            wallet_cost: settled.wallet_paid.units(),
            merchant_cost: settled.merchant_paid.units(),
            counted_units: settled.counted_units,
            swept: record.swept,
            forwarded: to_json(&forwarded),
            outcome: to_json(&StoredOutcome::of(record)),
            created_at: call.created_at.unix_micros(),
            settled_at: record.settled_at.map(Timestamp::unix_micros),
            budgets: stored_budgets(&call.budgets),
            run_id: call.run_id.as_ref().map(ToString::to_string),
        }
    }
}

/// The row of the correction of a swept call.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = corrections)]
pub(crate) struct CorrectionRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) request_id: Id<RequestId>,
    pub(crate) status: EnumCode<RequestStatus>,
    pub(crate) wallet_cost: i64,
    pub(crate) merchant_cost: i64,
    pub(crate) counted_units: i64,
    pub(crate) outcome: String,
    pub(crate) created_at: i64,
}

impl CorrectionRow {
    /// Creates the correction of a record from the settlement of the call.
    pub(crate) fn new(settled: &SettledCall, now: Timestamp) -> Self {
        let SettledCall { call, record, .. } = settled;
        Self {
            request_id: Id(call.request_id),
            merchant_id: Id(call.merchant_id),
            status: EnumCode(record.status),
            wallet_cost: settled.wallet_paid.units(),
            merchant_cost: settled.merchant_paid.units(),
            counted_units: settled.counted_units,
            outcome: to_json(&StoredOutcome::of(record)),
            created_at: now.unix_micros(),
        }
    }
}

/// The row of a merchant's reference of reported usage.
#[derive(Clone, Debug, Insertable)]
#[diesel(table_name = reported_usage)]
pub(crate) struct ReportedUsageRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) reference_id: String,
    pub(crate) request_id: Id<RequestId>,
}

#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable, Serialize,
)]
#[diesel(table_name = request_index)]
pub(crate) struct RequestIndexRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) request_id: Id<RequestId>,
}
