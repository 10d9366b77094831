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
use actix_web::guard::fn_guard;
use actix_web::web::{self, Bytes, Data, PayloadConfig, ServiceConfig};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, rt};
use tokio::sync::watch;

use crate::answer::new_id;
use crate::background::BackgroundResponses;
use crate::behavior::Behavior;
use crate::conversations::{self, Conversations};
use crate::deliver::{ResponseContent, SimulatedResponse, deliver, to_json};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::file_batches::{self, FileBatches};
use crate::google_operations::GoogleOperations;
use crate::message_batches::{self, MessageBatches};
use crate::receiver::{self, Mailbox};
use crate::refuse::refuse;
use crate::request::SimulatedRequest;
use crate::stats::{SimulatorCounters, Stats};
use crate::videos::{self, Videos};
use crate::{
    anthropic, background, chat, completions, embeddings, google, google_operations, models,
    responses, sockets,
};

/// Longer than any client keeps an idle connection, so that the server never closes one that is about to be used.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
const BODY_LIMIT_BYTES: usize = 256 * 1024 * 1024;

/// A running simulated provider. It has its own threads, so it can be started from any context;
/// dropping it stops it. It does not handle signals; the program around it does.
#[derive(Debug)]
pub struct Simulator {
    addr: SocketAddr,
    handle: ServerHandle,
    counters: Arc<SimulatorCounters>,
    ended: watch::Receiver<()>,
}

struct SimulatorState {
    behavior: Behavior,
    counters: Arc<SimulatorCounters>,
    jobs: Data<BackgroundResponses>,
    batches: Data<MessageBatches>,
    file_batches: Data<FileBatches>,
    videos: Data<Videos>,
    operations: Data<GoogleOperations>,
    conversations: Data<Conversations>,
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
        let counters = Arc::new(SimulatorCounters::default());
        let jobs = Data::new(BackgroundResponses::new(Arc::clone(&counters)));
        let batches = Data::new(MessageBatches::new(Arc::clone(&counters)));
        let file_batches = Data::new(FileBatches::new(Arc::clone(&counters)));
        let videos = Data::new(Videos::default());
        let operations = Data::new(GoogleOperations::new(Arc::clone(&counters)));
        let state = Data::new(SimulatorState {
            behavior,
            counters: Arc::clone(&counters),
            jobs,
            batches,
            file_batches,
            videos,
            operations,
            conversations: Data::default(),
        });
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

impl std::fmt::Debug for SimulatorCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read().fmt(f)
    }
}

fn bind(
    listen: &str,
    state: Data<SimulatorState>,
    workers: usize,
) -> io::Result<(SocketAddr, Server)> {
    let mailbox = Data::new(Mailbox::default());
    let app = move || {
        App::new()
            .app_data(state.clone())
            .app_data(state.jobs.clone())
            .app_data(state.batches.clone())
            .app_data(state.file_batches.clone())
            .app_data(state.videos.clone())
            .app_data(state.operations.clone())
            .app_data(state.conversations.clone())
            .app_data(mailbox.clone())
            .configure(routes)
    };
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
        move |http: HttpRequest, body: Bytes, state: Data<SimulatorState>| async move {
            serve(endpoint, &http, &body, &state).await
        }
    };
    let post = |endpoint: SimulatedEndpoint| web::post().to(handler(endpoint));
    // Google's paths below `/v1` are also those of others.
    let is_google = fn_guard(|request| {
        let head = request.head();
        head.headers.contains_key(GOOGLE_KEY) || head.uri.path().contains("/publishers/")
    });
    config
        .app_data(PayloadConfig::new(BODY_LIMIT_BYTES))
        .service(web::scope("/v1").guard(is_google).configure(google_routes))
        .service(web::scope("/{version:v1beta1|v1beta|v1alpha}").configure(google_routes))
        .route("/v1/chat/completions", post(SimulatedEndpoint::ChatCompletions))
        .route("/v1/completions", post(SimulatedEndpoint::Completions))
        .route("/v1/responses", web::get().to(responses_socket))
        .route("/v1/realtime", web::get().to(realtime_socket))
        .route("/v1/live/sessions", web::get().to(gpt_live_socket))
        .route("/ws/{service}", web::get().to(live_socket))
        .route("/v1/responses", post(SimulatedEndpoint::Responses))
        .route("/v1/embeddings", post(SimulatedEndpoint::Embeddings))
        .route("/v1/messages", post(SimulatedEndpoint::Messages))
        .route("/v1/messages/batches", post(SimulatedEndpoint::MessageBatches))
        .route("/v1/files", post(SimulatedEndpoint::Files))
        .route("/v1/batches", post(SimulatedEndpoint::Batches))
        .route("/v1/videos", post(SimulatedEndpoint::Videos))
        .route("/v1/messages/count_tokens", post(SimulatedEndpoint::CountTokens))
        .route("/v1/models", web::get().to(handler(SimulatedEndpoint::Models)))
        .route("/v1/models/{id:.*}", web::get().to(handler(SimulatedEndpoint::Models)))
        .route("/stats", web::get().to(stats))
        .configure(background::routes)
        .configure(message_batches::routes)
        .configure(file_batches::routes)
        .configure(videos::routes)
        .configure(conversations::routes)
        .configure(receiver::routes)
        .default_service(web::to(handler(SimulatedEndpoint::Other)));
}

