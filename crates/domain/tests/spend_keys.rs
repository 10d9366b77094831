//! The rules of spend keys as tables, without a database.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use tollgate_domain::admission::{Call, Refusal, Shortage, remaining};
use tollgate_domain::*;
use tollgate_pricing::Amount;

use crate::spend_key_model::{SpendKeyModel, amount, at, call, cost, spend_limit};

const NOW: &str = "2026-11-21T12:00:00Z";

fn now() -> Timestamp {
    at(NOW)
}

/// Each broken rule and its refusal. A rule is broken together with all rules that come after it,
/// so that the first in the order is reported.
#[test]
fn refusals_come_in_their_order() {
    let everything_wrong = || {
        let mut desk = SpendKeyModel::new(
            SpendRules {
                status: SpendKeyStatus::Paused,
                request_shape: RequestShape::ShapeB,
                allowed_models: Some(vec!["other".to_owned()]),
                allowed_providers: Some(vec!["mansion".to_owned()]),
                spend_limit: spend_limit(1, Cycle::Daily),
                request_limit: Some(RequestLimit { count: 1, cycle: Cycle::Daily }),
                rate_limit: Some(RateLimit { rpm: 1, burst: 1 }),
                enforcement: Enforcement::Strict,
                expires_at: Some(now()),
                report: None,
                ..SpendRules::default()
            },
            "0",
        );
        // One call was made a moment ago.
        let hour = now().plus_millis(-1);
        desk.key.counters.admit(hour, cost(1), desk.key.rules.calendars()).unwrap();
        desk.key.counters.bucket.take(hour, 1, 1).unwrap();
        desk
    };
    let mut unbounded = call(10, 10, now());
    unbounded.bound.unbounded = Some(vec!["tools".to_owned(), "0".to_owned()]);
    let mut desk = everything_wrong();
    let mut refusals = Vec::new();
    let mut next = |desk: &mut SpendKeyModel, call: &Call, repair: fn(&mut SpendKey)| {
        refusals.push(desk.admit(call).unwrap_err());
        repair(&mut desk.key);
    };
    next(&mut desk, &unbounded, |key| key.rules.status = SpendKeyStatus::Active);
    next(&mut desk, &unbounded, |key| key.rules.expires_at = None);
    next(&mut desk, &unbounded, |key| key.rules.request_shape = RequestShape::ShapeA);
    next(&mut desk, &unbounded, |key| key.rules.allowed_models = None);
    next(&mut desk, &unbounded, |key| key.rules.allowed_providers = None);
    next(&mut desk, &unbounded, |_| ());
    let bounded = call(10, 10, now());
    next(&mut desk, &bounded, |key| key.rules.rate_limit = None);
    next(&mut desk, &bounded, |key| key.rules.request_limit = None);
    next(&mut desk, &bounded, |key| key.rules.spend_limit = None);
    next(&mut desk, &bounded, |_| ());
    desk.wallet.balance = amount("1");
    assert!(desk.admit(&bounded).is_ok());

    let kinds: Vec<_> = refusals.iter().map(|refusal| format!("{refusal:?}")).collect();
    let expected = [
        "SpendKeyPaused",
        "SpendKeyExpired",
        "RequestShapeMismatch",
        "ModelNotAllowed",
        "ProviderNotAllowed",
        "CostBoundUnknown",
        "RateLimited",
        "RequestLimitReached",
        "SpendLimitReached",
        "WalletInsufficient",
    ];
    assert_eq!(kinds.len(), expected.len());
    for (kind, expected) in kinds.iter().zip(expected) {
        assert!(kind.starts_with(expected), "{kind} where {expected} was expected");
    }
}

