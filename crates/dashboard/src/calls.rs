//! The list of calls: those that were sent, which have a record, and those that were refused, in the order of time.

use std::collections::HashMap;

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{
    BudgetId, ConnectionId, Interval, MerchantId, MeterId, RefusalId, RefusalRecord, RequestId,
    RequestRecord, RequestStatus, SpendKeyId, TimeSpan, TimeZone, Timestamp,
};
use tollgate_store::refusals::{self, RefusalFilter};
use tollgate_store::requests::{self, ListFilter, RequestFilter, RequestList};
use tollgate_store::usage;
use tollgate_store::{Conn, Page, RecordArchive, StoreError, connections, spend_keys};

use crate::answer::{PageError, go_to, respond};
use crate::budgets::all_budget_choices;
use crate::clock::{Moment, PageClock};
use crate::page::{
    DashboardSection, FormChoice, Shell, connection_choices, meter_choices, name_of,
};
use crate::requests::{Badge, RequestItem, model};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use crate::trend::sum_up;
use tollgate_api::{App, Query};

/// The rows of a page.
const ROWS: usize = 25;
/// The most spend keys that can be chosen.
const KEYS: u32 = 100;
/// The days that are counted without a date.
const DAYS: i64 = 30;

/// A state to choose: its name in the query, and its label.
const STATES: [(&str, &str); 5] = [
    ("", "All"),
    ("completed", "Completed"),
    ("error", "Failed"),
    ("refused", "Refused"),
    (WOULD_REFUSE, "Would be refused"),
];
/// The state of calls that a budget would have refused if it did not observe.
const WOULD_REFUSE: &str = "would_refuse";

/// The filters as they were filled in.
#[derive(Clone, Default)]
struct CallFilter {
    state: String,
    connection_id: String,
    spend_key_id: String,
    budget_id: String,
    meter_id: String,
    model: String,
    code: String,
    key: String,
    value: String,
    from: String,
    to: String,
}

/// The filters of both lists. `None` leaves a list out.
struct ListFilters {
    calls: RequestFilter,
    records: Option<ListFilter>,
    refusals: Option<RefusalFilter>,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl CallFilter {
    fn of(query: &Query) -> Self {
        let text = |name| query.get(name).unwrap_or_default().trim().to_owned();
        Self {
            state: text("status"),
            connection_id: text("connection_id"),
            spend_key_id: text("spend_key_id"),
            budget_id: text("budget_id"),
            meter_id: text("meter_id"),
            model: text("model"),
            code: text("code"),
            key: text("key"),
            value: text("value"),
            from: text("from"),
            to: text("to"),
        }
    }

    /// The filters with their names in the query, without empty ones.
    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let pairs = [
            ("status", &self.state),
            ("connection_id", &self.connection_id),
            ("spend_key_id", &self.spend_key_id),
            ("budget_id", &self.budget_id),
            ("meter_id", &self.meter_id),
            ("model", &self.model),
            ("code", &self.code),
            ("key", &self.key),
            ("value", &self.value),
            ("from", &self.from),
            ("to", &self.to),
        ];
        pairs
            .into_iter()
            .map(|(name, text)| (name, text.as_str()))
            .filter(|(_, text)| !text.is_empty())
    }

    fn is_any(&self) -> bool {
        self.pairs().next().is_some()
    }

