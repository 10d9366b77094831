//! `tollgate import`: the teams, users and keys of another gateway become budgets and spend keys.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};
use tollgate_domain::{
    Budget, BudgetId, BudgetStatus, Clock, MerchantId, Metadata, NewSpendKey, SpendCounters,
    SpendKeyStatus, SpendLimit, Timestamp,
};
use tollgate_litellm_import::{BudgetSource, Import, ImportedBudget, ImportedKey, Tables, import};
use tollgate_pricing::Amount;
use tollgate_store::imports::{self, ImportSource};
use tollgate_store::{Conn, Store, StoreError, budgets, merchants, spend_keys};

use crate::config::TollgateConfig;
use crate::database::store_of;
use crate::output::{print_line, printable};

#[derive(Subcommand)]
pub(crate) enum ImportCommand {
    /// Import the organizations, teams, users and keys of a LiteLLM proxy.
    Litellm {
        /// The merchant that gets them.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// The tables: each the JSON array of its rows, in a file with the name of the table.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print what would be imported, and import nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn run(
    config: &TollgateConfig,
    command: ImportCommand,
    json: bool,
) -> anyhow::Result<()> {
    let ImportCommand::Litellm { merchant, files, dry_run } = command;
    let mut tables = Tables::default();
    for file in &files {
        let table = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        tables.add(table, &text).map_err(|error| anyhow!("{}: {error}", file.display()))?;
    }
    let import = Arc::new(import(&tables));
    let (store, now) = (store_of(config, merchant).await?, Clock::system().now());
    let sought = Arc::clone(&import);
    let mut state = store.read(move |conn| ImportState::of(conn, merchant, &sought)).await?;
    if !dry_run {
        state = book(&store, merchant, &import, state, now).await?;
    }
    ImportReport { import, state }.print(json, dry_run)
}

/// The budgets or keys that are written in one transaction. A running service waits for each.
const BATCH: usize = 200;

/// The state of a budget or a key that is to be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowState {
    New,
    /// It was imported before.
    Known,
    /// Another merchant has imported it, so it is left out.
    Taken,
}

/// The rows of an import that are new.
struct ImportState {
    /// The ids of the budgets that are made or were made before, by their rows.
    ids: HashMap<String, BudgetId>,
    /// In the order of the import.
    budgets: Vec<RowState>,
    keys: Vec<RowState>,
}

impl ImportState {
    fn of(conn: &mut Conn, merchant_id: MerchantId, import: &Import) -> anyhow::Result<Self> {
        let ids = imports::budgets(conn, merchant_id)?;
        let state = |one: &ImportedBudget| match ids.contains_key(&one.source.to_string()) {
            true => RowState::Known,
            false => RowState::New,
        };
        let budgets = import.budgets.iter().map(state).collect();
        let keys = import.keys.iter().map(|key| state_of_key(conn, merchant_id, key));
        let keys = keys.collect::<Result<_, _>>()?;
        Ok(Self { ids, budgets, keys })
    }
}

fn state_of_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    key: &ImportedKey,
) -> Result<RowState, StoreError> {
    Ok(match imports::owner_of_key(conn, &key.hash)? {
        None => RowState::New,
        Some(owner) if owner == merchant_id => RowState::Known,
        Some(_) => RowState::Taken,
    })
}

