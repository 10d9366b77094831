//! The columns of archived records and refusals: their fields by the names of the API, nested ones joined by `_`, and the
//! columns of their rows.

use tollgate_archive::{ArchiveError, Cells, Column, ColumnType, Table, Value};
use tollgate_domain::{
    CallFailure, Id as DomainId, MerchantId, RefusedCall, RequestId, RequestRecord, Timestamp,
    WalletId,
};
use tollgate_pricing::Amount;

use crate::codes::EnumCode;
use crate::ids::Id;
use crate::rows::{RefusalRow, RequestRow, TransactionRow, from_word, to_json, word};

/// A record as it is written to the archive.
pub(crate) struct ArchivedRequest {
    /// The row, with its correction.
    pub(crate) row: RequestRow,
    /// Whether its row also stays in the database.
    pub(crate) stays: bool,
    /// The row as a record.
    pub(crate) record: RequestRecord,
}

/// A record as it is read from the archive.
pub(crate) struct ArchivedRow {
    pub(crate) row: RequestRow,
    /// Whether its row is also in the database, which has later corrections of it.
    pub(crate) stays: bool,
}

/// A record as sums read it from the archive.
pub(crate) struct ArchivedCall {
    /// The row, without what no sum needs: ids, also that of the merchant, amounts that were booked and the like.
    pub(crate) row: RequestRow,
    /// As [`ArchivedRow::stays`].
    pub(crate) stays: bool,
}

/// The column for whether the row of a record is also in the database.
const IN_DATABASE: &str = "in_database";

fn id<T: DomainId + ToString>(id: T) -> Value {
    Value::Text(id.to_string())
}

fn micros(at: Timestamp) -> Value {
    Value::Integer(at.unix_micros())
}

/// A column of a field of the record.
macro_rules! column {
    ($name:literal, $kind:ident, |$one:ident| $value:expr) => {
        Column {
            name: $name,
            kind: ColumnType::$kind,
            value: |ArchivedRequest { record: $one, .. }| Value::from($value),
        }
    };
}

/// A column of the row.
macro_rules! row_column {
    ($name:literal, $kind:ident, |$row:ident| $value:expr) => {
        Column {
            name: $name,
            kind: ColumnType::$kind,
            value: |ArchivedRequest { row: $row, .. }| Value::from($value),
        }
    };
}

fn failure(record: &RequestRecord) -> Option<&CallFailure> {
    record.details.failure.as_ref()
}

/// A list as JSON. `None` for an empty one.
fn list<T: serde::Serialize>(list: &[T]) -> Option<String> {
    (!list.is_empty()).then(|| to_json(&list))
}

impl Table for ArchivedRow {
    type Row = ArchivedRequest;

