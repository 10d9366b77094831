//! A settled call, as the ledger books it.

use std::sync::Arc;

use tollgate_domain::{MissingPrice, PendingRecord, RequestRecord};
use tollgate_pricing::Amount;

/// The call, its record and the amounts that were booked.
#[derive(Clone, Debug)]
pub(crate) struct SettledCall {
    pub(crate) call: Arc<PendingRecord>,
    pub(crate) record: Arc<RequestRecord>,
    /// The amount taken from the call's wallet. It is less than the cost when the balance had no room for it.
    pub(crate) wallet_paid: Amount,
    /// The amount taken from the merchant's own wallet, with the same limit.
    pub(crate) merchant_paid: Amount,
    /// The units added to the tier counter of the call.
    pub(crate) counted_units: i64,
    /// The price that the call needed and no price list has. It is not kept with the record.
    pub(crate) missing_price: Option<MissingPrice>,
}
