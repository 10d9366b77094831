//! The ledger lines that leave with a month: those of usage whose records leave.
//!
//! Lines of other kinds stay, and so do those of the month's calls that were booked in another month.

use std::collections::{BTreeMap, HashSet};

use diesel::dsl::{exists, sql};
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Binary, Bool};
use tollgate_archive::{Manifest, MerchantSums, Sums, Table as _, decimal};
use tollgate_domain::{
    Id as _, LedgerAccount, MerchantId, RequestId, TransactionId, TransactionKind, WalletId,
};

use super::month::{MonthIds, RecordKey};
use super::pace::ReadPace;
use crate::archived::{RecordArchive, quarter_hour};
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{ArchivedLinesRow, TransactionRow, time};
use crate::schema::{
    archived_months, archived_transactions, breaking_migrations, merchants as merchants_table,
    transactions, wallets,
};
use crate::tables::merchants::present;

/// The breaking migration from which on lines leave. A program that does not know it would find gaps in wallets.
const MIGRATION: &str = "20261201000001";
/// The number of lines that are read at once, to be written.
const CHUNK: i64 = 500;

/// The place of a line: its wallet and its number.
pub(super) type LinePlace = (Id<WalletId>, i64);

/// The place before all lines.
pub(super) fn before_all() -> LinePlace {
    // No wallet has this id.
    (Id(WalletId::from_bytes([0; 16])), 0)
}

/// The lines whose ids are of a month. On PostgreSQL, they are in its partition.
macro_rules! lines_of {
    ($ids:expr) => {
        transactions::table
            .filter(transactions::transaction_id.ge(Id(TransactionId::least($ids.from))))
            .filter(transactions::transaction_id.lt(Id(TransactionId::least($ids.to))))
    };
}

/// Whether a line is of usage of a month, of one of its calls.
macro_rules! is_usage_of {
    ($ids:expr) => {{
        let calls = $ids.requests();
        transactions::kind
            .eq(EnumCode(TransactionKind::Usage))
            .and(transactions::created_at.ge($ids.from.unix_micros()))
            .and(transactions::created_at.lt($ids.to.unix_micros()))
            .and(transactions::request_id.ge(calls.start))
            .and(transactions::request_id.lt(calls.end))
    }};
}

/// The lines of usage of a month, of its calls.
macro_rules! usage_of {
    ($ids:expr) => {
        lines_of!($ids).filter(is_usage_of!($ids))
    };
}

/// Whether a line comes after a place.
macro_rules! is_after {
    ($place:expr) => {
        sql::<Bool>("(wallet_id, number) > (")
            .bind::<Binary, _>($place.0)
            .sql(", ")
            .bind::<BigInt, _>($place.1)
            .sql(")")
    };
}

/// The lines of merchants that leave with a month, in the order of the archive.
pub(super) struct LeavingLines<'a> {
    ids: MonthIds,
    /// The calls whose records stay.
    staying: &'a HashSet<Id<RequestId>>,
    /// The wallets to come of the current merchant. The last one is next.
    wallets: Vec<Id<WalletId>>,
}

impl<'a> LeavingLines<'a> {
    pub(super) const fn new(ids: MonthIds, staying: &'a HashSet<Id<RequestId>>) -> Self {
        Self { ids, staying, wallets: Vec::new() }
    }

    /// The next lines of a merchant after a place, and the place of the last one. There are none at the end of each wallet.
    /// The place is `None` at the end.
    pub(super) fn next(
        &mut self,
        conn: &mut Conn,
        merchant_id: MerchantId,
        after: Option<LinePlace>,
    ) -> Result<(Vec<TransactionRow>, Option<LinePlace>), StoreError> {
        if after.is_none() {
            self.wallets = wallets::table
                .filter(wallets::merchant_id.eq(Id(merchant_id)))
                .order(wallets::wallet_id.desc())
                .select(wallets::wallet_id)
                .load(conn)?;
        }
        let Some(wallet_id) = self.wallets.last().copied() else { return Ok((Vec::new(), None)) };
        let after = after.filter(|(of, _)| *of == wallet_id).map_or(0, |(_, number)| number);
        let mut lines: Vec<TransactionRow> = usage_of!(self.ids)
            .filter(transactions::wallet_id.eq(wallet_id))
            .filter(transactions::number.gt(after))
            .order(transactions::number)
            .limit(CHUNK)
            .select(TransactionRow::as_select())
            .load(conn)?;
        let last = lines.last().map(|line| line.number);
        if last.is_none() {
            self.wallets.pop();
        }
        lines.retain(|line| line.request_id.is_none_or(|id| !self.staying.contains(&id)));
        Ok((lines, Some((wallet_id, last.unwrap_or(after)))))
    }

