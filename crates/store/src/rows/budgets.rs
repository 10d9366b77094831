//! The rows of budgets, and the budgets of a call in its row.

use diesel::prelude::*;
use tollgate_domain::{
    Budget, BudgetId, BudgetRules, CallBudgets, MerchantId, Metadata, SpendCounters,
};

use super::values::{from_json, time, to_json};
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::budgets;

#[derive(Clone, Debug, Queryable, Selectable, Insertable, AsChangeset)]
#[diesel(table_name = budgets, treat_none_as_null = true)]
pub(crate) struct BudgetRow {
    pub(crate) budget_id: Id<BudgetId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) parent_id: Option<Id<BudgetId>>,
    pub(crate) name: String,
    pub(crate) rules: String,
    /// Whether it takes calls by their metadata.
    pub(crate) matches: bool,
    pub(crate) metadata: String,
    pub(crate) created_at: i64,
    pub(crate) deleted_at: Option<i64>,
}

impl From<&Budget> for BudgetRow {
    fn from(budget: &Budget) -> Self {
        Self {
            budget_id: Id(budget.budget_id),
            merchant_id: Id(budget.merchant_id),
            parent_id: budget.parent_id.map(Id),
            name: budget.name.clone(),
            rules: to_json(&budget.rules),
            matches: budget.rules.is_matching(),
            metadata: to_json(&budget.metadata),
            created_at: budget.created_at.unix_micros(),
            deleted_at: None,
        }
    }
}

impl BudgetRow {
    pub(crate) fn with_counters(self, counters: SpendCounters) -> Result<Budget, StoreError> {
        Ok(Budget {
            budget_id: self.budget_id.get(),
            merchant_id: self.merchant_id.get(),
            parent_id: self.parent_id.map(Id::get),
            name: self.name,
            rules: from_json::<BudgetRules>("budgets.rules", &self.rules)?,
            metadata: from_json::<Metadata>("budgets.metadata", &self.metadata)?,
            counters,
            created_at: time(self.created_at),
        })
    }
}

/// The JSON of the budgets of a call; `None` for a call without budgets.
pub(super) fn stored_budgets(budgets: &CallBudgets) -> Option<String> {
    (!budgets.is_empty()).then(|| to_json(budgets))
}

/// The budgets of a call.
pub(super) fn budgets_of(stored: Option<&str>) -> Result<CallBudgets, StoreError> {
    let read = stored.map(|stored| from_json("budgets of a call", stored));
    Ok(read.transpose()?.unwrap_or_default())
}
