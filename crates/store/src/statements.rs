//! Monthly statements of customers, from the ledger lines of their wallets and the sums of their calls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::Bool;
use tollgate_domain::{
    Connection, ConnectionId, CreditSummary, LedgerAccount, MerchantId, ModelUsage, Month,
    MonthCorrection, RequestId, Statement, StatementCharge, TimeSpan, TimeZone, Timestamp,
    TransactionKind, WalletId,
};
use tollgate_pricing::Amount;

use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::records;
use crate::requests::CLOCK_DIFFERENCE_MS;
use crate::rollups::{RollupSums, is_indexed};
use crate::rows::{
    PlanChargeRow, RequestRow, TransactionRow, from_word, joined_sum, split_sum, time,
};
use crate::schema::{
    archived_transactions, corrections, plan_charges, requests, transactions, wallets,
};
use crate::{archived, usage};

/// The number of ledger lines that are read at once.
const LINES_AT_ONCE: i64 = 5_000;

/// Returns the months in which a wallet has movements or charges, newest first, by the clocks of a zone.
///
/// Its subscription must have been [renewed](crate::Store::renew). Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn months(
    conn: &mut Conn,
    wallet_id: WalletId,
    zone: &TimeZone,
) -> Result<Vec<Month>, StoreError> {
    let mut months = BTreeSet::new();
    let lines = WalletLines::of(conn, wallet_id)?;
    let mut number = 1;
    while let Some(at) = lines.time(conn, number)? {
        let month = Month::of(at, zone);
        months.insert(month);
        number = lines.first_from(conn, month.range(zone).end)?.max(number.saturating_add(1));
    }
    let charged: Vec<i64> = plan_charges::table
        .filter(plan_charges::wallet_id.eq(Id(wallet_id)))
        .select(plan_charges::charged_at)
        .load(conn)?;
    months.extend(charged.into_iter().map(|at| Month::of(time(at), zone)));
    Ok(months.into_iter().rev().collect())
}

/// A customer, as statements need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CustomerAccount {
    /// The merchant.
    pub merchant_id: MerchantId,
    /// The customer.
    pub connection_id: ConnectionId,
    /// The customer's wallet.
    pub wallet_id: WalletId,
}

impl From<&Connection> for CustomerAccount {
    fn from(customer: &Connection) -> Self {
        let Connection { merchant_id, connection_id, wallet_id, .. } = *customer;
        Self { merchant_id, connection_id, wallet_id }
    }
}

/// Returns the statement of a customer for a month, by the clocks of a zone.
///
/// The customer's subscription must have been [renewed](crate::Store::renew). Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn read(
    conn: &mut Conn,
    customer: CustomerAccount,
    month: Month,
    zone: &TimeZone,
) -> Result<Statement, StoreError> {
    let mut sums = StatementSums::new(customer, month, zone);
    sums.read_lines(conn)?;
    sums.read_usage(conn)?;
    let charges = charges(conn, customer.wallet_id, &sums.range)?;
    Ok(sums.statement(charges))
}

/// The ledger lines of a wallet. Their times ascend with their numbers, but for the differences of clocks, which are
/// less than a day: the end of a cycle is booked before any other line.
///
/// A group of lines that is in the archive counts as lines of usage with the time of its first one. No group has lines of
/// two statements.
struct WalletLines {
    wallet_id: Id<WalletId>,
    /// The number of the last one.
    last: i64,
}

impl WalletLines {
    fn of(conn: &mut Conn, wallet_id: WalletId) -> Result<Self, StoreError> {
        let wallet_id = Id(wallet_id);
        let last =
            wallets::table.find(wallet_id).select(wallets::transactions).first(conn).optional()?;
        Ok(Self { wallet_id, last: last.unwrap_or_default() })
    }

