//! One transaction of the ledger: all that wait, decided under the same locks.
//!
//! Tables are locked in one order everywhere (requests, spend keys, wallets, tier counters, and the
//! roll-ups and missing prices when all else is written) and rows within a table by id, so batches of several nodes
//! never wait for each other in a circle.
//! Settlements come before admissions: they free what admissions may need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::{self, Ending, Report, Settled};
use tollgate_domain::{News, PendingRecord, RequestId, RequestStatus, TransactionKind};
use tollgate_pricing::Amount;

use super::accounts::{AccountIds, Accounts, Held};
use super::parties::{Endings, Parties, Versions};
use super::rollups::Rollups;
use super::storms::Changed;
use super::{Context, SettleOutcome};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::journal::Entry;
use crate::missing_prices::{self, Missing};
use crate::rows::{RequestMetadataRow, RequestRow, TierCounterRow};
use crate::usage::Sums;
use crate::webhooks;

pub(super) enum Item {
    Admit(Box<Call>),
    Settle(Box<Settlement>),
}

pub(super) struct Settlement {
    pub(super) request_id: RequestId,
    /// What became of the call; `None` from the sweeper, who knows nothing.
    pub(super) report: Option<Report>,
}

impl From<&Entry> for Settlement {
    fn from(entry: &Entry) -> Self {
        Self { request_id: entry.request_id, report: Some(entry.report.clone()) }
    }
}

pub(super) enum Answer {
    Admitted(Result<Box<PendingRecord>, Refusal>),
    Settled(SettleOutcome),
}

/// Decides and books `items`; the answers come in their order and hold once this is committed.
pub(super) fn book(
    conn: &mut Conn,
    items: &[Item],
    context: &Context,
    versions: &mut Versions,
) -> Result<(Vec<Answer>, Changed), StoreError> {
    let settlements = items.iter().filter_map(|item| match item {
        Item::Settle(settlement) => Some(&**settlement),
        Item::Admit(_) => None,
    });
    let calls = items.iter().filter_map(|item| match item {
        Item::Admit(call) => Some(&**call),
        Item::Settle(_) => None,
    });
    let ending = Endings::load(conn, settlements.clone(), versions)?;
    let mut parties = Parties::load(conn, calls.clone(), &ending)?;
    let mut refused = refuse_by_a_look(conn, calls.clone(), &parties, context)?;
    let asking = calls.filter(|call| !refused.contains_key(&call.request_id));
    let mut books = Books::lock(conn, &ending, &mut parties, asking, context)?;

    let mut settled: HashMap<RequestId, SettleOutcome> = HashMap::new();
    for settlement in settlements {
        let outcome = books.settle(settlement, versions, context)?;
        // Of two settlements of one call in one batch the first is booked, and both may say so.
        settled.entry(settlement.request_id).or_insert(outcome);
    }
    books.tell_of_calls(conn, settled.values())?;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(match item {
            Item::Settle(settlement) => {
                let outcome = settled.get(&settlement.request_id).cloned();
                Answer::Settled(outcome.unwrap_or(SettleOutcome::NotFound))
            }
            Item::Admit(call) => Answer::Admitted(match refused.remove(&call.request_id) {
                Some(refusal) => Err(refusal),
                None => books.admit(call, &parties, context)?,
            }),
        });
    }
    let changed = books.write(conn)?;
    Ok((answers, changed))
}

/// Where locks on rows keep others waiting, a look comes first: what is refused by it takes none,
/// so that refusals, however many, slow nobody down.
fn refuse_by_a_look<'a>(
    conn: &mut Conn,
    calls: impl Iterator<Item = &'a Call> + Clone,
    parties: &Parties,
    context: &Context,
) -> Result<HashMap<RequestId, Refusal>, StoreError> {
    let mut refused = HashMap::new();
    if !dialect::has_row_locks(conn) {
        return Ok(refused);
    }
    let mut ids = AccountIds::default();
    calls.clone().for_each(|call| ids.add(&parties.of(call)));
    let accounts = Accounts::look(conn, ids, parties, context)?;
    for call in calls {
        let party = parties.of(call);
        if accounts.is_due(&party) {
            continue;
        }
        if let Err(refusal) = accounts.decide(call, &party, context.service_charge_rate)? {
            accounts.note_refusal(call, &party, &context.storms);
            refused.insert(call.request_id, refusal);
        }
    }
    Ok(refused)
}

/// What a batch changes: read under lock, changed in memory, written back once.
struct Books {
    accounts: Accounts,
    requests: BTreeMap<String, RequestRow>,
    counters: BTreeMap<(String, String, String), i64>,
    changed_requests: BTreeSet<String>,
    changed_counters: BTreeSet<(String, String, String)>,
    admitted: Vec<RequestRow>,
    metadata: Vec<RequestMetadataRow>,
    rollups: Rollups,
    missing: Missing,
}

