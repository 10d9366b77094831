//! What the ledger is asked for, and what it answers.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::Report;
use tollgate_domain::{PendingRecord, RequestId, RequestRecord};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::journal::{self, Entry};

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It is booked; the record in its final state.
    Settled(Arc<RequestRecord>),
    /// It is booked at nothing: what it costs is beyond all amounts.
    LetGo(Arc<RequestRecord>),
    /// It had been settled before; nothing moved.
    AlreadySettled,
    /// There is no such call.
    NotFound,
    /// The database is away; it waits in the journal.
    Journaled,
    /// Neither the database nor the journal took it: it waits in memory for either. If this process
    /// ends before, the call is swept.
    NotSettled,
}

/// What becomes of a call that asks to be admitted.
pub(super) type AdmissionResult = Result<Result<Box<PendingRecord>, Refusal>, StoreError>;

pub(super) enum Job {
    Admit(Box<Call>, oneshot::Sender<AdmissionResult>),
    Settle(Box<Settlement>, oneshot::Sender<Result<SettleOutcome, StoreError>>),
    /// A settlement whose outcome nobody waits for.
    SettleUnheard(Box<Entry>),
    Write(Work),
}

/// What runs on a writer's connection.
pub(super) struct Work {
    pub(super) run: Box<dyn FnOnce(&mut Conn) + Send>,
    /// Whether it may change what calls are decided by.
    pub(super) concerns_calls: bool,
}

/// What a group is made of.
pub(super) enum Command {
    Admit(Box<Call>),
    Settle(Box<Settlement>),
}

impl Command {
    pub(super) fn call(&self) -> Option<&Call> {
        match self {
            Self::Admit(call) => Some(call),
            Self::Settle(_) => None,
        }
    }

    pub(super) fn settlement(&self) -> Option<&Settlement> {
        match self {
            Self::Admit(_) => None,
            Self::Settle(settlement) => Some(settlement),
        }
    }
}

pub(super) struct Settlement {
    pub(super) request_id: RequestId,
    /// What became of the call; `None` from the sweeper, who knows nothing.
    pub(super) report: Option<Arc<Report>>,
    /// The call, as the journal has it: for a database that does not know it.
    pub(super) call: Option<Arc<PendingRecord>>,
}

impl From<&journal::Entry> for Settlement {
    fn from(entry: &journal::Entry) -> Self {
        let journal::Entry { request_id, report, call } = entry.clone();
        Self { request_id, report: Some(Arc::new(report)), call: call.map(Arc::new) }
    }
}

/// What becomes of a command.
pub(super) enum Outcome {
    Admitted(Result<Box<PendingRecord>, Refusal>),
    Settled(SettleOutcome),
}

/// The end of a call that was admitted and went nowhere.
pub(super) fn not_sent(pending: &PendingRecord) -> Entry {
    let report = Report::not_sent(pending.created_at);
    Entry { request_id: pending.request_id, report, call: None }
}
