//! Credit from subscriptions. It lies on the wallet beside the balance, in two accounts, and is
//! drawn before it: first the credit that a cycle included, then the credit bought in bundles.

use serde::{Deserialize, Serialize};
use tollgate_pricing::{Amount, Overflow};

/// An account of a wallet. Each has its own running sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerAccount {
    /// Money.
    Balance,
    /// Credit that a cycle included.
    CycleCredit,
    /// Credit that was bought in bundles.
    BundleCredit,
}

/// The rule for credit that is left when a cycle ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rollover {
    /// All of it stays usable.
    Full,
    /// It expires.
    None,
}

/// One of the two credits of a wallet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credit {
    /// The remaining credit.
    pub remaining: Amount,
    /// The part that calls in flight have reserved, at most the remaining credit.
    pub held: Amount,
    /// The last cycle with which it expired. A call of that cycle keeps its reservation, and the
    /// unused part expires when the call ends.
    pub expired_cycle: i64,
}

impl Credit {
    /// The credit that no call has reserved.
    pub fn free(&self) -> Amount {
        self.remaining.saturating_sub(self.held)
    }

    fn reserve(&mut self, most: Amount) -> Result<Amount, Overflow> {
        let reserved = most.min(self.free());
        self.held = self.held.checked_add(reserved)?;
        Ok(reserved)
    }

    /// Ends a reservation from `cycle`. Returns the part of `cost` that is drawn, and the part that
    /// expires.
    fn settle(
        &mut self,
        reserved: Amount,
        cycle: i64,
        cost: Amount,
    ) -> Result<(Amount, Amount), Overflow> {
        let drawn = cost.min(self.free().checked_add(reserved)?);
        let unused = reserved.checked_sub(drawn.min(reserved))?;
        let expired = if cycle <= self.expired_cycle { unused } else { Amount::ZERO };
        self.held = self.held.checked_sub(reserved)?;
        self.remaining = self.remaining.checked_sub(drawn)?.checked_sub(expired)?;
        Ok((drawn, expired))
    }
}

/// The credits of a wallet. They are zero for a wallet that never had a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credits {
    /// Credit that cycles included.
    pub cycle: Credit,
    /// Credit that was bought.
    pub bundle: Credit,
    /// The number of cycles that have begun on this wallet, over all subscriptions.
    pub cycles: i64,
}

/// The credit that a call has reserved on a wallet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreditHold {
    /// The part of credit that cycles included.
    pub cycle: Amount,
    /// The part of credit that was bought.
    pub bundle: Amount,
    /// The cycle of the reservation.
    pub in_cycle: i64,
}

/// The payment of a call's cost, by account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditSettlement {
    /// The part from credit that cycles included.
    pub cycle: Amount,
    /// The part from credit that was bought.
    pub bundle: Amount,
    /// The part from the balance.
    pub balance: Amount,
    /// The unused reservation of an expired cycle's credit.
    pub cycle_expired: Amount,
    /// The unused reservation of expired bundles.
    pub bundle_expired: Amount,
}

impl Credits {
    /// The credit that a new call may draw on.
    pub fn free(&self) -> Amount {
        self.cycle.free().saturating_add(self.bundle.free())
    }

    /// The remaining credit of both accounts.
    pub fn remaining(&self) -> Amount {
        self.cycle.remaining.saturating_add(self.bundle.remaining)
    }

    /// The credit of both accounts that calls in flight have reserved.
    pub fn held(&self) -> Amount {
        self.cycle.held.saturating_add(self.bundle.held)
    }

    /// Reserves up to `most` for a call, from credit that cycles included first.
    ///
    /// # Errors
    /// [`Overflow`] when a sum leaves the range of an [`Amount`].
    pub fn reserve(&mut self, most: Amount) -> Result<CreditHold, Overflow> {
        let cycle = self.cycle.reserve(most)?;
        let bundle = self.bundle.reserve(most.checked_sub(cycle)?)?;
        Ok(CreditHold { cycle, bundle, in_cycle: self.cycles })
    }

    /// Ends a call that costs `cost`. Credit that cycles included is drawn first, then bought
    /// credit; the balance pays the rest. Reservations of other calls are not touched.
    ///
    /// # Errors
    /// [`Overflow`] when a sum leaves the range of an [`Amount`].
    pub fn settle(&mut self, hold: CreditHold, cost: Amount) -> Result<CreditSettlement, Overflow> {
        let wanted = cost.max(Amount::ZERO);
        let (cycle, cycle_expired) = self.cycle.settle(hold.cycle, hold.in_cycle, wanted)?;
        let wanted = wanted.checked_sub(cycle)?;
        let (bundle, bundle_expired) = self.bundle.settle(hold.bundle, hold.in_cycle, wanted)?;
        let balance = cost.checked_sub(cycle)?.checked_sub(bundle)?;
        Ok(CreditSettlement { cycle, bundle, balance, cycle_expired, bundle_expired })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usd(units: i64) -> Amount {
        Amount::from_units(units)
    }

    fn credits(cycle: i64, bundle: i64) -> Credits {
        let credit = |units| Credit { remaining: usd(units), ..Credit::default() };
        Credits { cycle: credit(cycle), bundle: credit(bundle), cycles: 1 }
    }

    #[test]
    fn a_cost_is_paid_by_cycle_credit_then_bundles_then_the_balance() {
        for (cost, paid) in [(4, (4, 0, 0)), (10, (10, 0, 0)), (13, (10, 3, 0)), (20, (10, 5, 5))] {
            let mut credits = credits(10, 5);
            let hold = credits.reserve(usd(20)).unwrap();
            assert_eq!((hold.cycle, hold.bundle, credits.free()), (usd(10), usd(5), usd(0)));
            let drawn = credits.settle(hold, usd(cost)).unwrap();
            assert_eq!((drawn.cycle, drawn.bundle, drawn.balance), {
                let (cycle, bundle, balance) = paid;
                (usd(cycle), usd(bundle), usd(balance))
            });
            assert_eq!(credits.held(), usd(0));
            assert_eq!(credits.remaining(), usd(15 - paid.0 - paid.1));
        }
    }

    #[test]
    fn nobody_draws_what_another_call_has_reserved() {
        let mut credits = credits(10, 0);
        let first = credits.reserve(usd(6)).unwrap();
        let second = credits.reserve(usd(6)).unwrap();
        assert_eq!((first.cycle, second.cycle), (usd(6), usd(4)));
        let drawn = credits.settle(second, usd(9)).unwrap();
        assert_eq!((drawn.cycle, drawn.balance), (usd(4), usd(5)));
        let drawn = credits.settle(first, usd(6)).unwrap();
        assert_eq!((drawn.cycle, drawn.balance), (usd(6), usd(0)));
    }

    #[test]
    fn what_was_reserved_of_an_expired_cycle_serves_its_call_and_then_expires() {
        let mut credits = credits(10, 0);
        let hold = credits.reserve(usd(6)).unwrap();
        // The cycle ends: 4 expire at once, 25 are granted.
        credits.cycle = Credit { remaining: usd(31), held: usd(6), expired_cycle: 1 };
        credits.cycles = 2;
        assert_eq!(credits.free(), usd(25));
        let drawn = credits.settle(hold, usd(2)).unwrap();
        assert_eq!((drawn.cycle, drawn.cycle_expired), (usd(2), usd(4)));
        assert_eq!((credits.remaining(), credits.held()), (usd(25), usd(0)));
    }
}
