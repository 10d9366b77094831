//! `tollgate budget`: the budgets of a merchant, by the rules of the API.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tollgate_api::ApiError;
use tollgate_api::operations::{budget_to_json, change_budget, delete_budget, make_budget};
use tollgate_domain::{Budget, BudgetId, BudgetTree, Clock, Cycle, MerchantId, Timestamp};
use tollgate_store::{Page, budgets};

use crate::config::TollgateConfig;
use crate::database::store_of;
use crate::output::{print, print_list, printable, with_issues};

#[derive(Subcommand)]
pub(crate) enum BudgetCommand {
    /// Create a budget.
    Create {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// Its display name, of 1 to 255 characters.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        rules: Box<BudgetArgs>,
    },
    /// List the budgets of a merchant as a tree, with the use of their limits.
    List {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
    },
    /// Change a budget. What no option names stays as it is.
    Update {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// The budget.
        #[arg(value_name = "bud_…")]
        budget: BudgetId,
        /// Its display name, of 1 to 255 characters.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        rules: Box<BudgetArgs>,
    },
    /// Delete a budget that no budget, spend key or connection names.
    Delete {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// The budget.
        #[arg(value_name = "bud_…")]
        budget: BudgetId,
    },
}

/// The rules of a budget. `none` clears one.
#[derive(Args)]
pub(crate) struct BudgetArgs {
    /// The budget that includes it, or `none`.
    #[arg(long, value_name = "bud_…")]
    parent: Option<String>,
    /// The most US dollars per cycle, or `none`.
    #[arg(long, value_name = "AMOUNT")]
    spend_limit: Option<String>,
    /// The cycle of the spend limit: daily, weekly, monthly or total. Default: that of the limit before, else monthly.
    #[arg(long, value_name = "CYCLE", requires = "spend_limit")]
    spend_cycle: Option<String>,
    /// The most calls per cycle, or `none`.
    #[arg(long, value_name = "COUNT")]
    request_limit: Option<String>,
    /// The cycle of the request limit: daily, weekly, monthly or total. Default: that of the limit before, else daily.
    #[arg(long, value_name = "CYCLE", requires = "request_limit")]
    request_cycle: Option<String>,
    /// The way in which the limits are kept: bounded, strict, or observe, which refuses nothing.
    #[arg(long, value_name = "MODE")]
    enforcement: Option<String>,
    /// The time zone by whose midnights cycles begin, such as Europe/Berlin.
    #[arg(long, value_name = "NAME")]
    time_zone: Option<String>,
    /// Whether calls are accepted: active or paused.
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// A pair of metadata that a call must have to count; all of several; or `none`.
    #[arg(long = "match", value_name = "KEY=VALUE")]
    pairs: Vec<String>,
    /// The shares of the spend limit that are reported, in percent, such as 50,100; or `none`.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    alerts: Vec<String>,
}

pub(crate) async fn budget(
    config: &TollgateConfig,
    command: BudgetCommand,
    json: bool,
) -> anyhow::Result<()> {
    let now = Clock::system().now();
    match command {
        BudgetCommand::Create { merchant, name, rules } => {
            let store = store_of(config, merchant).await?;
            let described = described(Some(name), &rules, None)?;
            let make = move |conn: &mut _| make_budget(conn, merchant, described, now);
            let made = store.write(make).await.map_err(with_issues)?;
            let text = format!("{} is made.", made.budget_id);
            print(json, &budget_to_json(&made, now), &text)
        }
        BudgetCommand::List { merchant } => {
            let store = store_of(config, merchant).await?;
            let all = Page { after: None, limit: u32::MAX };
            let found = store.read(move |conn| budgets::list(conn, merchant, &all)).await?;
            let tree: BudgetTree = found.into_iter().collect();
            let roots = tree.iter().filter(|budget| budget.parent_id.is_none());
            let mut items = Vec::new();
            roots.for_each(|root| add_items(&tree, root, 0, now, &mut items));
            print_list(json, ["BUDGET", "STATUS", "SPENT", "LIMIT", "NAME"], items)
        }
        BudgetCommand::Update { merchant, budget, name, rules } => {
            let store = store_of(config, merchant).await?;
            let find = move |conn: &mut _| budgets::find(conn, merchant, budget);
            let before = store.read(find).await?;
            let described = described(name, &rules, before.as_ref())?;
            let change = move |conn: &mut _| change_budget(conn, merchant, budget, described, now);
            let changed = store.write(change).await.map_err(with_issues)?;
            print(json, &budget_to_json(&changed, now), &format!("{budget} is changed."))
        }
        BudgetCommand::Delete { merchant, budget } => {
            let store = store_of(config, merchant).await?;
            let delete = move |conn: &mut _| delete_budget(conn, merchant, budget, now);
            store.write(delete).await.map_err(|error: ApiError| with_issues(error))?;
            let value = json!({"id": budget, "deleted": true});
            print(json, &value, &format!("{budget} is deleted."))
        }
    }
}

