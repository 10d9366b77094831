//! The command line: commands, options, and their help.

use std::ffi::OsString;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use tollgate_domain::{MerchantId, SecretKeyId, TimeZone, WalletId};
use tollgate_pricing::Amount;

use crate::archive::ArchiveCommand;
use crate::budget::BudgetCommand;
use crate::export::ExportCommand;
use crate::import::ImportCommand;
use crate::moving::MoveArgs;
use crate::prices::PricesCommand;
use crate::quote::QuoteArgs;
use crate::report::{RefusalsArgs, RequestsArgs, StatementArgs, UsageArgs};
use crate::reprice::RepriceArgs;
use crate::route::RouteArgs;

/// The version, the commit that the program is built from, and the version of its time zones.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILD_COMMIT"));
    format!("{version} ({commit}), time zones {}", TimeZone::database_version())
});

/// The heading, in the help of a command, of the options that all commands take.
const EVERYWHERE: &str = "Options of every command";

/// Meter, price and forward AI provider requests, and control spend.
#[derive(Parser)]
#[command(version = VERSION.as_str(), after_help = ABOUT)]
pub(crate) struct Cli {
    /// The configuration file (TOML), also named by the variable TOLLGATE_CONFIG. Without it the defaults and
    /// the environment apply; the demo and the simulator read none.
    // With `env`, the usage lines of errors would have the option as if it were required.
    #[arg(long, global = true, value_name = "FILE", help_heading = EVERYWHERE)]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,
    /// Print JSON instead of text.
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const ABOUT: &str = "\
Try it, with nothing configured:
  tollgate demo

Begin:
  tollgate init                        A configuration, a merchant and its secret key, by four questions
  tollgate doctor                      Whether everything that the service needs is there
  tollgate serve                       The service

Every key of the configuration is also an environment variable, such as TOLLGATE_LISTEN.
Exit codes: 0 done; 1 failed, or found what it looks for (differences, refused changes); 2 not understood.";

/// Examples of each command that takes arguments.
mod examples {
    pub(super) const INIT: &str = "\
Examples:
  tollgate init                                   Writes tollgate.toml
  tollgate init --config /etc/tollgate/tollgate.toml

An empty answer takes the default in brackets. A file that exists is not replaced.";
    pub(super) const DOCTOR: &str = "\
Examples:
  tollgate doctor --config /etc/tollgate/tollgate.toml
  tollgate doctor --json

Checks the configuration, the database, the disk, the limit of open files, the age of the prices, the keys of
providers (by their lists of models), the clock, and the URLs of webhooks (by HEAD requests). Also beside a service
that runs.";
    pub(super) const SERVE: &str = "\
Examples:
  tollgate serve --config /etc/tollgate/tollgate.toml
  TOLLGATE_LISTEN=127.0.0.1:0 TOLLGATE_DATABASE_URL=sqlite::memory: tollgate serve

Prints `listening on http://ADDRESS` once it takes calls. SIGTERM lets calls end, then it exits with 0.";
    pub(super) const HEALTH: &str = "\
Examples:
  tollgate health                                 The service of this configuration
  tollgate health --address 10.0.0.7:8080         Another node

Asks GET /readyz; exits with 1 unless the service takes calls. For health checks of containers.";
    pub(super) const SIMULATOR: &str = "\
Examples:
  tollgate simulator --set words=200 --set chunk-delay-ms=30
  tollgate simulator --set status=429 --set retry-after=5";
    pub(super) const AUDIT: &str = "\
Examples:
  tollgate audit                                  Also beside a service that runs
  TOLLGATE_DATABASE_URL=sqlite:backup.db tollgate audit --json";
    pub(super) const EXPORT: &str = "\
Examples:
  tollgate export focus --month 2026-10 > focus-2026-10.csv
  tollgate export focus --month 2026-10 --merchant MERCHANT_ID";
    pub(super) const ARCHIVE: &str = "\
Examples:
  tollgate archive run                            Also beside a service that runs
  tollgate archive list
  tollgate archive verify 2026-01

`archive_url` and `records_keep_days` of the configuration say where to and when. A service does it by itself.";
    pub(super) const BACKUP: &str = "\
Examples:
  tollgate backup backup.db                       Also beside a service that runs
  TOLLGATE_DATABASE_URL=sqlite:backup.db tollgate audit";
    pub(super) const RESTORE: &str = "\
Example, when the service is stopped:
  tollgate restore backup.db";
    pub(super) const QUOTE: &str = "\
Examples:
  tollgate quote --provider openai --model gpt-4o-mini --input-tokens 12000 --output-tokens 800
  tollgate quote --provider openai --model gpt-4o-mini --input-tokens 12000 \\
      --rate-type percentage --tier 0=20
  tollgate quote --url https://api.openai.com/v1/chat/completions --body call.json";
    pub(super) const USAGE: &str = "\
Examples:
  tollgate usage --merchant MERCHANT_ID --month 2026-11 --by connection
  tollgate usage --merchant MERCHANT_ID --month 2026-11 --time-zone Europe/Berlin --by connection,model --csv";
    pub(super) const REQUESTS: &str = "\
Examples:
  tollgate requests --merchant MERCHANT_ID --status error
  tollgate requests --merchant MERCHANT_ID --month 2026-11 --csv";
    pub(super) const REFUSALS: &str = "\
Examples:
  tollgate refusals --merchant MERCHANT_ID
  tollgate refusals --merchant MERCHANT_ID --code spend_limit_reached --month 2026-11 --csv";
    pub(super) const STATEMENT: &str = "\
Example:
  tollgate statement --merchant MERCHANT_ID --connection CONNECTION_ID --month 2026-11";
    pub(super) const PRICES: &str = "\
Examples:
  tollgate prices list --provider openai --model gpt-4o-mini
  tollgate prices import --format litellm prices.json --into catalog.json --dry-run
  tollgate prices check embedded catalog.json";
    pub(super) const REPRICE: &str = "\
Examples:
  tollgate reprice --from 2026-11-01 --to 2026-11-21 --provider openai --dry-run
  tollgate reprice --from 2026-11-01 --to 2026-11-21 --provider openai

Look with --dry-run first. It can be interrupted and run again: nothing is booked twice.";
    pub(super) const CONFIG: &str = "\
Examples:
  tollgate config check
  tollgate config check --config /etc/tollgate/tollgate.toml && systemctl restart tollgate";
    pub(super) const MERCHANT: &str = "\
Examples:
  tollgate merchant create \"My shop\"
  tollgate merchant list --json
  tollgate merchant move mch_… --to postgres://tollgate@db7.internal/tollgate
  TOLLGATE_DATABASE_URL=postgres://tollgate@db7.internal/tollgate tollgate merchant moved-keys > moved-7.txt";
    pub(super) const KEY_CREATE: &str = "\
Examples:
  tollgate key create --merchant mch_… --name \"CI\"

`tollgate merchant list` shows merchants and their ids.";
    pub(super) const KEY: &str = "\
Examples:
  tollgate key create --merchant mch_… --name \"CI\"
  tollgate key list --merchant mch_…
  tollgate key revoke --merchant mch_… sec_…

`tollgate merchant list` shows merchants and their ids.";
    pub(super) const BUDGET: &str = "\
Examples:
  tollgate budget create --merchant mch_… --name Research --spend-limit 4000 --spend-cycle monthly
  tollgate budget create --merchant mch_… --name \"Nightly jobs\" --match job=nightly --spend-limit 50
  tollgate budget list --merchant mch_…
  tollgate budget update --merchant mch_… bud_… --parent bud_… --enforcement strict
  tollgate budget update --merchant mch_… bud_… --spend-limit none";
    pub(super) const ROUTE: &str = "\
Examples:
  tollgate route nginx --cell 0=10.0.0.1:8080 --cell 7=10.0.7.1:8080,10.0.7.2:8080 > cells.conf
  tollgate route haproxy --cell 0=10.0.0.1:8080 --cell 7=10.0.7.1:8080 > cells.cfg";
    pub(super) const IMPORT: &str = "\
Examples:
  tollgate import litellm --merchant mch_… --dry-run LiteLLM_*.json
  tollgate import litellm --merchant mch_… LiteLLM_*.json";
    pub(super) const WALLET: &str = "\
Examples:
  tollgate wallet credit wal_… 25.00 --description \"Invoice 17\"

A merchant's own wallet is shown by `tollgate merchant list`, a customer's by GET /v1/connections.";
    pub(super) const COMPLETIONS: &str = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > \"${fpath[1]}/_tollgate\"
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Ask four questions, write a configuration, and create a merchant with a secret key.
    #[command(after_help = examples::INIT)]
    Init,
    /// Check what a service depends on: a line for each check; exit with 1 if one fails.
    #[command(after_help = examples::DOCTOR)]
    Doctor,
    /// Run the service.
    #[command(after_help = examples::SERVE)]
    Serve,
    /// Check whether a running service takes calls; exit with 1 if it does not.
    #[command(after_help = examples::HEALTH)]
    Health {
        /// The address of the service; default: the configured one.
        #[arg(long, value_name = "ADDRESS")]
        address: Option<String>,
        /// The longest wait for the connection, and for the answer.
        #[arg(long, default_value_t = 3_000, value_name = "MILLISECONDS")]
        timeout_ms: u64,
    },
    /// Run the service on a temporary store with two simulated providers, and print example curl commands.
    Demo {
        /// The address to listen on; a free port is taken if this one is in use.
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<String>,
    },
    /// Run the simulated provider alone; it also receives webhooks (`/webhooks/<any name>`).
    #[command(after_help = examples::SIMULATOR)]
    Simulator {
        /// The address to listen on.
        #[arg(long, default_value = "127.0.0.1:9100", value_name = "ADDRESS")]
        listen: String,
        /// A setting of its behaviour, such as `first-byte-delay-ms=50`; repeatable. A call can override
        /// each setting by a header `x-simulate-…`.
        #[arg(long, value_name = "SETTING=VALUE")]
        set: Vec<String>,
    },
    /// Bring the database schema up to date.
    Migrate {
        /// Also make the changes that older versions of Tollgate cannot work with. No node of an older version may run.
        #[arg(long)]
        contract: bool,
    },
    /// Recompute balances, counters and holds from the ledger; exit with 1 if they differ.
    #[command(after_help = examples::AUDIT)]
    Audit {
        /// Read the records of the archive, too. Otherwise the audit begins with the sums of the months there.
        #[arg(long)]
        archive: bool,
    },
    /// Print the costs of a month in a form that other programs read.
    #[command(after_help = examples::EXPORT)]
    Export {
        #[command(subcommand)]
        command: ExportCommand,
    },
    /// Move months of old records to the archive, list them, and check their files.
    #[command(after_help = examples::ARCHIVE)]
    Archive {
        #[command(subcommand)]
        command: ArchiveCommand,
    },
    /// Copy a SQLite database to a new file, with every call that was answered before, and audit the copy.
    #[command(after_help = examples::BACKUP)]
    Backup {
        /// The new file.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Replace the SQLite database by a backup; the replaced database is kept beside it.
    #[command(after_help = examples::RESTORE)]
    Restore {
        /// The backup.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Print the cost of a usage, or the hold of a call, without a server or database.
    #[command(arg_required_else_help = true, after_help = examples::QUOTE)]
    Quote(Box<QuoteArgs>),
    /// Show, import and compare prices of providers.
    #[command(after_help = examples::PRICES)]
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },
    /// Price settled records again by the prices of this configuration, and book the differences.
    #[command(after_help = examples::REPRICE)]
    Reprice(Box<RepriceArgs>),
    /// Print the sums of a merchant's calls.
    #[command(after_help = examples::USAGE)]
    Usage(Box<UsageArgs>),
    /// Print the records of a merchant's calls.
    #[command(after_help = examples::REQUESTS)]
    Requests(Box<RequestsArgs>),
    /// Print the refused calls of a merchant, with the reason of each.
    #[command(after_help = examples::REFUSALS)]
    Refusals(Box<RefusalsArgs>),
    /// Print the statement of a customer for a month.
    #[command(after_help = examples::STATEMENT)]
    Statement(StatementArgs),
    /// Check the configuration.
    #[command(after_help = examples::CONFIG)]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Create, list and move merchants.
    #[command(after_help = examples::MERCHANT)]
    Merchant {
        #[command(subcommand)]
        command: MerchantCommand,
    },
    /// Create, list and revoke the secret keys of a merchant.
    #[command(after_help = examples::KEY)]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Create, list, change and delete the budgets of a merchant.
    #[command(after_help = examples::BUDGET)]
    Budget {
        #[command(subcommand)]
        command: BudgetCommand,
    },
    /// Print the configuration of a router that sends each request to the cell of its key.
    #[command(after_help = examples::ROUTE)]
    Route(RouteArgs),
    /// Add money to wallets.
    #[command(after_help = examples::WALLET)]
    Wallet {
        #[command(subcommand)]
        command: WalletCommand,
    },
    /// Import the teams, users and keys of another gateway as budgets and spend keys.
    #[command(after_help = examples::IMPORT)]
    Import {
        #[command(subcommand)]
        command: ImportCommand,
    },
    /// Print a script that makes a shell complete the commands and options of this program.
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report all errors of the configuration.
    #[command(after_help = examples::CONFIG)]
    Check,
}

/// Parses a name, as the API accepts it.
fn name(text: &str) -> Result<String, &'static str> {
    match text.chars().count() {
        1..=255 => Ok(text.to_owned()),
        _ => Err("must have 1 to 255 characters"),
    }
}

/// Parses an amount to add to a wallet.
fn credit(text: &str) -> Result<Amount, &'static str> {
    let amount = text.parse().ok().filter(|amount: &Amount| amount.is_positive());
    amount.ok_or("must be more than 0, with at most ten decimals, such as 25.00")
}

