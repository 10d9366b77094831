//! The series that the migration `wider_series_and_settlement_times` has left to the program, for their ids are
//! computed.

use diesel::prelude::*;
use tollgate_domain::MerchantId;

use crate::conn::Conn;
use crate::dialect::SeriesPlace;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rollups::{CALLS, KnownSeries, RollupSums, Rollups, wider};
use crate::rows::{RollupRow, SeriesRow};
use crate::schema::{merchants, usage_rollups, usage_series};

/// The key of a row that a migration writes for a merchant without the series of fewer dimensions.
const INCOMPLETE: &str = ":incomplete";
/// The number of series that are read at once.
const SERIES_AT_ONCE: i64 = 1_000;
/// The number of sums that are written at once.
const SUMS_AT_ONCE: usize = 50_000;

/// Whether each merchant with calls has all series.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn are_complete(conn: &mut Conn) -> Result<bool, StoreError> {
    Ok(incomplete(conn)?.is_empty())
}

/// Adds up the series of fewer dimensions from those of all dimensions, where a migration has noted that they are
/// missing. Must be called while no process folds.
///
/// # Errors
/// [`StoreError`] when the database fails. The merchants that were done remain done.
pub(crate) fn complete(conn: &mut Conn) -> Result<(), StoreError> {
    for merchant_id in incomplete(conn)? {
        log::info!("the series of {} are added up", merchant_id.get());
        conn.write(|conn| complete_merchant(conn, merchant_id))?;
    }
    Ok(())
}

fn incomplete(conn: &mut Conn) -> Result<Vec<Id<MerchantId>>, StoreError> {
    let note = usage_series::table
        .filter(usage_series::merchant_id.eq(merchants::merchant_id))
        .filter(usage_series::key.eq(INCOMPLETE));
    let noted = merchants::table.filter(diesel::dsl::exists(note)).select(merchants::merchant_id);
    Ok(noted.load(conn)?)
}

fn complete_merchant(conn: &mut Conn, merchant_id: Id<MerchantId>) -> Result<(), StoreError> {
    // The rows are those of this transaction.
    let known = KnownSeries::default();
    let known = known.only_at(SeriesPlace::default());
    let mut rollups = Rollups::default();
    let mut after: Option<SeriesRow> = None;
    loop {
        let page = series_after(conn, merchant_id, after.as_ref())?;
        for series in &page {
            if series.key.starts_with(':') && series.key != CALLS {
                continue;
            }
            // All rows are sums of those of a quarter hour.
            let quarters: Vec<RollupRow> = usage_rollups::table
                .filter(usage_rollups::series_id.eq(series.series_id))
                .filter(usage_rollups::width.eq(1))
                .select(RollupRow::as_select())
                .load(conn)?;
            for wider in wider(series) {
                for row in &quarters {
                    rollups.add_sums(&wider, row.slot, RollupSums::from(row));
                }
            }
            if rollups.len() >= SUMS_AT_ONCE {
                std::mem::take(&mut rollups).write(conn, &known)?;
            }
        }
        match page.into_iter().next_back() {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    rollups.write(conn, &known)?;
    let note = usage_series::table
        .filter(usage_series::merchant_id.eq(merchant_id))
        .filter(usage_series::key.eq(INCOMPLETE));
    diesel::delete(note).execute(conn)?;
    Ok(())
}

/// The next series of a merchant, in the order of their primary key. The series that are added meanwhile are among
/// them.
fn series_after(
    conn: &mut Conn,
    merchant_id: Id<MerchantId>,
    after: Option<&SeriesRow>,
) -> Result<Vec<SeriesRow>, StoreError> {
    use usage_series::{key, series_id, value};
    let mut next = usage_series::table
        .filter(usage_series::merchant_id.eq(merchant_id))
        .order((key, value, series_id))
        .limit(SERIES_AT_ONCE)
        .select(SeriesRow::as_select())
        .into_boxed();
    if let Some(last) = after {
        // This is `(key, value, series_id) > (x, y, z)`, which diesel cannot express.
        let later = value.eq(&last.value).and(series_id.gt(last.series_id));
        let of_key = key.eq(&last.key).and(value.gt(&last.value).or(later));
        next = next.filter(key.ge(&last.key)).filter(key.gt(&last.key).or(of_key));
    }
    Ok(next.load(conn)?)
}
