//! The ledger on a database that other nodes write to as well.
//!
//! A group is a transaction. The accounts that it changes are read under locks. The configuration by which it is
//! decided is kept from group to group. The statement that writes the group, or another one if there is nothing to write,
//! reports whether that configuration is still current. If not, the group is rolled back and decided again. So a change
//! of the configuration applies to every later call.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_domain::admission::Refusal;
use tollgate_domain::{MerchantId, RequestId};

use super::command::{CommandOutcome, LedgerCommand, SettleOutcome};
use super::config::ConfigCache;
use super::context::LedgerContext;
use super::decide::{self, DecisionRules};
use super::load::{self, CallMemory, LoadOutcome};
use super::recent::SettledReport;
use super::state::LedgerState;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::write_set::WriteSet;

/// The number of times that a group is decided, while its configuration changes.
const COMMIT_ATTEMPTS: usize = 5;
/// The attempts after which the merchants are locked first, so that their configurations do not change meanwhile.
const OPTIMISTIC_ATTEMPTS: usize = 2;
/// The number of rows that are kept. Then all are forgotten, which costs a few reads.
const MAX_CACHED_ROWS: usize = 20_000;
/// The time after a refusal for which calls are first decided without a lock: a refusal then waits for no lock.
const PRECHECK_PERIOD: Duration = Duration::from_secs(1);

/// The ledger on a database with row locks.
#[derive(Default)]
pub(super) struct RowLockWriter {
    configs: ConfigCache,
    refused_at: Option<Instant>,
}

/// Why a group is rolled back.
enum RowLockError {
    /// The configuration of these merchants has changed, or a call was settled by another node.
    Stale(BTreeSet<MerchantId>),
    Store(StoreError),
}

impl From<StoreError> for RowLockError {
    fn from(cause: StoreError) -> Self {
        Self::Store(cause)
    }
}

/// The settings of one attempt to decide a group.
#[derive(Clone, Copy)]
struct AttemptOptions<'a> {
    /// Whether calls are first checked for a refusal without a lock.
    prechecks: bool,
    /// Whether calls that this process has in memory are read again.
    rereads: bool,
    /// The merchants that are locked first.
    locks: &'a BTreeSet<MerchantId>,
}

impl RowLockWriter {
    /// Decides and commits a group in a transaction of its own. The outcomes are in the order of the group.
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        group: &[LedgerCommand],
        context: &LedgerContext,
    ) -> Result<Vec<CommandOutcome>, StoreError> {
        let admits = group.iter().any(|command| command.call().is_some());
        let is_wary = self.refused_at.is_some_and(|at| at.elapsed() < PRECHECK_PERIOD);
        let mut looks_first = admits && is_wary;
        if self.configs.len() >= MAX_CACHED_ROWS {
            self.configs = ConfigCache::default();
        }
        let (mut locks, mut stale) = (BTreeSet::new(), BTreeSet::new());
        for attempt in 0..COMMIT_ATTEMPTS {
            if attempt >= OPTIMISTIC_ATTEMPTS {
                locks.append(&mut stale);
            }
            let attempt =
                AttemptOptions { prechecks: looks_first, rereads: attempt > 0, locks: &locks };
            let book = |conn: &mut Conn| book(conn, &mut self.configs, group, context, attempt);
            // A call that waits for a lock may be refused without one, so the first wait is short.
            let booked = match admits && !looks_first {
                true => conn.write_short_wait(book),
                false => conn.write(book),
            };
            let (outcomes, changes) = match booked {
                Ok(booked) => booked,
                Err(RowLockError::Stale(merchants)) => {
                    self.configs.forget(&merchants);
                    stale = merchants;
                    continue;
                }
                Err(RowLockError::Store(cause)) if cause.is_lock_timeout() && !looks_first => {
                    looks_first = true;
                    continue;
                }
                Err(RowLockError::Store(cause)) => return Err(cause),
            };
            remember_group(group, &outcomes, &changes, context);
            if outcomes.iter().any(|outcome| matches!(outcome, CommandOutcome::Admitted(Err(_)))) {
                self.refused_at = Some(Instant::now());
            }
            return Ok(outcomes);
        }
        Err(StoreError::Busy("a configuration is changed again and again".to_owned()))
    }
}

