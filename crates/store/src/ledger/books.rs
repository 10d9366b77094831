//! The books: what calls draw on and what they have changed, read as far as it is needed, changed in
//! memory, written back together.
//!
//! Tables are locked in one order everywhere (requests, spend keys, wallets, tier counters, and the
//! roll-ups and missing prices when all else is written) and rows within a table by id, so batches of
//! several nodes never wait for each other in a circle. What a batch is decided by and nobody locks is its
//! [basis](Basis).
//! Settlements come before admissions: they free what admissions may need.

mod settling;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem;
use std::sync::Arc;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::Report;
use tollgate_domain::{MerchantId, PendingRecord, RequestId, Timestamp};
use tollgate_pricing::Rate;

use super::accounts::{AccountIds, Accounts};
use super::parties::{Parties, Versions, known_version, may_touch_merchant};
use super::posting::Posting;
use super::rollups::Rollups;
use super::storms::Changed;
use super::{Context, SettleOutcome};
use crate::conn::Conn;
use crate::dialect::group::{self, Basis, Standing};
use crate::dialect::{self, Lock};
use crate::error::StoreError;
use crate::journal;
use crate::missing_prices::Missing;
use crate::rows::{RequestMetadataRow, RequestRow, TierCounterRow, parsed};

pub(super) enum Item {
    Admit(Box<Call>),
    Settle(Box<Settlement>),
}

pub(super) struct Settlement {
    pub(super) request_id: RequestId,
    /// What became of the call; `None` from the sweeper, who knows nothing.
    pub(super) report: Option<Arc<Report>>,
}

impl From<&journal::Entry> for Settlement {
    fn from(entry: &journal::Entry) -> Self {
        Self { request_id: entry.request_id, report: Some(Arc::new(entry.report.clone())) }
    }
}

pub(super) enum Answer {
    Admitted(Result<Box<PendingRecord>, Refusal>),
    Settled(SettleOutcome),
}

/// Owner, meter and period of a tier counter.
type CounterKey = (String, String, String);

/// A call on its way, or one that has ended and is not taken to the database yet.
struct Entered {
    row: RequestRow,
    /// The call as it was admitted.
    pending: PendingRecord,
    stands: Stands,
}

/// What the database knows of a row, or will once what was [taken](Books::take) is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    Written,
    Changed,
    New,
}

