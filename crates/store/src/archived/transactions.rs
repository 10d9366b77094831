//! Ledger lines that are in the archive.
//!
//! Consecutive lines of a wallet leave the database as a group. A row with the sum of each account takes their place. So a
//! line is either here or in the archive, and the numbers of a wallet have no gap.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Binary, Bool, SmallInt};
use tollgate_archive::{ArchiveError, Selection};
use tollgate_domain::{LedgerAccount, WalletId};

use super::columns::line_id;
use super::{RecordArchive, SharedArchive};
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{ArchivedLinesRow, TransactionRow};
use crate::schema::{archived_months, archived_transactions};

/// The number of rows that are read at once.
const CHUNK: i64 = 1_000;

/// The group of a wallet that has a line with this number, or else the next one: the number and the time of its first line.
pub(crate) fn group_from(
    conn: &mut Conn,
    wallet_id: Id<WalletId>,
    number: i64,
) -> Result<Option<(i64, i64)>, StoreError> {
    let of_wallet = archived_transactions::table
        .filter(archived_transactions::wallet_id.eq(wallet_id))
        .select((
            archived_transactions::first_number,
            archived_transactions::created_at,
            archived_transactions::last_number,
        ));
    let before: Option<(i64, i64, i64)> = of_wallet
        .filter(archived_transactions::first_number.le(number))
        .order(archived_transactions::first_number.desc())
        .first(conn)
        .optional()?;
    let found = match before.filter(|(.., last)| *last >= number) {
        Some(found) => Some(found),
        None => of_wallet
            .filter(archived_transactions::first_number.gt(number))
            .order(archived_transactions::first_number)
            .first(conn)
            .optional()?,
    };
    Ok(found.map(|(first, at, _)| (first, at)))
}

/// The groups of a wallet's lines that have numbers in this range. The least number comes first.
pub(crate) fn groups_of_wallet(
    conn: &mut Conn,
    wallet_id: Id<WalletId>,
    numbers: Range<i64>,
) -> Result<Vec<ArchivedLinesRow>, StoreError> {
    let Some((first, _)) = group_from(conn, wallet_id, numbers.start)? else {
        return Ok(Vec::new());
    };
    Ok(archived_transactions::table
        .filter(archived_transactions::wallet_id.eq(wallet_id))
        .filter(archived_transactions::first_number.ge(first))
        .filter(archived_transactions::first_number.lt(numbers.end))
        .order((archived_transactions::first_number, archived_transactions::account))
        .select(ArchivedLinesRow::as_select())
        .load(conn)?)
}

/// A wallet's lines that are in the archive and have numbers in this range: the `most` greatest ones, in any order.
pub(crate) fn of_wallet(
    conn: &mut Conn,
    archive: &RecordArchive,
    wallet_id: Id<WalletId>,
    numbers: Range<i64>,
    most: usize,
) -> Result<Vec<TransactionRow>, StoreError> {
    let mut lines: Vec<TransactionRow> = Vec::new();
    let groups = last_groups(conn, wallet_id, &numbers, most)?;
    let Some(merchant_id) = groups.first().map(|group| group.merchant_id) else {
        return Ok(lines);
    };
    let Some(SharedArchive { archive, turns }) = archive.shared()? else { return Ok(lines) };
    let _turn = turns.take()?;
    // The wanted numbers of each month, the greatest first. Groups of a month may alternate with those of the next one.
    let mut months: BTreeMap<&str, Vec<Range<i64>>> = BTreeMap::new();
    let mut rest = i64::try_from(most).unwrap_or(i64::MAX);
    for ArchivedLinesRow { first_number, last_number, month, .. } in &groups {
        if rest == 0 {
            break;
        }
        let past = last_number.saturating_add(1).min(numbers.end);
        let first = (*first_number).max(numbers.start).max(past.saturating_sub(rest));
        rest = rest.saturating_sub(past.saturating_sub(first));
        months.entry(month).or_default().push(first..past);
    }
    for (month, wanted) in months {
        let digest: String =
            archived_months::table.find(month).select(archived_months::manifest).first(conn)?;
        let manifest = archive.manifest(month, &digest)?;
        let selection = Selection {
            from: wanted.last().map(|numbers| line_id(wallet_id, numbers.start)),
            below: wanted.first().map(|numbers| line_id(wallet_id, numbers.end)),
            ..Selection::of(merchant_id.get().to_string())
        };
        let mut walk = archive.descending::<TransactionRow>(manifest, &selection);
        let mut found = BTreeMap::new();
        while let Some(part) = walk.next_part(usize::MAX)? {
            let is_wanted =
                |line: &TransactionRow| wanted.iter().any(|numbers| numbers.contains(&line.number));
            let lines = part.rows.into_iter().filter(is_wanted);
            found.extend(lines.map(|line| (line.number, line)));
        }
        for number in wanted.into_iter().flatten() {
            let lacks = || {
                let why = format!("it lacks {}", line_id(wallet_id, number));
                ArchiveError::damaged(format!("transactions/month={month}"), why)
            };
            lines.push(found.remove(&number).ok_or_else(lacks)?);
        }
    }
    Ok(lines)
}

