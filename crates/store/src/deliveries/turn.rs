//! The turn: one transaction of the dispatcher.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use diesel::prelude::*;
use tollgate_domain::{
    Attempt, DeliveryFault, DeliveryId, Event, MerchantId, Timestamp, Webhook, WebhookId,
    WebhookSecrets,
};

use super::queue::{blocks_others, next_due, release_next};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::events;
use crate::ids::Id;
use crate::rows::{DeliveryRow, EventRow, PENDING, WAITING, WebhookRow, from_word, word};
use crate::schema::{deliveries, events as event_rows, webhooks as webhook_rows};
use crate::store::Store;
use crate::tables::merchants::moved_merchants;

// These limits bound the work of one turn: on SQLite all other writes wait for it.

/// The number of merchants whose events are dispatched.
const MERCHANTS_PER_TURN: usize = 8;
/// The number of events of each merchant.
const EVENTS_PER_MERCHANT: i64 = 20;
/// The number of deliveries after which no more events of a merchant are dispatched. An event is never split.
const DELIVERIES_PER_MERCHANT: usize = 50;
const DELIVERIES_PER_TURN: usize = 100;
/// The number of attempts that are begun.
const CLAIMS_PER_TURN: usize = 32;
/// The number of ended attempts that one turn should book.
pub const ENDED_AT_ONCE: usize = 32;
/// The number of webhooks that are locked at once to claim deliveries.
const WEBHOOKS_AT_ONCE: i64 = 16;
/// The time after which an attempt counts as lost, in milliseconds. It is well above the longest attempt.
const LEASE_MILLIS: i64 = 30_000;

/// An attempt to be made.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The URL of the webhook.
    pub url: String,
    /// The secrets that sign the message.
    pub secrets: WebhookSecrets,
    /// The delivery's number at this webhook.
    pub sequence: u64,
    /// The event to send.
    pub event: Event,
}

impl DeliveryRow {
    /// The attempt that has begun.
    fn to_claimed(
        &self,
        webhook: &WebhookRow,
        event: EventRow,
    ) -> Result<ClaimedDelivery, StoreError> {
        Ok(ClaimedDelivery {
            delivery_id: self.delivery_id.get(),
            webhook_id: self.webhook_id.get(),
            attempt: self.attempts.unsigned_abs(),
            url: webhook.url.clone(),
            secrets: webhook.secrets()?,
            sequence: self.sequence.unsigned_abs(),
            event: event.try_into()?,
        })
    }
}

/// An ended attempt.
#[derive(Clone, Debug)]
pub struct EndedAttempt {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The outcome.
    pub outcome: Attempt,
}

/// The number of attempts that this node can make at once. A claimed attempt must begin and end within 30 seconds.
#[derive(Clone, Debug, Default)]
pub struct AttemptCapacity {
    /// In total.
    pub free: usize,
    /// For each webhook.
    pub webhooks: CapacityShare<WebhookId>,
    /// For the webhooks of each merchant together.
    pub merchants: CapacityShare<MerchantId>,
}

/// The free attempts of each webhook or merchant.
#[derive(Clone, Debug)]
pub struct CapacityShare<T> {
    /// The attempts when none is under way.
    pub each: usize,
    /// The ids with fewer free attempts.
    pub reduced: BTreeMap<T, usize>,
}