    /// Whether the lines of the database have these sums.
    pub(super) fn have_sums(&self, conn: &mut Conn, sums: &Sums) -> Result<bool, StoreError> {
        const AT_ONCE: i64 = 5_000;
        type Row = (Id<WalletId>, i64, Id<MerchantId>, Option<Id<RequestId>>, i64);
        let mut found: BTreeMap<Id<MerchantId>, (u64, i128)> = BTreeMap::new();
        let (mut after, mut pace) = (before_all(), ReadPace::new());
        loop {
            pace.pause();
            let lines: Vec<Row> = usage_of!(self.ids)
                .filter(is_after!(after))
                .order((transactions::wallet_id, transactions::number))
                .limit(AT_ONCE)
                .select((
                    transactions::wallet_id,
                    transactions::number,
                    transactions::merchant_id,
                    transactions::request_id,
                    transactions::amount,
                ))
                .load(conn)?;
            let Some((wallet_id, number, ..)) = lines.last() else { break };
            after = (*wallet_id, *number);
            for (.., merchant_id, request_id, amount) in lines {
                if request_id.is_none_or(|id| !self.staying.contains(&id)) {
                    let (rows, sum) = found.entry(merchant_id).or_default();
                    *rows += 1;
                    *sum += i128::from(amount);
                }
            }
        }
        // A merchant that moves here has lines before it is here.
        let present = present(conn)?;
        found.retain(|merchant_id, _| present.contains(merchant_id));
        let is_same = |(merchant_id, (rows, amount)): (&Id<MerchantId>, &(u64, i128))| {
            let written = sums.get(&merchant_id.to_string());
            written.is_some_and(|MerchantSums { rows: written, amounts }| {
                rows == written && amounts.get("amount") == Some(&decimal(*amount))
            })
        };
        Ok(found.len() == sums.len() && found.iter().all(is_same))
    }
}

/// Whether the files of a month have its lines. Those that an older version wrote have none, and its lines stay.
pub(super) fn are_in(manifest: &Manifest) -> bool {
    manifest.sums.contains_key(TransactionRow::NAME)
}

/// Whether lines may leave, because no older program uses the database.
pub(super) fn may_leave(conn: &mut Conn) -> Result<bool, StoreError> {
    let known = breaking_migrations::table.find(MIGRATION);
    Ok(diesel::select(exists(known)).get_result(conn)?)
}

/// As [`are_in`], for a month that is in the archive.
pub(super) fn are_written(
    conn: &mut Conn,
    archive: &RecordArchive,
    ids: MonthIds,
) -> Result<bool, StoreError> {
    let month = ids.month.to_string();
    let digest: String =
        archived_months::table.find(&month).select(archived_months::manifest).first(conn)?;
    Ok(are_in(&*archive.files()?.manifest(&month, &digest)?))
}

/// The next lines of a month after a place, and whether they leave: those of usage whose records have left.
pub(super) fn lines_after(
    conn: &mut Conn,
    ids: MonthIds,
    after: LinePlace,
) -> Result<Vec<(TransactionRow, bool)>, StoreError> {
    // A merchant that moves here has lines before it is here.
    let is_present = transactions::merchant_id
        .eq_any(merchants_table::table.select(merchants_table::merchant_id));
    let lines: Vec<(TransactionRow, Option<bool>)> = lines_of!(ids)
        .filter(is_after!(after))
        .order((transactions::wallet_id, transactions::number))
        .limit(CHUNK)
        .select((TransactionRow::as_select(), is_usage_of!(ids).and(is_present)))
        .load(conn)?;
    let key = |line: &TransactionRow| {
        line.request_id.map(|request_id| RecordKey { merchant_id: line.merchant_id, request_id })
    };
    let of_usage = lines.iter().filter(|(_, is_usage)| *is_usage == Some(true));
    let keys: Vec<RecordKey> = of_usage.filter_map(|(line, _)| key(line)).collect();
    let found = ids.records(&keys).select(RecordKey::as_select()).load(conn)?;
    let found: HashSet<RecordKey> = found.into_iter().collect();
    let with_leaving = |(line, is_usage): (TransactionRow, Option<bool>)| {
        let leaves = is_usage == Some(true) && key(&line).is_some_and(|key| !found.contains(&key));
        (line, leaves)
    };
    Ok(lines.into_iter().map(with_leaving).collect())
}

/// Deletes lines that are in the archive, and writes their sums. The lines are in the order of wallets and numbers.
pub(super) fn replace(
    conn: &mut Conn,
    ids: MonthIds,
    lines: &[TransactionRow],
) -> Result<(), StoreError> {
    for group in LineGroup::of(conn, ids, lines)? {
        let replaced = archived_transactions::table
            .filter(archived_transactions::wallet_id.eq(group.wallet_id))
            .filter(archived_transactions::first_number.eq(group.first_number));
        diesel::delete(replaced).execute(conn)?;
        for row in group.rows(ids) {
            diesel::insert_into(archived_transactions::table).values(&row).execute(conn)?;
        }
        let left = usage_of!(ids)
            .filter(transactions::wallet_id.eq(group.wallet_id))
            .filter(transactions::number.ge(group.first_number))
            .filter(transactions::number.le(group.last_number));
        diesel::delete(left).execute(conn)?;
    }
    Ok(())
}

