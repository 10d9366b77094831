//! The rows of merchants and their secret keys.

use diesel::prelude::*;
use tollgate_domain::{CellNumber, Merchant, MerchantId, SecretKey, SecretKeyId, WalletId};

use super::values::time;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{merchants, secret_keys};

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = merchants)]
pub(crate) struct MerchantRow {
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) created_at: i64,
    pub(crate) moved_to: Option<i32>,
}

impl TryFrom<MerchantRow> for Merchant {
    type Error = StoreError;

    fn try_from(row: MerchantRow) -> Result<Self, StoreError> {
        Ok(Self {
            merchant_id: row.merchant_id.get(),
            wallet_id: row.wallet_id.get(),
            name: row.name,
            created_at: time(row.created_at),
            moved_to: row.moved_to.map(cell).transpose()?,
        })
    }
}

fn cell(number: i32) -> Result<CellNumber, StoreError> {
    let cell = u16::try_from(number).ok().and_then(|number| CellNumber::try_from(number).ok());
    cell.ok_or_else(|| StoreError::Corrupt {
        what: "merchants.moved_to",
        value: number.to_string(),
    })
}

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = secret_keys)]
pub(crate) struct SecretKeyRow {
    pub(crate) secret_key_id: Id<SecretKeyId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) key_hash: Vec<u8>,
    pub(crate) key_preview: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl TryFrom<SecretKeyRow> for SecretKey {
    type Error = StoreError;

    fn try_from(row: SecretKeyRow) -> Result<Self, StoreError> {
        Ok(Self {
            secret_key_id: row.secret_key_id.get(),
            merchant_id: row.merchant_id.get(),
            name: row.name,
            key_preview: row.key_preview,
            created_at: time(row.created_at),
        })
    }
}
