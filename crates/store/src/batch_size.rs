//! The size of a transaction that is done beside calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The longest time that such a transaction should take. On SQLite calls wait for it.
const LONGEST: Duration = Duration::from_millis(2);

/// The number of rows that a transaction writes or deletes. It depends on the rows, the database and its disk, so it is adapted
/// to the time that each transaction takes.
#[derive(Debug)]
pub(crate) struct BatchSize {
    rows: AtomicUsize,
    least: usize,
    most: usize,
}

impl BatchSize {
    /// The size of the first transaction. All sizes are between `least` and `most`.
    pub(crate) const fn new(first: usize, least: usize, most: usize) -> Self {
        Self { rows: AtomicUsize::new(first), least, most }
    }

    /// The number of rows of the next transaction.
    pub(crate) fn rows(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// Adapts the size to the time that a transaction with this number of rows took.
    pub(crate) fn adapt(&self, rows: usize, took: Duration) {
        let size = self.rows();
        // There may be more rows than the size. The time of one row is about the same.
        let number = |rows: usize| u32::try_from(rows.max(1)).unwrap_or(u32::MAX);
        let took = took * number(size) / number(rows.max(size));
        let next = if took > LONGEST {
            size / 2
        } else if took < LONGEST / 2 && rows >= size {
            size + size / 4 + 1
        } else {
            size
        };
        self.rows.store(next.clamp(self.least, self.most), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_follows_the_time_of_transactions_within_its_bounds() {
        let size = BatchSize::new(16, 4, 30);
        let adapt = |rows: usize, took: u64| {
            size.adapt(rows, Duration::from_micros(took));
            size.rows()
        };
        assert_eq!([16, 21, 27, 30].map(|rows| adapt(rows, 999)), [21, 27, 30, 30]);
        assert_eq!(adapt(30, 1_000), 30, "neither quick nor slow");
        assert_eq!(adapt(29, 100), 30, "there were no more rows");
        assert_eq!(adapt(1, 2_001), 15, "slow, whatever the number of rows");
        assert_eq!([15, 7, 4].map(|rows| adapt(rows, 2_001)), [7, 4, 4]);
        assert_eq!(adapt(40, 10_010), 4, "4 of 40 rows took a millisecond");
        assert_eq!(adapt(40, 9_990), 6);
        assert_eq!(adapt(0, 100), 6);
    }
}
