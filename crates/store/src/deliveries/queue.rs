//! The queue of a webhook: its deliveries.

use diesel::dsl::IsNull;
use diesel::prelude::*;
use tollgate_domain::{
    Attempt, Delivery, DeliveryId, DeliveryStatus, EventPayload, Jitter, MerchantId, Timestamp,
    WebhookId,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{DeliveryRow, EventRow, PENDING, WAITING, WebhookRow, from_word, time, word};
use crate::schema::{deliveries, events as event_rows};
use crate::tables::webhooks;

/// The number of failures after which a delivery is overtaken, as in the domain, in the type of the column.
pub(super) const OVERTAKEN: i32 = 4;
const _: () = assert!(OVERTAKEN.unsigned_abs() == tollgate_domain::OVERTAKEN_AFTER);

impl DeliveryRow {
    pub(super) fn new(
        row: &WebhookRow,
        event: &EventRow,
        due_at: Option<i64>,
        now: Timestamp,
    ) -> Self {
        Self {
            delivery_id: Id(DeliveryId::generate(now)),
            merchant_id: row.merchant_id,
            webhook_id: row.webhook_id,
            event_id: event.event_id,
            resource: event.resource.clone(),
            sequence: row.sequence,
            status: if due_at.is_some() { PENDING } else { WAITING }.to_owned(),
            attempts: 0,
            failures: 0,
            queued_at: now.unix_micros(),
            last_attempt_at: None,
            next_attempt_at: due_at,
            response_status: None,
            response_body: None,
            fault: None,
            duration_ms: None,
            created_at: now.unix_micros(),
        }
    }

    pub(super) fn delivery(&self, kind: &str) -> Result<Delivery, StoreError> {
        let fault = |text: &String| from_word("deliveries.fault", text);
        let last = match self.duration_ms {
            Some(duration_ms) => Some(Attempt {
                response_status: self.response_status.and_then(|status| status.try_into().ok()),
                response_body: self.response_body.clone(),
                fault: self.fault.as_ref().map(fault).transpose()?,
                duration_ms: duration_ms.unsigned_abs(),
            }),
            None => None,
        };
        Ok(Delivery {
            delivery_id: self.delivery_id.get(),
            webhook_id: self.webhook_id.get(),
            event_id: self.event_id.get(),
            kind: from_word("events.kind", kind)?,
            sequence: self.sequence.unsigned_abs(),
            status: match self.status.as_str() {
                WAITING => DeliveryStatus::Pending,
                status => from_word("deliveries.status", status)?,
            },
            attempts: self.attempts.unsigned_abs(),
            last,
            last_attempt_at: self.last_attempt_at.map(time),
            next_attempt_at: self.next_attempt_at.filter(|_| !self.is_under_way()).map(time),
            created_at: time(self.created_at),
        })
    }

    /// Whether an attempt has begun and its end is not known. If the delivery is due again, the attempt was cut off:
    /// its lease has expired.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_pending() && self.failures > 0 && self.duration_ms.is_none()
    }

    pub(super) fn is_pending(&self) -> bool {
        self.status == PENDING
    }

    pub(super) fn save(&self, conn: &mut Conn) -> Result<(), StoreError> {
        diesel::update(deliveries::table.find(&self.delivery_id)).set(self).execute(conn)?;
        Ok(())
    }

    /// Gives the delivery up, so that it is not tried again.
    pub(super) fn give_up(&mut self) {
        let Self { delivery_id, webhook_id, attempts, .. } = &*self;
        log::warn!("{delivery_id} to {webhook_id} is given up after {attempts} attempts");
        self.status = word(&DeliveryStatus::Failed);
        self.next_attempt_at = None;
    }

    /// Books the end of an attempt.
    pub(super) fn book_attempt(&mut self, attempt: &Attempt, now: Timestamp) {
        self.response_status = attempt.response_status.map(i32::from);
        self.response_body.clone_from(&attempt.response_body);
        self.fault = attempt.fault.as_ref().map(word);
        self.duration_ms = Some(i32::try_from(attempt.duration_ms).unwrap_or(i32::MAX));
        let failures = self.failures.unsigned_abs();
        if attempt.has_arrived() {
            self.status = word(&DeliveryStatus::Delivered);
            self.next_attempt_at = None;
        } else if let Some(next) = DeliveryStatus::next_attempt(failures, now, Jitter::random()) {
            self.next_attempt_at = Some(next.unix_micros());
        } else {
            self.give_up();
        }
    }

    /// Whether later deliveries of its resource wait for it.
    pub(super) fn blocks_others(&self) -> bool {
        self.is_pending() && self.failures < OVERTAKEN
    }
}

