//! One transaction of the ledger: all that wait, decided under the same locks.
//!
//! Tables are locked in one order everywhere (requests, wallets, tier counters) and rows within a
//! table by id, so batches of several nodes never wait for each other in a circle. Settlements
//! come before admissions: they free what admissions may need.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_domain::admission::{self, Account, Call, Facts, Refusal};
use tollgate_domain::settlement::{self, Ending, Report, Settled};
use tollgate_domain::{
    Connection, MerchantMeter, PendingRecord, RequestId, Timestamp, TransactionKind, Wallet,
};

use super::{Context, SettleOutcome};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::meters::{self, Version};
use crate::rows::{
    Reason, RequestMetadataRow, RequestRow, TierCounterRow, TransactionRow, WalletRow, parsed, word,
};

pub(super) enum Item {
    Admit(Box<Call>),
    Settle(Box<Settlement>),
}

pub(super) struct Settlement {
    pub(super) request_id: RequestId,
    /// What became of the call; `None` from the sweeper, who knows nothing.
    pub(super) report: Option<Report>,
}

pub(super) enum Answer {
    Admitted(Result<Box<PendingRecord>, Refusal>),
    Settled(SettleOutcome),
}

type Versions = HashMap<(String, i32), Version>;

/// Decides and books `items`; the answers come in their order and hold once this is committed.
pub(super) fn book(
    conn: &mut Conn,
    items: &[Item],
    context: &Context,
    versions: &mut Versions,
) -> Result<Vec<Answer>, StoreError> {
    let now = context.clock.now();
    let settlements = items.iter().filter_map(|item| match item {
        Item::Settle(settlement) => Some(&**settlement),
        Item::Admit(_) => None,
    });
    let calls = items.iter().filter_map(|item| match item {
        Item::Admit(call) => Some(&**call),
        Item::Settle(_) => None,
    });
    let ending = Endings::load(conn, settlements.clone(), versions)?;
    let asking = Applicants::load(conn, calls)?;
    let mut books = Books::lock(conn, &ending, &asking, now)?;

    let mut settled: HashMap<RequestId, SettleOutcome> = HashMap::new();
    for settlement in settlements {
        let outcome = books.settle(settlement, versions, context)?;
        // Of two settlements of one call in one batch the first is booked, and both may say so.
        settled.entry(settlement.request_id).or_insert(outcome);
    }
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(match item {
            Item::Settle(settlement) => {
                let outcome = settled.get(&settlement.request_id).cloned();
                Answer::Settled(outcome.unwrap_or(SettleOutcome::NotFound))
            }
            Item::Admit(call) => Answer::Admitted(books.admit(call, &asking, context)?),
        });
    }
    books.write(conn)?;
    Ok(answers)
}

/// What the settlements of a batch rest on.
struct Endings {
    rows: BTreeMap<String, RequestRow>,
    wallet_ids: BTreeSet<String>,
    counter_keys: BTreeSet<(String, String, String)>,
}

impl Endings {
    fn load<'a>(
        conn: &mut Conn,
        settlements: impl Iterator<Item = &'a Settlement>,
        versions: &mut Versions,
    ) -> Result<Self, StoreError> {
        let by_id: BTreeMap<_, _> =
            settlements.map(|one| (one.request_id.to_string(), one)).collect();
        let ids: Vec<_> = by_id.keys().cloned().collect();
        let rows = if ids.is_empty() { Vec::new() } else { dialect::lock_requests(conn, &ids)? };
        let mut wallet_ids = BTreeSet::new();
        let mut counter_keys = BTreeSet::new();
        for row in &rows {
            let version = match (&row.meter_id, row.meter_version) {
                (Some(meter_id), Some(number)) => {
                    let version = known_version(conn, versions, meter_id, number)?;
                    counter_keys.insert(row.counter_key(meter_id, version.tier_period));
                    Some(version)
                }
                _ => None,
            };
            wallet_ids.extend(row.wallet_id.clone());
            let report = by_id.get(&row.request_id).and_then(|one| one.report.as_ref());
            if may_touch_merchant(row, report, version) {
                wallet_ids.insert(row.merchant_wallet_id.clone());
            }
        }
        let rows = rows.into_iter().map(|row| (row.request_id.clone(), row)).collect();
        Ok(Self { rows, wallet_ids, counter_keys })
    }
}

/// A meter's version, read once and remembered.
fn known_version<'a>(
    conn: &mut Conn,
    versions: &'a mut Versions,
    meter_id: &str,
    number: i32,
) -> Result<&'a Version, StoreError> {
    match versions.entry((meter_id.to_owned(), number)) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(unknown) => Ok(unknown.insert(meters::model_of(conn, meter_id, number)?)),
    }
}

/// Whether the merchant's own wallet has to be locked: it is a row that all its calls share.
fn may_touch_merchant(
    row: &RequestRow,
    report: Option<&Report>,
    version: Option<&Version>,
) -> bool {
    let ending = report.map_or(Ending::Lost, |report| report.ending);
    let meter = version.map(|version| &version.model);
    row.merchant_hold != 0
        || row.merchant_cost != 0
        || settlement::merchant_may_pay(row.wallet_id.is_some(), row.disable_billing, ending, meter)
}

