//! The turn: one transaction of the delivery loop.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use diesel::prelude::*;
use tollgate_domain::{
    Attempt, DeliveryFault, DeliveryId, Event, MerchantId, Timestamp, Webhook, WebhookId,
    WebhookSecrets,
};

use super::queue::{holds_others_up, let_next_go, next_due};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::events;
use crate::ids::Id;
use crate::rows::{DeliveryRow, EventRow, PENDING, WAITING, WebhookRow, from_word, word};
use crate::schema::{deliveries, events as event_rows, webhooks as webhook_rows};
use crate::store::Store;

// How much is done in one turn: where there is one writer, everybody else waits for it meanwhile.

/// Of so many merchants events are taken up.
const MERCHANTS_AT_ONCE: usize = 8;
/// So many of each.
const EVENTS_OF_ONE: i64 = 20;
/// For which so many places in queues are given out, each merchant's last event with all of its own.
const PLACES_OF_ONE: usize = 50;
const PLACES_AT_ONCE: usize = 100;
/// So many attempts are begun.
const CLAIMS_AT_ONCE: usize = 32;
/// How many ended attempts one turn should book.
pub const ENDED_AT_ONCE: usize = 32;
/// Of how many webhooks deliveries are claimed in one turn.
const WEBHOOKS_AT_ONCE: i64 = 16;
/// When an attempt is taken for lost, in milliseconds: well after the time it may take.
const LEASE_MILLIS: i64 = 30_000;

/// An attempt that is to be made.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Of which delivery.
    pub delivery_id: DeliveryId,
    /// To which webhook.
    pub webhook_id: WebhookId,
    /// Its number, from 1.
    pub attempt: u32,
    /// Where to.
    pub url: String,
    /// What to sign it with.
    pub secrets: WebhookSecrets,
    /// The delivery's number at this webhook.
    pub sequence: u64,
    /// What to tell.
    pub event: Event,
}