    /// The link to the list with these filters and more pairs.
    fn link(&self, more: &[(&str, String)]) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs()).extend_pairs(more);
        format!("/dashboard/requests?{}", query.finish())
    }

    /// The filters of the lists. An invalid id or date is an error.
    fn filters(&self, zone: &TimeZone) -> Result<ListFilters, &'static str> {
        fn id<Id: std::str::FromStr>(text: &str) -> Result<Option<Id>, &'static str> {
            match text {
                "" => Ok(None),
                text => text.parse().map(Some).map_err(|_| "There is nothing with such an id."),
            }
        }
        let day = |text: &str| match text {
            "" => Ok(None),
            text => zone.day(text).map(Some).ok_or("A date must be such as 2026-11-25."),
        };
        if [&self.key, &self.value, &self.model].iter().any(|text| text.contains('\0')) {
            return Err("Metadata and models have no such characters.");
        }
        if self.key.is_empty() && !self.value.is_empty() {
            return Err("Name the metadata key that has this value.");
        }
        if !self.key.is_empty() && self.value.is_empty() {
            return Err("Say the value that the metadata key has.");
        }
        let pair = (!self.key.is_empty()).then(|| (self.key.clone(), self.value.clone()));
        let model = (!self.model.is_empty()).then(|| self.model.clone());
        let start = day(&self.from)?.map(|day| day.start);
        let end = day(&self.to)?.map(|day| day.end);
        if start.zip(end).is_some_and(|(start, end)| start >= end) {
            return Err("The first day must not be after the last one.");
        }
        let calls = RequestFilter {
            connection_id: id::<ConnectionId>(&self.connection_id)?,
            spend_key_id: id::<SpendKeyId>(&self.spend_key_id)?,
            budget_id: id::<BudgetId>(&self.budget_id)?,
            meter_id: id::<MeterId>(&self.meter_id)?,
            model: model.clone(),
            metadata: pair.into_iter().collect(),
            ..RequestFilter::default()
        };
        // Refused calls cannot be searched by budget, meter or metadata, and records have no code.
        let would_refuse = self.state == WOULD_REFUSE;
        let may_be_refused = !would_refuse
            && calls.budget_id.is_none()
            && calls.meter_id.is_none()
            && calls.metadata.is_empty();
        let status = match self.state.as_str() {
            "completed" => Some(RequestStatus::Completed),
            "error" => Some(RequestStatus::Error),
            _ => None,
        };
        let code = (!self.code.is_empty()).then(|| self.code.clone());
        let has_records = self.state != "refused" && code.is_none();
        let has_refusals = may_be_refused && status.is_none();
        Ok(ListFilters {
            records: has_records.then(|| ListFilter {
                status,
                would_refuse,
                start,
                end,
                ..calls.clone().into()
            }),
            refusals: has_refusals.then_some(RefusalFilter {
                start,
                end,
                code,
                spend_key_id: calls.spend_key_id,
                connection_id: calls.connection_id,
                model,
                run_id: None,
            }),
            calls,
            start,
            end,
        })
    }
}

/// The ids after which the two lists go on.
#[derive(Clone, Copy, Default)]
struct Cursor {
    record: Option<RequestId>,
    refusal: Option<RefusalId>,
}

impl Cursor {
    fn of(query: &Query) -> Self {
        Self {
            record: query.get("after").and_then(|id| id.parse().ok()),
            refusal: query.get("refused_after").and_then(|id| id.parse().ok()),
        }
    }
}

/// A call of either kind.
pub(crate) enum ListedCall {
    Sent(Box<RequestRecord>),
    Refused(Box<RefusalRecord>),
}

/// A page of both lists, and where the next page begins.
struct CallPage {
    calls: Vec<ListedCall>,
    next: Option<Cursor>,
}

/// Merges two lists, newest first, into a page.
fn merge(found: RequestList, refusals: Vec<RefusalRecord>, from: Cursor) -> CallPage {
    // Records that follow were not read yet, so refusals that are older wait for the next page.
    let oldest = found.records.last().map(|record| record.created_at);
    let waits = |refusal: &RefusalRecord| {
        found.next.is_some() && oldest.is_none_or(|oldest| refusal.first_at < oldest)
    };
    let (mut calls, mut cursor) = (Vec::new(), from);
    let mut records = found.records.iter().peekable();
    let mut refused = refusals.into_iter().peekable();
    while calls.len() < ROWS {
        let is_refusal = match (records.peek(), refused.peek()) {
            (_, None) => false,
            (None, Some(refusal)) => !waits(refusal),
            (Some(record), Some(refusal)) => refusal.first_at > record.created_at,
        };
        if is_refusal && let Some(refusal) = refused.next() {
            cursor.refusal = Some(refusal.refusal_id);
            calls.push(ListedCall::Refused(Box::new(refusal)));
        } else if let Some(record) = records.next() {
            cursor.record = Some(record.request_id);
            calls.push(ListedCall::Sent(Box::new(record.clone())));
        } else {
            break;
        }
    }
    let all_read = records.peek().is_none();
    if all_read && found.next.is_some() {
        cursor.record = found.next;
    }
    let has_more = !all_read || found.next.is_some() || refused.peek().is_some();
    CallPage { calls, next: has_more.then_some(cursor) }
}

