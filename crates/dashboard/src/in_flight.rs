//! The page of the calls in flight, and of what they hold until they are settled.

use actix_web::{HttpResponse, web};
use askama::Template;
use tollgate_domain::PendingRecord;
use tollgate_pricing::Amount;
use tollgate_store::requests;

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Shell};
use crate::session::SessionUser;
use crate::text;
use tollgate_api::App;

#[derive(Template)]
#[template(path = "in_flight.html")]
struct InFlightPage {
    shell: Shell,
    calls: Vec<InFlightItem>,
    count: usize,
    held: String,
    is_cut: bool,
}

struct InFlightItem {
    request_id: String,
    since: String,
    took: String,
    model: String,
    on_balance: String,
    on_credit: String,
    on_merchant: String,
    on_spend_key: String,
    held: String,
}

/// The most calls that are shown.
const SHOWN: usize = 200;

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let calls = app.store.read(move |conn| requests::in_flight(conn, merchant_id)).await?;
    let now = app.clock.now();
    let all = calls.iter().fold(Amount::ZERO, |all, call| all.saturating_add(held(call)));
    let shown = calls.iter().take(SHOWN).map(|call| {
        let micros = now.unix_micros().saturating_sub(call.created_at.unix_micros());
        InFlightItem {
            request_id: call.request_id.to_string(),
            since: visitor.clock.time(call.created_at),
            took: text::duration(micros.max(0) / 1_000),
            model: crate::requests::model(
                &call.forwarded.provider,
                call.forwarded.model.as_deref(),
            ),
            on_balance: text::money(call.wallet_hold),
            on_credit: text::money(on_credit(call)),
            on_merchant: text::money(call.merchant_hold),
            on_spend_key: text::money(call.spend_hold),
            held: text::money(held(call)),
        }
    });
    respond(&InFlightPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "In flight"),
        calls: shown.collect(),
        count: calls.len(),
        held: text::money(all),
        is_cut: calls.len() > SHOWN,
    })
}

fn on_credit(call: &PendingRecord) -> Amount {
    call.credit_hold.map_or(Amount::ZERO, |hold| hold.cycle.saturating_add(hold.bundle))
}

/// The money that a call holds on all wallets together. Its hold on a spend key is the same money.
pub(crate) fn held(call: &PendingRecord) -> Amount {
    call.wallet_hold.saturating_add(on_credit(call)).saturating_add(call.merchant_hold)
}
