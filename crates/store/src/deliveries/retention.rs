//! The retention of deliveries: late ones are given up, and old events are deleted.

use std::collections::HashSet;

use diesel::prelude::*;
use tollgate_domain::{EventId, Timestamp, WebhookId};

use super::queue::{next_due, release_next};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::events;
use crate::ids::Id;
use crate::rows::{DeliveryRow, PENDING, WAITING};
use crate::schema::{deliveries, events as event_rows, webhooks as webhook_rows};
use crate::store::Store;

/// The time after which a waiting delivery is given up, in milliseconds. It is longer than all attempts take. Without
/// it, the deliveries of a slow receiver would accumulate.
const MAX_AGE_MILLIS: i64 = 48 * 60 * 60 * 1_000;
/// The number of deliveries that are given up in one transaction.
const GIVEN_UP_AT_ONCE: i64 = 500;
/// The time for which events and their deliveries are kept, in milliseconds.
const KEPT_MILLIS: i64 = 30 * 24 * 60 * 60 * 1_000;

impl Store {
    /// Gives up late deliveries and deletes old events with their deliveries. Deliveries may wait for two days, and
    /// events are kept for 30. Each transaction handles a limited number.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn forget_deliveries(&self) -> Result<(), StoreError> {
        let now = self.0.context.clock.now();
        for webhook_id in self.read(webhooks_with_pending).await? {
            while self.write_outside_calls(move |conn| give_up_old(conn, webhook_id, now)).await? {}
        }
        let before = now.plus_millis(-KEPT_MILLIS);
        while self.write_outside_calls(move |conn| delete_old_events(conn, before)).await? > 0 {}
        Ok(())
    }
}

/// The webhooks that may have waiting deliveries.
fn webhooks_with_pending(conn: &mut Conn) -> Result<Vec<Id<WebhookId>>, StoreError> {
    let waiting = webhook_rows::table.filter(webhook_rows::due_at.is_not_null());
    Ok(waiting.select(webhook_rows::webhook_id).load(conn)?)
}

/// Gives up a limited number of a webhook's late deliveries. Returns whether there may be more.
fn give_up_old(
    conn: &mut Conn,
    webhook_id: Id<WebhookId>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(mut webhook) = dialect::lock_webhooks(conn, &[webhook_id])?.pop() else {
        return Ok(false);
    };
    let since = now.plus_millis(-MAX_AGE_MILLIS).unix_micros();
    let old: Vec<DeliveryRow> = deliveries::table
        .filter(deliveries::webhook_id.eq(webhook.webhook_id))
        .filter(deliveries::status.eq_any([PENDING, WAITING]))
        .filter(deliveries::queued_at.lt(since))
        .limit(GIVEN_UP_AT_ONCE)
        .select(DeliveryRow::as_select())
        .load(conn)?;
    for mut row in old.iter().cloned() {
        row.give_up();
        row.save(conn)?;
        release_next(conn, &row, now)?;
    }
    if webhook.deleted_at.is_none() {
        webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
        webhook.save(conn)?;
    }
    Ok(i64::try_from(old.len()).unwrap_or(0) == GIVEN_UP_AT_ONCE)
}

/// Deletes a limited number of old events with their deliveries, and returns the number. Events with a pending delivery
/// are kept, because other deliveries may wait for it.
fn delete_old_events(conn: &mut Conn, before: Timestamp) -> Result<usize, StoreError> {
    let mut old = events::dispatched_before(conn, before)?;
    let on_their_way: HashSet<Id<EventId>> = deliveries::table
        .inner_join(webhook_rows::table)
        .filter(deliveries::event_id.eq_any(&old))
        .filter(deliveries::status.eq_any([PENDING, WAITING]))
        .filter(webhook_rows::deleted_at.is_null())
        .select(deliveries::event_id)
        .load::<Id<EventId>>(conn)?
        .into_iter()
        .collect();
    old.retain(|event_id| !on_their_way.contains(event_id));
    if old.is_empty() {
        return Ok(0);
    }
    let of_them = deliveries::table.filter(deliveries::event_id.eq_any(&old));
    diesel::delete(of_them).execute(conn)?;
    let them = event_rows::table.filter(event_rows::event_id.eq_any(&old));
    Ok(diesel::delete(them).execute(conn)?)
}
