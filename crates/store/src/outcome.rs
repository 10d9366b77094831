//! The outcome of a call, as the JSON of a record: all values without a column of their own.
//!
//! It is written for every call, so it is short. Amounts are integers in units of 10⁻¹⁰ USD, instants are microseconds
//! since 1970, and the values of most calls are left out.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tollgate_domain::{
    CallDetails, CallFailure, CallTimings, JobId, Payer, PricedUsage, Quote, RecordLine,
    RequestRecord, ServiceCharge, Timestamp, UsageSource,
};
use tollgate_pricing::{
    Amount, AppliedPrices, BaseCost, Fee, FeeLine, Overflow, PriceSource, Rate, Tier, TierUnit,
    Usage,
};

use crate::error::StoreError;

/// The JSON of the outcome of a call.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredOutcome<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider_status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timestamp: Option<i64>,
    usage: Usage,
    #[serde(default = "reported", skip_serializing_if = "is_reported")]
    usage_source: UsageSource,
    /// The base costs of input and output.
    base: [i64; 2],
    #[serde(default = "catalog", skip_serializing_if = "is_catalog")]
    price_source: PriceSource,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    applied: Cow<'a, [AppliedPrices]>,
    #[serde(default, skip_serializing_if = "is_wallet")]
    base_payer: Payer,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fee: Vec<StoredFeeLine>,
    #[serde(default, skip_serializing_if = "is_zero")]
    service_charge: i64,
    #[serde(default, skip_serializing_if = "is_wallet")]
    service_charge_payer: Payer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service_charge_rate: Option<Rate>,
    /// The costs of the wallet and of the merchant.
    costs: [i64; 2],
    counted_units: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    suspicious: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Cow<'a, CallFailure>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider_request_id: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    lines: Cow<'a, [RecordLine]>,
    /// When the call was sent, and when its answer began and ended, in microseconds after its admission.
    #[serde(default, skip_serializing_if = "StoredTimings::is_empty")]
    at: StoredTimings,
}

/// The times of a call, in microseconds after its admission. Those at the end may be absent.
#[derive(Default, Serialize, Deserialize)]
struct StoredTimings(Vec<i64>);

impl StoredTimings {
    fn of(record: &RequestRecord) -> Self {
        let CallTimings { sent_at, first_byte_at, last_byte_at } = record.details.timings;
        let since =
            |at: Timestamp| at.unix_micros().saturating_sub(record.created_at.unix_micros());
        // The times are known in this order.
        Self(
            [sent_at, first_byte_at, last_byte_at]
                .into_iter()
                .map_while(|at| at.map(since))
                .collect(),
        )
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn timings(&self, created_at: Timestamp) -> CallTimings {
        let at = |place: usize| self.0.get(place).map(|micros| created_at.plus_micros(*micros));
        CallTimings { sent_at: at(0), first_byte_at: at(1), last_byte_at: at(2) }
    }
}

/// A line of the fee: start and rate of the tier, its unit, the counted units and their cost.
type StoredFeeLine = (u64, Rate, TierUnit, u64, i64);

const fn reported() -> UsageSource {
    UsageSource::Reported
}

fn is_reported(source: &UsageSource) -> bool {
    *source == reported()
}

const fn catalog() -> PriceSource {
    PriceSource::Catalog
}

fn is_catalog(source: &PriceSource) -> bool {
    *source == catalog()
}

fn is_wallet(payer: &Payer) -> bool {
    *payer == Payer::Wallet
}

const fn is_zero(amount: &i64) -> bool {
    *amount == 0
}

impl<'a> StoredOutcome<'a> {
    pub(crate) fn of(record: &'a RequestRecord) -> Self {
        let RequestRecord { priced, quote, .. } = record;
        let PricedUsage { usage, usage_source, base, price_source } = *priced;
        debug_assert_eq!(base, quote.base, "a quote is of the priced base");
        let line = |line: &FeeLine| {
            let FeeLine { tier: Tier { start, rate }, unit, units, cost } = *line;
            (start, rate, unit, units, cost.units())
        };
        Self {
            model: record.model.as_deref().map(Cow::Borrowed),
            response_id: record.response_id.as_deref().map(Cow::Borrowed),
            provider_status: record.provider_status,
            timestamp: record.timestamp.map(Timestamp::unix_micros),
            usage,
            usage_source,
            base: [base.input.units(), base.output.units()],
            price_source,
            applied: Cow::Borrowed(&record.applied),
            base_payer: quote.base_payer,
            fee: quote.fee.lines.iter().map(line).collect(),
            service_charge: quote.service_charge.amount.units(),
            service_charge_payer: quote.service_charge.payer,
            service_charge_rate: record.service_charge_rate,
            costs: [quote.total_wallet_cost.units(), quote.total_merchant_cost.units()],
            counted_units: quote.counted_units,
            suspicious: record.suspicious,
            failure: record.details.failure.as_ref().map(Cow::Borrowed),
            provider_request_id: record.details.provider_request_id.as_deref().map(Cow::Borrowed),
            job_id: record.job_id,
            lines: Cow::Borrowed(&record.lines),
            at: StoredTimings::of(record),
        }
    }

