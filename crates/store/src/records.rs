//! The records of settled calls, with their corrections.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{MerchantId, RequestId};

use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{CorrectionRow, RequestRow};
use crate::schema::{corrections, requests};

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

/// A walk through the records of all merchants, one merchant after the other.
#[derive(Default)]
pub(crate) struct RecordWalk {
    /// The merchant and id of the last record.
    after: Option<(Id<MerchantId>, Id<RequestId>)>,
}

impl RecordWalk {
    /// Returns the next records. The list is empty at the end.
    pub(crate) fn next(
        &mut self,
        conn: &mut Conn,
        most: i64,
    ) -> Result<Vec<RequestRow>, StoreError> {
        let mut next = requests::table
            .order((requests::merchant_id, requests::request_id))
            .limit(most)
            .select(RequestRow::as_select())
            .into_boxed();
        if let Some((merchant_id, request_id)) = self.after {
            let of_merchant =
                requests::merchant_id.eq(merchant_id).and(requests::request_id.gt(request_id));
            // This is `(merchant_id, request_id) > (x, y)`, which diesel cannot express.
            next = next
                .filter(requests::merchant_id.ge(merchant_id))
                .filter(requests::merchant_id.gt(merchant_id).or(of_merchant));
        }
        let mut rows: Vec<RequestRow> = next.load(conn)?;
        if let Some(last) = rows.last() {
            self.after = Some((last.merchant_id, last.request_id));
        }
        correct(conn, &mut rows)?;
        Ok(rows)
    }
}
