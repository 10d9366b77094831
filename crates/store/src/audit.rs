//! The audit: recalculates balances, counters, holds and roll-ups from the ledger and the records, and reports each
//! difference.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Binary, Bool};
use tollgate_domain::{
    Cycle, CycleCalendar, Id as _, LedgerAccount, LimitCalendars, MeterId, MeterVersion,
    PendingRecord, RequestId, Run, SpendCounters, SubscriptionId, SubscriptionStatus, Timestamp,
    TransactionKind, WalletId,
};
use tollgate_pricing::Amount;

mod archived;
mod findings;
mod jobs;
mod metadata;
mod rollups;
mod statements;

use archived::ArchivedSums;
pub use findings::{Audit, Difference};
use findings::{CHUNK, OwnerNames};

use crate::archived::transactions::ArchivedLinesWalk;
use crate::archived::{ArchivedUntil, RecordArchive};
use crate::archived_sums::OwnerSums;
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::imports;
use crate::meters;
use crate::records::{RecordWalk, WalkedRecords};
use crate::rollups::QueuedCall;
use crate::rows::{
    ArchivedLinesRow, BudgetRow, CounterKey, OpenCallRow, RequestRow, RunRow, SpendCountersRow,
    SpendKeyRow, TierCounterRow, TransactionRow, WalletRow, counter_key, time, word,
};
use crate::schema::{
    budgets, open_calls, runs, spend_counters, spend_keys, subscriptions, tier_counters,
    transactions, wallets,
};
use crate::tables::merchants;
use crate::tables::repricings::{self, RepricingTotals};

/// The values recalculated from the ledger lines and the records.
#[derive(Default)]
struct RecomputedLedger {
    /// By wallet and account.
    balances: BTreeMap<(Id<WalletId>, EnumCode<LedgerAccount>), i64>,
    /// The numbers of each wallet's records.
    records: BTreeMap<Id<WalletId>, NumberSet>,
    /// The number of each wallet's last ledger line.
    numbers: BTreeMap<Id<WalletId>, i64>,
    usage: BTreeMap<(Id<RequestId>, Id<WalletId>), i64>,
    /// The lines of each wallet that are in the archive, as the database has them.
    archived_lines: BTreeMap<Id<WalletId>, ArchivedLines>,
    /// By wallet and account.
    holds: BTreeMap<(Id<WalletId>, EnumCode<LedgerAccount>), i64>,
    costs: BTreeMap<(Id<RequestId>, Id<WalletId>), i64>,
    counters: BTreeMap<CounterKey, i64>,
    /// By spend key, budget or run.
    spend: BTreeMap<Id<AnyId>, RecomputedCounters>,
    rollups: rollups::RecomputedRollups,
    /// The months that are in the archive and are not read.
    archived: Option<ArchivedSums>,
}

impl RecomputedLedger {
    /// Adds the next line of a wallet.
    fn add_line(&mut self, audit: &mut Audit, row: &TransactionRow) {
        let number = self.numbers.entry(row.wallet_id).or_default();
        *number = number.saturating_add(1);
        audit.compare(format!("number of {}", row.transaction_id), row.number, *number);
        let balance = self.balances.entry((row.wallet_id, row.account)).or_default();
        *balance = balance.saturating_add(row.amount);
        let what = format!("balance after {}", row.transaction_id);
        audit.compare(what, row.balance_after, *balance);
        self.add_usage(row);
    }

    /// Adds a line to what is booked for its call.
    fn add_usage(&mut self, row: &TransactionRow) {
        let pays = [TransactionKind::Usage, TransactionKind::Correction];
        if let Some(request_id) = row.request_id.filter(|_| pays.contains(&row.kind.0)) {
            let booked = self.usage.entry((request_id, row.wallet_id)).or_default();
            *booked = booked.saturating_add(row.amount);
        }
    }

