//! Rows as they stand in the tables, and the way from them to the domain's types.

use std::fmt::{self, Write};
use std::str::FromStr;

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    Connection, ConnectionStatus, Credit, CreditHold, Credits, Forwarded, LedgerAccount, Merchant,
    MerchantMeter, Metadata, MeterId, MeterVersion, PendingRecord, PricedUsage, RequestRecord,
    SecretKey, TierPeriod, Timestamp, Transaction, TransactionKind, Wallet,
};
use tollgate_pricing::{Amount, Meter};

use crate::error::StoreError;
use crate::outcome::Outcome;
use crate::schema::*;

/// A value of a domain type from its text.
pub(crate) fn parsed<T: FromStr>(what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { what, value: text.to_owned() })
}

/// A value of a domain type from its JSON.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(
    what: &'static str,
    text: &'a str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { what, value: text.to_owned() })
}

/// The JSON of a domain type. It cannot fail for ours: no map among them has keys other than text.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    // What is written for every call has less than this, and is not moved while it grows.
    let mut json = Vec::with_capacity(1_024);
    let written = serde_json::to_writer(&mut json, value);
    written.ok().and_then(|()| String::from_utf8(json).ok()).unwrap_or_default()
}

/// The word by which a domain enum is known everywhere, without quotes.
pub(crate) fn word(value: &impl Serialize) -> String {
    struct Word<'a, T>(&'a T);
    impl<T: Serialize> fmt::Display for Word<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }
    let mut word = String::with_capacity(16);
    let written = write!(word, "{}", Word(value));
    debug_assert!(written.is_ok(), "it is no word");
    word
}

pub(crate) fn from_word<T: for<'a> Deserialize<'a>>(
    what: &'static str,
    text: &str,
) -> Result<T, StoreError> {
    from_json(what, &format!("\"{text}\""))
}

pub(crate) fn optional<T: FromStr>(
    what: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, StoreError> {
    text.map(|text| parsed(what, text)).transpose()
}

pub(crate) const fn time(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros)
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = merchants)]
pub(crate) struct MerchantRow {
    pub(crate) merchant_id: String,
    pub(crate) name: String,
    pub(crate) wallet_id: String,
    pub(crate) created_at: i64,
}

impl TryFrom<MerchantRow> for Merchant {
    type Error = StoreError;

    fn try_from(row: MerchantRow) -> Result<Self, StoreError> {
        Ok(Self {
            merchant_id: parsed("merchants.merchant_id", &row.merchant_id)?,
            wallet_id: parsed("merchants.wallet_id", &row.wallet_id)?,
            name: row.name,
            created_at: time(row.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = secret_keys)]
pub(crate) struct SecretKeyRow {
    pub(crate) secret_key_id: String,
    pub(crate) merchant_id: String,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) key_preview: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl TryFrom<SecretKeyRow> for SecretKey {
    type Error = StoreError;

    fn try_from(row: SecretKeyRow) -> Result<Self, StoreError> {
        Ok(Self {
            secret_key_id: parsed("secret_keys.secret_key_id", &row.secret_key_id)?,
            merchant_id: parsed("secret_keys.merchant_id", &row.merchant_id)?,
            name: row.name,
            key_preview: row.key_preview,
            created_at: time(row.created_at),
        })
    }
}

#[derive(
    Clone,
    Debug,
    PartialEq,
    Eq,
    Queryable,
    Selectable,
    Insertable,
    AsChangeset,
    Identifiable,
    Serialize,
    Deserialize,
)]
#[diesel(table_name = wallets, primary_key(wallet_id), treat_none_as_null = true)]
pub(crate) struct WalletRow {
    pub(crate) wallet_id: String,
    pub(crate) merchant_id: String,
    pub(crate) connection_id: Option<String>,
    pub(crate) balance: i64,
    pub(crate) held: i64,
    pub(crate) overdraft_limit: Option<i64>,
    pub(crate) low_balance_threshold: Option<i64>,
    pub(crate) subscription_id: Option<String>,
    pub(crate) cycle_credit: i64,
    pub(crate) cycle_held: i64,
    pub(crate) cycle_expired: i64,
    pub(crate) bundle_credit: i64,
    pub(crate) bundle_held: i64,
    pub(crate) bundle_expired: i64,
    pub(crate) cycles: i64,
    pub(crate) transactions: i64,
    pub(crate) created_at: i64,
}

impl WalletRow {
    pub(crate) fn credits(&self) -> Credits {
        let credit = |remaining, held, expired_cycle| Credit {
            remaining: Amount::from_units(remaining),
            held: Amount::from_units(held),
            expired_cycle,
        };
        Credits {
            cycle: credit(self.cycle_credit, self.cycle_held, self.cycle_expired),
            bundle: credit(self.bundle_credit, self.bundle_held, self.bundle_expired),
            cycles: self.cycles,
        }
    }
}

impl TryFrom<&WalletRow> for Wallet {
    type Error = StoreError;

