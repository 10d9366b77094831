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

use crate::call::ChatCall;
use crate::database::BenchDatabase;
use crate::http::{self, request, request_json};
use crate::load::{Load, LoadResult, StopCondition, drive};
use crate::nginx::{self, Buffering};
use crate::program::{ChildProgram, program_path};
use crate::service::BenchService;

/// Everything that is measured. The programs end when this is dropped: proxies first, their
/// files last.
pub(crate) struct Testbed {
    services: Vec<BenchService>,
    nginx: BTreeMap<Buffering, (ChildProgram, SocketAddr)>,
    provider: ProviderProcess,
    tollgate: PathBuf,
    folder: TempDir,
}

/// The simulated provider.
struct ProviderProcess {
    program: ChildProgram,
    address: SocketAddr,
}

/// A program that a load is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoadTarget {
    Direct,
    Nginx(Buffering),
    /// The service of this place.
    Tollgate(usize),
}

impl LoadTarget {
    pub(crate) const fn is_tollgate(self) -> bool {
        matches!(self, Self::Tollgate(_))
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Nginx(buffering) => buffering.fmt(f),
            Self::Tollgate(_) => f.write_str("tollgate"),
        }
    }
}

impl Testbed {
    /// A provider, and nginx before it if that is compared with.
    pub(crate) async fn start(with_nginx: bool) -> anyhow::Result<Self> {
        let tollgate = program_path(&["-p", "tollgate"], "tollgate")?;
        let folder = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        let provider = ProviderProcess::start(&tollgate, folder.path())?;
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
    pub(crate) async fn serve(
        &mut self,
        database: BenchDatabase,
        nodes: usize,
    ) -> anyhow::Result<()> {
        let folder = self.folder.path().join(format!("service-{}", self.services.len()));
        std::fs::create_dir(&folder)?;
        let provider = self.provider.address;
        let service =
            BenchService::start(&self.tollgate, database, provider, &folder, nodes).await?;
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

    pub(crate) fn service(&self, place: usize) -> anyhow::Result<&BenchService> {
        self.services.get(place).context("there is no such service")
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = (usize, &BenchService)> {
        self.services.iter().enumerate()
    }

    /// The services, to be ended while what they have written is still there.
    pub(crate) fn take_services(&mut self) -> Vec<BenchService> {
        std::mem::take(&mut self.services)
    }

    /// The targets that are compared: the provider alone, nginx if it is there, and the first service.
    pub(crate) fn targets(&self) -> Vec<LoadTarget> {
        let nginx = self.nginx.keys().map(|buffering| LoadTarget::Nginx(*buffering));
        [LoadTarget::Direct].into_iter().chain(nginx).chain([LoadTarget::Tollgate(0)]).collect()
    }

    /// The processes whose trees are the target.
    pub(crate) fn processes(&self, target: LoadTarget) -> Vec<u32> {
        let nodes =
            |service: &BenchService| service.nodes.iter().map(|node| node.program.id()).collect();
        match target {
            LoadTarget::Direct => vec![self.provider.program.id()],
            LoadTarget::Nginx(buffering) => {
                self.nginx.get(&buffering).iter().map(|(program, _)| program.id()).collect()
            }
            LoadTarget::Tollgate(place) => self.services.get(place).map(nodes).unwrap_or_default(),
        }
    }

    /// A load of one call on a target; on Tollgate with the spend key that has every limit.
    pub(crate) fn load(
        &self,
        target: LoadTarget,
        call: &ChatCall,
        concurrency: usize,
    ) -> anyhow::Result<Load> {
        let (address, credential) = self.address(target)?;
        Ok(Load {
            addresses: [address].into(),
            requests: [call.request_to(address, &credential)].into(),
            status: 200,
            concurrency,
            apart: Duration::ZERO,
            streams: call.streams,
        })
    }

    /// The address of a target, and a credential for it; on Tollgate the spend key that has every limit.
    pub(crate) fn address(&self, target: LoadTarget) -> anyhow::Result<(SocketAddr, String)> {
        Ok(match target {
            LoadTarget::Direct => (self.provider.address, "simulated".to_owned()),
            LoadTarget::Nginx(buffering) => {
                let nginx = self.nginx.get(&buffering).context("there is no nginx")?;
                (nginx.1, "simulated".to_owned())
            }
            LoadTarget::Tollgate(place) => {
                let service = self.service(place)?;
                (service.address()?, service.spend_key.clone())
            }
        })
    }

    /// Counts calls that were answered beside a load.
    pub(crate) fn count_answered(&mut self, target: LoadTarget, calls: u64) -> anyhow::Result<()> {
        if let LoadTarget::Tollgate(place) = target {
            self.services.get_mut(place).context("there is no such service")?.answered += calls;
        }
        Ok(())
    }

    /// Drives a target. Calls through Tollgate are counted on both sides of it; what is to be answered
    /// with 200 counts as a call.
    pub(crate) async fn drive(
        &mut self,
        target: LoadTarget,
        load: &Load,
        until: StopCondition,
    ) -> anyhow::Result<LoadResult> {
        let before = self.provider.calls().await?;
        let driven = drive(load, until).await.with_context(|| format!("calling {target}"))?;
        let provided = self.provider.calls().await? - before;
        if let LoadTarget::Tollgate(place) = target {
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
        let status = http::HttpConnection::open(address).await?.call(request, false).await?;
        let provided = self.provider.calls().await? - before;
        let service = self.services.get_mut(place).context("there is no such service")?;
        service.provided += provided;
        service.answered += u64::from(status == 200);
        Ok(())
    }
}

impl ProviderProcess {
    fn start(tollgate: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(tollgate);
        // With the role, the end, the usage and the end mark that is a stream of 24 events.
        command.args(["simulator", "--listen", "127.0.0.1:0", "--set", "words=20"]);
        let mut program = ChildProgram::start("simulator", &mut command, folder)?;
        let address = program.printed_address()?.parse()?;
        Ok(Self { program, address })
    }

    /// How many calls it has answered.
    async fn calls(&self) -> anyhow::Result<u64> {
        let host = self.address.to_string();
        let stats =
            request_json(self.address, &request("GET", "/stats", &host, "-", &[], "")).await?;
        let count = |name: &str| stats.get(name).and_then(Value::as_u64).context("no count");
        ensure!(count("errors")? == 0, "the provider refused calls: {stats}");
        count("calls")
    }
}
