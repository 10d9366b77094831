//! The log of events, and the page of one with what webhooks get.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{Event, EventId};
use tollgate_store::{Conn, RecordArchive, StoreError, events};

use crate::answer::{PageError, respond};
use crate::clock::{Moment, PageClock};
use crate::page::{DashboardSection, Pager, Shell, page_of};
use crate::session::SessionUser;
use tollgate_api::operations::{EventResources, event_text};
use tollgate_api::{ApiError, App, ErrorCode};

struct EventItem {
    id: String,
    kind: &'static str,
    created_at: Moment,
}

impl EventItem {
    fn of(event: &Event, clock: &PageClock) -> Self {
        Self {
            id: event.event_id.to_string(),
            kind: event.payload.kind().as_str(),
            created_at: clock.moment(event.created_at),
        }
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    shell: Shell,
    events: Vec<EventItem>,
    pager: Pager,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of::<EventId>(&http), visitor.merchant_id());
    let mut found = app.store.read(move |conn| events::list(conn, merchant_id, &page)).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.event_id.to_string());
    respond(&EventsPage {
        shell: Shell::new(&visitor, DashboardSection::Developers, "Events"),
        events: found.iter().map(|one| EventItem::of(one, &visitor.clock)).collect(),
        pager,
    })
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    shell: Shell,
    id: String,
    at: String,
    /// The message without its number; empty if the record that it needs is gone.
    message: String,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let not_found =
        || PageError::from(ApiError::new(ErrorCode::RouteNotFound, "There is no such event."));
    let id: EventId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        let Some(event) = events::find(conn, merchant_id, id)? else { return Ok(None) };
        let resources = EventResources::read(conn, archive, &event)?;
        Ok::<_, StoreError>(Some((event, resources)))
    };
    let (event, resources) = app.store.read_records(read).await?.ok_or_else(not_found)?;
    let message = event_text(&event, &resources, app.settings.shape);
    respond(&EventPage {
        shell: Shell::new(&visitor, DashboardSection::Developers, event.payload.kind().as_str()),
        id: event.event_id.to_string(),
        at: visitor.clock.time(event.created_at),
        message: message.unwrap_or_default(),
    })
}