    /// The time of a line. `None` after the last one.
    fn time(&self, conn: &mut Conn, number: i64) -> Result<Option<Timestamp>, StoreError> {
        // A line that is missing, which the audit reports, has the time of the next one.
        let line: Option<(i64, i64)> = transactions::table
            .filter(transactions::wallet_id.eq(self.wallet_id))
            .filter(transactions::number.ge(number))
            .order(transactions::number)
            .select((transactions::number, transactions::created_at))
            .first(conn)
            .optional()?;
        let group = archived::transactions::group_from(conn, self.wallet_id, number)?;
        Ok([line, group].into_iter().flatten().min().map(|(_, at)| time(at)))
    }

    /// The number of the first line from an instant on; one more than the last if there is none.
    fn first_from(&self, conn: &mut Conn, at: Timestamp) -> Result<i64, StoreError> {
        let (mut low, mut high) = (1, self.last.saturating_add(1));
        while low < high {
            let middle = low.midpoint(high);
            match self.time(conn, middle)?.is_some_and(|time| time < at) {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// The balance of an account before a line.
    fn balance_before(
        &self,
        conn: &mut Conn,
        account: LedgerAccount,
        number: i64,
    ) -> Result<i64, StoreError> {
        let line: Option<(i64, i64)> = transactions::table
            .filter(transactions::wallet_id.eq(self.wallet_id))
            .filter(transactions::number.lt(number))
            .filter(transactions::account.eq(EnumCode(account)))
            .order(transactions::number.desc())
            .select((transactions::number, transactions::balance_after))
            .first(conn)
            .optional()?;
        let group: Option<(i64, i64)> = archived_transactions::table
            .filter(archived_transactions::wallet_id.eq(self.wallet_id))
            .filter(archived_transactions::first_number.lt(number))
            .filter(archived_transactions::account.eq(EnumCode(account)))
            .order(archived_transactions::first_number.desc())
            .select((archived_transactions::first_number, archived_transactions::balance_after))
            .first(conn)
            .optional()?;
        Ok([line, group].into_iter().flatten().max().map_or(0, |(_, balance)| balance))
    }

    /// The sums of the lines of some calls within a range of times.
    fn sums(
        &self,
        conn: &mut Conn,
        numbers: &Range<i64>,
        CallLines { at, calls }: &CallLines,
    ) -> Result<Vec<LineSum>, StoreError> {
        let [low, high] = split_sum("amount");
        let rows: Vec<(EnumCode<LedgerAccount>, EnumCode<TransactionKind>, i64, i64)> =
            transactions::table
                .filter(transactions::wallet_id.eq(self.wallet_id))
                .filter(transactions::number.ge(numbers.start))
                .filter(transactions::number.lt(numbers.end))
                .filter(transactions::request_id.ge(calls.start))
                .filter(transactions::request_id.lt(calls.end))
                .filter(transactions::created_at.ge(at.start))
                .filter(transactions::created_at.lt(at.end))
                .group_by((transactions::account, transactions::kind))
                .select((transactions::account, transactions::kind, low, high))
                .load(conn)?;
        let rows = rows.into_iter().map(|(account, kind, low, high)| LineSum {
            account: account.0,
            kind: kind.0,
            units: joined_sum(low, high),
        });
        Ok(rows.collect())
    }

    /// The first lines of a range that are not among those of the calls.
    fn others(
        &self,
        conn: &mut Conn,
        numbers: Range<i64>,
        CallLines { at, calls }: &CallLines,
    ) -> Result<Vec<TransactionRow>, StoreError> {
        let is_of_other = transactions::request_id
            .is_null()
            .or(transactions::request_id.lt(calls.start))
            .or(transactions::request_id.ge(calls.end))
            .assume_not_null();
        let is_of_other_time =
            transactions::created_at.lt(at.start).or(transactions::created_at.ge(at.end));
        let rows = transactions::table
            .filter(transactions::wallet_id.eq(self.wallet_id))
            .filter(transactions::number.ge(numbers.start))
            .filter(transactions::number.lt(numbers.end))
            .filter(is_of_other.or(is_of_other_time))
            .order(transactions::number)
            .limit(LINES_AT_ONCE)
            .select(TransactionRow::as_select())
            .load(conn)?;
        Ok(rows)
    }
}

/// Ledger lines of calls: those with a time in a range, of calls whose ids are in another.
struct CallLines {
    at: Range<i64>,
    calls: Range<Id<RequestId>>,
}

/// The sum of lines of an account and a kind, in units.
struct LineSum {
    account: LedgerAccount,
    kind: TransactionKind,
    units: i128,
}

/// The sums of a statement while its lines and calls are read. Amounts are in units, which no sum overflows.
struct StatementSums<'a> {
    customer: CustomerAccount,
    month: Month,
    zone: &'a TimeZone,
    range: Range<Timestamp>,
    opening: AccountSums,
    /// The movements of the month.
    moved: AccountSums,
    credits: i128,
    debits: i128,
    usage: AccountSums,
    corrections: BTreeMap<Month, AccountSums>,
    granted: i128,
    expired: i128,
    rolled_over: i128,
    by_model: HashMap<Option<String>, RollupSums>,
}

/// A sum for the balance, and one for both credits.
#[derive(Clone, Copy, Debug, Default)]
struct AccountSums {
    balance: i128,
    credit: i128,
}

impl AccountSums {
    fn add(&mut self, account: LedgerAccount, units: i128) {
        let sum = match account {
            LedgerAccount::Balance => &mut self.balance,
            LedgerAccount::CycleCredit | LedgerAccount::BundleCredit => &mut self.credit,
        };
        *sum += units;
    }
}

impl<'a> StatementSums<'a> {
    fn new(customer: CustomerAccount, month: Month, zone: &'a TimeZone) -> Self {
        Self {
            customer,
            month,
            zone,
            range: month.range(zone),
            opening: AccountSums::default(),
            moved: AccountSums::default(),
            credits: 0,
            debits: 0,
            usage: AccountSums::default(),
            corrections: BTreeMap::new(),
            granted: 0,
            expired: 0,
            rolled_over: 0,
            by_model: HashMap::new(),
        }
    }

    /// Adds the ledger lines of the month.
    fn read_lines(&mut self, conn: &mut Conn) -> Result<(), StoreError> {
        let lines = WalletLines::of(conn, self.customer.wallet_id)?;
        let from = self.range.start.plus_millis(-CLOCK_DIFFERENCE_MS);
        let past = self.range.end.plus_millis(CLOCK_DIFFERENCE_MS);
        let [mut next, past] = [lines.first_from(conn, from)?, lines.first_from(conn, past)?];
        for account in
            [LedgerAccount::Balance, LedgerAccount::CycleCredit, LedgerAccount::BundleCredit]
        {
            self.opening.add(account, lines.balance_before(conn, account, next)?.into());
        }
        // Most lines are of calls that were surely made in the month, and are added up by the database.
        let of_calls = CallLines {
            at: self.range.start.unix_micros()..self.range.end.unix_micros(),
            calls: self.calls_within(),
        };
        for sum in lines.sums(conn, &(next..past), &of_calls)? {
            self.add_line(&sum, None);
        }
        for group in archived::transactions::groups_of_wallet(conn, lines.wallet_id, next..past)? {
            let (account, units) = (group.account.0, group.amount.into());
            let at = time(group.created_at);
            if at < self.range.start {
                self.opening.add(account, units);
            }
            if self.range.contains(&at) {
                self.add_line(&LineSum { account, kind: TransactionKind::Usage, units }, None);
            }
        }
        while next < past {
            let page = lines.others(conn, next..past, &of_calls)?;
            let Some(last) = page.last() else { break };
            next = last.number.saturating_add(1);
            let others = self.calls_of_other_months(conn, &page)?;
            for line in &page {
                let (account, units) = (line.account.0, line.amount.into());
                let at = time(line.created_at);
                if at < self.range.start {
                    self.opening.add(account, units);
                }
                if self.range.contains(&at) {
                    let month = line.request_id.and_then(|id| others.get(&id)).copied();
                    self.add_line(&LineSum { account, kind: line.kind.0, units }, month);
                }
            }
        }
        Ok(())
    }

    /// Adds lines of the month. `month` is the month of their calls, if it is another one.
    fn add_line(&mut self, &LineSum { account, kind, units }: &LineSum, month: Option<Month>) {
        self.moved.add(account, units);
        match kind {
            TransactionKind::Credit => self.credits += units,
            TransactionKind::Debit => self.debits += units,
            TransactionKind::CreditGrant | TransactionKind::BundlePurchase => self.granted += units,
            TransactionKind::CreditExpiry => self.expired -= units,
            TransactionKind::Rollover => self.rolled_over += units.max(0),
            kind @ (TransactionKind::Usage | TransactionKind::Correction) => {
                if kind == TransactionKind::Usage && month.is_none() {
                    self.usage.add(account, units);
                } else {
                    let month = month.unwrap_or(self.month);
                    self.corrections.entry(month).or_default().add(account, units);
                }
            }
        }
    }

    /// The months of the calls of these lines, for calls of other months.
    fn calls_of_other_months(
        &self,
        conn: &mut Conn,
        lines: &[TransactionRow],
    ) -> Result<HashMap<Id<RequestId>, Month>, StoreError> {
        let within = self.calls_within();
        let ids = lines.iter().filter_map(|line| line.request_id);
        let ids: BTreeSet<_> = ids.filter(|id| !within.contains(id)).collect();
        let ids = Vec::from_iter(ids);
        let rows = dialect::requests(conn, self.customer.merchant_id, &ids, RowLock::No)?;
        let rows: HashMap<_, _> =
            rows.into_iter().map(|row| (row.request_id, time(row.created_at))).collect();
        let others = ids.into_iter().filter_map(|id| {
            // A call whose record is in the archive was made when its id was.
            let at = rows.get(&id).copied().unwrap_or_else(|| id.get().created_at());
            let is_other = !self.range.contains(&at);
            is_other.then(|| (id, Month::of(at, self.zone)))
        });
        Ok(others.collect())
    }

    /// The ids of calls that were surely made in the month. The id of a call begins with its time.
    fn calls_within(&self) -> Range<Id<RequestId>> {
        let from = self.range.start.plus_millis(CLOCK_DIFFERENCE_MS);
        let past = self.range.end.plus_millis(-CLOCK_DIFFERENCE_MS);
        Id(RequestId::least(from))..Id(RequestId::least(past))
    }

    /// Adds the sums of the month's calls, as they were settled first and in the month.
    fn read_usage(&mut self, conn: &mut Conn) -> Result<(), StoreError> {
        let CustomerAccount { merchant_id, connection_id, .. } = self.customer;
        let span = TimeSpan::of_month(self.month, self.zone.clone());
        self.by_model = usage::of_customer_by_model(conn, merchant_id, connection_id, &span)?;
        for row in self.changed_later(conn)? {
            let mut now = [row.clone()];
            records::correct(conn, &mut now)?;
            for row in &now {
                let (model, sums) = model_and_sums(row)?;
                let of_model = self.by_model.entry(model).or_default();
                *of_model = *of_model - sums;
            }
            // A call that was settled later is a correction of the later month.
            if row.settled_at.is_none_or(|at| time(at) < self.range.end) {
                let (model, sums) = model_and_sums(&row)?;
                *self.by_model.entry(model).or_default() += sums;
            }
        }
        self.by_model.retain(|_, sums| *sums != RollupSums::default());
        Ok(())
    }

    /// The records of the month's calls that were settled after the month or corrected, as they were settled first.
    fn changed_later(&self, conn: &mut Conn) -> Result<Vec<RequestRow>, StoreError> {
        let CustomerAccount { merchant_id, connection_id, .. } = self.customer;
        let from = Id(RequestId::least(self.range.start.plus_millis(-CLOCK_DIFFERENCE_MS)));
        let past = Id(RequestId::least(self.range.end.plus_millis(CLOCK_DIFFERENCE_MS)));
        let mut rows: Vec<RequestRow> = requests::table
            .filter(requests::merchant_id.eq(Id(merchant_id)))
            .filter(requests::connection_id.eq(Id(connection_id)))
            .filter(requests::request_id.ge(from))
            .filter(requests::request_id.lt(past))
            // The condition of the index. Months begin with a quarter hour.
            .filter(sql::<Bool>("settled_at / 900000000 <> created_at / 900000000"))
            .filter(requests::settled_at.ge(self.range.end.unix_micros()))
            .select(RequestRow::as_select())
            .load(conn)?;
        let corrected: Vec<Id<RequestId>> = corrections::table
            .filter(corrections::merchant_id.eq(Id(merchant_id)))
            .filter(corrections::request_id.ge(from))
            .filter(corrections::request_id.lt(past))
            .order(corrections::request_id)
            .select(corrections::request_id)
            .load(conn)?;
        let late: BTreeSet<_> = rows.iter().map(|row| row.request_id).collect();
        let corrected: Vec<_> = corrected.into_iter().filter(|id| !late.contains(id)).collect();
        rows.extend(dialect::requests(conn, merchant_id, &corrected, RowLock::No)?);
        rows.retain(|row| {
            row.connection_id == Some(Id(connection_id))
                && self.range.contains(&time(row.created_at))
        });
        Ok(rows)
    }

    fn statement(self, plan_charges: Vec<StatementCharge>) -> Statement {
        let count = |count: i128| u64::try_from(count).unwrap_or(u64::MAX);
        let by_model = self.by_model.into_iter().map(|(model, sums)| ModelUsage {
            model,
            requests: count(sums.requests),
            tokens: count(sums.tokens()),
            amount: sums.wallet_cost,
        });
        let mut usage_by_model: Vec<_> = by_model.collect();
        usage_by_model.sort_by(|one, other| {
            other.amount.cmp(&one.amount).then_with(|| one.model.cmp(&other.model))
        });
        let corrections = self.corrections.into_iter();
        let corrections_by_month: Vec<_> = corrections
            .map(|(month, AccountSums { balance, credit })| MonthCorrection {
                month,
                balance,
                credit,
            })
            .collect();
        Statement {
            month: self.month,
            start: self.range.start,
            end: self.range.end,
            opening_balance: self.opening.balance,
            credits: self.credits,
            debits: self.debits,
            usage: self.usage.balance,
            corrections: corrections_by_month.iter().map(|one| one.balance).sum(),
            closing_balance: self.opening.balance + self.moved.balance,
            credit: CreditSummary {
                opening: self.opening.credit,
                granted: self.granted,
                used: -self.usage.credit,
                corrected: corrections_by_month.iter().map(|one| one.credit).sum(),
                expired: self.expired,
                rolled_over: self.rolled_over,
                closing: self.opening.credit + self.moved.credit,
            },
            usage_by_model,
            corrections_by_month,
            plan_charges,
        }
    }
}

/// The model of a call, as the roll-ups have it, and its sums.
fn model_and_sums(row: &RequestRow) -> Result<(Option<String>, RollupSums), StoreError> {
    let record = row.to_record(None)?;
    let sums = RollupSums::of(&record);
    Ok((record.model.filter(|model| is_indexed(model)), sums))
}

/// The plan charges of a month, oldest first.
fn charges(
    conn: &mut Conn,
    wallet_id: WalletId,
    range: &Range<Timestamp>,
) -> Result<Vec<StatementCharge>, StoreError> {
    let rows: Vec<PlanChargeRow> = plan_charges::table
        .filter(plan_charges::wallet_id.eq(Id(wallet_id)))
        .filter(plan_charges::charged_at.ge(range.start.unix_micros()))
        .filter(plan_charges::charged_at.lt(range.end.unix_micros()))
        .order((plan_charges::charged_at, plan_charges::event_id))
        .select(PlanChargeRow::as_select())
        .load(conn)?;
    let charges = rows.into_iter().map(|row| {
        Ok(StatementCharge {
            charged_at: time(row.charged_at),
            kind: from_word("plan_charges.kind", &row.kind)?,
            subscription_id: row.subscription_id.get(),
            name: row.name,
            amount: Amount::from_units(row.amount),
        })
    });
    charges.collect()
}
