//! Subscriptions by the calendar: grants, rollovers and expiries, with their times.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tollgate_domain::*;
use tollgate_pricing::Amount;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

const START: &str = "2026-01-31T12:00:00Z";

fn terms(included_credit: &str, rollover: Rollover, bundle_rollover: Rollover) -> ConfigTerms {
    ConfigTerms {
        included_credit: amount(included_credit),
        rollover_type: rollover,
        bundle_rollover_type: bundle_rollover,
        meter_ids: Vec::new(),
    }
}

fn config(
    period_amount: &str,
    billing_interval: BillingInterval,
    terms: ConfigTerms,
) -> SubscriptionConfig {
    let now = at(START);
    SubscriptionConfig {
        subscription_config_id: SubscriptionConfigId::generate(now),
        merchant_id: MerchantId::generate(now),
        name: "Pro".to_owned(),
        period_amount: amount(period_amount),
        billing_interval,
        first_version: ConfigVersion { since: now, terms },
        later_versions: Vec::new(),
        created_at: now,
    }
}

fn monthly(included: &str, rollover: Rollover) -> SubscriptionConfig {
    config(included, BillingInterval::Month, terms(included, rollover, Rollover::Full))
}

/// A subscription with its wallet's credits, and every line that was booked on them.
struct SubscriptionAccount {
    subscription: Subscription,
    credits: Credits,
    lines: Vec<CreditMovement>,
    told: Vec<(Timestamp, String)>,
}

impl SubscriptionAccount {
    fn of(config: SubscriptionConfig) -> Self {
        let now = at(START);
        let subscriber = Subscriber {
            merchant_id: config.merchant_id,
            connection_id: ConnectionId::generate(now),
            wallet_id: WalletId::generate(now),
        };
        let mut credits = Credits::default();
        let (subscription, step) = Subscription::start(subscriber, config, &mut credits, now);
        let mut account = Self { subscription, credits, lines: Vec::new(), told: Vec::new() };
        account.book([step]);
        account
    }

    fn book(&mut self, steps: impl IntoIterator<Item = SubscriptionTransition>) {
        for step in steps {
            self.told.push((step.at, step.payload.kind().as_str().to_owned()));
            self.lines.extend(step.movements);
        }
        for (account, credit) in [
            (LedgerAccount::CycleCredit, self.credits.cycle),
            (LedgerAccount::BundleCredit, self.credits.bundle),
        ] {
            let mut of_account = self.lines.iter().filter(|line| line.account == account);
            let sum =
                of_account.clone().map(|line| line.amount).sum::<Result<Amount, _>>().unwrap();
            assert_eq!(sum, credit.remaining, "{account:?} is the sum of its lines");
            let last = of_account.next_back().map_or(Amount::ZERO, |line| line.balance_after);
            assert_eq!(last, credit.remaining);
        }
        let mut keys: Vec<_> =
            self.lines.iter().filter_map(|line| line.idempotency_key.clone()).collect();
        keys.sort();
        keys.dedup();
        let keyed = self.lines.iter().filter(|line| line.idempotency_key.is_some());
        assert_eq!(keys.len(), keyed.count(), "no key serves two lines");
    }

    fn use_up(&mut self, cost: &str) -> CreditSettlement {
        let hold = self.credits.reserve(amount(cost)).unwrap();
        let drawn = self.credits.settle(hold, amount(cost)).unwrap();
        for (account, drawn, credit) in [
            (LedgerAccount::CycleCredit, drawn.cycle, self.credits.cycle),
            (LedgerAccount::BundleCredit, drawn.bundle, self.credits.bundle),
        ] {
            if drawn.is_positive() {
                self.lines.push(CreditMovement {
                    account,
                    kind: TransactionKind::Usage,
                    amount: Amount::ZERO.checked_sub(drawn).unwrap(),
                    balance_after: credit.remaining,
                    idempotency_key: None,
                });
            }
        }
        drawn
    }

    fn pass_to(&mut self, instant: &str) {
        let steps = self.subscription.renew_until(at(instant), &mut self.credits);
        self.book(steps);
    }

