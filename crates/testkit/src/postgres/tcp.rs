//! A TCP proxy to a database.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::client;
use super::database::TestDatabase;

/// A TCP proxy to a database, as from another machine. It counts its connections.
pub struct TcpProxy {
    address: SocketAddr,
    url: String,
    connections: Arc<AtomicUsize>,
    /// The number of the first connections that pass nothing on.
    silent: Arc<AtomicUsize>,
}

impl TcpProxy {
    /// A proxy to `database`.
    pub fn to(database: &TestDatabase) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("postgres://{}@{address}/{}", client::USER, database.name);
        let socket = database.cluster.socket();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        let silent = Arc::<AtomicUsize>::default();
        let first_silent = Arc::clone(&silent);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let silent = Arc::clone(&first_silent);
                let is_silent = move || number < silent.load(Ordering::SeqCst);
                // A client without a server is disconnected.
                let _ =
                    UnixStream::connect(&socket).and_then(|server| join(client, server, is_silent));
            }
        });
        Self { address, url, connections, silent }
    }

    /// The URL of the database through this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address on which the proxy listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes all connections of now silent: they stay open, and nothing passes. Later ones work.
    pub fn silence(&self) {
        self.silent.store(self.connections(), Ordering::SeqCst);
    }

    /// The number of connections to the proxy so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Relays bytes in both directions until one side closes.
fn join(
    client: TcpStream,
    server: UnixStream,
    is_silent: impl Fn() -> bool + Clone + Send + 'static,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let silent = is_silent.clone();
    thread::spawn(move || {
        let _ = relay(&mut from_client, &mut to_server, silent);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let _ = relay(&mut from_server, &mut to_client, is_silent);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Relays bytes in one direction until its side closes.
fn relay(
    from: &mut impl Read,
    to: &mut impl Write,
    is_silent: impl Fn() -> bool,
) -> io::Result<()> {
    let mut bytes = [0; 8_192];
    loop {
        let length = from.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        if !is_silent() {
            to.write_all(bytes.get(..length).unwrap_or_default())?;
        }
    }
}
