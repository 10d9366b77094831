//! One file per resource, with its views and operations.

pub(crate) mod budgets;
pub(crate) mod connections;
pub(crate) mod credit_bundles;
pub(crate) mod focus;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod limits;
pub(crate) mod merchants;
pub(crate) mod meters;
pub(crate) mod models;
pub(crate) mod prices;
pub(crate) mod provider_events;
pub(crate) mod quote;
pub(crate) mod refusals;
pub(crate) mod requests;
pub(crate) mod runs;
pub(crate) mod secret_keys;
pub(crate) mod spend_keys;
pub(crate) mod statements;
pub(crate) mod subscription_configs;
pub(crate) mod subscriptions;
pub(crate) mod usage;
pub(crate) mod wallets;
pub(crate) mod webhooks;

use std::fmt;
use std::str::FromStr;

use deserr::Deserr;
use serde::{Serialize, Serializer};
use tollgate_domain::{ConnectionId, Issue, LocalTime, TimeZone};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::Input;
use crate::http::earlier::earlier_name;
use crate::http::fields::Issues;
use crate::http::list::Query;
use crate::openapi::types::*;

/// The answer to the deletion of a resource with an id of its own.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    /// The id.
    id: String,
    /// Always true.
    deleted: bool,
}

/// The answer to a deletion that returns no id.
#[derive(Serialize, ToSchema)]
pub(crate) struct Success {
    /// Always true.
    success: bool,
}

impl Success {
    pub(crate) const fn yes() -> Self {
        Self { success: true }
    }
}

/// The body of an operation whose path is its whole input.
#[derive(Deserr)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct EmptyBody {}

impl Input for EmptyBody {}

/// An optional id in a query. An invalid id is an issue.
fn optional_id<Id: FromStr>(name: &str, text: Option<&str>, issues: &mut Vec<Issue>) -> Option<Id> {
    let id = text?.parse().ok();
    if id.is_none() {
        issues.push(Issue::at([name], "is not an id of this kind"));
    }
    id
}

/// The filter of a list by connection, as documents have it; [`id_filter`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct ConnectionQuery {
    /// Only items of this connection. Records of spend keys that draw on its wallet are included.
    connection_id: Option<ConnectionId>,
    /// Another name of `connection_id`.
    customer_id: Option<ConnectionId>,
}

/// The value of a filter by id, under either of its names.
fn id_filter<Id: FromStr>(name: &str, query: &Query, issues: &mut Vec<Issue>) -> Option<Id> {
    let (now, earlier_name) = (query.get(name), earlier_name(name).unwrap_or(name));
    let earlier = query.get(earlier_name);
    if let (Some(one), Some(other)) = (now, earlier)
        && one != other
    {
        issues.push(Issue::at([earlier_name], Issue::differs_from(name)));
    }
    match now {
        Some(id) => optional_id(name, Some(id), issues),
        None => optional_id(earlier_name, earlier, issues),
    }
}

/// A time of the query; `Err` if it is invalid.
fn time(query: &Query, name: &str, issues: &mut Vec<Issue>) -> Result<Option<LocalTime>, ()> {
    // A plus that was not encoded has become a space; no time has a space.
    let text = query.get(name).map(|text| text.replace(' ', "+"));
    text.map(|text| text.parse()).transpose().map_err(|_| {
        issues.push(Issue::at(
            [name],
            "must be a date-time with an offset, such as 2026-11-21T00:00:00+01:00",
        ));
    })
}

/// A sum of amounts, which may be larger than any amount. It is written like one.
#[derive(Clone, Copy)]
struct LargeAmount(i128);

impl fmt::Display for LargeAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS_PER_USD: u128 = 10_000_000_000;
        let sign = if self.0 < 0 { "-" } else { "" };
        let units = self.0.unsigned_abs();
        let (usd, rest) = (units / UNITS_PER_USD, units % UNITS_PER_USD);
        write!(f, "{sign}{usd}.{rest:010}")
    }
}

impl Serialize for LargeAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// It has the name of an amount, because both are alike in JSON.
looks! { LargeAmount as "Amount" => AmountSchema::schema(); }

/// The time zone of the query; `Err` if it is unknown.
fn time_zone(query: &Query, issues: &mut Vec<Issue>) -> Result<Option<TimeZone>, ()> {
    let Some(name) = query.get("time_zone") else { return Ok(None) };
    let zone = name.parse::<TimeZone>();
    let zone = zone.map_err(|why| issues.push(Issue::at(["time_zone"], why.to_string())));
    zone.map(Some)
}
