//! The commit step: a write set becomes rows, and the rows are written as one group.

use std::collections::{BTreeMap, BTreeSet};

use diesel::prelude::*;

use super::{LedgerLine, LedgerWallets, WriteSet};
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::dialect;
use crate::dialect::group::{self, ChangedRows, ConfigBasis};
use crate::error::StoreError;
use crate::ids::Id;
use crate::rollups::QueuedCall;
use crate::rows::{
    CorrectionRow, OpenCallRow, QueueRow, RequestRow, SpendCountersRow, SubscriptionRow,
    TierCounterRow, TransactionKeyRow, TransactionRow, WalletRow, to_json,
};
use crate::schema::{plan_charges, transaction_keys};
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
        let spend_counters: Vec<_> = self.keys_after.values().map(SpendCountersRow::from).collect();
        let wallets: Vec<_> = self.wallets_after.values().map(WalletRow::from).collect();
        let transactions: Vec<_> = self.lines.iter().map(TransactionRow::from).collect();
        let counters = self.counters.iter();
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
        self.seal(wallets, &BTreeMap::new());
        self.commit(conn, &ConfigBasis::default()).map(drop)
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
