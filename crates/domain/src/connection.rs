use serde::{Deserialize, Serialize};

use crate::id::{ConnectionId, MerchantId, WalletId};
use crate::metadata::Metadata;
use crate::time::Timestamp;

/// Whether a connection can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// In use.
    Active,
    /// Deleted: still readable, refused in a forward.
    Deleted,
}

/// A merchant's customer, with a wallet of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its id.
    pub connection_id: ConnectionId,
    /// Whose customer it is.
    pub merchant_id: MerchantId,
    /// The merchant's own name for it, unique per merchant.
    pub reference_id: Option<String>,
    /// Display name.
    pub name: Option<String>,
    /// Mail address, as given.
    pub email: Option<String>,
    /// Free pairs.
    pub metadata: Metadata,
    /// The wallet that its calls are paid from.
    pub wallet_id: WalletId,
    /// Whether it can be used.
    pub status: ConnectionStatus,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a merchant states of a new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewConnection {
    /// The merchant's own name for it.
    pub reference_id: Option<String>,
    /// Display name.
    pub name: Option<String>,
    /// Mail address.
    pub email: Option<String>,
    /// Free pairs.
    pub metadata: Metadata,
}

/// What changes in a connection: `None` leaves a field as it is, `Some(None)` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionChanges {
    /// Display name.
    pub name: Option<Option<String>>,
    /// Mail address.
    pub email: Option<Option<String>>,
    /// Free pairs, replaced as a whole.
    pub metadata: Option<Metadata>,
}
