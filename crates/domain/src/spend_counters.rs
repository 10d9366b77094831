//! Counters of spend keys: spend, holds and calls in the cycles of the last use.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{Amount, Overflow};

use crate::calendar::CycleCalendar;
use crate::cycle::{Cycle, PerCycle};
use crate::rate_limit::Gcra;
use crate::time::Timestamp;

/// The most that may be spent in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendLimit {
    /// The amount in USD, above zero.
    pub amount: Amount,
    /// The cycle after which it starts again.
    pub cycle: Cycle,
}

/// The counters of a key, in the cycles of its last use.
///
/// A later reader first brings them [up to its time](SpendCounters::at): a cycle that has ended
/// since counts from zero.
///
/// A call counts in the cycles of its admission, also when it ends later. Cycles that have begun
/// since do not count it. All cycles are counted at once, so the cycle of a limit can change at any
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendCounters {
    /// The cost of the calls of the cycle that have ended.
    pub spent: PerCycle<Amount>,
    /// The holds of the calls of the cycle that are in flight.
    pub held: PerCycle<Amount>,
    /// The number of admitted calls.
    pub requests: PerCycle<u64>,
    /// The highest threshold of the spend limit, in percent, that was reported in the cycle.
    pub told_percent: PerCycle<u8>,
    /// The state of the rate limit.
    pub bucket: Gcra,
    /// The time of the last admission.
    pub last_used_at: Option<Timestamp>,
}

/// The calendars by which a key counts.
#[derive(Clone, Copy, Debug)]
pub struct LimitCalendars<'a> {
    /// The calendar of the spend limit.
    pub spend: &'a CycleCalendar,
    /// The calendar of the request limit.
    pub requests: &'a CycleCalendar,
}

impl SpendCounters {
    /// The counters of an account that was imported at `now` with this spend, which counts in every present cycle.
    pub fn imported(spent: Amount, now: Timestamp) -> Self {
        let spent = PerCycle { day: spent, week: spent, month: spent, total: spent };
        Self { spent, last_used_at: Some(now), ..Self::default() }
    }

    /// The admission time of a call that arrives at `now`. Time does not go back for a key, even if
    /// the clock of a node does.
    pub fn admitted_at(&self, now: Timestamp) -> Timestamp {
        self.last_used_at.map_or(now, |last| last.max(now))
    }

    /// The counters at `now`.
    #[must_use]
    pub fn at(mut self, now: Timestamp, calendars: LimitCalendars<'_>) -> Self {
        let Some(last) = self.last_used_at else { return self };
        let now = self.admitted_at(now);
        let spent = self.spent.each_mut().into_iter().zip(self.held.each_mut());
        for (((cycle, spent), (_, held)), (_, told)) in spent.zip(self.told_percent.each_mut()) {
            if !calendars.spend.is_same(cycle, last, now) {
                (*spent, *held, *told) = Default::default();
            }
        }
        for (cycle, requests) in self.requests.each_mut() {
            if !calendars.requests.is_same(cycle, last, now) {
                *requests = 0;
            }
        }
        self
    }

    /// Counts a call that is admitted at `at`, a result of [`SpendCounters::admitted_at`], and adds
    /// its hold.
    ///
    /// # Errors
    /// [`Overflow`] when the holds leave the range of an [`Amount`]: a hold must be released later
    /// exactly as it was added.
    pub fn admit(
        &mut self,
        at: Timestamp,
        hold: Amount,
        calendars: LimitCalendars<'_>,
    ) -> Result<(), Overflow> {
        *self = self.at(at, calendars);
        for (_, held) in self.held.each_mut() {
            *held = held.checked_add(hold)?;
        }
        for (_, requests) in self.requests.each_mut() {
            *requests = requests.saturating_add(1);
        }
        self.last_used_at = Some(at);
        Ok(())
    }

    /// Ends a call that was admitted at `admitted_at`: releases `hold` and counts `cost`. For a
    /// correction, `cost` is the difference.
    ///
    /// A sum of spend that has reached the end of the range of an [`Amount`] stays there. No new
    /// call is admitted then, but earlier calls must still end.
    ///
    /// # Errors
    /// [`Overflow`] when the holds leave the range of an [`Amount`].
    pub fn settle(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        cost: Amount,
        calendars: LimitCalendars<'_>,
    ) -> Result<(), Overflow> {
        let last = self.last_used_at.unwrap_or(admitted_at);
        for ((cycle, held), (_, spent)) in
            self.held.each_mut().into_iter().zip(self.spent.each_mut())
        {
            if !calendars.spend.is_same(cycle, admitted_at, last) {
                continue;
            }
            *held = held.checked_sub(hold)?;
            if *spent < Amount::MAX {
                *spent = spent.checked_add(cost).unwrap_or(Amount::MAX);
            }
        }
        Ok(())
    }

    /// Takes back a call that was admitted at `admitted_at` and did not begin: releases `hold`, and counts the call no
    /// longer.
    ///
    /// # Errors
    /// As [`SpendCounters::settle`].
    pub fn take_back(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        calendars: LimitCalendars<'_>,
    ) -> Result<(), Overflow> {
        self.settle(admitted_at, hold, Amount::ZERO, calendars)?;
        let last = self.last_used_at.unwrap_or(admitted_at);
        for (cycle, requests) in self.requests.each_mut() {
            if calendars.requests.is_same(cycle, admitted_at, last) {
                *requests = requests.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Returns the `shares` of `limit` that are reached and were not reported in this cycle, in percent and ascending,
    /// as the shares are. They count as reported from now on.
    pub fn report_thresholds(&mut self, limit: SpendLimit, shares: &[u8]) -> Vec<u8> {
        let spent = i128::from(self.spent.get(limit.cycle).units());
        let whole = i128::from(limit.amount.units());
        let told = *self.told_percent.get(limit.cycle);
        let is_reached = |percent: u8| spent * 100 >= whole * i128::from(percent);
        let new = shares.iter().copied();
        let new: Vec<_> = new.filter(|percent| *percent > told && is_reached(*percent)).collect();
        if let Some(highest) = new.last() {
            for (cycle, told) in self.told_percent.each_mut() {
                if cycle == limit.cycle {
                    *told = *highest;
                }
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_sum_stays_full_also_after_a_correction() {
        let now = Timestamp::from_unix_micros(1_795_219_200_000_000);
        let mut counters = SpendCounters::default();
        let utc = CycleCalendar::default();
        let calendars = LimitCalendars { spend: &utc, requests: &utc };
        let [most, less] = [Amount::MAX, Amount::from_units(-1_000)];
        counters.settle(now, Amount::ZERO, Amount::from_units(1), calendars).unwrap();
        counters.settle(now, Amount::ZERO, most, calendars).unwrap();
        counters.settle(now, Amount::ZERO, less, calendars).unwrap();
        assert_eq!(counters.spent.total, most);
    }
}
