//! The limits of an account that calls count against.

use crate::budget::Budget;
use crate::id::BudgetId;
use crate::run::Run;
use crate::spend_counters::{LimitCalendars, SpendCounters, SpendLimit};
use crate::spend_key::{Enforcement, RequestLimit, SpendKey};
use crate::time::Timestamp;
use tollgate_pricing::Amount;

/// The owner of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOwner {
    /// The spend key of the call.
    SpendKey,
    /// A budget.
    Budget(BudgetId),
    /// The run of the call.
    Run,
}

/// The limits of a spend key, a budget or a run, and its counters at the time of an admission.
#[derive(Clone, Debug)]
pub(crate) struct LimitedAccount<'a> {
    pub(crate) owner: LimitOwner,
    pub(crate) spend_limit: Option<SpendLimit>,
    pub(crate) request_limit: Option<RequestLimit>,
    /// `None` for limits that refuse nothing.
    pub(crate) enforcement: Option<Enforcement>,
    pub(crate) calendars: LimitCalendars<'a>,
    pub(crate) counters: SpendCounters,
}

impl<'a> LimitedAccount<'a> {
    pub(crate) fn of_key(key: &'a SpendKey, now: Timestamp) -> Self {
        Self {
            owner: LimitOwner::SpendKey,
            spend_limit: key.rules.spend_limit,
            request_limit: key.rules.request_limit,
            enforcement: Some(key.rules.enforcement),
            calendars: key.rules.calendars(),
            counters: key.counters_at(now),
        }
    }

    pub(crate) fn of_budget(budget: &'a Budget, now: Timestamp) -> Self {
        Self {
            owner: LimitOwner::Budget(budget.budget_id),
            spend_limit: budget.rules.spend_limit,
            request_limit: budget.rules.request_limit,
            enforcement: budget.rules.enforcement.enforced(),
            calendars: budget.rules.calendars(),
            counters: budget.counters_at(now),
        }
    }

    /// A run with this limit. A run without one refuses nothing.
    pub(crate) fn of_run(run: &Run, limit: Option<Amount>, enforcement: Enforcement) -> Self {
        Self {
            owner: LimitOwner::Run,
            spend_limit: limit.map(|amount| SpendLimit { amount, cycle: run.cycle() }),
            request_limit: None,
            enforcement: limit.map(|_| enforcement),
            calendars: Run::calendars(),
            counters: run.counters,
        }
    }
}