/// What the admissions of a batch rest on, but for the wallets.
struct Applicants {
    keys: HashMap<String, KeyHolder>,
    connections: HashMap<String, Connection>,
    meters: HashMap<(String, String), MerchantMeter>,
}

struct KeyHolder {
    merchant_id: String,
    wallet_id: String,
    wallet_is_limited: bool,
}

impl Applicants {
    fn load<'a>(
        conn: &mut Conn,
        calls: impl Iterator<Item = &'a Call> + Clone,
    ) -> Result<Self, StoreError> {
        let key_ids: BTreeSet<_> =
            calls.clone().map(|call| call.secret_key_id.to_string()).collect();
        let connection_ids: BTreeSet<_> =
            calls.clone().filter_map(|call| call.connection_id).map(|id| id.to_string()).collect();
        let slugs: BTreeSet<_> = calls
            .filter_map(|call| Some((call.merchant_id.to_string(), call.meter_slug.clone()?)))
            .collect();

        let mut keys = HashMap::new();
        if !key_ids.is_empty() {
            let ids: Vec<_> = key_ids.into_iter().collect();
            for (id, merchant_id, wallet_id, limit) in dialect::secret_key_facts(conn, &ids)? {
                let wallet_is_limited = limit.is_some();
                keys.insert(id, KeyHolder { merchant_id, wallet_id, wallet_is_limited });
            }
        }
        let mut connections = HashMap::new();
        if !connection_ids.is_empty() {
            let ids: Vec<_> = connection_ids.into_iter().collect();
            for row in dialect::connections_by_id(conn, &ids)? {
                connections.insert(row.connection_id.clone(), Connection::try_from(row)?);
            }
        }
        let mut meters = HashMap::new();
        for (merchant_id, slug) in slugs {
            if let Some(meter) = meters::find_by_slug(conn, &merchant_id, &slug)? {
                meters.insert((merchant_id, slug), meter);
            }
        }
        Ok(Self { keys, connections, meters })
    }

    fn connection(&self, call: &Call) -> Option<&Connection> {
        let connection = self.connections.get(&call.connection_id?.to_string())?;
        (connection.merchant_id == call.merchant_id).then_some(connection)
    }

    fn meter(&self, call: &Call) -> Option<&MerchantMeter> {
        let slug = call.meter_slug.clone()?;
        self.meters.get(&(call.merchant_id.to_string(), slug))
    }

    fn wallet_ids(&self) -> impl Iterator<Item = String> + '_ {
        let of_connections = self.connections.values().map(|one| one.wallet_id.to_string());
        // A wallet without limit guards nothing: it is not locked for an admission.
        of_connections.chain(
            self.keys.values().filter(|key| key.wallet_is_limited).map(|key| key.wallet_id.clone()),
        )
    }
}

/// What a batch changes: read under lock, changed in memory, written back once.
struct Books {
    now: Timestamp,
    requests: BTreeMap<String, RequestRow>,
    wallets: BTreeMap<String, WalletRow>,
    counters: BTreeMap<(String, String, String), i64>,
    changed_requests: BTreeSet<String>,
    changed_wallets: BTreeSet<String>,
    changed_counters: BTreeSet<(String, String, String)>,
    admitted: Vec<RequestRow>,
    metadata: Vec<RequestMetadataRow>,
    transactions: Vec<TransactionRow>,
}

