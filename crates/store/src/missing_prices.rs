//! Prices that calls needed and no list has: told once per merchant, provider, model and UTC day.
//!
//! The table makes it once on all nodes. Callers choose the names of models, so a merchant is told of
//! no more than [`MOST_A_DAY`], and what this process knows to be settled for today costs the next
//! call nothing but a look into memory.

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

/// Of how many missing prices a merchant is told on a day at most.
const MOST_A_DAY: usize = 100;
/// How many this process remembers, of all merchants; then it begins anew, which costs a few reads.
const REMEMBERED: usize = 20_000;
/// How many wait at once to be told of calls that were refused.
const WAITING: usize = 256;
/// For how many days rows are kept: clocks of nodes may differ a little around midnight.
const KEPT_DAYS: i64 = 2;

/// What is to be told: of a merchant's provider and model the first one.
pub(crate) type Missing = BTreeMap<MerchantId, BTreeMap<Name, MissingPrice>>;

/// Provider and model.
type Name = (String, String);

fn name(missing: &MissingPrice) -> Name {
    (missing.provider().to_owned(), missing.model().to_owned())
}

/// Adds what is to be told; what is there already stays.
pub(crate) fn add(all: &mut Missing, merchant_id: MerchantId, missing: &MissingPrice) {
    all.entry(merchant_id).or_default().entry(name(missing)).or_insert_with(|| missing.clone());
}

/// Writes the events of what was not told today. Call it as the last thing of a write transaction:
/// merchants are taken in the order of their ids, and nothing is locked afterwards.
///
/// # Errors
/// Those of the store.
pub(crate) fn tell(conn: &mut Conn, all: &Missing, now: Timestamp) -> Result<(), StoreError> {
    let day = now.days_since_1970();
    for (merchant_id, missing) in all {
        let is_new = |told: &BTreeSet<Name>| {
            told.len() < MOST_A_DAY && missing.keys().any(|name| !told.contains(name))
        };
        if dialect::has_row_locks(conn) {
            if !is_new(&told_on(conn, *merchant_id, day)?) {
                continue;
            }
            // Only with nobody else about is the most really the most.
            dialect::lock_missing_prices(conn, *merchant_id)?;
        }
        let told = told_on(conn, *merchant_id, day)?;
        if !is_new(&told) {
            continue;
        }
        let room = MOST_A_DAY.saturating_sub(told.len());
        let fresh = missing.iter().filter(|(name, _)| !told.contains(name)).take(room);
        let (mut rows, mut events) = (Vec::new(), Vec::new());
        for ((provider, model), missing) in fresh {
            rows.push(MissingPriceRow {
                merchant_id: Id(*merchant_id),
                day,
                provider: provider.clone(),
                model: model.clone(),
            });
            events.push(EventRow::new(*merchant_id, &missing.news(), now, now));
        }
        dialect::insert_missing_prices(conn, &rows)?;
        dialect::insert_events(conn, &events)?;
    }
    Ok(())
}

fn told_on(
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

/// What this process knows to be told, and what waits to be.
#[derive(Default)]
pub(crate) struct Told(Mutex<Known>);

#[derive(Default)]
struct Known {
    day: i64,
    names: HashMap<MerchantId, HashSet<Name>>,
    count: usize,
    waiting: Missing,
    waiting_count: usize,
    /// Whether a writer is on its way to those that wait.
    awaited: bool,
}

impl Told {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing to tell any more: it was told today, or the merchant was told enough.
    pub(crate) fn is_told(
        &self,
        merchant_id: MerchantId,
        missing: &MissingPrice,
        now: Timestamp,
    ) -> bool {
        let known = self.known();
        known.day == now.days_since_1970() && known.has(merchant_id, &name(missing))
    }

    /// Learns of what a committed transaction has told or found to be told.
    pub(crate) fn learn(&self, all: Missing, now: Timestamp) {
        if all.is_empty() {
            return;
        }
        let mut known = self.known();
        let today = now.days_since_1970();
        if known.day != today || known.count > REMEMBERED {
            known.day = today;
            known.names.clear();
            known.count = 0;
        }
        for (merchant_id, missing) in all {
            known.count = known.count.saturating_add(missing.len());
            known.names.entry(merchant_id).or_default().extend(missing.into_keys());
        }
    }

    /// Forgets what it knows: it may be another database, or an earlier state of this one.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        known.names.clear();
        known.count = 0;
    }

    /// Lets something wait to be told; whether a writer has to be sent for it.
    pub(crate) fn wait(&self, merchant_id: MerchantId, missing: &MissingPrice) -> bool {
        let mut known = self.known();
        if known.waiting_count < WAITING {
            add(&mut known.waiting, merchant_id, missing);
            known.waiting_count = known.waiting.values().map(BTreeMap::len).sum();
        }
        !std::mem::replace(&mut known.awaited, true)
    }

    /// Takes all that waits: who comes from now on sends another writer.
    pub(crate) fn take_waiting(&self) -> Missing {
        let mut known = self.known();
        known.awaited = false;
        known.waiting_count = 0;
        std::mem::take(&mut known.waiting)
    }
}

impl Known {
    fn has(&self, merchant_id: MerchantId, name: &Name) -> bool {
        let names = self.names.get(&merchant_id);
        names.is_some_and(|names| names.len() >= MOST_A_DAY || names.contains(name))
    }
}
