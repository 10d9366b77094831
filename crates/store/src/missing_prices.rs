//! Missing prices: one event a UTC day for each merchant, provider and model.
//!
//! The table makes it one for all nodes. Callers choose the names of models, so a merchant gets at most
//! [`MOST_A_DAY`] of these events.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use diesel::prelude::*;
use tollgate_domain::{MerchantId, MissingPrice, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::{EventRow, MissingPriceRow};
use crate::schema::missing_prices;

/// The most of these events that a merchant gets on a day.
const MOST_A_DAY: usize = 100;
/// The number that this process remembers, of all merchants. Above it, it forgets all; that costs a few
/// reads.
const REMEMBERED: usize = 20_000;
/// The number of days for which rows are kept. Clocks of nodes may differ a little around midnight.
const KEPT_DAYS: i64 = 2;

/// Provider and model.
type ProviderModel = (String, String);

fn name(missing: &MissingPrice) -> ProviderModel {
    (missing.provider().to_owned(), missing.model().to_owned())
}

/// Writes the events that were not written today. Call it last in a write transaction.
///
/// Merchants are locked in the order of their ids, and nothing may be locked afterwards.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn report(
    conn: &mut Conn,
    missing: impl IntoIterator<Item = (MerchantId, MissingPrice)>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut by_merchant: BTreeMap<MerchantId, BTreeMap<ProviderModel, MissingPrice>> =
        BTreeMap::new();
    for (merchant_id, missing) in missing {
        by_merchant.entry(merchant_id).or_default().entry(name(&missing)).or_insert(missing);
    }
    let day = now.days_since_1970();
    for (merchant_id, missing) in by_merchant {
        dialect::lock_missing_prices(conn, merchant_id)?;
        let reported = reported_on(conn, merchant_id, day)?;
        let room = MOST_A_DAY.saturating_sub(reported.len());
        let fresh = missing.into_iter().filter(|(name, _)| !reported.contains(name)).take(room);
        let (mut rows, mut events) = (Vec::new(), Vec::new());
        for ((provider, model), missing) in fresh {
            rows.push(MissingPriceRow { merchant_id: Id(merchant_id), day, provider, model });
            events.push(EventRow::new(merchant_id, &missing.event_payload(), now, now));
        }
        if !rows.is_empty() {
            dialect::insert_missing_prices(conn, &rows)?;
            dialect::insert_events(conn, &events)?;
        }
    }
    Ok(())
}

fn reported_on(
    conn: &mut Conn,
    merchant_id: MerchantId,
    day: i64,
) -> Result<BTreeSet<ProviderModel>, StoreError> {
    let names: Vec<ProviderModel> = missing_prices::table
        .filter(missing_prices::merchant_id.eq(Id(merchant_id)))
        .filter(missing_prices::day.eq(day))
        .select((missing_prices::provider, missing_prices::model))
        .load(conn)?;
    Ok(names.into_iter().collect())
}

/// Deletes the rows of past days. Returns their number.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn forget_old(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let oldest = now.days_since_1970().saturating_sub(KEPT_DAYS);
    let old = missing_prices::table.filter(missing_prices::day.lt(oldest));
    Ok(diesel::delete(old).execute(conn)?)
}

/// The events that this process has reported today. A call that is refused again costs no query.
#[derive(Default)]
pub(crate) struct ReportedPrices(Mutex<ReportedToday>);

#[derive(Default)]
struct ReportedToday {
    day: i64,
    names: HashMap<MerchantId, HashSet<ProviderModel>>,
    count: usize,
}

impl ReportedPrices {
    fn known(&self) -> MutexGuard<'_, ReportedToday> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a missing price is new today. Later calls return false.
    pub(crate) fn is_first(
        &self,
        merchant_id: MerchantId,
        missing: &MissingPrice,
        now: Timestamp,
    ) -> bool {
        let today = now.days_since_1970();
        let mut known = self.known();
        if known.day != today || known.count > REMEMBERED {
            *known = ReportedToday { day: today, ..ReportedToday::default() };
        }
        let names = known.names.entry(merchant_id).or_default();
        let is_first = names.len() < MOST_A_DAY && names.insert(name(missing));
        known.count += usize::from(is_first);
        is_first
    }

    /// Forgets all of them: the database may be another one, or an earlier state of this one.
    pub(crate) fn forget(&self) {
        *self.known() = ReportedToday::default();
    }
}
