//! Queries of the table of webhooks.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{MerchantId, Webhook, WebhookId};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::WebhookRow;
use crate::schema::webhooks;

impl WebhookRow {
    /// Writes a webhook whose row is locked.
    pub(crate) fn save(&self, conn: &mut Conn) -> Result<(), StoreError> {
        diesel::update(webhooks::table.find(self.webhook_id)).set(self).execute(conn)?;
        Ok(())
    }
}

/// Returns a merchant's webhook that is not deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
) -> Result<Option<Webhook>, StoreError> {
    let row: Option<WebhookRow> = webhooks::table
        .find(Id(webhook_id))
        .filter(webhooks::merchant_id.eq(Id(merchant_id)))
        .filter(webhooks::deleted_at.is_null())
        .select(WebhookRow::as_select())
        .first(conn)
        .optional()?;
    row.map(|row| row.webhook()).transpose()
}

/// Returns a merchant's webhook that is not deleted, locked.
pub(crate) fn lock(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
) -> Result<Option<WebhookRow>, StoreError> {
    let rows = dialect::lock_webhooks(conn, &[Id(webhook_id)])?;
    let is_theirs =
        |row: &WebhookRow| row.deleted_at.is_none() && row.merchant_id.get() == merchant_id;
    Ok(rows.into_iter().find(is_theirs))
}

/// The merchants with a webhook for the events of single calls, and when these begin. Instants are in microseconds.
/// There are few merchants, and usually none.
pub(crate) fn requests_wanted_since(
    conn: &mut Conn,
) -> Result<HashMap<MerchantId, i64>, StoreError> {
    let found: Vec<(Id<MerchantId>, Option<i64>)> = webhooks::table
        .filter(webhooks::requests_since.is_not_null())
        .select((webhooks::merchant_id, webhooks::requests_since))
        .load(conn)?;
    let mut wanted: HashMap<MerchantId, i64> = HashMap::new();
    for (merchant_id, since) in found {
        let since = since.unwrap_or(i64::MAX);
        wanted
            .entry(merchant_id.get())
            .and_modify(|first| *first = since.min(*first))
            .or_insert(since);
    }
    Ok(wanted)
}
