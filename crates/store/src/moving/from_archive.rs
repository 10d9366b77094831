//! The rows of a merchant that are in the archive of the old cell. They become rows of the new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_archive::{Archive, ArchiveError, Manifest, Table};
use tollgate_domain::{MerchantId, Month, TimeZone, Timestamp};

use super::error::MoveError;
use super::rows::Batch;
use super::tables::{MovedTable, REFUSALS, REQUEST_INDEX, REQUESTS, TRANSACTIONS};
use crate::archived::{self, ArchivedRow, RecordArchive};
use crate::conn::Conn;
use crate::error::StoreError;
use crate::rollups::QueuedCall;
use crate::rows::{ArchivedMonthRow, RefusalRow, TransactionRow, time, to_json};

/// The months of an archive that have rows of a merchant, the oldest first.
pub(super) struct MonthsOfMerchant {
    merchant: String,
    months: Vec<(ArchivedMonthRow, Arc<Manifest>)>,
}

impl MonthsOfMerchant {
    /// Finds them among all months of the archive.
    pub(super) fn among(
        all: &[ArchivedMonthRow],
        archive: &RecordArchive,
        merchant_id: MerchantId,
    ) -> Result<Self, MoveError> {
        if !all.is_empty() && !archive.is_configured() {
            return Err(MoveError::NoArchive);
        }
        let merchant = merchant_id.to_string();
        let mut months = Vec::new();
        for row in all {
            let manifest = archive.files()?.manifest(&row.month, &row.manifest)?;
            if manifest.sums.values().any(|sums| sums.contains_key(&merchant)) {
                months.push((row.clone(), manifest));
            }
        }
        months.sort_unstable_by(|(one, _), (other, _)| one.month.cmp(&other.month));
        Ok(Self { merchant, months })
    }

    /// The first instant of the oldest month.
    pub(super) fn begin(&self) -> Result<Option<Timestamp>, StoreError> {
        let Some((oldest, _)) = self.months.first() else { return Ok(None) };
        let month: Month = archived::parse(&oldest.month)?;
        Ok(Some(month.range(&TimeZone::UTC).start))
    }

    /// Writes the rows that have left the old database, with their entries in the index of records. Refusals from before
    /// `refused_from` stay in the archive. Returns the numbers of rows by table.
    ///
    /// # Errors
    /// [`MoveError::Archive`] for a file that is missing or damaged.
    pub(super) fn copy(
        &self,
        archive: &RecordArchive,
        to: &mut Conn,
        refused_from: Timestamp,
    ) -> Result<BTreeMap<&'static str, i64>, MoveError> {
        let mut copied = BTreeMap::new();
        let mut records = CountedBatch::new(to, REQUESTS)?;
        let mut entries = CountedBatch::new(to, REQUEST_INDEX)?;
        let mut lines = CountedBatch::new(to, TRANSACTIONS)?;
        let mut refusals = CountedBatch::new(to, REFUSALS)?;
        for (month, manifest) in &self.months {
            let files = archive.files()?;
            self.each::<ArchivedRow>(files, manifest, |ArchivedRow { row, stays }| {
                if stays {
                    return Ok(());
                }
                let call = QueuedCall::of_record(&row)?;
                let [gained, _] = call.index_rows();
                gained.iter().try_for_each(|entry| entries.push(to, to_json(entry)))?;
                records.push(to, to_json(&row))
            })?;
            // Until then, all lines of the month are in the database.
            if month.transactions_deleted_at.is_some() {
                self.each::<TransactionRow>(files, manifest, |line| {
                    lines.push(to, to_json(&line))
                })?;
            }
            self.each::<RefusalRow>(files, manifest, |refusal| {
                match time(refusal.last_at) >= refused_from {
                    true => refusals.push(to, to_json(&refusal)),
                    false => Ok(()),
                }
            })?;
        }
        for batch in [records, entries, lines, refusals] {
            let (table, rows) = batch.finish(to)?;
            copied.insert(table, rows);
        }
        Ok(copied)
    }

    /// Calls `each` with the merchant's rows of a month. Each file is verified before it is read.
    fn each<T: Table>(
        &self,
        files: &Archive,
        manifest: &Arc<Manifest>,
        mut each: impl FnMut(T) -> Result<(), MoveError>,
    ) -> Result<(), MoveError> {
        let sums = manifest.sums.get(T::NAME);
        let Some(sums) = sums.and_then(|sums| sums.get(&self.merchant)) else { return Ok(()) };
        files.verify_files_of::<T>(manifest, &self.merchant)?;
        let mut rows = files.ascending::<T>(Arc::clone(manifest), Some(self.merchant.clone()));
        let mut found = 0;
        while let Some(row) = rows.next_row()? {
            found += 1;
            each(row)?;
        }
        match found == sums.rows {
            true => Ok(()),
            false => {
                let path = format!("{}/month={}", T::NAME, manifest.month);
                let why = format!("{} has {found} rows, and not {}", self.merchant, sums.rows);
                Err(ArchiveError::damaged(path, why).into())
            }
        }
    }
}

/// Rows that are inserted together, and the number of all.
struct CountedBatch {
    table: MovedTable,
    batch: Batch,
    rows: i64,
}

impl CountedBatch {
    fn new(to: &mut Conn, table: MovedTable) -> Result<Self, MoveError> {
        Ok(Self { table, batch: Batch::new(to, table)?, rows: 0 })
    }

    fn push(&mut self, to: &mut Conn, row: String) -> Result<(), MoveError> {
        self.rows += 1;
        let pushed = self.batch.push(to, row);
        pushed.map_err(|error| error.of_table(self.table.name))
    }

    /// Writes the rest. Returns the name of the table and the number of its rows.
    fn finish(mut self, to: &mut Conn) -> Result<(&'static str, i64), MoveError> {
        let written = self.batch.write(to);
        written.map_err(|error| error.of_table(self.table.name))?;
        Ok((self.table.name, self.rows))
    }
}
