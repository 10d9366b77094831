//! The pages of runs: the list, and a run call by call.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{
    Cycle, MerchantId, RefusalRecord, RequestRecord, Run, RunAccountId, SpendLimit, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::requests::{self, ListFilter, RequestFilter};
use tollgate_store::runs::{self, RunFilter};
use tollgate_store::{Conn, Page, RecordArchive, StoreError, connections, spend_keys};

use crate::answer::{PageError, respond};
use crate::calls::{CallItem, ListedCall, Names};
use crate::clock::{Moment, PageClock};
use crate::limits::LimitBar;
use crate::page::{DashboardSection, Pager, Shell, name_of, page_of};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use tollgate_api::{ApiError, App, ErrorCode, Query};

/// A run with the names that its pages show.
struct NamedRun {
    run: Run,
    /// The name of its spend key, else of its customer; empty for the merchant's own calls.
    owner: String,
    /// The path of the page of its owner; empty where there is none.
    owner_href: String,
    /// The limit of its spend key for each run.
    key_limit: Option<Amount>,
}

impl NamedRun {
    fn of(conn: &mut Conn, merchant_id: MerchantId, run: Run) -> Result<Self, StoreError> {
        let (mut owner, mut owner_href, mut key_limit) = (String::new(), String::new(), None);
        if let Some(id) = run.spend_key_id {
            owner = format!("{id} (deleted)");
            if let Some(key) = spend_keys::find(conn, merchant_id, id)? {
                (owner, key_limit) = (key.name, key.rules.run_limit);
                owner_href = format!("/dashboard/spend-keys/{id}");
            }
        } else if let Some(id) = run.connection_id {
            owner = format!("{id} (deleted)");
            if let Some(customer) = connections::find(conn, merchant_id, id)? {
                owner = name_of(&customer);
                owner_href = format!("/dashboard/customers/{id}");
            }
        }
        Ok(Self { run, owner, owner_href, key_limit })
    }

    fn name(&self) -> String {
        match (self.run.run_id.is_of_the_day(), self.run.first_at) {
            (true, Some(first_at)) => format!("Without a run, {}", first_at.date()),
            _ => self.run.run_id.to_string(),
        }
    }

    fn bars(&self, clock: &PageClock) -> Vec<LimitBar> {
        let limit = self.run.limit_with(self.key_limit);
        // Its counters are those in total, also of a run of a day.
        let limit = limit.map(|amount| SpendLimit { amount, cycle: Cycle::Total });
        LimitBar::all((limit, None), &self.run.counters, Run::calendars(), clock)
    }
}

/// A row of the list.
struct RunItem {
    id: String,
    name: String,
    owner: String,
    bars: Vec<LimitBar>,
    calls: String,
    spend: Figure,
    first: Moment,
    last: Moment,
}

impl RunItem {
    fn of(named: &NamedRun, clock: &PageClock) -> Self {
        let run = &named.run;
        Self {
            id: run.account_id.to_string(),
            name: named.name(),
            owner: named.owner.clone(),
            bars: named.bars(clock),
            calls: text::count(run.counters.requests.total.into()),
            spend: Figure::in_column(run.counters.spent.total.units().into()),
            first: clock.moment_or(run.first_at, ""),
            last: clock.moment_or(run.counters.last_used_at, ""),
        }
    }
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    shell: Shell,
    runs: Vec<RunItem>,
    /// The key whose runs these are; empty for the runs of all keys.
    key: String,
    key_href: String,
    pager: Pager,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of::<RunAccountId>(&http), visitor.merchant_id());
    let key_id = Query::of(&http).get("spend_key_id").and_then(|id| id.parse().ok());
    let filter = RunFilter { spend_key_id: key_id, ..RunFilter::default() };
    let read = move |conn: &mut Conn| {
        let found = runs::list(conn, merchant_id, filter, &page)?.into_iter();
        let found = found.map(|run| NamedRun::of(conn, merchant_id, run));
        let found = found.collect::<Result<Vec<_>, StoreError>>()?;
        let key = match filter.spend_key_id {
            Some(id) => spend_keys::find(conn, merchant_id, id)?.map(|key| key.name),
            None => None,
        };
        Ok::<_, StoreError>((found, key))
    };
    let (mut found, key) = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |one| one.run.account_id.to_string());
    respond(&RunsPage {
        shell: Shell::new(&visitor, DashboardSection::Keys, "Runs"),
        runs: found.iter().map(|one| RunItem::of(one, &visitor.clock)).collect(),
        key_href: key_id.map_or_else(String::new, |id| format!("/dashboard/spend-keys/{id}")),
        key: key.unwrap_or_default(),
        pager,
    })
}

/// A call of a run.
struct RunCall {
    /// The time in full: the calls of a run are seconds apart.
    at: String,
    call: CallItem,
    /// The cost of the run up to and with this call; empty for a call that was refused.
    sum: Figure,
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    shell: Shell,
    name: String,
    owner: String,
    owner_href: String,
    bars: Vec<LimitBar>,
    calls: String,
    spend: Figure,
    held: Figure,
    first: Moment,
    last: Moment,
    /// Oldest first.
    lines: Vec<RunCall>,
    is_cut: bool,
}