/// A row of the list.
pub(crate) struct CallItem {
    pub(crate) href: String,
    at: Moment,
    pub(crate) badges: Vec<Badge>,
    customer: String,
    key: String,
    pub(crate) model: String,
    pub(crate) tokens: String,
    pub(crate) took: String,
    provider_cost: Figure,
    pub(crate) charged: Figure,
}

/// The names of customers and spend keys, by id.
pub(crate) type Names = HashMap<String, String>;

impl CallItem {
    pub(crate) fn of(call: &ListedCall, names: &Names, clock: &PageClock) -> Self {
        let name = |id: Option<String>| match id {
            Some(id) => names.get(&id).cloned().unwrap_or(id),
            None => String::new(),
        };
        match call {
            ListedCall::Sent(record) => {
                let item = RequestItem::of(record, clock);
                Self {
                    href: format!("/dashboard/requests/{}", item.request_id),
                    at: item.created_at,
                    badges: item.badges,
                    customer: name(record.connection_id.map(|id| id.to_string())),
                    key: name(record.spend_key_id.map(|id| id.to_string())),
                    model: item.model,
                    tokens: item.tokens,
                    took: item.took,
                    provider_cost: item.provider_cost,
                    charged: item.charged,
                }
            }
            ListedCall::Refused(refusal) => {
                let count = match refusal.count {
                    1 => String::new(),
                    count => format!(" ×{count}"),
                };
                let label = format!("refused: {}{count}", refusal.code.replace('_', " "));
                let meaning = "It was not sent, and cost nothing.";
                let none = || Figure { shown: "–".to_owned(), exact: String::new() };
                let provider = refusal.call.provider.clone().unwrap_or_default();
                Self {
                    href: format!("/dashboard/refusals/{}", refusal.refusal_id),
                    at: clock.moment(refusal.first_at),
                    badges: vec![Badge { color: "warn", label: label.into(), meaning }],
                    customer: name(refusal.connection_id.map(|id| id.to_string())),
                    key: name(refusal.spend_key_id.map(|id| id.to_string())),
                    model: match provider.as_str() {
                        "" => refusal.model.clone().unwrap_or_default(),
                        provider => model(provider, refusal.model.as_deref()),
                    },
                    tokens: String::new(),
                    took: String::new(),
                    provider_cost: none(),
                    charged: none(),
                }
            }
        }
    }
}

/// The names of the customers and spend keys of some calls.
fn names(
    conn: &mut Conn,
    merchant_id: MerchantId,
    calls: &[ListedCall],
) -> Result<Names, StoreError> {
    let mut names = Names::new();
    for call in calls {
        let (customer, key) = match call {
            ListedCall::Sent(record) => (record.connection_id, record.spend_key_id),
            ListedCall::Refused(refusal) => (refusal.connection_id, refusal.spend_key_id),
        };
        if let Some(id) = customer.filter(|id| !names.contains_key(&id.to_string())) {
            let found = connections::find(conn, merchant_id, id)?;
            names.extend(found.map(|found| (id.to_string(), name_of(&found))));
        }
        if let Some(id) = key.filter(|id| !names.contains_key(&id.to_string())) {
            let found = spend_keys::find(conn, merchant_id, id)?;
            names.extend(found.map(|found| (id.to_string(), found.name)));
        }
    }
    Ok(names)
}