    fn buy(&mut self, credit: &str) {
        let bundle = CreditBundle {
            credit_bundle_id: CreditBundleId::generate(at(START)),
            subscription_config_id: self.subscription.config.subscription_config_id,
            name: "Bundle".to_owned(),
            cost: amount("9"),
            credit_amount: amount(credit),
            created_at: at(START),
        };
        let step = self.subscription.buy_bundle(&bundle, &mut self.credits, at(START)).unwrap();
        self.book([step]);
    }

    fn left(&self) -> (Amount, Amount) {
        (self.credits.cycle.remaining, self.credits.bundle.remaining)
    }

    fn cycle(&self) -> (Timestamp, Timestamp) {
        (self.subscription.cycle_start_at, self.subscription.cycle_end_at)
    }

    fn told_since(&mut self, mark: usize) -> Vec<&str> {
        self.told.iter().skip(mark).map(|(_, kind)| kind.as_str()).collect()
    }
}

#[test]
fn of_25_included_and_15_used_the_next_cycle_has_35_with_full_and_25_with_none() {
    for (rollover, next) in [(Rollover::Full, "35"), (Rollover::None, "25")] {
        let mut account = SubscriptionAccount::of(monthly("25", rollover));
        assert_eq!(account.left().0, amount("25"));
        assert_eq!(account.use_up("15").cycle, amount("15"));
        account.pass_to("2026-02-28T11:59:59.999999Z");
        assert_eq!(account.left().0, amount("10"), "the cycle has not ended");
        account.pass_to("2026-02-28T12:00:00Z");
        assert_eq!(account.left().0, amount(next), "{rollover:?}");
        let kinds: Vec<_> =
            account.lines[2..].iter().map(|line| (line.kind, line.amount)).collect();
        let grant = (TransactionKind::CreditGrant, amount("25"));
        match rollover {
            Rollover::Full => assert_eq!(
                kinds,
                [
                    (TransactionKind::Rollover, amount("-10")),
                    (TransactionKind::Rollover, amount("10")),
                    grant,
                ]
            ),
            Rollover::None => {
                assert_eq!(kinds, [(TransactionKind::CreditExpiry, amount("-10")), grant]);
            }
        }
        assert_eq!(
            account.told.last().unwrap(),
            &(at("2026-02-28T12:00:00Z"), "subscription.renewed".to_owned())
        );
    }
}

#[test]
fn twelve_cycles_that_nobody_saw_end_as_if_each_had_been_seen() {
    for interval in
        [BillingInterval::Day, BillingInterval::Week, BillingInterval::Month, BillingInterval::Year]
    {
        for rollover in [Rollover::Full, Rollover::None] {
            let plan = config("30", interval, terms("25", rollover, Rollover::None));
            let (mut seen, mut unseen) =
                (SubscriptionAccount::of(plan.clone()), SubscriptionAccount::of(plan));
            for account in [&mut seen, &mut unseen] {
                account.buy("7");
                account.use_up("5");
            }
            let ends: Vec<_> = (1..=12).map(|count| interval.end_of(at(START), count)).collect();
            for end in &ends {
                seen.pass_to(&end.to_string());
            }
            unseen.pass_to(&ends[11].to_string());
            let credit = if rollover == Rollover::Full { "320" } else { "25" };
            assert_eq!(unseen.left(), (amount(credit), Amount::ZERO), "{interval:?} {rollover:?}");
            assert_eq!(unseen.left(), seen.left());
            assert_eq!(unseen.lines, seen.lines);
            assert_eq!(unseen.told, seen.told);
            assert_eq!(unseen.cycle(), (ends[11], interval.end_of(at(START), 13)));
            assert_eq!(unseen.told.len(), 2 + 12);
        }
    }
}

