//! Subscriptions: credit that a customer receives cycle by cycle.
//!
//! No job runs at the end of a cycle. Each read or draw first
//! [renews the subscription](Subscription::renew_until), through all cycles that have
//! passed. The result is the same as if each cycle had been ended on time.

use tollgate_pricing::{Amount, Overflow};

use crate::credit::{Credit, Credits, LedgerAccount, Rollover};
use crate::event::EventPayload;
use crate::id::{ConnectionId, MerchantId, MeterId, SubscriptionId, WalletId};
use crate::plan_change::{ChangePreview, EndedCycle, UpgradeRule};
use crate::subscription_config::{CreditBundle, SubscriptionConfig};
use crate::subscription_state::{
    PendingKind, PendingState, Plan, SubscriptionState, SubscriptionStatus,
};
use crate::time::Timestamp;
use crate::wallet::TransactionKind;

/// A change at the end of the present cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingChange {
    /// The subscription ends.
    Cancellation,
    /// The subscription continues under another configuration.
    Downgrade(Box<SubscriptionConfig>),
}

/// A customer's subscription. Its credit lies on the customer's wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The id.
    pub subscription_id: SubscriptionId,
    /// The merchant of the customer.
    pub merchant_id: MerchantId,
    /// The customer.
    pub connection_id: ConnectionId,
    /// The wallet with its credit.
    pub wallet_id: WalletId,
    /// The plan.
    pub config: SubscriptionConfig,
    /// The status.
    pub status: SubscriptionStatus,
    /// The start of the subscription.
    pub started_at: Timestamp,
    /// The end of a cancelled subscription.
    pub cancelled_at: Option<Timestamp>,
    /// The instant from which its cycles are counted.
    pub anchor_at: Timestamp,
    /// The number of the present cycle from there: 1, 2, 3, …
    pub cycle: i64,
    /// The start of the present cycle.
    pub cycle_start_at: Timestamp,
    /// The end of the present cycle.
    pub cycle_end_at: Timestamp,
    /// The change at that end.
    pub pending_change: Option<PendingChange>,
}

/// A movement of credit that has been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditMovement {
    /// The account.
    pub account: LedgerAccount,
    /// The reason.
    pub kind: TransactionKind,
    /// The amount; negative takes out.
    pub amount: Amount,
    /// The account's credit after it.
    pub balance_after: Amount,
    /// The idempotency key, unique per wallet. Absent where a repeated order is caught elsewhere.
    pub idempotency_key: Option<String>,
}

/// A change of a subscription, with its movements and its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionTransition {
    /// The time of effect.
    pub at: Timestamp,
    /// The movements of credit.
    pub movements: Vec<CreditMovement>,
    /// The event.
    pub payload: EventPayload,
}

/// A customer that subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// The merchant.
    pub merchant_id: MerchantId,
    /// The customer.
    pub connection_id: ConnectionId,
    /// The customer's wallet.
    pub wallet_id: WalletId,
}

impl Subscription {
    /// Begins a subscription and, at once, its first cycle.
    pub fn start(
        subscriber: Subscriber,
        config: SubscriptionConfig,
        credits: &mut Credits,
        now: Timestamp,
    ) -> (Self, SubscriptionTransition) {
        let mut begun = Self {
            subscription_id: SubscriptionId::generate(now),
            merchant_id: subscriber.merchant_id,
            connection_id: subscriber.connection_id,
            wallet_id: subscriber.wallet_id,
            status: SubscriptionStatus::Active,
            started_at: now,
            cancelled_at: None,
            anchor_at: now,
            cycle: 0,
            cycle_start_at: now,
            cycle_end_at: now,
            pending_change: None,
            config,
        };
        credits.cycles = credits.cycles.saturating_add(1);
        let movements = begun.begin_cycle(credits).into_iter().collect();
        let news = EventPayload::SubscriptionCreated {
            subscription: Box::new(begun.state(credits)),
            amount_due: begun.config.period_amount,
        };
        (begun, SubscriptionTransition { at: now, movements, payload: news })
    }

