//! The opening of a store: options, checks and errors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use r2d2::ManageConnection;
use tokio::sync::watch;
use tollgate_archive::{Archive, ArchiveError, Location};
use tollgate_domain::{CellNumber, Clock, NodeId};
use tollgate_pricing::Rate;

use crate::archived::RecordArchive;
use crate::conn::{Conn, ConnManager, DatabaseUrl};
use crate::error::StoreError;
use crate::files::{FileLock, beside};
use crate::journal::Journal;
use crate::ledger::{Ledger, LedgerContext, RecentSettlements};
use crate::ledger_metrics::LedgerMetrics;
use crate::migrations::{self, MigrationError, MigrationSteps};
use crate::missing_prices::ReportedPrices;
use crate::readers::Readers;
use crate::refusal_queue::RefusalQueue;
use crate::rollups::FoldMemory;
use crate::serving::ServingStart;
use crate::store::{LeaseRenewals, Store, StoreInner};
use crate::{cells, deliveries, dialect, nodes, partitions, pooler, serving};

/// The options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether this process forwards calls. It then owns a lease, and a SQLite file alone.
    pub serve: bool,
    /// Whether to migrate the schema. Otherwise one that is not up to date is refused.
    pub migrate: bool,
    /// The cell of the database, if it is not known to the database yet.
    pub cell: Option<CellNumber>,
    /// Whether a newer schema is used as far as this program knows it, if it does not migrate.
    pub accept_newer: bool,
    /// The service charge as a fraction of the fee.
    pub service_charge_rate: Rate,
    /// The source of the time.
    pub clock: Clock,
    /// The folder of settlements that wait while PostgreSQL is away. It must survive restarts. SQLite has
    /// none.
    pub journal: Option<PathBuf>,
    /// The longest wait for an answer of PostgreSQL while it works on no statement of the connection.
    pub timeout: Duration,
    /// The lease in milliseconds: after that silence, other nodes end this process's calls.
    pub lease_ms: u32,
    /// The days for which refused calls are kept.
    pub refusals_keep_days: u32,
    /// The days for which records are kept before their month leaves for the archive. `None`: for ever.
    pub records_keep_days: Option<u32>,
    /// The archive of records.
    pub archive: Option<ArchiveOptions>,
}

/// The place of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// `file:///FOLDER` or `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The URL of another server than Amazon's that speaks S3.
    pub endpoint: Option<String>,
}

impl ArchiveOptions {
    /// The location. Nothing is opened.
    ///
    /// # Errors
    /// [`ArchiveError::Location`] for a URL that is none of an archive.
    pub fn location(&self) -> Result<Location, ArchiveError> {
        Location::new(&self.url, self.endpoint.as_deref())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            serve: false,
            migrate: true,
            cell: None,
            accept_newer: false,
            service_charge_rate: Rate::ZERO,
            clock: Clock::system(),
            journal: None,
            timeout: Duration::from_secs(5),
            lease_ms: 10_000,
            refusals_keep_days: 30,
            records_keep_days: None,
            archive: None,
        }
    }
}

