//! The connections for reading, which all callers share.

use std::path::Path;
use std::time::{Duration, Instant};

use r2d2::{ManageConnection, Pool, PooledConnection};

use crate::conn::{Conn, ConnManager};
use crate::error::StoreError;

/// The longest wait for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval at which a waiting caller checks whether the database is away.
///
/// If it is away, the caller fails at once.
const LOOK: Duration = Duration::from_millis(100);
/// The connection timeout of the pool. A database that is away is tried ever more seldom, but at least
/// every half of this.
const RETRY: Duration = Duration::from_secs(1);

/// A pool of connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Readers {
    pool: Pool<ConnManager>,
    manager: ConnManager,
}

impl Readers {
    /// A pool of at most `most` connections. None is opened before it is needed.
    pub(crate) fn new(manager: &ConnManager, most: u32) -> Self {
        let pool = Pool::builder()
            .max_size(most)
            .min_idle(Some(0))
            .connection_timeout(RETRY)
            // A server can go away unnoticed; a file cannot.
            .test_on_check_out(manager.file().is_none())
            .error_handler(Box::new(r2d2::NopErrorHandler))
            .build_unchecked(manager.clone());
        Self { pool, manager: manager.clone() }
    }

    /// The file of the database, if it is SQLite.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.manager.file()
    }

    /// A new connection, which is not of the pool.
    pub(crate) fn connect(&self) -> Result<Conn, StoreError> {
        self.manager.connect()
    }

    /// A connection. Waits until one is free.
    pub(crate) fn get(&self) -> Result<PooledConnection<ConnManager>, StoreError> {
        let begun = Instant::now();
        loop {
            match self.pool.get_timeout(LOOK) {
                Ok(conn) => return Ok(conn),
                Err(cause) if self.manager.is_unavailable() || begun.elapsed() > PATIENCE => {
                    return Err(cause.into());
                }
                Err(_) => {}
            }
        }
    }
}