    /// Returns whether a cycle has passed that is not ended yet.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.status == SubscriptionStatus::Active && self.cycle_end_at <= now
    }

    /// Returns whether calls under a meter draw on its credit from now on.
    pub fn allows_draw(&self, meter_id: MeterId) -> bool {
        self.status == SubscriptionStatus::Active && self.config.terms().allows_draw(meter_id)
    }

    /// Ends every cycle that has passed, each by the terms of its time. Returns the steps, oldest
    /// first.
    pub fn renew_until(
        &mut self,
        now: Timestamp,
        credits: &mut Credits,
    ) -> Vec<SubscriptionTransition> {
        let mut steps = Vec::new();
        while self.is_due(now) {
            steps.push(self.complete_cycle(credits));
        }
        steps
    }

    /// Ends the present cycle, by the pending change or with a renewal.
    fn complete_cycle(&mut self, credits: &mut Credits) -> SubscriptionTransition {
        let at = self.cycle_end_at;
        let pending = self.pending_change.take();
        if pending == Some(PendingChange::Cancellation) {
            return self.end(credits, at);
        }
        let terms = self.config.terms_at(at);
        let mut movements = end_cycle(credits, terms.rollover_type, terms.bundle_rollover_type);
        let is_changed = pending.is_some();
        if let Some(PendingChange::Downgrade(config)) = pending {
            if config.billing_interval != self.config.billing_interval {
                self.restart_cycles(at);
            }
            self.config = *config;
        }
        movements.extend(self.begin_cycle(credits));
        let subscription = Box::new(self.state(credits));
        let amount_due = self.config.period_amount;
        let news = match is_changed {
            true => EventPayload::SubscriptionChanged { subscription, amount_due },
            false => EventPayload::SubscriptionRenewed { subscription, amount_due },
        };
        SubscriptionTransition { at, movements, payload: news }
    }

    /// Lets the subscription end with its present cycle. A second call changes nothing.
    pub fn cancel(&mut self) {
        self.pending_change = Some(PendingChange::Cancellation);
    }

    /// Ends the subscription at once. All credit that no call has reserved expires.
    pub fn end(&mut self, credits: &mut Credits, at: Timestamp) -> SubscriptionTransition {
        let mut movements = Vec::new();
        let cycle = credits.cycles;
        movements.extend(expire(LedgerAccount::CycleCredit, &mut credits.cycle, cycle));
        movements.extend(expire(LedgerAccount::BundleCredit, &mut credits.bundle, cycle));
        self.status = SubscriptionStatus::Cancelled;
        self.cancelled_at = Some(at);
        self.cycle_end_at = at;
        self.pending_change = None;
        let news =
            EventPayload::SubscriptionCancelled { subscription: Box::new(self.state(credits)) };
        SubscriptionTransition { at, movements, payload: news }
    }

    /// Changes to another configuration. A change to a more expensive one takes effect at once,
    /// with a new cycle by the rule of an upgrade, and returns its transition. Any other change takes
    /// effect when the cycle ends. A change to the present configuration cancels the pending change.
    pub fn change(
        &mut self,
        to: SubscriptionConfig,
        on_upgrade: UpgradeRule,
        credits: &mut Credits,
        now: Timestamp,
    ) -> Option<SubscriptionTransition> {
        self.pending_change = None;
        if to.subscription_config_id == self.config.subscription_config_id {
            return None;
        }
        if to.period_amount <= self.config.period_amount {
            self.pending_change = Some(PendingChange::Downgrade(Box::new(to)));
            return None;
        }
        let amount_due = match on_upgrade {
            UpgradeRule::Carry | UpgradeRule::Expire => to.period_amount,
            UpgradeRule::Prorate => self.present_cycle(now).prorated(to.period_amount),
        };
        let included = match on_upgrade {
            UpgradeRule::Carry | UpgradeRule::Prorate => Rollover::Full,
            UpgradeRule::Expire => Rollover::None,
        };
        let bought = self.config.terms_at(now).bundle_rollover_type;
        let mut movements = end_cycle(credits, included, bought);
        self.config = to;
        self.restart_cycles(now);
        movements.extend(self.begin_cycle(credits));
        let subscription = Box::new(self.state(credits));
        let news = EventPayload::SubscriptionChanged { subscription, amount_due };
        Some(SubscriptionTransition { at: now, movements, payload: news })
    }

    /// The effect that [`Subscription::change`] would have. Changes nothing.
    pub fn preview_change(
        &self,
        to: SubscriptionConfig,
        on_upgrade: UpgradeRule,
        credits: &Credits,
        now: Timestamp,
    ) -> ChangePreview {
        let (mut after, mut left) = (self.clone(), *credits);
        let mut step = after.change(to, on_upgrade, &mut left, now);
        if after.pending_change.is_some() {
            step = Some(after.complete_cycle(&mut left));
        }
        let movements = step.iter().flat_map(|step| &step.movements);
        let expired = movements.filter(|movement| movement.kind == TransactionKind::CreditExpiry);
        let credit_lost =
            expired.fold(Amount::ZERO, |sum, movement| sum.saturating_sub(movement.amount));
        let due = step.as_ref().and_then(|step| step.payload.charge());
        ChangePreview {
            effective_at: step.as_ref().map_or(now, |step| step.at),
            amount_due: due.map_or(Amount::ZERO, |charge| charge.amount_due),
            credit_lost,
            credit_carried: credits.remaining().saturating_sub(credit_lost),
            after: after.state(&left),
        }
    }

    /// The present cycle as a change at `now` ends it.
    fn present_cycle(&self, now: Timestamp) -> EndedCycle {
        const MICROS: i64 = 1_000_000;
        let until_end =
            |from: Timestamp| self.cycle_end_at.unix_micros().saturating_sub(from.unix_micros());
        EndedCycle {
            price: self.config.period_amount,
            seconds: until_end(self.cycle_start_at) / MICROS,
            seconds_left: until_end(now) / MICROS,
        }
    }

    /// Adds the credit of a bought bundle.
    ///
    /// # Errors
    /// [`Overflow`] when the credit leaves the range of an [`Amount`].
    pub fn buy_bundle(
        &self,
        bundle: &CreditBundle,
        credits: &mut Credits,
        now: Timestamp,
    ) -> Result<SubscriptionTransition, Overflow> {
        // The sum of both credits must be an amount, too.
        credits.remaining().checked_add(bundle.credit_amount)?;
        credits.bundle.remaining = credits.bundle.remaining.checked_add(bundle.credit_amount)?;
        let movements = vec![CreditMovement {
            account: LedgerAccount::BundleCredit,
            kind: TransactionKind::BundlePurchase,
            amount: bundle.credit_amount,
            balance_after: credits.bundle.remaining,
            idempotency_key: None,
        }];
        let news = EventPayload::CreditBundlePurchased {
            credit_bundle: Box::new(bundle.clone()),
            subscription: Box::new(self.state(credits)),
            amount_due: bundle.cost,
        };
        Ok(SubscriptionTransition { at: now, movements, payload: news })
    }

    fn restart_cycles(&mut self, anchor: Timestamp) {
        self.anchor_at = anchor;
        self.cycle = 0;
        self.cycle_end_at = anchor;
    }

    /// Begins the next cycle at the end of the last one, and grants its credit.
    fn begin_cycle(&mut self, credits: &mut Credits) -> Option<CreditMovement> {
        self.cycle_start_at = self.cycle_end_at;
        self.cycle = self.cycle.saturating_add(1);
        self.cycle_end_at = self.config.billing_interval.end_of(self.anchor_at, self.cycle);
        // Credit that always rolls over is capped at the range of an amount.
        let room = Amount::MAX.saturating_sub(credits.remaining());
        let amount = self.config.terms_at(self.cycle_start_at).included_credit.min(room);
        credits.cycle.remaining = credits.cycle.remaining.saturating_add(amount);
        amount.is_positive().then(|| CreditMovement {
            account: LedgerAccount::CycleCredit,
            kind: TransactionKind::CreditGrant,
            amount,
            balance_after: credits.cycle.remaining,
            idempotency_key: Some(format!("credit_grant:{}", credits.cycles)),
        })
    }

    /// The subscription as it is shown, with the credits of its wallet.
    pub fn state(&self, credits: &Credits) -> SubscriptionState {
        let terms = self.config.terms();
        let of_active = |amount| match self.status {
            SubscriptionStatus::Active => amount,
            // Credit on the wallet belongs to another subscription then, or to its calls.
            SubscriptionStatus::Cancelled => Amount::ZERO,
        };
        let pending = |kind, config: &SubscriptionConfig| PendingState {
            kind,
            effective_at: self.cycle_end_at,
            plan: Plan::of(config),
        };
        SubscriptionState {
            subscription_id: self.subscription_id,
            connection_id: self.connection_id,
            plan: Plan::of(&self.config),
            status: self.status,
            billing_interval: self.config.billing_interval,
            started_at: self.started_at,
            cancelled_at: self.cancelled_at,
            cycle_start_at: self.cycle_start_at,
            cycle_end_at: self.cycle_end_at,
            cycle_remaining: of_active(credits.cycle.remaining),
            bundle_remaining: of_active(credits.bundle.remaining),
            cycle_rollover: terms.rollover_type,
            bundle_rollover: terms.bundle_rollover_type,
            pending_change: self.pending_change.as_ref().map(|change| match change {
                PendingChange::Cancellation => pending(PendingKind::Cancellation, &self.config),
                PendingChange::Downgrade(config) => pending(PendingKind::Downgrade, config),
            }),
        }
    }
}

