//! Queries of the table of deliveries.

use diesel::prelude::*;
use tollgate_domain::WebhookId;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{PENDING, WAITING};
use crate::schema::{deliveries, webhooks as webhook_rows};

/// Returns the creation times of pending deliveries, at most `limit`.
pub(crate) fn waiting_since(conn: &mut Conn, limit: i64) -> Result<Vec<i64>, StoreError> {
    // The few webhooks with work lead to their deliveries by an index.
    let webhooks: Vec<Id<WebhookId>> = webhook_rows::table
        .filter(webhook_rows::due_at.is_not_null())
        .select(webhook_rows::webhook_id)
        .load(conn)?;
    let waiting = deliveries::table
        .filter(deliveries::webhook_id.eq_any(webhooks))
        .filter(deliveries::status.eq_any([PENDING, WAITING]));
    Ok(waiting.select(deliveries::created_at).limit(limit).load(conn)?)
}
