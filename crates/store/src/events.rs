//! Events. They are written in the transaction that causes them, and wait until their webhooks are found.

use diesel::prelude::*;
use tollgate_domain::{Event, EventId, EventPayload, MerchantId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::EventRow;
use crate::schema::events;

/// Writes an event. Call it in the transaction that causes it.
pub(crate) fn write(
    conn: &mut Conn,
    merchant_id: MerchantId,
    news: &EventPayload,
    now: Timestamp,
) -> Result<(), StoreError> {
    Ok(dialect::insert_events(conn, &[EventRow::new(merchant_id, news, now, now)])?)
}

/// The events of a merchant, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<EventId>,
) -> Result<Vec<Event>, StoreError> {
    let mut query = events::table
        .filter(events::merchant_id.eq(Id(merchant_id)))
        .select(EventRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(events::event_id.lt(Id(after)));
    }
    let rows = query.order(events::event_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(Event::try_from).collect()
}

/// Returns a merchant's event.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    event_id: EventId,
) -> Result<Option<Event>, StoreError> {
    let row = events::table
        .filter(events::event_id.eq(Id(event_id)))
        .filter(events::merchant_id.eq(Id(merchant_id)))
        .select(EventRow::as_select())
        .first(conn)
        .optional()?;
    row.map(Event::try_from).transpose()
}

/// Whether an event waits for its webhooks to be found.
pub(crate) fn any_waits(conn: &mut Conn) -> Result<bool, StoreError> {
    let waiting = events::table.filter(events::dispatched_at.is_null());
    Ok(diesel::select(diesel::dsl::exists(waiting)).get_result(conn)?)
}

/// The merchants that have waiting events.
pub(crate) fn merchants_waiting(conn: &mut Conn) -> Result<Vec<Id<MerchantId>>, StoreError> {
    let waiting = events::table.filter(events::dispatched_at.is_null());
    Ok(waiting.select(events::merchant_id).distinct().order(events::merchant_id).load(conn)?)
}

/// The waiting events of a merchant with their numbers, in the order of writing.
///
/// For one resource it is the order in which they happened, because they are written under its lock.
pub(crate) fn waiting(
    conn: &mut Conn,
    merchant_id: Id<MerchantId>,
    most: i64,
) -> Result<Vec<(i64, EventRow)>, StoreError> {
    let rows = events::table
        .filter(events::merchant_id.eq(merchant_id))
        .filter(events::dispatched_at.is_null())
        .order(events::number)
        .limit(most)
        .select((events::number, EventRow::as_select()));
    Ok(rows.load(conn)?)
}

/// The number of a merchant's last waiting event, or 0. Later events have greater numbers.
pub(crate) fn last_waiting(conn: &mut Conn, merchant_id: MerchantId) -> Result<i64, StoreError> {
    let waiting = events::table
        .filter(events::merchant_id.eq(Id(merchant_id)))
        .filter(events::dispatched_at.is_null());
    let last: Option<i64> = waiting.select(diesel::dsl::max(events::number)).get_result(conn)?;
    Ok(last.unwrap_or(0))
}

/// Marks events as dispatched: their webhooks were found.
pub(crate) fn mark_dispatched(
    conn: &mut Conn,
    numbers: &[i64],
    now: Timestamp,
) -> Result<(), StoreError> {
    let waiting = events::table.filter(events::dispatched_at.is_null());
    diesel::update(waiting.filter(events::number.eq_any(numbers)))
        .set(events::dispatched_at.eq(now.unix_micros()))
        .execute(conn)?;
    Ok(())
}

/// The events among the oldest thousand that were dispatched before an instant.
pub(crate) fn dispatched_before(
    conn: &mut Conn,
    before: Timestamp,
) -> Result<Vec<Id<EventId>>, StoreError> {
    const AT_ONCE: i64 = 1_000;
    let oldest: Vec<(Id<EventId>, Option<i64>)> = events::table
        .order(events::number)
        .limit(AT_ONCE)
        .select((events::event_id, events::dispatched_at))
        .load(conn)?;
    let is_old = |at: &Option<i64>| at.is_some_and(|at| at < before.unix_micros());
    Ok(oldest.into_iter().filter(|(_, at)| is_old(at)).map(|(id, _)| id).collect())
}