    /// Writes the outcome into the record of a call that has not ended.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the total cost is out of range.
    pub(crate) fn apply(self, record: &mut RequestRecord) -> Result<(), StoreError> {
        let [wallet, merchant] = self.costs.map(Amount::from_units);
        let total = wallet.checked_add(merchant).map_err(|Overflow| StoreError::Corrupt {
            what: "requests.outcome (its costs)",
            value: record.request_id.to_string(),
        })?;
        let [input, output] = self.base.map(Amount::from_units);
        let base = BaseCost { input, output };
        let Self { usage, usage_source, price_source, .. } = self;
        let line = |(start, rate, unit, units, cost): StoredFeeLine| FeeLine {
            tier: Tier { start, rate },
            unit,
            units,
            cost: Amount::from_units(cost),
        };
        record.model = self.model.map(Cow::into_owned);
        record.response_id = self.response_id.map(Cow::into_owned);
        record.provider_status = self.provider_status;
        record.timestamp = self.timestamp.map(Timestamp::from_unix_micros);
        record.priced = PricedUsage { usage, usage_source, base, price_source };
        record.applied = self.applied.into_owned();
        record.quote = Quote {
            base,
            base_payer: self.base_payer,
            fee: Fee { lines: self.fee.into_iter().map(line).collect() },
            service_charge: ServiceCharge {
                amount: Amount::from_units(self.service_charge),
                payer: self.service_charge_payer,
            },
            total_request_cost: total,
            total_wallet_cost: wallet,
            total_merchant_cost: merchant,
            counted_units: self.counted_units,
        };
        record.service_charge_rate = self.service_charge_rate;
        record.suspicious = self.suspicious;
        record.job_id = self.job_id;
        record.lines = self.lines.into_owned();
        record.details = CallDetails {
            failure: self.failure.map(Cow::into_owned),
            provider_request_id: self.provider_request_id.map(Cow::into_owned),
            timings: self.at.timings(record.created_at),
        };
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tollgate_domain::settlement::in_flight;
    use tollgate_domain::{
        CallBudgets, ForwardedRequest, MerchantId, Metadata, PendingRecord, ProviderKeyType,
        RequestId, WalletId,
    };

    use super::*;
    use crate::rows::{from_json, to_json};

    /// A call without a customer, a key or a cost.
    pub(crate) fn pending() -> PendingRecord {
        let now = Timestamp::from_unix_micros(1_795_219_200_000_000);
        PendingRecord {
            request_id: RequestId::generate(now),
            merchant_id: MerchantId::generate(now),
            reference_id: None,
            connection_id: None,
            spend_key_id: None,
            wallet_id: None,
            merchant_wallet_id: WalletId::generate(now),
            meter: None,
            disable_billing: false,
            forwarded: ForwardedRequest {
                provider: "house".to_owned(),
                endpoint: "POST http://127.0.0.1/v1/chat/completions".to_owned(),
                metered: true,
                provider_key_type: ProviderKeyType::Managed,
                model: None,
                metadata: Metadata::default(),
                socket_id: None,
                input_estimate: PricedUsage::nothing(),
            },
            spend_hold: Amount::ZERO,
            wallet_hold: Amount::ZERO,
            credit_hold: None,
            merchant_hold: Amount::ZERO,
            enforcement: None,
            budgets: CallBudgets::default(),
            run_id: None,
            report: None,
            ahead: false,
            created_at: now,
        }
    }

    fn read_back(record: &RequestRecord) -> RequestRecord {
        let json = to_json(&StoredOutcome::of(record));
        let mut read = in_flight(&pending(), None);
        from_json::<StoredOutcome<'_>>("outcome", &json).unwrap().apply(&mut read).unwrap();
        RequestRecord { request_id: record.request_id, merchant_id: record.merchant_id, ..read }
    }

    #[test]
    fn an_outcome_reads_back_as_it_was_with_everything_and_with_nothing_in_it() {
        let nothing = in_flight(&pending(), None);
        assert_eq!(read_back(&nothing), nothing);

        let amount = |units| Amount::from_units(units);
        let base = BaseCost { input: amount(i64::MAX), output: amount(-1) };
        let line = FeeLine {
            tier: Tier { start: u64::MAX, rate: "12.5".parse().unwrap() },
            unit: TierUnit::Minutes,
            units: 7,
            cost: amount(3),
        };
        let everything = RequestRecord {
            model: Some("m \"1\"".to_owned()),
            response_id: Some("resp".to_owned()),
            provider_status: Some(503),
            timestamp: Some(Timestamp::from_unix_micros(1)),
            settled_at: None,
            priced: PricedUsage {
                usage: Usage::tokens(5, 6),
                usage_source: UsageSource::Estimated,
                base,
                price_source: PriceSource::Unpriced,
            },
            quote: Quote {
                base,
                base_payer: Payer::Merchant,
                fee: Fee { lines: vec![line, line] },
                service_charge: ServiceCharge { amount: amount(9), payer: Payer::Merchant },
                total_request_cost: amount(30),
                total_wallet_cost: amount(10),
                total_merchant_cost: amount(20),
                counted_units: u64::MAX,
            },
            service_charge_rate: Some("0.015".parse().unwrap()),
            suspicious: true,
            job_id: None,
            socket_id: None,
            lines: Vec::new(),
            ..nothing
        };
        assert_eq!(read_back(&everything), everything);
    }
}
