//! The page of a refused call: why it was refused, and what helps.

use actix_web::{HttpResponse, web};
use askama::Template;
use tollgate_domain::{LimitQuantity, RefusalId, RefusalRecord};
use tollgate_store::{Conn, RecordArchive, StoreError, connections, refusals, spend_keys};

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Fact, Shell};
use crate::session::SessionUser;
use crate::text;
use tollgate_api::{ApiError, App, ErrorCode};

#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage {
    shell: Shell,
    code: String,
    message: String,
    /// The remedy, and the page for it; empty where no page has one.
    advice: &'static str,
    advice_href: String,
    facts: Vec<Fact>,
    metadata: Vec<(String, String)>,
}

/// The remedy for a refusal with this code, and the page where it is done.
fn advice(refusal: &RefusalRecord) -> (&'static str, String) {
    let key = |part: &str| {
        let id = refusal.spend_key_id;
        id.map_or_else(String::new, |id| format!("/dashboard/spend-keys/{id}{part}"))
    };
    let runs = || {
        let id = refusal.spend_key_id.map(|id| format!("?spend_key_id={id}"));
        format!("/dashboard/runs{}", id.unwrap_or_default())
    };
    let customer = || {
        let id = refusal.connection_id;
        id.map_or_else(
            || "/dashboard/wallets".to_owned(),
            |id| format!("/dashboard/customers/{id}#wallet"),
        )
    };
    match refusal.code.as_str() {
        "spend_limit_reached" | "request_limit_reached" | "rate_limited" => {
            ("Wait until the limit resets, or raise it.", key("#change"))
        }
        "run_limit_reached" => {
            ("Look at what the run has done. A new run has the whole limit again.", runs())
        }
        "wallet_balance_insufficient" => {
            ("Add credit to the wallet, or raise its overdraft limit.", customer())
        }
        "spend_key_model_not_allowed" => ("Let the key use the model.", key("#change")),
        "spend_key_paused" => ("Resume the key.", key("")),
        "spend_key_expired" => ("Make a new key, or move its expiry.", key("")),
        "connection_disabled" => {
            ("Resume the customer, or make a new one if it was deleted.", customer())
        }
        "model_price_unknown" => (
            "The operator adds a price for the model, or the client names another one.",
            String::new(),
        ),
        _ => ("", String::new()),
    }
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
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        let Some(refusal) = refusals::find(conn, archive, merchant_id, id)? else {
            return Ok(None);
        };
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
    let (refusal, key, customer) = app.store.read_records(read).await?.ok_or_else(not_found)?;
    let call = &refusal.call;
    let mut facts = vec![Fact::new("Id", refusal.refusal_id.to_string())];
    facts.push(Fact::new("Time", visitor.clock.time(refusal.first_at)));
    if refusal.count > 1 {
        facts.push(Fact::new("Calls", text::count(refusal.count.into())));
        facts.push(Fact::new("Last of them", visitor.clock.time(refusal.last_at)));
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
    facts.extend(
        call.limit
            .budget_id
            .map(|id| Fact::leading("Budget", id.to_string(), format!("/dashboard/budgets/{id}"))),
    );
    facts.extend(refusal.run_id.as_ref().map(|id| Fact::new("Run", id.to_string())));
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
    facts.extend(call.limit.resets_at.map(|at| Fact::new("Resets", visitor.clock.time(at))));
    let (advice, advice_href) = advice(&refusal);
    let pairs = call.metadata.iter().map(|(key, value)| (key.clone(), value.clone()));
    respond(&RefusalPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Refused call"),
        code: refusal.code.clone(),
        message: call.message.clone(),
        advice,
        advice_href,
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
