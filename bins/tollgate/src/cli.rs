//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tollgate_domain::{MerchantId, SecretKeyId, WalletId};
use tollgate_pricing::Amount;

use crate::prices::PricesCommand;
use crate::quote::QuoteArgs;
use crate::reprice::RepriceArgs;

/// Meters, prices and forwards AI provider requests, and controls spend while doing so.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Cli {
    /// The configuration file (TOML). Without one the defaults and the environment hold.
    #[arg(long, global = true, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the service.
    Serve,
    /// Run the service on a temporary store with a simulated provider, and print curl lines to try.
    Demo {
        /// Where to listen; a free port is taken when this one is not free.
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<String>,
    },
    /// Run the simulated provider alone; it receives webhooks, too (`/webhooks/<any name>`).
    Simulator {
        /// Where to listen.
        #[arg(long, default_value = "127.0.0.1:9100", value_name = "ADDRESS")]
        listen: String,
        /// How it behaves, such as `first-byte-delay-ms=50`; repeatable. The same settings can be
        /// sent with each call as headers `x-simulate-…`.
        #[arg(long, value_name = "SETTING=VALUE")]
        set: Vec<String>,
    },
    /// Bring the database schema up to date.
    Migrate,
    /// Recompute balances, counters and holds from the ledger; exit with 1 on a difference.
    Audit,
    /// Say what a usage costs, or what a call would hold, without a server or database.
    #[command(arg_required_else_help = true)]
    Quote(Box<QuoteArgs>),
    /// Show, import and compare prices of providers.
    Prices {
        #[command(subcommand)]
        command: PricesCommand,
    },
    /// Price settled records again by the prices of this configuration, and book what differs.
    Reprice(Box<RepriceArgs>),
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Make merchants.
    Merchant {
        #[command(subcommand)]
        command: MerchantCommand,
    },
    /// Make, list and revoke the secret keys of a merchant.
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Put money on wallets.
    Wallet {
        #[command(subcommand)]
        command: WalletCommand,
    },
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report everything that is wrong with it.
    Check,
}

#[derive(Subcommand)]
pub(crate) enum MerchantCommand {
    /// Make a merchant with a wallet and a first secret key, which is shown this once.
    Create {
        /// Its display name.
        name: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a secret key; it is shown this once.
    Create {
        /// Whose key.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// Its display name.
        #[arg(long, default_value = "default")]
        name: String,
    },
    /// List a merchant's secret keys.
    List {
        /// Whose keys.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
    },
    /// Revoke a secret key, at once. The last one of a merchant stays.
    Revoke {
        /// Whose key.
        #[arg(long, value_name = "mch_…")]
        merchant: MerchantId,
        /// Which key.
        #[arg(value_name = "sec_…")]
        key: SecretKeyId,
    },
}

#[derive(Subcommand)]
pub(crate) enum WalletCommand {
    /// Put money on a wallet.
    Credit {
        /// Which wallet.
        #[arg(value_name = "wal_…")]
        wallet: WalletId,
        /// How much, in USD, such as 25.00.
        amount: Amount,
        /// Why, for the list of transactions.
        #[arg(long)]
        description: Option<String>,
    },
}