/// The header with the key of Google's SDKs.
const GOOGLE_KEY: &str = "x-goog-api-key";

fn google_routes(config: &mut ServiceConfig) {
    config
        .configure(google_operations::routes)
        // A model of Gemini's, or of Vertex AI's.
        .route("/{parent:.*models/[^/:]+}:{verb:[A-Za-z]+}", web::post().to(google_call));
}

async fn google_call(http: HttpRequest, body: Bytes, state: Data<SimulatorState>) -> HttpResponse {
    let endpoint = match http.match_info().get("verb") {
        Some("generateContent" | "streamGenerateContent") => SimulatedEndpoint::GenerateContent,
        Some("batchGenerateContent") => SimulatedEndpoint::GoogleBatches,
        Some("predictLongRunning") => SimulatedEndpoint::GoogleVideos,
        _ => SimulatedEndpoint::Other,
    };
    serve(endpoint, &http, &body, &state).await
}

async fn stats(state: Data<SimulatorState>) -> HttpResponse {
    let body = to_json(&state.counters.read());
    HttpResponse::Ok().content_type("application/json").body(body)
}

async fn responses_socket(
    http: HttpRequest,
    payload: web::Payload,
    state: Data<SimulatorState>,
) -> actix_web::Result<HttpResponse> {
    open_socket(&http, payload, &state, sockets::responses)
}

async fn realtime_socket(
    http: HttpRequest,
    payload: web::Payload,
    state: Data<SimulatorState>,
) -> actix_web::Result<HttpResponse> {
    open_socket(&http, payload, &state, sockets::realtime)
}

async fn gpt_live_socket(
    http: HttpRequest,
    payload: web::Payload,
    state: Data<SimulatorState>,
) -> actix_web::Result<HttpResponse> {
    open_socket(&http, payload, &state, sockets::gpt_live)
}

async fn live_socket(
    http: HttpRequest,
    payload: web::Payload,
    state: Data<SimulatorState>,
) -> actix_web::Result<HttpResponse> {
    open_socket(&http, payload, &state, sockets::live)
}

/// A kind of WebSocket.
type OpenSocket = fn(
    &HttpRequest,
    web::Payload,
    Behavior,
    Arc<SimulatorCounters>,
) -> actix_web::Result<HttpResponse>;

fn open_socket(
    http: &HttpRequest,
    payload: web::Payload,
    state: &SimulatorState,
    open: OpenSocket,
) -> actix_web::Result<HttpResponse> {
    let behavior = match state.behavior.overridden_by(http.headers()) {
        Ok(behavior) => behavior.into_owned(),
        Err(invalid) => {
            let error = SimulatedError::new(400, invalid.to_string());
            return Ok(refuse(&error, SimulatedDialect::OpenAi));
        }
    };
    if behavior.api_key.as_deref().is_some_and(|key| sent_key(http) != Some(key)) {
        let error = SimulatedError::new(401, "incorrect API key provided");
        return Ok(refuse(&error, SimulatedDialect::OpenAi));
    }
    open(http, payload, behavior, Arc::clone(&state.counters))
}

/// Answers one call: waits, refuses or replies, counts, and sends.
async fn serve(
    endpoint: SimulatedEndpoint,
    http: &HttpRequest,
    body: &[u8],
    state: &SimulatorState,
) -> HttpResponse {
    state.counters.count_call(endpoint);
    let dialect = dialect(http);
    match respond(endpoint, dialect, http, body, state).await {
        Ok((reply, behavior)) => {
            state.counters.count_tokens(endpoint, reply.tokens.booked(behavior.usage));
            let mut response = HttpResponse::Ok();
            response.insert_header((dialect.request_id_header(), new_id("req_")));
            deliver(response, reply.content, &behavior)
        }
        Err(fault) => {
            state.counters.count_error(endpoint);
            refuse(&fault, dialect)
        }
    }
}

