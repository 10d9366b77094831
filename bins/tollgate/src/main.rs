//! The `tollgate` program: its commands, and the setup of the service.

mod archive;
mod budget;
mod cli;
mod commands;
mod config;
mod database;
mod demo;
mod doctor;
mod export;
mod import;
mod init;
mod logging;
mod moving;
mod output;
mod price_lists;
mod prices;
mod progress;
mod quote;
mod report;
mod reprice;
mod route;
mod serve;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use mimalloc::MiMalloc;

use cli::{Cli, Command, ConfigCommand};
use config::TollgateConfig;

/// A call makes about a hundred small allocations, many of them freed on another thread. With the
/// system's allocator they took a fifth of the call's time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[actix_web::main]
async fn main() -> ExitCode {
    // Files are for the user of the process alone: the database, the journal and the archive.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The messages alone: no backtrace, even if the environment requests one.
            eprintln!("Error: {why}");
            let causes: Vec<_> =
                why.chain().skip(1).map(|cause| format!("\n    {cause}")).collect();
            if !causes.is_empty() {
                eprintln!("\nCaused by:{}", causes.concat());
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    // An empty variable counts as not set: containers pass on variables without a value.
    let file = cli.config.clone().or_else(|| std::env::var_os("TOLLGATE_CONFIG"));
    let file = file.as_deref().filter(|file| !file.is_empty()).map(Path::new);
    if !matches!(cli.command, Command::Demo { .. } | Command::Serve) {
        logging::start_for_command();
    }
    match cli.command {
        Command::Demo { listen } => demo::run(listen.as_deref(), cli.json).await,
        Command::Route(what) => route::run(what, cli.json),
        Command::Simulator { listen, set } => commands::simulate(&listen, &set, cli.json).await,
        Command::Completions { shell } => {
            let program = &mut Cli::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, program, "tollgate", &mut script);
            output::print_bytes(&script)
        }
        Command::Config { command: ConfigCommand::Check } => {
            commands::check_config(&TollgateConfig::read(file)?, cli.json)
        }
        Command::Init => init::run(file, cli.json).await,
        Command::Doctor => {
            let is_well = doctor::run(&TollgateConfig::read(file)?, cli.json).await?;
            if is_well { Ok(()) } else { std::process::exit(1) }
        }
        Command::Serve => serve::run(TollgateConfig::read(file)?, cli.json).await,
        Command::Health { address, timeout_ms } => {
            let config = TollgateConfig::read(file)?;
            commands::health(&config, address, timeout_ms, cli.json)
        }
        Command::Migrate { contract } => {
            commands::migrate(&TollgateConfig::read(file)?, contract, cli.json)
        }
        Command::Audit { archive } => {
            commands::audit(&TollgateConfig::read(file)?, archive, cli.json).await
        }
        Command::Export { command } => export::run(&TollgateConfig::read(file)?, command).await,
        Command::Archive { command } => {
            archive::run(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Backup { file: to } => {
            commands::back_up(&TollgateConfig::read(file)?, &to, cli.json).await
        }
        Command::Restore { file: from } => {
            commands::restore(&TollgateConfig::read(file)?, &from, cli.json)
        }
        Command::Quote(what) => quote::run(&TollgateConfig::read(file)?, *what, cli.json).await,
        Command::Prices { command } => {
            prices::run(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Reprice(what) => reprice::run(&TollgateConfig::read(file)?, *what, cli.json).await,
        Command::Usage(what) => report::usage(&TollgateConfig::read(file)?, *what, cli.json).await,
        Command::Requests(what) => {
            report::requests(&TollgateConfig::read(file)?, *what, cli.json).await
        }
        Command::Refusals(what) => {
            report::refusals(&TollgateConfig::read(file)?, *what, cli.json).await
        }
        Command::Statement(what) => {
            report::statement(&TollgateConfig::read(file)?, what, cli.json).await
        }
        Command::Merchant { command } => {
            commands::merchant(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Key { command } => {
            commands::key(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Budget { command } => {
            budget::budget(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Import { command } => {
            import::run(&TollgateConfig::read(file)?, command, cli.json).await
        }
        Command::Wallet { command } => {
            commands::wallet(&TollgateConfig::read(file)?, command, cli.json).await
        }
    }
}
