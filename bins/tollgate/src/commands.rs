//! The commands that work on the store directly, and the simulated provider.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tollgate_api::probe;
use tollgate_domain::{CellNumber, Clock, MerchantId, TransactionKind};
use tollgate_simulator::{Behavior, Simulator};
use tollgate_store::backup;
use tollgate_store::merchants::{self, SecretKeyDeletion};
use tollgate_store::wallets::{self, MovementOutcome, WalletMovement};
use tollgate_store::{
    DatabaseUrl, MigrationError, MigrationSteps, OpenError, Options, Page, Store, StoreError,
};

use crate::cli::{KeyCommand, MerchantCommand, WalletCommand};
use crate::config::TollgateConfig;
use crate::database::{open, open_newer, open_or_create};
use crate::moving;
use crate::output::{self, print, print_list, print_secret};
use crate::progress::Progress;

/// Reports that a configuration is valid; reading it has checked it.
pub(crate) fn check_config(config: &TollgateConfig, json: bool) -> anyhow::Result<()> {
    let database = format!("{:?}", config.database_url);
    let doubts = config.warnings();
    doubts.iter().for_each(|doubt| eprintln!("note: {doubt}"));
    let value =
        json!({"valid": true, "listen": config.listen, "database": database, "notes": doubts});
    print(json, &value, &format!("The configuration is valid. Database: {database}."))
}

/// Checks that a service takes calls, and fails if it does not.
pub(crate) fn health(
    config: &TollgateConfig,
    address: Option<String>,
    timeout_ms: u64,
    json: bool,
) -> anyhow::Result<()> {
    let address = address.unwrap_or_else(|| client_address(&config.listen));
    let asked = probe(&address, config.tls.as_ref(), Duration::from_millis(timeout_ms));
    let ready = asked.with_context(|| {
        format!("no service answers at {address}: is it running there, with this configuration?")
    })?;
    let value = json!({"ready": ready.is_ready, "status": ready.status, "address": address});
    let said = match ready.is_ready {
        true => format!("{address} takes calls."),
        false => format!("{address} takes no calls: {}.", ready.status),
    };
    print(json, &value, &said)?;
    match ready.is_ready {
        true => Ok(()),
        false => std::process::exit(1),
    }
}

/// The address at which this machine reaches a service that may listen on all of its addresses.
fn client_address(listen: &str) -> String {
    match listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() && address.is_ipv4() => {
            format!("127.0.0.1:{}", address.port())
        }
        Ok(address) if address.ip().is_unspecified() => format!("[::1]:{}", address.port()),
        _ => listen.to_owned(),
    }
}

/// Brings the schema up to date.
pub(crate) fn migrate(config: &TollgateConfig, contract: bool, json: bool) -> anyhow::Result<()> {
    let steps = if contract { MigrationSteps::Contract } else { MigrationSteps::Expand };
    let ran = Store::migrate(&config.database_url, steps)
        .with_context(|| format!("cannot migrate {:?}", config.database_url))?;
    let database = format!("{:?}", config.database_url);
    let text = format!("{database} is up to date; {ran} migrations ran.");
    print(json, &json!({"database": database, "migrations": ran}), &text)
}

/// Copies a SQLite database, and audits the copy.
pub(crate) async fn back_up(
    config: &TollgateConfig,
    file: &Path,
    json: bool,
) -> anyhow::Result<()> {
    let mut progress = Progress::new();
    progress.update("copying the database, and checking the copy …");
    let bytes = backup::back_up(&config.database_url, file)?;
    let copy = DatabaseUrl::Sqlite(file.to_owned());
    let options = Options { migrate: false, ..config.store_options(false) };
    let copy = match Store::open(&copy, &options) {
        // A newer program makes a copy before it migrates. Only the version before could audit it.
        Err(OpenError::Migration(MigrationError::Pending(_))) => {
            progress.clear();
            let path = file.display().to_string();
            let value = json!({"file": path, "bytes": bytes, "audited": false});
            let text = format!("{path}: {bytes} bytes, not audited before its migrations.");
            return print(json, &value, &text);
        }
        opened => opened?,
    };
    let audit = copy.audit().await?;
    copy.close().await?;
    progress.clear();
    let (differences, path) = (audit.differences.len(), file.display().to_string());
    let value = json!({
        "file": path,
        "bytes": bytes,
        "audited": true,
        "requests": audit.requests,
        "pending": audit.pending,
        "differences": differences,
    });
    let text = format!(
        "{path}: {bytes} bytes, {} requests ({} pending), {differences} differences.",
        audit.requests, audit.pending
    );
    print(json, &value, &text)?;
    match differences {
        0 => Ok(()),
        _ => bail!("the database does not agree with itself: `tollgate audit` says where"),
    }
}

/// Puts a backup in the place of the SQLite database.
pub(crate) fn restore(config: &TollgateConfig, file: &Path, json: bool) -> anyhow::Result<()> {
    let replaced = backup::restore(&config.database_url, file)?;
    let replaced = replaced.map(|path| path.display().to_string());
    let database = format!("{:?}", config.database_url);
    let kept = replaced.as_ref().map(|path| format!(" What was there is kept in {path}."));
    let text = format!("{database} is restored.{}", kept.unwrap_or_default());
    print(json, &json!({"database": database, "replaced": replaced}), &text)
}