    /// Adds the next lines of a wallet that are in the archive: those of an account.
    fn add_archived_lines(&mut self, audit: &mut Audit, group: &ArchivedLinesRow) {
        let (wallet_id, first) = (group.wallet_id, group.first_number);
        let number = self.numbers.entry(wallet_id).or_default();
        // The rows of a group have the same numbers.
        if *number != group.last_number {
            let what = format!("first archived transaction {first} of wallet {wallet_id}");
            audit.compare(what, first, number.saturating_add(1));
            *number = group.last_number;
            let archived = self.archived_lines.entry(wallet_id).or_default();
            let count = group.last_number.saturating_sub(first).saturating_add(1);
            archived.count = archived.count.saturating_add(count);
        }
        let balance = self.balances.entry((wallet_id, group.account)).or_default();
        *balance = balance.saturating_add(group.amount);
        let what = format!("balance after archived transaction {first} of wallet {wallet_id}");
        audit.compare(what, group.balance_after, *balance);
        let archived = self.archived_lines.entry(wallet_id).or_default();
        let amount = archived.amounts.entry(group.account).or_default();
        *amount = amount.saturating_add(group.amount);
    }
}

/// The ledger lines of a wallet that are in the archive.
#[derive(Default)]
struct ArchivedLines {
    count: i64,
    amounts: BTreeMap<EnumCode<LedgerAccount>, i64>,
}

/// The counters of a spend key, a budget or a run.
#[derive(Default)]
struct RecomputedCounters {
    name: String,
    kept: SpendCounters,
    recomputed: SpendCounters,
    spend_calendar: CycleCalendar,
    request_calendar: CycleCalendar,
    /// The time of the first call of a run. An earlier run with its id was forgotten.
    first_at: Option<Timestamp>,
}

impl RecomputedCounters {
    /// `imported` is what the account had spent before it was imported, and the time of that.
    fn new(
        name: String,
        row: &SpendCountersRow,
        calendars: LimitCalendars<'_>,
        imported: Option<&(Amount, Timestamp)>,
    ) -> Self {
        let kept = SpendCounters::from(row);
        // Recalculated counters refer to the cycles of the stored last use.
        let mut recomputed =
            SpendCounters { last_used_at: kept.last_used_at, ..SpendCounters::default() };
        if let Some((amount, at)) = imported {
            let last = kept.last_used_at.unwrap_or(*at);
            for (cycle, spent) in recomputed.spent.each_mut() {
                if calendars.spend.is_same(cycle, *at, last) {
                    *spent = *amount;
                }
            }
        }
        let (spend_calendar, request_calendar) =
            (calendars.spend.clone(), calendars.requests.clone());
        Self { name, kept, recomputed, spend_calendar, request_calendar, first_at: None }
    }
}

/// A set of numbers from 1 on, one bit each.
#[derive(Default)]
struct NumberSet(Vec<u64>);

