//! The limits of spend keys and budgets.
//!
//! Each limit of a spend key has a time zone of its own. The limits of a budget share the zone of the budget.

use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::{Cycle, CycleCalendar, RateLimit, RequestLimit, SpendLimit, TimeZone};
use tollgate_pricing::Amount;
use utoipa::ToSchema;

use crate::http::fields::{BoundedInt, EnumField, Issues, ParsedString, PositiveAmount};
use crate::openapi::types::*;

/// A limit of money per cycle.
#[derive(Serialize, ToSchema)]
#[schema(as = SpendLimit)]
pub(crate) struct SpendLimitView {
    /// The most US dollars per cycle.
    amount: Amount,
    /// The cycle of the limit.
    cycle: Cycle,
    /// The IANA name of the time zone by whose midnights cycles begin. A change takes effect at the next cycle.
    time_zone: String,
}

impl SpendLimitView {
    pub(crate) fn of(SpendLimit { amount, cycle }: SpendLimit, calendar: &CycleCalendar) -> Self {
        Self { amount, cycle, time_zone: calendar.zone_name().to_owned() }
    }
}

/// A limit of calls per cycle.
#[derive(Serialize, ToSchema)]
#[schema(as = RequestLimit)]
pub(crate) struct RequestLimitView {
    /// The most calls per cycle.
    count: u64,
    /// The cycle of the limit.
    cycle: Cycle,
    /// The IANA name of the time zone by whose midnights cycles begin. A change takes effect at the next cycle.
    time_zone: String,
}

impl RequestLimitView {
    pub(crate) fn of(
        RequestLimit { count, cycle }: RequestLimit,
        calendar: &CycleCalendar,
    ) -> Self {
        Self { count, cycle, time_zone: calendar.zone_name().to_owned() }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewSpendLimit)]
pub(crate) struct SpendLimitInput {
    /// The most US dollars per cycle.
    amount: PositiveAmount,
    /// The cycle of the limit.
    #[schema(value_type = Cycle)]
    cycle: EnumField<Cycle>,
    /// The IANA name of the time zone by whose midnights cycles begin, such as `Europe/Berlin`. A change takes effect
    /// at the next cycle. Default: `UTC`.
    #[deserr(default)]
    #[schema(value_type = Option<String>)]
    time_zone: Option<ParsedString<TimeZone>>,
}

impl SpendLimitInput {
    pub(crate) fn limit(self) -> (SpendLimit, TimeZone) {
        (SpendLimit { amount: self.amount.0, cycle: self.cycle.0 }, zone(self.time_zone))
    }
}

/// The zone of a field. Without one, UTC.
pub(crate) fn zone(field: Option<ParsedString<TimeZone>>) -> TimeZone {
    field.map_or(TimeZone::UTC, |field| field.0)
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewRequestLimit)]
pub(crate) struct RequestLimitInput {
    /// The most calls per cycle.
    #[schema(value_type = u32, minimum = 1, maximum = 1_000_000_000)]
    count: BoundedInt<1_000_000_000>,
    /// The cycle of the limit.
    #[schema(value_type = Cycle)]
    cycle: EnumField<Cycle>,
    /// The IANA name of the time zone by whose midnights cycles begin, such as `Europe/Berlin`. A change takes effect
    /// at the next cycle. Default: `UTC`.
    #[deserr(default)]
    #[schema(value_type = Option<String>)]
    time_zone: Option<ParsedString<TimeZone>>,
}

impl RequestLimitInput {
    pub(crate) fn limit(self) -> (RequestLimit, TimeZone) {
        let limit = RequestLimit { count: u64::from(self.count.0), cycle: self.cycle.0 };
        (limit, zone(self.time_zone))
    }
}

/// A limit and its zone. Without a limit, the zone is UTC.
pub(crate) fn with_zone<L>(limit: Option<(L, TimeZone)>) -> (Option<L>, TimeZone) {
    match limit {
        Some((limit, zone)) => (Some(limit), zone),
        None => (None, TimeZone::UTC),
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewRateLimit)]
pub(crate) struct RateLimitInput {
    /// The most calls per 60 seconds.
    #[schema(value_type = u32, minimum = 1, maximum = 1_000_000)]
    rpm: BoundedInt<1_000_000>,
    /// The most calls that may come at once. Default: the value of `rpm`.
    #[deserr(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000)]
    burst: Option<BoundedInt<1_000_000>>,
}

impl RateLimitInput {
    pub(crate) fn limit(self) -> RateLimit {
        RateLimit { rpm: self.rpm.0, burst: self.burst.map_or(self.rpm.0, |burst| burst.0) }
    }
}

/// A limit of money of each run of a spend key.
#[derive(Serialize, ToSchema)]
#[schema(as = RunLimit)]
pub(crate) struct RunLimitView {
    /// The most US dollars of one run.
    pub(crate) amount: Amount,
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewRunLimit)]
pub(crate) struct RunLimitInput {
    /// The most US dollars of one run.
    amount: PositiveAmount,
}

impl RunLimitInput {
    pub(crate) fn limit(self) -> Amount {
        self.amount.0
    }
}

/// A limit of money of a budget.
#[derive(Serialize, ToSchema)]
#[schema(as = BudgetSpendLimit)]
pub(crate) struct BudgetSpendLimitView {
    /// The most US dollars per cycle.
    amount: Amount,
    /// The cycle of the limit.
    cycle: Cycle,
}

impl From<SpendLimit> for BudgetSpendLimitView {
    fn from(SpendLimit { amount, cycle }: SpendLimit) -> Self {
        Self { amount, cycle }
    }
}

/// A limit of calls of a budget.
#[derive(Serialize, ToSchema)]
#[schema(as = BudgetRequestLimit)]
pub(crate) struct BudgetRequestLimitView {
    /// The most calls per cycle.
    count: u64,
    /// The cycle of the limit.
    cycle: Cycle,
}

impl From<RequestLimit> for BudgetRequestLimitView {
    fn from(RequestLimit { count, cycle }: RequestLimit) -> Self {
        Self { count, cycle }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewBudgetSpendLimit)]
pub(crate) struct BudgetSpendLimitInput {
    /// The most US dollars per cycle.
    amount: PositiveAmount,
    /// The cycle of the limit.
    #[schema(value_type = Cycle)]
    cycle: EnumField<Cycle>,
}

impl BudgetSpendLimitInput {
    pub(crate) fn limit(self) -> SpendLimit {
        SpendLimit { amount: self.amount.0, cycle: self.cycle.0 }
    }
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
#[schema(as = NewBudgetRequestLimit)]
pub(crate) struct BudgetRequestLimitInput {
    /// The most calls per cycle.
    #[schema(value_type = u32, minimum = 1, maximum = 1_000_000_000)]
    count: BoundedInt<1_000_000_000>,
    /// The cycle of the limit.
    #[schema(value_type = Cycle)]
    cycle: EnumField<Cycle>,
}

impl BudgetRequestLimitInput {
    pub(crate) fn limit(self) -> RequestLimit {
        RequestLimit { count: u64::from(self.count.0), cycle: self.cycle.0 }
    }
}