fn dialect(http: &HttpRequest) -> SimulatedDialect {
    let (path, has) = (http.path(), |name: &str| http.headers().contains_key(name));
    if path.starts_with("/v1/messages") || has("anthropic-version") {
        SimulatedDialect::Anthropic
    } else if http.match_info().get("verb").is_some() || has(GOOGLE_KEY) {
        SimulatedDialect::Google
    } else {
        SimulatedDialect::OpenAi
    }
}

async fn respond<'a>(
    endpoint: SimulatedEndpoint,
    dialect: SimulatedDialect,
    http: &HttpRequest,
    body: &[u8],
    state: &'a SimulatorState,
) -> Result<(SimulatedResponse, Cow<'a, Behavior>), SimulatedError> {
    let behavior = state.behavior.overridden_by(http.headers());
    let behavior = behavior.map_err(|invalid| SimulatedError::new(400, invalid.to_string()))?;
    if behavior.first_byte_delay_ms > 0 {
        rt::time::sleep(Duration::from_millis(behavior.first_byte_delay_ms)).await;
    }
    if behavior.api_key.as_deref().is_some_and(|key| sent_key(http) != Some(key)) {
        return Err(SimulatedError::new(401, "incorrect API key provided"));
    }
    if behavior.status != 200 {
        return Err(SimulatedError::simulated(behavior.status, behavior.retry_after_s));
    }

    let request = || SimulatedRequest::parse(body);
    let mut reply = match endpoint {
        SimulatedEndpoint::ChatCompletions => chat::respond(&request()?, &behavior),
        SimulatedEndpoint::Completions => completions::respond(&request()?, &behavior),
        SimulatedEndpoint::Responses => match request()? {
            request if request.background() => {
                background::begin(&request, body, &behavior, &state.jobs)
            }
            request => responses::respond(&request, &behavior),
        },
        SimulatedEndpoint::Embeddings => embeddings::respond(&request()?, &behavior)?,
        SimulatedEndpoint::Messages => anthropic::respond(&request()?, &behavior),
        SimulatedEndpoint::CountTokens => anthropic::count_tokens(&request()?, &behavior),
        SimulatedEndpoint::MessageBatches => {
            message_batches::begin(http, body, &behavior, &state.batches)?
        }
        SimulatedEndpoint::Files => file_batches::upload(http, body, &state.file_batches)?,
        SimulatedEndpoint::Batches => file_batches::begin(body, &behavior, &state.file_batches)?,
        SimulatedEndpoint::Videos => videos::begin(http, body, &behavior, &state.videos)?,
        SimulatedEndpoint::Models => match http.match_info().get("id") {
            Some(id) => models::get(id, dialect),
            None => models::list(dialect),
        },
        SimulatedEndpoint::GenerateContent => {
            let (_, model) = google_model(http);
            let request = google::request(model, &google_operations::parse(body)?)?;
            match http.match_info().get("verb") {
                Some("streamGenerateContent") => google::stream(&request, &behavior),
                _ => {
                    let (answer, tokens) = google::respond(&request, &behavior);
                    SimulatedResponse::json(&answer, tokens)
                }
            }
        }
        SimulatedEndpoint::GoogleBatches => {
            let (_, model) = google_model(http);
            google_operations::begin_batch(model, body, &behavior, &state.operations)?
        }
        SimulatedEndpoint::GoogleVideos => {
            let (parent, _) = google_model(http);
            google_operations::begin_videos(parent, body, &behavior, &state.operations)?
        }
        // Only sockets have them.
        SimulatedEndpoint::Realtime
        | SimulatedEndpoint::RealtimeTranscriptions
        | SimulatedEndpoint::Live
        | SimulatedEndpoint::LiveSessions
        | SimulatedEndpoint::Other => {
            let (method, path) = (http.method(), http.path());
            return Err(SimulatedError::new(404, format!("there is no {method} {path}")));
        }
    };
    if let (ResponseContent::Events(events), Some(after)) =
        (&mut reply.content, behavior.error_after_events)
    {
        events.truncate(after);
        match endpoint {
            SimulatedEndpoint::Messages => anthropic::error_event(events),
            SimulatedEndpoint::Responses => responses::error_event(events),
            _ => chat::error_event(events),
        }
    }
    Ok((reply, behavior))
}

/// The path of the model of a call in Google's form, and its name.
fn google_model(http: &HttpRequest) -> (&str, &str) {
    let parent = http.match_info().get("parent").unwrap_or_default();
    (parent, parent.rsplit('/').next().unwrap_or_default())
}

/// The key of the call, as any dialect sends it.
fn sent_key(http: &HttpRequest) -> Option<&str> {
    let header = |name| http.headers().get(name)?.to_str().ok();
    let bearer = || header("authorization")?.strip_prefix("Bearer ");
    header("x-api-key").or_else(|| header(GOOGLE_KEY)).or_else(bearer)
}
