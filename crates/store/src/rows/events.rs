//! The rows of events.

use diesel::prelude::*;
use tollgate_domain::{Event, EventId, EventPayload, MerchantId, Timestamp};

use super::values::{from_json, time, to_json};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::events;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = events)]
pub(crate) struct EventRow {
    pub(crate) event_id: Id<EventId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) kind: String,
    /// The resource whose events are sent in order.
    pub(crate) resource: String,
    pub(crate) news: String,
    pub(crate) created_at: i64,
    /// The time at which the webhooks of the event were found. Absent until then.
    pub(crate) dispatched_at: Option<i64>,
}

impl EventRow {
    /// Creates the row of an event that took effect at `at` and is written `now`. Ids ascend in the
    /// order of writing.
    pub(crate) fn new(
        merchant_id: MerchantId,
        news: &EventPayload,
        at: Timestamp,
        now: Timestamp,
    ) -> Self {
        Self {
            event_id: Id(EventId::generate(now)),
            merchant_id: Id(merchant_id),
            kind: news.kind().as_str().to_owned(),
            resource: news.resource(),
            news: to_json(news),
            created_at: at.unix_micros(),
            dispatched_at: None,
        }
    }

    /// Marks the event as dispatched, for an event that only one webhook gets.
    pub(crate) fn for_one_webhook(self, now: Timestamp) -> Self {
        Self { dispatched_at: Some(now.unix_micros()), ..self }
    }
}

impl TryFrom<EventRow> for Event {
    type Error = StoreError;

    fn try_from(row: EventRow) -> Result<Self, StoreError> {
        Ok(Self {
            event_id: row.event_id.get(),
            merchant_id: row.merchant_id.get(),
            payload: from_json("events.news", &row.news)?,
            created_at: time(row.created_at),
        })
    }
}