    const NAME: &'static str = "requests";
    const ID: &'static str = "request_id";
    const COLUMNS: &'static [Column<ArchivedRequest>] = &[
        column!("merchant_id", Text, |one| id(one.merchant_id)),
        column!("request_id", Text, |one| id(one.request_id)),
        row_column!("reference_id", Text, |row| row.reference_id.clone()),
        row_column!("sequence", Integer, |row| row.sequence),
        row_column!("created_at", Time, |row| row.created_at),
        row_column!("status", Text, |row| word(&row.status.0)),
        column!("provider", Text, |one| &*one.provider),
        column!("model", Text, |one| one.model.as_deref()),
        column!("endpoint", Text, |one| &*one.endpoint),
        column!("provider_key_type", Text, |one| word(&one.provider_key_type)),
        column!("provider_status", Integer, |one| one.provider_status.map(i64::from)),
        column!("error_source", Text, |one| failure(one).map(|failure| word(&failure.source))),
        column!("error_type", Text, |one| failure(one).and_then(|failure| failure.kind.clone())),
        column!("error_code", Text, |one| failure(one).and_then(|failure| failure.code.clone())),
        column!("error_message", Text, |one| {
            failure(one).and_then(|failure| failure.message.clone())
        }),
        column!("provider_request_id", Text, |one| one.details.provider_request_id.as_deref()),
        column!("timings_admitted_at", Time, |one| micros(one.created_at)),
        column!("timings_sent_at", Time, |one| one.details.timings.sent_at.map(micros)),
        column!("timings_first_byte_at", Time, |one| one.details.timings.first_byte_at.map(micros)),
        column!("timings_last_byte_at", Time, |one| one.details.timings.last_byte_at.map(micros)),
        row_column!("timings_settled_at", Time, |row| row.settled_at),
        row_column!("connection_id", Text, |row| row.connection_id.map(|id| id.to_string())),
        row_column!("spend_key_id", Text, |row| row.spend_key_id.map(|id| id.to_string())),
        column!("budget_id", Text, |one| one.budgets.own.map(id)),
        column!("budget_ids", Text, |one| list(&one.budgets.ids)),
        column!("would_refuse", Boolean, |one| one.budgets.would_refuse),
        row_column!("run_id", Text, |row| row.run_id.clone()),
        column!("job_id", Text, |one| one.job_id.map(id)),
        column!("socket_id", Text, |one| one.socket_id.map(id)),
        row_column!("meter_id", Text, |row| row.meter_id.map(|id| id.to_string())),
        column!("response_id", Text, |one| one.response_id.as_deref()),
        column!("timestamp", Time, |one| one.timestamp.map(micros)),
        column!("usage_source", Text, |one| word(&one.priced.usage_source)),
        column!("price_source", Text, |one| word(&one.priced.price_source)),
        column!("model_usage_input_tokens", Integer, |one| one.priced.usage.input_tokens()),
        column!("model_usage_output_tokens", Integer, |one| one.priced.usage.output_tokens()),
        column!("model_usage_total_tokens", Integer, |one| {
            let usage = &one.priced.usage;
            usage.input_tokens().saturating_add(usage.output_tokens())
        }),
        column!("model_usage_input_characters", Integer, |one| {
            one.priced.usage.quantities.input_characters
        }),
        column!("model_usage_output_characters", Integer, |one| {
            one.priced.usage.quantities.output_characters
        }),
        column!("model_usage_total_characters", Integer, |one| one.priced.usage.characters()),
        column!("model_usage_input_seconds", Integer, |one| one.priced.usage.input_seconds()),
        column!("model_usage_output_seconds", Integer, |one| one.priced.usage.output_seconds()),
        column!("model_usage_total_seconds", Integer, |one| {
            let usage = &one.priced.usage;
            usage.input_seconds().saturating_add(usage.output_seconds())
        }),
        column!("model_usage_cached_input_tokens", Integer, |one| {
            one.priced.usage.cached_input_tokens()
        }),
        column!("model_usage_cache_write_tokens", Integer, |one| {
            one.priced.usage.cache_write_tokens()
        }),
        column!("model_usage_reasoning_tokens", Integer, |one| {
            one.priced.usage.quantities.reasoning
        }),
        column!("model_usage_input_audio_tokens", Integer, |one| {
            one.priced.usage.quantities.input_audio
        }),
        column!("model_usage_output_audio_tokens", Integer, |one| {
            one.priced.usage.quantities.output_audio
        }),
        column!("model_usage_input_cost", Amount, |one| one.quote.base.input),
        column!("model_usage_output_cost", Amount, |one| one.quote.base.output),
        column!("model_usage_total_cost", Amount, |one| {
            one.quote.base.total().unwrap_or_default()
        }),
        column!("model_usage_payer", Text, |one| word(&one.quote.base_payer)),
        column!("fee_amount", Amount, |one| one.quote.fee.amount().unwrap_or_default()),
        column!("fee_rate_type", Text, |one| word(&one.rate_type)),
        column!("fee_token_basis", Text, |one| word(&one.token_basis)),
        column!("service_charge_amount", Amount, |one| one.quote.service_charge.amount),
        column!("service_charge_payer", Text, |one| word(&one.quote.service_charge.payer)),
        column!("total_request_cost", Amount, |one| one.quote.total_request_cost),
        column!("total_wallet_cost", Amount, |one| one.quote.total_wallet_cost),
        column!("total_merchant_cost", Amount, |one| one.quote.total_merchant_cost),
        column!("metadata", Text, |one| to_json(&one.metadata)),
        column!("flags", Text, |one| one.suspicious.then_some("[\"suspicious_usage\"]")),
        // The row, by which the record is read back.
        row_column!("wallet_id", Text, |row| row.wallet_id.map(|id| id.to_string())),
        row_column!("merchant_wallet_id", Text, |row| row.merchant_wallet_id.to_string()),
        row_column!("meter_version", Integer, |row| row.meter_version.map(i64::from)),
        row_column!("disable_billing", Boolean, |row| row.disable_billing),
        row_column!("credit_cycle", Integer, |row| row.credit_cycle),
        row_column!("booked_wallet_cost", Amount, |row| Amount::from_units(row.wallet_cost)),
        row_column!("booked_merchant_cost", Amount, |row| Amount::from_units(row.merchant_cost)),
        row_column!("counted_units", Integer, |row| row.counted_units),
        row_column!("budgets", Text, |row| row.budgets.clone()),
        row_column!("forwarded", Text, |row| &*row.forwarded),
        row_column!("outcome", Text, |row| &*row.outcome),
        Column {
            name: IN_DATABASE,
            kind: ColumnType::Boolean,
            value: |one| Value::Boolean(one.stays),
        },
    ];
    const READ: &'static [&'static str] = &[
        "merchant_id",
        "request_id",
        "reference_id",
        "sequence",
        "created_at",
        "status",
        "timings_settled_at",
        "connection_id",
        "spend_key_id",
        "run_id",
        "meter_id",
        "wallet_id",
        "merchant_wallet_id",
        "meter_version",
        "disable_billing",
        "credit_cycle",
        "booked_wallet_cost",
        "booked_merchant_cost",
        "counted_units",
        "budgets",
        "forwarded",
        "outcome",
        IN_DATABASE,
    ];

    fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
        let ArchivedCall { row, stays } = ArchivedCall::read(cells)?;
        let row = RequestRow {
            merchant_id: required_id(cells, "merchant_id")?,
            request_id: required_id(cells, "request_id")?,
            sequence: cells.integer("sequence")?,
            reference_id: cells.optional_text("reference_id")?,
            wallet_id: optional_id(cells, "wallet_id")?,
            merchant_wallet_id: required_id(cells, "merchant_wallet_id")?,
            disable_billing: cells.boolean("disable_billing")?,
            credit_cycle: cells.optional_integer("credit_cycle")?,
            wallet_cost: cells.amount("booked_wallet_cost")?.units(),
            merchant_cost: cells.amount("booked_merchant_cost")?.units(),
            counted_units: cells.integer("counted_units")?,
            settled_at: cells.optional_integer("timings_settled_at")?,
            run_id: cells.optional_text("run_id")?,
            ..row
        };
        Ok(Self { row, stays })
    }
}

