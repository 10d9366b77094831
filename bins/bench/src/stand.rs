//! What stands on the bench: a provider, nginx before it, and Tollgate before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Options;
use crate::database::Database;
use crate::http::{self, ask, request};
use crate::load::{Driven, Load, Until, drive};
use crate::merchant::{Connection, Merchant};
use crate::nginx;
use crate::program::Program;

/// Everything that is measured. The programs end when this is dropped: proxies first, their
/// files last.
pub(crate) struct Stand {
    pub(crate) tollgate: Tollgate,
    pub(crate) nginx: Option<(Program, SocketAddr)>,
    pub(crate) provider: Provider,
    pub(crate) database: Database,
    _folder: TempDir,
}

/// The simulated provider.
pub(crate) struct Provider {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
}

/// The service with a merchant on it.
pub(crate) struct Tollgate {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
    pub(crate) commands: Commands,
    pub(crate) merchant: Merchant,
    pub(crate) meter_id: String,
    /// A connection that has more money than it can spend.
    pub(crate) rich: Connection,
    /// A connection whose money runs out.
    pub(crate) poor: Connection,
    /// Records that were there before, on a database that was not empty.
    pub(crate) records_before: u64,
    /// Calls through it that the generator saw answered, and that the provider saw.
    pub(crate) answered: u64,
    pub(crate) provided: u64,
    /// Calls that were refused because they were to be.
    pub(crate) refused: u64,
}

/// The subcommands of the program, on the service's configuration.
pub(crate) struct Commands {
    program: PathBuf,
    config: PathBuf,
}

/// What can be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Direct,
    Nginx,
    Tollgate,
}

impl Stand {
    pub(crate) async fn start(options: &Options) -> anyhow::Result<Self> {
        let tollgate = tollgate_program()?;
        let folder = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let provider = Provider::start(&tollgate, folder.path())?;
        let nginx = match nginx::find() {
            _ if !options.compares_proxies() => None,
            Some(nginx) => {
                Some(nginx::start(&nginx, &provider.address.to_string(), folder.path()).await?)
            }
            None => {
                eprintln!(
                    "\n*** nginx is not installed: there is no baseline, and the ratios are to \
                     direct calls only. ***\n"
                );
                None
            }
        };
        let database = Database::find(&options.database).await?;
        let url = match database {
            Database::Sqlite => format!("sqlite:{}", folder.path().join("tollgate.db").display()),
            Database::Server(_) | Database::Elsewhere => options.database.clone(),
        };
        let tollgate = Tollgate::start(tollgate, &url, &provider, folder.path()).await?;
        Ok(Self { tollgate, nginx, provider, database, _folder: folder })
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        let mut targets = vec![Target::Direct, Target::Nginx, Target::Tollgate];
        targets.retain(|target| *target != Target::Nginx || self.nginx.is_some());
        targets
    }

    /// The process whose tree is the target.
    pub(crate) fn process(&self, target: Target) -> Option<u32> {
        match target {
            Target::Direct => Some(self.provider.program.id()),
            Target::Nginx => self.nginx.as_ref().map(|(program, _)| program.id()),
            Target::Tollgate => Some(self.tollgate.program.id()),
        }
    }

    /// Drives a target; calls through Tollgate are counted on both sides of it.
    pub(crate) async fn drive(
        &mut self,
        target: Target,
        call: &Call,
        concurrency: usize,
        until: Until,
    ) -> anyhow::Result<Driven> {
        let (address, bytes) = match target {
            Target::Direct => (self.provider.address, call.to(self.provider.address, "simulated")),
            Target::Nginx => {
                let address = self.nginx.as_ref().context("there is no nginx")?.1;
                (address, call.to(address, "simulated"))
            }
            Target::Tollgate => {
                (self.tollgate.address, call.through(&self.tollgate, until, &self.provider))
            }
        };
        let requests = [bytes].into();
        let load = Load { address, requests, status: 200, concurrency, streams: call.streams };
        match target {
            Target::Tollgate => self.drive_through(&load, until).await,
            Target::Direct | Target::Nginx => {
                drive(&load, until).await.with_context(|| format!("calling {target:?}"))
            }
        }
    }

    /// Drives Tollgate with any requests; what is answered with 200 counts as a call.
    pub(crate) async fn drive_through(
        &mut self,
        load: &Load,
        until: Until,
    ) -> anyhow::Result<Driven> {
        let before = self.provider.calls().await?;
        let driven = drive(load, until).await.context("calling Tollgate")?;
        self.tollgate.provided += self.provider.calls().await? - before;
        match load.status {
            200 => self.tollgate.answered += driven.answered,
            _ => self.tollgate.refused += driven.answered,
        }
        self.tollgate.program.expect_running()?;
        Ok(driven)
    }

    /// Sends Tollgate one request, whatever it answers.
    pub(crate) async fn send_through(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let before = self.provider.calls().await?;
        let status = http::Connection::open(self.tollgate.address).await?.call(request).await?;
        self.tollgate.provided += self.provider.calls().await? - before;
        self.tollgate.answered += u64::from(status == 200);
        Ok(())
    }
}

/// A chat call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    pub(crate) streams: bool,
    /// How the provider is to behave: a header of the simulator's.
    pub(crate) behavior: Option<(&'static str, &'static str)>,
    /// Another model than the usual.
    pub(crate) model: Option<&'static str>,
}