/// Makes the next delivery of the same resource due, unless it still waits for another one.
pub(super) fn release_next(
    conn: &mut Conn,
    ended: &DeliveryRow,
    now: Timestamp,
) -> Result<(), StoreError> {
    let of_resource = |status: &'static str| {
        deliveries::table
            .filter(deliveries::webhook_id.eq(&ended.webhook_id))
            .filter(deliveries::status.eq(status))
            .filter(deliveries::resource.eq(&ended.resource))
    };
    let next: Option<Id<DeliveryId>> = of_resource(WAITING)
        .order(deliveries::sequence)
        .select(deliveries::delivery_id)
        .first(conn)
        .optional()?;
    let Some(delivery_id) = next else { return Ok(()) };
    let before = of_resource(PENDING).filter(blocks_others());
    if diesel::select(diesel::dsl::exists(before)).get_result(conn)? {
        return Ok(());
    }
    diesel::update(deliveries::table.find(delivery_id))
        .set((deliveries::status.eq(PENDING), deliveries::next_attempt_at.eq(now.unix_micros())))
        .execute(conn)?;
    Ok(())
}

/// Selects the unfinished deliveries that others wait for: those with fewer failures than [`OVERTAKEN`], or with an
/// attempt under way that could be the last of these failures.
#[diesel::dsl::auto_type(no_type_alias)]
pub(super) fn blocks_others() -> _ {
    let overtaken: i32 = OVERTAKEN;
    let is_under_way: IsNull<deliveries::duration_ms> = deliveries::duration_ms.is_null();
    deliveries::failures.lt(overtaken).or(deliveries::failures.eq(overtaken).and(is_under_way))
}

/// The time at which the first delivery of a webhook is due, not earlier than now. So a webhook that has just had a
/// turn comes after the webhooks that wait for one, even with a long backlog.
pub(super) fn next_due(
    conn: &mut Conn,
    webhook_id: Id<WebhookId>,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let due = deliveries::table
        .filter(deliveries::webhook_id.eq(webhook_id))
        .filter(deliveries::next_attempt_at.is_not_null())
        .select(diesel::dsl::min(deliveries::next_attempt_at));
    let due: Option<i64> = due.get_result(conn)?;
    Ok(due.map(|at| at.max(now.unix_micros())))
}

/// A filter for deliveries.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryFilter {
    /// Only deliveries with this status.
    pub status: Option<DeliveryStatus>,
}

/// Returns the deliveries of a merchant's webhook, newest first, or `None` when it has no such webhook.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    filter: DeliveryFilter,
    page: &Page<DeliveryId>,
) -> Result<Option<Vec<Delivery>>, StoreError> {
    if webhooks::find(conn, merchant_id, webhook_id)?.is_none() {
        return Ok(None);
    }
    let mut query = deliveries::table
        .inner_join(event_rows::table)
        .filter(deliveries::webhook_id.eq(Id(webhook_id)))
        .select((DeliveryRow::as_select(), event_rows::kind))
        .into_boxed();
    match filter.status {
        Some(DeliveryStatus::Pending) => {
            query = query.filter(deliveries::status.eq_any([PENDING, WAITING]));
        }
        Some(status) => query = query.filter(deliveries::status.eq(word(&status))),
        None => {}
    }
    if let Some(after) = page.after {
        query = query.filter(deliveries::delivery_id.lt(Id(after)));
    }
    let rows: Vec<(DeliveryRow, String)> =
        query.order(deliveries::delivery_id.desc()).limit(page.rows()).load(conn)?;
    let found: Result<_, _> = rows.iter().map(|(row, kind)| row.delivery(kind)).collect();
    found.map(Some)
}

/// Returns a delivery of a merchant's webhook.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    delivery_id: DeliveryId,
) -> Result<Option<Delivery>, StoreError> {
    if webhooks::find(conn, merchant_id, webhook_id)?.is_none() {
        return Ok(None);
    }
    let found = find_row(conn, webhook_id, delivery_id)?;
    found.map(|(row, kind)| row.delivery(&kind)).transpose()
}

/// Returns a delivery with the kind of its event.
pub(super) fn find_row(
    conn: &mut Conn,
    webhook_id: WebhookId,
    delivery_id: DeliveryId,
) -> Result<Option<(DeliveryRow, String)>, StoreError> {
    let found = deliveries::table
        .inner_join(event_rows::table)
        .filter(deliveries::delivery_id.eq(Id(delivery_id)))
        .filter(deliveries::webhook_id.eq(Id(webhook_id)))
        .select((DeliveryRow::as_select(), event_rows::kind))
        .first(conn)
        .optional()?;
    Ok(found)
}

