//! The rows of deliveries.

use diesel::prelude::*;
use tollgate_domain::{DeliveryId, EventId, MerchantId, WebhookId};

use crate::ids::Id;
use crate::schema::deliveries;

#[derive(
    Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, AsChangeset, Identifiable,
)]
#[diesel(table_name = deliveries, primary_key(delivery_id), treat_none_as_null = true)]
pub(crate) struct DeliveryRow {
    pub(crate) delivery_id: Id<DeliveryId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) webhook_id: Id<WebhookId>,
    pub(crate) event_id: Id<EventId>,
    pub(crate) resource: String,
    pub(crate) sequence: i64,
    pub(crate) status: String,
    pub(crate) attempts: i32,
    /// Attempts since the delivery was last sent again, the one under way included.
    pub(crate) failures: i32,
    pub(crate) queued_at: i64,
    pub(crate) last_attempt_at: Option<i64>,
    pub(crate) next_attempt_at: Option<i64>,
    pub(crate) response_status: Option<i32>,
    pub(crate) response_body: Option<String>,
    pub(crate) fault: Option<String>,
    pub(crate) duration_ms: Option<i32>,
    pub(crate) created_at: i64,
}

/// The status of a delivery that waits for an earlier one of its resource: pending, without a time. It has a word of
/// its own so that an index separates waiting deliveries from the deliveries that they wait for.
pub(crate) const WAITING: &str = "waiting";
/// The status of a delivery that is due or under way.
pub(crate) const PENDING: &str = "pending";
