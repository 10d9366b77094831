//! The series and sets that this process knows to be in the database.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{AnyId, Id};

/// The number of ids that are remembered. Then all are forgotten, which costs a few writes.
const REMEMBERED: usize = 65_536;

/// The series and sets that this process knows of, so that it writes each once.
#[derive(Default)]
pub(crate) struct KnownSeries(Mutex<HashSet<Id<AnyId>>>);

impl KnownSeries {
    fn lock(&self) -> MutexGuard<'_, HashSet<Id<AnyId>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all series: the database may be another one, or in an earlier state.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    /// Adds series whose transaction is committed.
    pub(super) fn learn(&self, written: impl Iterator<Item = Id<AnyId>>) {
        let mut known = self.lock();
        if known.len() > REMEMBERED {
            known.clear();
        }
        known.extend(written);
    }

    /// Those of the rows that are not known, by their ids.
    pub(super) fn unknown<'r, Row: Clone + 'r>(
        &self,
        rows: impl IntoIterator<Item = &'r Row>,
        id: impl Fn(&Row) -> Id<AnyId>,
    ) -> Vec<Row> {
        let known = self.lock();
        rows.into_iter().filter(|row| !known.contains(&id(row))).cloned().collect()
    }
}