impl Books {
    fn lock(
        conn: &mut Conn,
        ending: &Endings,
        asking: &Applicants,
        now: Timestamp,
    ) -> Result<Self, StoreError> {
        let wallet_ids: BTreeSet<_> =
            ending.wallet_ids.iter().cloned().chain(asking.wallet_ids()).collect();
        let ids: Vec<_> = wallet_ids.into_iter().collect();
        let wallets = if ids.is_empty() { Vec::new() } else { dialect::lock_wallets(conn, &ids)? };
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
            now,
            requests: ending.rows.clone(),
            wallets: wallets.into_iter().map(|row| (row.wallet_id.clone(), row)).collect(),
            counters: counters
                .into_iter()
                .map(|row| ((row.owner_id, row.meter_id, row.period), row.used))
                .collect(),
            changed_requests: BTreeSet::new(),
            changed_wallets: BTreeSet::new(),
            changed_counters: BTreeSet::new(),
            admitted: Vec::new(),
            metadata: Vec::new(),
            transactions: Vec::new(),
        })
    }

    /// Admits a call or refuses it; a refusal writes nothing.
    fn admit(
        &mut self,
        call: &Call,
        asking: &Applicants,
        context: &Context,
    ) -> Result<Result<Box<PendingRecord>, Refusal>, StoreError> {
        let holder = asking.keys.get(&call.secret_key_id.to_string());
        let holder = holder.filter(|key| key.merchant_id == call.merchant_id.to_string());
        let connection = asking.connection(call);
        let limited = holder.filter(|key| key.wallet_is_limited);
        let limited = limited.map(|key| self.wallet(&key.wallet_id)).transpose()?;
        let account = match holder {
            Some(key) => Some(Account {
                wallet_id: parsed("merchants.wallet_id", &key.wallet_id)?,
                limited: limited.as_ref(),
            }),
            None => None,
        };
        let wallet = connection.map(|one| self.wallet(&one.wallet_id.to_string())).transpose()?;
        let meter = asking.meter(call);
        let facts = Facts { account, connection, wallet: wallet.as_ref(), meter };
        let pending = match admission::decide(call, &facts, context.service_charge_rate) {
            Ok(pending) => pending,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Some(wallet_id) = pending.wallet_id {
            self.hold(&wallet_id.to_string(), pending.wallet_hold.units())?;
        }
        self.hold(&pending.merchant_wallet_id.to_string(), pending.merchant_hold.units())?;
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
                lost = Report::unknown(&pending, Ending::Lost, self.now);
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
        let Settled { record, counter_moves, overflowed } =
            settlement::settle(&pending, report, model, before, context.service_charge_rate);
        if overflowed {
            log::error!("{request_id}: its cost is beyond all amounts; it is booked as unpriced");
        }

        let counted = i64::try_from(counter_moves).unwrap_or(i64::MAX);
        if let Some(key) = key.filter(|_| counted != row.counted_units) {
            let moved = used.saturating_sub(row.counted_units).saturating_add(counted);
            self.counters.insert(key.clone(), moved);
            self.changed_counters.insert(key);
        }
        let kind = if corrects { TransactionKind::Correction } else { TransactionKind::Usage };
        if let Some(wallet_id) = &row.wallet_id {
            let due = record.quote.total_wallet_cost.units().saturating_sub(row.wallet_cost);
            self.debit(wallet_id, row.wallet_hold, due, kind, &request_id, "wallet")?;
        }
        let due = record.quote.total_merchant_cost.units().saturating_sub(row.merchant_cost);
        self.debit(&row.merchant_wallet_id, row.merchant_hold, due, kind, &request_id, "merchant")?;

        let mut row = row;
        row.finish(&record, counted, settlement.report.is_none());
        self.requests.insert(request_id.clone(), row);
        self.changed_requests.insert(request_id);
        Ok(SettleOutcome::Settled(Box::new(record)))
    }

    fn wallet(&self, wallet_id: &str) -> Result<Wallet, StoreError> {
        self.wallets.get(wallet_id).ok_or_else(|| missing(wallet_id)).and_then(Wallet::try_from)
    }

    fn hold(&mut self, wallet_id: &str, units: i64) -> Result<(), StoreError> {
        if units == 0 {
            return Ok(());
        }
        let wallet = self.wallets.get_mut(wallet_id).ok_or_else(|| missing(wallet_id))?;
        wallet.held = wallet.held.checked_add(units).ok_or_else(|| out_of_range(wallet_id))?;
        self.changed_wallets.insert(wallet_id.to_owned());
        Ok(())
    }

    /// Releases what was held and takes what is due, as a ledger line of its own.
    fn debit(
        &mut self,
        wallet_id: &str,
        held: i64,
        due: i64,
        kind: TransactionKind,
        request_id: &str,
        part: &str,
    ) -> Result<(), StoreError> {
        if held == 0 && due == 0 {
            return Ok(());
        }
        let wallet = self.wallets.get_mut(wallet_id).ok_or_else(|| missing(wallet_id))?;
        wallet.held = wallet.held.checked_sub(held).ok_or_else(|| out_of_range(wallet_id))?;
        self.changed_wallets.insert(wallet_id.to_owned());
        if due == 0 {
            return Ok(());
        }
        let reason = Reason {
            kind,
            request_id: Some(request_id),
            description: None,
            idempotency_key: Some(format!("{}:{request_id}:{part}", word(&kind))),
        };
        let booked = due.checked_neg().and_then(|amount| wallet.book(amount, reason, self.now));
        self.transactions.push(booked.ok_or_else(|| out_of_range(wallet_id))?);
        Ok(())
    }

    /// Writes everything back: one statement per table.
    fn write(self, conn: &mut Conn) -> Result<(), StoreError> {
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
        if !self.transactions.is_empty() {
            dialect::insert_transactions(conn, &self.transactions)?;
        }
        if !self.changed_wallets.is_empty() {
            let rows: Vec<_> = changed(self.wallets, &self.changed_wallets).into_values().collect();
            dialect::save_wallets(conn, &rows)?;
        }
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
        Ok(())
    }
}

fn missing(wallet_id: &str) -> StoreError {
    StoreError::Corrupt { what: "wallet (it is missing)", value: wallet_id.to_owned() }
}

fn out_of_range(wallet_id: &str) -> StoreError {
    StoreError::Corrupt {
        what: "balance (it would leave the range of an amount)",
        value: wallet_id.to_owned(),
    }
}
