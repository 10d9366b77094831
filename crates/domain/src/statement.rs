//! Monthly statements of customers.
//!
//! Each figure is a sum of ledger lines of the customer's wallet, by the time of the line. What is booked after a
//! month has ended belongs to the month in which it is booked. So the statement of a month that has ended does not
//! change.
//!
//! Sums are in units of 10⁻¹⁰ USD, in a type that no sum overflows.

use tollgate_pricing::Amount;

use crate::event_kind::EventKind;
use crate::id::SubscriptionId;
use crate::span::Month;
use crate::time::Timestamp;

/// The statement of a customer for a calendar month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The month.
    pub month: Month,
    /// The start of the month by the clocks of the statement's zone.
    pub start: Timestamp,
    /// The end of the month, exclusive.
    pub end: Timestamp,
    /// The balance at the start.
    pub opening_balance: i128,
    /// The money that was put in.
    pub credits: i128,
    /// The money that was taken out, at most zero.
    pub debits: i128,
    /// The part of the month's calls that the balance paid, at most zero.
    pub usage: i128,
    /// The corrections, and the calls of earlier months that were settled in this one. Negative takes out.
    pub corrections: i128,
    /// The balance at the end. The opening balance and the four amounts before add up to it.
    pub closing_balance: i128,
    /// The calls that were made and settled in the month, by model. The most expensive model is the first.
    pub usage_by_model: Vec<ModelUsage>,
    /// The corrections by the month of their call, oldest first.
    pub corrections_by_month: Vec<MonthCorrection>,
    /// The amounts that the merchant has to collect for plans and bought credit, oldest first.
    pub plan_charges: Vec<StatementCharge>,
    /// The movements of credit.
    pub credit: CreditSummary,
}

/// The calls of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// The model. `None` for calls without one.
    pub model: Option<String>,
    /// The number of calls.
    pub requests: u64,
    /// The tokens of input and output.
    pub tokens: u64,
    /// The cost that the wallet paid, from its balance and from credit.
    pub amount: i128,
}

/// The corrections of calls of one month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonthCorrection {
    /// The month of the calls.
    pub month: Month,
    /// The movement of the balance. Negative takes out.
    pub balance: i128,
    /// The movement of credit. Negative takes out.
    pub credit: i128,
}

/// An amount that the merchant has to collect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementCharge {
    /// The time of effect.
    pub charged_at: Timestamp,
    /// The kind of the event that reported it.
    pub kind: EventKind,
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// The name of the plan or of the bundle at that time.
    pub name: String,
    /// The amount.
    pub amount: Amount,
}

/// The movements of the credit that cycles included and of bought credit, in one sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditSummary {
    /// The credit at the start.
    pub opening: i128,
    /// The credit that cycles included or that was bought.
    pub granted: i128,
    /// The part of the month's calls that credit paid.
    pub used: i128,
    /// The corrections, and the calls of earlier months that were settled in this one. Negative takes out.
    pub corrected: i128,
    /// The credit that expired.
    pub expired: i128,
    /// The credit that moved from one cycle into the next. It is no change of the sum.
    pub rolled_over: i128,
    /// The credit at the end: opening, granted and corrected, less used and expired.
    pub closing: i128,
}

/// A figure of a statement that its parts do not add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementFault {
    /// The figure.
    pub figure: &'static str,
    /// The figure as the statement has it.
    pub stated: i128,
    /// The sum of its parts.
    pub computed: i128,
}

impl Statement {
    /// The sum of the plan charges.
    pub fn plan_charges_total(&self) -> i128 {
        self.plan_charges.iter().map(|charge| i128::from(charge.amount.units())).sum()
    }

    /// The figures that their parts do not add up to. Empty for every correct statement.
    pub fn faults(&self) -> Vec<StatementFault> {
        let credit = &self.credit;
        let by_month = |part: fn(&MonthCorrection) -> i128| {
            self.corrections_by_month.iter().map(part).sum::<i128>()
        };
        let movements = self.credits + self.debits + self.usage + self.corrections;
        let granted = credit.granted + credit.corrected - credit.used - credit.expired;
        let by_model = self.usage_by_model.iter().map(|one| one.amount).sum();
        let figures = [
            ("closing_balance", self.closing_balance, self.opening_balance + movements),
            ("credit.closing", credit.closing, credit.opening + granted),
            ("corrections", self.corrections, by_month(|one| one.balance)),
            ("credit.corrected", credit.corrected, by_month(|one| one.credit)),
            ("usage and credit.used", credit.used - self.usage, by_model),
        ];
        let faults = figures.into_iter().filter(|(_, stated, computed)| stated != computed);
        let faults =
            faults.map(|(figure, stated, computed)| StatementFault { figure, stated, computed });
        faults.collect()
    }
}
