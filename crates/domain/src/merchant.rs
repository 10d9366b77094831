use crate::id::{MerchantId, SecretKeyId, WalletId};
use crate::time::Timestamp;

/// Who uses the service to resell or control AI calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merchant {
    /// Its id.
    pub merchant_id: MerchantId,
    /// Its display name.
    pub name: String,
    /// Its running account.
    pub wallet_id: WalletId,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A merchant's API key, as it can be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey {
    /// Its id.
    pub secret_key_id: SecretKeyId,
    /// Whose key it is.
    pub merchant_id: MerchantId,
    /// Its display name.
    pub name: String,
    /// The first characters of the key.
    pub key_preview: String,
    /// When it was made.
    pub created_at: Timestamp,
}