/// The reason that a store could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The database cannot be reached.
    Store(StoreError),
    /// The schema cannot be used.
    Migration(MigrationError),
    /// A pooler gives each transaction another session.
    Pooler,
    /// Another process serves from the same SQLite file.
    InUse,
    /// The database is that of another cell.
    OtherCell {
        /// The cell of the database.
        database: CellNumber,
        /// The cell of the options.
        options: CellNumber,
    },
    /// The SQLite file is damaged, with SQLite's report.
    Damaged(String),
    /// The journal cannot be kept in this folder.
    Journal(PathBuf, std::io::Error),
    /// The archive cannot be used.
    Archive(ArchiveError),
    /// A file operation failed.
    Io(std::io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(cause) => cause.fmt(f),
            Self::Migration(cause) => cause.fmt(f),
            Self::Pooler => f.write_str(
                "`database_url` leads to a pooler that gives each transaction another session: use its session \
                 mode, or connect to PostgreSQL itself",
            ),
            Self::InUse => f.write_str(
                "another tollgate serves from this SQLite file: stop it, or use PostgreSQL to run \
                 several",
            ),
            Self::OtherCell { database, options } => write!(
                f,
                "the database is that of cell {database}, and the configuration has `cell = {options}`"
            ),
            Self::Damaged(what) => write!(
                f,
                "the SQLite file is damaged ({what}), and nothing is served from it: restore a backup"
            ),
            Self::Journal(folder, cause) => write!(
                f,
                "the journal cannot be kept in {}: {cause}; name another folder by `journal_dir`",
                folder.display()
            ),
            Self::Archive(cause) => cause.fmt(f),
            Self::Io(cause) => write!(
                f,
                "{cause}: its folder must be there, and the process must be allowed to write to it"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<StoreError> for OpenError {
    fn from(cause: StoreError) -> Self {
        match cause.is_damage() {
            true => Self::Damaged(cause.to_string()),
            false => Self::Store(cause),
        }
    }
}

impl From<MigrationError> for OpenError {
    fn from(cause: MigrationError) -> Self {
        Self::Migration(cause)
    }
}

impl From<std::io::Error> for OpenError {
    fn from(cause: std::io::Error) -> Self {
        Self::Io(cause)
    }
}

impl Store {
    /// Opens the store at `url`.
    ///
    /// # Errors
    /// [`OpenError`], whose text names the remedy.
    pub fn open(url: &DatabaseUrl, options: &Options) -> Result<Self, OpenError> {
        let mut temporary = None;
        let (manager, writers, readers) = match url {
            DatabaseUrl::Postgres(url) => (ConnManager::postgres(url, options.timeout)?, 2, 8),
            DatabaseUrl::Sqlite(path) => (ConnManager::sqlite(path), 1, 8),
            DatabaseUrl::SqliteTemporary => {
                let folder = temporary.insert(tempfile::tempdir()?);
                (ConnManager::sqlite(&folder.path().join("tollgate.db")), 1, 8)
            }
        };
        let lock = match manager.file().filter(|_| options.serve) {
            Some(file) => lock_file_soon(file, || Ok(true))?,
            None => None,
        };
        let opened = options.clock.now();
        let node_id = NodeId::generate(opened);
        let begun = prepare(&manager, options, lock.as_ref(), node_id)?;
        if let Some(is_encrypted) = manager.is_encrypted().filter(|_| options.serve) {
            let encrypted = if is_encrypted { "encrypted" } else { "not encrypted" };
            log::info!("database connection: {encrypted}");
        }
        // Settlements that SQLite cannot write wait in memory.
        let journal = options.journal.as_deref().filter(|_| manager.file().is_none());
        let context = Arc::new(LedgerContext {
            node_id,
            nodes: AtomicU32::new(1),
            service_charge_rate: options.service_charge_rate,
            clock: options.clock.clone(),
            folds: FoldMemory::default(),
            refusals: RefusalQueue::default(),
            refusals_in_turn: tokio::sync::Mutex::default(),
            refusals_keep_days: options.refusals_keep_days,
            records_keep_days: options.records_keep_days,
            archive: archive(options)?,
            has_unfolded_calls: AtomicBool::new(false),
            reported_prices: ReportedPrices::default(),
            journal: journal.map(journal_in).transpose()?,
            unjournaled: Mutex::default(),
            open_calls: Mutex::default(),
            recent: RecentSettlements::default(),
            epoch: begun.as_ref().map(|begun| begun.epoch),
            overtaken: watch::Sender::new(false),
            metrics: LedgerMetrics::default(),
        });
        let (ledger, writers) = Ledger::start(&manager, writers, &context)?;
        Ok(Self(Arc::new(StoreInner {
            readers: Readers::new(&manager, readers),
            ledger: Mutex::new(Some(ledger)),
            writers: Mutex::new(writers),
            context,
            lease_ms: options.lease_ms,
            renewals: Mutex::new(LeaseRenewals { last: opened, unbroken_since: opened }),
            lock: Mutex::new(lock),
            unknown_calls: Mutex::default(),
            alone: begun.is_some_and(|begun| begun.alone),
            has_one_writer: manager.file().is_some(),
            _temporary: temporary,
        })))
    }

    /// Migrates the schema at `url`. Returns the number of migrations that ran.
    ///
    /// # Errors
    /// [`OpenError`], whose text names the remedy.
    pub fn migrate(url: &DatabaseUrl, steps: MigrationSteps) -> Result<usize, OpenError> {
        let manager = match url {
            DatabaseUrl::Postgres(url) => ConnManager::postgres(url, Options::default().timeout)?,
            DatabaseUrl::Sqlite(path) => ConnManager::sqlite(path),
            DatabaseUrl::SqliteTemporary => return Ok(0),
        };
        let mut conn = manager.connect()?;
        check_pooler(&manager, &mut conn)?;
        migrate(&manager, &mut conn, steps, false)
    }
}

/// The archive of the options. Nothing is read from it yet.
fn archive(options: &Options) -> Result<RecordArchive, OpenError> {
    let Some(archive) = &options.archive else { return Ok(RecordArchive::default()) };
    let location = archive.location().map_err(OpenError::Archive)?;
    Ok(RecordArchive::new(Archive::new(location)))
}

fn journal_in(folder: &Path) -> Result<Journal, OpenError> {
    Journal::open(folder).map_err(|cause| OpenError::Journal(folder.to_owned(), cause))
}

/// Locks a SQLite file for this process alone.
pub(crate) fn lock_file(path: &Path) -> Result<FileLock, OpenError> {
    FileLock::take(&beside(path, ".lock"))?.ok_or(OpenError::InUse)
}

/// As [`lock_file`], but waits for a short lock of another process. `None` if none is needed.
fn lock_file_soon(
    path: &Path,
    mut is_needed: impl FnMut() -> Result<bool, OpenError>,
) -> Result<Option<FileLock>, OpenError> {
    const PAUSE: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    while is_needed()? {
        match lock_file(path) {
            Err(OpenError::InUse) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            locked => return locked.map(Some),
        }
    }
    Ok(None)
}

/// Migrates the schema, but not of a SQLite file that another process serves from.
///
/// That process would not know the new schema.
fn migrate(
    manager: &ConnManager,
    conn: &mut Conn,
    steps: MigrationSteps,
    is_locked: bool,
) -> Result<usize, OpenError> {
    let mut lock = None;
    if let Some(file) = manager.file()
        && !is_locked
    {
        // The process that holds the lock may be migrating the schema now.
        lock = lock_file_soon(file, || Ok(migrations::are_missing(conn)?))?;
    }
    let ran = migrations::run(conn, steps)?;
    drop(lock);
    Ok(ran)
}

/// Makes the partitions of this month before the first write. Another node may be making them now.
fn make_partitions(conn: &mut Conn, options: &Options) {
    const ATTEMPTS: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(100);
    for attempt in 1..=ATTEMPTS {
        let made = conn.write_short_wait(|conn| partitions::make_ahead(conn, options.clock.now()));
        match made {
            Ok(()) => return,
            Err(_) if attempt < ATTEMPTS => std::thread::sleep(PAUSE),
            Err(cause) => log::warn!("partitions are not made yet: {cause}"),
        }
    }
}

/// Fails where a pooler stands before PostgreSQL that cannot be used.
fn check_pooler(manager: &ConnManager, conn: &mut Conn) -> Result<(), OpenError> {
    if manager.file().is_some() {
        return Ok(());
    }
    let exchanged = pooler::exchange_sessions(conn, &mut manager.connect()?);
    match exchanged.map_err(StoreError::from)? {
        true => Err(OpenError::Pooler),
        false => Ok(()),
    }
}

/// Warns of messages that this program cannot read.
fn check_language(conn: &mut Conn) -> Result<(), StoreError> {
    let Some(language) = dialect::message_language(conn)? else { return Ok(()) };
    let language = language.to_lowercase();
    // An empty name means that of the server's environment.
    let is_known = matches!(language.split('.').next(), Some("c" | "posix" | ""));
    if !is_known && !language.starts_with("en") {
        log::warn!(
            "the messages of the database are in {language}, so some of its failures are not known as such; \
             as an administrator: ALTER ROLE … SET lc_messages = 'C'"
        );
    }
    Ok(())
}

/// Migrates the schema, or checks it. With the `lock`, begins to serve.
///
/// It then also ends the leases of processes that have ended.
fn prepare(
    manager: &ConnManager,
    options: &Options,
    lock: Option<&FileLock>,
    node_id: NodeId,
) -> Result<Option<ServingStart>, OpenError> {
    let mut conn = manager.connect()?;
    check_pooler(manager, &mut conn)?;
    if options.serve {
        check_language(&mut conn)?;
    }
    if options.migrate {
        let ran = migrate(manager, &mut conn, MigrationSteps::Expand, lock.is_some())?;
        if ran > 0 {
            log::info!("the schema is up to date after {ran} migrations");
        }
    } else {
        migrations::check(&mut conn, options.accept_newer)?;
    }
    if let Some(cell) = options.cell.filter(|_| !options.accept_newer) {
        // Commands that only look do not make it a cell.
        let database = match options.migrate || options.serve {
            true => conn.write(|conn| cells::claim(conn, cell))?,
            false => cells::number(&mut conn)?,
        };
        if database != cell {
            return Err(OpenError::OtherCell { database, options: cell });
        }
    }
    if options.serve {
        make_partitions(&mut conn, options);
    }
    let Some(lock) = lock else { return Ok(None) };
    let lock = lock.identity()?;
    let has_ended = serving::has_ended(&mut conn)?;
    if has_ended != Some(true) {
        if has_ended == Some(false) {
            log::info!(
                "the process that served last did not end by itself, or this is a backup: the file is checked"
            );
        }
        if let Some(what) = dialect::find_damage(&mut conn).map_err(StoreError::from)? {
            return Err(OpenError::Damaged(what));
        }
    }
    let begun = conn.write(|conn| {
        let begun = serving::begin(conn, node_id, &lock, options.clock.now())?;
        if begun.alone {
            nodes::retire_all(conn)?;
            deliveries::release_all(conn)?;
        }
        Ok::<_, StoreError>(begun)
    })?;
    if !begun.alone {
        log::warn!(
            "the lock file is another one than before, as after a restore: lost calls are ended when leases lapse"
        );
    }
    Ok(Some(begun))
}
