//! The commit step: a write set becomes rows, and the rows are written as one group.

use std::collections::{BTreeMap, BTreeSet};

use diesel::prelude::*;
use tollgate_domain::Run;
use tollgate_pricing::Amount;

use super::{LedgerLine, LedgerWallets, WriteSet};
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::dialect;
use crate::dialect::group::{self, ChangedRows, ConfigBasis};
use crate::error::StoreError;
use crate::ids::Id;
use crate::jobs;
use crate::rollups::QueuedCall;
use crate::rows::{
    CorrectionRow, OpenCallRow, QueueRow, RequestRow, RunRow, SpendCountersRow, SubscriptionRow,
    TierCounterRow, TransactionKeyRow, TransactionRow, WalletRow, to_json,
};
use crate::schema::{plan_charges, runs, transaction_keys};
use crate::tables::subscriptions;

impl From<&LedgerLine> for TransactionRow {
    fn from(line: &LedgerLine) -> Self {
        Self {
            transaction_id: Id(line.transaction_id),
            merchant_id: Id(line.merchant_id),
            wallet_id: Id(line.wallet_id),
            account: EnumCode(line.account),
            number: line.number,
            kind: EnumCode(line.kind),
            amount: line.amount.units(),
            balance_after: line.balance_after.units(),
            request_id: line.request_id.map(Id),
            description: line.description.clone(),
            created_at: line.created_at.unix_micros(),
        }
    }
}

impl WriteSet {
    /// Checks the laws of bookkeeping and writes everything. Returns the marks of the rows of `basis` at that time.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when a law is broken; nothing is written then. Another [`StoreError`] when the database
    /// fails.
    pub(crate) fn commit(
        &self,
        conn: &mut Conn,
        basis: &ConfigBasis,
    ) -> Result<BTreeSet<String>, StoreError> {
        self.check_laws()?;
        // These rows are rare, so they have statements of their own.
        let subscriptions: Vec<_> =
            self.subscriptions.values().map(SubscriptionRow::from).collect();
        subscriptions::save(conn, &subscriptions)?;
        for key in self.lines.iter().filter_map(idempotency_row) {
            diesel::insert_into(transaction_keys::table).values(key).execute(conn)?;
        }
        if !self.events.is_empty() {
            dialect::insert_events(conn, &self.events)?;
        }
        jobs::end(conn, &self.ended_jobs, self.now)?;
        if !self.provider_objects.is_empty() {
            dialect::insert_provider_objects(conn, &self.provider_objects)?;
        }
        for charge in &self.plan_charges {
            diesel::insert_into(plan_charges::table).values(charge).execute(conn)?;
        }
        if !self.corrections.is_empty() {
            let rows = self.corrections.iter();
            let rows: Vec<_> = rows.map(|one| CorrectionRow::new(&one.after, self.now)).collect();
            dialect::insert_corrections(conn, &rows)?;
        }
        let opened: Vec<_> =
            self.opened.iter().map(|(call, node_id)| OpenCallRow::new(call, *node_id)).collect();
        let closed: Vec<_> = self.closed.iter().copied().map(Id).collect();
        let records: Vec<_> = self.records.iter().map(RequestRow::from).collect();
        let counted = self.counters_after.iter().map(|(account, (merchant_id, counters))| {
            SpendCountersRow::new(account.id(), *merchant_id, counters)
        });
        let mut spend_counters: Vec<_> = counted.collect();
        spend_counters.sort_unstable_by_key(|row| row.account_id);
        let wallets: Vec<_> = self.wallets_after.values().map(WalletRow::from).collect();
        let transactions: Vec<_> = self.lines.iter().map(TransactionRow::from).collect();
        let counters = self.counters.iter();
        self.save_runs(conn)?;
        let counters: Vec<_> =
            counters.map(|(key, change)| TierCounterRow::new(key, change.after)).collect();
        let queued = self.queue_row();
        let group = ChangedRows {
            opened: &opened,
            closed: &closed,
            records: &records,
            spend_counters: &spend_counters,
            wallets: &wallets,
            transactions: &transactions,
            counters: &counters,
            queued: queued.as_slice(),
        };
        Ok(group::write(conn, &group, basis)?)
    }

    /// Commits an operation on wallets that admits and settles no calls.
    ///
    /// # Errors
    /// As [`WriteSet::commit`].
    pub(crate) fn commit_wallets(
        mut self,
        conn: &mut Conn,
        wallets: &LedgerWallets,
    ) -> Result<(), StoreError> {
        self.seal(wallets, &BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new());
        self.commit(conn, &ConfigBasis::default()).map(drop)
    }

    /// Inserts the runs that are new. Returns whether all of them were: another node may have inserted one since it was
    /// looked up. Call it before [`WriteSet::commit`], in the same transaction.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub(crate) fn create_runs(&self, conn: &mut Conn) -> Result<bool, StoreError> {
        let is_new = |id| self.runs_before.get(id).is_some_and(|before| before.first_at.is_none());
        let new = self.runs_after.values().filter(|run| is_new(&run.account_id));
        let rows: Vec<_> =
            new.filter_map(|run| Some((run, RunRow::new(run, run.first_at?)))).collect();
        if rows.is_empty() {
            return Ok(true);
        }
        let counters = rows.iter().map(|(run, _)| {
            SpendCountersRow::new(Id(run.account_id).untyped(), run.merchant_id, &run.counters)
        });
        let counters: Vec<_> = counters.collect();
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        Ok(dialect::create_runs(conn, &counters, &rows)?)
    }

    /// Writes the runs whose limit or first call has changed. They are rare.
    fn save_runs(&self, conn: &mut Conn) -> Result<(), StoreError> {
        // A new run is written with all it has.
        let known = self.runs_before.iter().filter(|(_, before)| before.first_at.is_some());
        for (id, before) in known {
            let terms = |run: &Run| (run.limit, run.first_at);
            let changed = self.runs_after.get(id).filter(|after| terms(after) != terms(before));
            if let Some((after, first_at)) =
                changed.and_then(|after| Some((after, after.first_at?)))
            {
                diesel::update(runs::table.find(Id(*id)))
                    .set((
                        runs::run_limit.eq(after.limit.map(Amount::units)),
                        runs::first_at.eq(first_at.unix_micros()),
                    ))
                    .execute(conn)?;
            }
        }
        Ok(())
    }

    /// The row that queues the settled calls for the roll-ups.
    fn queue_row(&self) -> Option<QueueRow> {
        let settled = self.records.iter().map(|call| QueuedCall::settled(call, self.now));
        let corrections = self.corrections.iter();
        let corrected =
            corrections.flat_map(|one| QueuedCall::corrected(&one.before, &one.after, self.now));
        let calls: Vec<_> = settled.chain(corrected).collect();
        (!calls.is_empty())
            .then(|| QueueRow { calls: to_json(&calls), created_at: self.now.unix_micros() })
    }
}

/// The row of a line's idempotency key, if it has one.
fn idempotency_row(line: &LedgerLine) -> Option<TransactionKeyRow> {
    Some(TransactionKeyRow {
        wallet_id: Id(line.wallet_id),
        idempotency_key: line.idempotency_key.clone()?,
        merchant_id: Id(line.merchant_id),
        number: line.number,
    })
}