/// Consecutive lines of a wallet that have one row for each of their accounts.
pub(super) struct LineGroup {
    wallet_id: Id<WalletId>,
    merchant_id: Id<MerchantId>,
    first_number: i64,
    last_number: i64,
    created_at: i64,
    /// The sum of each account, and its last balance.
    accounts: BTreeMap<EnumCode<LedgerAccount>, (i64, i64)>,
}

impl LineGroup {
    /// The groups of lines. The first one may go on with a group that is in the database.
    fn of(
        conn: &mut Conn,
        ids: MonthIds,
        lines: &[TransactionRow],
    ) -> Result<Vec<Self>, StoreError> {
        let mut groups: Vec<Self> = Vec::new();
        for line in lines {
            if groups.is_empty() {
                groups.extend(Self::before(conn, ids, line)?);
            }
            Self::add_line(&mut groups, ids, line);
        }
        Ok(groups)
    }

    /// Adds the next line to the last group or, if that does not go on with it, to a new one.
    pub(super) fn add_line(groups: &mut Vec<Self>, ids: MonthIds, line: &TransactionRow) {
        match groups.last_mut().filter(|group| group.goes_on_with(ids, line)) {
            Some(group) => group.add(line),
            None => {
                let mut group = Self {
                    wallet_id: line.wallet_id,
                    merchant_id: line.merchant_id,
                    first_number: line.number,
                    last_number: line.number,
                    created_at: line.created_at,
                    accounts: BTreeMap::new(),
                };
                group.add(line);
                groups.push(group);
            }
        }
    }

    /// The group in the database that ends just before a line.
    fn before(
        conn: &mut Conn,
        ids: MonthIds,
        line: &TransactionRow,
    ) -> Result<Option<Self>, StoreError> {
        let mut rows: Vec<ArchivedLinesRow> = archived_transactions::table
            .filter(archived_transactions::wallet_id.eq(line.wallet_id))
            .filter(archived_transactions::first_number.lt(line.number))
            .order(archived_transactions::first_number.desc())
            .limit(ArchivedLinesRow::MOST_OF_GROUP)
            .select(ArchivedLinesRow::as_select())
            .load(conn)?;
        let month = ids.month.to_string();
        rows.retain(|row| row.last_number + 1 == line.number && row.month == month);
        let Some(first) = rows.first() else { return Ok(None) };
        let group = Self {
            wallet_id: first.wallet_id,
            merchant_id: first.merchant_id,
            first_number: first.first_number,
            last_number: first.last_number,
            created_at: first.created_at,
            accounts: rows
                .iter()
                .map(|row| (row.account, (row.amount, row.balance_after)))
                .collect(),
        };
        Ok(Some(group).filter(|group| group.goes_on_with(ids, line)))
    }

    fn goes_on_with(&self, ids: MonthIds, line: &TransactionRow) -> bool {
        self.wallet_id == line.wallet_id
            && self.last_number.checked_add(1) == Some(line.number)
            && part(ids, self.created_at) == part(ids, line.created_at)
    }

    fn add(&mut self, line: &TransactionRow) {
        self.last_number = line.number;
        let (amount, balance_after) = self.accounts.entry(line.account).or_default();
        *amount = amount.saturating_add(line.amount);
        *balance_after = line.balance_after;
    }

    pub(super) fn rows(&self, ids: MonthIds) -> impl Iterator<Item = ArchivedLinesRow> {
        let month = ids.month.to_string();
        self.accounts.iter().map(move |(account, (amount, balance_after))| ArchivedLinesRow {
            wallet_id: self.wallet_id,
            first_number: self.first_number,
            account: *account,
            last_number: self.last_number,
            merchant_id: self.merchant_id,
            month: month.clone(),
            amount: *amount,
            balance_after: *balance_after,
            created_at: self.created_at,
        })
    }
}

/// The part of a month in which a time is. A statement of any time zone has whole parts of it.
fn part(ids: MonthIds, at: i64) -> Option<i64> {
    const HOUR: i64 = 60 * 60 * 1_000;
    // The last zone begins a month 12 hours after UTC, and the first one ends it 14 hours before.
    let middle = ids.from.plus_millis(12 * HOUR)..ids.to.plus_millis(-14 * HOUR);
    (!middle.contains(&time(at))).then(|| quarter_hour(at))
}