/// The path of chat calls, at the provider and on Tollgate's drop-in route.
const CHAT: &str = "/v1/chat/completions";

impl Call {
    fn body(self) -> String {
        let mut body = json!({
            "model": self.model.unwrap_or("gpt-4o-mini"),
            "max_tokens": 64,
            "temperature": 0.2,
            "messages": [
                {"role": "system", "content": "You answer questions about roads, and you answer \
                    them briefly, in one sentence, without any lists."},
                {"role": "user", "content": "A toll is to be paid at a gate across an old road \
                    that leads over a mountain. Who built such gates, what was the money for, and \
                    why did most of them disappear again?"},
            ],
        });
        if let (true, Some(fields)) = (self.streams, body.as_object_mut()) {
            fields.insert("stream".to_owned(), json!(true));
            // Asked for by the client, so that all targets carry the same bytes.
            fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        body.to_string()
    }

    pub(crate) fn to(self, address: SocketAddr, credential: &str) -> Vec<u8> {
        let headers: Vec<_> = self.behavior.into_iter().collect();
        request("POST", CHAT, &address.to_string(), credential, &headers, &self.body())
    }

    pub(crate) fn through(self, tollgate: &Tollgate, until: Until, provider: &Provider) -> Vec<u8> {
        let payer = match until {
            Until::After(_) => &tollgate.rich,
            Until::Refused => &tollgate.poor,
        };
        let url = format!("http://{}{CHAT}", provider.address);
        let url: String = url::form_urlencoded::byte_serialize(url.as_bytes()).collect();
        let target = format!("/v1/forward?u={url}");
        let headers: Vec<_> = self.behavior.into_iter().collect();
        let host = tollgate.address.to_string();
        request("POST", &target, &host, &payer.token, &headers, &self.body())
    }
}

impl Provider {
    fn start(tollgate: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(tollgate);
        // With the role, the end, the usage and the end mark that is a stream of 24 events.
        command.args(["simulator", "--listen", "127.0.0.1:0", "--set", "words=20"]);
        let mut program = Program::start("simulator", &mut command, folder)?;
        let address = program.printed_address()?.parse()?;
        Ok(Self { program, address })
    }

    /// How many calls it has answered.
    async fn calls(&self) -> anyhow::Result<u64> {
        let host = self.address.to_string();
        let stats = ask(self.address, &request("GET", "/stats", &host, "-", &[], "")).await?;
        let count = |name: &str| stats.get(name).and_then(Value::as_u64).context("no count");
        ensure!(count("errors")? == 0, "the provider refused calls: {stats}");
        count("calls")
    }
}

impl Commands {
    /// Runs a subcommand that prints JSON.
    pub(crate) fn run(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut command = command(&self.program, &self.config);
        let output = command.arg("--json").args(arguments).output()?;
        // An audit that finds differences says so and fails; what it says is wanted.
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("tollgate {arguments:?}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }
}

fn command(program: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("--config").arg(config);
    // The environment would win over the file.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command
}

impl Tollgate {
    async fn start(
        program: PathBuf,
        database: &str,
        provider: &Provider,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let config = folder.join("tollgate.toml");
        let (journal, provider) = (folder.join("journal"), provider.address);
        let text = format!(
            "listen = \"127.0.0.1:0\"
database_url = \"{database}\"
journal_dir = \"{}\"
standard_rate_per_minute = 0
webhook_allow_http = true
webhook_allow_private_network = true
[providers.openai]
base_url = \"http://{provider}/v1\"
api_key = \"simulated\"
allow_private_network = true
",
            journal.display()
        );
        std::fs::write(&config, text)?;
        let commands = Commands { program, config };
        let made = commands.run(&["merchant", "create", "Benchmark"])?;
        let records_before = text_or_count(&commands.run(&["audit"])?, "requests")?.parse()?;
        let secret_key = text_or_count(&made, "secret_key")?;
        let mut serve = command(&commands.program, &commands.config);
        let mut program = Program::start("tollgate", serve.arg("serve"), folder)?;
        let address = program.printed_address()?.parse()?;
        let merchant = Merchant { address, secret_key };
        let meter_id = merchant.meter().await?;
        let rich = merchant.connection("1000000").await?;
        let poor = merchant.connection("0.5").await?;
        Ok(Self {
            program,
            address,
            commands,
            merchant,
            meter_id,
            rich,
            poor,
            records_before,
            answered: 0,
            provided: 0,
            refused: 0,
        })
    }

    pub(crate) async fn wallet(&self, wallet_id: &str) -> anyhow::Result<Value> {
        self.merchant.ask("GET", &format!("/wallets/{wallet_id}"), "").await
    }
}

/// A field that is a string or a number, as text.
pub(crate) fn text_or_count(json: &Value, name: &str) -> anyhow::Result<String> {
    match json.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(count)) => Ok(count.to_string()),
        _ => anyhow::bail!("there is no {name} in {json}"),
    }
}

/// The program to measure: built now if cargo runs us, else the one that lies beside us.
fn tollgate_program() -> anyhow::Result<PathBuf> {
    let folder = std::env::current_exe()?.parent().context("no folder")?.to_owned();
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(folder.join("tollgate"));
    };
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "-p", "tollgate", "--manifest-path"]);
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    ensure!(build.status()?.success(), "tollgate cannot be built");
    Ok(folder.with_file_name("release").join("tollgate"))
}
