//! The context of the ledger: the settings and the memory that its parts share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tollgate_domain::{Clock, NodeId, PendingRecord, RequestId};
use tollgate_pricing::Rate;

use super::config::ConfigCache;
use super::decide::DecisionRules;
use super::recent::RecentSettlements;
use crate::archived::RecordArchive;
use crate::error::StoreError;
use crate::journal::{Journal, JournalEntry};
use crate::ledger_metrics::LedgerMetrics;
use crate::missing_prices::ReportedPrices;
use crate::refusal_queue::RefusalQueue;
use crate::rollups::FoldMemory;
use crate::write_set::WriteSet;

/// The settings and the memory that all writers of a process share.
pub(crate) struct LedgerContext {
    pub(crate) node_id: NodeId,
    /// The number of nodes that serve from the database, at the last renewal of the lease.
    pub(crate) nodes: AtomicU32,
    pub(crate) service_charge_rate: Rate,
    pub(crate) clock: Clock,
    pub(crate) folds: FoldMemory,
    /// Refused calls that are not written yet.
    pub(crate) refusals: RefusalQueue,
    /// Held while refused calls are being written.
    pub(crate) refusals_in_turn: tokio::sync::Mutex<()>,
    pub(crate) refusals_keep_days: u32,
    pub(crate) records_keep_days: Option<u32>,
    pub(crate) archive: RecordArchive,
    /// Whether calls were settled that this process has not folded yet.
    pub(crate) has_unfolded_calls: AtomicBool,
    pub(crate) reported_prices: ReportedPrices,
    pub(crate) journal: Option<Journal>,
    /// The settlements that neither the database nor the journal took. Their number is bounded by
    /// the calls in flight, because no calls are admitted in this state.
    pub(crate) unjournaled: Mutex<Vec<JournalEntry>>,
    /// The calls that this process has admitted and that are not settled, on PostgreSQL.
    pub(crate) open_calls: Mutex<HashMap<RequestId, Arc<PendingRecord>>>,
    /// The calls that were settled lately, for a database that may lose committed transactions.
    pub(crate) recent: RecentSettlements,
    /// The epoch in which this process serves from a SQLite file.
    pub(crate) epoch: Option<i64>,
    /// Whether another process has begun to serve from the file since.
    pub(crate) overtaken: watch::Sender<bool>,
    pub(crate) metrics: LedgerMetrics,
}

impl LedgerContext {
    pub(crate) fn open_calls(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<PendingRecord>>> {
        self.open_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules by which the calls of this process are decided.
    pub(super) const fn rules<'a>(&self, configs: &'a ConfigCache) -> DecisionRules<'a> {
        DecisionRules {
            configs,
            service_charge_rate: self.service_charge_rate,
            node_id: self.node_id,
        }
    }

    /// Marks the settled calls of a committed group as not folded yet.
    pub(super) fn mark_committed(&self, changes: &WriteSet) {
        if changes.settled_calls().next().is_some() {
            self.has_unfolded_calls.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_overtaken(&self) -> bool {
        *self.overtaken.borrow()
    }

    /// Records that another process has begun to serve from the same SQLite file.
    pub(super) fn set_overtaken(&self) {
        if !self.overtaken.send_replace(true) {
            log::error!("another process serves from this SQLite file: no more calls are admitted");
        }
    }

    /// Keeps a settlement that cannot be booked now, in the journal or else in memory. Returns
    /// whether the journal took it.
    pub(crate) fn keep(&self, mut entry: JournalEntry) -> bool {
        if entry.call.is_none() {
            let call = self.open_calls().get(&entry.request_id).cloned();
            entry.call = call.map(Arc::unwrap_or_clone);
        }
        let kept = match &self.journal {
            Some(journal) => journal.write(&entry),
            None => Err(io::Error::other("there is no journal")),
        };
        if let Err(cause) = &kept {
            log::error!("{} could not be kept in the journal: {cause}", entry.request_id);
            self.unjournaled.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        }
        kept.is_ok()
    }
}

/// The error when another process has begun to serve from the same SQLite file.
pub(super) fn overtaken_error() -> StoreError {
    StoreError::Unavailable("another process serves from it".to_owned())
}

/// The error when the ledger has ended or cannot reach the database.
pub(super) fn ledger_unavailable() -> StoreError {
    StoreError::Unavailable("the ledger could not reach the database".to_owned())
}
