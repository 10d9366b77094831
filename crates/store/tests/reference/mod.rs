//! The reference model of docs/SUBSCRIPTIONS.md, written as plainly as possible.
//!
//! It counts in cents and milliseconds, and ends every cycle at its exact end. Credit is kept as the free
//! part and the part that each open call has reserved. It shares no rule with the code that it checks.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use tollgate_domain::{BillingInterval, LedgerAccount, TransactionKind, UpgradeRule};

pub(crate) const DAY: i64 = 24 * 60 * 60 * 1_000;

const CYCLE: usize = 0;
const BUNDLE: usize = 1;
const CREDITS: [LedgerAccount; 2] = [LedgerAccount::CycleCredit, LedgerAccount::BundleCredit];

#[derive(Clone, Debug)]
pub(crate) struct ReferenceBundle {
    pub(crate) cost: i64,
    pub(crate) credit: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct ReferenceConfig {
    pub(crate) price: i64,
    pub(crate) interval: BillingInterval,
    pub(crate) included: i64,
    /// Whether cycle credit and bundle credit can be used in the next cycle.
    pub(crate) rolls_over: [bool; 2],
    /// The meters that draw on credit. If empty, all meters do.
    pub(crate) links: Vec<usize>,
    pub(crate) bundles: Vec<ReferenceBundle>,
    pub(crate) is_offered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferencePending {
    Cancellation,
    Downgrade(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct ReferenceSubscription {
    pub(crate) config: usize,
    pub(crate) started_at: i64,
    pub(crate) cancelled_at: Option<i64>,
    anchor: i64,
    /// The number of cycles since the anchor that have begun.
    count: i64,
    pub(crate) cycle_start: i64,
    pub(crate) cycle_end: i64,
    pub(crate) pending: Option<ReferencePending>,
}

/// A call in flight.
#[derive(Clone, Debug)]
struct ReferenceCall {
    on_balance: i64,
    reserved: [i64; 2],
    /// Whether its reserved credit expires when it ends.
    is_lapsed: [bool; 2],
    may_draw: bool,
    is_billed: bool,
}

/// The outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderOutcome {
    Done,
    NotOffered,
    Ended,
    Exists,
    ConnectionDeleted,
    Insufficient,
}

#[derive(Clone, Debug)]
pub(crate) struct ReferenceModel {
    pub(crate) now: i64,
    pub(crate) configs: Vec<ReferenceConfig>,
    pub(crate) balance: i64,
    /// Credit that no call has reserved.
    free: [i64; 2],
    open: Vec<ReferenceCall>,
    /// All subscriptions of all time. The last may be active.
    pub(crate) subscriptions: Vec<ReferenceSubscription>,
    pub(crate) is_deleted: bool,
    /// Every ledger line: time, account, kind and cents.
    pub(crate) lines: Vec<String>,
    /// Every event: time, kind and the cents that the merchant has to collect.
    pub(crate) told: Vec<String>,
}

impl ReferenceModel {
    pub(crate) fn new(now: i64, configs: Vec<ReferenceConfig>) -> Self {
        let told = vec![told(now, "connection.created", None)];
        Self {
            now,
            configs,
            balance: 0,
            free: [0, 0],
            open: Vec::new(),
            subscriptions: Vec::new(),
            is_deleted: false,
            lines: Vec::new(),
            told,
        }
    }

    /// The remainder of both credits.
    pub(crate) fn remaining(&self) -> [i64; 2] {
        let held = self.held();
        [self.free[CYCLE] + held[CYCLE], self.free[BUNDLE] + held[BUNDLE]]
    }

    /// The reserved part of both credits.
    pub(crate) fn held(&self) -> [i64; 2] {
        [CYCLE, BUNDLE].map(|credit| self.open.iter().map(|call| call.reserved[credit]).sum())
    }

    /// The reserved part of the balance.
    pub(crate) fn held_on_balance(&self) -> i64 {
        self.open.iter().map(|call| call.on_balance).sum()
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn active(&self) -> Option<&ReferenceSubscription> {
        self.subscriptions.last().filter(|last| last.cancelled_at.is_none())
    }

    fn active_mut(&mut self) -> &mut ReferenceSubscription {
        self.subscriptions.last_mut().unwrap()
    }

    fn line(&mut self, account: LedgerAccount, kind: TransactionKind, cents: i64) {
        if cents != 0 {
            self.lines.push(line(self.now, account, kind, cents));
        }
    }

    fn tell(&mut self, kind: &str, due: Option<i64>) {
        self.told.push(told(self.now, kind, due));
    }

    /// Lets time pass and ends every cycle at its end. Returns whether a cycle ended.
    pub(crate) fn pass(&mut self, millis: i64) -> bool {
        let until = self.now + millis;
        let mut any = false;
        while let Some(end) = self.active().map(|one| one.cycle_end).filter(|end| *end <= until) {
            self.now = end;
            self.end_cycle();
            any = true;
        }
        self.now = until;
        any
    }

    fn end_cycle(&mut self) {
        let pending = self.active_mut().pending.take();
        if pending == Some(ReferencePending::Cancellation) {
            return self.end_subscription();
        }
        let present = self.active().unwrap().config;
        self.roll_over_or_expire(self.configs[present].rolls_over);
        let mut kind = "subscription.renewed";
        if let Some(ReferencePending::Downgrade(to)) = pending {
            kind = "subscription.changed";
            let interval = self.configs[to].interval;
            let from = self.active().unwrap().config;
            let is_same = interval == self.configs[from].interval;
            let now = self.now;
            let subscription = self.active_mut();
            subscription.config = to;
            if !is_same {
                (subscription.anchor, subscription.count) = (now, 0);
            }
        }
        self.begin_cycle(kind, self.price());
    }

    fn begin_cycle(&mut self, kind: &str, amount_due: i64) {
        let now = self.now;
        let config = self.configs[self.active().unwrap().config].clone();
        let subscription = self.active_mut();
        subscription.count += 1;
        subscription.cycle_start = now;
        subscription.cycle_end = end_of(subscription.anchor, config.interval, subscription.count);
        self.free[CYCLE] += config.included;
        self.line(LedgerAccount::CycleCredit, TransactionKind::CreditGrant, config.included);
        self.tell(kind, Some(amount_due));
    }

    fn price(&self) -> i64 {
        self.configs[self.active().unwrap().config].price
    }

    fn roll_over_or_expire(&mut self, rolls_over: [bool; 2]) {
        for (credit, account) in CREDITS.into_iter().enumerate() {
            if rolls_over[credit] {
                let whole = self.remaining()[credit];
                self.line(account, TransactionKind::Rollover, -whole);
                self.line(account, TransactionKind::Rollover, whole);
            } else {
                self.expire(credit);
            }
        }
    }

    fn expire(&mut self, credit: usize) {
        self.line(CREDITS[credit], TransactionKind::CreditExpiry, -self.free[credit]);
        self.free[credit] = 0;
        self.open.iter_mut().for_each(|call| call.is_lapsed[credit] = true);
    }

    fn end_subscription(&mut self) {
        self.expire(CYCLE);
        self.expire(BUNDLE);
        let now = self.now;
        let subscription = self.active_mut();
        subscription.cancelled_at = Some(now);
        subscription.cycle_end = now;
        subscription.pending = None;
        self.tell("subscription.cancelled", None);
    }

    pub(crate) fn subscribe(&mut self, config: usize) -> OrderOutcome {
        if !self.configs[config].is_offered {
            return OrderOutcome::NotOffered;
        }
        if self.is_deleted {
            return OrderOutcome::ConnectionDeleted;
        }
        if self.active().is_some() {
            return OrderOutcome::Exists;
        }
        self.subscriptions.push(ReferenceSubscription {
            config,
            started_at: self.now,
            cancelled_at: None,
            anchor: self.now,
            count: 0,
            cycle_start: self.now,
            cycle_end: self.now,
            pending: None,
        });
        self.begin_cycle("subscription.created", self.price());
        OrderOutcome::Done
    }

    pub(crate) fn cancel(&mut self) -> OrderOutcome {
        if self.active().is_none() {
            return OrderOutcome::Ended;
        }
        self.active_mut().pending = Some(ReferencePending::Cancellation);
        OrderOutcome::Done
    }

    pub(crate) fn change(&mut self, to: usize, rule: UpgradeRule) -> OrderOutcome {
        let Some(present) = self.active().map(|one| one.config) else { return OrderOutcome::Ended };
        if to == present {
            self.active_mut().pending = None;
        } else if !self.configs[to].is_offered {
            return OrderOutcome::NotOffered;
        } else if self.configs[to].price <= self.configs[present].price {
            self.active_mut().pending = Some(ReferencePending::Downgrade(to));
        } else {
            let [_, bought] = self.configs[present].rolls_over;
            let price = self.configs[to].price;
            let due = self.due_on_upgrade(self.configs[present].price, price, rule);
            self.roll_over_or_expire([rule != UpgradeRule::Expire, bought]);
            let now = self.now;
            let subscription = self.active_mut();
            subscription.pending = None;
            subscription.config = to;
            (subscription.anchor, subscription.count) = (now, 0);
            self.begin_cycle("subscription.changed", due);
        }
        OrderOutcome::Done
    }

    /// The price in cents, by the fraction of the cycle that is left.
    fn due_on_upgrade(&self, old: i64, new: i64, rule: UpgradeRule) -> i64 {
        let active = self.active().unwrap();
        if rule != UpgradeRule::Prorate {
            return new;
        }
        let seconds = |millis: i64| i128::from(millis / 1_000);
        let whole = seconds(active.cycle_end - active.cycle_start);
        let left = seconds(active.cycle_end - self.now);
        let doubled = 2 * (i128::from(new) * whole - i128::from(old) * left);
        // Half-even: the greatest n with n - 1/2 <= the exact value, or < it for an odd n.
        let floor = (doubled + whole).div_euclid(2 * whole);
        let is_half = (doubled + whole).rem_euclid(2 * whole) == 0;
        i64::try_from(if is_half && floor % 2 != 0 { floor - 1 } else { floor }).unwrap()
    }

    pub(crate) fn buy(&mut self, config: usize, bundle: usize) -> OrderOutcome {
        let Some(present) = self.active().map(|one| one.config) else { return OrderOutcome::Ended };
        if present != config || !self.configs[config].is_offered {
            return OrderOutcome::NotOffered;
        }
        let ReferenceBundle { cost, credit } = self.configs[config].bundles[bundle];
        self.free[BUNDLE] += credit;
        self.line(LedgerAccount::BundleCredit, TransactionKind::BundlePurchase, credit);
        self.tell("credit_bundle.purchased", Some(cost));
        OrderOutcome::Done
    }

    pub(crate) fn delete(&mut self) -> bool {
        if self.is_deleted {
            return false;
        }
        if self.active().is_some() {
            self.end_subscription();
        }
        self.is_deleted = true;
        self.tell("connection.deleted", None);
        true
    }

    pub(crate) fn move_balance(&mut self, kind: TransactionKind, cents: i64) {
        let before = self.balance;
        self.balance += cents;
        self.line(LedgerAccount::Balance, kind, cents);
        if before > 0 && self.balance <= 0 {
            self.tell("wallet.balance_depleted", None);
        }
    }

    fn lets_draw(&self, meter: usize) -> bool {
        self.active().is_some_and(|subscription| {
            let links = &self.configs[subscription.config].links;
            links.is_empty() || links.contains(&meter)
        })
    }

    /// Admits a call that costs at most `most`, or refuses it.
    pub(crate) fn admit(&mut self, meter: usize, most: i64, is_billed: bool) -> OrderOutcome {
        if self.is_deleted {
            return OrderOutcome::ConnectionDeleted;
        }
        let most = if is_billed { most } else { 0 };
        let may_draw = is_billed && self.lets_draw(meter);
        let credit = if may_draw { self.free[CYCLE] + self.free[BUNDLE] } else { 0 };
        if most > 0 && self.balance - self.held_on_balance() + credit <= 0 {
            return OrderOutcome::Insufficient;
        }
        let mut on_balance = most;
        let mut reserved = [0, 0];
        if may_draw {
            for credit in [CYCLE, BUNDLE] {
                reserved[credit] = on_balance.min(self.free[credit]);
                self.free[credit] -= reserved[credit];
                on_balance -= reserved[credit];
            }
        }
        self.open.push(ReferenceCall {
            on_balance,
            reserved,
            is_lapsed: [false, false],
            may_draw,
            is_billed,
        });
        OrderOutcome::Done
    }

    /// Books usage that did not pass through the service.
    pub(crate) fn report(&mut self, meter: usize, cost: i64) -> OrderOutcome {
        if self.is_deleted {
            return OrderOutcome::ConnectionDeleted;
        }
        let may_draw = self.lets_draw(meter);
        let nothing = ReferenceCall {
            on_balance: 0,
            reserved: [0, 0],
            is_lapsed: [false, false],
            may_draw,
            is_billed: true,
        };
        self.open.push(nothing);
        self.settle(self.open.len() - 1, cost);
        OrderOutcome::Done
    }

    /// Ends a call that costs its wallet `cost`.
    pub(crate) fn settle(&mut self, which: usize, cost: i64) {
        let call = self.open.remove(which);
        let mut due = if call.is_billed { cost } else { 0 };
        if call.may_draw {
            for credit in [CYCLE, BUNDLE] {
                let reserved = call.reserved[credit];
                let drawn = due.min(reserved + self.free[credit]);
                due -= drawn;
                self.line(CREDITS[credit], TransactionKind::Usage, -drawn);
                // Its reserved credit is used first, then free credit.
                self.free[credit] -= (drawn - reserved).max(0);
                let unused = (reserved - drawn).max(0);
                if call.is_lapsed[credit] {
                    self.line(CREDITS[credit], TransactionKind::CreditExpiry, -unused);
                } else {
                    self.free[credit] += unused;
                }
            }
        }
        self.move_balance(TransactionKind::Usage, -due);
    }
}

pub(crate) fn line(at: i64, account: LedgerAccount, kind: TransactionKind, cents: i64) -> String {
    format!("{at:015} {account:?} {kind:?} {cents}")
}

pub(crate) fn told(at: i64, kind: &str, due: Option<i64>) -> String {
    format!("{at:015} {kind} {due:?}")
}

fn end_of(anchor: i64, interval: BillingInterval, count: i64) -> i64 {
    match interval {
        BillingInterval::Day => anchor + count * DAY,
        BillingInterval::Week => anchor + count * 7 * DAY,
        BillingInterval::Month => months_later(anchor, count),
        BillingInterval::Year => months_later(anchor, count * 12),
    }
}

fn months_later(anchor: i64, months: i64) -> i64 {
    let (mut year, mut month, day) = date_of(anchor.div_euclid(DAY));
    for _ in 0..months {
        month += 1;
        if month == 13 {
            (year, month) = (year + 1, 1);
        }
    }
    let day = day.min(days_in(year, month));
    days_until(year, month, day) * DAY + anchor.rem_euclid(DAY)
}

pub(crate) const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

const fn days_of(year: i64) -> i64 {
    if is_leap(year) { 366 } else { 365 }
}

/// The year, month and day of a day that is counted from 1970-01-01.
pub(crate) fn date_of(mut days: i64) -> (i64, i64, i64) {
    let mut year = 1970;
    while days >= days_of(year) {
        days -= days_of(year);
        year += 1;
    }
    let mut month = 1;
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

/// The inverse of [`date_of`].
pub(crate) fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let years: i64 = (1970..year).map(days_of).sum();
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    years + months + day - 1
}
