//! Webhooks. A webhook's row is also the head of its queue: who changes which [`deliveries`] wait for
//! it holds its lock.
//!
//! [`deliveries`]: crate::deliveries

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{
    EventKind, MerchantId, NewWebhook, Timestamp, Webhook, WebhookChanges, WebhookId,
    WebhookSecret, WebhookSecrets,
};

use crate::conn::Conn;
use crate::deliveries;
use crate::dialect;
use crate::error::StoreError;
use crate::events::{self, EventRow};
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{from_json, time, to_json};
use crate::schema::webhooks;

/// How many a merchant has at most: each event is told to every one of them.
pub const MOST_WEBHOOKS: i64 = 100;

#[derive(
    Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, AsChangeset, Identifiable,
)]
#[diesel(table_name = webhooks, primary_key(webhook_id), treat_none_as_null = true)]
pub(crate) struct WebhookRow {
    pub(crate) webhook_id: Id<WebhookId>,
    pub(crate) merchant_id: Id<MerchantId>,
    name: String,
    pub(crate) url: String,
    events: Option<String>,
    secrets: String,
    pub(crate) sequence: i64,
    pub(crate) due_at: Option<i64>,
    created_at: i64,
    pub(crate) deleted_at: Option<i64>,
    requests_since: Option<i64>,
    /// The number of the last event that it is not told of, for it happened before.
    pub(crate) events_before: i64,
}

impl WebhookRow {
    pub(crate) fn webhook(&self) -> Result<Webhook, StoreError> {
        let kinds = |text: &String| from_json("webhooks.events", text);
        Ok(Webhook {
            webhook_id: self.webhook_id.get(),
            merchant_id: self.merchant_id.get(),
            name: self.name.clone(),
            url: self.url.clone(),
            events: self.events.as_ref().map(kinds).transpose()?,
            created_at: time(self.created_at),
        })
    }

    pub(crate) fn secrets(&self) -> Result<WebhookSecrets, StoreError> {
        serde_json::from_str(&self.secrets).map_err(|_| StoreError::Corrupt {
            what: "webhooks.secrets",
            value: format!("of {}, not shown", self.webhook_id),
        })
    }

    /// Takes over what a merchant has said of it.
    fn set(&mut self, webhook: &Webhook, now: Timestamp) {
        self.name.clone_from(&webhook.name);
        self.url.clone_from(&webhook.url);
        self.events = webhook.events.as_ref().map(to_json);
        let of_requests = webhook.events.iter().flatten().any(|kind| kind.is_of_a_request());
        let since = self.requests_since.unwrap_or_else(|| now.unix_micros());
        self.requests_since = of_requests.then_some(since);
    }

    /// Whether an event is of a call that was settled before the webhook wanted such events.
    pub(crate) fn wants_later(&self, kind: EventKind, event: &EventRow) -> bool {
        let since = self.requests_since.unwrap_or(i64::MAX);
        kind.is_of_a_request() && event.created_at < since
    }

    pub(crate) fn save(&self, conn: &mut Conn) -> Result<(), StoreError> {
        diesel::update(webhooks::table.find(self.webhook_id)).set(self).execute(conn)?;
        Ok(())
    }
}

/// Makes a webhook; its secret is not shown again. `None` when the merchant has [`MOST_WEBHOOKS`].
/// Call it in a write transaction.
///
/// # Errors
/// Those of the store.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: NewWebhook,
    now: Timestamp,
) -> Result<Option<(Webhook, WebhookSecret)>, StoreError> {
    // Only with nobody else about is the most really the most.
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

/// A merchant's webhook that is not deleted.
///
/// # Errors
/// Those of the store.
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

/// A merchant's webhooks that are not deleted, newest first.
///
/// # Errors
/// Those of the store.
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

/// A merchant's webhook that is not deleted, locked.
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

/// Changes a webhook; `None` when the merchant has no such one. The next attempt obeys, and at a new
/// URL what has failed is tried at once. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
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
        deliveries::hasten(conn, &mut row, now)?;
    }
    row.save(conn)?;
    Ok(Some(webhook))
}

/// Gives a webhook a new secret, which is not shown again; messages are signed with the old one,
/// too, for 24 hours. Call it in a write transaction.
///
/// # Errors
/// Those of the store.
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

/// Deletes a webhook: nothing more is sent to it. Whether there was one. Call it in a write
/// transaction.
///
/// # Errors
/// Those of the store.
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

/// The merchants with a webhook that wants the events of single calls, each with the instant from which it wants
/// them, in microseconds. There are few, and most often none.
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
