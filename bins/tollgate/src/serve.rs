//! The service: opens its store, listens, and drains when a signal ends it.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::web;
use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tollgate_api::{App, BoundServer, Pages, ServedRoutes, Settings, WebhookDispatcher};
use tollgate_domain::Clock;
use tollgate_gateway::{Gateway, poll_jobs, watch_socket_keys};
use tollgate_provider::ProviderClient;
use tollgate_store::{Store, StoreError, upkeep};

use crate::config::TollgateConfig;
use crate::logging;
use crate::output::print;
use crate::price_lists::{CurrentPrices, warn_of_unused};

/// The time within which the store must close.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// A running service.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) store: Store,
    gateway: Arc<Gateway>,
    /// The address of the dashboard, if it has its own.
    dashboard: Option<SocketAddr>,
    servers: Vec<RunningServer>,
    upkeep: JoinHandle<()>,
    poller: JoinHandle<()>,
    socket_keys: JoinHandle<()>,
    prices: JoinHandle<()>,
    dispatcher: WebhookDispatcher,
    /// SIGTERM and SIGINT. Before the service listens, they end the process at once.
    signals: [Signal; 2],
}

/// A server at one address.
struct RunningServer {
    handle: ServerHandle,
    task: JoinHandle<std::io::Result<()>>,
}

impl RunningServer {
    fn of(BoundServer { server, .. }: BoundServer) -> Self {
        Self { handle: server.handle(), task: tokio::task::spawn(server) }
    }
}

fn listen(
    app: &web::Data<App>,
    config: &TollgateConfig,
    (key, address): (&str, &str),
    served: &ServedRoutes,
) -> anyhow::Result<BoundServer> {
    tollgate_api::listen(app.clone(), address, config.tls.as_ref(), served).with_context(|| {
        let variable = key.to_ascii_uppercase();
        format!(
            "cannot listen on {address}: name another address by `{key}` or TOLLGATE_{variable}"
        )
    })
}

/// Serves until a signal ends it.
pub(crate) async fn run(config: TollgateConfig, json: bool) -> anyhow::Result<()> {
    logging::start(config.log_format);
    config.warnings().iter().for_each(|doubt| log::warn!("{doubt}"));
    let service = Service::start(&config, &tollgate_dashboard::pages()).await?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", service.address);
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILD_COMMIT"));
    log::info!("tollgate {version} ({commit}) listens on {address}");
    if let Some(address) = service.dashboard {
        log::info!("the dashboard is on {scheme}://{address}/dashboard");
    }
    log::info!("database {:?}", config.database_url);
    if let Some(journal) = &config.journal_dir {
        log::info!("journal {}", journal.display());
    }
    // With port 0 the caller reads the port from this line.
    print(json, &json!({"listening": address}), &format!("listening on {address}"))?;
    std::io::stdout().flush()?;
    service.run_until_signal(&config).await
}

/// Books the journal and ends the calls that an earlier process left. A step that fails is repeated
/// later, so that the start does not wait for it.
async fn recover(store: &Store) {
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

/// Raises the limit of open files to its maximum: a call is two sockets, and the default is often low.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(cause) = setrlimit(Resource::Nofile, most) {
        log::warn!("no more than {:?} files can be open: {cause}", limit.current);
    }
}

impl Service {
    /// Opens the store and listens.
    pub(crate) async fn start(config: &TollgateConfig, pages: &Pages) -> anyhow::Result<Self> {
        raise_file_limit();
        let store = Store::open(&config.database_url, &config.store_options(true))
            .with_context(|| format!("cannot open {:?}", config.database_url))?;
        store.renew_lease().await?;
        recover(&store).await;
        // S3 may answer late, so the start does not wait for it.
        let records = store.clone();
        tokio::spawn(async move {
            if let Err(StoreError::Archive(cause)) = records.archived_months().await {
                log::warn!("old records cannot be read: {cause}");
            }
        });
        let settings = Settings {
            access_log: config.access_log.then(|| logging::access(config.log_format)),
            commit: env!("BUILD_COMMIT"),
            ..config.settings.clone()
        };
        warn_of_unused(config, &store).await?;
        let mut prices = CurrentPrices::new(config);
        let current = prices.changed_if_readable(&store).await?;
        let current = current.unwrap_or_else(|| config.prices.clone());
        let gateway = Arc::new(Gateway::new(
            store.clone(),
            settings.calls.clone(),
            config.providers.clone(),
            current,
            Clock::system(),
        ));
        let app = web::Data::new(App::new(Arc::clone(&gateway), settings));
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let beside = Some(pages).filter(|_| config.dashboard_listen.is_none()).cloned();
        let served = ServedRoutes { interface: true, pages: beside };
        let main = listen(&app, config, ("listen", &config.listen), &served)?;
        let alone = ServedRoutes { interface: false, pages: Some(pages.clone()) };
        let dashboard = config
            .dashboard_listen
            .as_ref()
            .map(|address| listen(&app, config, ("dashboard_listen", address), &alone));
        let dashboard = dashboard.transpose()?;
        let client =
            ProviderClient::with_resolver(app.settings.calls.timeouts, &app.settings.resolver);
        let poller = actix_web::rt::spawn(poll_jobs(Arc::clone(&gateway), client));
        let socket_keys = actix_web::rt::spawn(watch_socket_keys(Arc::clone(&gateway)));
        let gateway_of_prices = Arc::clone(&gateway);
        let dispatcher = WebhookDispatcher::start(app).context("cannot start a thread")?;
        Ok(Self {
            address: main.address,
            dashboard: dashboard.as_ref().map(|dashboard| dashboard.address),
            gateway,
            dispatcher,
            servers: [Some(main), dashboard].into_iter().flatten().map(RunningServer::of).collect(),
            poller,
            socket_keys,
            prices: actix_web::rt::spawn(prices.watch(gateway_of_prices)),
            upkeep: actix_web::rt::spawn(upkeep::run(store.clone())),
            store,
            signals,
        })
    }

    /// Waits for SIGTERM or SIGINT. Then it takes no new calls, lets calls in flight end, settles the
    /// rest, and closes.
    pub(crate) async fn run_until_signal(mut self, config: &TollgateConfig) -> anyhow::Result<()> {
        let [terminate, interrupt] = &mut self.signals;
        let is_overtaken = tokio::select! {
            _ = terminate.recv() => false,
            _ = interrupt.recv() => false,
            () = self.store.overtaken() => true,
        };
        log::info!("shutting down: {} calls in flight", self.gateway.calls.running());
        let dispatcher = tokio::time::timeout(config.drain_timeout, self.dispatcher.stop());
        // Deliveries that are cut off here are sent again by the next process.
        let (_, _) = tokio::join!(self.gateway.calls.drain(config.drain_timeout), dispatcher);
        self.gateway.sockets.wait(CLOSE_WITHIN).await;
        for server in self.servers {
            server.handle.stop(true).await;
            server.task.await??;
        }
        self.poller.abort();
        self.socket_keys.abort();
        self.prices.abort();
        self.upkeep.abort();
        let closed = tokio::time::timeout(CLOSE_WITHIN, self.store.close()).await;
        let Ok(closed) = closed else {
            // A normal return would wait for the threads that wait for a silent database.
            log::error!(
                "the store does not close; what is not booked is in the journal, if there is one"
            );
            std::process::exit(1);
        };
        closed?;
        log::info!("ended");
        match is_overtaken {
            true => bail!("another process serves from this SQLite file"),
            false => Ok(()),
        }
    }
}