/// The files of settlements in this node's journal that are not booked. No node has run here if there is no journal.
fn unbooked_settlements(config: &TollgateConfig) -> anyhow::Result<Vec<PathBuf>> {
    // A node books what it can within a second.
    const BOOKED_WITHIN: Duration = Duration::from_secs(60);
    let Some(folder) = &config.journal_dir else { return Ok(Vec::new()) };
    match tollgate_store::unbooked_settlements(folder, BOOKED_WITHIN) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            eprintln!("note: there is no journal {}", folder.display());
            Ok(Vec::new())
        }
        found => found.with_context(|| format!("the journal {} cannot be read", folder.display())),
    }
}

/// Recomputes everything from the ledger; fails on a difference, and on a settlement in this node's journal that is not
/// booked.
pub(crate) async fn audit(
    config: &TollgateConfig,
    with_archive: bool,
    json: bool,
) -> anyhow::Result<()> {
    if with_archive && config.archive.is_none() {
        bail!("there is no archive: name it by `archive_url` in the configuration");
    }
    let mut progress = Progress::new();
    progress.update("recomputing everything from the ledger …");
    let store = open_newer(config)?;
    let audit = match with_archive {
        true => store.audit_with_archive().await?,
        false => store.audit().await?,
    };
    progress.clear();
    // The figures are printed also if the journal cannot be read.
    let journal = unbooked_settlements(config);
    let unbooked: Option<Vec<_>> = journal
        .as_ref()
        .ok()
        .map(|files| files.iter().map(|file| file.display().to_string()).collect());
    let differences: Vec<_> = audit.differences.iter().map(ToString::to_string).collect();
    let value = json!({
        "wallets": audit.wallets,
        "transactions": audit.transactions,
        "requests": audit.requests,
        "pending": audit.pending,
        "differences": differences,
        "unbooked_settlements": unbooked,
    });
    let text = format!(
        "{} wallets, {} transactions, {} requests ({} pending): {} differences.",
        audit.wallets,
        audit.transactions,
        audit.requests,
        audit.pending,
        differences.len()
    );
    print(json, &value, &text)?;
    let unbooked = unbooked.unwrap_or_default();
    if differences.is_empty() && unbooked.is_empty() {
        return journal.map(drop);
    }
    if !json {
        for difference in &differences {
            output::print_line(format_args!("  {difference}"))?;
        }
        for file in &unbooked {
            output::print_line(format_args!("  {file}: a settlement that is not booked"))?;
        }
    }
    std::process::exit(1)
}

/// Creates, lists and moves merchants.
pub(crate) async fn merchant(
    config: &TollgateConfig,
    command: MerchantCommand,
    json: bool,
) -> anyhow::Result<()> {
    let name = match command {
        MerchantCommand::Create { name } => name,
        MerchantCommand::List => return list_merchants(config, json).await,
        MerchantCommand::Move(what) => return moving::run(config, what, json).await,
        MerchantCommand::MovedKeys => return moving::print_moved_keys(config, json).await,
    };
    let now = Clock::system().now();
    let store = open_or_create(config)?;
    let new = store.write(move |conn| merchants::create(conn, &name, now)).await;
    let new = new.map_err(|cause: StoreError| cause)?;
    let (merchant, secret_key) = (&new.merchant, new.key.reveal());
    let value = json!({
        "merchant_id": merchant.merchant_id,
        "name": merchant.name,
        "wallet_id": merchant.wallet_id,
        "secret_key": secret_key,
        "created_at": merchant.created_at,
    });
    let text = format!(
        "merchant    {}\nwallet      {}\nsecret key  {secret_key}\n\nThe key is not shown again.",
        merchant.merchant_id, merchant.wallet_id
    );
    print_secret(json, &value, &text, &format!("the merchant {}", merchant.merchant_id))
}

async fn list_merchants(config: &TollgateConfig, json: bool) -> anyhow::Result<()> {
    let page = Page { after: None, limit: u32::MAX };
    let store = open(config)?;
    let merchants = store.read(move |conn| merchants::list(conn, &page)).await?;
    if merchants.is_empty() && !json {
        output::print_line("There is no merchant yet: `tollgate merchant create NAME` makes one.")?;
    }
    let items = merchants.into_iter().map(|merchant| {
        let value = json!({
            "merchant_id": merchant.merchant_id,
            "name": merchant.name,
            "wallet_id": merchant.wallet_id,
            "created_at": merchant.created_at,
            "moved_to": merchant.moved_to.map(CellNumber::get),
        });
        let (id, wallet_id) = (merchant.merchant_id.to_string(), merchant.wallet_id.to_string());
        let moved_to = merchant.moved_to.map(|cell| format!("cell {cell}")).unwrap_or_default();
        (value, [id, wallet_id, moved_to, merchant.name])
    });
    print_list(json, ["MERCHANT", "WALLET", "MOVED TO", "NAME"], items.collect())
}

