//! Cycles of limits.

use serde::{Deserialize, Serialize};

/// The interval after which a limit starts again from zero. It begins at midnight by the clocks of the limit's
/// [calendar](crate::CycleCalendar).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cycle {
    /// One day.
    Daily,
    /// One week, from Monday.
    Weekly,
    /// One calendar month.
    Monthly,
    /// All time: the limit does not start again.
    Total,
}

/// One value for each cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerCycle<T> {
    /// The value of the day.
    pub day: T,
    /// The value of the week.
    pub week: T,
    /// The value of the month.
    pub month: T,
    /// The value of all time.
    pub total: T,
}

impl<T> PerCycle<T> {
    /// The value of one cycle.
    pub const fn get(&self, cycle: Cycle) -> &T {
        match cycle {
            Cycle::Daily => &self.day,
            Cycle::Weekly => &self.week,
            Cycle::Monthly => &self.month,
            Cycle::Total => &self.total,
        }
    }

    /// Each cycle with a mutable reference to its value.
    pub fn each_mut(&mut self) -> [(Cycle, &mut T); 4] {
        [
            (Cycle::Daily, &mut self.day),
            (Cycle::Weekly, &mut self.week),
            (Cycle::Monthly, &mut self.month),
            (Cycle::Total, &mut self.total),
        ]
    }
}
