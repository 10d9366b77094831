//! A settled call as the ledger books it: the record and what hangs on it.

use std::sync::Arc;

use tollgate_domain::{MissingPrice, PendingRecord, RequestRecord};
use tollgate_pricing::Amount;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct SettledCall {
    pub(crate) call: Arc<PendingRecord>,
    pub(crate) record: Arc<RequestRecord>,
    /// The amount that was taken of the call's wallet: less than its cost where the balance had no room for it.
    pub(crate) wallet_paid: Amount,
    /// The same of the merchant's own wallet.
    pub(crate) merchant_paid: Amount,
    /// How far the call has moved its tier counter.
    pub(crate) counted_units: i64,
    /// The price that it needed and no list has. It is not kept with the record.
    pub(crate) missing_price: Option<MissingPrice>,
}