#[test]
fn models_match_whole_or_by_their_beginning() {
    for (allowed, model, admitted) in [
        (None, "m-1", true),
        (Some(vec![]), "m-1", false),
        (Some(vec!["m-1"]), "m-1", true),
        (Some(vec!["m-1"]), "m-10", false),
        (Some(vec!["m-*"]), "m-10", true),
        (Some(vec!["m-*"]), "M-10", false),
        (Some(vec!["*"]), "anything", true),
        (Some(vec!["a", "b*"]), "bc", true),
    ] {
        let allowed: Option<Vec<_>> =
            allowed.map(|all: Vec<&str>| all.into_iter().map(str::to_owned).collect());
        let rules = SpendRules { allowed_models: allowed.clone(), ..SpendRules::default() };
        assert_eq!(rules.allows_model(model), admitted, "{allowed:?} {model}");
    }
}

#[test]
fn a_key_with_a_list_of_models_accepts_no_body_that_names_others_beside() {
    let mut routed = call(1, 1, now());
    routed.names_other_models = true;
    let listed =
        SpendRules { allowed_models: Some(vec!["m-1".to_owned()]), ..SpendRules::default() };
    let refused = SpendKeyModel::new(listed, "1").admit(&routed).unwrap_err();
    assert_eq!(refused, Refusal::ModelNotAllowed { model: None });
    assert!(SpendKeyModel::new(SpendRules::default(), "1").admit(&routed).is_ok());
}

#[test]
fn a_call_without_a_body_has_no_format_and_no_model() {
    let rules = SpendRules {
        request_shape: RequestShape::ShapeB,
        allowed_models: Some(Vec::new()),
        ..SpendRules::default()
    };
    let mut list = call(0, 0, now());
    list.forwarded.metered = false;
    list.forwarded.model = None;
    list.shape = None;
    assert!(SpendKeyModel::new(rules, "0").admit(&list).is_ok());
}

#[test]
fn a_key_expires_at_its_instant_and_not_before() {
    let rules = SpendRules { expires_at: Some(now()), ..SpendRules::default() };
    let mut desk = SpendKeyModel::new(rules, "1");
    assert!(desk.admit(&call(1, 0, now().plus_micros(-1))).is_ok());
    assert_eq!(
        desk.admit(&call(1, 0, now())).unwrap_err(),
        Refusal::SpendKeyExpired { expired_at: now() }
    );
}

/// The number of admitted calls by enforcement: a limit of 100, calls of up to 40.
#[test]
fn a_bounded_limit_lets_the_last_call_cross_and_a_strict_one_does_not() {
    for (enforcement, admitted) in [(Enforcement::Bounded, 3), (Enforcement::Strict, 2)] {
        let rules = SpendRules {
            spend_limit: spend_limit(100, Cycle::Daily),
            enforcement,
            ..SpendRules::default()
        };
        let mut desk = SpendKeyModel::new(rules, "1");
        let passed = (0..10).filter(|_| desk.admit(&call(10, 30, now())).is_ok()).count();
        assert_eq!(passed, admitted, "{enforcement:?}");
    }
}

