//! The service: opened, listened on, and drained when it is told to end.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::web;
use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tollgate_api::{App, Courier, Listening, Settings};
use tollgate_domain::Clock;
use tollgate_store::{Store, upkeep};

use crate::config::Config;
use crate::logging;
use crate::output::print;

/// How long the store may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// A service that listens.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    app: web::Data<App>,
    handle: ServerHandle,
    server: JoinHandle<std::io::Result<()>>,
    upkeep: JoinHandle<()>,
    courier: Courier,
}

/// Serves until a signal ends it.
pub(crate) async fn run(config: Config, json: bool) -> anyhow::Result<()> {
    logging::start(config.log_format);
    config.doubts().iter().for_each(|doubt| log::warn!("{doubt}"));
    let service = Service::start(&config).await?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", service.address);
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILD_COMMIT"));
    log::info!("tollgate {version} ({commit}) listens on {address}");
    log::info!("database {:?}", config.database_url);
    if let Some(journal) = &config.journal_dir {
        log::info!("journal {}", journal.display());
    }
    // For whoever starts us with port 0.
    print(json, &json!({"listening": address}), &format!("listening on {address}"))?;
    std::io::stdout().flush()?;
    service.until_signal(&config).await
}

/// Takes up what an earlier life has left. What cannot be ended now is tried again from time to time;
/// it must not keep everybody else waiting.
async fn take_up(store: &Store) {
    match store.replay_journal().await {
        Ok(0) => {}
        Ok(booked) => log::info!("{booked} settlements of the journal booked"),
        Err(cause) => log::error!("the journal is not booked: {cause}"),
    }
    match store.sweep().await {
        Ok(0) => {}
        Ok(swept) => log::info!("{swept} lost calls ended"),
        Err(cause) => log::error!("lost calls are not ended: {cause}"),
    }
}

/// A call is two sockets, and a system that means to allow many often allows few at first.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(cause) = setrlimit(Resource::Nofile, most) {
        log::warn!("no more than {:?} files can be open: {cause}", limit.current);
    }
}

impl Service {
    /// Opens the store and listens.
    pub(crate) async fn start(config: &Config) -> anyhow::Result<Self> {
        allow_many_files();
        let store = Store::open(&config.database_url, &config.store_options(true))
            .with_context(|| format!("cannot open {:?}", config.database_url))?;
        store.renew_lease().await?;
        take_up(&store).await;
        let settings = Settings {
            access_log: config.access_log.then(|| logging::access(config.log_format)),
            commit: env!("BUILD_COMMIT"),
            ..config.settings.clone()
        };
        let app = web::Data::new(App::new(
            store.clone(),
            settings,
            config.providers.clone(),
            config.prices.clone(),
            Clock::system(),
        ));
        let listening = match &config.tls {
            None => tollgate_api::listen(app.clone(), &config.listen),
            Some(tls) => tollgate_api::listen_tls(app.clone(), &config.listen, tls),
        };
        let Listening { address, server } = listening.with_context(|| {
            format!(
                "cannot listen on {}: name another address by `listen` or TOLLGATE_LISTEN",
                config.listen
            )
        })?;
        let courier = Courier::start(app.clone()).context("cannot start a thread")?;
        Ok(Self {
            address,
            app,
            courier,
            handle: server.handle(),
            server: tokio::task::spawn(server),
            upkeep: actix_web::rt::spawn(upkeep::run(store.clone())),
            store,
        })
    }

    /// Waits for SIGTERM or SIGINT; takes no new calls then, lets those on their way end, settles
    /// the rest, and closes.
    pub(crate) async fn until_signal(self, config: &Config) -> anyhow::Result<()> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        log::info!("ending: {} calls on their way", self.app.calls().running());
        let courier = tokio::time::timeout(config.drain_timeout, self.courier.stop());
        // Messages that are cut off then are sent again by whoever comes next.
        let (_, _) = tokio::join!(self.app.calls().drain(config.drain_timeout), courier);
        self.handle.stop(true).await;
        self.server.await??;
        self.upkeep.abort();
        let closed = tokio::time::timeout(CLOSE_WITHIN, self.store.close()).await;
        let Ok(closed) = closed else {
            // Threads that wait for a silent database would be waited for.
            log::error!("the store does not close; what is not booked is in the journal");
            std::process::exit(1);
        };
        closed?;
        log::info!("ended");
        Ok(())
    }
}
