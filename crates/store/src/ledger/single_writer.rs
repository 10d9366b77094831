//! The ledger on SQLite, where one process serves from a file and writes all that calls change.
//!
//! A group is one transaction with `synchronous = FULL`. Its callers are answered after the commit, so the file and
//! SQLite's log hold every answer that was given.
//!
//! The rows that were read for one group are kept for the next, because only this connection writes them. Another
//! connection (a subcommand, an operator) may still write. SQLite's `data_version` then changes, and everything is read
//! again. The row in `serving` is checked at the same time: when another process has begun to serve from the file, that
//! row has a newer epoch. This process then admits no more calls and ends the calls that it has.

use super::checkpoints::Checkpoints;
use super::command::{CommandOutcome, LedgerCommand};
use super::config::ConfigCache;
use super::context::{LedgerContext, overtaken_error};
use super::decide;
use super::load::{self, CallMemory, LoadOutcome};
use super::state::LedgerState;
use crate::conn::{Conn, ConnManager};
use crate::dialect;
use crate::dialect::group::ConfigBasis;
use crate::error::StoreError;
use crate::serving;
use crate::write_set::WriteSet;

/// The number of rows that are kept. Then all are forgotten, which costs a few reads.
const MAX_CACHED_ROWS: usize = 200_000;
/// The calls that change about as many pages as another write, such as a fold.
const OTHER_WRITE: usize = 16;

/// The ledger of the one process that serves from a SQLite file.
pub(super) struct SingleWriter {
    configs: ConfigCache,
    state: LedgerState,
    /// The `data_version` of SQLite. It is the same until another connection writes.
    version: i32,
    checkpoints: Checkpoints,
}

/// Why a group's transaction is rolled back.
enum SingleWriterError {
    /// Another connection has written since the group was decided.
    Stale,
    Store(StoreError),
}

impl From<StoreError> for SingleWriterError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

impl SingleWriter {
    /// Creates a ledger that has read nothing.
    pub(super) fn new(
        manager: &ConnManager,
        conn: &mut Conn,
        context: &LedgerContext,
    ) -> Result<Self, StoreError> {
        dialect::disable_auto_checkpoint(conn)?;
        let checkpoints = Checkpoints::start(manager, &context.metrics.sqlite_log_pages)?;
        let version = dialect::data_version(conn)?;
        let (configs, state) = (ConfigCache::default(), LedgerState::default());
        let this = Self { configs, state, version, checkpoints };
        this.check_serving(conn, context)?;
        Ok(this)
    }

    /// Forgets all that was read, because another connection has written since.
    fn reload(&mut self, conn: &mut Conn, context: &LedgerContext) -> Result<(), StoreError> {
        // The version first: a later write then changes it again.
        self.version = dialect::data_version(conn)?;
        self.configs = ConfigCache::default();
        self.state = LedgerState::default();
        self.check_serving(conn, context)
    }

    fn check_serving(&self, conn: &mut Conn, context: &LedgerContext) -> Result<(), StoreError> {
        if let Some(epoch) = context.epoch
            && serving::epoch(conn)? != Some(epoch)
        {
            context.set_overtaken();
        }
        Ok(())
    }

    /// Decides and commits a group in one transaction. The outcomes are in the order of the group. After an error, the
    /// caller must begin [again](Self::new).
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        group: &[LedgerCommand],
        context: &LedgerContext,
    ) -> Result<Vec<CommandOutcome>, StoreError> {
        if self.configs.len() + self.state.len() > MAX_CACHED_ROWS {
            self.forget();
        }
        let booked = match self.book_cached(conn, group, context) {
            // No other connection can write during the second attempt.
            Err(SingleWriterError::Stale) => conn.write(|conn| {
                self.reload(conn, context)?;
                let (outcomes, changes) = self.decide(conn, group, context)?;
                commit(conn, &changes)?;
                Ok((outcomes, changes))
            }),
            booked => booked,
        };
        match booked {
            Ok((outcomes, changes)) => {
                context.mark_committed(&changes);
                self.checkpoints.after_write(group.len(), conn);
                if changes.changes_guards() {
                    self.configs = ConfigCache::default();
                }
                Ok(outcomes)
            }
            Err(SingleWriterError::Stale) => {
                Err(StoreError::Busy("it is changed again and again".to_owned()))
            }
            Err(SingleWriterError::Store(cause)) => Err(cause.or_unavailable()),
        }
    }

    /// As [`SingleWriter::book`], by the rows read before, unless another connection has written since.
    fn book_cached(
        &mut self,
        conn: &mut Conn,
        group: &[LedgerCommand],
        context: &LedgerContext,
    ) -> Result<(Vec<CommandOutcome>, WriteSet), SingleWriterError> {
        let (outcomes, changes) = self.decide(conn, group, context)?;
        if changes.is_empty() {
            self.check_version(conn)?;
            return Ok((outcomes, changes));
        }
        conn.write(|conn| {
            self.check_version(conn)?;
            commit(conn, &changes)?;
            Ok((outcomes, changes))
        })
    }

    fn decide(
        &mut self,
        conn: &mut Conn,
        group: &[LedgerCommand],
        context: &LedgerContext,
    ) -> Result<(Vec<CommandOutcome>, WriteSet), SingleWriterError> {
        if context.is_overtaken() && group.iter().any(|command| command.call().is_some()) {
            return Err(overtaken_error().into());
        }
        let Self { configs, state, .. } = self;
        let group: Vec<&LedgerCommand> = group.iter().collect();
        let memory = CallMemory { context, is_trusted: false };
        let mut needs = load::load_calls(conn, configs, state, &group, memory)?;
        let calls = group.iter().filter_map(|command| command.call());
        calls.for_each(|call| needs.add_admission(configs, call));
        if load::load_accounts(conn, configs, state, &needs)? == LoadOutcome::Stale {
            return Err(SingleWriterError::Stale);
        }
        let rules = context.rules(configs);
        Ok(decide::decide(state, &group, context.clock.now(), rules)?)
    }

    /// Checks that no other connection has written since the rows were read.
    fn check_version(&self, conn: &mut Conn) -> Result<(), SingleWriterError> {
        match dialect::data_version(conn).map_err(StoreError::from)? {
            version if version == self.version => Ok(()),
            _ => Err(SingleWriterError::Stale),
        }
    }

    /// Must be called after another write of this connection, which may concern calls.
    pub(super) fn after_other_write(&mut self, conn: &mut Conn, concerns_calls: bool) {
        if concerns_calls {
            self.forget();
        }
        self.checkpoints.after_write(OTHER_WRITE, conn);
    }

    /// Forgets the configuration and all rows but the open calls.
    fn forget(&mut self) {
        self.configs = ConfigCache::default();
        self.state.forget();
    }
}

fn commit(conn: &mut Conn, changes: &WriteSet) -> Result<(), SingleWriterError> {
    if !changes.create_runs(conn)? {
        return Err(SingleWriterError::Stale);
    }
    changes.commit(conn, &ConfigBasis::default())?;
    Ok(())
}
