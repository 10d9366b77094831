//! The organizations, teams, users and keys of a LiteLLM proxy, read into budgets and spend keys.
//!
//! The input is the tables of LiteLLM's database, each as the JSON array of its rows that
//! `SELECT json_agg(t) FROM "LiteLLM_…" t` gives. The output is what a store is to make, and a note for everything that
//! has no counterpart.

mod error;
mod rows;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tollgate_domain::{
    BudgetRules, BudgetStatus, Cycle, KeyHash, RateLimit, SpendKeyStatus, SpendLimit, SpendRules,
};
use tollgate_pricing::Amount;

pub use error::ImportError;
use rows::{BudgetRow, KeyRow, OrganizationRow, TeamRow, UserRow};
use value::{amount, hash, instant};

/// The tables that are read, by their names in LiteLLM's database.
pub const TABLES: [&str; 5] = [
    "LiteLLM_VerificationToken",
    "LiteLLM_TeamTable",
    "LiteLLM_OrganizationTable",
    "LiteLLM_UserTable",
    "LiteLLM_BudgetTable",
];

/// The tables of a LiteLLM proxy.
#[derive(Debug, Default)]
pub struct Tables {
    keys: Vec<KeyRow>,
    teams: Vec<TeamRow>,
    organizations: Vec<OrganizationRow>,
    users: Vec<UserRow>,
    budgets: BTreeMap<String, BudgetRow>,
}

impl Tables {
    /// Adds the rows of a table. `null`, which `json_agg` gives for an empty table, has none.
    ///
    /// # Errors
    /// [`ImportError`] for another table, and for rows that are not those of LiteLLM.
    pub fn add(&mut self, table: &str, json: &str) -> Result<(), ImportError> {
        match table {
            "LiteLLM_VerificationToken" => self.keys.extend(rows::read(table, json)?),
            "LiteLLM_TeamTable" => self.teams.extend(rows::read(table, json)?),
            "LiteLLM_OrganizationTable" => self.organizations.extend(rows::read(table, json)?),
            "LiteLLM_UserTable" => self.users.extend(rows::read(table, json)?),
            "LiteLLM_BudgetTable" => {
                let rows: Vec<BudgetRow> = rows::read(table, json)?;
                for row in rows {
                    self.budgets.entry(row.budget_id.clone()).or_insert(row);
                }
            }
            _ => {
                return Err(ImportError::UnknownTable { table: table.to_owned(), known: &TABLES });
            }
        }
        Ok(())
    }
}

/// The row of LiteLLM that a budget is made from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetSource {
    /// An organization, by its id.
    Organization(String),
    /// A team, by its id.
    Team(String),
    /// A user, by its id.
    User(String),
}

impl BudgetSource {
    /// The pair of metadata by which a budget that was made from it is found again.
    pub fn pair(&self) -> (&'static str, &str) {
        match self {
            Self::Organization(id) => ("litellm_organization_id", id),
            Self::Team(id) => ("litellm_team_id", id),
            Self::User(id) => ("litellm_user_id", id),
        }
    }
}

impl fmt::Display for BudgetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Organization(id) => write!(f, "organization {id}"),
            Self::Team(id) => write!(f, "team {id}"),
            Self::User(id) => write!(f, "user {id}"),
        }
    }
}

/// A budget that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedBudget {
    /// The row that it is made from.
    pub source: BudgetSource,
    /// The budget that includes it. It comes earlier in the list.
    pub parent: Option<BudgetSource>,
    /// Display name.
    pub name: String,
    /// The rules.
    pub rules: BudgetRules,
    /// The amount that was spent in the present cycle, in USD.
    pub spent: Amount,
}

/// A spend key that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedKey {
    /// The SHA-256 of the key, as LiteLLM stores it.
    pub hash: KeyHash,
    /// The characters of the key that LiteLLM shows.
    pub preview: String,
    /// Display name.
    pub name: String,
    /// The budget that it names.
    pub budget: Option<BudgetSource>,
    /// The rules.
    pub rules: SpendRules,
    /// The amount that was spent in the present cycle, in USD.
    pub spent: Amount,
}

/// The budgets and keys to make, and what has no counterpart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// The budgets, each after the one that includes it.
    pub budgets: Vec<ImportedBudget>,
    /// The spend keys.
    pub keys: Vec<ImportedKey>,
    /// Everything that has no counterpart, for people.
    pub notes: Vec<String>,
    /// The rows of the budgets.
    sources: BTreeSet<BudgetSource>,
}

