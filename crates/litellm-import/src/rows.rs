//! The rows of LiteLLM's tables, as far as they are read.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::ImportError;

/// The rows of a table.
pub(crate) fn read<T: DeserializeOwned>(table: &str, json: &str) -> Result<Vec<T>, ImportError> {
    // A byte order mark, which some programs write before UTF-8.
    let json = json.strip_prefix('\u{feff}').unwrap_or(json);
    let rows: Option<Vec<Value>> = serde_json::from_str(json)
        .map_err(|cause| ImportError::NoRows { table: table.to_owned(), cause })?;
    let rows = rows.into_iter().flatten().enumerate();
    let rows = rows.map(|(place, row)| {
        serde_json::from_value(row).map_err(|cause| ImportError::Row {
            table: table.to_owned(),
            row: place.saturating_add(1),
            cause,
        })
    });
    rows.collect()
}

/// A list that may be null.
fn list<'de, D: Deserializer<'de>>(column: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(column)?.unwrap_or_default())
}

/// The limits that several tables have. Amounts are US dollars.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Limits {
    pub(crate) max_budget: Option<f64>,
    pub(crate) soft_budget: Option<f64>,
    pub(crate) budget_duration: Option<String>,
    pub(crate) rpm_limit: Option<i64>,
    pub(crate) tpm_limit: Option<i64>,
    pub(crate) tpd_limit: Option<i64>,
    pub(crate) max_parallel_requests: Option<i64>,
    pub(crate) model_max_budget: Value,
    pub(crate) budget_limits: Value,
    pub(crate) project_id: Option<String>,
}

impl Limits {
    /// These limits, and those of a shared budget where they have none.
    pub(crate) fn with_defaults(&self, shared: Option<&Self>) -> Self {
        let mut all = self.clone();
        let Some(shared) = shared else { return all };
        if all.max_budget.is_none() {
            all.max_budget = shared.max_budget;
            all.budget_duration.clone_from(&shared.budget_duration);
        }
        all.soft_budget = all.soft_budget.or(shared.soft_budget);
        all.rpm_limit = all.rpm_limit.or(shared.rpm_limit);
        all.tpm_limit = all.tpm_limit.or(shared.tpm_limit);
        all.tpd_limit = all.tpd_limit.or(shared.tpd_limit);
        all.max_parallel_requests = all.max_parallel_requests.or(shared.max_parallel_requests);
        for (own, shared) in [
            (&mut all.model_max_budget, &shared.model_max_budget),
            (&mut all.budget_limits, &shared.budget_limits),
        ] {
            if own.is_null() {
                own.clone_from(shared);
            }
        }
        all
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct KeyRow {
    /// The SHA-256 of the key in hexadecimal digits.
    pub(crate) token: String,
    /// The key with most characters hidden, such as `sk-...abcd`.
    pub(crate) key_name: Option<String>,
    pub(crate) key_alias: Option<String>,
    #[serde(default)]
    pub(crate) spend: f64,
    pub(crate) expires: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(crate) models: Vec<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) team_id: Option<String>,
    pub(crate) organization_id: Option<String>,
    pub(crate) blocked: Option<bool>,
    pub(crate) budget_id: Option<String>,
    #[serde(default, deserialize_with = "list")]
    pub(crate) allowed_routes: Vec<String>,
    #[serde(default)]
    pub(crate) aliases: Value,
    #[serde(default)]
    pub(crate) permissions: Value,
    #[serde(default)]
    pub(crate) metadata: Value,
    #[serde(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TeamRow {
    pub(crate) team_id: String,
    pub(crate) team_alias: Option<String>,
    pub(crate) organization_id: Option<String>,
    #[serde(default)]
    pub(crate) spend: f64,
    #[serde(default, deserialize_with = "list")]
    pub(crate) models: Vec<String>,
    pub(crate) blocked: Option<bool>,
    #[serde(default)]
    pub(crate) members_with_roles: Value,
    #[serde(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OrganizationRow {
    pub(crate) organization_id: String,
    pub(crate) organization_alias: Option<String>,
    pub(crate) budget_id: Option<String>,
    #[serde(default)]
    pub(crate) spend: f64,
    #[serde(default, deserialize_with = "list")]
    pub(crate) models: Vec<String>,
    #[serde(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Deserialize)]
pub(crate) struct UserRow {
    pub(crate) user_id: String,
    pub(crate) user_alias: Option<String>,
    pub(crate) user_email: Option<String>,
    #[serde(default)]
    pub(crate) spend: f64,
    #[serde(default, deserialize_with = "list")]
    pub(crate) models: Vec<String>,
    #[serde(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Deserialize)]
pub(crate) struct BudgetRow {
    pub(crate) budget_id: String,
    #[serde(flatten)]
    pub(crate) limits: Limits,
}
