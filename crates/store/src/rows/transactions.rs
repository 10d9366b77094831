//! The rows of ledger lines.

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{
    LedgerAccount, MerchantId, RequestId, Transaction, TransactionId, TransactionKind, WalletId,
};
use tollgate_pricing::Amount;

use super::values::time;
use crate::codes::EnumCode;
use crate::ids::Id;
use crate::schema::{transaction_keys, transactions};

#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = transactions, treat_none_as_default_value = false)]
pub(crate) struct TransactionRow {
    pub(crate) transaction_id: Id<TransactionId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) account: EnumCode<LedgerAccount>,
    pub(crate) number: i64,
    pub(crate) kind: EnumCode<TransactionKind>,
    pub(crate) amount: i64,
    pub(crate) balance_after: i64,
    pub(crate) request_id: Option<Id<RequestId>>,
    pub(crate) description: Option<String>,
    pub(crate) created_at: i64,
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

/// The row of an idempotency key of a ledger line, unique for its wallet.
#[derive(Clone, Debug, Insertable)]
#[diesel(table_name = transaction_keys)]
pub(crate) struct TransactionKeyRow {
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) idempotency_key: String,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) number: i64,
}
