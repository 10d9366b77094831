//! The records of settled calls, with their corrections.

use std::collections::{BTreeSet, HashMap};

use diesel::dsl::sql;
use diesel::prelude::*;
use diesel::sql_types::{Binary, Bool};
use tollgate_domain::{MerchantId, RequestId};

use crate::archived::ArchivedUntil;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{CorrectionRow, RequestRow};
use crate::schema::{corrections, requests};
use crate::tables::merchants;

/// Applies corrections to the records of swept calls that were settled later.
pub(crate) fn correct(conn: &mut Conn, rows: &mut [RequestRow]) -> Result<(), StoreError> {
    let swept = rows.iter_mut().filter(|row| row.swept);
    let mut swept: HashMap<_, _> =
        swept.map(|row| ((row.merchant_id, row.request_id), row)).collect();
    if swept.is_empty() {
        return Ok(());
    }
    let merchant_ids = swept.keys().map(|(merchant_id, _)| *merchant_id);
    let request_ids = swept.keys().map(|(_, request_id)| *request_id);
    let found: Vec<CorrectionRow> = corrections::table
        .filter(corrections::merchant_id.eq_any(merchant_ids))
        .filter(corrections::request_id.eq_any(request_ids))
        .select(CorrectionRow::as_select())
        .load(conn)?;
    for correction in found {
        let key = (correction.merchant_id, correction.request_id);
        if let Some(row) = swept.remove(&key) {
            row.correct(correction);
        }
    }
    Ok(())
}

/// A walk through the records of all merchants, one merchant after the other. It passes over those of a merchant that moves
/// here and is not here yet.
#[derive(Default)]
pub(crate) struct RecordWalk {
    /// The merchants. Absent before the first records.
    merchants: Option<BTreeSet<Id<MerchantId>>>,
    /// The merchant and id of the last record.
    after: Option<(Id<MerchantId>, Id<RequestId>)>,
    /// The end of the months that are in the archive.
    until: Option<ArchivedUntil>,
}

/// A part of a walk, with the corrections of its records.
pub(crate) struct WalkedRecords {
    /// The records.
    pub(crate) rows: Vec<RequestRow>,
    /// Whether the walk is at its end.
    pub(crate) is_last: bool,
}

impl RecordWalk {
    /// A walk that passes over records that are in the archive.
    pub(crate) fn until(until: Option<ArchivedUntil>) -> Self {
        Self { until, ..Self::default() }
    }

    /// Returns the next records.
    pub(crate) fn next(&mut self, conn: &mut Conn, most: i64) -> Result<WalkedRecords, StoreError> {
        let mut next = requests::table
            .order((requests::merchant_id, requests::request_id))
            .limit(most)
            .select(RequestRow::as_select())
            .into_boxed();
        if let Some((merchant_id, request_id)) = self.after {
            let is_after = sql::<Bool>("(merchant_id, request_id) > (")
                .bind::<Binary, _>(merchant_id)
                .sql(", ")
                .bind::<Binary, _>(request_id)
                .sql(")");
            next = next.filter(is_after);
        }
        let mut rows: Vec<RequestRow> = next.load(conn)?;
        if let Some(last) = rows.last() {
            self.after = Some((last.merchant_id, last.request_id));
        }
        let is_last = rows.is_empty();
        let merchants = match &mut self.merchants {
            Some(known) => known,
            unknown => unknown.insert(merchants::present(conn)?),
        };
        rows.retain(|row| merchants.contains(&row.merchant_id));
        rows.retain(|row| self.until.is_none_or(|until| !until.is_leaving(row)));
        correct(conn, &mut rows)?;
        Ok(WalkedRecords { rows, is_last })
    }
}
