//! Events: written in the transaction that causes them.

use diesel::prelude::*;
use tollgate_domain::{Event, EventId, MerchantId, News, Timestamp};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::page::Page;
use crate::rows::{from_json, parsed, time, to_json};
use crate::schema::events;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = events)]
pub(crate) struct EventRow {
    event_id: String,
    merchant_id: String,
    kind: String,
    news: String,
    created_at: i64,
}

impl EventRow {
    /// What took effect `at` an instant and is written down `now`: ids grow as they are written.
    pub(crate) fn new(merchant_id: MerchantId, news: &News, at: Timestamp, now: Timestamp) -> Self {
        Self {
            event_id: EventId::generate(now).to_string(),
            merchant_id: merchant_id.to_string(),
            kind: news.kind().to_owned(),
            news: to_json(news),
            created_at: at.unix_micros(),
        }
    }
}

impl TryFrom<EventRow> for Event {
    type Error = StoreError;

    fn try_from(row: EventRow) -> Result<Self, StoreError> {
        Ok(Self {
            event_id: parsed("events.event_id", &row.event_id)?,
            merchant_id: parsed("events.merchant_id", &row.merchant_id)?,
            news: from_json("events.news", &row.news)?,
            created_at: time(row.created_at),
        })
    }
}

/// What happened to a merchant, newest first.
///
/// # Errors
/// Those of the store.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<EventId>,
) -> Result<Vec<Event>, StoreError> {
    let mut query = events::table
        .filter(events::merchant_id.eq(merchant_id.to_string()))
        .select(EventRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(events::event_id.lt(after.to_string()));
    }
    let rows = query.order(events::event_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(Event::try_from).collect()
}
