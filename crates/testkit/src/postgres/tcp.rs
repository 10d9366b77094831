//! A TCP proxy to a database.

use std::io;
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
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                // A client without a server is disconnected.
                let _ = UnixStream::connect(&socket).and_then(|server| join(client, server));
            }
        });
        Self { address, url, connections }
    }

    /// The URL of the database through this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address on which the proxy listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections to the proxy so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Relays bytes in both directions until one side closes.
fn join(client: TcpStream, server: UnixStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}