/// To open a column of a group takes as long as to read hundreds of its values, and few calls of a group are added up.
impl Table for ArchivedCall {
    type Row = ArchivedRequest;

    const NAME: &'static str = ArchivedRow::NAME;
    const ID: &'static str = ArchivedRow::ID;
    const COLUMNS: &'static [Column<ArchivedRequest>] = ArchivedRow::COLUMNS;
    const READ: &'static [&'static str] = &[
        "created_at",
        "status",
        "connection_id",
        "spend_key_id",
        "meter_id",
        "meter_version",
        "budgets",
        "forwarded",
        "outcome",
        IN_DATABASE,
    ];

    fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
        let status = from_word("status", &cells.text("status")?);
        let meter_version = cells.optional_integer("meter_version")?.map(i32::try_from);
        let row = RequestRow {
            merchant_id: Id(MerchantId::from_bytes([0; 16])),
            request_id: Id(RequestId::from_bytes([0; 16])),
            sequence: 0,
            reference_id: None,
            connection_id: optional_id(cells, "connection_id")?,
            spend_key_id: optional_id(cells, "spend_key_id")?,
            wallet_id: None,
            merchant_wallet_id: Id(WalletId::from_bytes([0; 16])),
            meter_id: optional_id(cells, "meter_id")?,
            meter_version: meter_version.transpose().map_err(|_| cells.damaged("meter_version"))?,
            disable_billing: false,
            status: EnumCode(status.map_err(|_| cells.damaged("status"))?),
            credit_cycle: None,
            wallet_cost: 0,
            merchant_cost: 0,
            counted_units: 0,
            // One that the sweeper ended stays in the database.
            swept: false,
            forwarded: cells.text("forwarded")?,
            outcome: cells.text("outcome")?,
            created_at: cells.integer("created_at")?,
            settled_at: None,
            budgets: cells.optional_text("budgets")?,
            run_id: None,
        };
        Ok(Self { row, stays: cells.boolean(IN_DATABASE)? })
    }
}

