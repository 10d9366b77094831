//! Prices that calls needed and no list has: one event a UTC day for each merchant, provider and model.
//!
//! The table makes it one on all nodes. Callers choose the names of models, so a merchant gets at most [`MOST_A_DAY`]
//! of these events.

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

/// How many of these events a merchant gets on a day at most.
const MOST_A_DAY: usize = 100;
/// How many this process remembers, of all merchants; then it forgets them, which costs a few reads.
const REMEMBERED: usize = 20_000;
/// For how many days rows are kept: clocks of nodes may differ a little around midnight.
const KEPT_DAYS: i64 = 2;

/// Provider and model.
type Name = (String, String);

fn name(missing: &MissingPrice) -> Name {
    (missing.provider().to_owned(), missing.model().to_owned())
}

/// Writes the events that were not written today. Call it as the last thing of a write transaction: merchants are
/// taken in the order of their ids, and nothing is locked afterwards.
///
/// # Errors
/// Those of the store.
pub(crate) fn report(
    conn: &mut Conn,
    missing: impl IntoIterator<Item = (MerchantId, MissingPrice)>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut by_merchant: BTreeMap<MerchantId, BTreeMap<Name, MissingPrice>> = BTreeMap::new();
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
            events.push(EventRow::new(merchant_id, &missing.news(), now, now));
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
) -> Result<BTreeSet<Name>, StoreError> {
    let names: Vec<Name> = missing_prices::table
        .filter(missing_prices::merchant_id.eq(Id(merchant_id)))
        .filter(missing_prices::day.eq(day))
        .select((missing_prices::provider, missing_prices::model))
        .load(conn)?;
    Ok(names.into_iter().collect())
}

/// Forgets days that are over; how many rows.
///
/// # Errors
/// Those of the store.
pub(crate) fn forget_old(conn: &mut Conn, now: Timestamp) -> Result<usize, StoreError> {
    let oldest = now.days_since_1970().saturating_sub(KEPT_DAYS);
    let old = missing_prices::table.filter(missing_prices::day.lt(oldest));
    Ok(diesel::delete(old).execute(conn)?)
}

/// The events that this process has seen to today, so that calls which are refused again cost nothing.
#[derive(Default)]
pub(crate) struct ReportedPrices(Mutex<Known>);

#[derive(Default)]
struct Known {
    day: i64,
    names: HashMap<MerchantId, HashSet<Name>>,
    count: usize,
}

impl ReportedPrices {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is new today. It is not when asked again.
    pub(crate) fn is_first(
        &self,
        merchant_id: MerchantId,
        missing: &MissingPrice,
        now: Timestamp,
    ) -> bool {
        let today = now.days_since_1970();
        let mut known = self.known();
        if known.day != today || known.count > REMEMBERED {
            *known = Known { day: today, ..Known::default() };
        }
        let names = known.names.entry(merchant_id).or_default();
        let is_first = names.len() < MOST_A_DAY && names.insert(name(missing));
        known.count += usize::from(is_first);
        is_first
    }

    /// Forgets them: it may be another database, or an earlier state of this one.
    pub(crate) fn forget(&self) {
        *self.known() = Known::default();
    }
}
