//! `tollgate merchant move`: a merchant goes to the database of another cell.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::json;
use tollgate_domain::MerchantId;
use tollgate_store::moving::{MoveError, MoveReport};
use tollgate_store::{DatabaseUrl, Store, cells};

use crate::config::TollgateConfig;
use crate::database::{open, open_at};
use crate::output::{print, print_line, print_lines};
use crate::progress::Progress;

#[derive(Args)]
pub(crate) struct MoveArgs {
    /// The merchant.
    #[arg(value_name = "mch_…")]
    merchant: MerchantId,
    /// The database of the other cell, as in `database_url`.
    #[arg(long, value_name = "URL", required_unless_present = "take_back")]
    to: Option<String>,
    /// Serve the merchant here again, because a move was interrupted and the other database is lost.
    #[arg(long, conflicts_with = "to")]
    take_back: bool,
    /// Also after a completed move. The merchant is then as it was before the move.
    #[arg(long, requires = "take_back")]
    lost: bool,
    /// The longest wait for calls that are open.
    #[arg(long, default_value_t = 60, value_name = "N")]
    wait_seconds: u64,
}

pub(crate) async fn run(
    config: &TollgateConfig,
    what: MoveArgs,
    as_json: bool,
) -> anyhow::Result<()> {
    let MoveArgs { merchant, to, lost, wait_seconds, .. } = what;
    let source = open(config)?;
    let Some(to) = to else { return take_back(&source, merchant, lost, as_json).await };
    let to: DatabaseUrl = to.parse().map_err(|why| anyhow!("--to: {why}"))?;
    let target = open_at(config, &to)?;
    let mut progress = Progress::new();
    progress.update("copying, while calls go on …");
    let moved = source.move_merchant(&target, merchant, Duration::from_secs(wait_seconds)).await;
    let moved = match moved {
        // A command before this one has done it, and perhaps could not say so.
        Err(MoveError::HasMoved(_)) => None,
        moved => Some(moved.with_context(|| format!("{merchant} is not moved"))?),
    };
    progress.update("recomputing everything from both ledgers …");
    let mut audits = Vec::new();
    for (place, store) in [("this database", &source), ("the other one", &target)] {
        let differences = audit(store).await;
        let differences = differences
            .with_context(|| format!("{merchant} has moved, but {place} cannot be audited"))?;
        audits.push((place, differences));
    }
    progress.clear();
    let differences: Vec<_> = audits.iter().flat_map(|(_, differences)| differences).collect();
    let cell = target.read(cells::number).await?;
    let value = json!({
        "merchant_id": merchant,
        "cell": cell.get(),
        "rows": moved.as_ref().map(|moved| &moved.rows),
        "pause_ms": moved.as_ref().map(|moved| moved.pause.as_millis()),
        "differences": differences,
    });
    let text = match moved {
        None => format!("{merchant} is in cell {cell} already."),
        Some(MoveReport { rows, pause }) => format!(
            "{merchant} is in cell {cell}: {} rows, {} requests among them. Its calls were refused for {:.1} s.\n\
             Print the router's configuration with its keys now: `tollgate route … --moved FILE`.",
            rows.values().sum::<i64>(),
            rows.get("requests").copied().unwrap_or_default(),
            pause.as_secs_f64(),
        ),
    };
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

async fn take_back(
    source: &Store,
    merchant: MerchantId,
    is_lost: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    match source.take_merchant_back(merchant, is_lost).await {
        Err(MoveError::HasMoved(cell)) => bail!(
            "{merchant} is not taken back: cell {cell} has it. If its database is lost, `--lost` takes the merchant \
             back as it was before the move"
        ),
        taken => taken.with_context(|| format!("{merchant} is not taken back"))?,
    }
    let value = json!({"merchant_id": merchant});
    print(as_json, &value, &format!("{merchant} is served here again."))
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
        true => keys.iter().try_for_each(|key| print_line(json!({"key": key, "cell": cell.get()}))),
        false => print_lines(&keys.iter().map(|key| format!("{key} {cell}")).collect::<Vec<_>>()),
    }
}