impl NumberSet {
    /// Adds a number. Returns whether it was new and in range.
    fn insert(&mut self, number: i64) -> bool {
        let Ok(number) = usize::try_from(number) else { return false };
        let (word, bit) = (number / 64, 1_u64 << (number % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let Some(word) = self.0.get_mut(word) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// The number of its numbers.
    fn count(&self) -> i64 {
        self.0.iter().map(|word| i64::from(word.count_ones())).sum()
    }

    /// The least number from 1 to `last` that is missing.
    fn first_missing(&self, last: i64) -> Option<i64> {
        (1..=last).find(|number| {
            let number = usize::try_from(*number).unwrap_or_default();
            self.0.get(number / 64).is_none_or(|word| word & (1 << (number % 64)) == 0)
        })
    }
}

/// Audits the whole store. Must be called in a transaction, so that it sees one state.
///
/// With an archive, it also reads all records there. Without, it begins with the sums of the archived months, and compares
/// roll-ups, and the counters of cycles, that begin later.
///
/// # Errors
/// [`StoreError`] when the database or the archive fails. Differences are not errors but findings.
pub fn run(conn: &mut Conn, archive: Option<&RecordArchive>) -> Result<Audit, StoreError> {
    let mut audit = Audit::default();
    let mut sums = RecomputedLedger::default();
    let until = crate::archived::until(conn)?;
    sums.rollups = rollups::RecomputedRollups::new(conn, until)?;
    if let (Some(until), None) = (until, archive) {
        sums.archived = Some(archived::read(conn, until, &mut sums.counters)?);
    }
    read_spend_counters(conn, &mut sums)?;
    read_transactions(conn, &mut audit, &mut sums)?;
    if let Some(archive) = archive {
        read_archived_lines(conn, archive, &mut audit, &mut sums)?;
    }
    read_open_calls(conn, &mut audit, &mut sums)?;
    let rows: Vec<WalletRow> = wallets::table.select(WalletRow::as_select()).load(conn)?;
    audit.wallets = rows.len();
    let last_records: HashMap<_, _> = rows.iter().map(|row| (row.wallet_id, row.records)).collect();
    read_requests(conn, archive, until, &last_records, &mut audit, &mut sums)?;
    let owners = OwnerNames::read(conn)?;
    audit.requests += audit.pending;

    compare_wallets(&mut audit, &rows, &mut sums);
    compare_subscriptions(conn, &mut audit, &rows)?;
    compare_costs(&mut audit, &rows, &mut sums);
    let rows: Vec<TierCounterRow> =
        tier_counters::table.select(TierCounterRow::as_select()).load(conn)?;
    for row in rows {
        let name = format!(
            "counter of {} under {} {}",
            owners.name(row.owner_id),
            row.meter_id,
            row.period
        );
        let counted = sums
            .counters
            .remove(&(row.merchant_id, row.owner_id, row.meter_id, row.period))
            .unwrap_or(0);
        audit.compare(name, row.used, counted);
    }
    for ((_, owner, meter, period), counted) in sums.counters {
        let owner = owners.name(owner);
        audit.compare(format!("counter of {owner} under {meter} {period}"), 0, counted);
    }
    for (id, counters) in std::mem::take(&mut sums.spend) {
        compare_counters(&mut audit, id, counters, sums.archived.as_ref());
    }
    rollups::compare(conn, sums.rollups, sums.archived.map(|sums| sums.until), &mut audit)?;
    jobs::check(conn, &mut audit)?;
    statements::check(conn, &mut audit)?;
    Ok(audit)
}

/// Compares the balances, the holds, and the numbers of lines and records of the wallets.
fn compare_wallets(audit: &mut Audit, rows: &[WalletRow], sums: &mut RecomputedLedger) {
    for row in rows {
        let id = row.wallet_id;
        for (account, kept, held) in [
            (LedgerAccount::Balance, row.balance, row.held),
            (LedgerAccount::CycleCredit, row.cycle_credit, row.cycle_held),
            (LedgerAccount::BundleCredit, row.bundle_credit, row.bundle_held),
        ] {
            let key = (id, EnumCode(account));
            let of = |sums: &BTreeMap<_, i64>| sums.get(&key).copied().unwrap_or(0);
            let name = format!("wallet {id} {}", word(&account));
            audit.compare(format!("{name} held"), held, of(&sums.holds));
            audit.compare(name, kept, of(&sums.balances));
        }
        let number = sums.numbers.get(&id).copied().unwrap_or(0);
        audit.compare(format!("wallet {id} transactions"), row.transactions, number);
        let records = sums.records.remove(&id).unwrap_or_default();
        let (archived, _) = sums.archived.as_ref().map_or((0, 0), |all| all.of(id.untyped()));
        if archived > 0 {
            let found = archived.saturating_add(records.count());
            audit.compare(format!("records of wallet {id}"), row.records, found);
        } else if let Some(number) = records.first_missing(row.records) {
            audit.compare(format!("record {number} of wallet {id}"), 0, 1);
        }
    }
}

/// Compares the costs of the records with the ledger lines of their calls.
fn compare_costs(audit: &mut Audit, rows: &[WalletRow], sums: &mut RecomputedLedger) {
    for (key, cost) in std::mem::take(&mut sums.costs) {
        let booked = sums.usage.remove(&key).unwrap_or(0);
        audit.compare(format!("request {} booked on {}", key.0, key.1), -booked, cost);
    }
    for (key, booked) in std::mem::take(&mut sums.usage) {
        match &mut sums.archived {
            Some(archived) if key.0 < archived.until.id => {
                let sum = archived.booked.entry(key.1.untyped()).or_default();
                *sum = sum.saturating_sub(booked);
            }
            _ => audit.compare(format!("request {} booked on {}", key.0, key.1), -booked, 0),
        }
    }
    if let Some(archived) = &sums.archived {
        for row in rows {
            let id = row.wallet_id.untyped();
            let lines = sums.archived_lines.get(&row.wallet_id);
            let lines: i64 = lines.map_or(0, |lines| lines.amounts.values().sum());
            let booked = archived.booked.get(&id).copied().unwrap_or_default();
            let booked = booked.saturating_sub(lines);
            let what = format!("archived requests booked on {}", row.wallet_id);
            audit.compare(what, booked, archived.of(id).1);
        }
    }
}

/// Compares the counters of a spend key, a budget or a run. Cycles that began in an archived month are not compared,
/// except for the one that never ends.
fn compare_counters(
    audit: &mut Audit,
    id: Id<AnyId>,
    mut counters: RecomputedCounters,
    archived: Option<&ArchivedSums>,
) {
    let began_later = |until: Timestamp| counters.first_at.is_some_and(|first| first >= until);
    if let Some(archived) = archived.filter(|archived| !began_later(archived.until.at)) {
        let RecomputedCounters {
            kept, recomputed, spend_calendar, request_calendar, first_at, ..
        } = &mut counters;
        let is_run = first_at.is_some();
        let (records, cost) = archived.of(id);
        let last = kept.last_used_at.unwrap_or(archived.until.at);
        let just_before = archived.until.at.plus_micros(-1);
        let is_archived = |calendar: &CycleCalendar, cycle| {
            last < archived.until.at || calendar.is_same(cycle, just_before, last)
        };
        // Runs have one cycle, and no sums.
        for ((cycle, sum), (_, kept)) in
            recomputed.spent.each_mut().into_iter().zip(kept.spent.each_mut())
        {
            if cycle == Cycle::Total && !is_run {
                *sum = sum.saturating_add(Amount::from_units(cost));
            } else if is_archived(spend_calendar, cycle) {
                *sum = *kept;
            }
        }
        for ((cycle, sum), (_, kept)) in
            recomputed.requests.each_mut().into_iter().zip(kept.requests.each_mut())
        {
            if cycle == Cycle::Total && !is_run {
                *sum = sum.saturating_add(u64::try_from(records).unwrap_or_default());
            } else if is_archived(request_calendar, cycle) {
                *sum = *kept;
            }
        }
    }
    audit.compare_spend(&counters.name, &counters.kept, &counters.recomputed);
}

fn read_spend_counters(conn: &mut Conn, sums: &mut RecomputedLedger) -> Result<(), StoreError> {
    let imported = imports::spent(conn)?;
    let keys: Vec<(SpendCountersRow, SpendKeyRow)> = spend_counters::table
        .inner_join(spend_keys::table)
        .select((SpendCountersRow::as_select(), SpendKeyRow::as_select()))
        .load(conn)?;
    for (counters, row) in keys {
        let name = format!("spend key {}", row.spend_key_id);
        let key = row.with_counters(SpendCounters::default())?;
        let imported = imported.get(&counters.account_id);
        let sum = RecomputedCounters::new(name, &counters, key.rules.calendars(), imported);
        sums.spend.insert(counters.account_id, sum);
    }
    let budgets: Vec<(SpendCountersRow, BudgetRow)> = spend_counters::table
        .inner_join(budgets::table)
        .select((SpendCountersRow::as_select(), BudgetRow::as_select()))
        .load(conn)?;
    for (counters, row) in budgets {
        let name = format!("budget {}", row.budget_id);
        let budget = row.with_counters(SpendCounters::default())?;
        let imported = imported.get(&counters.account_id);
        let sum = RecomputedCounters::new(name, &counters, budget.rules.calendars(), imported);
        sums.spend.insert(counters.account_id, sum);
    }
    let runs: Vec<(SpendCountersRow, RunRow)> = spend_counters::table
        .inner_join(runs::table)
        .select((SpendCountersRow::as_select(), RunRow::as_select()))
        .load(conn)?;
    for (counters, row) in runs {
        let name = format!("run {:?} ({})", row.run_id, row.account_id);
        let mut sum = RecomputedCounters::new(name, &counters, Run::calendars(), None);
        sum.first_at = Some(time(row.first_at));
        sums.spend.insert(counters.account_id, sum);
    }
    Ok(())
}

/// Adds a call with this cost and hold to the counters of its spend key, its budgets and its run. It counts in each cycle that
/// contains both the admission and the last use of the account.
fn spend(call: &PendingRecord, cost: Amount, hold: Amount, sums: &mut RecomputedLedger) {
    let budgets = call.budgets.ids.iter().map(|id| Id(*id).untyped());
    let accounts = call.spend_key_id.map(|id| Id(id).untyped()).into_iter().chain(budgets);
    let run = call.run().map(|run| Id(run.account_id).untyped());
    // A run is forgotten after a while, with its counters.
    let run = run.filter(|id| {
        let first_at = sums.spend.get(id).and_then(|run| run.first_at);
        first_at.is_some_and(|first_at| first_at <= call.created_at)
    });
    for account in accounts.chain(run) {
        let counters = sums.spend.entry(account).or_default();
        let RecomputedCounters { recomputed: sum, spend_calendar, request_calendar, .. } = counters;
        let last = sum.last_used_at.unwrap_or(call.created_at);
        let more = |sum: &mut Amount, amount| *sum = sum.saturating_add(amount);
        let each = sum.spent.each_mut().into_iter().zip(sum.held.each_mut());
        for ((cycle, spent), (_, held)) in each {
            if spend_calendar.is_same(cycle, call.created_at, last) {
                more(spent, cost);
                more(held, hold);
            }
        }
        for (cycle, requests) in sum.requests.each_mut() {
            if request_calendar.is_same(cycle, call.created_at, last) {
                *requests = requests.saturating_add(1);
            }
        }
    }
}

fn read_transactions(
    conn: &mut Conn,
    audit: &mut Audit,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let merchants = merchants::present(conn)?;
    // No wallet has this id.
    let mut after = (Id(WalletId::from_bytes([0; 16])), 0);
    let mut archived = ArchivedLinesWalk::default();
    loop {
        let is_after = sql::<Bool>("(wallet_id, number) > (")
            .bind::<Binary, _>(after.0)
            .sql(", ")
            .bind::<BigInt, _>(after.1)
            .sql(")");
        let mut rows: Vec<TransactionRow> = transactions::table
            .filter(is_after)
            .order((transactions::wallet_id, transactions::number))
            .limit(CHUNK)
            .select(TransactionRow::as_select())
            .load(conn)?;
        let Some(last) = rows.last() else { break };
        after = (last.wallet_id, last.number);
        // A merchant that moves here has lines before it is here.
        rows.retain(|row| merchants.contains(&row.merchant_id));
        audit.transactions += rows.len();
        for row in rows {
            let place = (row.wallet_id, row.number);
            while let Some(group) = archived.next_before(conn, Some(place))? {
                sums.add_archived_lines(audit, &group);
            }
            sums.add_line(audit, &row);
        }
    }
    while let Some(group) = archived.next_before(conn, None)? {
        sums.add_archived_lines(audit, &group);
    }
    Ok(())
}

/// Adds the ledger lines of the archive, and compares them with the sums that took their place.
fn read_archived_lines(
    conn: &mut Conn,
    archive: &RecordArchive,
    audit: &mut Audit,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let most = usize::try_from(CHUNK).unwrap_or(usize::MAX);
    let mut found: BTreeMap<Id<WalletId>, ArchivedLines> = BTreeMap::new();
    // The last line of the wallet, and the balances after the lines that follow each other.
    let mut last = (Id(WalletId::from_bytes([0; 16])), 0);
    let mut balances = BTreeMap::new();
    crate::archived::transactions::each_line_part(conn, archive, most, |lines| {
        audit.transactions += lines.len();
        for line in &lines {
            sums.add_usage(line);
            let of_wallet = found.entry(line.wallet_id).or_default();
            of_wallet.count = of_wallet.count.saturating_add(1);
            let amount = of_wallet.amounts.entry(line.account).or_default();
            *amount = amount.saturating_add(line.amount);
            if last != (line.wallet_id, line.number.saturating_sub(1)) {
                balances.clear();
            }
            last = (line.wallet_id, line.number);
            if let Some(before) = balances.insert(line.account, line.balance_after) {
                let what = format!("balance after archived {}", line.transaction_id);
                audit.compare(what, line.balance_after, line.amount.saturating_add(before));
            }
        }
    })?;
    let wallets: BTreeSet<_> = sums.archived_lines.keys().chain(found.keys()).copied().collect();
    let none = ArchivedLines::default();
    for id in wallets {
        let [kept, found] = [&sums.archived_lines, &found].map(|of| of.get(&id).unwrap_or(&none));
        let what = format!("archived transactions of wallet {id}");
        audit.compare(format!("{what}, number"), kept.count, found.count);
        for account in kept.amounts.keys().chain(found.amounts.keys()).collect::<BTreeSet<_>>() {
            let [kept, found] =
                [kept, found].map(|of| of.amounts.get(account).copied().unwrap_or_default());
            audit.compare(format!("{what}, {}", word(&account.0)), kept, found);
        }
    }
    Ok(())
}

/// Compares the subscriptions named by wallets with the active subscriptions.
fn compare_subscriptions(
    conn: &mut Conn,
    audit: &mut Audit,
    wallets: &[WalletRow],
) -> Result<(), StoreError> {
    let active: Vec<(Id<WalletId>, Id<SubscriptionId>)> = subscriptions::table
        .filter(subscriptions::status.eq(word(&SubscriptionStatus::Active)))
        .select((subscriptions::wallet_id, subscriptions::subscription_id))
        .load(conn)?;
    let mut active: BTreeMap<_, _> = active.into_iter().collect();
    for row in wallets {
        let on_wallet = active.remove(&row.wallet_id);
        if on_wallet != row.subscription_id {
            let count = |id: Option<Id<_>>| i64::from(id.is_some());
            let what = format!("subscription that wallet {} names", row.wallet_id);
            let (kept, recomputed) = (count(row.subscription_id), count(on_wallet));
            audit.differences.push(Difference { what, kept, recomputed });
        }
    }
    Ok(())
}

fn read_open_calls(
    conn: &mut Conn,
    audit: &mut Audit,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let rows: Vec<OpenCallRow> = open_calls::table.select(OpenCallRow::as_select()).load(conn)?;
    audit.pending = rows.len();
    for row in &rows {
        let call = PendingRecord::try_from(row)?;
        let credit = call.credit_hold.unwrap_or_default();
        for (wallet_id, account, hold) in [
            (call.wallet_id, LedgerAccount::Balance, call.wallet_hold),
            (call.wallet_id, LedgerAccount::CycleCredit, credit.cycle),
            (call.wallet_id, LedgerAccount::BundleCredit, credit.bundle),
            (Some(call.merchant_wallet_id), LedgerAccount::Balance, call.merchant_hold),
        ] {
            let Some(wallet_id) = wallet_id else { continue };
            let held = sums.holds.entry((Id(wallet_id), EnumCode(account))).or_default();
            *held = held.saturating_add(hold.units());
        }
        spend(&call, Amount::ZERO, call.spend_hold, sums);
    }
    Ok(())
}

fn read_requests(
    conn: &mut Conn,
    archive: Option<&RecordArchive>,
    until: Option<ArchivedUntil>,
    last_records: &HashMap<Id<WalletId>, i64>,
    audit: &mut Audit,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let mut periods = BTreeMap::new();
    let mut walk = RecordWalk::until(until);
    loop {
        let WalkedRecords { rows, is_last } = walk.next(conn, CHUNK)?;
        add_requests(conn, rows, None, last_records, &mut periods, audit, sums)?;
        if is_last {
            break;
        }
    }
    let Some(archive) = archive else { return Ok(()) };
    let most = usize::try_from(CHUNK).unwrap_or(usize::MAX);
    let mut owners = OwnerSums::default();
    crate::archived::each_part(conn, archive, most, |conn, rows| {
        add_requests(conn, rows, Some(&mut owners), last_records, &mut periods, audit, sums)
    })?;
    archived::compare(conn, owners, audit)
}

/// Adds records, with their corrections, to the sums. Those of the archive also count for their `owners`, and are not in the
/// index.
fn add_requests(
    conn: &mut Conn,
    rows: Vec<RequestRow>,
    mut owners: Option<&mut OwnerSums>,
    last_records: &HashMap<Id<WalletId>, i64>,
    periods: &mut BTreeMap<(MeterId, i32), meters::MeterPricing>,
    audit: &mut Audit,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
    let merchants: BTreeSet<_> = rows.iter().map(|row| row.merchant_id).collect();
    let repriced = repricings::repricing_totals(conn, merchants, &ids)?;
    audit.requests += rows.len();
    for row in rows {
        let RepricingTotals { wallet_delta, merchant_delta, .. } =
            repriced.get(&row.request_id).copied().unwrap_or_default();
        let wallet_cost = row.wallet_cost.saturating_add(wallet_delta);
        let merchant_cost = row.merchant_cost.saturating_add(merchant_delta);
        let wallet = row.wallet_id.map(|id| (id, wallet_cost));
        let merchants = (row.merchant_wallet_id, merchant_cost);
        for (wallet_id, cost) in wallet.into_iter().chain([merchants]) {
            let costs = sums.costs.entry((row.request_id, wallet_id)).or_default();
            *costs = costs.saturating_add(cost);
        }
        let wallet_id = row.wallet_id.unwrap_or(row.merchant_wallet_id);
        let last = last_records.get(&wallet_id).copied().unwrap_or_default();
        let is_of_wallet = (1..=last).contains(&row.sequence);
        if !is_of_wallet || !sums.records.entry(wallet_id).or_default().insert(row.sequence) {
            audit.add_wrong_number(row.request_id, row.sequence);
        }
        let call = row.call()?;
        count(conn, &call, row.counted_units, periods, sums)?;
        // The meter's terms do not affect the sums.
        let record = row.to_record(None)?;
        let queued = QueuedCall::of_record(&row)?;
        sums.rollups.add(&queued, sums.archived.as_ref().map(|sums| sums.until));
        let cost = record.quote.total_request_cost;
        match &mut owners {
            Some(owners) => owners.add(conn, &row, [wallet_cost, merchant_cost], cost.units())?,
            None => sums.rollups.add_entries(&queued),
        }
        spend(&call, cost, Amount::ZERO, sums);
    }
    Ok(())
}

/// Adds the counted units of a record to its tier counter.
fn count(
    conn: &mut Conn,
    call: &PendingRecord,
    counted: i64,
    periods: &mut BTreeMap<(MeterId, i32), meters::MeterPricing>,
    sums: &mut RecomputedLedger,
) -> Result<(), StoreError> {
    let Some(MeterVersion { meter_id, version }) = call.meter else { return Ok(()) };
    if counted == 0 {
        return Ok(());
    }
    let version = match periods.entry((meter_id, version)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(unknown) => unknown.insert(meters::model_of(conn, meter_id, version)?),
    };
    let counter = sums.counters.entry(counter_key(call, meter_id, version.tier_period));
    let counter = counter.or_default();
    *counter = counter.saturating_add(counted);
    Ok(())
}
