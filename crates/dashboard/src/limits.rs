//! The limits of spend keys and budgets: bars of their use, and the fields of their forms.

use tollgate_domain::{
    Cycle, CycleCalendar, LimitCalendars, RequestLimit, SpendCounters, SpendLimit,
};
use tollgate_pricing::Amount;

use crate::clock::{Moment, PageClock};
use crate::text::{self, Figure};

/// A part of a limit, for a bar.
pub(crate) struct LimitBar {
    pub(crate) name: String,
    pub(crate) thousandths: i128,
    /// The part that calls in flight hold, shown behind what is used.
    pub(crate) held: i128,
    /// The used part of the limit, with the exact one to be shown on hover.
    pub(crate) used: Figure,
    pub(crate) rest: String,
    /// The time at which the cycle ends; empty for a limit for ever.
    pub(crate) resets: Moment,
    pub(crate) color: &'static str,
}

impl LimitBar {
    fn new(
        name: String,
        [used, held, limit]: [i128; 3],
        show: fn(i128) -> Figure,
        resets: Moment,
    ) -> Self {
        let thousandths = text::thousandths(used, limit);
        Self {
            name,
            thousandths,
            held: text::thousandths(used + held, limit) - thousandths,
            used: Figure {
                shown: format!("{} of {}", show(used).shown, show(limit).shown),
                exact: format!("{} of {}", show(used).exact, show(limit).exact),
            },
            rest: match held {
                0 => String::new(),
                held => format!("{} held", show(held).shown),
            },
            resets,
            color: match thousandths {
                1_000.. => "bad",
                800..1_000 => "warn",
                _ => "good",
            },
        }
    }

    /// The limits of an account and the use of each. `counters` are those at the time of the page.
    pub(crate) fn all(
        (spend_limit, request_limit): (Option<SpendLimit>, Option<RequestLimit>),
        counters: &SpendCounters,
        calendars: LimitCalendars<'_>,
        clock: &PageClock,
    ) -> Vec<Self> {
        let resets = |calendar: &CycleCalendar, cycle| {
            clock.moment_or(calendar.ends_at(cycle, clock.now), "")
        };
        let units = |amount: &Amount| i128::from(amount.units());
        let spend = spend_limit.map(|limit| {
            let used = units(counters.spent.get(limit.cycle));
            let held = units(counters.held.get(limit.cycle));
            let name = format!("Spend, {}", text::word(&limit.cycle));
            let resets = resets(calendars.spend, limit.cycle);
            Self::new(name, [used, held, units(&limit.amount)], Figure::of, resets)
        });
        let requests = request_limit.map(|limit| {
            let used = i128::from(*counters.requests.get(limit.cycle));
            let name = format!("Requests, {}", text::word(&limit.cycle));
            let count = |number| Figure { shown: text::count(number), exact: text::count(number) };
            let resets = resets(calendars.requests, limit.cycle);
            Self::new(name, [used, 0, limit.count.into()], count, resets)
        });
        spend.into_iter().chain(requests).collect()
    }
}

/// The limits of an account as the texts of a form.
pub(crate) struct LimitFields {
    pub(crate) spend_limit: String,
    pub(crate) spend_cycle: String,
    pub(crate) request_limit: String,
    pub(crate) request_cycle: String,
}

impl LimitFields {
    pub(crate) fn of(spend: Option<SpendLimit>, requests: Option<RequestLimit>) -> Self {
        let word = |cycle: Cycle| text::word(&cycle);
        Self {
            spend_limit: spend.map_or_else(String::new, |limit| text::field(limit.amount)),
            spend_cycle: word(spend.map_or(Cycle::Monthly, |limit| limit.cycle)),
            request_limit: requests.map_or_else(String::new, |limit| limit.count.to_string()),
            request_cycle: word(requests.map_or(Cycle::Daily, |limit| limit.cycle)),
        }
    }

    /// The cycles of a limit, with their labels.
    pub(crate) fn cycles(&self) -> [(&'static str, &'static str); 4] {
        [("daily", "day"), ("weekly", "week"), ("monthly", "month"), ("total", "ever")]
    }
}
