//! The commands of the ledger and their outcomes.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{CallCost, PendingRecord, RequestId, RequestRecord};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::journal::{self, JournalEntry};

/// The outcome of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// Booked.
    Settled(SettledRecord),
    /// Booked at a cost of zero: the computed cost is out of range.
    SettledFree(SettledRecord),
    /// It was admitted ahead and did not begin: its holds are released, and no record remains.
    TakenBack,
    /// Settled before. Nothing is changed.
    AlreadySettled,
    /// No such call.
    NotFound,
    /// The merchant of a job moves to another cell, or has moved there. Nothing is done here.
    Moved,
    /// The database is away. The settlement waits in the journal.
    Journaled,
    /// Neither the database nor the journal took the settlement. It waits in memory. If this
    /// process ends first, the call is swept.
    NotSettled,
}

/// The record of a settled call, and what is left for the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledRecord {
    /// The final record.
    pub record: Arc<RequestRecord>,
    /// The amount that is [left](tollgate_domain::admission::remaining) after it.
    pub remaining: Option<Amount>,
}

impl SettleOutcome {
    /// The cost of the call, if it is booked now.
    pub fn cost(&self) -> Option<CallCost> {
        let (Self::Settled(settled) | Self::SettledFree(settled)) = self else { return None };
        let quote = &settled.record.quote;
        Some(CallCost {
            total_request_cost: quote.total_request_cost,
            total_wallet_cost: quote.total_wallet_cost,
            remaining: settled.remaining,
        })
    }
}

/// The result of an admission: a pending call or a refusal.
pub(super) type AdmissionResult = Result<Result<Box<PendingRecord>, Refusal>, StoreError>;

/// The result of a beginning: the call that has begun. `None` if it is not open.
pub(super) type BeginResult = Result<Option<Box<PendingRecord>>, StoreError>;

pub(super) enum Job {
    Call(CallJob),
    Write(WriteWork),
}

/// A job that is booked together with others.
pub(super) enum CallJob {
    Admit(Box<Call>, oneshot::Sender<AdmissionResult>),
    Settle(Box<Settlement>, oneshot::Sender<Result<SettleOutcome, StoreError>>),
    Begin(Box<Beginning>, oneshot::Sender<BeginResult>),
    /// A settlement without a caller that waits for its outcome.
    SettleDetached(Box<JournalEntry>),
}

/// Work that runs on a writer's connection.
pub(super) struct WriteWork {
    pub(super) run: Box<dyn FnOnce(&mut Conn) + Send>,
    /// Whether the work may change the configuration of calls.
    pub(super) concerns_calls: bool,
}

/// A command of a group.
pub(super) enum LedgerCommand {
    Admit(Box<Call>),
    Settle(Box<Settlement>),
    Begin(Box<Beginning>),
}

/// The beginning of a call that was admitted ahead. It needs the same rows as a settlement of that call.
pub(super) struct Beginning {
    pub(super) ahead: Settlement,
    /// The id from now on.
    pub(super) request_id: RequestId,
}

impl LedgerCommand {
    pub(super) fn call(&self) -> Option<&Call> {
        match self {
            Self::Admit(call) => Some(call),
            Self::Settle(_) | Self::Begin(_) => None,
        }
    }

    /// The settlement, or that whose rows the command needs.
    pub(super) fn settlement(&self) -> Option<&Settlement> {
        match self {
            Self::Admit(_) => None,
            Self::Settle(settlement) => Some(settlement),
            Self::Begin(beginning) => Some(&beginning.ahead),
        }
    }
}

pub(super) struct Settlement {
    pub(super) request_id: RequestId,
    /// How the call has ended. `None` from the sweeper, which does not know.
    pub(super) report: Option<Arc<CallReport>>,
    /// The call from the journal, for a database that does not know it.
    pub(super) call: Option<Arc<PendingRecord>>,
}

impl Settlement {
    /// Whether its report says that the call was sent.
    pub(super) fn was_sent(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.ending != Ending::NotSent)
    }
}

impl From<&journal::JournalEntry> for Settlement {
    fn from(entry: &journal::JournalEntry) -> Self {
        let journal::JournalEntry { request_id, report, call } = entry.clone();
        Self { request_id, report: Some(Arc::new(report)), call: call.map(Arc::new) }
    }
}

/// The outcome of a command.
pub(super) enum CommandOutcome {
    Admitted(Result<Box<PendingRecord>, Refusal>),
    Settled(SettleOutcome),
    Begun(Option<Box<PendingRecord>>),
}

/// The end of a call that was admitted and not sent.
pub(super) fn not_sent(pending: &PendingRecord) -> JournalEntry {
    let report = CallReport::not_sent(pending.created_at);
    JournalEntry { request_id: pending.request_id, report, call: None }
}