/// A state with the number of its calls, as a link.
struct Facet {
    href: String,
    label: String,
    /// Empty where it is not known.
    count: String,
    is_chosen: bool,
}

/// The days that are counted; `None` if they are too many.
fn counted_span(filters: &ListFilters, clock: &PageClock) -> Option<TimeSpan> {
    let end = filters.end.unwrap_or(clock.now);
    let start = filters.start.unwrap_or_else(|| end.plus_millis(-DAYS * 86_400_000));
    TimeSpan::new(start, end, clock.zone.clone(), Interval::None).ok()
}

/// The numbers of calls by state, of the dates of the filter: all, completed, failed and refused ones. The refused ones
/// are not known for a filter that refused calls do not have.
fn counts(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filters: &ListFilters,
    clock: &PageClock,
) -> Result<[Option<i128>; 4], StoreError> {
    let Some(span) = counted_span(filters, clock) else { return Ok([None; 4]) };
    let found =
        usage::sums(conn, archive, merchant_id, &filters.calls, &[], &span)?.unwrap_or_default();
    let sums = sum_up(found.values().flat_map(|periods| periods.values()));
    let refused = usage::refused(conn, merchant_id, &filters.calls, &[], &span)?;
    let refused: Option<i128> = refused.map(|groups| {
        groups.values().flat_map(|periods| periods.values()).map(|count| i128::from(*count)).sum()
    });
    Ok([
        refused.map(|refused| sums.requests + refused),
        Some(sums.requests - sums.failed),
        Some(sums.failed),
        refused,
    ])
}

#[derive(Template)]
#[template(path = "requests.html")]
struct CallsPage {
    shell: Shell,
    calls: Vec<CallItem>,
    facets: Vec<Facet>,
    /// The reasons of refused calls, where these are shown.
    reasons: Vec<Facet>,
    counted: String,
    asked: CallFilter,
    problem: &'static str,
    connections: Vec<FormChoice>,
    keys: Vec<FormChoice>,
    budgets: Vec<FormChoice>,
    meters: Vec<FormChoice>,
    has_newer: bool,
    newest: String,
    older: String,
}

/// The rows that the list needs.
#[derive(Default)]
struct CallRows {
    calls: Vec<CallItem>,
    next: Option<Cursor>,
    counts: [Option<i128>; 4],
    /// The refused calls by code, of the dates of the filter.
    reasons: Vec<(String, i64)>,
    connections: Vec<FormChoice>,
    keys: Vec<FormChoice>,
    budgets: Vec<FormChoice>,
    meters: Vec<FormChoice>,
}

