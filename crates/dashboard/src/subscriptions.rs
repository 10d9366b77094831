//! The pages of subscriptions, with the rest of their credit.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{
    MerchantId, PendingKind, Rollover, SubscriptionId, SubscriptionState, SubscriptionStatus,
};
use tollgate_pricing::Amount;
use tollgate_store::subscriptions::{self, RenewalScope, SubscriptionFilter};
use tollgate_store::{Conn, StoreError, connections};

use crate::answer::{PageError, respond};
use crate::clock::PageClock;
use crate::page::{DashboardSection, Fact, Pager, Shell, name_of, page_of};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use tollgate_api::operations::subscription_not_found as not_found;
use tollgate_api::{ApiError, App};

/// The rest of a credit, for a bar.
pub(crate) struct CreditBar {
    pub(crate) name: &'static str,
    pub(crate) thousandths: i128,
    pub(crate) held: i128,
    pub(crate) left: String,
    pub(crate) then: &'static str,
}

impl CreditBar {
    /// The credit of the cycle, and that of bundles, if any was bought.
    pub(crate) fn of(state: &SubscriptionState, at_start: Amount) -> Vec<Self> {
        let units = |amount: Amount| i128::from(amount.units());
        let left = units(state.cycle_remaining);
        let whole = left.max(units(at_start));
        let then = |rollover| match rollover {
            Rollover::Full => "what is left carries over",
            Rollover::None => "what is left expires with the cycle",
        };
        let mut credits = vec![Self {
            name: "Included",
            thousandths: text::thousandths(left, whole),
            held: 0,
            left: format!("{} of {} left", Figure::of(left).shown, Figure::of(whole).shown),
            then: then(state.cycle_rollover),
        }];
        if !state.bundle_remaining.is_zero() {
            credits.push(Self {
                name: "Bought",
                thousandths: 1_000,
                held: 0,
                left: format!("{} left", Figure::of(units(state.bundle_remaining)).shown),
                then: then(state.bundle_rollover),
            });
        }
        credits
    }
}

struct SubscriptionItem {
    id: String,
    plan: String,
    connection: String,
    connection_href: String,
    is_active: bool,
    cycle_ends: String,
    pending: String,
    credits: Vec<CreditBar>,
}

impl SubscriptionItem {
    fn of(
        SubscriptionDetails { state, connection, at_start }: &SubscriptionDetails,
        clock: &PageClock,
    ) -> Self {
        let is_active = state.status == SubscriptionStatus::Active;
        Self {
            id: state.subscription_id.to_string(),
            plan: state.plan.name.clone(),
            connection: connection.clone(),
            connection_href: format!("/dashboard/customers/{}", state.connection_id),
            is_active,
            cycle_ends: match state.cancelled_at {
                Some(at) => format!("ended {}", clock.day(at)),
                None => clock.day(state.cycle_end_at),
            },
            pending: state.pending_change.as_ref().map_or_else(
                String::new,
                |pending| match pending.kind {
                    PendingKind::Cancellation => "ends then".to_owned(),
                    _ => format!("then {}", pending.plan.name),
                },
            ),
            credits: if is_active { CreditBar::of(state, *at_start) } else { Vec::new() },
        }
    }
}

#[derive(Template)]
#[template(path = "subscriptions.html")]
struct SubscriptionsPage {
    shell: Shell,
    subscriptions: Vec<SubscriptionItem>,
    pager: Pager,
}

/// A subscription, the name of its connection, and the credit its cycle began with.
struct SubscriptionDetails {
    state: SubscriptionState,
    connection: String,
    at_start: Amount,
}

impl SubscriptionDetails {
    fn of(
        conn: &mut Conn,
        merchant_id: MerchantId,
        state: SubscriptionState,
    ) -> Result<Self, StoreError> {
        let found = connections::find(conn, merchant_id, state.connection_id)?;
        let connection = found.as_ref().map_or_else(|| state.connection_id.to_string(), name_of);
        let at_start = subscriptions::cycle_credit_at_start(conn, &state)?;
        Ok(Self { state, connection, at_start })
    }
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of::<SubscriptionId>(&http), visitor.merchant_id());
    app.store.renew(RenewalScope::Merchant(merchant_id)).await?;
    let read = move |conn: &mut Conn| {
        let filter = SubscriptionFilter::default();
        let mut shown = Vec::new();
        for state in subscriptions::list(conn, merchant_id, &filter, &page)? {
            shown.push(SubscriptionDetails::of(conn, merchant_id, state)?);
        }
        Ok::<_, StoreError>(shown)
    };
    let mut found = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.state.subscription_id.to_string());
    respond(&SubscriptionsPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, "Subscriptions"),
        subscriptions: found.iter().map(|one| SubscriptionItem::of(one, &visitor.clock)).collect(),
        pager,
    })
}

#[derive(Template)]
#[template(path = "subscription.html")]
struct SubscriptionPage {
    shell: Shell,
    line: SubscriptionItem,
    facts: Vec<Fact>,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: SubscriptionId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    app.store.renew(RenewalScope::One(id)).await?;
    let read = move |conn: &mut Conn| {
        let state = subscriptions::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        Ok::<_, ApiError>(SubscriptionDetails::of(conn, merchant_id, state)?)
    };
    let shown = app.store.read(read).await?;
    let clock = &visitor.clock;
    let (line, state) = (SubscriptionItem::of(&shown, clock), shown.state);
    let mut facts = vec![
        Fact::new("Id", line.id.clone()),
        Fact::leading("Customer", line.connection.clone(), line.connection_href.clone()),
        Fact::new(
            "Costs",
            format!(
                "{} a {}",
                text::money(state.plan.period_amount),
                text::word(&state.billing_interval)
            ),
        ),
        Fact::new("Includes", text::money(state.plan.included_credit)),
        Fact::new("Since", clock.time(state.started_at)),
        Fact::new("Cycle began", clock.time(state.cycle_start_at)),
        Fact::new("Cycle ends", clock.time(state.cycle_end_at)),
    ];
    facts.extend(state.cancelled_at.map(|at| Fact::new("Ended", clock.time(at))));
    if !line.pending.is_empty() {
        facts.push(Fact::new("Pending", line.pending.clone()));
    }
    respond(&SubscriptionPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, line.plan.clone()),
        line,
        facts,
    })
}
