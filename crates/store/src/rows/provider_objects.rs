//! The rows of objects at providers.

use diesel::prelude::*;
use serde::Serialize;
use tollgate_domain::{MerchantId, ObjectKind, PendingRecord, ProviderObject, Timestamp, WalletId};

use super::values::to_json;
use crate::codes::EnumCode;
use crate::ids::Id;
use crate::schema::provider_objects;

#[derive(Clone, Debug, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = provider_objects)]
pub(crate) struct ProviderObjectRow {
    pub(crate) object_id: String,
    pub(crate) provider: String,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) kind: EnumCode<ObjectKind>,
    pub(crate) tokens: Option<i64>,
    pub(crate) requests: Option<String>,
    pub(crate) result_of: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) expires_at: i64,
}

impl ProviderObjectRow {
    /// The row of an object that a call made. It belongs to the wallet of the call, else to the merchant's own.
    pub(crate) fn new(call: &PendingRecord, object: &ProviderObject, now: Timestamp) -> Self {
        Self {
            object_id: object.object_id.clone(),
            provider: call.forwarded.provider.clone(),
            merchant_id: Id(call.merchant_id),
            wallet_id: Id(call.wallet_id.unwrap_or(call.merchant_wallet_id)),
            kind: EnumCode(object.kind),
            tokens: object.tokens.and_then(|tokens| i64::try_from(tokens).ok()),
            requests: object.requests.as_ref().map(to_json),
            result_of: object.result_of.clone(),
            created_at: now.unix_micros(),
            expires_at: object.expires_at.unix_micros(),
        }
    }
}
