//! The series and sets that this process knows to be in the database.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dialect::SeriesPlace;
use crate::ids::{AnyId, Id};

/// The number of ids that are remembered. Then all are forgotten, which costs a few writes.
const REMEMBERED: usize = 65_536;

/// The series and sets that this process knows of, so that it writes each once.
#[derive(Default)]
pub(crate) struct KnownSeries(Mutex<SeriesOfPlace>);

#[derive(Default)]
struct SeriesOfPlace {
    place: SeriesPlace,
    ids: HashSet<Id<AnyId>>,
}

impl KnownSeries {
    fn lock(&self) -> MutexGuard<'_, SeriesOfPlace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all series: the database may be another one, or in an earlier state.
    pub(crate) fn forget(&self) {
        self.lock().ids.clear();
    }

    /// Forgets the series of other places, and returns those that are known to be in `place`. A failover and a restore may lose
    /// commits. Both start a server, use another one, or make new tables.
    pub(crate) fn only_at(&self, place: SeriesPlace) -> KnownAt<'_> {
        let mut known = self.lock();
        if known.place != place {
            *known = SeriesOfPlace { place: place.clone(), ids: HashSet::new() };
        }
        drop(known);
        KnownAt { known: self, place }
    }

    /// Adds series whose transaction is committed in `place`.
    pub(super) fn learn(&self, place: &SeriesPlace, written: impl Iterator<Item = Id<AnyId>>) {
        let mut known = self.lock();
        if known.place != *place {
            return;
        }
        if known.ids.len() > REMEMBERED {
            known.ids.clear();
        }
        known.ids.extend(written);
    }
}

/// The series and sets that are known to be in one place.
pub(crate) struct KnownAt<'a> {
    known: &'a KnownSeries,
    pub(super) place: SeriesPlace,
}

impl KnownAt<'_> {
    /// Those of the rows that are not known, by their ids.
    pub(super) fn unknown<'r, Row: Clone + 'r>(
        &self,
        rows: impl IntoIterator<Item = &'r Row>,
        id: impl Fn(&Row) -> Id<AnyId>,
    ) -> Vec<Row> {
        let known = self.known.lock();
        // Another transaction may have found another place since.
        let is_known = |row: &Row| known.place == self.place && known.ids.contains(&id(row));
        rows.into_iter().filter(|row| !is_known(row)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_domain::Id as _;

    use super::*;

    #[test]
    fn what_is_in_another_place_is_not_known() {
        let [first, second] = ["1", "2"].map(|place| SeriesPlace(place.to_owned()));
        let id = Id(AnyId::from_bytes([7; 16]));
        let known = KnownSeries::default();
        let unknown = |at: &KnownAt<'_>| at.unknown(&[id], |id| *id).len();
        let at_first = known.only_at(first.clone());
        known.learn(&at_first.place, [id].into_iter());
        assert_eq!(unknown(&at_first), 0);
        assert_eq!(unknown(&known.only_at(first)), 0);
        // A transaction on the first server may go on when the second one is already in use.
        let at_second = known.only_at(second);
        assert_eq!(unknown(&at_second), 1);
        known.learn(&at_first.place, [id].into_iter());
        assert_eq!(unknown(&at_second), 1);
        known.learn(&at_second.place, [id].into_iter());
        assert_eq!(unknown(&at_second), 0);
        assert_eq!(unknown(&at_first), 1);
    }
}
