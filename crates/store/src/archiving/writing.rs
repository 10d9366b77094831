//! The files of a month: its rows are written and read back.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use diesel::prelude::*;
use tollgate_archive::{ArchiveError, Manifest, Sums, Table as _, decimal};
use tollgate_domain::{MerchantId, RefusalId, RequestId};

use super::lease;
use super::month::{MonthIds, merchants_in_order};
use super::pace::ReadPace;
use super::transactions::LeavingLines;
use crate::archived::{self, ArchivedRefusal, ArchivedRequest, ArchivedRow, RecordArchive};
use crate::archived_sums::OwnerSums;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::records;
use crate::requests::to_records;
use crate::rows::{ArchivedSumRow, RefusalRow, RequestRow, TransactionRow, from_json};
use crate::schema::{refusals, requests};
use crate::tables::repricings::repricing_totals;

/// The number of rows that are read at once.
const CHUNK: i64 = 500;

/// Writes the files of a month and its manifest, and compares them with the rows of the database.
///
/// `check` fails if another process may have begun to do the same.
///
/// Returns the manifest, its SHA-256, and the sums for the audit.
pub(super) fn write(
    conn: &mut Conn,
    archive: &RecordArchive,
    ids: MonthIds,
    check: impl Fn(&mut Conn) -> Result<(), StoreError>,
) -> Result<(Arc<Manifest>, String, Vec<ArchivedSumRow>), StoreError> {
    let files = archive.files()?;
    let month = ids.month.to_string();
    let database = lease::database_id(conn)?;
    let merchants = merchants_in_order(conn)?;
    let last = archived::months(conn)?.into_iter().next();
    let mut writer =
        files.begin(&month, &database, last.as_ref().map(|last| last.manifest.as_str()))?;
    // A folder that is not mounted, or another place, has no earlier month.
    let verify_place = || match &last {
        Some(last) => files.verify_manifest(&last.month, &last.manifest),
        None => Ok(()),
    };
    verify_place()?;
    if let Some(earlier) = files.earlier_manifest(&month, &database)? {
        // An attempt that did not end had the same rows. An older database must not replace a whole month.
        let sums = earlier.sums.get(ArchivedRow::NAME).cloned().unwrap_or_default();
        if !have_sums(conn, ids, &merchants, &sums)? {
            return Err(ArchiveError::OtherRows(format!("manifests/{month}.json")).into());
        }
    }
    let mut sums = OwnerSums::default();
    let mut staying = HashSet::new();
    // Rows are read and the lease is checked by turns.
    let shared = RefCell::new(conn);
    let mut pace = ReadPace::new();
    let may_write = || check(&mut shared.borrow_mut());
    let of = || merchants.iter().copied().collect();
    let read = |merchant_id, last| {
        pace.pause();
        read_requests(&mut shared.borrow_mut(), ids, merchant_id, last, &mut sums, &mut staying)
    };
    writer.write::<ArchivedRow, StoreError>(Rows::new(of(), read), may_write)?;
    let read = |merchant_id, last| {
        pace.pause();
        read_refusals(&mut shared.borrow_mut(), ids, merchant_id, last)
    };
    writer.write::<RefusalRow, StoreError>(Rows::new(of(), read), may_write)?;
    let mut lines = LeavingLines::new(ids, &staying);
    let read = |merchant_id, last| {
        pace.pause();
        lines.next(&mut shared.borrow_mut(), merchant_id, last)
    };
    writer.write::<TransactionRow, StoreError>(Rows::new(of(), read), may_write)?;
    let (manifest, digest) = writer.seal(may_write)?;
    let conn = shared.into_inner();
    let records = files.verify::<ArchivedRow>(&manifest, || pace.pause())?;
    files.verify::<RefusalRow>(&manifest, || pace.pause())?;
    let booked = files.verify::<TransactionRow>(&manifest, || pace.pause())?;
    if !have_sums(conn, ids, &merchants, &records)? || !lines.have_sums(conn, &booked)? {
        let why = "its sums are not those of the database";
        return Err(ArchiveError::damaged(format!("manifests/{month}.json"), why).into());
    }
    // The folder may have been unmounted meanwhile.
    verify_place()?;
    Ok((manifest, digest, sums.rows()))
}

/// The rows of a month, merchant by merchant.
struct Rows<T, L, F> {
    merchants: VecDeque<MerchantId>,
    /// The last id of the merchant that was read.
    last: Option<L>,
    rows: VecDeque<T>,
    /// Reads the next rows of a merchant, and returns the last id among them.
    read: F,
}

impl<T, L, F> Rows<T, L, F> {
    const fn new(merchants: VecDeque<MerchantId>, read: F) -> Self {
        Self { merchants, last: None, rows: VecDeque::new(), read }
    }
}

impl<T, L: Copy, F> Iterator for Rows<T, L, F>
where
    F: FnMut(MerchantId, Option<L>) -> Result<(Vec<T>, Option<L>), StoreError>,
{
    type Item = Result<T, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.pop_front() {
                return Some(Ok(row));
            }
            let merchant_id = *self.merchants.front()?;
            match (self.read)(merchant_id, self.last) {
                Ok((rows, last)) => {
                    if last.is_none() {
                        self.merchants.pop_front();
                    }
                    (self.rows, self.last) = (rows.into(), last);
                }
                Err(cause) => {
                    self.merchants.clear();
                    return Some(Err(cause));
                }
            }
        }
    }
}

