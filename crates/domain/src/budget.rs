//! Budgets: limits that spend keys, customers and other budgets share.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::calendar::CycleCalendar;
use crate::cycle::Cycle;
use crate::id::{BudgetId, MerchantId};
use crate::metadata::Metadata;
use crate::spend_counters::{LimitCalendars, SpendCounters, SpendLimit};
use crate::spend_key::{Enforcement, RequestLimit};
use crate::time::Timestamp;

/// The most budgets from a budget to the root of its tree, both included.
pub const BUDGET_LEVELS: usize = 4;
/// The most active budgets of a merchant that match calls by metadata.
pub const MATCHING_BUDGETS: usize = 100;

/// The status of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetStatus {
    /// In use.
    #[default]
    Active,
    /// Calls that count against it are refused until it is active again.
    Paused,
}

/// The mode of the limits of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetEnforcement {
    /// As [`Enforcement::Bounded`](crate::Enforcement::Bounded).
    #[default]
    Bounded,
    /// As [`Enforcement::Strict`](crate::Enforcement::Strict).
    Strict,
    /// Calls are counted and never refused.
    Observe,
}

impl BudgetEnforcement {
    /// The mode in which its limits refuse calls; `None` if they refuse nothing.
    pub const fn enforced(self) -> Option<Enforcement> {
        match self {
            Self::Bounded => Some(Enforcement::Bounded),
            Self::Strict => Some(Enforcement::Strict),
            Self::Observe => None,
        }
    }
}

/// The rules of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRules {
    /// The status.
    pub status: BudgetStatus,
    /// The mode of its limits.
    pub enforcement: BudgetEnforcement,
    /// The spend limit.
    pub spend_limit: Option<SpendLimit>,
    /// The request limit.
    pub request_limit: Option<RequestLimit>,
    /// The calendar of both limits.
    #[serde(default, skip_serializing_if = "CycleCalendar::is_default")]
    pub calendar: CycleCalendar,
    /// The pairs of metadata that a call must have to count against it. `None` for a budget that keys and customers
    /// name.
    #[serde(rename = "match", default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Metadata>,
    /// The shares of the spend limit, in percent and ascending, that are reported once per cycle.
    pub alerts: Vec<u8>,
}

impl Default for BudgetRules {
    fn default() -> Self {
        Self {
            status: BudgetStatus::default(),
            enforcement: BudgetEnforcement::default(),
            spend_limit: None,
            request_limit: None,
            calendar: CycleCalendar::default(),
            pairs: None,
            alerts: vec![80, 95, 100],
        }
    }
}

impl BudgetRules {
    /// The calendars of its limits.
    pub const fn calendars(&self) -> LimitCalendars<'_> {
        LimitCalendars { spend: &self.calendar, requests: &self.calendar }
    }

    /// The cycle by which spend is shown: the cycle of the spend limit, or the day.
    pub fn spend_cycle(&self) -> Cycle {
        self.spend_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }

    /// The cycle by which calls are shown: the cycle of the request limit, or the day.
    pub fn request_cycle(&self) -> Cycle {
        self.request_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }

    /// Returns whether it takes calls by their metadata. If it is paused, it refuses them.
    pub const fn is_matching(&self) -> bool {
        self.pairs.is_some()
    }
}

/// A budget of a merchant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The id.
    pub budget_id: BudgetId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The budget that includes it.
    pub parent_id: Option<BudgetId>,
    /// Display name.
    pub name: String,
    /// The rules.
    pub rules: BudgetRules,
    /// Metadata from the merchant.
    pub metadata: Metadata,
    /// The counters.
    pub counters: SpendCounters,
    /// The time of creation.
    pub created_at: Timestamp,
}

impl Budget {
    /// The counters at `now`.
    pub fn counters_at(&self, now: Timestamp) -> SpendCounters {
        self.counters.at(now, self.rules.calendars())
    }
}

/// The reason why a budget cannot have a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentFault {
    /// The parent does not exist.
    Unknown,
    /// The parent is the budget itself or one below it.
    Cycle,
    /// The tree would have more than [`BUDGET_LEVELS`] levels.
    TooDeep,
}

