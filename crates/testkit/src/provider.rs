//! A provider that answers by script, byte by byte, and records the requests.
//!
//! ```
//! use tollgate_testkit::{Gate, ScriptedProvider, ScriptedResponse};
//!
//! let gate = Gate::new();
//! let provider = ScriptedProvider::start()
//!     .answer(ScriptedResponse::json(429, r#"{"error":{}}"#).header("retry-after", "1"))
//!     .then(
//!         ScriptedResponse::events([r#"{"n":1}"#, r#"{"n":2}"#])
//!             .chunked_at([3, 9])
//!             .gate(&gate)
//!             .cut(),
//!     )
//!     .always(ScriptedResponse::json(200, "{}"));
//! println!("{}", provider.url("/v1/chat/completions"));
//! assert_eq!(provider.calls(), 0);
//! ```
//!
//! It speaks HTTP/1.1 on a socket of its own, so that no layer between joins, splits or corrects the
//! scripted bytes. It runs on a thread of its own, so it works under any runtime and without one.

mod connection;
mod request;
mod response;
mod shared;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

pub use request::RecordedRequest;
pub use response::{Gate, ScriptedResponse};
use shared::{CallCounts, ProviderState};

use crate::socket::TestSocket;

/// A scripted provider. It ends when it is dropped.
#[derive(Debug)]
pub struct ScriptedProvider {
    addr: SocketAddr,
    shared: Arc<ProviderState>,
    sockets: tokio::sync::Mutex<mpsc::UnboundedReceiver<TestSocket>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedProvider {
    /// Starts a provider on a free port of the loopback address, with an empty script. Calls beyond the
    /// script are answered with 500, unless [`always`](Self::always) is set.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let addr = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("a socket can be used without blocking");
        let counts = watch::Sender::new(CallCounts::default());
        let (opened, sockets) = mpsc::unbounded_channel();
        let shared = Arc::new(ProviderState { script: Mutex::default(), counts, opened });
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&shared);
        let thread = thread::Builder::new().name("scripted-provider".to_owned());
        let thread = thread.spawn(move || serve(listener, &serving, stopped));
        let thread = thread.expect("a thread can be started");
        let sockets = tokio::sync::Mutex::new(sockets);
        Self { addr, shared, sockets, stop: Some(stop), thread: Some(thread) }
    }

    /// Answers the next call without an answer with `reply`.
    #[must_use]
    pub fn answer(self, reply: ScriptedResponse) -> Self {
        self.push(reply);
        self
    }

    /// Answers the call after that with `reply`.
    #[must_use]
    pub fn then(self, reply: ScriptedResponse) -> Self {
        self.answer(reply)
    }

    /// Answers every call beyond the script with `reply`.
    #[must_use]
    pub fn always(self, reply: ScriptedResponse) -> Self {
        self.push_always(reply);
        self
    }

    /// Answers every call beyond the script with `reply`, from now on.
    pub fn push_always(&self, reply: ScriptedResponse) {
        self.shared.script().always = Some(reply);
    }

    /// Adds an answer to the script while the provider runs.
    pub fn push(&self, reply: ScriptedResponse) {
        self.shared.script().replies.push_back(reply);
    }

    /// The URL of `path` at this provider.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// The address on which it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of calls that have arrived, counted at the end of their head.
    pub fn calls(&self) -> usize {
        self.shared.counts.borrow().calls
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.shared.counts.borrow().connections
    }

    /// The number of answers that were sent to their scripted end.
    pub fn answered(&self) -> usize {
        self.shared.counts.borrow().answered
    }

    /// The number of clients that left before their answer was complete.
    pub fn hang_ups(&self) -> usize {
        self.shared.counts.borrow().hang_ups
    }

    /// The calls so far, in the order in which their heads arrived.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.script().requests.clone()
    }

    /// The only call so far.
    ///
    /// # Panics
    /// If there was no call, or more than one.
    pub fn request(&self) -> RecordedRequest {
        let requests = self.requests();
        let [request] = requests.as_slice() else {
            panic!("one call was expected, there were {}", requests.len())
        };
        request.clone()
    }

    /// Asserts that exactly `expected` calls have arrived.
    ///
    /// # Panics
    /// If there were fewer or more.
    #[track_caller]
    pub fn assert_calls(&self, expected: usize) {
        let targets = self.requests().into_iter().map(|request| request.target);
        let targets = targets.collect::<Vec<_>>();
        assert_eq!(targets.len(), expected, "calls that reached the provider: {targets:?}");
    }

    /// The next WebSocket that is opened here. One is opened by each request for it, unless the script has an answer.
    pub async fn socket(&self) -> TestSocket {
        let opened = self.sockets.lock().await.recv().await;
        opened.expect("the provider opens sockets as long as it lives")
    }

    /// Returns when `calls` calls have arrived.
    pub async fn wait_for_calls(&self, calls: usize) {
        self.wait_for(|counts| counts.calls >= calls).await;
    }

    /// Returns when `answered` answers were sent to their scripted end.
    pub async fn wait_for_answered(&self, answered: usize) {
        self.wait_for(|counts| counts.answered >= answered).await;
    }

    /// Returns when `hang_ups` clients have left before their answer was complete.
    pub async fn wait_for_hang_ups(&self, hang_ups: usize) {
        self.wait_for(|counts| counts.hang_ups >= hang_ups).await;
    }

    async fn wait_for(&self, reached: impl FnMut(&CallCounts) -> bool) {
        let mut counts = self.shared.counts.subscribe();
        counts.wait_for(reached).await.expect("the provider counts as long as it lives");
    }
}

impl Drop for ScriptedProvider {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has been printed; a second one here would abort the test.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// The base URL of an HTTPS host that answers the TLS greeting in plain text.
pub fn broken_tls_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("https://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            // The client may have left.
            let _ = client.and_then(|mut client| client.write_all(b"HTTP/1.1 400 Bad\r\n\r\n"));
        }
    });
    base
}

fn serve(
    listener: std::net::TcpListener,
    shared: &Arc<ProviderState>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("the socket can be registered");
        let accept = async {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection can be accepted");
                shared.count(|counts| counts.connections += 1);
                tokio::spawn(connection::serve(socket, Arc::clone(shared)));
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped => {}
        }
    });
}
