//! Rows as they stand in the tables, and the way from them to the domain's types.

use std::fmt::{self, Write};

use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tollgate_domain::{
    Connection, ConnectionId, ConnectionStatus, Credit, CreditHold, Credits, Forwarded,
    LedgerAccount, Merchant, MerchantId, MerchantMeter, Metadata, MeterId, MeterVersion, NodeId,
    PendingRecord, PricedUsage, RequestId, RequestRecord, RequestStatus, SecretKey, SecretKeyId,
    SpendKeyId, SubscriptionId, TierPeriod, Timestamp, Transaction, TransactionId, TransactionKind,
    Wallet, WalletId,
};
use tollgate_pricing::{Amount, Meter};

use crate::codes::Code;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::outcome::Outcome;
use crate::schema::*;

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

pub(crate) const fn time(micros: i64) -> Timestamp {
    Timestamp::from_unix_micros(micros)
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = merchants)]
pub(crate) struct MerchantRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) created_at: i64,
}

impl TryFrom<MerchantRow> for Merchant {
    type Error = StoreError;

    fn try_from(row: MerchantRow) -> Result<Self, StoreError> {
        Ok(Self {
            merchant_id: row.merchant_id.get(),
            wallet_id: row.wallet_id.get(),
            name: row.name,
            created_at: time(row.created_at),
        })
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = secret_keys)]
pub(crate) struct SecretKeyRow {
    pub(crate) secret_key_id: Id<SecretKeyId>,
    pub(crate) merchant_id: Id<MerchantId>,
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
            secret_key_id: row.secret_key_id.get(),
            merchant_id: row.merchant_id.get(),
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
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) connection_id: Option<Id<ConnectionId>>,
    pub(crate) balance: i64,
    pub(crate) held: i64,
    pub(crate) overdraft_limit: Option<i64>,
    pub(crate) low_balance_threshold: Option<i64>,
    pub(crate) subscription_id: Option<Id<SubscriptionId>>,
    pub(crate) cycle_credit: i64,
    pub(crate) cycle_held: i64,
    pub(crate) cycle_expired: i64,
    pub(crate) bundle_credit: i64,
    pub(crate) bundle_held: i64,
    pub(crate) bundle_expired: i64,
    pub(crate) cycles: i64,
    pub(crate) transactions: i64,
    pub(crate) records: i64,
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
            wallet_id: row.wallet_id.get(),
            merchant_id: row.merchant_id.get(),
            connection_id: row.connection_id.map(Id::get),
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
    pub(crate) transaction_id: Id<TransactionId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) account: Code<LedgerAccount>,
    pub(crate) number: i64,
    pub(crate) kind: Code<TransactionKind>,
    pub(crate) amount: i64,
    pub(crate) balance_after: i64,
    pub(crate) request_id: Option<Id<RequestId>>,
    pub(crate) description: Option<String>,
    pub(crate) created_at: i64,
}

/// What makes a ledger line happen once on its wallet.
#[derive(Clone, Debug, Insertable)]
#[diesel(table_name = transaction_keys)]
pub(crate) struct TransactionKeyRow {
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) idempotency_key: String,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) number: i64,
}

impl From<TransactionRow> for Transaction {
    fn from(row: TransactionRow) -> Self {
        Self {
            transaction_id: row.transaction_id.get(),
            wallet_id: row.wallet_id.get(),
            number: row.number,
            account: row.account.0,
            kind: row.kind.0,
            amount: Amount::from_units(row.amount),
            balance_after: Amount::from_units(row.balance_after),
            request_id: row.request_id.map(Id::get),
            description: row.description,
            created_at: time(row.created_at),
        }
    }
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = connections)]
pub(crate) struct ConnectionRow {
    pub(crate) connection_id: Id<ConnectionId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) reference_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) email: Option<String>,
    pub(crate) metadata: String,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl TryFrom<ConnectionRow> for Connection {
    type Error = StoreError;

    fn try_from(row: ConnectionRow) -> Result<Self, StoreError> {
        Ok(Self {
            connection_id: row.connection_id.get(),
            merchant_id: row.merchant_id.get(),
            reference_id: row.reference_id,
            name: row.name,
            email: row.email,
            metadata: from_json::<Metadata>("connections.metadata", &row.metadata)?,
            wallet_id: row.wallet_id.get(),
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
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) merchant_id: Id<MerchantId>,
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
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) version: i32,
    pub(crate) model: String,
    pub(crate) created_at: i64,
}

impl MeterRow {
    pub(crate) fn with_model(self, model: Meter) -> Result<MerchantMeter, StoreError> {
        Ok(MerchantMeter {
            meter_id: self.meter_id.get(),
            merchant_id: self.merchant_id.get(),
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
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) owner_id: Id<AnyId>,
    pub(crate) meter_id: Id<MeterId>,
    pub(crate) period: String,
    pub(crate) used: i64,
}

/// A call that is admitted and not settled.
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
}

impl OpenCallRow {
    /// A call that is admitted by `node_id`.
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

fn meter_version(meter_id: Option<Id<MeterId>>, version: Option<i32>) -> Option<MeterVersion> {
    let (meter_id, version) = meter_id.zip(version)?;
    Some(MeterVersion { meter_id: meter_id.get(), version })
}

/// The record of a settled call.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
// With defaults in it, an insert is another statement for every combination of what is absent.
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
    pub(crate) status: Code<RequestStatus>,
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
            status: Code(record.status),
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
    pub(crate) fn meter(&self) -> Option<MeterVersion> {
        meter_version(self.meter_id, self.meter_version)
    }

    /// The call, which holds nothing any more.
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
        record.sequence = u64::try_from(self.sequence).ok();
        record.status = self.status.0;
        record.swept = self.swept;
        Ok(record)
    }
}

/// Merchant, owner, meter and period of a tier counter.
pub(crate) type CounterKey = (Id<MerchantId>, Id<AnyId>, Id<MeterId>, String);

/// The tier counter that a call moves: of its spend key, else its connection, else its merchant, in the period of
/// its admission.
pub(crate) fn counter_key(
    call: &PendingRecord,
    meter_id: MeterId,
    period: TierPeriod,
) -> CounterKey {
    let owner = match (call.spend_key_id, call.connection_id) {
        (Some(id), _) => Id(id).of_any(),
        (None, Some(id)) => Id(id).of_any(),
        (None, None) => Id(call.merchant_id).of_any(),
    };
    (Id(call.merchant_id), owner, Id(meter_id), period.key(call.created_at))
}

/// The settlement of a call that the sweeper had ended.
#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = corrections)]
pub(crate) struct CorrectionRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) request_id: Id<RequestId>,
    pub(crate) status: Code<RequestStatus>,
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
