//! A proxy to a database that injects faults into statements.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::client::framed;
use super::database::TestDatabase;

/// A fault that a statement meets between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementFault {
    /// The statement is refused, with this SQLSTATE and message.
    Refused(&'static str, &'static str),
    /// The statement arrives late.
    Delayed(Duration),
    /// The connection is lost before the server receives the statement.
    LostBefore,
    /// The server runs the statement, and the connection is lost before its answer. The client does not know
    /// whether it was done, which matters for a commit.
    LostAfter,
    /// The statement does not arrive, and the connection stays open.
    Silent,
    /// The connection is lost, and after this time the server runs the statement all the same.
    Late(Duration),
}

/// The fault, if any, of the statement with this number, from 1.
type FaultPlan = Box<dyn FnMut(usize) -> Option<StatementFault> + Send>;

/// A proxy to a database whose statements meet faults, as between two machines. It speaks the protocol, so
/// that the code under test is unchanged.
pub struct FaultProxy {
    url: String,
    shared: Arc<ProxyState>,
    _folder: TempDir,
}

struct ProxyState {
    server: PathBuf,
    plan: Mutex<FaultPlan>,
    /// The number of statements since the plan was made.
    statements: AtomicUsize,
    /// The number of those statements that met a fault.
    faults: AtomicUsize,
}

impl FaultProxy {
    /// A proxy to `database`, without faults at first.
    pub fn to(database: &TestDatabase) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let (before, rest) = database.url.split_once("host=").unwrap();
        let (_, after) = rest.split_once('&').unwrap();
        let url = format!("{before}host={}&{after}", folder.path().display());
        let shared = Arc::new(ProxyState {
            server: database.cluster.socket(),
            plan: Mutex::new(Box::new(|_| None)),
            statements: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // An error means that the connection has ended.
                thread::spawn(move || drop(shared.serve(client)));
            }
        });
        Self { url, shared, _folder: folder }
    }

    /// The URL of the database through this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the faults of all statements from now on.
    pub fn set_plan(&self, plan: impl FnMut(usize) -> Option<StatementFault> + Send + 'static) {
        let mut current = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Box::new(plan);
        self.shared.statements.store(0, Ordering::SeqCst);
        self.shared.faults.store(0, Ordering::SeqCst);
    }

    /// Sets `fault` for the `number`th statement from now on, and for no other.
    pub fn fail(&self, number: usize, fault: StatementFault) {
        self.set_plan(move |statement| (statement == number).then_some(fault));
    }

    /// Ends all faults; returns the number of statements that met one under the last plan.
    pub fn end_faults(&self) -> usize {
        let met = self.shared.faults.load(Ordering::SeqCst);
        self.set_plan(|_| None);
        met
    }
}

/// A message of the protocol: its kind, and all its bytes.
struct ProtocolMessage {
    kind: u8,
    bytes: Vec<u8>,
}

impl ProtocolMessage {
    fn read(from: &mut UnixStream) -> io::Result<Self> {
        let mut bytes = vec![0; 5];
        from.read_exact(&mut bytes)?;
        let [kind, length @ ..] =
            <[u8; 5]>::try_from(bytes.as_slice()).map_err(io::Error::other)?;
        read_rest(from, length, &mut bytes)?;
        Ok(Self { kind, bytes })
    }
}

/// Reads the rest of a message; the length includes itself.
fn read_rest(from: &mut UnixStream, length: [u8; 4], bytes: &mut Vec<u8>) -> io::Result<()> {
    let rest = u64::from(u32::from_be_bytes(length)).saturating_sub(4);
    from.take(rest).read_to_end(bytes).map(drop)
}

impl ProxyState {
    /// The fault of the next statement, if any.
    fn next_fault(&self) -> Option<StatementFault> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.statements.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = plan(number);
        if fault.is_some() {
            self.faults.fetch_add(1, Ordering::SeqCst);
        }
        fault
    }

    /// Serves a connection until either side closes or a fault ends it; then both sides are closed.
    fn serve(&self, mut client: UnixStream) -> io::Result<()> {
        let mut server = UnixStream::connect(&self.server)?;
        let mut hello = vec![0; 4];
        client.read_exact(&mut hello)?;
        let length = <[u8; 4]>::try_from(hello.as_slice()).map_err(io::Error::other)?;
        read_rest(&mut client, length, &mut hello)?;
        server.write_all(&hello)?;
        let mut state = relay(&mut server, Some(&mut client))?;
        loop {
            let mut statement = Vec::new();
            // A query is one message; a prepared statement is several, up to a `Sync`.
            let kind = loop {
                let ProtocolMessage { kind, bytes } = ProtocolMessage::read(&mut client)?;
                statement.extend(bytes);
                if matches!(kind, b'Q' | b'S' | b'X') {
                    break kind;
                }
            };
            if kind == b'X' {
                return server.write_all(&statement);
            }
            match self.next_fault() {
                Some(StatementFault::Refused(code, words)) => {
                    if statement.windows(6).any(|words| words == b"COMMIT") {
                        // A failed commit leaves no transaction.
                        server.write_all(&framed(b"Q", b"ROLLBACK\0")?)?;
                        state = relay(&mut server, None)?;
                    } else if state == b'T' {
                        state = b'E';
                    }
                    let error = format!("SERROR\0VERROR\0C{code}\0M{words}\0\0");
                    client.write_all(&framed(b"E", error.as_bytes())?)?;
                    client.write_all(&framed(b"Z", &[state])?)?;
                    continue;
                }
                Some(StatementFault::LostBefore) => return Ok(()),
                Some(StatementFault::LostAfter) => {
                    server.write_all(&statement)?;
                    return relay(&mut server, None).map(drop);
                }
                Some(StatementFault::Late(time)) => {
                    drop(client);
                    thread::sleep(time);
                    server.write_all(&statement)?;
                    return relay(&mut server, None).map(drop);
                }
                // Until the client leaves.
                Some(StatementFault::Silent) => {
                    return io::copy(&mut client, &mut io::sink()).map(drop);
                }
                Some(StatementFault::Delayed(time)) => thread::sleep(time),
                None => {}
            }
            server.write_all(&statement)?;
            state = relay(&mut server, Some(&mut client))?;
        }
    }
}

/// Relays the server's messages until it is ready for more; returns its transaction state.
fn relay(server: &mut UnixStream, mut client: Option<&mut UnixStream>) -> io::Result<u8> {
    loop {
        let ProtocolMessage { kind, bytes } = ProtocolMessage::read(server)?;
        if let Some(client) = &mut client {
            client.write_all(&bytes)?;
        }
        if kind == b'Z' {
            return Ok(bytes.last().copied().unwrap_or_default());
        }
    }
}
