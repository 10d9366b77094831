//! The programs on the bench: a provider, nginx before it, and Tollgate before it, which may be there
//! several times.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::call::Call;
use crate::database::Database;
use crate::http::{self, ask, request};
use crate::load::{Driven, Load, Until, drive};
use crate::nginx::{self, Buffering};
use crate::program::{Program, built};
use crate::service::Service;

/// Everything that is measured. The programs end when this is dropped: proxies first, their
/// files last.
pub(crate) struct Stand {
    services: Vec<Service>,
    nginx: BTreeMap<Buffering, (Program, SocketAddr)>,
    provider: Provider,
    tollgate: PathBuf,
    folder: TempDir,
}

/// The simulated provider.
struct Provider {
    program: Program,
    address: SocketAddr,
}

/// A program that a load is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Direct,
    Nginx(Buffering),
    /// The service of this place.
    Tollgate(usize),
}

impl Target {
    pub(crate) const fn is_tollgate(self) -> bool {
        matches!(self, Self::Tollgate(_))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Nginx(buffering) => buffering.fmt(f),
            Self::Tollgate(_) => f.write_str("tollgate"),
        }
    }
}

impl Stand {
    /// A provider, and nginx before it if that is compared with.
    pub(crate) async fn start(with_nginx: bool) -> anyhow::Result<Self> {
        let tollgate = built(&["-p", "tollgate"], "tollgate")?;
        let folder = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let provider = Provider::start(&tollgate, folder.path())?;
        let mut nginx = BTreeMap::new();
        let program = nginx::find();
        if with_nginx && program.is_none() {
            eprintln!(
                "\n*** nginx is not installed: there is no baseline, and the ratios are to \
                 direct calls only. ***\n"
            );
        }
        if let Some(program) = program.filter(|_| with_nginx) {
            let address = provider.address.to_string();
            for buffering in Buffering::ALL {
                let started = nginx::start(&program, &address, folder.path(), buffering).await?;
                nginx.insert(buffering, started);
            }
        }
        Ok(Self { services: Vec::new(), nginx, provider, tollgate, folder })
    }

    /// Starts a number of Tollgate nodes on a database.
    pub(crate) async fn serve(&mut self, database: Database, nodes: usize) -> anyhow::Result<()> {
        let folder = self.folder.path().join(format!("service-{}", self.services.len()));
        std::fs::create_dir(&folder)?;
        let provider = self.provider.address;
        let service = Service::start(&self.tollgate, database, provider, &folder, nodes).await?;
        self.services.push(service);
        Ok(())
    }

    /// Says that the last service's store was not empty.
    pub(crate) fn mark_filled(&mut self) -> anyhow::Result<()> {
        self.services.last_mut().context("there is no service")?.filled = true;
        Ok(())
    }

    /// A folder for files that go with this.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn service(&self, place: usize) -> anyhow::Result<&Service> {
        self.services.get(place).context("there is no such service")
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = (usize, &Service)> {
        self.services.iter().enumerate()
    }

    /// The services, to be ended while what they have written is still there.
    pub(crate) fn take_services(&mut self) -> Vec<Service> {
        std::mem::take(&mut self.services)
    }

    /// The targets that are compared: the provider alone, nginx if it is there, and the first service.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let nginx = self.nginx.keys().map(|buffering| Target::Nginx(*buffering));
        [Target::Direct].into_iter().chain(nginx).chain([Target::Tollgate(0)]).collect()
    }

    /// The processes whose trees are the target.
    pub(crate) fn processes(&self, target: Target) -> Vec<u32> {
        let nodes =
            |service: &Service| service.nodes.iter().map(|node| node.program.id()).collect();
        match target {
            Target::Direct => vec![self.provider.program.id()],
            Target::Nginx(buffering) => {
                self.nginx.get(&buffering).iter().map(|(program, _)| program.id()).collect()
            }
            Target::Tollgate(place) => self.services.get(place).map(nodes).unwrap_or_default(),
        }
    }

    /// A load of one call on a target; on Tollgate with the spend key that has every limit.
    pub(crate) fn load(
        &self,
        target: Target,
        call: &Call,
        concurrency: usize,
    ) -> anyhow::Result<Load> {
        let (address, credential) = match target {
            Target::Direct => (self.provider.address, "simulated"),
            Target::Nginx(buffering) => {
                let nginx = self.nginx.get(&buffering).context("there is no nginx")?;
                (nginx.1, "simulated")
            }
            Target::Tollgate(place) => {
                let service = self.service(place)?;
                (service.address()?, service.spend_key.as_str())
            }
        };
        Ok(Load {
            addresses: [address].into(),
            requests: [call.to(address, credential)].into(),
            status: 200,
            concurrency,
            apart: Duration::ZERO,
            streams: call.streams,
        })
    }

    /// Drives a target. Calls through Tollgate are counted on both sides of it; what is to be answered
    /// with 200 counts as a call.
    pub(crate) async fn drive(
        &mut self,
        target: Target,
        load: &Load,
        until: Until,
    ) -> anyhow::Result<Driven> {
        let before = self.provider.calls().await?;
        let driven = drive(load, until).await.with_context(|| format!("calling {target}"))?;
        let provided = self.provider.calls().await? - before;
        if let Target::Tollgate(place) = target {
            let service = self.services.get_mut(place).context("there is no such service")?;
            service.provided += provided;
            match load.status {
                200 => service.answered += driven.answered,
                _ => service.refused += driven.answered,
            }
            service.expect_running()?;
        }
        Ok(driven)
    }

    /// Sends a service one request, whatever it answers.
    pub(crate) async fn send_through(
        &mut self,
        place: usize,
        request: &[u8],
    ) -> anyhow::Result<()> {
        let before = self.provider.calls().await?;
        let address = self.service(place)?.address()?;
        let status = http::Connection::open(address).await?.call(request, false).await?;
        let provided = self.provider.calls().await? - before;
        let service = self.services.get_mut(place).context("there is no such service")?;
        service.provided += provided;
        service.answered += u64::from(status == 200);
        Ok(())
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
