//! The rows of webhooks.

use diesel::prelude::*;
use tollgate_domain::{EventKind, MerchantId, Timestamp, Webhook, WebhookId, WebhookSecrets};

use super::events::EventRow;
use super::values::{from_json, time, to_json};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::webhooks;

#[derive(
    Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, AsChangeset, Identifiable,
)]
#[diesel(table_name = webhooks, primary_key(webhook_id), treat_none_as_null = true)]
pub(crate) struct WebhookRow {
    pub(crate) webhook_id: Id<WebhookId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) events: Option<String>,
    pub(crate) secrets: String,
    pub(crate) sequence: i64,
    pub(crate) due_at: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
    pub(crate) requests_since: Option<i64>,
    /// The number of the last event that the webhook does not get, because it happened before.
    pub(crate) events_before: i64,
}

impl WebhookRow {
    /// Converts the row to a webhook of the domain.
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

    /// Returns the secrets that sign the messages of the webhook.
    pub(crate) fn secrets(&self) -> Result<WebhookSecrets, StoreError> {
        serde_json::from_str(&self.secrets).map_err(|_| StoreError::Corrupt {
            what: "webhooks.secrets",
            value: format!("of {}, not shown", self.webhook_id),
        })
    }

    /// Applies a merchant's settings of the webhook.
    pub(crate) fn set(&mut self, webhook: &Webhook, now: Timestamp) {
        self.name.clone_from(&webhook.name);
        self.url.clone_from(&webhook.url);
        self.events = webhook.events.as_ref().map(to_json);
        let of_requests = webhook.events.iter().flatten().any(|kind| kind.is_request_event());
        let since = self.requests_since.unwrap_or_else(|| now.unix_micros());
        self.requests_since = of_requests.then_some(since);
    }

    /// Whether an event is of a call that was settled before the webhook wanted such events.
    pub(crate) fn predates_subscription(&self, kind: EventKind, event: &EventRow) -> bool {
        let since = self.requests_since.unwrap_or(i64::MAX);
        kind.is_request_event() && event.created_at < since
    }
}