/// Makes the budgets and keys that are new. An import that was interrupted is continued by the next one.
async fn book(
    store: &Store,
    merchant_id: MerchantId,
    import: &Arc<Import>,
    mut state: ImportState,
    now: Timestamp,
) -> anyhow::Result<ImportState> {
    for begin in (0..import.budgets.len()).step_by(BATCH) {
        let import = Arc::clone(import);
        state = store
            .write(move |conn| {
                merchants::lock_here(conn, merchant_id)?;
                // Another import may have made some meanwhile.
                state.ids.extend(imports::budgets(conn, merchant_id)?);
                let rows = import.budgets.iter().zip(&mut state.budgets).skip(begin).take(BATCH);
                for (one, row) in rows.filter(|(_, row)| **row == RowState::New) {
                    let source = one.source.to_string();
                    if state.ids.contains_key(&source) {
                        *row = RowState::Known;
                    } else {
                        let id = book_budget(conn, merchant_id, one, &state.ids, now)?;
                        state.ids.insert(source, id);
                    }
                }
                anyhow::Ok(state)
            })
            .await?;
    }
    for begin in (0..import.keys.len()).step_by(BATCH) {
        let import = Arc::clone(import);
        state = store
            .write(move |conn| {
                merchants::lock_here(conn, merchant_id)?;
                let rows = import.keys.iter().zip(&mut state.keys).skip(begin).take(BATCH);
                for (key, row) in rows.filter(|(_, row)| **row == RowState::New) {
                    *row = state_of_key(conn, merchant_id, key)?;
                    if *row == RowState::New {
                        book_key(conn, merchant_id, key, &state.ids, now)?;
                    }
                }
                anyhow::Ok(state)
            })
            .await?;
    }
    Ok(state)
}

fn book_budget(
    conn: &mut Conn,
    merchant_id: MerchantId,
    one: &ImportedBudget,
    ids: &HashMap<String, BudgetId>,
    now: Timestamp,
) -> anyhow::Result<BudgetId> {
    let (key, id) = one.source.pair();
    let budget = Budget {
        budget_id: BudgetId::generate(now),
        merchant_id,
        parent_id: one.parent.as_ref().and_then(|parent| ids.get(&parent.to_string()).copied()),
        name: one.name.clone(),
        rules: one.rules.clone(),
        // For people. An id that fits no metadata is left out.
        metadata: Metadata::from_json(&json!({key: id})).unwrap_or_default(),
        counters: SpendCounters::default(),
        created_at: now,
    };
    let source = ImportSource {
        merchant_id,
        name: one.source.to_string(),
        spent: one.spent,
        imported_at: now,
    };
    let made = budgets::import(conn, &budget, &source)?;
    made.map_err(|fault| anyhow!("the budget of {}: {fault:?}", one.source))?;
    Ok(budget.budget_id)
}

fn book_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    key: &ImportedKey,
    ids: &HashMap<String, BudgetId>,
    now: Timestamp,
) -> anyhow::Result<()> {
    let new = NewSpendKey {
        name: key.name.clone(),
        wallet_id: None,
        meter_id: None,
        budget_id: key.budget.as_ref().and_then(|source| ids.get(&source.to_string()).copied()),
        rules: key.rules.clone(),
    };
    let source = ImportSource {
        merchant_id,
        name: imports::name_of_key(&key.hash),
        spent: key.spent,
        imported_at: now,
    };
    let made = spend_keys::import(conn, &new, (&key.hash, key.preview.clone()), &source)?;
    made.map_err(|missing| anyhow!("key {}: no {missing:?}", key.name))?;
    Ok(())
}

/// The outcome of an import: what it has found, and what of it is new.
struct ImportReport {
    import: Arc<Import>,
    state: ImportState,
}

impl ImportReport {
    fn print(&self, json: bool, dry_run: bool) -> anyhow::Result<()> {
        if json {
            return print_line(self.to_json(dry_run));
        }
        let mut tree = ImportTree::default();
        for row in self.budgets() {
            tree.budgets.entry(row.0.parent.as_ref()).or_default().push(row);
        }
        for row in self.keys() {
            tree.keys.entry(row.0.budget.as_ref()).or_default().push(row);
        }
        tree.print(None, 0)?;
        for note in &self.import.notes {
            print_line(format_args!("note: {}", printable(note)))?;
        }
        let new = |rows: &[RowState]| rows.iter().filter(|row| **row == RowState::New).count();
        let done = if dry_run { "Nothing was imported" } else { "They are imported" };
        print_line(format_args!(
            "{} of {} budgets and {} of {} keys are new. {done}.",
            new(&self.state.budgets),
            self.import.budgets.len(),
            new(&self.state.keys),
            self.import.keys.len(),
        ))
    }