impl<T> Default for CapacityShare<T> {
    fn default() -> Self {
        Self { each: 0, reduced: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> CapacityShare<T> {
    fn free_for(&self, id: &T) -> usize {
        self.reduced.get(id).copied().unwrap_or(self.each)
    }

    /// Reduces the free attempts of `id` by `count`.
    pub fn take(&mut self, id: T, count: usize) {
        let left = self.free_for(&id).saturating_sub(count);
        self.reduced.insert(id, left);
    }

    /// The ids without free attempts.
    fn exhausted(&self) -> Vec<Id<T>> {
        self.reduced.iter().filter(|(_, room)| **room == 0).map(|(id, _)| Id(*id)).collect()
    }
}
impl Store {
    /// Whether a turn would find waiting events, or due deliveries for which there is room. It is a cheap read.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub async fn has_deliveries_due(&self, room: AttemptCapacity) -> Result<bool, StoreError> {
        let now = self.0.context.clock.now();
        self.read(move |conn| Ok(events::any_waits(conn)? || is_due(conn, &room, now)?)).await
    }

    /// Books the ends of attempts, dispatches new events, and claims due deliveries as far as there is room.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails; nothing was booked then.
    pub async fn run_delivery_turn(
        &self,
        ended: Vec<EndedAttempt>,
        room: AttemptCapacity,
    ) -> Result<Vec<ClaimedDelivery>, StoreError> {
        let clock = self.0.context.clock.clone();
        self.write_outside_calls(move |conn| run_turn(conn, &ended, &room, clock.now())).await
    }
}

fn is_due(conn: &mut Conn, room: &AttemptCapacity, now: Timestamp) -> Result<bool, StoreError> {
    if room.free == 0 {
        return Ok(false);
    }
    let due = webhook_rows::table
        .filter(webhook_rows::due_at.le(now.unix_micros()))
        .filter(webhook_rows::webhook_id.ne_all(room.webhooks.exhausted()))
        .filter(webhook_rows::merchant_id.ne_all(room.merchants.exhausted()))
        .filter(webhook_rows::merchant_id.ne_all(moved_merchants(conn)?));
    Ok(diesel::select(diesel::dsl::exists(due)).get_result(conn)?)
}

/// Runs one turn.
fn run_turn(
    conn: &mut Conn,
    ended: &[EndedAttempt],
    room: &AttemptCapacity,
    now: Timestamp,
) -> Result<Vec<ClaimedDelivery>, StoreError> {
    // One node at a time takes events from the outbox, so that each webhook gets them in order.
    let waiting = match dialect::try_lock_outbox(conn)? {
        true => waiting_events(conn, now)?,
        false => Vec::new(),
    };
    let mut queues = LockedWebhooks::lock(conn, &waiting, ended)?;
    for one in ended {
        queues.book_end(conn, one, now)?;
    }
    queues.dispatch(conn, &waiting, now)?;
    queues.save(conn, now)?;
    claim(conn, room, now)
}

/// Returns some of the waiting events, with their numbers, in order for each merchant. The order of merchants is random
/// in every turn, so that the backlog of one merchant does not delay the others.
fn waiting_events(conn: &mut Conn, now: Timestamp) -> Result<Vec<(i64, EventRow)>, StoreError> {
    let mut merchants = events::merchants_waiting(conn)?;
    merchants.sort_by_cached_key(|merchant_id| {
        let mut lot = DefaultHasher::new();
        (merchant_id, now.unix_micros()).hash(&mut lot);
        lot.finish()
    });
    let mut waiting = Vec::new();
    for merchant_id in merchants.iter().take(MERCHANTS_PER_TURN) {
        waiting.extend(events::waiting(conn, *merchant_id, EVENTS_PER_MERCHANT)?);
    }
    Ok(waiting)
}

/// The webhooks that a turn may change, under lock.
struct LockedWebhooks {
    webhooks: BTreeMap<Id<WebhookId>, WebhookRow>,
    changed: BTreeSet<Id<WebhookId>>,
}

impl LockedWebhooks {
    /// Locks the webhooks of new events and of ended attempts, in the order of their ids.
    fn lock(
        conn: &mut Conn,
        waiting: &[(i64, EventRow)],
        ended: &[EndedAttempt],
    ) -> Result<Self, StoreError> {
        let merchants: BTreeSet<_> = waiting.iter().map(|(_, event)| event.merchant_id).collect();
        let told: Vec<Id<WebhookId>> = match merchants.is_empty() {
            true => Vec::new(),
            false => webhook_rows::table
                .filter(webhook_rows::merchant_id.eq_any(merchants))
                .filter(webhook_rows::deleted_at.is_null())
                .select(webhook_rows::webhook_id)
                .load(conn)?,
        };
        let answered = ended.iter().map(|ended| Id(ended.webhook_id));
        let ids: BTreeSet<_> = told.into_iter().chain(answered).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let rows = if ids.is_empty() { Vec::new() } else { dialect::lock_webhooks(conn, &ids)? };
        let rows = rows.into_iter().filter(|row| row.deleted_at.is_none());
        Ok(Self {
            webhooks: rows.map(|row| (row.webhook_id, row)).collect(),
            changed: BTreeSet::new(),
        })
    }

    /// Books the end of an attempt and releases the next delivery of its resource. Does nothing when a later attempt
    /// has begun or was requested.
    fn book_end(
        &mut self,
        conn: &mut Conn,
        ended: &EndedAttempt,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if !self.webhooks.contains_key(&Id(ended.webhook_id)) {
            return Ok(());
        }
        let row: Option<DeliveryRow> = deliveries::table
            .find(Id(ended.delivery_id))
            .select(DeliveryRow::as_select())
            .first(conn)
            .optional()?;
        // A delivery that was sent again during the attempt has no failures and is due.
        let is_last = |row: &DeliveryRow| {
            let is_newest = row.attempts.unsigned_abs() == ended.attempt && row.failures > 0;
            row.is_pending() && is_newest
        };
        let Some(mut row) = row.filter(is_last) else { return Ok(()) };
        row.book_attempt(&ended.outcome, now);
        row.save(conn)?;
        self.changed.insert(row.webhook_id);
        if !row.blocks_others() {
            release_next(conn, &row, now)?;
        }
        Ok(())
    }

    /// Creates the deliveries of each event, one for every webhook that wants it, up to the limits of a turn.
    fn dispatch(
        &mut self,
        conn: &mut Conn,
        waiting: &[(i64, EventRow)],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if waiting.is_empty() {
            return Ok(());
        }
        let mut wanting: HashMap<Id<MerchantId>, Vec<(&mut WebhookRow, Webhook)>> = HashMap::new();
        for row in self.webhooks.values_mut() {
            // A webhook that cannot be read must not block the others.
            match row.webhook() {
                Ok(webhook) => {
                    wanting.entry(row.merchant_id).or_default().push((row, webhook));
                }
                Err(cause) => log::error!("events pass over {}: {cause}", row.webhook_id),
            }
        }
        let mut places_of: HashMap<Id<MerchantId>, usize> = HashMap::new();
        let (mut all, mut done, mut taken) = (0_usize, Vec::new(), Vec::new());
        for (number, event) in waiting {
            let of_merchant = places_of.entry(event.merchant_id).or_default();
            if all >= DELIVERIES_PER_TURN || *of_merchant >= DELIVERIES_PER_MERCHANT {
                continue;
            }
            done.push(*number);
            match from_word("events.kind", &event.kind) {
                Ok(kind) => {
                    let webhooks = wanting.get(&event.merchant_id).into_iter().flatten();
                    let count = webhooks.filter(|(_, webhook)| webhook.wants(kind)).count();
                    *of_merchant = of_merchant.saturating_add(count);
                    all = all.saturating_add(count);
                    taken.push((*number, event, kind));
                }
                Err(cause) => log::error!("{} is not delivered: {cause}", event.event_id),
            }
        }
        let ids: Vec<_> = wanting.values().flatten().map(|(row, _)| row.webhook_id).collect();
        let resources = taken.iter().map(|(_, event, _)| event.resource.clone()).collect();
        let mut held_up = blocked_resources(conn, ids, resources)?;
        let mut places = Vec::new();
        for (number, event, kind) in taken {
            for (row, webhook) in wanting.get_mut(&event.merchant_id).into_iter().flatten() {
                // Events that waited when a webhook was created happened before it.
                let is_earlier =
                    number <= row.events_before || row.predates_subscription(kind, event);
                if !webhook.wants(kind) || is_earlier {
                    continue;
                }
                row.sequence = row.sequence.saturating_add(1);
                self.changed.insert(row.webhook_id);
                // Later deliveries of the same resource wait for this one.
                let is_first = held_up.insert((row.webhook_id, event.resource.clone()));
                let due_at = is_first.then(|| now.unix_micros());
                places.push(DeliveryRow::new(row, event, due_at, now));
            }
        }
        dialect::insert_deliveries(conn, &places)?;
        events::mark_dispatched(conn, &done, now)
    }

    /// Writes the changed webhooks, with the times at which they are due.
    fn save(mut self, conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
        for row in self.changed.iter().filter_map(|id| self.webhooks.remove(id)) {
            let mut row = row;
            row.due_at = next_due(conn, row.webhook_id, now)?;
            row.save(conn)?;
        }
        Ok(())
    }
}

/// Returns the pairs of these webhooks and resources with a pending delivery that others wait for.
fn blocked_resources(
    conn: &mut Conn,
    webhook_ids: Vec<Id<WebhookId>>,
    resources: BTreeSet<String>,
) -> Result<HashSet<(Id<WebhookId>, String)>, StoreError> {
    let pairs: Vec<(Id<WebhookId>, String)> = deliveries::table
        .filter(deliveries::webhook_id.eq_any(webhook_ids))
        .filter(deliveries::status.eq_any([PENDING, WAITING]))
        .filter(deliveries::resource.eq_any(resources))
        .filter(blocks_others())
        .select((deliveries::webhook_id, deliveries::resource))
        .distinct()
        .load(conn)?;
    Ok(pairs.into_iter().collect())
}

/// Claims due deliveries of webhooks that no other node has locked, longest waiting first.
fn claim(
    conn: &mut Conn,
    room: &AttemptCapacity,
    now: Timestamp,
) -> Result<Vec<ClaimedDelivery>, StoreError> {
    let mut claimed = Vec::new();
    let mut room = AttemptCapacity { free: room.free.min(CLAIMS_PER_TURN), ..room.clone() };
    for _ in 0..CLAIMS_PER_TURN {
        if room.free == 0 {
            break;
        }
        // The next query omits webhooks and merchants without room, so that it reaches the ones behind them.
        let mut omitted = room.merchants.exhausted();
        omitted.extend(moved_merchants(conn)?);
        let full = (room.webhooks.exhausted(), omitted);
        let due = dialect::lock_due_webhooks(conn, now.unix_micros(), full, WEBHOOKS_AT_ONCE)?;
        if due.is_empty() {
            break;
        }
        for webhook in due {
            claimed.extend(claim_from(conn, webhook, &mut room, now)?);
        }
    }
    Ok(claimed)
}

/// Claims the due deliveries of a webhook. Without room for any, the webhook stays due.
fn claim_from(
    conn: &mut Conn,
    mut webhook: WebhookRow,
    room: &mut AttemptCapacity,
    now: Timestamp,
) -> Result<Vec<ClaimedDelivery>, StoreError> {
    let mut claimed = Vec::new();
    let (webhook_id, merchant_id) = (webhook.webhook_id.get(), webhook.merchant_id.get());
    let most = room
        .free
        .min(room.webhooks.free_for(&webhook_id))
        .min(room.merchants.free_for(&merchant_id));
    if most == 0 {
        return Ok(claimed);
    }
    let found: Vec<(DeliveryRow, EventRow)> = deliveries::table
        .inner_join(event_rows::table)
        .filter(deliveries::webhook_id.eq(webhook.webhook_id))
        .filter(deliveries::next_attempt_at.le(now.unix_micros()))
        .order((deliveries::next_attempt_at, deliveries::sequence))
        .limit(i64::try_from(most).unwrap_or(0))
        .select((DeliveryRow::as_select(), EventRow::as_select()))
        .load(conn)?;
    room.free = room.free.saturating_sub(found.len());
    room.webhooks.take(webhook_id, found.len());
    room.merchants.take(merchant_id, found.len());
    // An attempt that was cut off is not a failure of the receiver. It counts once, with the attempt that follows.
    let (cut_off, others) = found.iter().map(|(row, _)| row).partition(|row| row.is_under_way());
    begin_attempts(conn, cut_off, 0, now)?;
    begin_attempts(conn, others, 1, now)?;
    for (mut row, event) in found {
        row.attempts = row.attempts.saturating_add(1);
        match row.to_claimed(&webhook, event) {
            Ok(attempt) => claimed.push(attempt),
            Err(cause) => {
                // A delivery that cannot be read must not block the others.
                log::error!("{} is given up: {cause}", row.delivery_id);
                row.fault = Some(word(&DeliveryFault::EventLost));
                row.duration_ms = Some(0);
                row.give_up();
                row.save(conn)?;
                release_next(conn, &row, now)?;
            }
        }
    }
    webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
    webhook.save(conn)?;
    Ok(claimed)
}

/// Begins attempts. No other node claims them until the lease has expired. `failures` is added to the failures of each
/// delivery in advance.
fn begin_attempts(
    conn: &mut Conn,
    rows: Vec<&DeliveryRow>,
    failures: i32,
    now: Timestamp,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let ids = rows.into_iter().map(|row| row.delivery_id);
    diesel::update(deliveries::table.filter(deliveries::delivery_id.eq_any(ids)))
        .set((
            deliveries::attempts.eq(deliveries::attempts + 1),
            deliveries::failures.eq(deliveries::failures + failures),
            deliveries::last_attempt_at.eq(now.unix_micros()),
            deliveries::next_attempt_at.eq(now.plus_millis(LEASE_MILLIS).unix_micros()),
            deliveries::response_status.eq(None::<i32>),
            deliveries::response_body.eq(None::<String>),
            deliveries::fault.eq(None::<String>),
            deliveries::duration_ms.eq(None::<i32>),
        ))
        .execute(conn)?;
    Ok(())
}

/// Makes the claimed deliveries of a dead process due at once. Must be called only by a process that is alone on the
/// store.
pub(crate) fn release_all(conn: &mut Conn) -> Result<(), StoreError> {
    let claimed = deliveries::table
        .filter(deliveries::next_attempt_at.is_not_null())
        .filter(deliveries::failures.gt(0))
        .filter(deliveries::duration_ms.is_null());
    diesel::update(claimed)
        .set(deliveries::next_attempt_at.eq(deliveries::last_attempt_at))
        .execute(conn)?;
    // The next claim computes the real times.
    diesel::update(webhook_rows::table.filter(webhook_rows::due_at.is_not_null()))
        .set(webhook_rows::due_at.eq(0))
        .execute(conn)?;
    Ok(())
}