/// The team of the keys that LiteLLM makes for sessions of its own pages.
const SESSIONS: &str = "litellm-dashboard";

/// The budgets and keys that the tables come to.
pub fn import(tables: &Tables) -> Import {
    let mut import = Import::default();
    for row in &tables.organizations {
        let source = BudgetSource::Organization(row.organization_id.clone());
        let whose = source.to_string();
        let budget = row.budget_id.as_ref().and_then(|id| tables.budgets.get(id));
        let is_missing = import.is_missing(&whose, "budget", row.budget_id.as_ref(), budget);
        let limits = row.limits.with_defaults(budget.map(|budget| &budget.limits));
        import.note_limits(&whose, &limits);
        import.note_rate(&whose, limits.rpm_limit);
        import.note_models(&whose, &row.models);
        let rules = import.budget_rules(&whose, &limits, is_missing);
        import.add_budget(source, None, &[&row.organization_alias], rules, row.spend);
    }
    for row in tables.teams.iter().filter(|row| row.team_id != SESSIONS) {
        let source = BudgetSource::Team(row.team_id.clone());
        let whose = source.to_string();
        import.note_limits(&whose, &row.limits);
        import.note_rate(&whose, row.limits.rpm_limit);
        if has_fields(&row.members_with_roles) {
            import.notes.push(format!("{whose}: its members have no counterpart"));
        }
        let parent = row.organization_id.as_ref().map(|id| BudgetSource::Organization(id.clone()));
        let parent = parent.filter(|parent| import.has(parent));
        let id = row.organization_id.as_ref();
        let is_missing = import.is_missing(&whose, "organization", id, parent.as_ref());
        let is_paused = row.blocked == Some(true) || is_missing;
        let rules = import.budget_rules(&whose, &row.limits, is_paused);
        import.add_budget(source, parent, &[&row.team_alias], rules, row.spend);
    }
    for row in &tables.users {
        let source = BudgetSource::User(row.user_id.clone());
        let whose = source.to_string();
        import.note_limits(&whose, &row.limits);
        import.note_rate(&whose, row.limits.rpm_limit);
        import.note_models(&whose, &row.models);
        let rules = import.budget_rules(&whose, &row.limits, false);
        import.add_budget(source, None, &[&row.user_alias, &row.user_email], rules, row.spend);
    }
    let (teams, users) =
        (by_id(&tables.teams, |row| &row.team_id), by_id(&tables.users, |row| &row.user_id));
    let mut hashes = BTreeSet::new();
    for row in &tables.keys {
        let owner = KeyOwner {
            team: row.team_id.as_ref().and_then(|id| teams.get(id.as_str()).copied()),
            user: row.user_id.as_ref().and_then(|id| users.get(id.as_str()).copied()),
            shared: row.budget_id.as_ref().and_then(|id| tables.budgets.get(id)),
        };
        import.add_key(row, owner, &mut hashes);
    }
    import
}

/// The rows that a key names.
#[derive(Clone, Copy)]
struct KeyOwner<'a> {
    team: Option<&'a TeamRow>,
    user: Option<&'a UserRow>,
    shared: Option<&'a BudgetRow>,
}

/// The rows of a table by their ids. Of two with one id, the first counts.
fn by_id<T>(rows: &[T], id: fn(&T) -> &String) -> BTreeMap<&str, &T> {
    rows.iter().rev().map(|row| (id(row).as_str(), row)).collect()
}

/// The cycle of a duration.
fn cycle(duration: Option<&str>) -> Option<Cycle> {
    match duration {
        None => Some(Cycle::Total),
        Some("1d" | "24h") => Some(Cycle::Daily),
        Some("7d") => Some(Cycle::Weekly),
        Some("30d" | "1mo") => Some(Cycle::Monthly),
        Some(_) => None,
    }
}

impl Import {
    /// The spend limit of some limits. A limit of an unknown duration is kept for ever, so that it never allows more.
    fn spend_limit(&mut self, whose: &str, limits: &rows::Limits) -> Option<SpendLimit> {
        let amount = limits.max_budget.map(amount)?;
        let duration = limits.budget_duration.as_deref();
        let cycle = cycle(duration).unwrap_or_else(|| {
            let duration = duration.unwrap_or_default();
            self.notes.push(format!("{whose}: the duration {duration} becomes total"));
            Cycle::Total
        });
        Some(SpendLimit { amount, cycle })
    }