/// A column of a refusal.
macro_rules! refusal_column {
    ($name:literal, $kind:ident, |$one:ident| $value:expr) => {
        Column {
            name: $name,
            kind: ColumnType::$kind,
            value: |ArchivedRefusal { row: $one, .. }| Value::from($value),
        }
    };
}

/// A column of what is known of the call of a refusal.
macro_rules! refused_column {
    ($name:literal, $kind:ident, |$call:ident| $value:expr) => {
        Column {
            name: $name,
            kind: ColumnType::$kind,
            value: |ArchivedRefusal { call: $call, .. }| Value::from($value),
        }
    };
}

/// A refusal as it is written to the archive.
pub(crate) struct ArchivedRefusal {
    pub(crate) row: RefusalRow,
    pub(crate) call: RefusedCall,
}

impl Table for RefusalRow {
    type Row = ArchivedRefusal;

    const NAME: &'static str = "refusals";
    const ID: &'static str = "refusal_id";
    const COLUMNS: &'static [Column<ArchivedRefusal>] = &[
        refusal_column!("merchant_id", Text, |one| one.merchant_id.to_string()),
        refusal_column!("refusal_id", Text, |one| one.refusal_id.to_string()),
        refusal_column!("code", Text, |one| &*one.code),
        refused_column!("message", Text, |call| &*call.message),
        refusal_column!("spend_key_id", Text, |one| one.spend_key_id.map(|id| id.to_string())),
        refusal_column!("secret_key_id", Text, |one| one.secret_key_id.map(|id| id.to_string())),
        refusal_column!("connection_id", Text, |one| one.connection_id.map(|id| id.to_string())),
        refused_column!("budget_id", Text, |call| call.limit.budget_id.map(id)),
        refusal_column!("run_id", Text, |one| one.run_id.clone()),
        refused_column!("meter_id", Text, |call| call.meter_id.map(id)),
        refused_column!("provider", Text, |call| call.provider.as_deref()),
        refusal_column!("model", Text, |one| one.model.as_deref()),
        refused_column!("endpoint", Text, |call| call.endpoint.as_deref()),
        refused_column!("metadata", Text, |call| to_json(&call.metadata)),
        refusal_column!("count", Integer, |one| one.count),
        refusal_column!("first_at", Time, |one| one.first_at),
        refusal_column!("last_at", Time, |one| one.last_at),
        // The facts of the call, by which the refusal is read back.
        refusal_column!("call", Text, |one| &*one.call),
    ];
    const READ: &'static [&'static str] = &[
        "merchant_id",
        "refusal_id",
        "code",
        "spend_key_id",
        "secret_key_id",
        "connection_id",
        "run_id",
        "model",
        "count",
        "first_at",
        "last_at",
        "call",
    ];

    fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
        Ok(Self {
            merchant_id: required_id(cells, "merchant_id")?,
            refusal_id: required_id(cells, "refusal_id")?,
            code: cells.text("code")?,
            spend_key_id: optional_id(cells, "spend_key_id")?,
            secret_key_id: optional_id(cells, "secret_key_id")?,
            connection_id: optional_id(cells, "connection_id")?,
            model: cells.optional_text("model")?,
            count: cells.integer("count")?,
            first_at: cells.integer("first_at")?,
            last_at: cells.integer("last_at")?,
            call: cells.text("call")?,
            run_id: cells.optional_text("run_id")?,
        })
    }
}