/// The most calls, and the most refusals, that are shown.
const SHOWN: u32 = 500;
const SHOWN_CALLS: usize = 500;
/// The most pages of calls that are read for them.
const MOST_PAGES: usize = 20;

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let not_found = || {
        let message = "There is no such run. A run is forgotten 30 days after its last call.";
        PageError::from(ApiError::new(ErrorCode::RouteNotFound, message))
    };
    let id: RunAccountId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn| {
        let Some(run) = runs::find(conn, merchant_id, id)? else { return Ok(None) };
        let calls = calls(conn, &run)?;
        let refused = refused_calls(conn, &run)?;
        Ok::<_, StoreError>(Some((NamedRun::of(conn, merchant_id, run)?, calls, refused)))
    };
    let found = app.store.read_snapshot(read).await?;
    let (named, (calls, is_cut), refused) = found.ok_or_else(not_found)?;
    let (clock, run) = (&visitor.clock, &named.run);
    let counters = &run.counters;
    respond(&RunPage {
        shell: Shell::new(&visitor, DashboardSection::Keys, "Run"),
        name: named.name(),
        owner: named.owner.clone(),
        owner_href: named.owner_href.clone(),
        bars: named.bars(clock),
        calls: text::count(counters.requests.total.into()),
        spend: Figure::of(counters.spent.total.units().into()),
        held: Figure::of(counters.held.total.units().into()),
        first: clock.moment_or(run.first_at, ""),
        last: clock.moment_or(counters.last_used_at, ""),
        lines: lines(run, &calls, &refused, clock),
        is_cut,
    })
}

/// The newest calls of a run that have a record, oldest first, and whether older ones are left out.
fn calls(conn: &mut Conn, run: &Run) -> Result<(Vec<RequestRecord>, bool), StoreError> {
    let filter = ListFilter {
        calls: RequestFilter {
            spend_key_id: run.spend_key_id,
            connection_id: run.connection_id,
            ..RequestFilter::default()
        },
        run_id: Some(run.run_id.clone()),
        start: run.first_at,
        ..ListFilter::default()
    };
    let mut calls = Vec::new();
    let mut page = Page { after: None, limit: SHOWN };
    // Runs of other owners, and of other days, may have the same id.
    for _ in 0..MOST_PAGES {
        let found =
            requests::list(conn, &RecordArchive::left_out(), run.merchant_id, &filter, &page)?;
        let is_of_run =
            |record: &RequestRecord| record.run().is_some_and(|of| of.account_id == run.account_id);
        calls.extend(found.records.into_iter().filter(is_of_run));
        page.after = found.next;
        if page.after.is_none() || calls.len() >= SHOWN_CALLS {
            break;
        }
    }
    let is_cut = page.after.is_some() || calls.len() > SHOWN_CALLS;
    calls.truncate(SHOWN_CALLS);
    calls.reverse();
    Ok((calls, is_cut))
}

/// The newest refused calls of a run, oldest first. Of a run of a day, these are the calls that its limit refused.
fn refused_calls(conn: &mut Conn, run: &Run) -> Result<Vec<RefusalRecord>, StoreError> {
    let filter = RefusalFilter {
        spend_key_id: run.spend_key_id,
        connection_id: run.connection_id,
        run_id: Some(run.run_id.clone()),
        ..RefusalFilter::default()
    };
    let page = Page { after: None, limit: SHOWN };
    let mut refused =
        refusals::list(conn, &RecordArchive::left_out(), run.merchant_id, &filter, &page)?;
    let day = run.first_at.map(Timestamp::days_since_1970);
    let is_of_run = |refusal: &RefusalRecord| {
        refusal.spend_key_id == run.spend_key_id
            && (run.spend_key_id.is_some() || refusal.connection_id == run.connection_id)
            && (!run.run_id.is_of_the_day() || day == Some(refusal.first_at.days_since_1970()))
    };
    refused.retain(is_of_run);
    refused.reverse();
    Ok(refused)
}

/// The calls in the order of time, with the sum of their cost.
fn lines(
    run: &Run,
    calls: &[RequestRecord],
    refused: &[RefusalRecord],
    clock: &PageClock,
) -> Vec<RunCall> {
    let cost = |record: &RequestRecord| record.quote.total_request_cost;
    let shown = calls.iter().fold(Amount::ZERO, |sum, call| sum.saturating_add(cost(call)));
    // What calls that are left out have cost.
    let mut sum = run.counters.spent.total.saturating_sub(shown);
    let mut lines: Vec<_> = calls
        .iter()
        .map(|record| {
            sum = sum.saturating_add(cost(record));
            let line = (ListedCall::Sent(Box::new(record.clone())), Some(sum));
            (record.created_at, line)
        })
        .collect();
    lines.extend(
        refused.iter().map(|refusal| {
            (refusal.first_at, (ListedCall::Refused(Box::new(refusal.clone())), None))
        }),
    );
    lines.sort_by_key(|(at, _)| *at);
    let figure = |sum: Amount| Figure::in_column(sum.units().into());
    let none = || Figure { shown: String::new(), exact: String::new() };
    let lines = lines.into_iter().map(|(at, (call, sum))| RunCall {
        at: clock.time(at),
        call: CallItem::of(&call, &Names::new(), clock),
        sum: sum.map_or_else(none, figure),
    });
    lines.collect()
}
