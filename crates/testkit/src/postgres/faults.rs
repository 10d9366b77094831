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

/// What befalls a statement on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server refuses it, with this SQLSTATE and these words.
    Refused(&'static str, &'static str),
    /// It comes late.
    Delayed(Duration),
    /// The connection is lost before the server has seen it.
    LostBefore,
    /// The server does it, and the connection is lost before it can say so: whoever asked does not
    /// know whether it was done, which matters where it was a commit.
    LostAfter,
    /// The connection is lost, and so much later the server does it all the same.
    Late(Duration),
}

/// Says what befalls the statement of this number, if anything; they count from 1.
type Plan = Box<dyn FnMut(usize) -> Option<Fault> + Send>;

/// A way to a database on which statements meet faults, as they would between two machines: it
/// speaks the protocol, so that nothing of what is tested knows of it.
pub struct FaultyWay {
    url: String,
    shared: Arc<Shared>,
    _folder: TempDir,
}

struct Shared {
    server: PathBuf,
    plan: Mutex<Plan>,
    /// How many statements came since the plan was made.
    statements: AtomicUsize,
    /// How many of them met a fault.
    faults: AtomicUsize,
}

impl FaultyWay {
    /// A way to `database`, without faults so far.
    pub fn to(database: &TestDatabase) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let (before, rest) = database.url.split_once("host=").unwrap();
        let (_, after) = rest.split_once('&').unwrap();
        let url = format!("{before}host={}&{after}", folder.path().display());
        let shared = Arc::new(Shared {
            server: database.cluster.socket(),
            plan: Mutex::new(Box::new(|_| None)),
            statements: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A connection that breaks has ended; that is all there is to say of it.
                thread::spawn(move || drop(shared.serve(client)));
            }
        });
        Self { url, shared, _folder: folder }
    }

    /// The URL of the database by this way.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on statements meet what `plan` says.
    pub fn plan(&self, plan: impl FnMut(usize) -> Option<Fault> + Send + 'static) {
        let mut current = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Box::new(plan);
        self.shared.statements.store(0, Ordering::SeqCst);
        self.shared.faults.store(0, Ordering::SeqCst);
    }

    /// From now on the `number`th statement meets `fault`, and no other.
    pub fn fail(&self, number: usize, fault: Fault) {
        self.plan(move |statement| (statement == number).then_some(fault));
    }

    /// No statement meets a fault any more; answers how many did under the last plan.
    pub fn heal(&self) -> usize {
        let met = self.shared.faults.load(Ordering::SeqCst);
        self.plan(|_| None);
        met
    }
}

/// A message of the protocol: its kind, and all of it.
struct Message {
    kind: u8,
    bytes: Vec<u8>,
}

impl Message {
    fn read(from: &mut UnixStream) -> io::Result<Self> {
        let mut bytes = vec![0; 5];
        from.read_exact(&mut bytes)?;
        let [kind, length @ ..] =
            <[u8; 5]>::try_from(bytes.as_slice()).map_err(io::Error::other)?;
        read_rest(from, length, &mut bytes)?;
        Ok(Self { kind, bytes })
    }
}

/// Reads what a length announces that counts itself.
fn read_rest(from: &mut UnixStream, length: [u8; 4], bytes: &mut Vec<u8>) -> io::Result<()> {
    let rest = u64::from(u32::from_be_bytes(length)).saturating_sub(4);
    from.take(rest).read_to_end(bytes).map(drop)
}

impl Shared {
    /// What befalls the next statement.
    fn next(&self) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.statements.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = plan(number);
        if fault.is_some() {
            self.faults.fetch_add(1, Ordering::SeqCst);
        }
        fault
    }

    /// Serves a connection until either end is gone, or a fault ends it: both are closed then.
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
            // A query is one message; a prepared statement is several, up to a Sync.
            let kind = loop {
                let Message { kind, bytes } = Message::read(&mut client)?;
                statement.extend(bytes);
                if matches!(kind, b'Q' | b'S' | b'X') {
                    break kind;
                }
            };
            if kind == b'X' {
                return server.write_all(&statement);
            }
            match self.next() {
                Some(Fault::Refused(code, words)) => {
                    if statement.windows(6).any(|words| words == b"COMMIT") {
                        // A commit that fails leaves no transaction.
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
                Some(Fault::LostBefore) => return Ok(()),
                Some(Fault::LostAfter) => {
                    server.write_all(&statement)?;
                    return relay(&mut server, None).map(drop);
                }
                Some(Fault::Late(time)) => {
                    drop(client);
                    thread::sleep(time);
                    server.write_all(&statement)?;
                    return relay(&mut server, None).map(drop);
                }
                Some(Fault::Delayed(time)) => thread::sleep(time),
                None => {}
            }
            server.write_all(&statement)?;
            state = relay(&mut server, Some(&mut client))?;
        }
    }
}

/// Passes on what the server says until it is ready for more; answers the state it says it is in.
fn relay(server: &mut UnixStream, mut client: Option<&mut UnixStream>) -> io::Result<u8> {
    loop {
        let Message { kind, bytes } = Message::read(server)?;
        if let Some(client) = &mut client {
            client.write_all(&bytes)?;
        }
        if kind == b'Z' {
            return Ok(bytes.last().copied().unwrap_or_default());
        }
    }
}