#[test]
fn a_cycle_that_ended_unseen_ends_by_the_terms_of_its_time() {
    let mut plan = monthly("25", Rollover::None);
    plan.later_versions = vec![
        ConfigVersion {
            since: at("2026-03-01T00:00:00Z"),
            terms: terms("40", Rollover::Full, Rollover::Full),
        },
        ConfigVersion {
            since: at("2026-04-30T12:00:00Z"),
            terms: terms("1", Rollover::Full, Rollover::Full),
        },
    ];
    let mut account = SubscriptionAccount::of(plan);
    account.pass_to("2026-02-28T12:00:00Z");
    assert_eq!(account.left().0, amount("25"), "25 expired");
    account.pass_to("2026-05-01T00:00:00Z");
    assert_eq!(account.left().0, amount("66"), "25 rolled over twice, 40 and 1 were granted");
}

#[test]
fn what_was_bought_is_drawn_after_what_was_included_and_follows_its_own_rule() {
    for (rule, left) in [(Rollover::Full, "8"), (Rollover::None, "0")] {
        let plan = config("30", BillingInterval::Month, terms("5", Rollover::None, rule));
        let mut account = SubscriptionAccount::of(plan);
        account.buy("10");
        let drawn = account.use_up("7");
        assert_eq!(
            (drawn.cycle, drawn.bundle, drawn.balance),
            (amount("5"), amount("2"), Amount::ZERO)
        );
        account.pass_to("2026-02-28T12:00:00Z");
        assert_eq!(account.left(), (amount("5"), amount(left)));
        let drawn = account.use_up("20");
        assert_eq!(
            drawn.balance,
            amount("20").checked_sub(amount("5")).unwrap().checked_sub(amount(left)).unwrap()
        );
    }
}

#[test]
fn a_dearer_plan_begins_at_once_and_a_cheaper_one_when_the_cycle_ends() {
    let mut account = SubscriptionAccount::of(monthly("25", Rollover::Full));
    account.use_up("15");
    let expensive =
        config("50", BillingInterval::Year, terms("60", Rollover::None, Rollover::Full));
    let now = at("2026-02-10T06:00:00Z");
    let step =
        account.subscription.change(expensive, UpgradeRule::Carry, &mut account.credits, now);
    account.book(step);
    assert_eq!(account.left().0, amount("70"), "unused credit stays");
    assert_eq!(account.cycle(), (now, at("2027-02-10T06:00:00Z")));
    assert_eq!(account.told_since(1), ["subscription.changed"]);

    let cheaper = config("50", BillingInterval::Month, terms("10", Rollover::Full, Rollover::Full));
    let id = cheaper.subscription_config_id;
    assert_eq!(
        account.subscription.change(cheaper, UpgradeRule::Carry, &mut account.credits, now),
        None
    );
    let pending = account.subscription.state(&account.credits).pending_change.unwrap();
    assert_eq!(
        (pending.kind, pending.effective_at),
        (PendingKind::Downgrade, at("2027-02-10T06:00:00Z"))
    );
    assert_eq!(pending.plan.subscription_config_id, id);
    account.pass_to("2027-02-10T06:00:00Z");
    assert_eq!(account.left().0, amount("10"), "70 expired");
    assert_eq!(account.cycle(), (at("2027-02-10T06:00:00Z"), at("2027-03-10T06:00:00Z")));
    assert_eq!(account.subscription.config.subscription_config_id, id);
    assert_eq!(account.subscription.pending_change, None);
    assert_eq!(account.told_since(2), ["subscription.changed"]);
}

#[test]
fn a_cheaper_plan_of_the_same_length_keeps_the_day_that_cycles_are_counted_from() {
    let mut account = SubscriptionAccount::of(monthly("25", Rollover::None));
    account.subscription.change(
        monthly("5", Rollover::None),
        UpgradeRule::Carry,
        &mut account.credits,
        at(START),
    );
    account.pass_to("2026-02-28T12:00:00Z");
    assert_eq!(account.cycle().1, at("2026-03-31T12:00:00Z"));
}

