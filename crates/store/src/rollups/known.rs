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

    /// Forgets all series that were not written to this place. A failover and a restore may lose commits. Both start a
    /// server, use another one, or make new tables.
    pub(super) fn forget_other_places(&self, place: &SeriesPlace) {
        let mut known = self.lock();
        if known.place != *place {
            *known = SeriesOfPlace { place: place.clone(), ids: HashSet::new() };
        }
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

    /// Those of the rows that are not known in `place`, by their ids.
    pub(super) fn unknown<'r, Row: Clone + 'r>(
        &self,
        place: &SeriesPlace,
        rows: impl IntoIterator<Item = &'r Row>,
        id: impl Fn(&Row) -> Id<AnyId>,
    ) -> Vec<Row> {
        let known = self.lock();
        let is_known = |row: &Row| known.place == *place && known.ids.contains(&id(row));
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
        let unknown = |place| known.unknown(place, &[id], |id| *id).len();
        known.forget_other_places(&first);
        known.learn(&first, [id].into_iter());
        known.forget_other_places(&first);
        assert_eq!(unknown(&first), 0);
        // A transaction on the first server may go on when the second one is already in use, and the other way round.
        assert_eq!(unknown(&second), 1);
        known.forget_other_places(&second);
        known.learn(&first, [id].into_iter());
        assert_eq!(unknown(&second), 1);
        known.learn(&second, [id].into_iter());
        assert_eq!(unknown(&second), 0);
        assert_eq!(unknown(&first), 1);
    }
}
