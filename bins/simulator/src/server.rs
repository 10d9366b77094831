//! The HTTP server of the simulator.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data, PayloadConfig, ServiceConfig};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, rt};
use tokio::sync::watch;

use crate::answer::id;
use crate::behavior::Behavior;
use crate::deliver::{Content, Reply, deliver, to_json};
use crate::endpoint::{Dialect, Endpoint};
use crate::fault::Fault;
use crate::receiver::{self, Mailbox};
use crate::request::Request;
use crate::stats::{Counters, Stats};
use crate::{anthropic, chat, completions, embeddings, models, responses};

/// Longer than any client keeps an idle connection, so that the server never closes one that is about to be used.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
const BODY_LIMIT_BYTES: usize = 256 * 1024 * 1024;

/// A running simulated provider. It has its own threads, so it can be started from any context;
/// dropping it stops it. It does not handle signals; the program around it does.
#[derive(Debug)]
pub struct Simulator {
    addr: SocketAddr,
    handle: ServerHandle,
    counters: Arc<Counters>,
    ended: watch::Receiver<()>,
}

struct State {
    behavior: Behavior,
    counters: Arc<Counters>,
}

impl Simulator {
    /// Starts to listen, with a worker for each core. Port 0 takes any free port.
    ///
    /// # Errors
    /// When it cannot listen on the address.
    pub fn start(listen: &str, behavior: Behavior) -> io::Result<Self> {
        let workers = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self::with_workers(listen, behavior, workers)
    }

