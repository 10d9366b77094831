//! `tollgate merchant move`: a merchant goes to the database of another cell.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::json;
use tollgate_domain::MerchantId;
use tollgate_store::{DatabaseUrl, Store, cells};

use crate::config::TollgateConfig;
use crate::database::{open, open_at};
use crate::output::{print, print_lines};
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct MoveArgs {
    /// The merchant.
    #[arg(value_name = "mch_…")]
    merchant: MerchantId,
    /// The database of the other cell, as in `database_url`.
    #[arg(long, value_name = "URL")]
    to: String,
    /// The longest wait for calls that are open.
    #[arg(long, default_value_t = 60, value_name = "N")]
    wait_seconds: u64,
}

pub(crate) async fn run(
    config: &TollgateConfig,
    what: MoveArgs,
    as_json: bool,
) -> anyhow::Result<()> {
    let MoveArgs { merchant, to, wait_seconds } = what;
    let to: DatabaseUrl = to.parse().map_err(|why| anyhow!("--to: {why}"))?;
    let (source, target) = (open(config)?, open_at(config, &to)?);
    let mut progress = Progress::new();
    progress.update("copying, while calls go on …");
    let moved = source.move_merchant(&target, merchant, Duration::from_secs(wait_seconds)).await;
    let moved = moved.with_context(|| format!("{merchant} is not moved"))?;
    progress.update("recomputing everything from both ledgers …");
    let audits =
        [("this database", audit(&source).await?), ("the other one", audit(&target).await?)];
    progress.clear();
    let differences: Vec<_> = audits.iter().flat_map(|(_, differences)| differences).collect();
    let rows: i64 = moved.rows.values().sum();
    let value = json!({
        "merchant_id": merchant,
        "cell": moved.cell.get(),
        "rows": moved.rows,
        "pause_ms": moved.pause.as_millis(),
        "differences": differences,
    });
    let text = format!(
        "{merchant} is in cell {}: {rows} rows, {} requests among them. Its calls were refused for {:.1} s.\n\
         Print the router's configuration with its keys now: `tollgate route … --moved FILE`.",
        moved.cell,
        moved.rows.get("requests").copied().unwrap_or_default(),
        moved.pause.as_secs_f64(),
    );
    print(as_json, &value, &text)?;
    if differences.is_empty() {
        return Ok(());
    }
    for (place, differences) in &audits {
        for difference in differences {
            eprintln!("{place}: {difference}");
        }
    }
    bail!("the merchant has moved, and an audit finds {} differences", differences.len())
}

async fn audit(store: &Store) -> anyhow::Result<Vec<String>> {
    let audit = store.audit().await?;
    Ok(audit.differences.iter().map(ToString::to_string).collect())
}

/// Prints the keys that other cells have made, for `tollgate route --moved`.
pub(crate) async fn print_moved_keys(config: &TollgateConfig, as_json: bool) -> anyhow::Result<()> {
    let store = open(config)?;
    let (cell, keys) = store
        .read(|conn| {
            Ok::<_, tollgate_store::StoreError>((cells::number(conn)?, cells::moved_keys(conn)?))
        })
        .await?;
    match as_json {
        true => {
            let keys: Vec<_> =
                keys.iter().map(|key| json!({"key": key, "cell": cell.get()})).collect();
            print(true, &json!(keys), "")
        }
        false => print_lines(&keys.iter().map(|key| format!("{key} {cell}")).collect::<Vec<_>>()),
    }
}