/// Sends a delivery again at once, whatever its status, and resets its failures. Returns `None` when it does not exist.
/// Must be called in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn redeliver(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    delivery_id: DeliveryId,
    now: Timestamp,
) -> Result<Option<Delivery>, StoreError> {
    let Some(mut webhook) = webhooks::lock(conn, merchant_id, webhook_id)? else {
        return Ok(None);
    };
    let Some((mut row, kind)) = find_row(conn, webhook_id, delivery_id)? else { return Ok(None) };
    row.status = PENDING.to_owned();
    row.failures = 0;
    row.queued_at = now.unix_micros();
    row.next_attempt_at = Some(now.unix_micros());
    row.save(conn)?;
    webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
    webhook.save(conn)?;
    row.delivery(&kind).map(Some)
}

/// Sends all failed deliveries of a webhook again at once, and resets their failures. Returns their number, or `None`
/// when there is no such webhook. Must be called in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn redeliver_failed(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    now: Timestamp,
) -> Result<Option<usize>, StoreError> {
    let Some(mut webhook) = webhooks::lock(conn, merchant_id, webhook_id)? else {
        return Ok(None);
    };
    let failed = deliveries::table
        .filter(deliveries::webhook_id.eq(Id(webhook_id)))
        .filter(deliveries::status.eq(word(&DeliveryStatus::Failed)));
    let count = diesel::update(failed)
        .set((
            deliveries::status.eq(PENDING),
            deliveries::failures.eq(0),
            deliveries::queued_at.eq(now.unix_micros()),
            deliveries::next_attempt_at.eq(now.unix_micros()),
        ))
        .execute(conn)?;
    webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
    webhook.save(conn)?;
    Ok(Some(count))
}

/// The time of the first event since which no delivery to a webhook has succeeded and some have failed; `None` while it
/// accepts its messages.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn failing_since(
    conn: &mut Conn,
    webhook_id: WebhookId,
) -> Result<Option<Timestamp>, StoreError> {
    let of_webhook = || deliveries::table.filter(deliveries::webhook_id.eq(Id(webhook_id)));
    let delivered: Option<i64> = of_webhook()
        .filter(deliveries::status.eq(word(&DeliveryStatus::Delivered)))
        .select(diesel::dsl::max(deliveries::last_attempt_at))
        .get_result(conn)?;
    let failed: Option<i64> = of_webhook()
        .filter(deliveries::failures.gt(0))
        .filter(deliveries::last_attempt_at.gt(delivered.unwrap_or_default()))
        .select(diesel::dsl::min(deliveries::created_at))
        .get_result(conn)?;
    Ok(failed.map(time))
}

/// Makes the deliveries of a webhook that wait for their next attempt due, because its URL has changed.
pub(crate) fn make_due(
    conn: &mut Conn,
    webhook: &mut WebhookRow,
    now: Timestamp,
) -> Result<(), StoreError> {
    let waiting = deliveries::table
        .filter(deliveries::webhook_id.eq(&webhook.webhook_id))
        .filter(deliveries::next_attempt_at.gt(now.unix_micros()))
        .filter(deliveries::duration_ms.is_not_null());
    diesel::update(waiting).set(deliveries::next_attempt_at.eq(now.unix_micros())).execute(conn)?;
    webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
    Ok(())
}

/// Sends a test event to a webhook, whatever events it wants. Returns `None` when it does not exist. Must be called in
/// a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn send_test(
    conn: &mut Conn,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
    now: Timestamp,
) -> Result<Option<Delivery>, StoreError> {
    let Some(mut row) = webhooks::lock(conn, merchant_id, webhook_id)? else { return Ok(None) };
    let news = EventPayload::WebhookTest { webhook: Box::new(row.webhook()?) };
    let event = EventRow::new(merchant_id, &news, now, now).for_one_webhook(now);
    dialect::insert_events(conn, std::slice::from_ref(&event))?;
    row.sequence = row.sequence.saturating_add(1);
    let place = DeliveryRow::new(&row, &event, Some(now.unix_micros()), now);
    dialect::insert_deliveries(conn, std::slice::from_ref(&place))?;
    row.due_at = next_due(conn, row.webhook_id, now)?;
    row.save(conn)?;
    place.delivery(news.kind().as_str()).map(Some)
}