/// The items of a budget and all below it. On a terminal, names are indented by their level.
fn add_items(
    tree: &BudgetTree,
    budget: &Budget,
    level: usize,
    now: Timestamp,
    items: &mut Vec<(Value, [String; 5])>,
) {
    let value = budget_to_json(budget, now);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let limit = value.get("spend_limit").map(|limit| {
        let part = |name| limit.get(name).map(text).unwrap_or_default();
        format!("{} {}", part("amount"), part("cycle"))
    });
    let row = [
        budget.budget_id.to_string(),
        value.get("status").map(text).unwrap_or_default(),
        value.get("current_spend").map(text).unwrap_or_default(),
        limit.unwrap_or_else(|| "none".to_owned()),
        format!("{}{}", "  ".repeat(level), printable(&budget.name)),
    ];
    items.push((value, row));
    for child in tree.children(budget.budget_id) {
        add_items(tree, child, level.saturating_add(1), now, items);
    }
}

/// The options as a body of the operations. A cycle that is not given is that of `before`.
fn described(
    name: Option<String>,
    rules: &BudgetArgs,
    before: Option<&Budget>,
) -> anyhow::Result<Value> {
    const NONE: &str = "none";
    let before = before.map(|budget| &budget.rules);
    let cycle = |given: &Option<String>, before: Option<Cycle>, default: Cycle| match given {
        Some(cycle) => json!(cycle),
        None => json!(before.unwrap_or(default)),
    };
    let spend_before = before.and_then(|it| it.spend_limit).map(|limit| limit.cycle);
    let spend_cycle = cycle(&rules.spend_cycle, spend_before, Cycle::Monthly);
    let requests_before = before.and_then(|it| it.request_limit).map(|limit| limit.cycle);
    let request_cycle = cycle(&rules.request_cycle, requests_before, Cycle::Daily);
    let mut body = Map::new();
    let mut set = |field: &str, text: Option<&String>, value: &dyn Fn(&str) -> Value| {
        let value = text.map(|text| if text == NONE { Value::Null } else { value(text) });
        body.extend(value.map(|value| (field.to_owned(), value)));
    };
    let text = |text: &str| Value::from(text);
    set("parent_id", rules.parent.as_ref(), &text);
    set("enforcement", rules.enforcement.as_ref(), &text);
    set("time_zone", rules.time_zone.as_ref(), &text);
    set("status", rules.status.as_ref(), &text);
    set(
        "spend_limit",
        rules.spend_limit.as_ref(),
        &|amount| json!({"amount": amount, "cycle": spend_cycle}),
    );
    set("request_limit", rules.request_limit.as_ref(), &|count| {
        let count = count.parse::<u64>().map_or_else(|_| count.into(), Value::from);
        json!({"count": count, "cycle": request_cycle})
    });
    let shares = rules.alerts.iter().filter(|share| *share != NONE);
    let shares =
        shares.map(|share| share.parse::<u64>().map_or_else(|_| json!(share), Value::from));
    if !rules.alerts.is_empty() {
        body.insert("alerts".to_owned(), shares.collect::<Vec<_>>().into());
    }
    match &rules.pairs[..] {
        [] => {}
        [none] if none == NONE => drop(body.insert("match".to_owned(), Value::Null)),
        pairs => {
            let mut all = Map::new();
            for pair in pairs {
                let Some((key, value)) = pair.split_once('=') else {
                    bail!("--match {pair}: expected KEY=VALUE, such as job=nightly, or none");
                };
                if all.insert(key.to_owned(), value.into()).is_some() {
                    bail!("--match names {key} twice: no call has two values of a key");
                }
            }
            body.insert("match".to_owned(), all.into());
        }
    }
    body.extend(name.map(|name| ("name".to_owned(), name.into())));
    Ok(body.into())
}