#[test]
fn what_is_pending_is_undone_by_the_present_plan_and_replaced_by_another() {
    let mut account = SubscriptionAccount::of(monthly("25", Rollover::Full));
    let present = account.subscription.config.clone();
    account.subscription.cancel();
    account.subscription.cancel();
    assert_eq!(account.subscription.pending_change, Some(PendingChange::Cancellation));
    assert_eq!(
        account.subscription.change(
            present.clone(),
            UpgradeRule::Carry,
            &mut account.credits,
            at(START)
        ),
        None
    );
    assert_eq!(account.subscription.pending_change, None);
    account.subscription.change(
        monthly("5", Rollover::None),
        UpgradeRule::Carry,
        &mut account.credits,
        at(START),
    );
    account.subscription.cancel();
    assert_eq!(account.subscription.pending_change, Some(PendingChange::Cancellation));
    let step = account.subscription.change(
        monthly("50", Rollover::None),
        UpgradeRule::Carry,
        &mut account.credits,
        at(START),
    );
    account.book(step);
    assert_eq!(account.subscription.pending_change, None);
    assert_eq!(account.subscription.status, SubscriptionStatus::Active);
}

#[test]
fn a_cancellation_takes_effect_when_the_cycle_ends_and_all_credit_expires() {
    let mut account = SubscriptionAccount::of(monthly("25", Rollover::Full));
    account.buy("10");
    account.subscription.cancel();
    account.pass_to("2026-02-28T11:00:00Z");
    assert_eq!(account.subscription.status, SubscriptionStatus::Active);
    account.pass_to("2027-02-28T12:00:00Z");
    assert_eq!(account.subscription.status, SubscriptionStatus::Cancelled);
    assert_eq!(account.subscription.cancelled_at, Some(at("2026-02-28T12:00:00Z")));
    assert_eq!(account.left(), (Amount::ZERO, Amount::ZERO));
    assert_eq!(account.told_since(2), ["subscription.cancelled"]);
}

#[test]
fn credit_reserved_by_a_call_survives_a_renewal_until_the_call_ends() {
    for (rollover, after) in [(Rollover::None, "25"), (Rollover::Full, "48")] {
        let mut account = SubscriptionAccount::of(monthly("25", rollover));
        let hold = account.credits.reserve(amount("10")).unwrap();
        account.pass_to("2026-02-28T12:00:00Z");
        assert_eq!(account.credits.held(), amount("10"));
        let drawn = account.credits.settle(hold, amount("2")).unwrap();
        assert_eq!((drawn.cycle, drawn.balance), (amount("2"), Amount::ZERO));
        assert_eq!(account.credits.remaining(), amount(after), "{rollover:?}");
    }
}

#[test]
fn credit_that_rolls_over_for_ever_stays_within_an_amount() {
    let mut account = SubscriptionAccount::of(monthly("900000000", Rollover::Full));
    account.pass_to("2027-01-31T12:00:00Z");
    assert_eq!(account.left().0, Amount::MAX);
}

#[test]
fn an_event_reads_back_as_it_was_written() {
    let mut account = SubscriptionAccount::of(monthly("25", Rollover::Full));
    account.subscription.cancel();
    let news = EventPayload::SubscriptionCancelled {
        subscription: Box::new(account.subscription.state(&account.credits)),
    };
    let json = serde_json::to_string(&news).unwrap();
    assert_eq!(serde_json::from_str::<EventPayload>(&json).unwrap(), news);
}

/// A subscription of 20 USD a month with 5 of 20 USD of included credit and 7 USD of bought credit left,
/// at half of its cycle.
fn half_used(rollover: Rollover, bundle_rollover: Rollover) -> (SubscriptionAccount, Timestamp) {
    let plan = config("20", BillingInterval::Month, terms("20", rollover, bundle_rollover));
    let mut account = SubscriptionAccount::of(plan);
    account.use_up("15");
    account.buy("7");
    // 14 of 28 days.
    (account, at("2026-02-14T12:00:00Z"))
}

