//! What was done with a spend key so far, in the cycles of its last use.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{Amount, Overflow};

use crate::cycle::{Cycle, PerCycle};
use crate::rate_limit::Gcra;
use crate::time::Timestamp;

/// How much may be spent in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendLimit {
    /// Above zero, in USD.
    pub amount: Amount,
    /// When it begins anew.
    pub cycle: Cycle,
}

/// The counters of a key. They are those of the cycles that its last use lies in: whatever looks
/// at them later first brings them [up to then](SpendCounters::at), and a cycle that has ended
/// meanwhile counts from nothing.
///
/// A call belongs to the cycles in which it was admitted, also when it ends after them: it then
/// moves the totals only. All cycles are counted at once, so a limit may change its cycle at any
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendCounters {
    /// What the calls of the cycle cost that have ended.
    pub spent: PerCycle<Amount>,
    /// What the calls of the cycle that are on their way can cost at most.
    pub held: PerCycle<Amount>,
    /// How many calls were admitted.
    pub requests: PerCycle<u64>,
    /// The highest threshold of the spend limit, in percent, that was told of in the cycle.
    pub told_percent: PerCycle<u8>,
    /// When the next call may follow.
    pub bucket: Gcra,
    /// When a call was last admitted.
    pub last_used_at: Option<Timestamp>,
}

/// Shares of a spend limit, in percent, at which the merchant is told: once each per cycle.
const THRESHOLDS: [u8; 3] = [80, 95, 100];

impl SpendCounters {
    /// When a call that comes in at `now` counts as admitted: time does not go back for a key, even
    /// if a node's clock does.
    pub fn admitted_at(&self, now: Timestamp) -> Timestamp {
        self.last_used_at.map_or(now, |last| last.max(now))
    }

    /// The counters as they stand at `now`.
    #[must_use]
    pub fn at(mut self, now: Timestamp) -> Self {
        let Some(last) = self.last_used_at else { return self };
        let now = self.admitted_at(now);
        fn begin_anew<T: Default>(values: &mut PerCycle<T>, last: Timestamp, now: Timestamp) {
            for (cycle, value) in values.each_mut() {
                if !cycle.is_same(last, now) {
                    *value = T::default();
                }
            }
        }
        begin_anew(&mut self.spent, last, now);
        begin_anew(&mut self.held, last, now);
        begin_anew(&mut self.requests, last, now);
        begin_anew(&mut self.told_percent, last, now);
        self
    }

    /// Counts a call that is admitted at `at`, which [`SpendCounters::admitted_at`] told, and holds
    /// what it can cost.
    ///
    /// # Errors
    /// [`Overflow`] when so much cannot be held: what is given back later must be what was held.
    pub fn admit(&mut self, at: Timestamp, hold: Amount) -> Result<(), Overflow> {
        *self = self.at(at);
        for (_, held) in self.held.each_mut() {
            *held = held.checked_add(hold)?;
        }
        for (_, requests) in self.requests.each_mut() {
            *requests = requests.saturating_add(1);
        }
        self.last_used_at = Some(at);
        Ok(())
    }

    /// Ends a call that was admitted at `admitted_at`: gives back what it held and counts what it
    /// cost; the difference, where something was counted before.
    ///
    /// A sum of what was spent that has reached the end of the range stays there: nothing more is
    /// admitted then, and what was admitted before must end all the same.
    ///
    /// # Errors
    /// [`Overflow`] when so much was not held.
    pub fn settle(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        cost: Amount,
    ) -> Result<(), Overflow> {
        let last = self.last_used_at.unwrap_or(admitted_at);
        for (cycle, held) in self.held.each_mut() {
            if cycle.is_same(admitted_at, last) {
                *held = held.checked_sub(hold)?;
            }
        }
        for (cycle, spent) in self.spent.each_mut() {
            if cycle.is_same(admitted_at, last) && *spent < Amount::MAX {
                *spent = spent.checked_add(cost).unwrap_or(Amount::MAX);
            }
        }
        Ok(())
    }

    /// The thresholds of `limit` that are reached and were not told of in this cycle, in percent
    /// and ascending. They count as told of from now on.
    pub fn tell(&mut self, limit: SpendLimit) -> impl Iterator<Item = u8> + use<> {
        let spent = i128::from(self.spent.get(limit.cycle).units());
        let whole = i128::from(limit.amount.units());
        let told = self.told_percent.get(limit.cycle);
        let new = THRESHOLDS.map(|percent| {
            (percent > *told && spent * 100 >= whole * i128::from(percent)).then_some(percent)
        });
        if let Some(highest) = new.iter().flatten().max() {
            for (cycle, told) in self.told_percent.each_mut() {
                if cycle == limit.cycle {
                    *told = *highest;
                }
            }
        }
        new.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_sum_stays_full_also_after_a_correction() {
        let now = Timestamp::from_unix_micros(1_795_219_200_000_000);
        let mut counters = SpendCounters::default();
        let [most, less] = [Amount::MAX, Amount::from_units(-1_000)];
        counters.settle(now, Amount::ZERO, Amount::from_units(1)).unwrap();
        counters.settle(now, Amount::ZERO, most).unwrap();
        counters.settle(now, Amount::ZERO, less).unwrap();
        assert_eq!(counters.spent.total, most);
    }
}
