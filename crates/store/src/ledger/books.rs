//! The books: what calls draw on and what they have changed, read as far as it is needed, changed in
//! memory, written back together.
//!
//! Tables are locked in one order everywhere (requests, open calls, spend keys, wallets, tier counters, and
//! missing prices when all else is written) and rows within a table by id, so batches of several nodes never
//! wait for each other in a circle. What a batch is decided by and nobody locks is its
//! [basis](Basis).
//! Settlements come before admissions: they free what admissions may need.

mod settling;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::Report;
use tollgate_domain::{MerchantId, PendingRecord, RequestId, Timestamp};
use tollgate_pricing::Rate;

use super::accounts::{AccountIds, Accounts};
use super::context::Context;
use super::job::{Answer, Item, SettleOutcome, Settlement};
use super::parties::{Parties, Versions, known_version, may_touch_merchant};
use super::posting::Posting;
use super::storms::Changed;
use crate::conn::Conn;
use crate::dialect::Lock;
use crate::dialect::group::{self, Basis};
use crate::error::StoreError;
use crate::ids::Id;
use crate::missing_prices::Missing;
use crate::rollups::QueuedCall;
use crate::rows::{
    CorrectionRow, CounterKey, OpenCallRow, RequestRow, TierCounterRow, counter_key,
};
use crate::{dialect, records};

/// A call of which the books know.
enum Known {
    /// It is not settled.
    Open(Arc<PendingRecord>),
    /// The same, and it is not among the open calls: it is usage that was reported, or the database has lost it. It
    /// holds nothing.
    Unasked(Arc<PendingRecord>),
    /// It was settled before: its record.
    Ended(Box<RequestRow>),
}

/// See the module.
pub(super) struct Books {
    parties: Parties,
    accounts: Accounts,
    calls: HashMap<RequestId, Known>,
    /// Those of them that are settled: they are forgotten at the end of the group.
    ended: Vec<RequestId>,
    /// The calls that this group has settled, with the reports.
    settled: Vec<(Arc<PendingRecord>, Arc<Report>)>,
    /// Whether calls are read again that this process has in memory.
    reads_again: bool,
    /// The calls that this group has admitted.
    opened: Vec<OpenCallRow>,
    /// The ids of the calls that it has settled.
    closed: Vec<Id<RequestId>>,
    records: Vec<RequestRow>,
    corrections: Vec<CorrectionRow>,
    /// The settled calls, for the roll-ups.
    queued: Vec<QueuedCall>,
    counters: BTreeMap<CounterKey, i64>,
    changed_counters: BTreeSet<CounterKey>,
    missing: Missing,
    /// Whether calls are looked at before anything is locked for them.
    looks_first: bool,
    /// By what the last batch was decided, and how that was marked when it was.
    basis: Basis,
    marks: BTreeSet<String>,
    now: Timestamp,
    service_charge_rate: Rate,
}

impl Books {
    /// Books in which nothing stands yet.
    pub(super) fn new(context: &Context) -> Self {
        let now = context.clock.now();
        let mut accounts = Accounts::new(now);
        accounts.begin(now, context);
        Self {
            parties: Parties::default(),
            accounts,
            calls: HashMap::new(),
            ended: Vec::new(),
            settled: Vec::new(),
            reads_again: false,
            opened: Vec::new(),
            closed: Vec::new(),
            records: Vec::new(),
            corrections: Vec::new(),
            queued: Vec::new(),
            counters: BTreeMap::new(),
            changed_counters: BTreeSet::new(),
            missing: Missing::new(),
            looks_first: false,
            basis: Basis::default(),
            marks: BTreeSet::new(),
            now,
            service_charge_rate: context.service_charge_rate,
        }
    }

    /// The same, but it is known who takes part in calls. What is refused as things stand locks nothing if
    /// it `looks_first`, so that refusals do not slow other calls down. If it `reads_again`, calls that this process has
    /// in memory are read from the database.
    pub(super) fn with(
        parties: Parties,
        looks_first: bool,
        reads_again: bool,
        context: &Context,
    ) -> Self {
        Self { parties, looks_first, reads_again, ..Self::new(context) }
    }

    /// Who takes part in calls; everything must be written. The calls that were admitted are known to this
    /// process from here on.
    pub(super) fn into_parties(self, context: &Context) -> Parties {
        let mut open_calls = context.open_calls();
        for id in self.ended {
            open_calls.remove(&id);
        }
        open_calls.extend(self.calls.into_iter().filter_map(|(id, known)| match known {
            Known::Open(call) => Some((id, call)),
            Known::Unasked(_) | Known::Ended(_) => None,
        }));
        drop(open_calls);
        context.recent.keep(self.settled, self.now);
        self.parties
    }

