//! Random histories of a spend key under a simulated clock, across days, weeks, months and leap
//! days, with calls open across the boundary.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_domain::*;
use tollgate_pricing::Amount;

use crate::spend_key_model::{ModelledCall, SpendKeyModel, at, call, cost, spend_limit};

#[derive(Clone, Debug)]
enum HistoryStep {
    /// A call of at most `input` tokens in and `output` tokens out.
    Call {
        input: u64,
        output: u64,
    },
    /// One of the open calls ends, at a part of its hold in percent.
    End {
        which: usize,
        percent: u64,
    },
    /// One of the ended calls is corrected.
    Correct {
        which: usize,
        percent: u64,
    },
    Wait {
        millis: i64,
    },
    /// The next call is stamped by a clock that is a little behind.
    Behind {
        millis: i64,
    },
    /// The limits get another time zone.
    Zone {
        which: usize,
    },
}

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Apia"];

const SECOND: i64 = 1_000;
const DAY: i64 = 24 * 60 * 60 * SECOND;

fn steps() -> impl Strategy<Value = Vec<HistoryStep>> {
    let step = prop_oneof![
        6 => (1..60_u64, 0..60_u64).prop_map(|(input, output)| HistoryStep::Call { input, output }),
        4 => (any::<usize>(), 0..=100_u64).prop_map(|(which, percent)| HistoryStep::End { which, percent }),
        1 => (any::<usize>(), 0..=100_u64)
            .prop_map(|(which, percent)| HistoryStep::Correct { which, percent }),
        2 => prop_oneof![
            Just(1), Just(SECOND), Just(DAY / 4), Just(DAY - 1), Just(DAY), Just(7 * DAY),
            Just(28 * DAY), Just(31 * DAY)
        ].prop_map(|millis| HistoryStep::Wait { millis }),
        1 => (1..5_000_i64).prop_map(|millis| HistoryStep::Behind { millis }),
        1 => (0..ZONES.len()).prop_map(|which| HistoryStep::Zone { which }),
    ];
    proptest::collection::vec(step, 1..80)
}

fn starts() -> impl Strategy<Value = Timestamp> {
    let instants = [
        "2026-11-21T23:59:59.5Z",
        "2026-11-22T23:59:58Z",
        "2026-11-30T23:59:59Z",
        "2026-12-31T23:59:59.999999Z",
        "2027-02-28T12:00:00Z",
        "2028-02-28T23:00:00Z",
        "2028-02-29T23:59:59Z",
        // The clocks change in Berlin, in Berlin again, and in Cairo; a day is skipped in Apia.
        "2026-03-28T22:59:59Z",
        "2026-10-24T21:59:59Z",
        "2026-04-23T21:59:59Z",
        "2011-12-30T09:59:59Z",
    ];
    proptest::sample::select(instants.map(at).to_vec())
}

fn cycles() -> impl Strategy<Value = Cycle> {
    proptest::sample::select(vec![Cycle::Daily, Cycle::Weekly, Cycle::Monthly, Cycle::Total])
}

/// Plays `steps`, and calls `check` after each.
fn play(
    desk: &mut SpendKeyModel,
    start: Timestamp,
    steps: &[HistoryStep],
    check: impl Fn(&SpendKeyModel),
) {
    let (mut now, mut behind) = (start, 0);
    for step in steps {
        match *step {
            HistoryStep::Call { input, output } => {
                let _ = desk.admit(&call(input, output, now.plus_millis(-behind)));
                behind = 0;
            }
            HistoryStep::End { which, percent } => settle(desk, which, percent, false),
            HistoryStep::Correct { which, percent } => settle(desk, which, percent, true),
            HistoryStep::Wait { millis } => now = now.plus_millis(millis),
            HistoryStep::Behind { millis } => behind = millis,
            HistoryStep::Zone { which } => {
                let zone = TimeZone::named(ZONES.get(which).unwrap()).unwrap();
                let changes = SpendKeyChanges {
                    spend_zone: Some(zone.clone()),
                    request_zone: Some(zone),
                    ..SpendKeyChanges::default()
                };
                desk.key.rules = std::mem::take(&mut desk.key.rules).changed(
                    changes,
                    now,
                    desk.key.counters.last_used_at,
                );
            }
        }
        desk.assert_counted();
        check(desk);
    }
}

fn settle(desk: &mut SpendKeyModel, which: usize, percent: u64, ended: bool) {
    let candidates: Vec<_> = (0..desk.calls.len())
        .filter(|&index| desk.calls.get(index).unwrap().cost.is_some() == ended)
        .collect();
    let Some(&index) = candidates.get(which % candidates.len().max(1)) else { return };
    let hold = desk.calls.get(index).unwrap().hold.units();
    let part = hold * i64::try_from(percent).unwrap() / 100;
    desk.settle(index, Amount::from_units(part));
}