impl DeliveryRow {
    /// The attempt that has begun.
    fn claimed(&self, webhook: &WebhookRow, event: EventRow) -> Result<Claimed, StoreError> {
        Ok(Claimed {
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

/// How an attempt has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Of which delivery.
    pub delivery_id: DeliveryId,
    /// To which webhook.
    pub webhook_id: WebhookId,
    /// Its number.
    pub attempt: u32,
    /// What came of it.
    pub outcome: Attempt,
}

/// How many attempts this node can make at once. An attempt that is claimed must begin and end within
/// 30 seconds.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// In all.
    pub free: usize,
    /// At each webhook.
    pub webhooks: Share<WebhookId>,
    /// At the webhooks of each merchant together.
    pub merchants: Share<MerchantId>,
}

/// How much room each has.
#[derive(Clone, Debug)]
pub struct Share<T> {
    /// Who has nothing under way.
    pub each: usize,
    /// Those that have less.
    pub less: BTreeMap<T, usize>,
}

impl<T> Default for Share<T> {
    fn default() -> Self {
        Self { each: 0, less: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> Share<T> {
    fn of(&self, id: &T) -> usize {
        self.less.get(id).copied().unwrap_or(self.each)
    }

    /// Leaves so much less of it.
    pub fn take(&mut self, id: T, count: usize) {
        let left = self.of(&id).saturating_sub(count);
        self.less.insert(id, left);
    }

    /// Who has none left.
    fn full(&self) -> Vec<Id<T>> {
        self.less.iter().filter(|(_, room)| **room == 0).map(|(id, _)| Id(*id)).collect()
    }
}
impl Store {
    /// Whether a turn would find events that wait, or deliveries that are due and have room: a look
    /// that costs next to nothing.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn has_deliveries_due(&self, room: Room) -> Result<bool, StoreError> {
        let now = self.0.context.clock.now();
        self.read(move |conn| Ok(events::any_waits(conn)? || is_due(conn, &room, now)?)).await
    }

    /// Books how attempts have ended, takes up new events, and claims what is due, as far as there
    /// is room for it.
    ///
    /// # Errors
    /// Those of the store: nothing was booked then.
    pub async fn turn_deliveries(
        &self,
        ended: Vec<Ended>,
        room: Room,
    ) -> Result<Vec<Claimed>, StoreError> {
        let clock = self.0.context.clock.clone();
        self.write_apart(move |conn| turn(conn, &ended, &room, clock.now())).await
    }
}

fn is_due(conn: &mut Conn, room: &Room, now: Timestamp) -> Result<bool, StoreError> {
    if room.free == 0 {
        return Ok(false);
    }
    let due = webhook_rows::table
        .filter(webhook_rows::due_at.le(now.unix_micros()))
        .filter(webhook_rows::webhook_id.ne_all(room.webhooks.full()))
        .filter(webhook_rows::merchant_id.ne_all(room.merchants.full()));
    Ok(diesel::select(diesel::dsl::exists(due)).get_result(conn)?)
}

/// One transaction of the delivery loop.
fn turn(
    conn: &mut Conn,
    ended: &[Ended],
    room: &Room,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    // One node at a time takes events from the outbox, so that each webhook gets them in their order.
    let waiting = match dialect::try_lock_outbox(conn)? {
        true => waiting_events(conn, now)?,
        false => Vec::new(),
    };
    let mut queues = Queues::lock(conn, &waiting, ended)?;
    for one in ended {
        queues.end(conn, one, now)?;
    }
    queues.dispatch(conn, &waiting, now)?;
    queues.save(conn, now)?;
    claim(conn, room, now)
}

/// Some of the events that wait, with their numbers: those of a merchant in their order. Which merchants
/// come first is drawn by lot in every turn, so that nobody's backlog keeps others' events waiting.
fn waiting_events(conn: &mut Conn, now: Timestamp) -> Result<Vec<(i64, EventRow)>, StoreError> {
    let mut merchants = events::merchants_waiting(conn)?;
    merchants.sort_by_cached_key(|merchant_id| {
        let mut lot = DefaultHasher::new();
        (merchant_id, now.unix_micros()).hash(&mut lot);
        lot.finish()
    });
    let mut waiting = Vec::new();
    for merchant_id in merchants.iter().take(MERCHANTS_AT_ONCE) {
        waiting.extend(events::waiting(conn, *merchant_id, EVENTS_OF_ONE)?);
    }
    Ok(waiting)
}

/// The queues that a turn may change: webhooks under lock.
struct Queues {
    webhooks: BTreeMap<Id<WebhookId>, WebhookRow>,
    changed: BTreeSet<Id<WebhookId>>,
}

impl Queues {
    /// Locks, in the order of their ids, the webhooks of merchants to whom something happened and
    /// those where an attempt has ended.
    fn lock(
        conn: &mut Conn,
        waiting: &[(i64, EventRow)],
        ended: &[Ended],
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

    /// Books how an attempt has ended, unless a later one has begun or is asked for, and lets the
    /// next one of its resource go.
    fn end(&mut self, conn: &mut Conn, ended: &Ended, now: Timestamp) -> Result<(), StoreError> {
        if !self.webhooks.contains_key(&Id(ended.webhook_id)) {
            return Ok(());
        }
        let row: Option<DeliveryRow> = deliveries::table
            .find(Id(ended.delivery_id))
            .select(DeliveryRow::as_select())
            .first(conn)
            .optional()?;
        // Sent anew while the attempt was under way, it counts none yet and is due.
        let is_last = |row: &DeliveryRow| {
            let is_newest = row.attempts.unsigned_abs() == ended.attempt && row.failures > 0;
            row.is_pending() && is_newest
        };
        let Some(mut row) = row.filter(is_last) else { return Ok(()) };
        row.end(&ended.outcome, now);
        row.save(conn)?;
        self.changed.insert(row.webhook_id);
        if !row.holds_others_up() {
            let_next_go(conn, &row, now)?;
        }
        Ok(())
    }

    /// Gives each event a place in the queue of every webhook that wants it, so far as a turn goes.
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
            // One that cannot be read must not stand before those that can.
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
            if all >= PLACES_AT_ONCE || *of_merchant >= PLACES_OF_ONE {
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
                Err(cause) => log::error!("{} is told to nobody: {cause}", event.event_id),
            }
        }
        let ids: Vec<_> = wanting.values().flatten().map(|(row, _)| row.webhook_id).collect();
        let resources = taken.iter().map(|(_, event, _)| event.resource.clone()).collect();
        let mut held_up = held_up(conn, ids, resources)?;
        let mut places = Vec::new();
        for (number, event, kind) in taken {
            for (row, webhook) in wanting.get_mut(&event.merchant_id).into_iter().flatten() {
                // What waited already when a webhook was made happened before it.
                let is_earlier = number <= row.events_before || row.wants_later(kind, event);
                if !webhook.wants(kind) || is_earlier {
                    continue;
                }
                row.sequence = row.sequence.saturating_add(1);
                self.changed.insert(row.webhook_id);
                // Later ones of the same resource wait for this one.
                let is_first = held_up.insert((row.webhook_id, event.resource.clone()));
                let due_at = is_first.then(|| now.unix_micros());
                places.push(DeliveryRow::new(row, event, due_at, now));
            }
        }
        dialect::insert_deliveries(conn, &places)?;
        events::mark_dispatched(conn, &done, now)
    }

    /// Writes the webhooks back that have changed, with when they are due.
    fn save(mut self, conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
        for row in self.changed.iter().filter_map(|id| self.webhooks.remove(id)) {
            let mut row = row;
            row.due_at = next_due(conn, row.webhook_id, now)?;
            row.save(conn)?;
        }
        Ok(())
    }
}

/// Of these webhooks and resources, the pairs of which a delivery is pending that others wait for.
fn held_up(
    conn: &mut Conn,
    webhook_ids: Vec<Id<WebhookId>>,
    resources: BTreeSet<String>,
) -> Result<HashSet<(Id<WebhookId>, String)>, StoreError> {
    let pairs: Vec<(Id<WebhookId>, String)> = deliveries::table
        .filter(deliveries::webhook_id.eq_any(webhook_ids))
        .filter(deliveries::status.eq_any([PENDING, WAITING]))
        .filter(deliveries::resource.eq_any(resources))
        .filter(holds_others_up())
        .select((deliveries::webhook_id, deliveries::resource))
        .distinct()
        .load(conn)?;
    Ok(pairs.into_iter().collect())
}

/// Claims deliveries that are due, of webhooks that no other node is busy with: those first that wait
/// for their turn longest.
fn claim(conn: &mut Conn, room: &Room, now: Timestamp) -> Result<Vec<Claimed>, StoreError> {
    let mut claimed = Vec::new();
    let mut room = Room { free: room.free.min(CLAIMS_AT_ONCE), ..room.clone() };
    for _ in 0..CLAIMS_AT_ONCE {
        if room.free == 0 {
            break;
        }
        // Asked again, it leaves out whoever has no room left, so that others are reached behind them.
        let full = (room.webhooks.full(), room.merchants.full());
        let due = dialect::lock_due_webhooks(conn, now.unix_micros(), full, WEBHOOKS_AT_ONCE)?;
        if due.is_empty() {
            break;
        }
        for webhook in due {
            claimed.extend(claim_of(conn, webhook, &mut room, now)?);
        }
    }
    Ok(claimed)
}

/// Claims what is due of a webhook, unless there is no room for it: then it keeps its turn.
fn claim_of(
    conn: &mut Conn,
    mut webhook: WebhookRow,
    room: &mut Room,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    let mut claimed = Vec::new();
    let (webhook_id, merchant_id) = (webhook.webhook_id.get(), webhook.merchant_id.get());
    let most = room.free.min(room.webhooks.of(&webhook_id)).min(room.merchants.of(&merchant_id));
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
    // One that was cut off is no failure of the receiver's, and counts once with that which follows.
    let (cut_off, others) = found.iter().map(|(row, _)| row).partition(|row| row.is_under_way());
    begin(conn, cut_off, 0, now)?;
    begin(conn, others, 1, now)?;
    for (mut row, event) in found {
        row.attempts = row.attempts.saturating_add(1);
        match row.claimed(&webhook, event) {
            Ok(attempt) => claimed.push(attempt),
            Err(cause) => {
                // It must not stand before those that can be read.
                log::error!("{} is given up: {cause}", row.delivery_id);
                row.fault = Some(word(&DeliveryFault::EventLost));
                row.duration_ms = Some(0);
                row.give_up();
                row.save(conn)?;
                let_next_go(conn, &row, now)?;
            }
        }
    }
    webhook.due_at = next_due(conn, webhook.webhook_id, now)?;
    webhook.save(conn)?;
    Ok(claimed)
}

/// Begins attempts: until the lease has run out they are nobody else's. Each adds so much to the
/// failures of its delivery, should it fail.
fn begin(
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

/// Makes what a dead process had claimed due at once: for who has the store to himself.
pub(crate) fn release_all(conn: &mut Conn) -> Result<(), StoreError> {
    let claimed = deliveries::table
        .filter(deliveries::next_attempt_at.is_not_null())
        .filter(deliveries::failures.gt(0))
        .filter(deliveries::duration_ms.is_null());
    diesel::update(claimed)
        .set(deliveries::next_attempt_at.eq(deliveries::last_attempt_at))
        .execute(conn)?;
    // A look finds out what is really due.
    diesel::update(webhook_rows::table.filter(webhook_rows::due_at.is_not_null()))
        .set(webhook_rows::due_at.eq(0))
        .execute(conn)?;
    Ok(())
}