    fn budgets(&self) -> impl Iterator<Item = (&ImportedBudget, RowState)> {
        self.import.budgets.iter().zip(self.state.budgets.iter().copied())
    }

    fn keys(&self) -> impl Iterator<Item = (&ImportedKey, RowState)> {
        self.import.keys.iter().zip(self.state.keys.iter().copied())
    }

    fn to_json(&self, dry_run: bool) -> Value {
        let budgets = self.budgets().map(|(one, row)| {
            let source = one.source.to_string();
            json!({
                "name": one.name,
                "is_new": row == RowState::New,
                "budget_id": self.state.ids.get(&source),
                "source": source,
            })
        });
        let keys = self.keys().map(|(key, row)| {
            json!({
                "name": key.name,
                "key_preview": key.preview,
                "budget": key.budget.as_ref().map(ToString::to_string),
                "is_new": row == RowState::New,
                "is_of_another_merchant": row == RowState::Taken,
            })
        });
        json!({
            "dry_run": dry_run,
            "budgets": budgets.collect::<Vec<_>>(),
            "keys": keys.collect::<Vec<_>>(),
            "notes": self.import.notes,
        })
    }
}

/// The budgets and keys below each budget, and those below none.
#[derive(Default)]
struct ImportTree<'a> {
    budgets: BTreeMap<Option<&'a BudgetSource>, Vec<(&'a ImportedBudget, RowState)>>,
    keys: BTreeMap<Option<&'a BudgetSource>, Vec<(&'a ImportedKey, RowState)>>,
}

impl ImportTree<'_> {
    /// Prints what is below a budget: its keys and budgets, or the budgets and keys below none.
    fn print(&self, above: Option<&BudgetSource>, level: usize) -> anyhow::Result<()> {
        let indent = "  ".repeat(level);
        for (key, row) in self.keys.get(&above).into_iter().flatten() {
            let (name, preview) = (printable(&key.name), printable(&key.preview));
            let terms = terms(
                *row,
                key.rules.spend_limit,
                key.spent,
                key.rules.status == SpendKeyStatus::Paused,
            );
            print_line(format_args!("{} {indent}key {name} ({preview}): {terms}", mark(*row)))?;
        }
        for (budget, row) in self.budgets.get(&above).into_iter().flatten() {
            let (name, source) = (printable(&budget.name), printable(&budget.source.to_string()));
            let terms = terms(
                *row,
                budget.rules.spend_limit,
                budget.spent,
                budget.rules.status == BudgetStatus::Paused,
            );
            print_line(format_args!("{} {indent}{name} ({source}): {terms}", mark(*row)))?;
            self.print(Some(&budget.source), level.saturating_add(1))?;
        }
        Ok(())
    }
}

fn mark(row: RowState) -> &'static str {
    match row {
        RowState::New => "+",
        RowState::Known => "=",
        RowState::Taken => "!",
    }
}

/// The terms of what is new. What was imported before may have others now.
fn terms(row: RowState, limit: Option<SpendLimit>, spent: Amount, is_paused: bool) -> String {
    let limit = match (row, limit) {
        (RowState::Known, _) => return "imported before".to_owned(),
        (RowState::Taken, _) => return "left out, for another merchant has imported it".to_owned(),
        (RowState::New, None) => "no limit".to_owned(),
        (RowState::New, Some(SpendLimit { amount, cycle })) => {
            format!("{amount} USD {}", json!(cycle).as_str().unwrap_or_default())
        }
    };
    let paused = if is_paused { ", paused" } else { "" };
    format!("{limit}, {spent} spent{paused}")
}