/// Ends a cycle of credit. The credit that it included and bought credit roll over or expire, and the
/// next cycle is counted.
fn end_cycle(credits: &mut Credits, included: Rollover, bought: Rollover) -> Vec<CreditMovement> {
    let cycle = credits.cycles;
    let each = [
        (LedgerAccount::CycleCredit, &mut credits.cycle, included),
        (LedgerAccount::BundleCredit, &mut credits.bundle, bought),
    ];
    let mut movements = Vec::new();
    for (account, credit, rule) in each {
        match rule {
            Rollover::Full => movements.extend(roll_over(account, credit, cycle)),
            Rollover::None => movements.extend(expire(account, credit, cycle)),
        }
    }
    credits.cycles = cycle.saturating_add(1);
    movements
}

/// Moves credit from the cycle that ends into the next, as two lines with the sum zero.
fn roll_over(
    account: LedgerAccount,
    credit: &Credit,
    cycle: i64,
) -> impl Iterator<Item = CreditMovement> + use<> {
    let whole = credit.remaining;
    let out = Amount::ZERO.saturating_sub(whole);
    let line = move |amount, balance_after, name| CreditMovement {
        account,
        kind: TransactionKind::Rollover,
        amount,
        balance_after,
        idempotency_key: Some(format!("{name}:{cycle}:{account:?}")),
    };
    let both = [line(out, Amount::ZERO, "rollover_from"), line(whole, whole, "rollover_after")];
    both.into_iter().filter(move |_| whole.is_positive())
}

/// Lets the credit expire that no call has reserved.
fn expire(account: LedgerAccount, credit: &mut Credit, cycle: i64) -> Option<CreditMovement> {
    let unused = credit.free();
    credit.remaining = credit.held;
    credit.expired_cycle = cycle;
    unused.is_positive().then(|| CreditMovement {
        account,
        kind: TransactionKind::CreditExpiry,
        amount: Amount::ZERO.saturating_sub(unused),
        balance_after: credit.remaining,
        idempotency_key: Some(format!("credit_expiry:{cycle}:{account:?}")),
    })
}