    /// By what the last batch was decided.
    pub(super) const fn basis(&self) -> &Basis {
        &self.basis
    }

    /// How that was marked when it was decided.
    pub(super) const fn marks(&self) -> &BTreeSet<String> {
        &self.marks
    }

    /// Forgets what was read, but for the calls on their way, which only these books end. Everything
    /// must be written.
    pub(super) fn forget(&mut self, context: &Context) {
        let mut calls = mem::take(&mut self.calls);
        calls.retain(|_, known| matches!(known, Known::Open(_)));
        *self = Self { calls, ..Self::new(context) };
    }

    /// From here on, things are booked at `now`.
    pub(super) fn begin(&mut self, now: Timestamp, context: &Context) {
        self.now = now;
        self.ended.clear();
        self.settled.clear();
        self.accounts.begin(now, context);
    }

    /// Decides and books `items`; the answers come in their order. What they need and is not known is
    /// read, and locked, first. `None` when somebody else has ended one of their calls since it was read: take it
    /// back, and begin again.
    pub(super) fn book(
        &mut self,
        conn: &mut Conn,
        items: &[Item],
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Option<Vec<Answer>>, StoreError> {
        let settlements = items.iter().filter_map(|item| match item {
            Item::Settle(settlement) => Some(&**settlement),
            Item::Admit(_) => None,
        });
        let calls = items.iter().filter_map(|item| match item {
            Item::Admit(call) => Some(&**call),
            Item::Settle(_) => None,
        });
        let mut touched = self.read_ending(conn, settlements.clone(), context, versions)?;
        self.parties.read(conn, calls.clone(), touched.accounts.spend_keys.iter().copied())?;
        if dialect::has_row_locks(conn) {
            self.basis =
                self.parties.basis(calls.clone(), touched.accounts.spend_keys.iter().copied());
        }
        let mut refused = match self.looks_first {
            true => self.refuse_by_a_look(conn, calls.clone(), context)?,
            false => HashMap::new(),
        };
        for call in calls.filter(|call| !refused.contains_key(&call.request_id)) {
            touched.accounts.add(&self.parties.of(call));
        }
        if !self.lock(conn, &touched)? {
            return Ok(None);
        }

        let mut settled = Vec::new();
        for settlement in settlements {
            settled.push(self.settle(settlement, versions, context)?);
        }
        let mut settled = settled.into_iter();
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            answers.push(match item {
                Item::Settle(_) => {
                    Answer::Settled(settled.next().unwrap_or(SettleOutcome::NotFound))
                }
                Item::Admit(call) => Answer::Admitted(match refused.remove(&call.request_id) {
                    Some(refusal) => Err(refusal),
                    None => self.decide(call, context)?,
                }),
            });
        }
        Ok(Some(answers))
    }

    /// The accounts that the group has changed; ask before they are [taken](Books::take).
    pub(super) fn changed(&self) -> Changed {
        self.accounts.changed()
    }

    /// Takes all that was changed, to write it.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it breaks a law of bookkeeping: then nothing may be written.
    pub(super) fn take(&mut self) -> Result<Posting, StoreError> {
        let accounts = self.accounts.take()?;
        // Others may correct them from now on.
        for id in &self.ended {
            self.calls.remove(id);
        }
        let changed = mem::take(&mut self.changed_counters).into_iter();
        let counters = changed.filter_map(|key| Some((self.counters.get(&key).copied()?, key)));
        Ok(Posting {
            at: self.now,
            opened: mem::take(&mut self.opened),
            closed: mem::take(&mut self.closed),
            records: mem::take(&mut self.records),
            corrections: mem::take(&mut self.corrections),
            queued: mem::take(&mut self.queued),
            accounts,
            counters: counters.map(|(used, key)| counter_row(key, used)).collect(),
            missing: mem::take(&mut self.missing),
        })
    }

    /// How many rows are remembered.
    pub(super) fn len(&self) -> usize {
        self.parties.len() + self.accounts.len() + self.calls.len() + self.counters.len()
    }

