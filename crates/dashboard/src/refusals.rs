//! Refused calls: the list, and the page of each with its reason.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{LimitQuantity, RefusalId, RefusalRecord, SpendKeyId};
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::{Conn, StoreError, connections, spend_keys};

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Fact, Pager, Shell, page_of};
use crate::session::SessionUser;
use crate::text;
use tollgate_api::{ApiError, App, ErrorCode, Query};

#[derive(Template)]
#[template(path = "refusals.html")]
struct RefusalsPage {
    shell: Shell,
    refusals: Vec<RefusalItem>,
    codes: Vec<&'static str>,
    code: String,
    spend_key: String,
    pager: Pager,
}

/// A row of the list.
struct RefusalItem {
    refusal_id: String,
    at: String,
    code: String,
    model: String,
    count: String,
    message: String,
}

impl RefusalItem {
    fn of(refusal: &RefusalRecord) -> Self {
        Self {
            refusal_id: refusal.refusal_id.to_string(),
            at: text::time(refusal.first_at),
            code: refusal.code.clone(),
            model: refusal.model.clone().unwrap_or_default(),
            count: text::count(refusal.count.into()),
            message: refusal.call.message.clone(),
        }
    }
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    let code = query.get("code").filter(|code| !code.is_empty()).map(str::to_owned);
    let spend_key: Option<SpendKeyId> = query.get("spend_key_id").and_then(|id| id.parse().ok());
    let filter =
        RefusalFilter { code: code.clone(), spend_key_id: spend_key, ..RefusalFilter::default() };
    let page = page_of::<RefusalId>(&http);
    let merchant_id = visitor.merchant_id();
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn| refusals::list(conn, merchant_id, &filter, &page);
    let mut found = app.store.read(read).await?;
    let page = page_of::<RefusalId>(&http);
    let pager = Pager::cut(&http, &page, &mut found, |one| one.refusal_id.to_string());
    let mut codes: Vec<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    codes.sort_unstable();
    respond(&RefusalsPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Refused calls"),
        refusals: found.iter().map(RefusalItem::of).collect(),
        codes,
        code: code.unwrap_or_default(),
        spend_key: spend_key.map(|id| id.to_string()).unwrap_or_default(),
        pager,
    })
}

#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage {
    shell: Shell,
    code: String,
    message: String,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let not_found =
        || PageError::from(ApiError::new(ErrorCode::RefusalNotFound, "There is no such refusal."));
    let id: RefusalId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn| {
        let Some(refusal) = refusals::find(conn, merchant_id, id)? else { return Ok(None) };
        let key = match refusal.spend_key_id {
            Some(id) => spend_keys::find(conn, merchant_id, id)?.map(|key| key.name),
            None => None,
        };
        let customer = match refusal.connection_id {
            Some(id) => connections::find(conn, merchant_id, id)?.and_then(|one| one.name),
            None => None,
        };
        Ok::<_, StoreError>(Some((refusal, key, customer)))
    };
    let (refusal, key, customer) = app.store.read(read).await?.ok_or_else(not_found)?;
    let call = &refusal.call;
    let mut facts = vec![Fact::new("Id", refusal.refusal_id.to_string())];
    facts.push(Fact::new("Time", text::time(refusal.first_at)));
    if refusal.count > 1 {
        facts.push(Fact::new("Calls", text::count(refusal.count.into())));
        facts.push(Fact::new("Last of them", text::time(refusal.last_at)));
    }
    if let Some(id) = refusal.spend_key_id {
        let name = key.unwrap_or_else(|| id.to_string());
        facts.push(Fact::leading("Spend key", name, format!("/dashboard/spend-keys/{id}")));
    }
    facts.extend(refusal.secret_key_id.map(|id| Fact::new("Secret key", id.to_string())));
    if let Some(id) = refusal.connection_id {
        let name = customer.unwrap_or_else(|| id.to_string());
        facts.push(Fact::leading("Customer", name, format!("/dashboard/customers/{id}")));
    }
    facts.extend(call.provider.clone().map(|name| Fact::new("Provider", name)));
    facts.extend(refusal.model.clone().map(|name| Fact::new("Model", name)));
    facts.extend(call.endpoint.clone().map(|endpoint| Fact::new("Endpoint", endpoint)));
    let limit = [
        ("Limit", call.limit.limit),
        ("Used", call.limit.used),
        ("Held by calls in flight", call.limit.held),
        ("Would have held", call.limit.would_hold),
    ];
    let limit = limit.into_iter().filter_map(|(name, quantity)| Some((name, quantity?)));
    facts.extend(limit.map(|(name, quantity)| Fact::new(name, shown(quantity))));
    facts.extend(call.limit.resets_at.map(|at| Fact::new("Resets", text::time(at))));
    let pairs = call.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&RefusalPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Refused call"),
        code: refusal.code.clone(),
        message: call.message.clone(),
        facts,
        metadata: pairs.collect(),
    })
}

fn shown(quantity: LimitQuantity) -> String {
    match quantity {
        LimitQuantity::Calls(count) => text::count(count.into()),
        LimitQuantity::Money(amount) => text::money(amount),
    }
}
