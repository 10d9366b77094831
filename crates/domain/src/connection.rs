//! Customers of a merchant.

use serde::{Deserialize, Serialize};

use crate::answer_report::AnswerReport;
use crate::id::{BudgetId, ConnectionId, MerchantId, WalletId};
use crate::metadata::Metadata;
use crate::time::Timestamp;

/// The status of a customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// In use.
    Active,
    /// Suspended. Calls for it are refused until it is active again.
    Suspended,
    /// Deleted. It can still be read, and calls for it are refused.
    Deleted,
}

/// A customer of a merchant, with its own wallet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The id.
    pub connection_id: ConnectionId,
    /// The merchant that it belongs to.
    pub merchant_id: MerchantId,
    /// The merchant's own name for it, unique per merchant.
    pub reference_id: Option<String>,
    /// Display name.
    pub name: Option<String>,
    /// Mail address, as given.
    pub email: Option<String>,
    /// Metadata from the merchant.
    pub metadata: Metadata,
    /// The wallet that pays for its calls.
    pub wallet_id: WalletId,
    /// The status.
    pub status: ConnectionStatus,
    /// The report in the answers to its calls.
    pub report: Option<AnswerReport>,
    /// The budget that its calls count against.
    pub budget_id: Option<BudgetId>,
    /// The time of creation.
    pub created_at: Timestamp,
}

/// The fields of a new customer, as the merchant states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewConnection {
    /// The merchant's own name for it.
    pub reference_id: Option<String>,
    /// Display name.
    pub name: Option<String>,
    /// Mail address.
    pub email: Option<String>,
    /// Metadata.
    pub metadata: Metadata,
    /// The report in the answers to its calls.
    pub report: Option<AnswerReport>,
    /// The budget that its calls count against.
    pub budget_id: Option<BudgetId>,
}

/// The changes of a customer. `None` keeps a field, `Some(None)` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionChanges {
    /// Display name.
    pub name: Option<Option<String>>,
    /// Mail address.
    pub email: Option<Option<String>>,
    /// Metadata, replaced as a whole.
    pub metadata: Option<Metadata>,
    /// The report in the answers to its calls.
    pub report: Option<Option<AnswerReport>>,
    /// The budget that its calls count against.
    pub budget_id: Option<Option<BudgetId>>,
    /// Whether calls for it are refused from now on.
    pub is_suspended: Option<bool>,
}
