//! Merchants and their secret keys.

use crate::cell::CellNumber;
use crate::id::{MerchantId, SecretKeyId, WalletId};
use crate::time::Timestamp;

/// A business that uses the service to resell or control AI calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merchant {
    /// The id.
    pub merchant_id: MerchantId,
    /// Display name.
    pub name: String,
    /// The merchant's own wallet.
    pub wallet_id: WalletId,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The cell to which the merchant moves or has moved. `None` for one that is here.
    pub moved_to: Option<CellNumber>,
}

/// A merchant's secret key, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey {
    /// The id.
    pub secret_key_id: SecretKeyId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// Display name.
    pub name: String,
    /// The first characters of the key.
    pub key_preview: String,
    /// The time of creation.
    pub created_at: Timestamp,
}
