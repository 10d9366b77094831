//! Repricings: settled calls are priced again at corrected prices, and the differences are booked.
//!
//! A walk reads the records, merchant by merchant and by their ids, without a transaction of its own.
//! Differences are written in small transactions. Each of them locks and reads its records and calculates
//! again, so it finds the changes of another operator or of a late settlement. Rows are locked in the usual
//! order, records before wallets.

use std::collections::BTreeSet;

use diesel::prelude::*;
use time::Date;
use tollgate_domain::repricing::{
    CostShares, RepricedCost, is_priced_by_list, price_again, reprice,
};
use tollgate_domain::{
    MerchantId, PendingRecord, RequestId, RequestRecord, Timestamp, TransactionKind, WalletId,
};
use tollgate_pricing::{Amount, AppliedPrices, ModelPattern, Overflow, PriceBook, PriceSource};

use crate::conn::Conn;
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::merchants::lock_here;
use crate::requests::to_records;
use crate::rows::{RepricingRow, RequestRow, to_json};
use crate::schema::requests;
use crate::store::Store;
use crate::subscriptions;
use crate::tables::merchants::{here, require_here};
use crate::tables::repricings::{RepricingTotals, repricing_totals};
use crate::write_set::{LedgerWallets, MovementReason, WriteSet, lock_wallets, out_of_range};

/// The number of records that are read at a time.
const READ: i64 = 1_000;
/// The most records that one transaction writes.
const WRITTEN: usize = 100;
/// The attempts of a transaction that lost a deadlock or found the database busy.
const ATTEMPTS: usize = 5;
/// The time past its last day at which the walk ends.
///
/// Ids grow with time, except when a clock is set back.
const SLACK_MILLIS: i64 = 24 * 60 * 60 * 1_000;

/// The records that are priced again. All given fields must match.
#[derive(Clone, Debug)]
pub struct RepricingScope {
    /// The first UTC day of their admission.
    pub from: Date,
    /// The last UTC day of their admission.
    pub to: Date,
    /// The provider.
    pub provider: Option<String>,
    /// A pattern of models, as the records name them.
    pub model: Option<ModelPattern>,
    /// The merchant.
    pub merchant_id: Option<MerchantId>,
}

/// A record that was priced again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repricing {
    /// The record.
    pub request_id: RequestId,
    /// Its merchant.
    pub merchant_id: MerchantId,
    /// Its provider.
    pub provider: String,
    /// Its model.
    pub model: Option<String>,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// The outcome.
    pub outcome: RepricingOutcome,
}

/// The outcome of pricing a record again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepricingOutcome {
    /// It costs the same.
    Same,
    /// There is no price for it. It stays as it is.
    NoPrice,
    /// The new cost is out of the range of an amount. It stays as it is.
    TooMuch,
    /// A balance would leave the range of an amount. Nothing was booked.
    OutOfRange(Box<RepricingChange>),
    /// It costs something else. The difference is booked, unless the run only looks.
    Differs(Box<RepricingChange>),
}

/// The difference that other prices make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepricingChange {
    /// The base cost by the record and its earlier repricings.
    pub base_before: Amount,
    /// The base cost by the new prices.
    pub base_after: Amount,
    /// The amount that each pays more. A negative amount is given back.
    pub more: CostShares,
    /// Whether the service charge stays, because its rate cannot be determined.
    pub service_charge_kept: bool,
    /// The new prices.
    pub applied: Vec<AppliedPrices>,
}

