//! The `tollgate` program: its commands, and the wiring of the service.

mod cli;
mod commands;
mod config;
mod demo;
mod logging;
mod output;
mod prices;
mod progress;
mod quote;
mod reprice;
mod serve;

use clap::{CommandFactory, Parser};
use mimalloc::MiMalloc;

use cli::{Cli, Command, ConfigCommand};
use config::Config;

/// A call makes and drops a hundred small pieces, many of them on another thread than the one that
/// made them: the system's allocator took a fifth of all its time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.command {
        Command::Demo { listen } => demo::run(listen.as_deref(), cli.json).await,
        Command::Simulator { listen, set } => commands::simulate(&listen, &set, cli.json).await,
        Command::Completions { shell } => {
            let program = &mut Cli::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, program, "tollgate", &mut script);
            output::all(&script)
        }
        Command::Config { command: ConfigCommand::Check } => {
            commands::check_config(&Config::read(cli.config.as_deref())?, cli.json)
        }
        Command::Serve => serve::run(Config::read(cli.config.as_deref())?, cli.json).await,
        Command::Health { address, timeout_ms } => {
            let config = Config::read(cli.config.as_deref())?;
            commands::health(&config, address, timeout_ms, cli.json)
        }
        Command::Migrate => commands::migrate(&Config::read(cli.config.as_deref())?, cli.json),
        Command::Audit => commands::audit(&Config::read(cli.config.as_deref())?, cli.json).await,
        Command::Quote(what) => {
            quote::run(&Config::read(cli.config.as_deref())?, *what, cli.json).await
        }
        Command::Prices { command } => {
            prices::run(&Config::read(cli.config.as_deref())?, command, cli.json)
        }
        Command::Reprice(what) => {
            reprice::run(&Config::read(cli.config.as_deref())?, *what, cli.json).await
        }
        Command::Merchant { command } => {
            commands::merchant(&Config::read(cli.config.as_deref())?, command, cli.json).await
        }
        Command::Key { command } => {
            commands::key(&Config::read(cli.config.as_deref())?, command, cli.json).await
        }
        Command::Wallet { command } => {
            commands::wallet(&Config::read(cli.config.as_deref())?, command, cli.json).await
        }
    }
}