#[test]
fn an_upgrade_keeps_expires_or_prorates_and_its_preview_says_so() {
    let upgrades = [
        // Rule, rollover of included and of bought credit; then left of both, lost, and due.
        (UpgradeRule::Carry, Rollover::None, Rollover::Full, "65", "7", "0", "49"),
        (UpgradeRule::Carry, Rollover::Full, Rollover::None, "65", "0", "7", "49"),
        (UpgradeRule::Expire, Rollover::None, Rollover::Full, "60", "7", "5", "49"),
        (UpgradeRule::Expire, Rollover::Full, Rollover::Full, "60", "7", "5", "49"),
        (UpgradeRule::Prorate, Rollover::None, Rollover::Full, "65", "7", "0", "39"),
    ];
    for (rule, rollover, bundle_rollover, cycle, bundle, lost, due) in upgrades {
        let (mut account, now) = half_used(rollover, bundle_rollover);
        let plan = terms("60", Rollover::None, Rollover::None);
        let expensive = config("49", BillingInterval::Month, plan);
        let before = (account.subscription.clone(), account.credits);
        let preview =
            account.subscription.preview_change(expensive.clone(), rule, &account.credits, now);
        assert_eq!((&account.subscription, account.credits), (&before.0, before.1));
        let step = account.subscription.change(expensive, rule, &mut account.credits, now).unwrap();
        assert_eq!(step.payload.charge().unwrap().amount_due, amount(due), "{rule:?}");
        account.book([step]);
        assert_eq!(account.left(), (amount(cycle), amount(bundle)), "{rule:?} {rollover:?}");
        let carried = amount("12").checked_sub(amount(lost)).unwrap();
        assert_eq!((preview.credit_lost, preview.credit_carried), (amount(lost), carried));
        assert_eq!((preview.effective_at, preview.amount_due), (now, amount(due)));
        assert_eq!(preview.after, account.subscription.state(&account.credits));
        // The kept credit is used or lost in the new cycle, as credit of that cycle.
        account.pass_to("2026-03-14T12:00:00Z");
        assert_eq!(account.left(), (amount("60"), Amount::ZERO));
    }
}

#[test]
fn the_preview_of_a_later_change_is_of_the_end_of_the_cycle() {
    let (account, now) = half_used(Rollover::None, Rollover::Full);
    let plan = terms("3", Rollover::Full, Rollover::Full);
    let cheaper = config("9", BillingInterval::Year, plan);
    let preview =
        account.subscription.preview_change(cheaper, UpgradeRule::Prorate, &account.credits, now);
    assert_eq!(preview.effective_at, at("2026-02-28T12:00:00Z"));
    assert_eq!((preview.amount_due, preview.credit_lost), (amount("9"), amount("5")));
    assert_eq!(preview.credit_carried, amount("7"));
    let after = preview.after;
    assert_eq!((after.cycle_remaining, after.bundle_remaining), (amount("3"), amount("7")));
    assert_eq!(after.cycle_end_at, at("2027-02-28T12:00:00Z"));

    let present = account.subscription.config.clone();
    let preview =
        account.subscription.preview_change(present, UpgradeRule::Carry, &account.credits, now);
    assert_eq!((preview.effective_at, preview.amount_due), (now, Amount::ZERO));
    assert_eq!((preview.credit_lost, preview.credit_carried), (Amount::ZERO, amount("12")));
    assert_eq!(preview.after, account.subscription.state(&account.credits));
}

#[test]
fn credit_reserved_by_a_call_survives_an_upgrade_whatever_its_rule() {
    for (rule, after) in [(UpgradeRule::Carry, "83"), (UpgradeRule::Expire, "60")] {
        let mut account = SubscriptionAccount::of(monthly("25", Rollover::None));
        let hold = account.credits.reserve(amount("10")).unwrap();
        let expensive =
            config("50", BillingInterval::Month, terms("60", Rollover::None, Rollover::Full));
        account.subscription.change(expensive, rule, &mut account.credits, at(START));
        assert_eq!(account.credits.held(), amount("10"));
        let drawn = account.credits.settle(hold, amount("2")).unwrap();
        assert_eq!((drawn.cycle, drawn.balance), (amount("2"), Amount::ZERO));
        assert_eq!(account.credits.remaining(), amount(after), "{rule:?}");
    }
}
