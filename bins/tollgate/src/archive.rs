//! `tollgate archive`: months of old records in sealed files.

use anyhow::{anyhow, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use tollgate_store::archiving::SealedMonth;

use crate::config::TollgateConfig;
use crate::database::open;
use crate::output::{print, print_line, print_list};
use crate::progress::Progress;

#[derive(Subcommand)]
pub(crate) enum ArchiveCommand {
    /// Move the months that are due to the archive.
    Run,
    /// List the months in the archive.
    List,
    /// Read the files again and compare them with their manifests; exit with 1 and the name of a file that differs.
    Verify {
        /// The month, such as 2026-01; all months without it.
        #[arg(value_name = "YYYY-MM")]
        month: Option<String>,
    },
}

pub(crate) async fn run(
    config: &TollgateConfig,
    command: ArchiveCommand,
    json: bool,
) -> anyhow::Result<()> {
    if config.archive.is_none() {
        bail!("there is no archive: name it by `archive_url` in the configuration");
    }
    match command {
        ArchiveCommand::Run => archive(config, json).await,
        ArchiveCommand::List => list(config, json).await,
        ArchiveCommand::Verify { month } => verify(config, month.as_deref(), json).await,
    }
}

async fn archive(config: &TollgateConfig, json: bool) -> anyhow::Result<()> {
    let keep_days = config
        .records_keep_days
        .ok_or_else(|| anyhow!("no month leaves: set `records_keep_days` in the configuration"))?;
    let store = open(config)?;
    let mut progress = Progress::new();
    progress.update("moving months to the archive …");
    let done = store.archive_months(keep_days).await;
    progress.clear();
    let done = done?;
    store.close().await?;
    let waits = done.waits.as_ref().map(ToString::to_string);
    let sealed: Vec<Value> = done.sealed.iter().map(to_json).collect();
    let mut lines: Vec<_> =
        done.sealed.iter().map(|month| format!("{}: {}.", month.month, contents(month))).collect();
    match &waits {
        Some(why) => lines.push(format!("{why}.")),
        None if lines.is_empty() => lines.push("No month is due.".to_owned()),
        None => {}
    }
    print(json, &json!({"sealed": sealed, "waits": waits}), &lines.join("\n"))
}

async fn list(config: &TollgateConfig, json: bool) -> anyhow::Result<()> {
    let months = open(config)?.archived_months().await?;
    let header = ["MONTH", "RECORDS", "REFUSALS", "FILES", "BYTES", "SEALED", "MANIFEST"];
    let items = months.iter().map(|month| {
        let sealed = month.sealed_at.to_string();
        let row = [
            month.month.clone(),
            rows_of(month, "requests").to_string(),
            rows_of(month, "refusals").to_string(),
            month.files.len().to_string(),
            bytes_of(month).to_string(),
            sealed,
            month.manifest.clone(),
        ];
        (to_json(month), row)
    });
    print_list(json, header, items.collect())
}

async fn verify(config: &TollgateConfig, month: Option<&str>, json: bool) -> anyhow::Result<()> {
    let store = open(config)?;
    let mut months = store.archived_months().await?;
    if let Some(month) = month {
        months.retain(|one| one.month == month);
        if months.is_empty() {
            bail!("{month} is not in the archive");
        }
    }
    if months.is_empty() && !json {
        print_line("The archive has no months.")?;
    }
    for month in &months {
        store.verify_archive(&month.month).await?;
        let text = format!("{}: {} as sealed.", month.month, contents(month));
        match json {
            true => print_line(to_json(month))?,
            false => print_line(text)?,
        }
    }
    Ok(())
}

fn rows_of(month: &SealedMonth, table: &str) -> u64 {
    month.files.iter().filter(|file| file.table == table).map(|file| file.rows).sum()
}

fn bytes_of(month: &SealedMonth) -> u64 {
    month.files.iter().map(|file| file.bytes).sum()
}

fn contents(month: &SealedMonth) -> String {
    format!(
        "{} records and {} refusals in {} files, {} bytes",
        rows_of(month, "requests"),
        rows_of(month, "refusals"),
        month.files.len(),
        bytes_of(month)
    )
}

fn to_json(month: &SealedMonth) -> Value {
    json!({
        "month": month.month,
        "records": rows_of(month, "requests"),
        "refusals": rows_of(month, "refusals"),
        "bytes": bytes_of(month),
        "sealed_at": month.sealed_at.to_string(),
        "manifest": month.manifest,
        "leaving": month.leaving,
        "files": month.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
    })
}
