//! The connections for reading, which callers share.

use std::time::{Duration, Instant};

use r2d2::{Pool, PooledConnection};

use crate::conn::Manager;
use crate::error::StoreError;

/// Nobody waits longer than this for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often somebody who waits looks whether the database is away: then he is told, rather than
/// kept waiting.
const LOOK: Duration = Duration::from_millis(100);
/// The pool tries ever more seldom to reach a database that is away, but no more seldom than every
/// half of this.
const RETRY: Duration = Duration::from_secs(1);

/// A pool of connections. Clones share it.
#[derive(Clone)]
pub(crate) struct Readers {
    pool: Pool<Manager>,
    manager: Manager,
}

impl Readers {
    /// At most `most` connections; none is opened before it is asked for.
    pub(crate) fn new(manager: &Manager, most: u32) -> Self {
        let pool = Pool::builder()
            .max_size(most)
            .min_idle(Some(0))
            .connection_timeout(RETRY)
            // A server can go while nobody looks; a file cannot.
            .test_on_check_out(manager.file().is_none())
            .error_handler(Box::new(r2d2::NopErrorHandler))
            .build_unchecked(manager.clone());
        Self { pool, manager: manager.clone() }
    }

    /// A connection, waited for.
    pub(crate) fn get(&self) -> Result<PooledConnection<Manager>, StoreError> {
        let begun = Instant::now();
        loop {
            match self.pool.get_timeout(LOOK) {
                Ok(conn) => return Ok(conn),
                Err(cause) if self.manager.is_away() || begun.elapsed() > PATIENCE => {
                    return Err(cause.into());
                }
                Err(_) => {}
            }
        }
    }
}
