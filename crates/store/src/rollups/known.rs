//! The series and sets that this process knows to be in the database.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dialect::ServerStart;
use crate::ids::{AnyId, Id};

/// The number of ids that are remembered. Then all are forgotten, which costs a few writes.
const REMEMBERED: usize = 65_536;

/// The series and sets that this process knows of, so that it writes each once.
#[derive(Default)]
pub(crate) struct KnownSeries(Mutex<SeriesOfServer>);

#[derive(Default)]
struct SeriesOfServer {
    server: ServerStart,
    ids: HashSet<Id<AnyId>>,
}

impl KnownSeries {
    fn lock(&self) -> MutexGuard<'_, SeriesOfServer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all series: the database may be another one, or in an earlier state.
    pub(crate) fn forget(&self) {
        self.lock().ids.clear();
    }

    /// Forgets all series unless they were written to this server since its start. A failover and a restore may lose
    /// commits. Both start a server, or use another one.
    pub(super) fn forget_other_servers(&self, server: &ServerStart) {
        let mut known = self.lock();
        if known.server != *server {
            *known = SeriesOfServer { server: server.clone(), ids: HashSet::new() };
        }
    }

    /// Adds series whose transaction is committed on `server`.
    pub(super) fn learn(&self, server: &ServerStart, written: impl Iterator<Item = Id<AnyId>>) {
        let mut known = self.lock();
        if known.server != *server {
            return;
        }
        if known.ids.len() > REMEMBERED {
            known.ids.clear();
        }
        known.ids.extend(written);
    }

    /// Those of the rows that are not known, by their ids.
    pub(super) fn unknown<'r, Row: Clone + 'r>(
        &self,
        rows: impl IntoIterator<Item = &'r Row>,
        id: impl Fn(&Row) -> Id<AnyId>,
    ) -> Vec<Row> {
        let known = self.lock();
        rows.into_iter().filter(|row| !known.ids.contains(&id(row))).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_domain::Id as _;

    use super::*;

    #[test]
    fn what_another_server_has_is_not_known() {
        let [first, second] = ["1", "2"].map(|start| ServerStart(start.to_owned()));
        let id = Id(AnyId::from_bytes([7; 16]));
        let known = KnownSeries::default();
        let unknown = || known.unknown(&[id], |id| *id).len();
        known.forget_other_servers(&first);
        known.learn(&first, [id].into_iter());
        known.forget_other_servers(&first);
        assert_eq!(unknown(), 0);
        // A transaction of the first server may end when the second one is already in use.
        known.forget_other_servers(&second);
        known.learn(&first, [id].into_iter());
        assert_eq!(unknown(), 1);
        known.learn(&second, [id].into_iter());
        assert_eq!(unknown(), 0);
    }
}
