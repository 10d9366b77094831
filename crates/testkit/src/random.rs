//! Pseudo-random sequences, so that a failing seed can be run again.

/// A pseudo-random sequence from a seed.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number from 0 up to `end`, exclusive.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// A number from `first` up to `end`, exclusive.
    pub fn between(&mut self, first: i64, end: i64) -> i64 {
        let width = u64::try_from(end - first).unwrap();
        first + i64::try_from(self.below(width)).unwrap()
    }

    /// An index from 0 up to `end`, exclusive.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(u64::try_from(end).unwrap())).unwrap()
    }

    /// True once in `times` on average.
    pub const fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// The number of seeds to run on each database.
///
/// It is `RACE_SEEDS` of the environment, or `few`, which is enough for daily runs.
pub fn seeds(few: u64) -> u64 {
    std::env::var("RACE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}