fn shortage(desk: &mut SpendKeyModel, call: &Call) -> Shortage {
    match desk.admit(call).unwrap_err() {
        Refusal::SpendLimitReached { shortage, .. }
        | Refusal::WalletInsufficient { shortage, .. } => shortage,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_strict_refusal_names_the_largest_maximum_that_passes() {
    let strict = SpendRules {
        spend_limit: spend_limit(100, Cycle::Daily),
        enforcement: Enforcement::Strict,
        ..SpendRules::default()
    };
    for (balance, largest) in [("1", Some(90)), ("0.00005", Some(40)), ("0.00001", None)] {
        let mut desk = SpendKeyModel::new(strict.clone(), balance);
        let told = shortage(&mut desk, &call(10, 1_000_000, now()));
        assert_eq!(told.largest_max_tokens, largest, "{balance}");
        let Some(largest) = largest else { continue };
        assert!(desk.clone().admit(&call(10, largest + 1, now())).is_err());
        assert!(desk.admit(&call(10, largest, now())).is_ok());
    }
}

#[test]
fn what_is_held_may_come_back_and_what_is_spent_does_not() {
    for enforcement in [Enforcement::Bounded, Enforcement::Strict] {
        let rules = SpendRules {
            spend_limit: spend_limit(100, Cycle::Daily),
            enforcement,
            ..SpendRules::default()
        };
        let mut desk = SpendKeyModel::new(rules, "1");
        let first = desk.admit(&call(100, 0, now())).unwrap();
        assert!(shortage(&mut desk, &call(100, 0, now())).is_temporary());
        desk.settle(first, cost(100));
        assert!(!shortage(&mut desk, &call(100, 0, now())).is_temporary());
    }
}

#[test]
fn without_a_price_a_limit_on_money_cannot_be_kept() {
    let mut unpriced = call(10, 10, now());
    unpriced.bound.prices = None;
    unpriced.bound.unbounded = Some(vec!["model".to_owned()]);
    let owner = LimitOwner::SpendKey;
    let model = Refusal::CostBoundUnknown { owner, field: vec!["model".to_owned()] };
    let limited =
        SpendRules { spend_limit: spend_limit(100, Cycle::Total), ..SpendRules::default() };
    assert_eq!(SpendKeyModel::new(limited, "1").admit(&unpriced).unwrap_err(), model);
    let strict = SpendRules { enforcement: Enforcement::Strict, ..SpendRules::default() };
    assert_eq!(SpendKeyModel::new(strict, "1").admit(&unpriced).unwrap_err(), model);
    assert!(SpendKeyModel::new(SpendRules::default(), "1").admit(&unpriced).is_ok());
}

#[test]
fn a_call_that_costs_nothing_is_not_refused_for_money() {
    let rules = SpendRules { spend_limit: spend_limit(1, Cycle::Total), ..SpendRules::default() };
    let mut desk = SpendKeyModel::new(rules, "1");
    let first = desk.admit(&call(1, 0, now())).unwrap();
    desk.settle(first, cost(1));
    desk.wallet.balance = amount("-5");
    let mut free = call(1_000, 0, now());
    free.forwarded.metered = false;
    assert!(desk.admit(&free).is_ok());
}

/// A spend key can draw on the merchant's own wallet. That wallet pays both parts, so both must be
/// left.
#[test]
fn a_strict_key_on_the_merchants_own_wallet_needs_both_parts() {
    use tollgate_domain::admission::{AdmissionFacts, MerchantAccount, decide};
    use tollgate_pricing::*;
    let strict = SpendRules { enforcement: Enforcement::Strict, ..SpendRules::default() };
    for (balance, admitted) in [("0.0002", true), ("0.0001999999", false)] {
        let desk = SpendKeyModel::new(strict.clone(), balance);
        let tiers = vec![Tier { start: 0, rate: 1.into() }];
        let mut model =
            FeeModel::from(Meter::new(RateType::Fixed, TierUnit::Tokens, tiers).unwrap());
        model.base_cost_payer = Payer::Merchant;
        let meter = MerchantMeter {
            meter_id: MeterId::generate(now()),
            merchant_id: desk.key.merchant_id,
            slug: "plan".to_owned(),
            name: "Plan".to_owned(),
            tier_period: TierPeriod::Lifetime,
            version: 1,
            model,
            created_at: now(),
        };
        let account =
            MerchantAccount { wallet_id: desk.wallet.wallet_id, guarded: Some(&desk.wallet) };
        let facts = AdmissionFacts {
            account: Some(account),
            spend_key: Some(&desk.key),
            connection: None,
            key_connection: None,
            wallet: Some(&desk.wallet),
            meter: Some(&meter),
            draws_on_credit: false,
            budgets: &[],
            own_budget_id: None,
            run: None,
        };
        // 100 tokens: a base cost and a fee of 0.0001 USD each.
        let decision = decide(&call(100, 0, now()), &facts, Rate::ZERO);
        assert_eq!(decision.is_ok(), admitted, "{balance}: {decision:?}");
    }
}

/// An absurd maximum is refused. It must neither wrap a counter nor crowd out other calls.
#[test]
fn one_call_may_not_hold_more_than_a_million() {
    let mut desk = SpendKeyModel::new(SpendRules::default(), "0");
    desk.wallet.overdraft_limit = None;
    for tokens in [1_000_000_000_001, u64::MAX] {
        let refused = desk.admit(&call(tokens, 0, now())).unwrap_err();
        assert_eq!(refused, Refusal::BoundTooLarge);
    }
    let most = call(1_000_000_000_000, 0, now());
    let admitted = (0..1_000).filter(|_| desk.admit(&most).is_ok()).count();
    assert_eq!(admitted, 922, "what an amount can hold");
    desk.assert_counted();
    (0..admitted).for_each(|index| desk.settle(index, Amount::ZERO));
    assert_eq!(desk.key.counters.held.total, Amount::ZERO);
}

#[test]
fn counters_show_the_cycle_that_it_is_and_limits_may_change_theirs() {
    let rules = SpendRules { spend_limit: spend_limit(100, Cycle::Daily), ..SpendRules::default() };
    let mut desk = SpendKeyModel::new(rules, "1");
    let friday = at("2026-11-20T23:59:59Z");
    let first = desk.admit(&call(60, 0, friday)).unwrap();
    desk.settle(first, cost(60));
    let saturday = at("2026-11-21T00:00:00Z");
    assert_eq!(*desk.key.counters_at(saturday).spent.get(Cycle::Daily), Amount::ZERO);
    assert_eq!(*desk.key.counters_at(saturday).spent.get(Cycle::Weekly), cost(60));
    let second = desk.admit(&call(60, 0, saturday)).unwrap();
    desk.settle(second, cost(60));
    // A weekly limit counts both days at once.
    desk.key.rules.spend_limit = spend_limit(100, Cycle::Weekly);
    assert!(desk.admit(&call(1, 0, saturday)).is_err());
    let monday = at("2026-11-23T00:00:00Z");
    assert!(desk.admit(&call(1, 0, monday)).is_ok());
    assert_eq!(desk.key.counters.spent.total, cost(120));
}

#[test]
fn limits_start_again_at_midnight_of_their_own_zones() {
    let zone = |name: &str| CycleCalendar::of(TimeZone::named(name).unwrap());
    let rules = SpendRules {
        spend_limit: spend_limit(100, Cycle::Daily),
        request_limit: Some(RequestLimit { count: 2, cycle: Cycle::Daily }),
        spend_calendar: zone("Asia/Tokyo"),
        request_calendar: zone("America/New_York"),
        ..SpendRules::default()
    };
    let mut desk = SpendKeyModel::new(rules, "1");
    // It is 23:59 in Tokyo, and 09:59 in New York.
    let first = desk.admit(&call(100, 0, at("2026-11-21T14:59:00Z"))).unwrap();
    desk.settle(first, cost(100));
    let refused = desk.admit(&call(1, 0, at("2026-11-21T14:59:59Z"))).unwrap_err();
    let Refusal::SpendLimitReached { reset, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(reset.unwrap().at, at("2026-11-21T15:00:00Z"));
    desk.admit(&call(1, 0, at("2026-11-21T15:00:00Z"))).unwrap();
    let refused = desk.admit(&call(1, 0, at("2026-11-22T04:59:59Z"))).unwrap_err();
    let Refusal::RequestLimitReached { reset, .. } = refused else { panic!("{refused:?}") };
    assert_eq!(reset.unwrap().at, at("2026-11-22T05:00:00Z"));
    desk.admit(&call(1, 0, at("2026-11-22T05:00:00Z"))).unwrap();
}

#[test]
fn a_call_that_ends_after_its_cycle_moves_the_totals_only() {
    let rules = SpendRules {
        spend_limit: spend_limit(100, Cycle::Daily),
        enforcement: Enforcement::Strict,
        ..SpendRules::default()
    };
    let mut desk = SpendKeyModel::new(rules, "1");
    let late = desk.admit(&call(100, 0, at("2026-12-31T23:59:59.999999Z"))).unwrap();
    let early = desk.admit(&call(100, 0, at("2027-01-01T00:00:00Z"))).unwrap();
    desk.settle(late, cost(90));
    assert_eq!(desk.key.counters.spent.day, Amount::ZERO);
    assert_eq!(desk.key.counters.held.day, cost(100));
    desk.settle(early, cost(80));
    assert_eq!(desk.key.counters.spent.day, cost(80));
    assert_eq!(desk.key.counters.spent.total, cost(170));
    desk.assert_counted();
}

/// Calls of another node can carry the time of a clock that is a little behind.
#[test]
fn what_remains_is_the_least_that_limit_and_wallet_leave() {
    let tomorrow = now().plus_millis(86_400_000);
    // The limit, the balance, the overdraft limit, and what remains now and in the next cycle.
    let table = [
        (None, "5", None, [None, None]),
        (None, "5", Some("0"), [Some("2"), Some("2")]),
        (None, "5", Some("1"), [Some("3"), Some("3")]),
        (Some("10"), "5", None, [Some("6"), Some("10")]),
        (Some("4"), "5", Some("0"), [Some("0"), Some("2")]),
        (Some("3"), "5", Some("0"), [Some("-1"), Some("2")]),
    ];
    for (limit, balance, overdraft, expected) in table {
        let limited = |limit| SpendLimit { amount: amount(limit), cycle: Cycle::Daily };
        let rules = SpendRules { spend_limit: limit.map(limited), ..SpendRules::default() };
        let mut desk = SpendKeyModel::new(rules, balance);
        desk.wallet.overdraft_limit = overdraft.map(amount);
        desk.wallet.held = amount("3");
        // One call has cost 1 USD, and another holds 3 USD.
        let SpendKey { counters, rules, .. } = &mut desk.key;
        counters.admit(now(), amount("3"), rules.calendars()).unwrap();
        counters.settle(now(), Amount::ZERO, amount("1"), rules.calendars()).unwrap();
        let remaining = [now(), tomorrow]
            .map(|at| remaining(Some(&desk.key), [], None, Some(&desk.wallet), false, at));
        assert_eq!(remaining, expected.map(|one| one.map(amount)), "{limit:?} {overdraft:?}");
    }
    assert_eq!(remaining(None, [], None, None, false, now()), None);
}

#[test]
fn time_does_not_go_back_for_a_key() {
    let mut desk = SpendKeyModel::new(SpendRules::default(), "1");
    let midnight = at("2026-11-21T00:00:00Z");
    desk.admit(&call(1, 0, midnight)).unwrap();
    let behind = desk.admit(&call(1, 0, midnight.plus_micros(-5))).unwrap();
    assert_eq!(desk.calls[behind].admitted_at, midnight);
    desk.assert_counted();
}

#[test]
fn each_threshold_is_told_once_a_cycle() {
    let rules = SpendRules { spend_limit: spend_limit(100, Cycle::Daily), ..SpendRules::default() };
    let mut desk = SpendKeyModel::new(rules, "1");
    let spend = |desk: &mut SpendKeyModel, tokens: u64, at: Timestamp| {
        let index = desk.admit(&call(tokens, 0, at)).unwrap();
        desk.settle(index, cost(tokens));
        desk.told.drain(..).map(|(percent, _)| percent).collect::<Vec<_>>()
    };
    let today = now();
    assert_eq!(spend(&mut desk, 79, today), [0; 0]);
    assert_eq!(spend(&mut desk, 1, today), [80]);
    assert_eq!(spend(&mut desk, 14, today), [0; 0]);
    assert_eq!(spend(&mut desk, 1, today), [95]);
    assert_eq!(spend(&mut desk, 30, today), [100]);
    // Raised and reached again. The threshold was reported in this cycle already.
    desk.key.rules.spend_limit = spend_limit(130, Cycle::Daily);
    assert_eq!(spend(&mut desk, 10, today), [0; 0]);
    let tomorrow = today.plus_millis(24 * 60 * 60 * 1_000);
    assert_eq!(spend(&mut desk, 130, tomorrow), [80, 95, 100]);
}