fn read_requests(
    conn: &mut Conn,
    ids: MonthIds,
    merchant_id: MerchantId,
    last: Option<Id<RequestId>>,
    sums: &mut OwnerSums,
    staying: &mut HashSet<Id<RequestId>>,
) -> Result<(Vec<ArchivedRequest>, Option<Id<RequestId>>), StoreError> {
    let mut rows = ids.records_after(conn, merchant_id, last, CHUNK)?;
    let last = rows.last().map(|row| row.request_id);
    let stay: Vec<bool> = rows.iter().map(archived::stays).collect();
    let records = to_records(conn, rows.clone())?;
    records::correct(conn, &mut rows)?;
    let request_ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
    let repriced = repricing_totals(conn, [Id(merchant_id)], &request_ids)?;
    let mut written = Vec::with_capacity(rows.len());
    for ((row, stays), record) in rows.into_iter().zip(stay).zip(records) {
        if stays {
            staying.insert(row.request_id);
        } else {
            let more = repriced.get(&row.request_id).copied().unwrap_or_default();
            let costs = [
                row.wallet_cost.saturating_add(more.wallet_delta),
                row.merchant_cost.saturating_add(more.merchant_delta),
            ];
            sums.add(conn, &row, costs, record.quote.total_request_cost.units())?;
        }
        written.push(ArchivedRequest { row, stays, record });
    }
    Ok((written, last))
}

fn read_refusals(
    conn: &mut Conn,
    ids: MonthIds,
    merchant_id: MerchantId,
    last: Option<Id<RefusalId>>,
) -> Result<(Vec<ArchivedRefusal>, Option<Id<RefusalId>>), StoreError> {
    let range = ids.refusals();
    let mut query = refusals::table
        .filter(refusals::merchant_id.eq(Id(merchant_id)))
        .filter(refusals::refusal_id.ge(range.start))
        .filter(refusals::refusal_id.lt(range.end))
        .order(refusals::refusal_id)
        .limit(CHUNK)
        .select(RefusalRow::as_select())
        .into_boxed();
    if let Some(last) = last {
        query = query.filter(refusals::refusal_id.gt(last));
    }
    let rows: Vec<RefusalRow> = query.load(conn)?;
    let last = rows.last().map(|row| row.refusal_id);
    let written = rows.into_iter().map(|row| {
        let call = from_json("refusals.call", &row.call)?;
        Ok(ArchivedRefusal { row, call })
    });
    Ok((written.collect::<Result<_, StoreError>>()?, last))
}

/// Whether the records of a month have these sums.
fn have_sums(
    conn: &mut Conn,
    ids: MonthIds,
    merchants: &[MerchantId],
    sums: &Sums,
) -> Result<bool, StoreError> {
    let mut known = 0;
    for merchant_id in merchants {
        let found = sums.get(&merchant_id.to_string());
        known += usize::from(found.is_some());
        let found = found.cloned().unwrap_or_default();
        let (rows, wallet, merchant) = booked_sums(conn, ids, *merchant_id)?;
        let has = |column: &str, amount: i128| match found.amounts.get(column) {
            Some(found) => *found == decimal(amount),
            None => amount == 0,
        };
        if found.rows != rows
            || !has("booked_wallet_cost", wallet)
            || !has("booked_merchant_cost", merchant)
        {
            return Ok(false);
        }
    }
    Ok(known == sums.len())
}

/// The number of a merchant's records of a month, and what they cost wallets and the merchant when they were booked.
fn booked_sums(
    conn: &mut Conn,
    ids: MonthIds,
    merchant_id: MerchantId,
) -> Result<(u64, i128, i128), StoreError> {
    const AT_ONCE: i64 = 5_000;
    let range = ids.requests();
    let of_month = requests::table
        .filter(requests::merchant_id.eq(Id(merchant_id)))
        .filter(requests::request_id.ge(range.start))
        .filter(requests::request_id.lt(range.end));
    let (mut rows, mut wallet, mut merchant) = (0_u64, 0_i128, 0_i128);
    let (mut after, mut pace) = (None, ReadPace::new());
    loop {
        pace.pause();
        let mut query = of_month
            .order(requests::request_id)
            .limit(AT_ONCE)
            .select((
                requests::request_id,
                requests::swept,
                requests::wallet_cost,
                requests::merchant_cost,
            ))
            .into_boxed();
        if let Some(after) = after {
            query = query.filter(requests::request_id.gt(after));
        }
        let records: Vec<(Id<RequestId>, bool, i64, i64)> = query.load(conn)?;
        let Some((last, ..)) = records.last() else { break };
        after = Some(*last);
        let mut swept = Vec::new();
        for (request_id, is_swept, wallet_cost, merchant_cost) in records {
            rows += 1;
            if is_swept {
                swept.push(request_id);
            } else {
                wallet += i128::from(wallet_cost);
                merchant += i128::from(merchant_cost);
            }
        }
        if !swept.is_empty() {
            let swept = of_month.filter(requests::request_id.eq_any(swept));
            let mut swept: Vec<RequestRow> = swept.select(RequestRow::as_select()).load(conn)?;
            records::correct(conn, &mut swept)?;
            for row in swept {
                wallet += i128::from(row.wallet_cost);
                merchant += i128::from(row.merchant_cost);
            }
        }
    }
    Ok((rows, wallet, merchant))
}