    /// Whether a row names another one that is in no table. What may be limited by it is then paused.
    fn is_missing<T>(
        &mut self,
        whose: &str,
        noun: &str,
        id: Option<&String>,
        found: Option<T>,
    ) -> bool {
        let Some(id) = id.filter(|_| found.is_none()) else { return false };
        self.notes.push(format!("{whose}: its {noun} {id} is in no table, so it is paused"));
        true
    }

    /// Whether there is a budget of a row.
    fn has(&self, source: &BudgetSource) -> bool {
        self.sources.contains(source)
    }

    fn budget_rules(&mut self, whose: &str, limits: &rows::Limits, is_paused: bool) -> BudgetRules {
        let limit = self.spend_limit(whose, limits);
        // A limit is above 0.
        let is_nothing = limit.is_some_and(|limit| !limit.amount.is_positive());
        BudgetRules {
            status: match is_paused || is_nothing {
                true => BudgetStatus::Paused,
                false => BudgetStatus::Active,
            },
            spend_limit: limit.filter(|_| !is_nothing),
            ..BudgetRules::default()
        }
    }

    /// Adds the budget of a row. Its name is the first of `names` that has letters, else its id.
    fn add_budget(
        &mut self,
        source: BudgetSource,
        parent: Option<BudgetSource>,
        names: &[&Option<String>],
        rules: BudgetRules,
        spend: f64,
    ) {
        if !self.sources.insert(source.clone()) {
            self.notes.push(format!("{source}: it has another row, which is left out"));
            return;
        }
        let names = names.iter().filter_map(|name| name.as_deref());
        let name = name_of(names.chain([source.pair().1, "LiteLLM budget"]));
        self.budgets.push(ImportedBudget { source, parent, name, rules, spent: amount(spend) });
    }

    fn add_key(&mut self, row: &KeyRow, owner: KeyOwner<'_>, hashes: &mut BTreeSet<KeyHash>) {
        let KeyOwner { team, user, shared } = owner;
        let names = [&row.key_alias, &row.key_name].into_iter().filter_map(|name| name.as_deref());
        let name = name_of(names.chain(["LiteLLM key"]));
        let whose = format!("key {name}");
        if row.team_id.as_deref() == Some(SESSIONS) {
            return;
        }
        let Some(hash) = hash(&row.token) else {
            self.notes.push(format!("{whose}: it is not stored as a SHA-256, so it is left out"));
            return;
        };
        if !hashes.insert(hash) {
            self.notes.push(format!("{whose}: it has another row, which is left out"));
            return;
        }
        let limits = row.limits.with_defaults(shared.map(|budget| &budget.limits));
        self.note_limits(&whose, &limits);
        for (name, column) in [("aliases", &row.aliases), ("permissions", &row.permissions)] {
            if has_fields(column) {
                self.notes.push(format!("{whose}: {name} has no counterpart"));
            }
        }
        for name in ["model_rpm_limit", "model_tpm_limit"] {
            if row.metadata.get(name).is_some_and(has_fields) {
                self.notes.push(format!("{whose}: {name} has no counterpart"));
            }
        }
        if let (Some(_), Some(user)) = (team, user)
            && user.limits.max_budget.is_some()
        {
            let id = &user.user_id;
            self.notes
                .push(format!("{whose}: the limit of user {id} does not apply beside the team's"));
        }
        let organization = row.organization_id.as_ref();
        let organization = organization.map(|id| BudgetSource::Organization(id.clone()));
        let organization = organization.filter(|organization| self.has(organization));
        let budget = team
            .map(|team| BudgetSource::Team(team.team_id.clone()))
            .or_else(|| user.map(|user| BudgetSource::User(user.user_id.clone())))
            .or_else(|| organization.clone());
        let limit = self.spend_limit(&whose, &limits);
        let is_nothing = limit.is_some_and(|limit| !limit.amount.is_positive());
        let rate =
            limits.rpm_limit.map(|rpm| u32::try_from(rpm.clamp(0, 1_000_000)).unwrap_or_default());
        let expires_at = row.expires.as_deref().map(instant);
        if expires_at == Some(None) {
            let expires = row.expires.as_deref().unwrap_or_default();
            self.notes.push(format!("{whose}: {expires} is no time, so it is paused"));
        }
        let makes_no_calls = !row.allowed_routes.is_empty()
            && !row.allowed_routes.iter().any(|route| route == "llm_api_routes");
        if !row.allowed_routes.is_empty() {
            let end = if makes_no_calls { ", so it is paused" } else { "" };
            self.notes.push(format!("{whose}: allowed_routes has no counterpart{end}"));
        }
        let is_paused = [
            row.blocked == Some(true),
            is_nothing,
            rate == Some(0),
            expires_at == Some(None),
            makes_no_calls,
            self.is_missing(&whose, "team", row.team_id.as_ref(), team),
            self.is_missing(&whose, "budget", row.budget_id.as_ref(), shared),
            // The team, where there is one, is in its organization.
            team.is_none()
                && self.is_missing(
                    &whose,
                    "organization",
                    row.organization_id.as_ref(),
                    organization,
                ),
        ];
        if let (None, Some(id)) = (user, &row.user_id) {
            self.notes.push(format!("{whose}: its user {id} is in no table"));
        }
        let rules = SpendRules {
            status: match is_paused.contains(&true) {
                true => SpendKeyStatus::Paused,
                false => SpendKeyStatus::Active,
            },
            allowed_models: self.models(&whose, &row.models, team),
            spend_limit: limit.filter(|_| !is_nothing),
            rate_limit: rate.filter(|rpm| *rpm > 0).map(|rpm| RateLimit { rpm, burst: rpm }),
            expires_at: expires_at.flatten(),
            ..SpendRules::default()
        };
        let preview = row.key_name.clone().unwrap_or_else(|| "sk-…".to_owned());
        let spent = amount(row.spend);
        self.keys.push(ImportedKey { hash, preview, name, budget, rules, spent });
    }

