//! The rows of customers.

use diesel::prelude::*;
use tollgate_domain::{
    BudgetId, Connection, ConnectionId, ConnectionStatus, MerchantId, Metadata, WalletId,
};

use super::values::{from_json, from_word, time};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::connections;

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
    pub(crate) suspended_at: Option<i64>,
    pub(crate) report: Option<String>,
    pub(crate) budget_id: Option<Id<BudgetId>>,
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
            status: match (row.deleted_at, row.suspended_at) {
                (Some(_), _) => ConnectionStatus::Deleted,
                (None, Some(_)) => ConnectionStatus::Suspended,
                (None, None) => ConnectionStatus::Active,
            },
            report: row
                .report
                .as_deref()
                .map(|word| from_word("connections.report", word))
                .transpose()?,
            budget_id: row.budget_id.map(Id::get),
            created_at: time(row.created_at),
        })
    }
}
