//! The page of a WebSocket: its responses, each of which is a request.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_api::{ApiError, App, ErrorCode};
use tollgate_domain::{RequestId, RequestRecord, SocketId};
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, ListFilter};
use tollgate_store::spend_keys;
use tollgate_store::{Conn, RecordArchive};

use crate::answer::{PageError, respond};
use crate::clock::Moment;
use crate::page::{DashboardSection, Fact, Pager, Shell, page_of};
use crate::requests::RequestItem;
use crate::session::SessionUser;
use crate::text::{self, Figure};

#[derive(Template)]
#[template(path = "socket.html")]
struct SocketPage {
    shell: Shell,
    facts: Vec<Fact>,
    responses: String,
    charged: Figure,
    first: Moment,
    last: Moment,
    /// Whether a sum is of this page only.
    is_cut: bool,
    requests: Vec<RequestItem>,
    pager: Pager,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let not_found = || {
        let message = "There is no such WebSocket with a response.";
        PageError::from(ApiError::new(ErrorCode::RouteNotFound, message))
    };
    let socket_id: SocketId = id.parse().map_err(|_| not_found())?;
    let (page, merchant_id) = (page_of::<RequestId>(&http), visitor.merchant_id());
    let filter = ListFilter { socket_id: Some(socket_id), ..ListFilter::default() };
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        let found = requests::list(conn, archive, merchant_id, &filter, &page)?.records;
        // All responses of a socket have its key, but one that the merchant pays.
        let key_id = found.iter().find_map(|record| record.spend_key_id);
        let key = key_id.map(|id| spend_keys::find(conn, merchant_id, id)).transpose()?.flatten();
        Ok::<_, ApiError>((found, key_id, key))
    };
    let (mut found, key_id, key) = app.store.read_records(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |record| record.request_id.to_string());
    let (Some(newest), Some(oldest)) = (found.first(), found.last()) else {
        return Err(not_found());
    };
    let clock = &visitor.clock;
    let cost = |record: &RequestRecord| record.quote.total_request_cost;
    let charged = found.iter().fold(Amount::ZERO, |sum, one| sum.saturating_add(cost(one)));
    let count = i128::try_from(found.len()).unwrap_or(i128::MAX);
    let mut facts = vec![
        Fact::new("Id", socket_id.to_string()),
        Fact::new("Endpoint", newest.endpoint.clone()),
    ];
    facts.extend(key_id.map(|id| Fact::of_spend_key(id, key)));
    respond(&SocketPage {
        facts,
        responses: text::count(count),
        charged: Figure::of(charged.units().into()),
        first: clock.moment(oldest.created_at),
        last: clock.moment(newest.created_at),
        is_cut: pager.has_newer || !pager.older.is_empty(),
        requests: found.iter().map(|record| RequestItem::of(record, clock)).collect(),
        shell: Shell::new(&visitor, DashboardSection::Requests, "WebSocket"),
        pager,
    })
}