    /// The models that a key may call. `None` allows all.
    fn models(
        &mut self,
        whose: &str,
        models: &[String],
        team: Option<&TeamRow>,
    ) -> Option<Vec<String>> {
        let has = |name: &str| models.iter().any(|model| model == name);
        let all = |models: &[String]| {
            models.is_empty() || models.iter().any(|model| model == "all-proxy-models")
        };
        let of_team = team.map(|team| team.models.as_slice()).unwrap_or_default();
        if has("all-team-models") {
            return (!all(of_team)).then(|| of_team.to_vec());
        }
        if let Some(team) = team
            && !all(of_team)
            && (all(models) || models.iter().any(|model| !of_team.contains(model)))
        {
            let id = &team.team_id;
            self.notes.push(format!("{whose}: it may call models that team {id} does not list"));
        }
        if all(models) {
            return None;
        }
        Some(models.iter().filter(|model| *model != "no-default-models").cloned().collect())
    }

    /// Notes the limits that have no counterpart anywhere.
    fn note_limits(&mut self, whose: &str, limits: &rows::Limits) {
        let unknown = [
            ("tpm_limit", limits.tpm_limit.is_some()),
            ("tpd_limit", limits.tpd_limit.is_some()),
            ("max_parallel_requests", limits.max_parallel_requests.is_some()),
            ("soft_budget", limits.soft_budget.is_some()),
            ("model_max_budget", has_fields(&limits.model_max_budget)),
            ("budget_limits", has_fields(&limits.budget_limits)),
            ("project_id", limits.project_id.is_some()),
        ];
        let found = unknown.into_iter().filter(|(_, is_set)| *is_set);
        self.notes.extend(found.map(|(name, _)| format!("{whose}: {name} has no counterpart")));
    }

    fn note_rate(&mut self, whose: &str, rpm_limit: Option<i64>) {
        if rpm_limit.is_some() {
            self.notes.push(format!("{whose}: rpm_limit has no counterpart on a budget"));
        }
    }

    fn note_models(&mut self, whose: &str, models: &[String]) {
        if !models.is_empty() {
            self.notes.push(format!("{whose}: its list of models has no counterpart on a budget"));
        }
    }
}

/// Whether a JSON column has something in it.
fn has_fields(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Object(fields) => !fields.is_empty(),
        serde_json::Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

/// The first of `names` that has letters: at most 255 characters, without control characters.
fn name_of<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let clean = |name: &str| {
        let letters = name.trim().chars().filter(|letter| !letter.is_control());
        letters.take(255).collect::<String>()
    };
    names.find_map(|name| Some(clean(name)).filter(|name| !name.is_empty())).unwrap_or_default()
}