fn no_merchant(merchant: MerchantId) -> anyhow::Error {
    anyhow!("there is no merchant {merchant}; `tollgate merchant list` shows those that are")
}

/// Creates, lists and revokes secret keys.
pub(crate) async fn key(
    config: &TollgateConfig,
    command: KeyCommand,
    json: bool,
) -> anyhow::Result<()> {
    let (store, now) = (open(config)?, Clock::system().now());
    match command {
        KeyCommand::Create { merchant, name } => {
            let (key, secret) = store
                .write(move |conn| match merchants::find(conn, merchant)? {
                    Some(_) => merchants::create_secret_key(conn, merchant, &name, now).map(Some),
                    None => Ok::<_, StoreError>(None),
                })
                .await?
                .ok_or_else(|| no_merchant(merchant))?;
            let value = json!({
                "secret_key_id": key.secret_key_id,
                "name": key.name,
                "key_preview": key.key_preview,
                "secret_key": secret.reveal(),
                "created_at": key.created_at,
            });
            let text = format!(
                "{}  {}\n\nThe key is not shown again.",
                key.secret_key_id,
                secret.reveal()
            );
            print_secret(json, &value, &text, &format!("the key {}", key.secret_key_id))?;
        }
        KeyCommand::List { merchant } => {
            let page = Page { after: None, limit: u32::MAX };
            let keys = store.read(move |conn| match merchants::find(conn, merchant)? {
                Some(_) => merchants::list_secret_keys(conn, merchant, &page).map(Some),
                None => Ok::<_, StoreError>(None),
            });
            let keys = keys.await?.ok_or_else(|| no_merchant(merchant))?;
            let items = keys.into_iter().map(|key| {
                let value = json!({
                    "secret_key_id": key.secret_key_id,
                    "name": key.name,
                    "key_preview": key.key_preview,
                    "created_at": key.created_at,
                });
                (value, [key.secret_key_id.to_string(), key.key_preview, key.name])
            });
            print_list(json, ["SECRET KEY", "PREVIEW", "NAME"], items.collect())?;
        }
        KeyCommand::Revoke { merchant, key } => {
            let deletion = store
                .write(move |conn| merchants::delete_secret_key(conn, merchant, key, now))
                .await?;
            match deletion {
                SecretKeyDeletion::Deleted => {
                    let value = json!({"id": key, "deleted": true});
                    print(json, &value, &format!("{key} is revoked."))?;
                }
                SecretKeyDeletion::NotFound => bail!(
                    "the merchant {merchant} has no key {key}; `tollgate key list --merchant \
                     {merchant}` shows those that it has"
                ),
                SecretKeyDeletion::Last => {
                    bail!("{key} is the last key of {merchant}: create another one first");
                }
            }
        }
    }
    Ok(())
}

/// Adds money to wallets.
pub(crate) async fn wallet(
    config: &TollgateConfig,
    command: WalletCommand,
    json: bool,
) -> anyhow::Result<()> {
    let WalletCommand::Credit { wallet, amount, description } = command;
    let now = Clock::system().now();
    let movement = WalletMovement { kind: TransactionKind::Credit, amount, description };
    let moved = open(config)?
        .write(move |conn| match wallets::owner_of(conn, wallet)? {
            Some(merchant) => {
                merchants::require_here(conn, merchant)?;
                wallets::book(conn, merchant, wallet, &movement, now)
            }
            None => Ok::<_, StoreError>(MovementOutcome::NotFound),
        })
        .await?;
    match moved {
        MovementOutcome::Booked(transaction) => {
            let value = json!({
                "transaction_id": transaction.transaction_id,
                "wallet_id": wallet,
                "amount": transaction.amount,
                "balance_after": transaction.balance_after,
            });
            print(json, &value, &format!("{wallet} has {} USD now.", transaction.balance_after))
        }
        MovementOutcome::NotFound => bail!(
            "there is no wallet {wallet}; `tollgate merchant list` shows those of merchants, \
             GET /v1/connections those of their customers"
        ),
        MovementOutcome::OutOfRange => {
            bail!("the balance would be beyond 922337203.6854775807 USD")
        }
    }
}

/// Runs the simulated provider until Ctrl-C.
pub(crate) async fn simulate(listen: &str, settings: &[String], json: bool) -> anyhow::Result<()> {
    let mut behavior = Behavior::default();
    for setting in settings {
        let (name, value) = setting.split_once('=').with_context(|| {
            format!("{setting}: expected SETTING=VALUE, such as first-byte-delay-ms=50")
        })?;
        behavior.set(name, value)?;
    }
    let simulator = Simulator::start(listen, behavior)
        .with_context(|| format!("cannot listen on {listen}: name another address by --listen"))?;
    let url = simulator.url("/v1");
    print(json, &json!({"base_url": url}), &format!("simulated provider on {url}"))?;
    std::io::stdout().flush()?;
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    simulator.stop().await;
    Ok(())
}
