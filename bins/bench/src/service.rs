//! Tollgate with all features: one or more nodes on a database, a merchant, and a spend key with every
//! kind of limit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::Value;

use crate::database::BenchDatabase;
use crate::http::field_text;
use crate::merchant::{BenchCustomer, BenchMerchant};
use crate::program::ChildProgram;

pub(crate) struct BenchService {
    pub(crate) nodes: Vec<BenchNode>,
    pub(crate) commands: TollgateCommands,
    pub(crate) merchant: BenchMerchant,
    /// A customer with more money than it can spend, and a spend key on its wallet.
    pub(crate) rich: BenchCustomer,
    pub(crate) spend_key: String,
    /// Whether its store has other merchants' records that no wallet paid. Then the records are taken from
    /// this merchant's usage, not from an audit.
    pub(crate) filled: bool,
    /// The calls that the generator saw answered, and those that the provider saw.
    pub(crate) answered: u64,
    pub(crate) provided: u64,
    /// The calls that were refused as expected.
    pub(crate) refused: u64,
    /// The last field, so that it ends after the programs that are connected to it.
    pub(crate) database: BenchDatabase,
}

pub(crate) struct BenchNode {
    pub(crate) program: ChildProgram,
    pub(crate) address: SocketAddr,
}

/// The subcommands of the program, with the service's configuration.
pub(crate) struct TollgateCommands {
    program: PathBuf,
    config: PathBuf,
}

impl BenchService {
    pub(crate) async fn start(
        program: &Path,
        database: BenchDatabase,
        provider: SocketAddr,
        folder: &Path,
        nodes: usize,
    ) -> anyhow::Result<Self> {
        let commands = TollgateCommands::new(program, &database, provider, &folder.join("0"))?;
        let made = commands.run(&["merchant", "create", "Benchmark"])?;
        let mut serving = vec![BenchNode::start(&commands, &folder.join("0"))?];
        for number in 1..nodes {
            let folder = folder.join(number.to_string());
            let commands = TollgateCommands::new(program, &database, provider, &folder)?;
            serving.push(BenchNode::start(&commands, &folder)?);
        }
        let address = serving.first().context("no node")?.address;
        let merchant = BenchMerchant::new(address, field_text(&made, "secret_key")?).await?;
        let rich = merchant.create_customer("1000000").await?;
        let spend_key = merchant.create_limited_key(&rich.wallet_id).await?;
        Ok(Self {
            nodes: serving,
            commands,
            merchant,
            rich,
            spend_key,
            filled: false,
            answered: 0,
            provided: 0,
            refused: 0,
            database,
        })
    }

    /// The address of the first node.
    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.nodes.first().context("no node")?.address)
    }

    pub(crate) fn expect_running(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(|node| node.program.expect_running())
    }
}

impl BenchNode {
    fn start(commands: &TollgateCommands, folder: &Path) -> anyhow::Result<Self> {
        let mut program = ChildProgram::start("tollgate", commands.command().arg("serve"), folder)?;
        let address = program.printed_address()?.parse()?;
        Ok(Self { program, address })
    }
}

impl TollgateCommands {
    /// Writes a configuration into its own folder.
    fn new(
        program: &Path,
        database: &BenchDatabase,
        provider: SocketAddr,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir(folder)?;
        let config = folder.join("tollgate.toml");
        let text = format!(
            "listen = \"127.0.0.1:0\"
database_url = \"{}\"
standard_rate_per_minute = 0
webhook_allow_http = true
webhook_allow_private_network = true
[providers.openai]
base_url = \"http://{provider}/v1\"
api_key = \"simulated\"
allow_private_network = true
",
            database.url
        );
        std::fs::write(&config, text)?;
        Ok(Self { program: program.to_owned(), config })
    }

    /// Runs a subcommand that prints JSON.
    pub(crate) fn run(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let output = self.command().arg("--json").args(arguments).output()?;
        // An audit that finds differences fails, but its output is needed.
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("tollgate {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.config);
        // The environment would override the file.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOLLGATE_") {
                command.env_remove(name);
            }
        }
        command
    }
}
