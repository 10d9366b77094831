//! Webhooks. A webhook's row is also the head of its queue.
//!
//! A change of the [`deliveries`] that wait for it locks the row.
//!
//! [`deliveries`]: crate::deliveries

use diesel::prelude::*;
use tollgate_domain::{
    MerchantId, NewWebhook, Timestamp, Webhook, WebhookChanges, WebhookId, WebhookSecret,
    WebhookSecrets,
};

use crate::conn::Conn;
use crate::deliveries;
use crate::dialect;
use crate::error::StoreError;
use crate::events;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{WebhookRow, to_json};
use crate::schema::webhooks;
pub use crate::tables::webhooks::find;
use crate::tables::webhooks::lock;

/// The most webhooks of a merchant. Each event is sent to all that want it.
pub const MOST_WEBHOOKS: i64 = 100;

/// Makes a webhook. Its secret is returned only here.
///
/// `None` if the merchant has [`MOST_WEBHOOKS`]. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: NewWebhook,
    now: Timestamp,
) -> Result<Option<(Webhook, WebhookSecret)>, StoreError> {
    // Two requests at once must not pass the limit together.
    dialect::lock_merchant(conn, merchant_id)?;
    let present: i64 = webhooks::table
        .filter(webhooks::merchant_id.eq(Id(merchant_id)))
        .filter(webhooks::deleted_at.is_null())
        .count()
        .get_result(conn)?;
    if present >= MOST_WEBHOOKS {
        return Ok(None);
    }
    let NewWebhook { name, url, events } = new;
    let webhook_id = WebhookId::generate(now);
    let webhook = Webhook { webhook_id, merchant_id, name, url, events, created_at: now };
    let secrets = WebhookSecrets::generate();
    let mut row = WebhookRow {
        webhook_id: Id(webhook_id),
        merchant_id: Id(merchant_id),
        name: String::new(),
        url: String::new(),
        events: None,
        secrets: to_json(&secrets),
        sequence: 0,
        due_at: None,
        created_at: now.unix_micros(),
        deleted_at: None,
        requests_since: None,
        events_before: events::last_waiting(conn, merchant_id)?,
    };
    row.set(&webhook, now);
    diesel::insert_into(webhooks::table).values(&row).execute(conn)?;
    Ok(Some((webhook, secrets.newest().clone())))
}

/// A merchant's webhooks that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<WebhookId>,
) -> Result<Vec<Webhook>, StoreError> {
    let mut query = webhooks::table
        .filter(webhooks::merchant_id.eq(Id(merchant_id)))
        .filter(webhooks::deleted_at.is_null())
        .select(WebhookRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(webhooks::webhook_id.lt(Id(after)));
    }
    let rows = query.order(webhooks::webhook_id.desc()).limit(page.rows()).load(conn)?;
    rows.iter().map(WebhookRow::webhook).collect()
}

/// Changes a webhook; `None` if the merchant has no such webhook.
///
/// The change applies from the next attempt. At a new URL, failed deliveries are tried at once. Call it in
/// a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    changes: WebhookChanges,
    now: Timestamp,
) -> Result<Option<Webhook>, StoreError> {
    let Some(mut row) = lock(conn, merchant_id, webhook_id)? else { return Ok(None) };
    let mut webhook = row.webhook()?;
    let moves = changes.url.as_ref().is_some_and(|url| *url != webhook.url);
    webhook.change(changes);
    row.set(&webhook, now);
    if moves {
        deliveries::make_due(conn, &mut row, now)?;
    }
    row.save(conn)?;
    Ok(Some(webhook))
}

/// Gives a webhook a new secret, which is returned only here.
///
/// Messages are also signed with the old one for 24 hours. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn rotate(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    now: Timestamp,
) -> Result<Option<(Webhook, WebhookSecret)>, StoreError> {
    let Some(mut row) = lock(conn, merchant_id, webhook_id)? else { return Ok(None) };
    let mut secrets = row.secrets()?;
    secrets.rotate(now);
    row.secrets = to_json(&secrets);
    row.save(conn)?;
    Ok(Some((row.webhook()?, secrets.newest().clone())))
}

/// Deletes a webhook. Returns whether there was one.
///
/// Nothing more is sent to it. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(mut row) = lock(conn, merchant_id, webhook_id)? else { return Ok(false) };
    row.deleted_at = Some(now.unix_micros());
    row.due_at = None;
    row.requests_since = None;
    row.secrets = String::new();
    row.save(conn)?;
    Ok(true)
}