/// See the module.
pub(super) struct Books {
    parties: Parties,
    accounts: Accounts,
    requests: HashMap<RequestId, Entered>,
    /// Those of them that are new or changed.
    unwritten: Vec<RequestId>,
    counters: BTreeMap<CounterKey, i64>,
    changed_counters: BTreeSet<CounterKey>,
    metadata: Vec<RequestMetadataRow>,
    rollups: Rollups,
    missing: Missing,
    /// The merchants that are told of every call, once that is asked for.
    told_of_calls: Option<HashSet<MerchantId>>,
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
            requests: HashMap::new(),
            unwritten: Vec::new(),
            counters: BTreeMap::new(),
            changed_counters: BTreeSet::new(),
            metadata: Vec::new(),
            rollups: Rollups::default(),
            missing: Missing::new(),
            told_of_calls: None,
            looks_first: false,
            basis: Basis::default(),
            marks: BTreeSet::new(),
            now,
            service_charge_rate: context.service_charge_rate,
        }
    }

    /// The same, but it is known who takes part in calls. What is refused as things stand locks nothing if
    /// somebody `looks_first`, so that refusals, however many, slow nobody down.
    pub(super) fn with(parties: Parties, looks_first: bool, context: &Context) -> Self {
        Self { parties, looks_first, ..Self::new(context) }
    }

    /// Who takes part in calls; everything must be written. The calls that were admitted are known to this
    /// process from here on.
    pub(super) fn into_parties(self, context: &Context) -> Parties {
        let entered = self.requests.into_iter();
        let pending = entered.filter_map(|(id, Entered { row, pending, .. })| {
            row.is_pending().then(|| (id, Box::new((row, pending))))
        });
        context.on_their_way().extend(pending);
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

    /// Somebody may have asked to be told of calls, or asks no more.
    pub(super) fn forget_who_is_told(&mut self) {
        self.told_of_calls = None;
    }

    /// Forgets what was read, but for the calls on their way, which only these books end. Everything
    /// must be written.
    pub(super) fn forget(&mut self, context: &Context) {
        let mut requests = mem::take(&mut self.requests);
        requests.retain(|_, entered| entered.row.is_pending());
        *self = Self { requests, ..Self::new(context) };
    }

    /// From here on, things are booked at `now`.
    pub(super) fn begin(&mut self, now: Timestamp, context: &Context) {
        self.now = now;
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
        let (mut new_requests, mut changed_requests) = (Vec::new(), Vec::new());
        for id in mem::take(&mut self.unwritten) {
            let Entry::Occupied(mut entry) = self.requests.entry(id) else { continue };
            let stands = mem::replace(&mut entry.get_mut().stands, Stands::Written);
            let row = match entry.get().row.is_pending() {
                true => entry.get().row.clone(),
                false => entry.remove().row,
            };
            match stands {
                Stands::New => new_requests.push(row),
                Stands::Changed => changed_requests.push(row),
                Stands::Written => {}
            }
        }
        let changed = mem::take(&mut self.changed_counters).into_iter();
        let counters = changed.filter_map(|key| Some((self.counters.get(&key).copied()?, key)));
        Ok(Posting {
            at: self.now,
            new_requests,
            metadata: mem::take(&mut self.metadata),
            changed_requests,
            accounts,
            counters: counters.map(|(used, key)| counter_row(key, used)).collect(),
            rollups: mem::take(&mut self.rollups),
            missing: mem::take(&mut self.missing),
        })
    }

    /// How many rows are remembered.
    pub(super) fn len(&self) -> usize {
        self.parties.len() + self.accounts.len() + self.requests.len() + self.counters.len()
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

    /// Reads the calls that are to end, and tells what their end touches.
    fn read_ending<'a>(
        &mut self,
        conn: &mut Conn,
        settlements: impl Iterator<Item = &'a Settlement> + Clone,
        context: &Context,
        versions: &mut Versions,
    ) -> Result<Touched, StoreError> {
        self.read_requests(conn, settlements.clone().map(|one| one.request_id), context)?;
        let mut touched = Touched::default();
        for settlement in settlements {
            let Some(Entered { row, pending, .. }) = self.requests.get(&settlement.request_id)
            else {
                continue;
            };
            touched.requests.insert(settlement.request_id);
            touched.merchants.insert(row.merchant_id.clone());
            let version = match (&row.meter_id, row.meter_version) {
                (Some(meter_id), Some(number)) => {
                    let version = known_version(conn, versions, meter_id, number)?;
                    touched.counters.insert(row.counter_key(meter_id, version.tier_period));
                    Some(version)
                }
                _ => None,
            };
            touched.accounts.wallets.extend(pending.wallet_id);
            touched.accounts.spend_keys.extend(pending.spend_key_id);
            if may_touch_merchant(row, settlement.report.as_deref(), version) {
                touched.accounts.wallets.insert(pending.merchant_wallet_id);
            }
        }
        Ok(touched)
    }

    /// Makes these calls known, as they were when they were last seen.
    fn read_requests(
        &mut self,
        conn: &mut Conn,
        ids: impl IntoIterator<Item = RequestId>,
        context: &Context,
    ) -> Result<(), StoreError> {
        let unknown = ids.into_iter().filter(|id| !self.requests.contains_key(id));
        let mut unknown: BTreeSet<_> = unknown.collect();
        if dialect::has_row_locks(conn) {
            let mut on_their_way = context.on_their_way();
            unknown.retain(|id| {
                let Some(known) = on_their_way.remove(id) else { return true };
                let (row, pending) = *known;
                let entered = Entered { row, pending, stands: Stands::Written };
                self.requests.insert(*id, entered);
                false
            });
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let unknown: Vec<_> = unknown.iter().map(RequestId::to_string).collect();
        for row in dialect::requests(conn, &unknown, Lock::No)? {
            self.enter(row)?;
        }
        Ok(())
    }

    /// A call as the database has it.
    fn enter(&mut self, row: RequestRow) -> Result<(), StoreError> {
        let pending = row.to_pending()?;
        let id = pending.request_id;
        self.requests.insert(id, Entered { row, pending, stands: Stands::Written });
        Ok(())
    }

    /// Reads what is touched and not known, and locks it. Subscriptions whose cycle has ended are brought
    /// up to now. Whether the calls that end are as they were known.
    fn lock(&mut self, conn: &mut Conn, touched: &Touched) -> Result<bool, StoreError> {
        let Touched { requests, accounts, counters, merchants } = touched;
        let mut needed = self.accounts.needed(accounts);
        let unknown = counters.iter().filter(|key| !self.counters.contains_key(*key));
        needed.counters = unknown.map(|key| counter_row(key.clone(), 0)).collect();
        if self.told_of_calls.is_none() {
            needed.merchants = merchants.iter().cloned().collect();
        }
        if dialect::has_row_locks(conn) {
            needed.requests = requests.iter().map(RequestId::to_string).collect();
        }
        if needed.is_empty() && self.basis.marks.is_empty() {
            self.accounts.renew(&accounts.wallets)?;
            return Ok(true);
        }
        let found = group::read(conn, &needed, &self.basis, Lock::Rows)?;
        self.marks = found.marks;
        if !needed.merchants.is_empty() {
            self.told_of_calls = Some(found.told);
        }
        if !needed.requests.is_empty() && !self.learn_how_they_stand(requests, found.requests)? {
            return Ok(false);
        }
        let rows = needed.counters.into_iter().chain(found.counters);
        let counters = rows.map(|row| ((row.owner_id, row.meter_id, row.period), row.used));
        self.counters.extend(counters);
        self.accounts.know(conn, &found.spend_counters, &found.wallets, &self.parties)?;
        self.accounts.renew(&accounts.wallets)?;
        Ok(true)
    }

    /// Calls that were known before they were locked may have been ended by somebody else. One that was thought
    /// to be pending and has ended may need wallets that are not locked: then the answer is `false`.
    fn learn_how_they_stand(
        &mut self,
        requests: &BTreeSet<RequestId>,
        found: Vec<Standing>,
    ) -> Result<bool, StoreError> {
        let mut gone = requests.clone();
        for standing in found {
            match standing {
                Standing::Pending(id) => {
                    gone.remove(&parsed("requests.request_id", &id)?);
                }
                Standing::Ended(row) => {
                    let id = parsed("requests.request_id", &row.request_id)?;
                    if self.requests.get(&id).is_some_and(|known| known.row.is_pending()) {
                        return Ok(false);
                    }
                    gone.remove(&id);
                    self.enter(*row)?;
                }
            }
        }
        self.requests.retain(|id, _| !gone.contains(id));
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
        if self.requests.contains_key(&request_id) {
            return Err(StoreError::Corrupt {
                what: "id of a call (it is taken)",
                value: request_id.to_string(),
            });
        }
        self.accounts.admit(&admission)?;
        self.admit(&admission.pending, &context.node_id.to_string());
        Ok(Ok(Box::new(admission.pending)))
    }

    fn admit(&mut self, pending: &PendingRecord, node_id: &str) {
        self.metadata.extend(RequestMetadataRow::of(pending));
        let entered = Entered {
            row: RequestRow::pending(pending, node_id),
            pending: pending.clone(),
            stands: Stands::New,
        };
        self.requests.insert(pending.request_id, entered);
        self.unwritten.push(pending.request_id);
    }
}

/// What calls and their ends touch.
#[derive(Default)]
struct Touched {
    /// The calls that end.
    requests: BTreeSet<RequestId>,
    /// Their merchants.
    merchants: BTreeSet<String>,
    accounts: AccountIds,
    counters: BTreeSet<CounterKey>,
}

fn counter_row((owner_id, meter_id, period): CounterKey, used: i64) -> TierCounterRow {
    TierCounterRow { owner_id, meter_id, period, used }
}
