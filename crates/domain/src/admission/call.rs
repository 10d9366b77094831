//! A call that asks to be admitted, and what is known of those whom it names.

use super::bound::CostBound;
use crate::connection::Connection;
use crate::id::{ConnectionId, MerchantId, RequestId, SecretKeyId, SpendKeyId, WalletId};
use crate::key::KeyHash;
use crate::meter::MerchantMeter;
use crate::record::Forwarded;
use crate::spend_key::{RequestFormat, SpendKey};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// A call that asks to be admitted.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its id.
    pub request_id: RequestId,
    /// Whose call it is, by its key.
    pub merchant_id: MerchantId,
    /// The key it was made with.
    pub key: CallKey,
    /// The customer named in the credential.
    pub connection_id: Option<ConnectionId>,
    /// The meter named in the credential.
    pub meter_slug: Option<String>,
    /// Whether the credential asks not to bill the customer.
    pub disable_billing: bool,
    /// What is forwarded where.
    pub forwarded: Forwarded,
    /// The format of its body, if it has one of the two.
    pub shape: Option<RequestFormat>,
    /// Whether its body names models that may serve it instead of the one it asks for.
    pub names_other_models: bool,
    /// The most it can cost.
    pub bound: CostBound,
    /// When it came in.
    pub created_at: Timestamp,
}

/// The key a call was made with. What a node remembers of keys may be old, so both are looked up
/// again when the call is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKey {
    /// A merchant's own key, which is never changed.
    Secret(SecretKeyId),
    /// A restricted key, whose id outlives the key when it is rotated.
    Spend(SpendKeyId, KeyHash),
}

/// What the decision rests on, as it stands under the store's locks.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The merchant's own account; absent when the key is no longer valid.
    pub account: Option<Account<'a>>,
    /// The spend key that the call was made with.
    pub spend_key: Option<&'a SpendKey>,
    /// The connection that the credential names, if it is this merchant's.
    pub connection: Option<&'a Connection>,
    /// The connection whose wallet the spend key draws on.
    pub key_connection: Option<&'a Connection>,
    /// The wallet of the connection, else of the spend key.
    pub wallet: Option<&'a Wallet>,
    /// The meter that the credential or the spend key names, if it is this merchant's.
    pub meter: Option<&'a MerchantMeter>,
    /// Whether the subscription that fills the wallet's credit lets calls under the meter draw on it.
    pub draws_on_credit: bool,
}

/// A merchant's own account: without limit unless the operator set one.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    /// Its wallet.
    pub wallet_id: WalletId,
    /// The wallet as it stands, if it has a limit, or [almost no room](Wallet::LEAST_BALANCE) left;
    /// another one guards nothing, and is a hot row that an admission leaves alone.
    pub guarded: Option<&'a Wallet>,
}