impl CallRows {
    fn read(
        conn: &mut Conn,
        archive: &RecordArchive,
        merchant_id: MerchantId,
        filters: Option<&ListFilters>,
        from: Cursor,
        clock: &PageClock,
    ) -> Result<Self, StoreError> {
        let chosen = filters.and_then(|filters| filters.calls.connection_id);
        let mut rows = Self {
            connections: connection_choices(conn, merchant_id, chosen)?,
            budgets: all_budget_choices(conn, merchant_id)?,
            meters: meter_choices(conn, merchant_id)?,
            ..Self::default()
        };
        let newest = Page { after: None, limit: KEYS };
        let keys = spend_keys::list(conn, merchant_id, &newest)?.into_iter();
        let choice = |key: tollgate_domain::SpendKey| FormChoice {
            id: key.spend_key_id.to_string(),
            name: key.name,
        };
        rows.keys = keys.map(choice).collect();
        let chosen = filters.and_then(|filters| filters.calls.spend_key_id);
        let missing = chosen.filter(|id| rows.keys.iter().all(|one| one.id != id.to_string()));
        if let Some(id) = missing {
            rows.keys.extend(spend_keys::find(conn, merchant_id, id)?.map(choice));
        }
        let Some(filters) = filters else { return Ok(rows) };
        let limit = u32::try_from(ROWS).unwrap_or(u32::MAX);
        let records = match &filters.records {
            Some(filter) => {
                let page = Page { after: from.record, limit };
                requests::list(conn, archive, merchant_id, filter, &page)?
            }
            None => RequestList::default(),
        };
        let refusals = match &filters.refusals {
            Some(filter) => {
                let page = Page { after: from.refusal, limit };
                refusals::list(conn, archive, merchant_id, filter, &page)?
            }
            None => Vec::new(),
        };
        let page = merge(records, refusals, from);
        let names = names(conn, merchant_id, &page.calls)?;
        rows.calls = page.calls.iter().map(|call| CallItem::of(call, &names, clock)).collect();
        rows.next = page.next;
        rows.counts = counts(conn, archive, merchant_id, filters, clock)?;
        let is_known = filters.calls.model.is_none();
        if let (None, true, Some(span)) = (&filters.records, is_known, counted_span(filters, clock))
        {
            let RequestFilter { spend_key_id, connection_id, .. } = filters.calls;
            rows.reasons =
                refusals::counts_by_code(conn, merchant_id, &span, spend_key_id, connection_id)?;
        }
        Ok(rows)
    }
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let query = Query::of(&http);
    if let Some(id) = query.get("id").map(str::trim).filter(|id| !id.is_empty()) {
        let page = if id.starts_with("rfs_") { "refusals" } else { "requests" };
        let id: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
        return Ok(go_to(&format!("/dashboard/{page}/{id}")));
    }
    let asked = CallFilter::of(&query);
    let (filters, problem) = match asked.filters(&visitor.clock.zone) {
        Ok(filters) => (Some(filters), ""),
        Err(problem) => (None, problem),
    };
    let (from, merchant_id, clock) =
        (Cursor::of(&query), visitor.merchant_id(), visitor.clock.clone());
    app.store.flush_refusals().await;
    let read = move |conn: &mut Conn, archive: &RecordArchive| {
        CallRows::read(conn, archive, merchant_id, filters.as_ref(), from, &clock)
    };
    let rows = app.store.read_records(read).await?;
    let counts = rows.counts.into_iter().chain([None]);
    let facets = STATES.iter().zip(counts).map(|((state, label), count)| {
        let filter =
            CallFilter { state: (*state).to_owned(), code: String::new(), ..asked.clone() };
        Facet {
            href: filter.link(&[]),
            label: (*label).to_owned(),
            count: count.map_or_else(String::new, text::count),
            is_chosen: asked.state == *state,
        }
    });
    let reasons = rows.reasons.iter().map(|(code, count)| Facet {
        href: CallFilter { code: code.clone(), ..asked.clone() }.link(&[]),
        label: code.replace('_', " "),
        count: text::count((*count).into()),
        is_chosen: asked.code == *code,
    });
    let reasons = reasons.collect();
    let older = rows.next.map(|next| {
        let record = next.record.map(|id| ("after", id.to_string()));
        let refusal = next.refusal.map(|id| ("refused_after", id.to_string()));
        asked.link(&Vec::from_iter(record.into_iter().chain(refusal)))
    });
    respond(&CallsPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Requests"),
        facets: facets.collect(),
        reasons,
        counted: match (asked.from.is_empty(), asked.to.is_empty()) {
            _ if rows.counts.iter().all(Option::is_none) => {
                "Numbers are known of at most 366 days.".to_owned()
            }
            (true, true) => format!("The numbers are of {DAYS} days."),
            _ => "The numbers are of the chosen days.".to_owned(),
        },
        calls: rows.calls,
        problem,
        connections: rows.connections,
        keys: rows.keys,
        budgets: rows.budgets,
        meters: rows.meters,
        has_newer: from.record.is_some() || from.refusal.is_some(),
        newest: asked.link(&[]),
        older: older.unwrap_or_default(),
        asked,
    })
}
