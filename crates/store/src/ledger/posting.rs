//! What the books have changed, on its way to the database.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tollgate_domain::{RequestId, Timestamp};

use super::accounts::ChangedAccounts;
use super::context::Context;
use crate::conn::Conn;
use crate::dialect;
use crate::dialect::group::{self, Basis, Group};
use crate::error::StoreError;
use crate::ids::Id;
use crate::missing_prices::{self, Missing};
use crate::rollups::QueuedCall;
use crate::rows::{CorrectionRow, OpenCallRow, QueueRow, RequestRow, TierCounterRow, to_json};
use crate::subscriptions;

/// Rows to be written in one transaction.
pub(super) struct Posting {
    /// When the last of it was booked.
    pub(super) at: Timestamp,
    pub(super) opened: Vec<OpenCallRow>,
    /// The ids of open calls that are settled.
    pub(super) closed: Vec<Id<RequestId>>,
    pub(super) records: Vec<RequestRow>,
    pub(super) corrections: Vec<CorrectionRow>,
    /// The settled calls, for the roll-ups.
    pub(super) queued: Vec<QueuedCall>,
    pub(super) accounts: ChangedAccounts,
    pub(super) counters: Vec<TierCounterRow>,
    pub(super) missing: Missing,
}

impl Posting {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        let accounts = &self.accounts;
        self.opened.is_empty()
            && self.records.is_empty()
            && self.corrections.is_empty()
            && accounts.spend_counters.is_empty()
            && accounts.wallets.is_empty()
            && accounts.renewed.is_empty()
            && self.missing.is_empty()
    }

    /// Writes it; answers what the rows by which it was decided are [marked](Basis) with now.
    pub(super) fn write(
        &self,
        conn: &mut Conn,
        basis: &Basis,
    ) -> Result<BTreeSet<String>, StoreError> {
        let ChangedAccounts { spend_counters, wallets, renewed, lines, changes } = &self.accounts;
        // What few groups have.
        subscriptions::save(conn, renewed)?;
        changes.write_rest(conn)?;
        if !self.corrections.is_empty() {
            dialect::insert_corrections(conn, &self.corrections)?;
        }
        let queued = (!self.queued.is_empty())
            .then(|| QueueRow { calls: to_json(&self.queued), created_at: self.at.unix_micros() });
        let group = Group {
            opened: &self.opened,
            closed: &self.closed,
            records: &self.records,
            spend_counters,
            wallets,
            transactions: lines,
            counters: &self.counters,
            queued: queued.as_slice(),
        };
        let marks = group::write(conn, &group, basis)?;
        missing_prices::tell(conn, &self.missing, self.at)?;
        Ok(marks)
    }

    /// It is written, durably: what was told need not be told again.
    pub(super) fn written(self, context: &Context) {
        if !self.queued.is_empty() {
            context.is_queued.store(true, Ordering::Relaxed);
        }
        context.told.learn(self.missing, self.at);
    }
}
