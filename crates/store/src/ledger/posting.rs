//! What the books have changed, on its way to the database.

use std::collections::BTreeSet;

use tollgate_domain::Timestamp;

use super::Context;
use super::accounts::ChangedAccounts;
use super::rollups::Rollups;
use crate::conn::Conn;
use crate::dialect::group::{self, Basis, Group};
use crate::error::StoreError;
use crate::missing_prices::{self, Missing};
use crate::rows::{RequestMetadataRow, RequestRow, TierCounterRow};
use crate::subscriptions;

/// Rows to be written in one transaction.
pub(super) struct Posting {
    /// When the last of it was booked.
    pub(super) at: Timestamp,
    pub(super) new_requests: Vec<RequestRow>,
    pub(super) metadata: Vec<RequestMetadataRow>,
    pub(super) changed_requests: Vec<RequestRow>,
    pub(super) accounts: ChangedAccounts,
    pub(super) counters: Vec<TierCounterRow>,
    pub(super) rollups: Rollups,
    pub(super) missing: Missing,
}

impl Posting {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        let accounts = &self.accounts;
        self.new_requests.is_empty()
            && self.changed_requests.is_empty()
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
        changes.write_events(conn)?;
        let rollups = self.rollups.write_series(conn)?;
        let group = Group {
            new_requests: &self.new_requests,
            metadata: &self.metadata,
            changed_requests: &self.changed_requests,
            spend_counters,
            wallets,
            transactions: lines,
            counters: &self.counters,
            rollups: &rollups,
        };
        let marks = group::write(conn, &group, basis)?;
        missing_prices::tell(conn, &self.missing, self.at)?;
        Ok(marks)
    }

    /// It is written, durably: what was told need not be told again.
    pub(super) fn written(self, context: &Context) {
        self.rollups.written(&context.series);
        context.told.learn(self.missing, self.at);
    }
}
