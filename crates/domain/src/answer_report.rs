//! The report on a call that its answer contains.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

/// The content of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerReport {
    /// The cost of the call.
    Cost,
}

/// The cost of a settled call, as its answer reports it. All amounts are in USD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallCost {
    /// The whole cost of the record.
    pub total_request_cost: Amount,
    /// The part that the wallet of the request paid.
    pub total_wallet_cost: Amount,
    /// The amount that was [left](crate::admission::remaining) for the next call.
    pub remaining: Option<Amount>,
}
