//! Subscriptions: credit that a connection is granted cycle by cycle.
//!
//! Nothing has to run when a cycle ends. Whatever reads or draws on a subscription first
//! [brings it up to now](Subscription::bring_up_to), through as many cycles as have passed, and
//! what comes out is the same as if it had been done on time.

use tollgate_pricing::{Amount, Overflow};

use crate::credit::{Credit, Credits, LedgerAccount, Rollover};
use crate::event::News;
use crate::id::{ConnectionId, MerchantId, MeterId, SubscriptionId, WalletId};
use crate::subscription_config::{ConfigTerms, CreditBundle, SubscriptionConfig};
use crate::subscription_state::{
    PendingKind, PendingState, Plan, SubscriptionState, SubscriptionStatus,
};
use crate::time::Timestamp;
use crate::wallet::TransactionKind;

/// What happens when the present cycle ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingChange {
    /// The subscription ends.
    Cancellation,
    /// It goes on under another configuration.
    Downgrade(Box<SubscriptionConfig>),
}

/// A connection's subscription. Its credit lies on the connection's wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its id.
    pub subscription_id: SubscriptionId,
    /// Whose customer has it.
    pub merchant_id: MerchantId,
    /// Who has it.
    pub connection_id: ConnectionId,
    /// The wallet that its credit lies on.
    pub wallet_id: WalletId,
    /// What was subscribed to.
    pub config: SubscriptionConfig,
    /// Whether it goes on.
    pub status: SubscriptionStatus,
    /// Since when.
    pub started_at: Timestamp,
    /// When it ended.
    pub cancelled_at: Option<Timestamp>,
    /// From when its cycles are counted.
    pub anchor_at: Timestamp,
    /// Which cycle from there it is in: 1, 2, 3, …
    pub cycle: i64,
    /// When that began.
    pub cycle_start_at: Timestamp,
    /// When it ends.
    pub cycle_end_at: Timestamp,
    /// What happens then.
    pub pending_change: Option<PendingChange>,
}

/// A movement of credit, already made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditMovement {
    /// What it moved.
    pub account: LedgerAccount,
    /// Why.
    pub kind: TransactionKind,
    /// By how much; negative takes out.
    pub amount: Amount,
    /// What it left.
    pub balance_after: Amount,
    /// No wallet books the same one twice; absent where a repeated order is caught elsewhere.
    pub idempotency_key: Option<String>,
}

/// Something that a subscription went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it took effect.
    pub at: Timestamp,
    /// What it moved.
    pub movements: Vec<CreditMovement>,
    /// What is told of it.
    pub news: News,
}

/// Who subscribes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// Whose customer.
    pub merchant_id: MerchantId,
    /// The customer.
    pub connection_id: ConnectionId,
    /// The customer's wallet.
    pub wallet_id: WalletId,
}

impl Subscription {
    /// Begins a subscription: its first cycle begins at once.
    pub fn start(
        subscriber: Subscriber,
        config: SubscriptionConfig,
        credits: &mut Credits,
        now: Timestamp,
    ) -> (Self, Step) {
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
        let news = News::SubscriptionCreated {
            subscription: Box::new(begun.state(credits)),
            amount_due: begun.config.period_amount,
        };
        (begun, Step { at: now, movements, news })
    }