fn book(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    group: &[LedgerCommand],
    context: &LedgerContext,
    attempt: AttemptOptions<'_>,
) -> Result<(Vec<CommandOutcome>, WriteSet), RowLockError> {
    for merchant_id in attempt.locks {
        dialect::lock_merchant(conn, *merchant_id).map_err(StoreError::from)?;
    }
    let mut state = LedgerState::default();
    let memory = CallMemory { context, is_trusted: !attempt.rereads };
    let all: Vec<&LedgerCommand> = group.iter().collect();
    let mut needs = load::load_calls(conn, configs, &mut state, &all, memory)?;
    let rules = context.rules(configs);
    let mut refused = match attempt.prechecks {
        true => precheck_calls(conn, rules, group, context)?,
        false => HashMap::new(),
    };
    let is_refused = |command: &&LedgerCommand| {
        command.call().is_some_and(|call| refused.contains_key(&call.request_id))
    };
    let others: Vec<&LedgerCommand> = group.iter().filter(|command| !is_refused(command)).collect();
    let calls = others.iter().filter_map(|command| command.call());
    calls.for_each(|call| needs.add_admission(configs, call));
    if load::load_accounts(conn, configs, &mut state, &needs)? == LoadOutcome::Stale {
        return Err(RowLockError::Stale(needs.merchants));
    }
    let (outcomes, changes) = decide::decide(&mut state, &others, context.clock.now(), rules)?;
    let basis = configs.basis(&needs.merchants);
    let marks = if changes.is_empty() {
        dialect::group::read_marks(conn, &basis).map_err(StoreError::from)?
    } else {
        // The locks are taken. So a wait for another node that inserts the same run can be part of no deadlock.
        if !changes.create_runs(conn)? {
            return Err(RowLockError::Stale(needs.merchants));
        }
        changes.commit(conn, &basis)?
    };
    if marks != basis.marks {
        return Err(RowLockError::Stale(needs.merchants));
    }
    let mut outcomes = outcomes.into_iter();
    let outcomes = group.iter().filter_map(|command| {
        let refusal = command.call().and_then(|call| refused.remove(&call.request_id));
        refusal.map(|refusal| CommandOutcome::Admitted(Err(refusal))).or_else(|| outcomes.next())
    });
    Ok((outcomes.collect(), changes))
}

/// The refusals of calls by the accounts as they are, read without a lock.
fn precheck_calls(
    conn: &mut Conn,
    rules: DecisionRules<'_>,
    group: &[LedgerCommand],
    context: &LedgerContext,
) -> Result<HashMap<RequestId, Refusal>, StoreError> {
    let calls = || group.iter().filter_map(LedgerCommand::call);
    let accounts = load::read_unlocked(conn, rules.configs, calls())?;
    let now = context.clock.now();
    let mut refused = HashMap::new();
    for call in calls() {
        if let Some(refusal) = decide::precheck(&accounts, call, now, rules)? {
            refused.insert(call.request_id, refusal);
        }
    }
    Ok(refused)
}

/// Updates the memory of the process after a committed group: the calls that it has admitted, and the calls that were
/// settled lately.
fn remember_group(
    group: &[LedgerCommand],
    outcomes: &[CommandOutcome],
    changes: &WriteSet,
    context: &LedgerContext,
) {
    context.mark_committed(changes);
    let mut open_calls = context.open_calls();
    for (command, outcome) in group.iter().zip(outcomes) {
        // A call that was settled before, without an answer to this process, is not open either.
        if let Some(settlement) = command.settlement()
            && !matches!(outcome, CommandOutcome::Settled(SettleOutcome::NotFound))
        {
            open_calls.remove(&settlement.request_id);
        }
    }
    let opened = changes.opened_calls();
    open_calls.extend(opened.map(|call| (call.request_id, Arc::clone(call))));
    drop(open_calls);
    let reports = group.iter().filter_map(LedgerCommand::settlement);
    let reports: HashMap<_, _> =
        reports.filter_map(|one| Some((one.request_id, one.report.as_ref()?))).collect();
    let settled = changes.settled_calls().filter_map(|settled| {
        let report = reports.get(&settled.call.request_id)?;
        Some((Arc::clone(&settled.call), Arc::clone(report)))
    });
    let settled: Vec<SettledReport> = settled.collect();
    context.recent.keep(settled, context.clock.now());
}