/// One instant of each cycle in which a call was admitted.
fn cycles_of(desk: &SpendKeyModel, calendar: &CycleCalendar, cycle: Cycle) -> Vec<Timestamp> {
    let mut instants: Vec<Timestamp> = Vec::new();
    for call in &desk.calls {
        if !instants.iter().any(|seen| calendar.is_same(cycle, *seen, call.admitted_at)) {
            instants.push(call.admitted_at);
        }
    }
    instants
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_strict_limit_is_kept_at_every_instant_in_every_cycle(
        cycle in cycles(), start in starts(), steps in steps(), limit in 1..400_u64,
    ) {
        let rules = SpendRules {
            spend_limit: spend_limit(limit, cycle),
            enforcement: Enforcement::Strict,
            ..SpendRules::default()
        };
        play(&mut SpendKeyModel::new(rules, "1"), start, &steps, |desk| {
            for instant in cycles_of(desk, &desk.key.rules.spend_calendar, cycle) {
                assert!(desk.is_corrected() || desk.weight_in(cycle, instant) <= cost(limit));
            }
        });
    }

    #[test]
    fn a_bounded_limit_is_passed_by_less_than_one_call(
        cycle in cycles(), start in starts(), steps in steps(), limit in 1..400_u64,
    ) {
        let rules =
            SpendRules { spend_limit: spend_limit(limit, cycle), ..SpendRules::default() };
        play(&mut SpendKeyModel::new(rules, "1"), start, &steps, |desk| {
            for instant in cycles_of(desk, &desk.key.rules.spend_calendar, cycle) {
                let calendar = &desk.key.rules.spend_calendar;
                let is_same = |call: &&ModelledCall| calendar.is_same(cycle, call.admitted_at, instant);
                let in_cycle = || desk.calls.iter().filter(is_same);
                let highest = in_cycle().map(|call| call.hold).max().unwrap_or_default();
                let over = desk.weight_in(cycle, instant).saturating_sub(cost(limit));
                assert!(desk.is_corrected() || over < highest, "{over} over, {highest} at most for one call");
            }
        });
    }

    #[test]
    fn a_strict_wallet_never_goes_below_zero(
        start in starts(), steps in steps(), balance in 1..400_i64,
    ) {
        let rules = SpendRules { enforcement: Enforcement::Strict, ..SpendRules::default() };
        let mut desk = SpendKeyModel::new(rules, "0");
        desk.wallet.balance = Amount::from_units(balance * 10_000);
        let steps: Vec<_> =
            steps.into_iter().filter(|step| !matches!(step, HistoryStep::Correct { .. })).collect();
        play(&mut desk, start, &steps, |desk| assert!(desk.wallet.available() >= Amount::ZERO));
    }

    #[test]
    fn no_cycle_has_more_calls_than_its_limit(
        cycle in cycles(), start in starts(), steps in steps(), count in 1..10_u64,
    ) {
        let rules = SpendRules {
            request_limit: Some(RequestLimit { count, cycle }),
            ..SpendRules::default()
        };
        play(&mut SpendKeyModel::new(rules, "1"), start, &steps, |desk| {
            for instant in cycles_of(desk, &desk.key.rules.request_calendar, cycle) {
                let calendar = &desk.key.rules.request_calendar;
                let is_same = |call: &&ModelledCall| calendar.is_same(cycle, call.admitted_at, instant);
                let made = desk.calls.iter().filter(is_same);
                assert!(u64::try_from(made.count()).unwrap() <= count);
            }
        });
    }

    #[test]
    fn in_any_minute_no_more_calls_pass_than_the_rate_and_the_burst(
        start in starts(), rpm in 1..120_u32, burst in 1..40_u32,
        gaps in proptest::collection::vec(0..3_000_i64, 1..200),
    ) {
        let rate_limit = Some(RateLimit { rpm, burst });
        let mut desk = SpendKeyModel::new(SpendRules { rate_limit, ..SpendRules::default() }, "1");
        let mut now = start;
        for gap in gaps {
            now = now.plus_millis(gap);
            let _ = desk.admit(&call(1, 0, now));
        }
        for (index, first) in desk.calls.iter().enumerate() {
            let end = first.admitted_at.plus_millis(60_000);
            let passed = desk.calls.iter().skip(index).filter(|call| call.admitted_at < end);
            assert!(passed.count() <= usize::try_from(rpm + burst).unwrap());
        }
    }

    #[test]
    fn a_full_bucket_passes_its_burst_in_any_order_of_decisions(
        start in starts(), burst in 1..8_u32,
        arrivals in proptest::collection::vec(0..1_000_i64, 8..40),
    ) {
        let rate_limit = Some(RateLimit { rpm: 1, burst });
        let mut desk = SpendKeyModel::new(SpendRules { rate_limit, ..SpendRules::default() }, "1");
        let passed = arrivals.into_iter().filter(|micros| {
            desk.admit(&call(1, 0, start.plus_micros(*micros))).is_ok()
        });
        assert_eq!(passed.count(), usize::try_from(burst).unwrap());
    }

    #[test]
    fn each_threshold_is_told_at_most_once_a_cycle(
        cycle in cycles(), start in starts(), steps in steps(), limit in 1..400_u64,
    ) {
        let rules =
            SpendRules { spend_limit: spend_limit(limit, cycle), ..SpendRules::default() };
        let mut desk = SpendKeyModel::new(rules, "1");
        play(&mut desk, start, &steps, |_| ());
        let mut told: BTreeMap<u8, Vec<Timestamp>> = BTreeMap::new();
        let calendar = desk.key.rules.spend_calendar;
        for (percent, at) in desk.told {
            let before = told.entry(percent).or_default();
            assert!(!before.iter().any(|seen| calendar.is_same(cycle, *seen, at)), "{percent} twice");
            before.push(at);
        }
    }
}