    fn try_from(row: &WalletRow) -> Result<Self, StoreError> {
        Ok(Self {
            wallet_id: parsed("wallets.wallet_id", &row.wallet_id)?,
            merchant_id: parsed("wallets.merchant_id", &row.merchant_id)?,
            connection_id: optional("wallets.connection_id", row.connection_id.as_deref())?,
            balance: Amount::from_units(row.balance),
            held: Amount::from_units(row.held),
            credits: row.credits(),
            overdraft_limit: row.overdraft_limit.map(Amount::from_units),
            low_balance_threshold: row.low_balance_threshold.map(Amount::from_units),
            created_at: time(row.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = transactions, treat_none_as_default_value = false)]
pub(crate) struct TransactionRow {
    pub(crate) transaction_id: String,
    pub(crate) wallet_id: String,
    pub(crate) account: String,
    pub(crate) number: i64,
    pub(crate) kind: String,
    pub(crate) amount: i64,
    pub(crate) balance_after: i64,
    pub(crate) request_id: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) created_at: i64,
}

impl TryFrom<TransactionRow> for Transaction {
    type Error = StoreError;

    fn try_from(row: TransactionRow) -> Result<Self, StoreError> {
        Ok(Self {
            transaction_id: parsed("transactions.transaction_id", &row.transaction_id)?,
            wallet_id: parsed("transactions.wallet_id", &row.wallet_id)?,
            number: row.number,
            account: from_word::<LedgerAccount>("transactions.account", &row.account)?,
            kind: from_word::<TransactionKind>("transactions.kind", &row.kind)?,
            amount: Amount::from_units(row.amount),
            balance_after: Amount::from_units(row.balance_after),
            request_id: optional("transactions.request_id", row.request_id.as_deref())?,
            description: row.description,
            created_at: time(row.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = connections)]
pub(crate) struct ConnectionRow {
    pub(crate) connection_id: String,
    pub(crate) merchant_id: String,
    pub(crate) reference_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) email: Option<String>,
    pub(crate) metadata: String,
    pub(crate) wallet_id: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl TryFrom<ConnectionRow> for Connection {
    type Error = StoreError;

    fn try_from(row: ConnectionRow) -> Result<Self, StoreError> {
        Ok(Self {
            connection_id: parsed("connections.connection_id", &row.connection_id)?,
            merchant_id: parsed("connections.merchant_id", &row.merchant_id)?,
            reference_id: row.reference_id,
            name: row.name,
            email: row.email,
            metadata: from_json::<Metadata>("connections.metadata", &row.metadata)?,
            wallet_id: parsed("connections.wallet_id", &row.wallet_id)?,
            status: match row.deleted_at {
                None => ConnectionStatus::Active,
                Some(_) => ConnectionStatus::Deleted,
            },
            created_at: time(row.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = meters)]
pub(crate) struct MeterRow {
    pub(crate) meter_id: String,
    pub(crate) merchant_id: String,
    pub(crate) slug: String,
    pub(crate) name: String,
    pub(crate) tier_period: String,
    pub(crate) version: i32,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = meter_versions)]
pub(crate) struct MeterVersionRow {
    pub(crate) meter_id: String,
    pub(crate) version: i32,
    pub(crate) model: String,
    pub(crate) created_at: i64,
}

impl MeterRow {
    pub(crate) fn with_model(self, model: Meter) -> Result<MerchantMeter, StoreError> {
        Ok(MerchantMeter {
            meter_id: parsed("meters.meter_id", &self.meter_id)?,
            merchant_id: parsed("meters.merchant_id", &self.merchant_id)?,
            slug: self.slug,
            name: self.name,
            tier_period: from_word("meters.tier_period", &self.tier_period)?,
            version: self.version,
            model,
            created_at: time(self.created_at),
        })
    }
}

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
    pub(crate) owner_id: String,
    pub(crate) meter_id: String,
    pub(crate) period: String,
    pub(crate) used: i64,
}

/// A call that is admitted and not settled.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = open_calls, treat_none_as_default_value = false)]
pub(crate) struct OpenCallRow {
    pub(crate) request_id: String,
    pub(crate) merchant_id: String,
    pub(crate) node_id: String,
    pub(crate) connection_id: Option<String>,
    pub(crate) spend_key_id: Option<String>,
    pub(crate) wallet_id: Option<String>,
    pub(crate) merchant_wallet_id: String,
    pub(crate) meter_id: Option<String>,
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
}

impl OpenCallRow {
    /// A call that is admitted by `node_id`.
    pub(crate) fn new(call: &PendingRecord, node_id: &str) -> Self {
        Self {
            request_id: call.request_id.to_string(),
            merchant_id: call.merchant_id.to_string(),
            node_id: node_id.to_owned(),
            connection_id: call.connection_id.map(|id| id.to_string()),
            spend_key_id: call.spend_key_id.map(|id| id.to_string()),
            wallet_id: call.wallet_id.map(|id| id.to_string()),
            merchant_wallet_id: call.merchant_wallet_id.to_string(),
            meter_id: call.meter.map(|meter| meter.meter_id.to_string()),
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
        }
    }
}

impl TryFrom<&OpenCallRow> for PendingRecord {
    type Error = StoreError;

    fn try_from(row: &OpenCallRow) -> Result<Self, StoreError> {
        Ok(Self {
            request_id: parsed("open_calls.request_id", &row.request_id)?,
            merchant_id: parsed("open_calls.merchant_id", &row.merchant_id)?,
            reference_id: None,
            connection_id: optional("open_calls.connection_id", row.connection_id.as_deref())?,
            spend_key_id: optional("open_calls.spend_key_id", row.spend_key_id.as_deref())?,
            wallet_id: optional("open_calls.wallet_id", row.wallet_id.as_deref())?,
            merchant_wallet_id: parsed("open_calls.merchant_wallet_id", &row.merchant_wallet_id)?,
            meter: meter_version(row.meter_id.as_deref(), row.meter_version)?,
            disable_billing: row.disable_billing,
            forwarded: from_json::<Forwarded>("open_calls.forwarded", &row.forwarded)?,
            spend_hold: Amount::from_units(row.spend_hold),
            wallet_hold: Amount::from_units(row.wallet_hold),
            credit_hold: row.credit_cycle.map(|in_cycle| CreditHold {
                cycle: Amount::from_units(row.cycle_hold),
                bundle: Amount::from_units(row.bundle_hold),
                in_cycle,
            }),
            merchant_hold: Amount::from_units(row.merchant_hold),
            enforcement: None,
            created_at: time(row.created_at),
        })
    }
}

fn meter_version(
    meter_id: Option<&str>,
    version: Option<i32>,
) -> Result<Option<MeterVersion>, StoreError> {
    let meter_id = optional("meter_id of a call", meter_id)?;
    Ok(meter_id.zip(version).map(|(meter_id, version)| MeterVersion { meter_id, version }))
}

/// The record of a settled call.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize, Deserialize)]
// With defaults in it, an insert is another statement for every combination of what is absent.
#[diesel(table_name = requests, treat_none_as_default_value = false)]
pub(crate) struct RequestRow {
    pub(crate) merchant_id: String,
    pub(crate) request_id: String,
    pub(crate) reference_id: Option<String>,
    pub(crate) connection_id: Option<String>,
    pub(crate) spend_key_id: Option<String>,
    pub(crate) wallet_id: Option<String>,
    pub(crate) merchant_wallet_id: String,
    pub(crate) meter_id: Option<String>,
    pub(crate) meter_version: Option<i32>,
    pub(crate) disable_billing: bool,
    pub(crate) status: String,
    pub(crate) credit_cycle: Option<i64>,
    pub(crate) wallet_cost: i64,
    pub(crate) merchant_cost: i64,
    pub(crate) counted_units: i64,
    pub(crate) swept: bool,
    pub(crate) forwarded: String,
    pub(crate) outcome: String,
    pub(crate) created_at: i64,
}

impl RequestRow {
    /// The call as `record` says that it ended. `booked` was taken of its wallet and of the merchant's own.
    pub(crate) fn new(
        call: &PendingRecord,
        record: &RequestRecord,
        booked: (Amount, Amount),
        counted_units: i64,
    ) -> Self {
        // The estimate is for a call of which no report comes.
        let estimate = PricedUsage::nothing();
        let forwarded = Forwarded { input_estimate: estimate, ..call.forwarded.clone() };
        Self {
            request_id: call.request_id.to_string(),
            merchant_id: call.merchant_id.to_string(),
            reference_id: call.reference_id.clone(),
            connection_id: call.connection_id.map(|id| id.to_string()),
            spend_key_id: call.spend_key_id.map(|id| id.to_string()),
            wallet_id: call.wallet_id.map(|id| id.to_string()),
            merchant_wallet_id: call.merchant_wallet_id.to_string(),
            meter_id: call.meter.map(|meter| meter.meter_id.to_string()),
            meter_version: call.meter.map(|meter| meter.version),
            disable_billing: call.disable_billing,
            status: word(&record.status),
            credit_cycle: call.credit_hold.map(|hold| hold.in_cycle),
            wallet_cost: booked.0.units(),
            merchant_cost: booked.1.units(),
            counted_units,
            swept: record.swept,
            forwarded: to_json(&forwarded),
            outcome: to_json(&Outcome::of(record)),
            created_at: call.created_at.unix_micros(),
        }
    }

    /// The record with a correction.
    pub(crate) fn correct(&mut self, correction: CorrectionRow) {
        self.status = correction.status;
        self.wallet_cost = correction.wallet_cost;
        self.merchant_cost = correction.merchant_cost;
        self.counted_units = correction.counted_units;
        self.outcome = correction.outcome;
        self.swept = false;
    }

    /// The meter version that prices the call.
    pub(crate) fn meter(&self) -> Result<Option<MeterVersion>, StoreError> {
        meter_version(self.meter_id.as_deref(), self.meter_version)
    }

    /// The call, which holds nothing any more.
    pub(crate) fn call(&self) -> Result<PendingRecord, StoreError> {
        Ok(PendingRecord {
            request_id: parsed("requests.request_id", &self.request_id)?,
            merchant_id: parsed("requests.merchant_id", &self.merchant_id)?,
            reference_id: self.reference_id.clone(),
            connection_id: optional("requests.connection_id", self.connection_id.as_deref())?,
            spend_key_id: optional("requests.spend_key_id", self.spend_key_id.as_deref())?,
            wallet_id: optional("requests.wallet_id", self.wallet_id.as_deref())?,
            merchant_wallet_id: parsed("requests.merchant_wallet_id", &self.merchant_wallet_id)?,
            meter: self.meter()?,
            disable_billing: self.disable_billing,
            forwarded: from_json::<Forwarded>("requests.forwarded", &self.forwarded)?,
            spend_hold: Amount::ZERO,
            wallet_hold: Amount::ZERO,
            credit_hold: self
                .credit_cycle
                .map(|in_cycle| CreditHold { in_cycle, ..CreditHold::default() }),
            merchant_hold: Amount::ZERO,
            enforcement: None,
            created_at: time(self.created_at),
        })
    }

    /// The amounts taken of the call's wallet and of the merchant's own.
    pub(crate) const fn costs(&self) -> (Amount, Amount) {
        (Amount::from_units(self.wallet_cost), Amount::from_units(self.merchant_cost))
    }

    /// The record as it is shown.
    pub(crate) fn to_record(&self, meter: Option<&Meter>) -> Result<RequestRecord, StoreError> {
        let mut record = tollgate_domain::settlement::in_flight(&self.call()?, meter);
        from_json::<Outcome<'_>>("requests.outcome", &self.outcome)?.apply(&mut record)?;
        record.status = from_word("requests.status", &self.status)?;
        record.swept = self.swept;
        Ok(record)
    }
}

/// The tier counter that a call moves: of its spend key, else its connection, else its merchant, in the period of
/// its admission.
pub(crate) fn counter_key(
    call: &PendingRecord,
    meter_id: MeterId,
    period: TierPeriod,
) -> (String, String, String) {
    let of_key = call.spend_key_id.map(|id| id.to_string());
    let owner = of_key.or_else(|| call.connection_id.map(|id| id.to_string()));
    let owner = owner.unwrap_or_else(|| call.merchant_id.to_string());
    (owner, meter_id.to_string(), period.key(call.created_at))
}

/// The settlement of a call that the sweeper had ended.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = corrections)]
pub(crate) struct CorrectionRow {
    pub(crate) merchant_id: String,
    pub(crate) request_id: String,
    pub(crate) status: String,
    pub(crate) wallet_cost: i64,
    pub(crate) merchant_cost: i64,
    pub(crate) counted_units: i64,
    pub(crate) outcome: String,
    pub(crate) created_at: i64,
}

impl CorrectionRow {
    /// What the record of a call would be if the sweeper had not ended it.
    pub(crate) fn new(row: RequestRow, now: Timestamp) -> Self {
        let RequestRow { request_id, merchant_id, status, outcome, .. } = row;
        let RequestRow { wallet_cost, merchant_cost, counted_units, .. } = row;
        Self {
            request_id,
            merchant_id,
            status,
            wallet_cost,
            merchant_cost,
            counted_units,
            outcome,
            created_at: now.unix_micros(),
        }
    }
}

/// The merchant's own id of usage that it reported.
#[derive(Clone, Debug, Insertable)]
#[diesel(table_name = reported_usage)]
pub(crate) struct ReportedUsageRow {
    pub(crate) merchant_id: String,
    pub(crate) reference_id: String,
    pub(crate) request_id: String,
}

#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable, Serialize,
)]
#[diesel(table_name = request_index)]
pub(crate) struct RequestIndexRow {
    pub(crate) merchant_id: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) request_id: String,
}
