//! The pages of connections, which are a merchant's customers.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{Connection, ConnectionId, ConnectionStatus, SubscriptionState};
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, RequestFilter};
use tollgate_store::subscriptions::{self, RenewalScope};
use tollgate_store::{Conn, Page, connections, wallets};

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Fact, Pager, Shell, page_of};
use crate::requests::RequestItem as RequestLine;
use crate::session::SessionUser;
use crate::subscriptions::CreditBar;
use crate::text;
use crate::wallets::WalletSummary;
use tollgate_api::operations::connection_not_found as not_found;
use tollgate_api::{ApiError, App};

#[derive(Template)]
#[template(path = "connections.html")]
struct ConnectionsPage {
    shell: Shell,
    connections: Vec<ConnectionItem>,
    pager: Pager,
}

struct ConnectionItem {
    id: String,
    name: String,
    reference_id: String,
    email: String,
    is_deleted: bool,
    created_at: String,
}

impl ConnectionItem {
    fn of(connection: &Connection) -> Self {
        let id = connection.connection_id.to_string();
        Self {
            name: connection.name.clone().unwrap_or_else(|| id.clone()),
            id,
            reference_id: connection.reference_id.clone().unwrap_or_default(),
            email: connection.email.clone().unwrap_or_default(),
            is_deleted: connection.status == ConnectionStatus::Deleted,
            created_at: text::day(connection.created_at),
        }
    }
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of(&http), visitor.merchant_id());
    let read = move |conn: &mut Conn| connections::list(conn, merchant_id, &page);
    let mut found = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.connection_id.to_string());
    respond(&ConnectionsPage {
        shell: Shell::new(&visitor, DashboardSection::Connections, "Connections"),
        connections: found.iter().map(ConnectionItem::of).collect(),
        pager,
    })
}

#[derive(Template)]
#[template(path = "connection.html")]
struct ConnectionPage {
    shell: Shell,
    line: ConnectionItem,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
    wallet: Option<WalletSummary>,
    subscription: Option<SubscriptionSummary>,
    requests: Vec<RequestLine>,
}

/// The subscription of a connection.
struct SubscriptionSummary {
    href: String,
    plan: String,
    credits: Vec<CreditBar>,
}

impl SubscriptionSummary {
    fn of((state, at_start): &(SubscriptionState, Amount)) -> Self {
        Self {
            href: format!("/dashboard/subscriptions/{}", state.subscription_id),
            plan: state.plan.name.clone(),
            credits: CreditBar::of(state, *at_start),
        }
    }
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: ConnectionId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    app.store.renew(RenewalScope::Connection(id)).await?;
    let read = move |conn: &mut Conn| {
        let connection = connections::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let wallet = wallets::find(conn, merchant_id, connection.wallet_id)?;
        let subscription = match subscriptions::find_active(conn, merchant_id, id)? {
            Some(state) => {
                let at_start = subscriptions::cycle_credit_at_start(conn, &state)?;
                Some((state, at_start))
            }
            None => None,
        };
        let filter = RequestFilter { connection_id: Some(id), ..RequestFilter::default() };
        let newest = Page { after: None, limit: 10 };
        let requests = requests::list(conn, merchant_id, &filter.into(), &newest)?.records;
        Ok::<_, ApiError>((connection, wallet, subscription, requests))
    };
    let (connection, wallet, subscription, requests) = app.store.read(read).await?;
    let line = ConnectionItem::of(&connection);
    let mut facts = vec![Fact::new("Id", line.id.clone())];
    facts.extend(connection.reference_id.clone().map(|id| Fact::new("Your id", id)));
    facts.extend(connection.email.clone().map(|email| Fact::new("Email", email)));
    facts.push(Fact::new("Made", text::time(connection.created_at)));
    let pairs = connection.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&ConnectionPage {
        shell: Shell::new(&visitor, DashboardSection::Connections, line.name.clone()),
        facts,
        metadata: pairs.collect(),
        wallet: wallet.map(|wallet| WalletSummary::of(&wallet, line.name.clone())),
        line,
        subscription: subscription.as_ref().map(SubscriptionSummary::of),
        requests: requests.iter().map(RequestLine::of).collect(),
    })
}