/// A column of a ledger line.
macro_rules! line_column {
    ($name:literal, $kind:ident, |$row:ident| $value:expr) => {
        Column { name: $name, kind: ColumnType::$kind, value: |$row| Value::from($value) }
    };
}

/// The id of a ledger line in the archive. The texts of a wallet's lines are in the order of their numbers.
pub(super) fn line_id(wallet_id: Id<WalletId>, number: i64) -> String {
    format!("{wallet_id}/{number:019}")
}

impl Table for TransactionRow {
    type Row = Self;

    const NAME: &'static str = "transactions";
    const ID: &'static str = "wallet_line";
    const COLUMNS: &'static [Column<Self>] = &[
        line_column!("merchant_id", Text, |row| row.merchant_id.to_string()),
        line_column!("wallet_line", Text, |row| line_id(row.wallet_id, row.number)),
        line_column!("transaction_id", Text, |row| row.transaction_id.to_string()),
        line_column!("wallet_id", Text, |row| row.wallet_id.to_string()),
        line_column!("number", Integer, |row| row.number),
        line_column!("account", Text, |row| word(&row.account.0)),
        line_column!("kind", Text, |row| word(&row.kind.0)),
        line_column!("amount", Amount, |row| Amount::from_units(row.amount)),
        line_column!("balance_after", Amount, |row| Amount::from_units(row.balance_after)),
        line_column!("request_id", Text, |row| row.request_id.map(|id| id.to_string())),
        line_column!("description", Text, |row| row.description.clone()),
        line_column!("created_at", Time, |row| row.created_at),
    ];
    const READ: &'static [&'static str] = &[
        "merchant_id",
        "transaction_id",
        "wallet_id",
        "number",
        "account",
        "kind",
        "amount",
        "balance_after",
        "request_id",
        "description",
        "created_at",
    ];

    fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
        let account = from_word("account", &cells.text("account")?);
        let kind = from_word("kind", &cells.text("kind")?);
        Ok(Self {
            transaction_id: required_id(cells, "transaction_id")?,
            merchant_id: required_id(cells, "merchant_id")?,
            wallet_id: required_id(cells, "wallet_id")?,
            account: EnumCode(account.map_err(|_| cells.damaged("account"))?),
            number: cells.integer("number")?,
            kind: EnumCode(kind.map_err(|_| cells.damaged("kind"))?),
            amount: cells.amount("amount")?.units(),
            balance_after: cells.amount("balance_after")?.units(),
            request_id: optional_id(cells, "request_id")?,
            description: cells.optional_text("description")?,
            created_at: cells.integer("created_at")?,
        })
    }
}

fn optional_id<T: std::str::FromStr>(
    cells: &mut Cells,
    name: &'static str,
) -> Result<Option<Id<T>>, ArchiveError> {
    let text = cells.optional_text(name)?;
    let id = text.map(|text| text.parse().map(Id).map_err(|_| cells.damaged(name)));
    id.transpose()
}

fn required_id<T: std::str::FromStr>(
    cells: &mut Cells,
    name: &'static str,
) -> Result<Id<T>, ArchiveError> {
    optional_id(cells, name)?.ok_or_else(|| cells.damaged(name))
}
