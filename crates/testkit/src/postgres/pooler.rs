//! PgBouncer before a database of the tests.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::client::USER;
use super::cluster::unprivileged;
use super::database::TestDatabase;
use crate::tools;

/// PgBouncer, which ends when this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    address: SocketAddr,
    database: String,
    _folder: tempfile::TempDir,
}

/// The time for which a connection keeps its session.
#[derive(Clone, Copy, Debug)]
pub enum PoolMode {
    /// That of the connection.
    Session,
    /// That of a transaction.
    Transaction,
}

/// The time within which it must accept connections.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

impl PgBouncer {
    /// Starts it before a database; `None`, with a warning, where it is not installed. `settings` are further lines of its
    /// configuration.
    ///
    /// # Panics
    /// If it is missing although `CI` is `true`, or if it does not start.
    pub fn start(database: &TestDatabase, mode: PoolMode, settings: &str) -> Option<Self> {
        let program = tools::require_tool("PgBouncer", find())?;
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        drop(listener);
        let socket = database.cluster.socket();
        let server = socket.parent().unwrap_or(Path::new("/")).display();
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = format!(
            "[databases]\n* = host={server} user={USER}\n[pgbouncer]\nlisten_addr = {}\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             logfile = {}\n{settings}\n",
            address.ip(),
            address.port(),
            folder.path().join("log").display(),
        );
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, config).expect("the file can be written");
        let mut command = Command::new(program);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It refuses to run as root.
        if fs::metadata(&file).expect("it was written").uid() == 0 {
            let (uid, gid) = unprivileged();
            for path in [folder.path(), &file] {
                chown(path, Some(uid), Some(gid)).expect("root may give files away");
            }
            command.uid(uid).gid(gid);
        }
        let process = command.spawn().expect("PgBouncer can be started");
        let pooler = Self { process, address, database: database.name.clone(), _folder: folder };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < STARTS_WITHIN, "PgBouncer does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(pooler)
    }

    /// The URL of the database through it.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@{}/{}", self.address, self.database)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("pgbouncer")).find(|program| program.is_file())
}