    /// What is refused as things stand, without keeping anybody from them.
    fn refuse_by_a_look<'a>(
        &self,
        conn: &mut Conn,
        calls: impl Iterator<Item = &'a Call> + Clone,
        context: &Context,
    ) -> Result<HashMap<RequestId, Refusal>, StoreError> {
        let mut refused = HashMap::new();
        let parties = &self.parties;
        let mut ids = AccountIds::default();
        calls.clone().for_each(|call| ids.add(&parties.of(call)));
        let accounts = Accounts::look(conn, ids, parties, context)?;
        for call in calls {
            let party = parties.of(call);
            if accounts.is_due(&party) {
                continue;
            }
            if let Err(refusal) = accounts.decide(call, &party, self.service_charge_rate)? {
                accounts.note_refusal(call, &party, &context.storms);
                refused.insert(call.request_id, refusal);
            }
        }
        Ok(refused)
    }

    /// Reads the calls that are to end, and answers what their end touches.
    fn read_ending<'a>(
        &mut self,
        conn: &mut Conn,
        settlements: impl Iterator<Item = &'a Settlement> + Clone,
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Touched, StoreError> {
        self.read_calls(conn, settlements.clone(), context)?;
        let mut touched = Touched::default();
        for settlement in settlements {
            let id = settlement.request_id;
            let (call, has_paid) = match self.calls.get(&id) {
                Some(Known::Open(call)) => {
                    touched.open_calls.insert(id);
                    (Cow::Borrowed(&**call), false)
                }
                Some(Known::Unasked(call)) => (Cow::Borrowed(&**call), false),
                // Only the sweeper's is corrected.
                Some(Known::Ended(row)) if !row.swept || settlement.report.is_none() => continue,
                Some(Known::Ended(row)) => {
                    touched.records.insert(id);
                    (Cow::Owned(row.call()?), row.merchant_cost != 0)
                }
                None => continue,
            };
            let version = match call.meter {
                Some(meter) => {
                    let version = known_version(conn, versions, meter)?;
                    let key = counter_key(&call, meter.meter_id, version.tier_period);
                    touched.counters.insert(key);
                    Some(version)
                }
                None => None,
            };
            touched.accounts.wallets.extend(call.wallet_id);
            touched.accounts.spend_keys.extend(call.spend_key_id);
            if has_paid || may_touch_merchant(&call, settlement.report.as_deref(), version) {
                touched.accounts.wallets.insert(call.merchant_wallet_id);
            }
        }
        Ok(touched)
    }

    /// Makes these calls known, as they were when they were last seen.
    fn read_calls<'a>(
        &mut self,
        conn: &mut Conn,
        settlements: impl Iterator<Item = &'a Settlement> + Clone,
        context: &Context,
    ) -> Result<(), StoreError> {
        let unknown = settlements.clone().map(|one| one.request_id);
        let unknown = unknown.filter(|id| !self.calls.contains_key(id));
        let mut unknown: BTreeSet<_> = unknown.collect();
        if dialect::has_row_locks(conn) && !self.reads_again {
            let open_calls = context.open_calls();
            unknown.retain(|id| match open_calls.get(id) {
                Some(call) => self.calls.insert(*id, Known::Open(Arc::clone(call))).is_some(),
                None => true,
            });
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = unknown.iter().copied().map(Id).collect();
        for row in dialect::open_calls(conn, &ids)? {
            let call = PendingRecord::try_from(&row)?;
            unknown.remove(&call.request_id);
            self.calls.insert(call.request_id, Known::Open(Arc::new(call)));
        }
        let known =
            settlements.clone().filter_map(|one| Some((one.request_id, one.call.as_ref()?)));
        let known = known.map(|(id, call)| (id, call.merchant_id)).collect();
        self.read_records(conn, &unknown, &known, Lock::No)?;
        // A database that was restored, or that has taken over without its last commits, may not know a call.
        for settlement in settlements {
            let id = settlement.request_id;
            let in_memory = || context.open_calls().get(&id).cloned();
            if !self.calls.contains_key(&id)
                && let Some(call) = in_memory().or_else(|| settlement.call.clone())
            {
                log::warn!("{id} is not in the database: it is admitted and settled");
                self.enter(PendingRecord::clone(&call).without_holds());
            }
        }
        Ok(())
    }

    /// Makes the records of settled calls known; of some it is known whose they are.
    fn read_records(
        &mut self,
        conn: &mut Conn,
        ids: &BTreeSet<RequestId>,
        merchants: &HashMap<RequestId, MerchantId>,
        lock: Lock,
    ) -> Result<(), StoreError> {
        let mut by_merchant: BTreeMap<MerchantId, Vec<Id<RequestId>>> = BTreeMap::new();
        let mut others = Vec::new();
        for id in ids {
            match merchants.get(id) {
                Some(merchant_id) => by_merchant.entry(*merchant_id).or_default().push(Id(*id)),
                None => others.push(Id(*id)),
            }
        }
        if !others.is_empty() {
            for (merchant_id, id) in dialect::request_keys(conn, &others)? {
                by_merchant.entry(merchant_id.get()).or_default().push(id);
            }
        }
        for (merchant_id, mut ids) in by_merchant {
            ids.sort_unstable();
            let mut rows = dialect::requests(conn, merchant_id, &ids, lock)?;
            records::correct(conn, &mut rows)?;
            for row in rows {
                self.end(row.request_id.get(), row);
            }
        }
        Ok(())
    }

    /// A call is settled.
    fn end(&mut self, id: RequestId, record: RequestRow) {
        self.calls.insert(id, Known::Ended(Box::new(record)));
        self.ended.push(id);
    }

    /// Reads what is touched and not known, and locks it. Subscriptions whose cycle has ended are brought
    /// up to now. `false` when one of the calls that were open has been settled by somebody else: its settlement may
    /// need wallets that are not locked.
    fn lock(&mut self, conn: &mut Conn, touched: &Touched) -> Result<bool, StoreError> {
        let Touched { open_calls, records, accounts, counters } = touched;
        let mut needed = self.accounts.needed(accounts);
        let unknown = counters.iter().filter(|key| !self.counters.contains_key(*key));
        needed.counters = unknown.map(|key| counter_row(key.clone(), 0)).collect();
        if dialect::has_row_locks(conn) {
            needed.open_calls = open_calls.iter().copied().map(Id).collect();
        }
        if needed.is_empty() && self.basis.marks.is_empty() {
            self.accounts.renew(&accounts.wallets)?;
            return Ok(true);
        }
        if dialect::has_row_locks(conn) {
            // Read again under the lock: somebody may have corrected them.
            let mut merchants = HashMap::new();
            for id in records {
                if let Some(Known::Ended(row)) = self.calls.get(id) {
                    merchants.insert(*id, row.merchant_id.get());
                }
            }
            self.read_records(conn, records, &merchants, Lock::Rows)?;
        }
        let found = group::read(conn, &needed, &self.basis, Lock::Rows)?;
        self.marks = found.marks;
        if found.open_calls < needed.open_calls.len() {
            return Ok(false);
        }
        let rows = needed.counters.into_iter().chain(found.counters);
        let counters =
            rows.map(|row| ((row.merchant_id, row.owner_id, row.meter_id, row.period), row.used));
        self.counters.extend(counters);
        self.accounts.know(conn, &found.spend_counters, &found.wallets, &self.parties)?;
        self.accounts.renew(&accounts.wallets)?;
        Ok(true)
    }

    /// Admits a call or refuses it; a refusal changes nothing.
    fn decide(
        &mut self,
        call: &Call,
        context: &Context,
    ) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        let party = self.parties.of(call);
        let admission = match self.accounts.decide(call, &party, self.service_charge_rate)? {
            Ok(admission) => admission,
            Err(refusal) => {
                self.accounts.note_refusal(call, &party, &context.storms);
                return Ok(Err(refusal));
            }
        };
        let request_id = admission.pending.request_id;
        if self.calls.contains_key(&request_id) {
            return Err(StoreError::Corrupt {
                what: "id of a call (it is taken)",
                value: request_id.to_string(),
            });
        }
        self.accounts.admit(&admission)?;
        let call = Box::new(admission.pending);
        self.opened.push(OpenCallRow::new(&call, context.node_id));
        self.calls.insert(request_id, Known::Open(Arc::new(PendingRecord::clone(&call))));
        Ok(Ok(call))
    }

    /// A call that is settled without having been admitted, and holds nothing.
    pub(super) fn enter(&mut self, call: PendingRecord) {
        self.calls.insert(call.request_id, Known::Unasked(Arc::new(call)));
    }
}

/// What calls and their ends touch.
#[derive(Default)]
struct Touched {
    /// The open calls that end.
    open_calls: BTreeSet<RequestId>,
    /// The settled calls that may be corrected.
    records: BTreeSet<RequestId>,
    accounts: AccountIds,
    counters: BTreeSet<CounterKey>,
}

fn counter_row((merchant_id, owner_id, meter_id, period): CounterKey, used: i64) -> TierCounterRow {
    TierCounterRow { merchant_id, owner_id, meter_id, period, used }
}