/// The groups of a wallet's lines that have numbers in this range, the greatest first: enough for `most` lines. One row for
/// each.
fn last_groups(
    conn: &mut Conn,
    wallet_id: Id<WalletId>,
    numbers: &Range<i64>,
    most: usize,
) -> Result<Vec<ArchivedLinesRow>, StoreError> {
    let rows = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = rows.saturating_mul(ArchivedLinesRow::MOST_OF_GROUP);
    let mut groups: Vec<ArchivedLinesRow> = archived_transactions::table
        .filter(archived_transactions::wallet_id.eq(wallet_id))
        .filter(archived_transactions::first_number.lt(numbers.end))
        .order(archived_transactions::first_number.desc())
        .limit(rows)
        .select(ArchivedLinesRow::as_select())
        .load(conn)?;
    groups.retain(|row| row.last_number >= numbers.start);
    groups.dedup_by_key(|row| row.first_number);
    Ok(groups)
}

/// A walk through the rows of all wallets, in the order of wallets and numbers.
#[derive(Default)]
pub(crate) struct ArchivedLinesWalk {
    /// The key of the last row that was read.
    after: Option<(Id<WalletId>, i64, EnumCode<LedgerAccount>)>,
    rows: VecDeque<ArchivedLinesRow>,
    is_at_end: bool,
}

impl ArchivedLinesWalk {
    /// The next row, if its lines come before this line, or if no line is left.
    pub(crate) fn next_before(
        &mut self,
        conn: &mut Conn,
        line: Option<(Id<WalletId>, i64)>,
    ) -> Result<Option<ArchivedLinesRow>, StoreError> {
        if self.rows.is_empty() && !self.is_at_end {
            self.read(conn)?;
        }
        let is_before = |row: &ArchivedLinesRow| {
            line.is_none_or(|line| (row.wallet_id, row.first_number) < line)
        };
        Ok(self.rows.front().is_some_and(is_before).then(|| self.rows.pop_front()).flatten())
    }

    fn read(&mut self, conn: &mut Conn) -> Result<(), StoreError> {
        let mut next = archived_transactions::table
            .order((
                archived_transactions::wallet_id,
                archived_transactions::first_number,
                archived_transactions::account,
            ))
            .limit(CHUNK)
            .select(ArchivedLinesRow::as_select())
            .into_boxed();
        if let Some((wallet_id, first_number, account)) = self.after {
            let is_after = sql::<Bool>("(wallet_id, first_number, account) > (")
                .bind::<Binary, _>(wallet_id)
                .sql(", ")
                .bind::<BigInt, _>(first_number)
                .sql(", ")
                .bind::<SmallInt, _>(account)
                .sql(")");
            next = next.filter(is_after);
        }
        let rows: Vec<ArchivedLinesRow> = next.load(conn)?;
        match rows.last() {
            Some(last) => self.after = Some((last.wallet_id, last.first_number, last.account)),
            None => self.is_at_end = true,
        }
        self.rows = rows.into();
        Ok(())
    }
}

/// Calls `each` with the ledger lines that are in the archive and not here, in parts.
pub(crate) fn each_line_part(
    conn: &mut Conn,
    archive: &RecordArchive,
    most: usize,
    mut each: impl FnMut(Vec<TransactionRow>),
) -> Result<(), StoreError> {
    for month in super::months(conn)? {
        // Until the lines of a month have left, its files also have those that are still here.
        let left = match month.transactions_deleted_at {
            Some(_) => None,
            None => Some(groups_of_month(conn, &month.month)?),
        };
        let has_left = |line: &TransactionRow| {
            let Some(groups) = &left else { return true };
            let group = groups.range(..=(line.wallet_id, line.number)).next_back();
            group.is_some_and(|((wallet_id, _), last)| {
                *wallet_id == line.wallet_id && line.number <= *last
            })
        };
        let files = archive.files()?;
        let manifest = files.manifest(&month.month, &month.manifest)?;
        let mut lines = files.ascending::<TransactionRow>(manifest, None);
        let mut part = Vec::new();
        while let Some(line) = lines.next_row()? {
            if has_left(&line) {
                part.push(line);
            }
            if part.len() >= most {
                each(std::mem::take(&mut part));
            }
        }
        each(part);
    }
    Ok(())
}

/// The last numbers of the groups of a month, by wallet and first number.
fn groups_of_month(
    conn: &mut Conn,
    month: &str,
) -> Result<BTreeMap<(Id<WalletId>, i64), i64>, StoreError> {
    let rows: Vec<(Id<WalletId>, i64, i64)> = archived_transactions::table
        .filter(archived_transactions::month.eq(month))
        .select((
            archived_transactions::wallet_id,
            archived_transactions::first_number,
            archived_transactions::last_number,
        ))
        .load(conn)?;
    Ok(rows.into_iter().map(|(wallet_id, first, last)| ((wallet_id, first), last)).collect())
}