/// The budgets of a merchant.
#[derive(Clone, Debug, Default)]
pub struct BudgetTree {
    budgets: BTreeMap<BudgetId, Budget>,
    /// The budgets that take calls by their metadata.
    matching: BTreeSet<BudgetId>,
}

impl FromIterator<Budget> for BudgetTree {
    fn from_iter<I: IntoIterator<Item = Budget>>(budgets: I) -> Self {
        let mut tree = Self::default();
        budgets.into_iter().for_each(|budget| tree.insert(budget));
        tree
    }
}

impl BudgetTree {
    /// Adds a budget, or replaces the one with its id.
    pub fn insert(&mut self, budget: Budget) {
        match budget.rules.is_matching() {
            true => self.matching.insert(budget.budget_id),
            false => self.matching.remove(&budget.budget_id),
        };
        self.budgets.insert(budget.budget_id, budget);
    }

    /// The budgets, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = &Budget> {
        self.budgets.values()
    }

    /// The budgets, by ascending id.
    pub fn into_budgets(self) -> impl Iterator<Item = Budget> {
        self.budgets.into_values()
    }

    /// The number of budgets.
    pub fn len(&self) -> usize {
        self.budgets.len()
    }

    /// Returns whether there is no budget.
    pub fn is_empty(&self) -> bool {
        self.budgets.is_empty()
    }

    /// A budget by its id.
    pub fn get(&self, id: BudgetId) -> Option<&Budget> {
        self.budgets.get(&id)
    }

    /// The budgets that a call counts against, each once, by ascending id: those that its spend key and its customer
    /// name, those that its metadata matches, and all that include one of these.
    pub fn of_call(
        &self,
        named: impl IntoIterator<Item = BudgetId>,
        metadata: &Metadata,
    ) -> Vec<BudgetId> {
        let matches = |id: &&BudgetId| {
            let pairs = self.budgets.get(*id).and_then(|budget| budget.rules.pairs.as_ref());
            pairs.is_some_and(|pairs| {
                pairs.iter().all(|(key, value)| metadata.get(key) == Some(value))
            })
        };
        let matching = self.matching.iter().filter(matches).copied();
        let mut found: Vec<_> =
            named.into_iter().chain(matching).flat_map(|id| self.chain(id)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A budget and all that include it, from the inside out.
    pub fn chain(&self, id: BudgetId) -> impl Iterator<Item = BudgetId> {
        let known = self.budgets.get(&id);
        let parent = |budget: &&Budget| self.budgets.get(&budget.parent_id?);
        std::iter::successors(known, parent).take(BUDGET_LEVELS).map(|budget| budget.budget_id)
    }

    /// The budgets that include one of the tree.
    pub fn parents(&self) -> impl Iterator<Item = BudgetId> {
        self.budgets.values().filter_map(|budget| budget.parent_id)
    }

    /// The budgets directly below one.
    pub fn children(&self, id: BudgetId) -> impl Iterator<Item = &Budget> {
        self.budgets.values().filter(move |budget| budget.parent_id == Some(id))
    }

    /// Checks whether `parent` may include a budget: `child`, or a new one.
    ///
    /// # Errors
    /// The [`ParentFault`].
    pub fn check_parent(
        &self,
        child: Option<BudgetId>,
        parent: BudgetId,
    ) -> Result<(), ParentFault> {
        if !self.budgets.contains_key(&parent) {
            return Err(ParentFault::Unknown);
        }
        if child.is_some_and(|child| self.chain(parent).any(|id| id == child)) {
            return Err(ParentFault::Cycle);
        }
        let below = child.map_or(1, |child| self.height(child));
        match self.chain(parent).count() + below > BUDGET_LEVELS {
            true => Err(ParentFault::TooDeep),
            false => Ok(()),
        }
    }

    /// The levels of a budget and all below it.
    fn height(&self, id: BudgetId) -> usize {
        let mut levels = 0;
        let mut level = vec![id];
        while !level.is_empty() && levels <= BUDGET_LEVELS {
            levels += 1;
            level = level
                .iter()
                .flat_map(|id| self.children(*id).map(|child| child.budget_id))
                .collect();
        }
        levels
    }
}