#[derive(Subcommand)]
pub(crate) enum MerchantCommand {
    /// Create a merchant with a wallet and a first secret key, which is shown only once.
    Create {
        /// Its display name, of 1 to 255 characters.
        #[arg(value_parser = name)]
        name: String,
    },
    /// List all merchants, newest first.
    List,
    /// Move a merchant to the database of another cell, and audit both.
    Move(MoveArgs),
    /// List the keys that other cells have made, for `tollgate route --moved`.
    MovedKeys,
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a secret key, which is shown only once.
    #[command(after_help = examples::KEY_CREATE)]
    Create {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// Its display name, of 1 to 255 characters.
        #[arg(long, default_value = "default", value_parser = name)]
        name: String,
    },
    /// List a merchant's secret keys.
    List {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
    },
    /// Revoke a secret key at once; the last key of a merchant cannot be revoked.
    Revoke {
        /// The merchant.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// The key to revoke.
        #[arg(value_name = "sec_…")]
        key: SecretKeyId,
    },
}

#[derive(Subcommand)]
pub(crate) enum WalletCommand {
    /// Add money to a wallet.
    Credit {
        /// The wallet.
        #[arg(value_name = "wal_…")]
        wallet: WalletId,
        /// The amount in USD, such as 25.00.
        #[arg(value_parser = credit, allow_negative_numbers = true)]
        amount: Amount,
        /// A description for the list of transactions.
        #[arg(long, value_parser = name)]
        description: Option<String>,
    },
}
