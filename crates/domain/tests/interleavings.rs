//! The state machine of calls under a limit, checked in every order in which a few of them can be
//! admitted, ended, given up as lost, and corrected afterwards.

use tollgate_domain::*;

use crate::spend_key_model::{SpendKeyModel, at, call, cost, spend_limit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPhase {
    Waiting,
    Refused,
    Open(usize),
    /// Ended by the sweeper, which knew only the input.
    Lost(usize),
    Ended,
}

const CALLS: usize = 4;
/// At most 40 tokens: 10 in, 30 out.
const INPUT: u64 = 10;
const OUTPUT: u64 = 30;

/// The number of different histories, and the most calls that were in flight at once.
#[derive(Default)]
struct ExplorationStats {
    histories: usize,
    most_open: usize,
    some_refused: bool,
    all_passed: bool,
}

fn explore(
    desk: &SpendKeyModel,
    states: [CallPhase; CALLS],
    check: &impl Fn(&SpendKeyModel),
    seen: &mut ExplorationStats,
) {
    desk.assert_counted();
    check(desk);
    let open = states.iter().filter(|state| matches!(state, CallPhase::Open(_))).count();
    seen.most_open = seen.most_open.max(open);
    let mut is_final = true;
    for (position, state) in states.into_iter().enumerate() {
        let mut go = |next: CallPhase, change: &dyn Fn(&mut SpendKeyModel)| {
            is_final = false;
            let (mut desk, mut states) = (desk.clone(), states);
            change(&mut desk);
            if let Some(place) = states.get_mut(position) {
                *place = next;
            }
            explore(&desk, states, check, seen);
        };
        match state {
            // The calls are alike, so the order of the waiting calls makes no difference.
            CallPhase::Waiting
                if states.iter().position(|one| *one == CallPhase::Waiting) != Some(position) =>
            {
                is_final = false;
            }
            CallPhase::Waiting => {
                let mut after = desk.clone();
                let admitted = after.admit(&call(INPUT, OUTPUT, at("2026-11-21T12:00:00Z")));
                let next = admitted.map_or(CallPhase::Refused, CallPhase::Open);
                go(next, &|desk| *desk = after.clone());
            }
            CallPhase::Open(index) => {
                // The call ends in full, in part, or is lost.
                go(CallPhase::Ended, &|desk| desk.settle(index, cost(INPUT + OUTPUT)));
                go(CallPhase::Ended, &|desk| desk.settle(index, cost(INPUT)));
                go(CallPhase::Lost(index), &|desk| desk.settle(index, cost(INPUT)));
            }
            CallPhase::Lost(index) => {
                go(CallPhase::Ended, &|desk| desk.settle(index, cost(INPUT + OUTPUT)));
            }
            CallPhase::Refused | CallPhase::Ended => {}
        }
    }
    if is_final {
        seen.histories += 1;
        seen.some_refused |= states.contains(&CallPhase::Refused);
        seen.all_passed |= !states.contains(&CallPhase::Refused);
        assert_eq!(desk.wallet.held, tollgate_pricing::Amount::ZERO, "nothing stays held");
    }
}

fn explored(enforcement: Enforcement, check: impl Fn(&SpendKeyModel)) -> ExplorationStats {
    let rules = SpendRules {
        spend_limit: spend_limit(100, Cycle::Total),
        enforcement,
        ..SpendRules::default()
    };
    let mut seen = ExplorationStats::default();
    explore(&SpendKeyModel::new(rules, "1"), [CallPhase::Waiting; CALLS], &check, &mut seen);
    assert!(seen.histories > 1_000, "{}", seen.histories);
    assert!(seen.some_refused && seen.all_passed, "both ends are in reach");
    seen
}

#[test]
fn in_every_order_a_strict_limit_admits_no_more_than_fit() {
    let now = at("2026-11-21T12:00:00Z");
    let seen = explored(Enforcement::Strict, |desk| {
        if !desk.is_corrected() {
            assert!(desk.weight_in(Cycle::Total, now) <= cost(100));
        }
    });
    assert_eq!(seen.most_open, 2, "two holds of 40 fit into 100");
}

#[test]
fn in_every_order_a_bounded_limit_is_passed_by_less_than_one_call() {
    let now = at("2026-11-21T12:00:00Z");
    let seen = explored(Enforcement::Bounded, |desk| {
        if !desk.is_corrected() {
            assert!(desk.weight_in(Cycle::Total, now) < cost(100 + INPUT + OUTPUT));
        }
    });
    assert_eq!(seen.most_open, 3, "the third crosses the limit");
}