    /// Whether a cycle has ended that was not ended yet.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.status == SubscriptionStatus::Active && self.cycle_end_at <= now
    }

    /// Whether calls under a meter draw on its credit from now on.
    pub fn lets_draw(&self, meter_id: MeterId) -> bool {
        self.status == SubscriptionStatus::Active && self.config.terms().let_draw(meter_id)
    }

    /// Ends every cycle that has passed, each by the terms of its time.
    pub fn bring_up_to(&mut self, now: Timestamp, credits: &mut Credits) -> Vec<Step> {
        let mut steps = Vec::new();
        while self.is_due(now) {
            steps.push(self.end_of_cycle(credits));
        }
        steps
    }

    /// What happens at the end of the present cycle.
    fn end_of_cycle(&mut self, credits: &mut Credits) -> Step {
        let at = self.cycle_end_at;
        let pending = self.pending_change.take();
        if pending == Some(PendingChange::Cancellation) {
            return self.end(credits, at);
        }
        let mut movements = end_cycle(credits, self.config.terms_at(at));
        let is_changed = pending.is_some();
        if let Some(PendingChange::Downgrade(config)) = pending {
            if config.billing_interval != self.config.billing_interval {
                self.count_from(at);
            }
            self.config = *config;
        }
        movements.extend(self.begin_cycle(credits));
        let subscription = Box::new(self.state(credits));
        let amount_due = self.config.period_amount;
        let news = match is_changed {
            true => News::SubscriptionChanged { subscription, amount_due },
            false => News::SubscriptionRenewed { subscription, amount_due },
        };
        Step { at, movements, news }
    }

    /// Ends the subscription when its cycle ends. Asked twice, it ends once.
    pub fn cancel(&mut self) {
        self.pending_change = Some(PendingChange::Cancellation);
    }

    /// Ends the subscription at once: all credit that no call has reserved expires.
    pub fn end(&mut self, credits: &mut Credits, at: Timestamp) -> Step {
        let mut movements = Vec::new();
        let cycle = credits.cycles;
        movements.extend(expire(LedgerAccount::CycleCredit, &mut credits.cycle, cycle));
        movements.extend(expire(LedgerAccount::BundleCredit, &mut credits.bundle, cycle));
        self.status = SubscriptionStatus::Cancelled;
        self.cancelled_at = Some(at);
        self.cycle_end_at = at;
        self.pending_change = None;
        let news = News::SubscriptionCancelled { subscription: Box::new(self.state(credits)) };
        Step { at, movements, news }
    }

    /// Changes to another configuration: to a dearer one at once, with a new cycle; to any other
    /// when the cycle ends. To change to the present one undoes what is pending.
    pub fn change(
        &mut self,
        to: SubscriptionConfig,
        credits: &mut Credits,
        now: Timestamp,
    ) -> Option<Step> {
        self.pending_change = None;
        if to.subscription_config_id == self.config.subscription_config_id {
            return None;
        }
        if to.period_amount <= self.config.period_amount {
            self.pending_change = Some(PendingChange::Downgrade(Box::new(to)));
            return None;
        }
        let mut movements = end_cycle(credits, self.config.terms_at(now));
        self.config = to;
        self.count_from(now);
        movements.extend(self.begin_cycle(credits));
        let news = News::SubscriptionChanged {
            subscription: Box::new(self.state(credits)),
            amount_due: self.config.period_amount,
        };
        Some(Step { at: now, movements, news })
    }

    /// Adds bought credit.
    ///
    /// # Errors
    /// [`Overflow`] when the credit would leave the range of an amount.
    pub fn buy(
        &self,
        bundle: &CreditBundle,
        credits: &mut Credits,
        now: Timestamp,
    ) -> Result<Step, Overflow> {
        // Both credits together are an amount, too.
        credits.remaining().checked_add(bundle.credit_amount)?;
        credits.bundle.remaining = credits.bundle.remaining.checked_add(bundle.credit_amount)?;
        let movements = vec![CreditMovement {
            account: LedgerAccount::BundleCredit,
            kind: TransactionKind::BundlePurchase,
            amount: bundle.credit_amount,
            balance_after: credits.bundle.remaining,
            idempotency_key: None,
        }];
        let news = News::CreditBundlePurchased {
            credit_bundle: Box::new(bundle.clone()),
            subscription: Box::new(self.state(credits)),
            amount_due: bundle.cost,
        };
        Ok(Step { at: now, movements, news })
    }

    fn count_from(&mut self, anchor: Timestamp) {
        self.anchor_at = anchor;
        self.cycle = 0;
        self.cycle_end_at = anchor;
    }

    /// Begins the next cycle where the last one ended, and grants its credit.
    fn begin_cycle(&mut self, credits: &mut Credits) -> Option<CreditMovement> {
        self.cycle_start_at = self.cycle_end_at;
        self.cycle = self.cycle.saturating_add(1);
        self.cycle_end_at = self.config.billing_interval.end_of(self.anchor_at, self.cycle);
        // Credit that rolls over for ever ends at what an amount can hold.
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

    /// The subscription as it can be shown beside the credits of its wallet.
    pub fn state(&self, credits: &Credits) -> SubscriptionState {
        let terms = self.config.terms();
        let of_active = |amount| match self.status {
            SubscriptionStatus::Active => amount,
            // What may be left there is another subscription's, or its calls'.
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

/// Ends a cycle of credit: each of the two rolls over or expires, and the next cycle is counted.
fn end_cycle(credits: &mut Credits, terms: &ConfigTerms) -> Vec<CreditMovement> {
    let cycle = credits.cycles;
    let each = [
        (LedgerAccount::CycleCredit, &mut credits.cycle, terms.rollover_type),
        (LedgerAccount::BundleCredit, &mut credits.bundle, terms.bundle_rollover_type),
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

/// Takes credit out of the cycle that ends and into the next, as two lines that add up to nothing.
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

/// Lets credit expire that no call has reserved.
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