impl Books {
    fn lock<'a>(
        conn: &mut Conn,
        ending: &Endings,
        parties: &mut Parties,
        asking: impl Iterator<Item = &'a Call>,
        context: &Context,
    ) -> Result<Self, StoreError> {
        let mut ids = AccountIds {
            wallets: ending.wallet_ids.clone(),
            spend_keys: ending.spend_key_ids().collect(),
        };
        asking.for_each(|call| ids.add(&parties.of(call)));
        let accounts = Accounts::lock(conn, ids, parties, context)?;
        let keys: Vec<_> = ending
            .counter_keys
            .iter()
            .map(|(owner_id, meter_id, period)| TierCounterRow {
                owner_id: owner_id.clone(),
                meter_id: meter_id.clone(),
                period: period.clone(),
                used: 0,
            })
            .collect();
        let counters =
            if keys.is_empty() { Vec::new() } else { dialect::lock_counters(conn, &keys)? };
        Ok(Self {
            accounts,
            requests: ending.rows.clone(),
            counters: counters
                .into_iter()
                .map(|row| ((row.owner_id, row.meter_id, row.period), row.used))
                .collect(),
            changed_requests: BTreeSet::new(),
            changed_counters: BTreeSet::new(),
            admitted: Vec::new(),
            metadata: Vec::new(),
            rollups: Rollups::default(),
            missing: Missing::new(),
        })
    }

    /// Admits a call or refuses it; a refusal writes nothing.
    fn admit(
        &mut self,
        call: &Call,
        parties: &Parties,
        context: &Context,
    ) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        let party = parties.of(call);
        let admission = match self.accounts.decide(call, &party, context.service_charge_rate)? {
            Ok(admission) => admission,
            Err(refusal) => {
                self.accounts.note_refusal(call, &party, &context.storms);
                return Ok(Err(refusal));
            }
        };
        self.accounts.admit(&admission)?;
        let pending = admission.pending;
        self.metadata.extend(RequestMetadataRow::of(&pending));
        self.admitted.push(RequestRow::pending(&pending, &context.node_id.to_string()));
        Ok(Ok(Box::new(pending)))
    }

    /// Ends a call once.
    fn settle(
        &mut self,
        settlement: &Settlement,
        versions: &Versions,
        context: &Context,
    ) -> Result<SettleOutcome, StoreError> {
        let request_id = settlement.request_id.to_string();
        let Some(row) = self.requests.get(&request_id).cloned() else {
            return Ok(SettleOutcome::NotFound);
        };
        // The sweeper ends only what is pending; whoever knows better may correct the sweeper.
        let corrects = row.swept && settlement.report.is_some();
        if !row.is_pending() && !corrects {
            return Ok(SettleOutcome::AlreadySettled);
        }
        let pending = row.to_pending()?;
        let lost;
        let report = match &settlement.report {
            Some(report) => report,
            None => {
                lost = Report::unknown(&pending, Ending::Lost, self.accounts.now());
                &lost
            }
        };
        let version = row.meter_id.as_ref().zip(row.meter_version);
        let version =
            version.and_then(|(id, version)| Some((id, versions.get(&(id.clone(), version))?)));
        let key = version.map(|(meter_id, version)| row.counter_key(meter_id, version.tier_period));
        let used = key.as_ref().and_then(|key| self.counters.get(key)).copied().unwrap_or(0);
        let before = used.saturating_sub(row.counted_units).max(0).unsigned_abs();
        let model = version.map(|(_, version)| &version.model);
        let mut settled =
            settlement::settle(&pending, report, model, before, context.service_charge_rate);
        if !self.accounts.have_room_for(&row, &settled.record.quote) {
            // Settling never fails, whatever a balance has come to.
            settled = settlement::let_go(&pending, report, model);
        }
        let Settled { record, counter_moves, overflowed } = settled;
        if overflowed {
            log::error!(
                "{request_id}: what it costs is beyond all amounts; it is booked at nothing"
            );
        }

        let counted = i64::try_from(counter_moves).unwrap_or(i64::MAX);
        if let Some(key) = key.filter(|_| counted != row.counted_units) {
            let moved = used.saturating_sub(row.counted_units).saturating_add(counted);
            self.counters.insert(key.clone(), moved);
            self.changed_counters.insert(key);
        }
        self.spend(&pending, record.quote.total_request_cost, row.request_cost())?;
        let kind = if corrects { TransactionKind::Correction } else { TransactionKind::Usage };
        if let Some(wallet_id) = &row.wallet_id {
            let due = record.quote.total_wallet_cost.units().saturating_sub(row.wallet_cost);
            let held = Held { on_balance: row.wallet_hold, on_credit: row.credit_hold() };
            self.accounts.debit(wallet_id, held, due, kind, &request_id, "wallet")?;
        }
        let due = record.quote.total_merchant_cost.units().saturating_sub(row.merchant_cost);
        let held = Held { on_balance: row.merchant_hold, on_credit: None };
        self.accounts.debit(&row.merchant_wallet_id, held, due, kind, &request_id, "merchant")?;

        let before = if corrects { Sums::of(&row.to_record(model)?) } else { Sums::default() };
        if let Some(missing) = &report.missing
            && !context.told.is_told(pending.merchant_id, missing, self.accounts.now())
        {
            missing_prices::add(&mut self.missing, pending.merchant_id, missing);
        }
        self.rollups.add(&context.series, &row, &record.metadata, Sums::of(&record) - before);
        let mut row = row;
        row.finish(&record, counted, settlement.report.is_none());
        self.requests.insert(request_id.clone(), row);
        self.changed_requests.insert(request_id);
        Ok(match overflowed {
            true => SettleOutcome::LetGo(Box::new(record)),
            false => SettleOutcome::Settled(Box::new(record)),
        })
    }

    /// Writes down that calls have ended, for merchants with a webhook that asks for it.
    fn tell_of_calls<'a>(
        &mut self,
        conn: &mut Conn,
        outcomes: impl Iterator<Item = &'a SettleOutcome>,
    ) -> Result<(), StoreError> {
        let ended = |outcome: &'a SettleOutcome| match outcome {
            SettleOutcome::Settled(record) | SettleOutcome::LetGo(record) => Some(record),
            _ => None,
        };
        let mut ended = outcomes.filter_map(ended).peekable();
        if ended.peek().is_none() {
            return Ok(());
        }
        let told = webhooks::merchants_told_of_requests(conn)?;
        for record in ended.filter(|record| told.contains(&record.merchant_id)) {
            let request_id = record.request_id;
            let news = match record.status {
                RequestStatus::Error => News::RequestFailed { request_id },
                RequestStatus::Pending | RequestStatus::Completed => {
                    News::RequestCompleted { request_id }
                }
            };
            self.accounts.tell(record.merchant_id, &news);
        }
        Ok(())
    }

    /// Counts what a call cost on its spend key, and writes down what is to be told of it.
    fn spend(
        &mut self,
        pending: &PendingRecord,
        cost: Amount,
        counted_before: i64,
    ) -> Result<(), StoreError> {
        let Some(id) = pending.spend_key_id else { return Ok(()) };
        if cost > pending.spend_hold && counted_before == 0 && pending.spend_hold.is_positive() {
            log::warn!(
                "{}: it cost {cost} USD and was held to cost at most {}",
                pending.request_id,
                pending.spend_hold
            );
        }
        let key = self.accounts.change_spend_key(&id.to_string())?;
        let more = cost.saturating_sub(Amount::from_units(counted_before));
        let news = key.settle(pending.created_at, pending.spend_hold, more);
        news.iter().for_each(|news| self.accounts.tell(pending.merchant_id, news));
        Ok(())
    }

    /// Writes everything back, one statement per table; answers which accounts have changed.
    fn write(self, conn: &mut Conn) -> Result<Changed, StoreError> {
        fn changed<K: Ord, V>(mut all: BTreeMap<K, V>, keys: &BTreeSet<K>) -> BTreeMap<K, V> {
            all.retain(|key, _| keys.contains(key));
            all
        }
        if !self.admitted.is_empty() {
            dialect::insert_requests(conn, &self.admitted)?;
        }
        if !self.metadata.is_empty() {
            dialect::insert_metadata(conn, &self.metadata)?;
        }
        if !self.changed_requests.is_empty() {
            let rows: Vec<_> =
                changed(self.requests, &self.changed_requests).into_values().collect();
            dialect::save_requests(conn, &rows)?;
        }
        let now = self.accounts.now();
        let mut changed_accounts = self.accounts.write(conn)?;
        if !self.changed_counters.is_empty() {
            let rows: Vec<_> = changed(self.counters, &self.changed_counters)
                .into_iter()
                .map(|((owner_id, meter_id, period), used)| TierCounterRow {
                    owner_id,
                    meter_id,
                    period,
                    used,
                })
                .collect();
            dialect::save_counters(conn, &rows)?;
        }
        changed_accounts.series = self.rollups.write(conn)?;
        missing_prices::tell(conn, &self.missing, now)?;
        changed_accounts.missing = self.missing;
        changed_accounts.at = now;
        Ok(changed_accounts)
    }
}
