//! Changes of the plan of a subscription: the rules of an upgrade, and the preview of any change.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::subscription_state::SubscriptionState;
use crate::time::Timestamp;

/// The rule of an upgrade, which ends the present cycle early. It concerns the unused credit that the
/// cycle included, and the price of the new cycle. Bought credit follows the rollover rule of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeRule {
    /// The credit stays until the new cycle ends. The new cycle has its full price.
    #[default]
    Carry,
    /// The credit expires, whatever its rollover rule. The new cycle has its full price.
    Expire,
    /// The credit stays as with [`UpgradeRule::Carry`]. The price of the unused part of the old cycle is
    /// subtracted from the price of the new one.
    Prorate,
}

/// A cycle that a change ends early, in whole seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedCycle {
    /// The price of the cycle.
    pub(crate) price: Amount,
    /// The length of the cycle.
    pub(crate) seconds: i64,
    /// The seconds that are left of it.
    pub(crate) seconds_left: i64,
}

impl EndedCycle {
    /// The price of the next cycle less the unused part of this one, rounded half-even once, to cents.
    pub(crate) fn prorated(self, next: Amount) -> Amount {
        const UNITS_PER_CENT: i128 = 100_000_000;
        let whole = i128::from(self.seconds.max(1));
        let left = i128::from(self.seconds_left).clamp(0, whole);
        let price = |amount: Amount| i128::from(amount.units());
        // In units, times the seconds of the cycle.
        let due = (price(next) * whole - price(self.price) * left).max(0);
        let per_cent = UNITS_PER_CENT * whole;
        let (cents, rest) = (due / per_cent, due % per_cent);
        let is_up = match (rest * 2).cmp(&per_cent) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => cents % 2 == 1,
            std::cmp::Ordering::Greater => true,
        };
        let cents = i64::try_from(cents + i128::from(is_up)).ok();
        cents.and_then(|cents| Amount::from_cents(cents).ok()).unwrap_or(next)
    }
}

/// The effect that a change of a plan has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePreview {
    /// The time of effect: now, or the end of the cycle.
    pub effective_at: Timestamp,
    /// The amount that the merchant has to collect at that time.
    pub amount_due: Amount,
    /// The credit that expires with the change.
    pub credit_lost: Amount,
    /// The credit that stays. For a change at the end of the cycle, if no more is used until then.
    pub credit_carried: Amount,
    /// The subscription right after the change.
    pub after: SubscriptionState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unused_part_of_a_cycle_is_subtracted_and_rounded_once() {
        let usd = |text: &str| text.parse::<Amount>().unwrap();
        for (price, seconds, left, next, due) in [
            ("20", 100, 100, "50", "30"),
            ("20", 100, 0, "50", "50"),
            ("20", 100, 50, "50", "40"),
            // A half of a cent goes to the even neighbour.
            ("0.01", 2, 1, "0.02", "0.02"),
            ("0.01", 2, 1, "0.03", "0.02"),
            ("0.01", 1_000, 501, "0.03", "0.02"),
            ("0.01", 1_000, 499, "0.03", "0.03"),
            // 1/3 has no end in decimals; a second rounding would see a half.
            ("0.03", 3, 1, "0.0350000001", "0.03"),
            ("20", 2_592_000, 2_591_999, "49", "29"),
            ("20", 0, 0, "49", "49"),
            ("0", 100, 50, "49", "49"),
            ("400000000", 100, 100, "900000000", "500000000"),
        ] {
            let cycle = EndedCycle { price: usd(price), seconds, seconds_left: left };
            assert_eq!(cycle.prorated(usd(next)), usd(due), "{price} {seconds} {left} {next}");
        }
    }
}