impl Store {
    /// Prices the records of `scope` again by `book`, at the prices of their days.
    ///
    /// Each result is passed to `tell`. Unless `only_look` is set, a difference is booked before it is
    /// passed. Calls in flight are skipped, and so are merchants that move to another cell or have moved there.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the scope names such a merchant, and others when the database fails. Differences that were passed
    /// as booked stay booked; another run finds the rest.
    pub async fn reprice(
        &self,
        scope: &RepricingScope,
        book: &PriceBook,
        only_look: bool,
        mut tell: impl FnMut(Repricing),
    ) -> Result<(), StoreError> {
        let closed_until =
            self.read(|conn| Ok::<_, StoreError>(dialect::closed_until(conn)?)).await?;
        let closed_until = Timestamp::from_unix_micros(closed_until);
        if Timestamp::at_midnight(scope.from) < closed_until {
            log::warn!(
                "records from before {} are in the archive, or leave for it, and are not priced again",
                closed_until.date()
            );
        }
        let merchants = match scope.merchant_id {
            Some(merchant_id) => {
                self.read(move |conn| require_here(conn, merchant_id)).await?;
                vec![merchant_id]
            }
            None => self.read(here).await?,
        };
        let first = RequestId::least(Timestamp::at_midnight(scope.from).max(closed_until));
        for merchant_id in merchants {
            match self.reprice_merchant(merchant_id, scope, first, book, only_look, &mut tell).await
            {
                Err(cause @ StoreError::Moved(_)) if scope.merchant_id.is_none() => {
                    log::warn!("other records of {merchant_id} are not priced again: {cause}");
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn reprice_merchant(
        &self,
        merchant_id: MerchantId,
        scope: &RepricingScope,
        first: RequestId,
        book: &PriceBook,
        only_look: bool,
        tell: &mut impl FnMut(Repricing),
    ) -> Result<(), StoreError> {
        let mut after = first;
        loop {
            let (asked, prices) = (scope.clone(), book.clone());
            let look = move |conn: &mut Conn| read_batch(conn, merchant_id, &asked, after, &prices);
            let step = self.read(look).await?;
            let (differing, rest): (Vec<_>, Vec<_>) = step
                .found
                .into_iter()
                .partition(|one| !only_look && matches!(one.outcome, RepricingOutcome::Differs(_)));
            rest.into_iter().for_each(&mut *tell);
            for together in differing.chunks(WRITTEN) {
                let ids = together.iter().map(|one| Id(one.request_id)).collect();
                let booked = self.book_repricings(merchant_id, ids, book).await?;
                booked.into_iter().for_each(&mut *tell);
            }
            match step.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn book_repricings(
        &self,
        merchant_id: MerchantId,
        ids: Vec<Id<RequestId>>,
        book: &PriceBook,
    ) -> Result<Vec<Repricing>, StoreError> {
        let mut attempt = 1;
        loop {
            let (ids, prices, now) = (ids.clone(), book.clone(), self.0.context.clock.now());
            match self.write(move |conn| book_batch(conn, merchant_id, &ids, &prices, now)).await {
                Err(cause) if cause.is_transient() && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }
}

/// A part of the walk.
struct RepricingBatch {
    found: Vec<Repricing>,
    /// The id after which the walk goes on; `None` at its end.
    next: Option<RequestId>,
}

fn read_batch(
    conn: &mut Conn,
    merchant_id: MerchantId,
    scope: &RepricingScope,
    after: RequestId,
    book: &PriceBook,
) -> Result<RepricingBatch, StoreError> {
    let mut rows: Vec<RequestRow> = requests::table
        .filter(requests::merchant_id.eq(Id(merchant_id)))
        .filter(requests::request_id.gt(Id(after)))
        .order(requests::request_id)
        .limit(READ)
        .select(RequestRow::as_select())
        .load(conn)?;
    let Some(last) = rows.last() else {
        return Ok(RepricingBatch { found: Vec::new(), next: None });
    };
    let next = last.request_id.get();
    let begin = Timestamp::at_midnight(scope.from).unix_micros();
    let end = scope.to.next_day().map(Timestamp::at_midnight);
    let end = end.unwrap_or(Timestamp::from_unix_micros(i64::MAX));
    let goes_on = i64::try_from(rows.len()).is_ok_and(|count| count == READ)
        && last.created_at < end.plus_millis(SLACK_MILLIS).unix_micros();
    rows.retain(|row| (begin..end.unix_micros()).contains(&row.created_at));
    let ids: Vec<_> = rows.iter().map(|row| row.request_id).collect();
    let earlier = repricing_totals(conn, [Id(merchant_id)], &ids)?;
    let records = to_records(conn, rows.clone())?;
    let mut found = Vec::new();
    for (row, record) in rows.iter().zip(records) {
        let is_asked_for = scope.provider.as_ref().is_none_or(|name| *name == record.provider)
            && scope.model.as_ref().is_none_or(|pattern| {
                record.model.as_ref().is_some_and(|model| pattern.matches(model))
            });
        if is_asked_for && is_priced_by_list(&record) {
            let earlier = earlier.get(&row.request_id).copied().unwrap_or_default();
            let outcome = compute_outcome(&row.call()?, &record, earlier, book);
            found.push(repricing(record, outcome));
        }
    }
    Ok(RepricingBatch { found, next: goes_on.then_some(next) })
}

fn repricing(record: RequestRecord, outcome: RepricingOutcome) -> Repricing {
    Repricing {
        request_id: record.request_id,
        merchant_id: record.merchant_id,
        provider: record.provider,
        model: record.model,
        created_at: record.created_at,
        outcome,
    }
}

/// The difference between a record with its earlier repricings and its cost by `book`.
fn compute_outcome(
    pending: &PendingRecord,
    record: &RequestRecord,
    earlier: RepricingTotals,
    book: &PriceBook,
) -> RepricingOutcome {
    let reckoned = || -> Result<RepricingOutcome, Overflow> {
        let priced = price_again(pending, record, book)?;
        if priced.source == PriceSource::Unpriced {
            return Ok(RepricingOutcome::NoPrice);
        }
        let base_before = match earlier.base {
            Some(units) => Amount::from_units(units),
            None => record.priced.base.total()?,
        };
        let base_after = priced.base.total()?;
        let RepricedCost { shares, service_charge_kept } = reprice(pending, record, priced.base)?;
        let more = shares.minus(CostShares::of(record).plus(earlier.shares())?)?;
        if base_before == base_after && more.is_nothing() {
            return Ok(RepricingOutcome::Same);
        }
        let applied = priced.applied;
        let change =
            RepricingChange { base_before, base_after, more, service_charge_kept, applied };
        Ok(RepricingOutcome::Differs(Box::new(change)))
    };
    reckoned().unwrap_or(RepricingOutcome::TooMuch)
}

/// Prices records of a merchant again and books the differences; `ids` ascend.
fn book_batch(
    conn: &mut Conn,
    merchant_id: MerchantId,
    ids: &[Id<RequestId>],
    book: &PriceBook,
    now: Timestamp,
) -> Result<Vec<Repricing>, StoreError> {
    lock_here(conn, merchant_id)?;
    // A month that is closed meanwhile has sums already.
    let closed_until = Timestamp::from_unix_micros(dialect::closed_until(conn)?);
    let closed = Id(RequestId::least(closed_until));
    let ids = ids.get(ids.partition_point(|id| *id < closed)..).unwrap_or_default();
    let rows = dialect::requests(conn, merchant_id, ids, RowLock::Rows)?;
    let records = to_records(conn, rows.clone())?;
    let earlier = repricing_totals(conn, [Id(merchant_id)], ids)?;
    let mut reckoned = Vec::with_capacity(rows.len());
    let mut wallet_ids = BTreeSet::new();
    for (row, record) in rows.iter().zip(records) {
        let earlier = earlier.get(&row.request_id).copied().unwrap_or_default();
        let outcome = match is_priced_by_list(&record) {
            true => compute_outcome(&row.call()?, &record, earlier, book),
            false => RepricingOutcome::Same,
        };
        if let RepricingOutcome::Differs(change) = &outcome {
            let moves = wallet_adjustments(row, change.more);
            wallet_ids.extend(moves.iter().map(|one| one.wallet_id));
        }
        reckoned.push((row, earlier.number.saturating_add(1), repricing(record, outcome)));
    }
    // Cycles that have ended are booked first, so that the lines of a wallet are in the order of their times.
    subscriptions::renew(conn, &Vec::from_iter(wallet_ids.iter().copied()), now)?;
    let mut books = RepricingWriteSet {
        wallets: lock_wallets(conn, wallet_ids)?,
        changes: WriteSet::new(now),
        rows: Vec::new(),
    };
    let mut done = Vec::with_capacity(reckoned.len());
    for (row, number, mut one) in reckoned {
        if let RepricingOutcome::Differs(change) = &one.outcome
            && !books.book(row, number, change, now)?
        {
            one.outcome = RepricingOutcome::OutOfRange(change.clone());
        }
        done.push(one);
    }
    books.write(conn)?;
    Ok(done)
}

/// An amount that a wallet pays more.
struct WalletAdjustment {
    wallet_id: WalletId,
    part: &'static str,
    more: Amount,
}

fn wallet_adjustments(row: &RequestRow, more: CostShares) -> Vec<WalletAdjustment> {
    let wallet_id = row.wallet_id.map(Id::get);
    let merchants = row.merchant_wallet_id.get();
    let wallet = wallet_id.map(|wallet_id| WalletAdjustment {
        wallet_id,
        part: "wallet",
        more: more.wallet,
    });
    let merchant = WalletAdjustment { wallet_id: merchants, part: "merchant", more: more.merchant };
    let moves = wallet.into_iter().chain([merchant]);
    moves.filter(|one| !one.more.is_zero()).collect()
}

/// The changes of a transaction: read under lock, changed in memory, written back once.
struct RepricingWriteSet {
    wallets: LedgerWallets,
    changes: WriteSet,
    rows: Vec<RepricingRow>,
}

impl RepricingWriteSet {
    /// Books a change if the balances have room for it. Otherwise changes nothing and returns false.
    fn book(
        &mut self,
        row: &RequestRow,
        number: i32,
        change: &RepricingChange,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let moves = wallet_adjustments(row, change.more);
        let has_room = |one: &WalletAdjustment| {
            let balance = self.wallets.get(&one.wallet_id).map(|locked| locked.wallet.balance);
            let mut on_same = moves.iter().filter(|other| other.wallet_id == one.wallet_id);
            // The lines are booked one after the other, and each must leave a balance in range.
            let after = on_same.try_fold(balance.unwrap_or_default(), |balance, other| {
                balance.checked_sub(other.more)
            });
            after.is_ok()
        };
        if !moves.iter().all(has_room) {
            return Ok(false);
        }
        let request_id = row.request_id.get();
        for one in &moves {
            let id = one.wallet_id;
            let Some(locked) = self.wallets.get_mut(&id) else {
                return Err(StoreError::missing("wallet", id));
            };
            let reason = MovementReason {
                kind: TransactionKind::Correction,
                request_id: Some(request_id),
                description: Some("repriced"),
                idempotency_key: Some(format!("repricing:{request_id}:{number}:{}", one.part)),
            };
            let booked = self.changes.move_balance(locked, -one.more, reason)?;
            booked.ok_or_else(|| out_of_range("wallet", id))?;
        }
        self.rows.push(RepricingRow {
            merchant_id: row.merchant_id,
            request_id: row.request_id,
            number,
            base_before: change.base_before.units(),
            base_after: change.base_after.units(),
            wallet_delta: change.more.wallet.units(),
            merchant_delta: change.more.merchant.units(),
            applied: to_json(&change.applied),
            created_at: now.unix_micros(),
        });
        Ok(true)
    }

    fn write(self, conn: &mut Conn) -> Result<(), StoreError> {
        if !self.rows.is_empty() {
            dialect::insert_repricings(conn, &self.rows)?;
        }
        self.changes.commit_wallets(conn, &self.wallets)
    }
}