    /// Starts to listen, with this number of workers.
    ///
    /// # Errors
    /// When it cannot listen on the address.
    pub fn with_workers(
        listen: &str,
        behavior: Behavior,
        workers: NonZeroUsize,
    ) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let state = Data::new(State { behavior, counters: Arc::clone(&counters) });
        let (started, starting) = mpsc::channel();
        let (ending, ended) = watch::channel(());
        let listen = listen.to_owned();
        thread::Builder::new().name("simulator".to_owned()).spawn(move || {
            // Owned by the thread, so that `wait` returns when the thread ends.
            let _ending = ending;
            rt::System::new().block_on(async move {
                match bind(&listen, state, workers.get()) {
                    Ok((addr, server)) => {
                        if started.send(Ok((addr, server.handle()))).is_ok() {
                            drop(server.await);
                        }
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        })?;
        let gone = |_| io::Error::other("the simulator's thread ended before it listened");
        let (addr, handle) = starting.recv().map_err(gone)??;
        Ok(Self { addr, handle, counters, ended })
    }

    /// The address at which it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a path of this simulator.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// The counts since it started.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Stops at once, breaks connections, and returns when it has stopped.
    pub async fn stop(&self) {
        self.handle.stop(false).await;
        self.wait().await;
    }

    /// Returns when it has stopped.
    pub async fn wait(&self) {
        // No value is ever sent: the channel closes when the thread ends and drops the sender.
        while self.ended.clone().changed().await.is_ok() {}
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // The call sends the stop command; the future only waits for its completion.
        drop(self.handle.stop(false));
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read().fmt(f)
    }
}

fn bind(listen: &str, state: Data<State>, workers: usize) -> io::Result<(SocketAddr, Server)> {
    let mailbox = Data::new(Mailbox::default());
    let app =
        move || App::new().app_data(state.clone()).app_data(mailbox.clone()).configure(routes);
    let server = HttpServer::new(app)
        .workers(workers)
        .keep_alive(KEEP_ALIVE)
        // With Nagle's algorithm, small events of a stream would wait for the client's acknowledgements.
        .tcp_nodelay(true)
        .disable_signals()
        .bind(listen)?;
    let unbound = || io::Error::other("no address was bound");
    let addr = server.addrs().first().copied().ok_or_else(unbound)?;
    Ok((addr, server.run()))
}

fn routes(config: &mut ServiceConfig) {
    let handler = |endpoint| {
        move |http: HttpRequest, body: Bytes, state: Data<State>| async move {
            serve(endpoint, &http, &body, &state).await
        }
    };
    let post = |endpoint: Endpoint| web::post().to(handler(endpoint));
    config
        .app_data(PayloadConfig::new(BODY_LIMIT_BYTES))
        .route("/v1/chat/completions", post(Endpoint::ChatCompletions))
        .route("/v1/completions", post(Endpoint::Completions))
        .route("/v1/responses", post(Endpoint::Responses))
        .route("/v1/embeddings", post(Endpoint::Embeddings))
        .route("/v1/messages", post(Endpoint::Messages))
        .route("/v1/messages/count_tokens", post(Endpoint::CountTokens))
        .route("/v1/models", web::get().to(handler(Endpoint::Models)))
        .route("/v1/models/{id:.*}", web::get().to(handler(Endpoint::Models)))
        .route("/stats", web::get().to(stats))
        .configure(receiver::routes)
        .default_service(web::to(handler(Endpoint::Other)));
}

async fn stats(state: Data<State>) -> HttpResponse {
    let body = to_json(&state.counters.read());
    HttpResponse::Ok().content_type("application/json").body(body)
}

/// Answers one call: waits, refuses or replies, counts, and sends.
async fn serve(endpoint: Endpoint, http: &HttpRequest, body: &[u8], state: &State) -> HttpResponse {
    state.counters.arrived(endpoint);
    let dialect = dialect(http);
    match reply(endpoint, dialect, http, body, state).await {
        Ok((reply, behavior)) => {
            state.counters.handed_out(endpoint, reply.tokens.booked(behavior.usage));
            let mut response = HttpResponse::Ok();
            response.insert_header((dialect.request_id_header(), id("req_")));
            deliver(response, reply.content, &behavior)
        }
        Err(fault) => {
            state.counters.failed(endpoint);
            refuse(&fault, dialect)
        }
    }
}

fn dialect(http: &HttpRequest) -> Dialect {
    let anthropic =
        http.path().starts_with("/v1/messages") || http.headers().contains_key("anthropic-version");
    if anthropic { Dialect::Anthropic } else { Dialect::OpenAi }
}

async fn reply<'a>(
    endpoint: Endpoint,
    dialect: Dialect,
    http: &HttpRequest,
    body: &[u8],
    state: &'a State,
) -> Result<(Reply, Cow<'a, Behavior>), Fault> {
    let behavior = state.behavior.overridden_by(http.headers());
    let behavior = behavior.map_err(|invalid| Fault::new(400, invalid.to_string()))?;
    if behavior.first_byte_delay_ms > 0 {
        rt::time::sleep(Duration::from_millis(behavior.first_byte_delay_ms)).await;
    }
    if behavior.api_key.as_deref().is_some_and(|key| sent_key(http) != Some(key)) {
        return Err(Fault::new(401, "incorrect API key provided"));
    }
    if behavior.status != 200 {
        return Err(Fault::simulated(behavior.status, behavior.retry_after_s));
    }

    let request = || Request::parse(body);
    let mut reply = match endpoint {
        Endpoint::ChatCompletions => chat::reply(&request()?, &behavior),
        Endpoint::Completions => completions::reply(&request()?, &behavior),
        Endpoint::Responses => responses::reply(&request()?, &behavior),
        Endpoint::Embeddings => embeddings::reply(&request()?, &behavior)?,
        Endpoint::Messages => anthropic::reply(&request()?, &behavior),
        Endpoint::CountTokens => anthropic::count_tokens(&request()?, &behavior),
        Endpoint::Models => match http.match_info().get("id") {
            Some(id) => models::one(id, dialect),
            None => models::list(dialect),
        },
        Endpoint::Other => {
            let (method, path) = (http.method(), http.path());
            return Err(Fault::new(404, format!("there is no {method} {path}")));
        }
    };
    if let (Content::Events(events), Some(after)) =
        (&mut reply.content, behavior.error_after_events)
    {
        events.truncate(after);
        match endpoint {
            Endpoint::Messages => anthropic::error_event(events),
            Endpoint::Responses => responses::error_event(events),
            _ => chat::error_event(events),
        }
    }
    Ok((reply, behavior))
}

/// The key of the call, as either dialect sends it.
fn sent_key(http: &HttpRequest) -> Option<&str> {
    let header = |name| http.headers().get(name)?.to_str().ok();
    let bearer = || header("authorization")?.strip_prefix("Bearer ");
    header("x-api-key").or_else(bearer)
}

fn refuse(fault: &Fault, dialect: Dialect) -> HttpResponse {
    let request_id = id("req_");
    let status = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    if let Some(seconds) = fault.retry_after_s {
        response.insert_header(("retry-after", seconds.to_string()));
    }
    let body = to_json(&fault.body(dialect, &request_id));
    response.insert_header((dialect.request_id_header(), request_id));
    response.content_type("application/json").body(body)
}
