//! What the books have changed, on its way to the database.

use tollgate_domain::Timestamp;

use super::Context;
use super::accounts::ChangedAccounts;
use super::rollups::Rollups;
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::missing_prices::{self, Missing};
use crate::rows::{RequestMetadataRow, RequestRow, TierCounterRow};

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
    /// Writes it, one statement per table, in the order in which all [lock](super::books).
    pub(super) fn write(&self, conn: &mut Conn) -> Result<(), StoreError> {
        if !self.new_requests.is_empty() {
            dialect::insert_requests(conn, &self.new_requests)?;
        }
        if !self.metadata.is_empty() {
            dialect::insert_metadata(conn, &self.metadata)?;
        }
        if !self.changed_requests.is_empty() {
            dialect::save_requests(conn, &self.changed_requests)?;
        }
        self.accounts.write(conn)?;
        if !self.counters.is_empty() {
            dialect::save_counters(conn, &self.counters)?;
        }
        self.rollups.write(conn)?;
        missing_prices::tell(conn, &self.missing, self.at)
    }

    /// It is written, durably: what was told need not be told again.
    pub(super) fn written(self, context: &Context) {
        self.rollups.written(&context.series);
        context.told.learn(self.missing, self.at);
    }
}
