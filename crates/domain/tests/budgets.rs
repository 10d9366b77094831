//! Budgets: which of them a call counts against, the order of refusals, and random trees under random histories,
//! against a reference that only adds up calls.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_domain::admission::{
    AdmissionFacts, Call, MerchantAccount, Refusal, decide, remaining,
};
use tollgate_domain::*;
use tollgate_pricing::{Amount, Rate};

use crate::spend_key_model::{amount, at, call, cost, spend_limit};

const NOW: &str = "2026-11-21T12:00:00Z";

fn budget(parent_id: Option<BudgetId>, rules: BudgetRules) -> Budget {
    let created_at = at("2026-01-01T00:00:00Z");
    Budget {
        budget_id: BudgetId::generate(created_at),
        merchant_id: MerchantId::generate(created_at),
        parent_id,
        name: "Team".to_owned(),
        rules,
        metadata: Metadata::default(),
        counters: SpendCounters::default(),
        created_at,
    }
}

fn pairs(json: &str) -> Metadata {
    Metadata::parse(json).unwrap()
}

#[test]
fn a_call_counts_once_against_each_budget_above_those_that_are_named_or_match() {
    let matching = |parent, json: &str, status| {
        let rules = BudgetRules { pairs: Some(pairs(json)), status, ..BudgetRules::default() };
        budget(parent, rules)
    };
    let root = budget(None, BudgetRules::default());
    let team = budget(Some(root.budget_id), BudgetRules::default());
    let project = budget(Some(team.budget_id), BudgetRules::default());
    let other = budget(None, BudgetRules::default());
    let eu = matching(Some(team.budget_id), r#"{"region": "eu"}"#, BudgetStatus::Active);
    let both = matching(None, r#"{"region": "eu", "job": "a"}"#, BudgetStatus::Active);
    let paused = matching(None, r#"{"region": "eu"}"#, BudgetStatus::Paused);
    let tree: BudgetTree =
        [&root, &team, &project, &other, &eu, &both, &paused].into_iter().cloned().collect();
    let counted = |named: &[&Budget], metadata: &str| {
        tree.of_call(named.iter().map(|budget| budget.budget_id), &pairs(metadata))
    };
    let ids = |budgets: &[&Budget]| budgets.iter().map(|one| one.budget_id).collect::<Vec<_>>();
    assert_eq!(counted(&[], "{}"), ids(&[]));
    assert_eq!(counted(&[&project], "{}"), ids(&[&root, &team, &project]));
    assert_eq!(counted(&[&project, &team], "{}"), ids(&[&root, &team, &project]));
    assert_eq!(counted(&[&project, &other], "{}"), ids(&[&root, &team, &project, &other]));
    assert_eq!(counted(&[], r#"{"region": "us"}"#), ids(&[]));
    assert_eq!(
        counted(&[&other], r#"{"region": "eu"}"#),
        ids(&[&root, &team, &other, &eu, &paused])
    );
    let all = r#"{"region": "eu", "job": "a", "more": "b"}"#;
    assert_eq!(counted(&[&project], all), ids(&[&root, &team, &project, &eu, &both, &paused]));
}

#[test]
fn a_tree_has_four_levels_and_no_circle() {
    let mut chain = vec![budget(None, BudgetRules::default())];
    for _ in 1..BUDGET_LEVELS {
        chain.push(budget(Some(chain.last().unwrap().budget_id), BudgetRules::default()));
    }
    let single = budget(None, BudgetRules::default());
    let tree: BudgetTree = chain.iter().chain([&single]).cloned().collect();
    let ids: Vec<_> = chain.iter().map(|one| one.budget_id).collect();
    let unknown = BudgetId::generate(at(NOW));
    for (child, parent, expected) in [
        (None, ids[2], Ok(())),
        (None, ids[3], Err(ParentFault::TooDeep)),
        (None, unknown, Err(ParentFault::Unknown)),
        (Some(ids[0]), ids[0], Err(ParentFault::Cycle)),
        (Some(ids[0]), ids[3], Err(ParentFault::Cycle)),
        (Some(ids[0]), single.budget_id, Err(ParentFault::TooDeep)),
        (Some(ids[1]), single.budget_id, Ok(())),
        (Some(single.budget_id), ids[2], Ok(())),
        (Some(single.budget_id), ids[3], Err(ParentFault::TooDeep)),
    ] {
        assert_eq!(tree.check_parent(child, parent), expected, "{child:?} {parent}");
    }
}

/// A merchant with budgets, keys that name them, and the calls that were admitted, in memory.
#[derive(Clone, Debug)]
struct BudgetModel {
    budgets: BTreeMap<BudgetId, Budget>,
    keys: Vec<(SpendKey, Option<BudgetId>)>,
    runs: BTreeMap<RunAccountId, Run>,
    wallet: Wallet,
    draws_on_credit: bool,
    calls: Vec<ModelledCall>,
    events: Vec<EventPayload>,
}

#[derive(Clone, Debug)]
struct ModelledCall {
    key: usize,
    budgets: Vec<BudgetId>,
    run: Option<RunAccountId>,
    admitted_at: Timestamp,
    hold: Amount,
    cost: Option<Amount>,
}

impl ModelledCall {
    fn weight(&self) -> Amount {
        self.cost.unwrap_or(self.hold)
    }
}

impl BudgetModel {
    fn new(budgets: Vec<Budget>, keys: Vec<(SpendRules, Option<BudgetId>)>) -> Self {
        let created_at = at("2026-01-01T00:00:00Z");
        let merchant_id = MerchantId::generate(created_at);
        let wallet = Wallet {
            wallet_id: WalletId::generate(created_at),
            merchant_id,
            connection_id: None,
            balance: Amount::ZERO,
            held: Amount::ZERO,
            credits: Credits::default(),
            overdraft_limit: None,
            low_balance_threshold: None,
            created_at,
        };
        let key = |rules| SpendKey {
            spend_key_id: SpendKeyId::generate(created_at),
            merchant_id,
            wallet_id: wallet.wallet_id,
            meter_id: None,
            budget_id: None,
            name: "key".to_owned(),
            key_preview: "tgk_abcdefgh****".to_owned(),
            rules,
            counters: SpendCounters::default(),
            created_at,
        };
        Self {
            budgets: budgets.into_iter().map(|budget| (budget.budget_id, budget)).collect(),
            keys: keys.into_iter().map(|(rules, budget)| (key(rules), budget)).collect(),
            runs: BTreeMap::new(),
            wallet,
            draws_on_credit: false,
            calls: Vec::new(),
            events: Vec::new(),
        }
    }

    fn admit(&mut self, key: usize, call: &Call) -> Result<PendingRecord, Refusal> {
        let tree: BudgetTree = self.budgets.values().cloned().collect();
        let (spend_key, named) = &self.keys[key];
        let ids = tree.of_call(*named, &call.forwarded.metadata);
        let budgets: Vec<_> = ids.iter().map(|id| &self.budgets[id]).collect();
        let own = WalletId::generate(call.created_at);
        let call = &Call { merchant_id: spend_key.merchant_id, ..call.clone() };
        let run = call.run_under(Some(spend_key));
        let run = run.map(|new| self.runs.get(&new.account_id).cloned().unwrap_or(new));
        let facts = AdmissionFacts {
            account: Some(MerchantAccount { wallet_id: own, guarded: None }),
            spend_key: Some(spend_key),
            budgets: &budgets,
            own_budget_id: None,
            run: run.as_ref(),
            connection: None,
            key_connection: None,
            wallet: Some(&self.wallet),
            meter: None,
            draws_on_credit: self.draws_on_credit,
        };
        let admission = decide(call, &facts, Rate::ZERO)?;
        let pending = admission.pending;
        assert_eq!(pending.budgets.ids, ids);
        self.keys[key].0.counters = admission.counters.unwrap();
        assert_eq!(admission.budget_counters.len(), ids.len());
        for (id, counters) in ids.iter().zip(admission.budget_counters) {
            self.budgets.get_mut(id).unwrap().counters = counters;
        }
        assert_eq!(pending.run().map(|run| run.account_id), run.map(|run| run.account_id));
        let run = admission.run.map(|run| (run.account_id, run));
        self.runs.extend(run.clone());
        self.calls.push(ModelledCall {
            key,
            budgets: ids,
            run: run.map(|(id, _)| id),
            admitted_at: pending.created_at,
            hold: pending.spend_hold,
            cost: None,
        });
        Ok(pending)
    }

    fn settle(&mut self, index: usize, cost: Amount) {
        let call = &mut self.calls[index];
        call.cost = Some(cost);
        let (admitted_at, hold) = (call.admitted_at, call.hold);
        self.keys[call.key].0.settle(admitted_at, hold, cost).unwrap();
        for id in &call.budgets {
            let budget = self.budgets.get_mut(id).unwrap();
            self.events.extend(budget.settle(admitted_at, hold, cost).unwrap());
        }
        if let Some(id) = &call.run {
            self.runs.get_mut(id).unwrap().settle(admitted_at, hold, cost).unwrap();
        }
    }

    /// The calls of a budget in the cycle of an instant.
    fn in_cycle(&self, budget: &Budget, cycle: Cycle, instant: Timestamp) -> Vec<&ModelledCall> {
        let counts = |call: &&ModelledCall| {
            call.budgets.contains(&budget.budget_id)
                && budget.rules.calendar.is_same(cycle, call.admitted_at, instant)
        };
        self.calls.iter().filter(counts).collect()
    }

    /// Asserts that every counter of every budget is the sum over the calls.
    fn assert_counted(&self) {
        for budget in self.budgets.values() {
            let Some(last) = budget.counters.last_used_at else { continue };
            for cycle in [Cycle::Daily, Cycle::Weekly, Cycle::Monthly, Cycle::Total] {
                let calls = self.in_cycle(budget, cycle, last);
                let sum = |part: fn(&ModelledCall) -> Amount| {
                    calls.iter().map(|call| part(call)).sum::<Result<Amount, _>>().unwrap()
                };
                let spent = sum(|call| call.cost.unwrap_or_default());
                let held = sum(|call| if call.cost.is_none() { call.hold } else { Amount::ZERO });
                assert_eq!(*budget.counters.spent.get(cycle), spent, "{cycle:?}");
                assert_eq!(*budget.counters.held.get(cycle), held, "{cycle:?}");
                let requests = usize::try_from(*budget.counters.requests.get(cycle)).unwrap();
                assert_eq!(requests, calls.len(), "{cycle:?}");
            }
        }
    }

    /// Asserts that each run counts its calls, and passes the limit of its key only as the mode allows.
    fn assert_runs(&self) {
        for (id, run) in &self.runs {
            let calls: Vec<_> = self.calls.iter().filter(|call| call.run == Some(*id)).collect();
            let sum = |part: fn(&ModelledCall) -> Amount| {
                calls.iter().map(|call| part(call)).sum::<Result<Amount, _>>().unwrap()
            };
            let spent = sum(|call| call.cost.unwrap_or_default());
            let weight = sum(ModelledCall::weight);
            let counters = &run.counters;
            assert_eq!(counters.spent.total, spent);
            assert_eq!(counters.held.total, weight.checked_sub(spent).unwrap());
            assert_eq!(usize::try_from(counters.requests.total).unwrap(), calls.len());
            assert_eq!(run.first_at, calls.iter().map(|call| call.admitted_at).min());
            let rules = &self.keys[calls[0].key].0.rules;
            let Some(limit) = rules.run_limit else { continue };
            let over = weight.saturating_sub(limit);
            let highest = calls.iter().map(|call| call.hold).max().unwrap();
            match rules.enforcement {
                Enforcement::Strict => assert!(over <= Amount::ZERO, "{over}"),
                Enforcement::Bounded => assert!(over < highest, "{over} {highest}"),
            }
        }
    }

    /// Asserts that no limit of a budget is passed, in any cycle, but as its mode allows.
    fn assert_kept(&self) {
        for budget in self.budgets.values() {
            let rules = &budget.rules;
            for call in self.calls.iter().filter(|call| call.budgets.contains(&budget.budget_id)) {
                if let Some(limit) = rules.spend_limit {
                    let calls = self.in_cycle(budget, limit.cycle, call.admitted_at);
                    let weight = calls.iter().map(|call| call.weight());
                    let weight = weight.sum::<Result<Amount, _>>().unwrap();
                    let over = weight.saturating_sub(limit.amount);
                    let highest = calls.iter().map(|call| call.hold).max().unwrap();
                    match rules.enforcement {
                        BudgetEnforcement::Strict => assert!(over <= Amount::ZERO, "{over}"),
                        BudgetEnforcement::Bounded => assert!(over < highest, "{over} {highest}"),
                        BudgetEnforcement::Observe => {}
                    }
                }
                if let Some(limit) = rules.request_limit
                    && rules.enforcement != BudgetEnforcement::Observe
                {
                    let calls = self.in_cycle(budget, limit.cycle, call.admitted_at).len();
                    assert!(u64::try_from(calls).unwrap() <= limit.count);
                }
            }
        }
    }
}

/// Each row breaks one rule more, from the last in the order to the first, and has the refusal that is then reported.
#[test]
fn refusals_come_in_their_order() {
    let first = budget(None, BudgetRules::default());
    let second = budget(Some(first.budget_id), BudgetRules::default());
    let [first_id, second_id] = [first.budget_id, second.budget_id];
    let rules = SpendRules::default();
    let mut model = BudgetModel::new(vec![first, second], vec![(rules, Some(second_id))]);
    model.wallet.overdraft_limit = Some(Amount::ZERO);
    model.wallet.balance = cost(2);
    let run = |limit| Some(CallRun { run_id: "a".parse().unwrap(), limit });
    let calling = |limit| Call { run: run(limit), ..call(1, 0, at(NOW)) };
    model.admit(0, &calling(None)).unwrap();
    model.settle(0, cost(1));
    model.wallet.balance = Amount::ZERO;
    type Change = fn(&mut BudgetModel, BudgetId, BudgetId);
    let steps: [(Change, &str); 11] = [
        (|_, _, _| {}, "wallet"),
        (|model, _, _| model.keys[0].0.rules.run_limit = Some(cost(1)), "run spend"),
        (
            |model, _, second| {
                model.budgets.get_mut(&second).unwrap().rules.spend_limit =
                    spend_limit(1, Cycle::Daily);
            },
            "second spend",
        ),
        (
            |model, _, second| {
                let limit = RequestLimit { count: 1, cycle: Cycle::Daily };
                model.budgets.get_mut(&second).unwrap().rules.request_limit = Some(limit);
            },
            "second requests",
        ),
        (
            |model, first, _| {
                model.budgets.get_mut(&first).unwrap().rules.spend_limit =
                    spend_limit(1, Cycle::Total);
            },
            "first spend",
        ),
        (
            |model, first, _| {
                let limit = RequestLimit { count: 1, cycle: Cycle::Total };
                model.budgets.get_mut(&first).unwrap().rules.request_limit = Some(limit);
            },
            "first requests",
        ),
        (
            |model, _, _| model.keys[0].0.rules.spend_limit = spend_limit(1, Cycle::Weekly),
            "key spend",
        ),
        (
            |model, _, _| {
                let limit = RequestLimit { count: 1, cycle: Cycle::Weekly };
                model.keys[0].0.rules.request_limit = Some(limit);
            },
            "key requests",
        ),
        (
            |model, _, _| {
                model.keys[0].0.rules.rate_limit = Some(RateLimit { rpm: 1, burst: 1 });
                let bucket = &mut model.keys[0].0.counters.bucket;
                bucket.take(at(NOW), 1, 1).unwrap();
            },
            "rate",
        ),
        (
            |model, _, _| {
                model.runs.values_mut().for_each(|run| run.limit = Some(cost(5)));
            },
            "conflict",
        ),
        (
            |model, _, second| {
                model.budgets.get_mut(&second).unwrap().rules.status = BudgetStatus::Paused;
            },
            "paused",
        ),
    ];
    for (change, expected) in steps {
        change(&mut model, first_id, second_id);
        let set = model.runs.values().find_map(|run| run.limit).map(|_| cost(6));
        let refusal = model.admit(0, &calling(set)).unwrap_err();
        let owner = |owner: LimitOwner| match owner {
            LimitOwner::SpendKey => "key",
            LimitOwner::Budget(id) if id == first_id => "first",
            LimitOwner::Budget(_) => "second",
            LimitOwner::Run => "run",
        };
        let found = match &refusal {
            Refusal::WalletInsufficient { .. } => "wallet".to_owned(),
            Refusal::SpendLimitReached { owner: of, .. } => format!("{} spend", owner(*of)),
            Refusal::RequestLimitReached { owner: of, .. } => format!("{} requests", owner(*of)),
            Refusal::RateLimited { .. } => "rate".to_owned(),
            Refusal::RunLimitConflict { limit } if *limit == cost(5) => "conflict".to_owned(),
            Refusal::BudgetPaused { budget_id } if *budget_id == second_id => "paused".to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_budget_that_observes_counts_alerts_and_refuses_nothing() {
    let observed = budget(
        None,
        BudgetRules {
            enforcement: BudgetEnforcement::Observe,
            spend_limit: spend_limit(10, Cycle::Daily),
            request_limit: Some(RequestLimit { count: 2, cycle: Cycle::Daily }),
            alerts: vec![50, 100],
            ..BudgetRules::default()
        },
    );
    let id = observed.budget_id;
    let mut model = BudgetModel::new(vec![observed], vec![(SpendRules::default(), Some(id))]);
    let mut would_refuse = Vec::new();
    for index in 0..4 {
        would_refuse.push(model.admit(0, &call(6, 0, at(NOW))).unwrap().budgets.would_refuse);
        model.settle(index, cost(6));
    }
    assert_eq!(would_refuse, [false, false, true, true]);
    assert_eq!(model.budgets[&id].counters.spent.day, cost(24));
    let events: Vec<_> = model.events.iter().map(|event| event.kind().as_str()).collect();
    assert_eq!(events, ["budget.threshold_reached", "budget.limit_reached"]);
    // Only shares that are asked for are reported.
    model.budgets.get_mut(&id).unwrap().rules.alerts = vec![50];
    model.budgets.get_mut(&id).unwrap().counters = SpendCounters::default();
    model.admit(0, &call(6, 0, at(NOW))).unwrap();
    model.settle(4, cost(20));
    let events: Vec<_> = model.events.iter().skip(2).map(|event| event.kind().as_str()).collect();
    assert_eq!(events, ["budget.threshold_reached"]);
    model.budgets.get_mut(&id).unwrap().counters.spent.day = cost(24);
    // It leaves nothing for the next call to know of.
    let budget = &model.budgets[&id];
    assert_eq!(remaining(None, [budget], None, None, false, at(NOW)), None);
    let enforced = Budget {
        rules: BudgetRules { enforcement: BudgetEnforcement::Bounded, ..budget.rules.clone() },
        ..budget.clone()
    };
    let left = remaining(None, [&enforced], None, None, false, at(NOW));
    assert_eq!(left, Some(cost(10).saturating_sub(cost(24))));
}

#[test]
fn a_strict_budget_needs_a_bound_and_takes_the_hold_of_an_unknown_usage() {
    let strict = budget(
        None,
        BudgetRules { enforcement: BudgetEnforcement::Strict, ..BudgetRules::default() },
    );
    let id = strict.budget_id;
    let mut model = BudgetModel::new(vec![strict], vec![(SpendRules::default(), Some(id))]);
    let pending = model.admit(0, &call(1, 1, at(NOW))).unwrap();
    assert_eq!(pending.enforcement, Some(Enforcement::Strict));
    let mut unbounded = call(1, 1, at(NOW));
    unbounded.bound.unbounded = Some(vec!["tools".to_owned()]);
    let refused = model.admit(0, &unbounded).unwrap_err();
    let owner = LimitOwner::Budget(id);
    assert_eq!(refused, Refusal::CostBoundUnknown { owner, field: vec!["tools".to_owned()] });
    model.budgets.get_mut(&id).unwrap().rules.enforcement = BudgetEnforcement::Observe;
    assert_eq!(model.admit(0, &unbounded).unwrap().enforcement, Some(Enforcement::Bounded));
}

const ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"];

fn budget_rules() -> impl Strategy<Value = BudgetRules> {
    let modes = [BudgetEnforcement::Bounded, BudgetEnforcement::Strict, BudgetEnforcement::Observe];
    let cycles = vec![Cycle::Daily, Cycle::Weekly, Cycle::Monthly, Cycle::Total];
    let cycle = || proptest::sample::select(cycles.clone());
    let spend = proptest::option::weighted(0.7, (1..300_u64, cycle()));
    let requests = proptest::option::weighted(0.3, (1..12_u64, cycle()));
    let mode = proptest::sample::select(modes.to_vec());
    (spend, requests, mode, 0..ZONES.len(), proptest::option::weighted(0.3, 0..2_usize)).prop_map(
        |(spend, requests, enforcement, zone, pair)| BudgetRules {
            enforcement,
            spend_limit: spend.and_then(|(units, cycle)| spend_limit(units, cycle)),
            request_limit: requests.map(|(count, cycle)| RequestLimit { count, cycle }),
            calendar: CycleCalendar::of(TimeZone::named(ZONES[zone]).unwrap()),
            pairs: pair.map(|value| pairs(&format!(r#"{{"job": "{value}"}}"#))),
            ..BudgetRules::default()
        },
    )
}

/// Trees of up to eight budgets: the rules of each, and the place of its parent among those before it.
fn trees() -> impl Strategy<Value = Vec<Budget>> {
    proptest::collection::vec((budget_rules(), any::<Option<proptest::sample::Index>>()), 1..9)
        .prop_map(|rows| {
            let mut budgets: Vec<Budget> = Vec::new();
            for (rules, parent) in rows {
                let parent = parent.filter(|_| !budgets.is_empty());
                let parent = parent.map(|index| index.get(&budgets).budget_id);
                let tree: BudgetTree = budgets.iter().cloned().collect();
                let parent = parent.filter(|id| tree.check_parent(None, *id).is_ok());
                budgets.push(budget(parent, rules));
            }
            budgets
        })
}

#[derive(Clone, Debug)]
enum HistoryStep {
    Call {
        key: usize,
        input: u64,
        job: Option<usize>,
        run: Option<usize>,
    },
    End {
        which: usize,
        percent: i64,
    },
    Wait {
        hours: i64,
    },
    /// A key names another budget, or none.
    Move {
        key: usize,
        to: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<HistoryStep>> {
    let step = prop_oneof![
        8 => (0..3_usize, 1..60_u64, proptest::option::of(0..3_usize), proptest::option::of(0..2_usize))
            .prop_map(|(key, input, job, run)| HistoryStep::Call { key, input, job, run }),
        5 => (any::<usize>(), 0..=100_i64)
            .prop_map(|(which, percent)| HistoryStep::End { which, percent }),
        1 => prop_oneof![Just(1), Just(6), Just(24), Just(24 * 7), Just(24 * 31)]
            .prop_map(|hours| HistoryStep::Wait { hours }),
        1 => (0..3_usize, any::<usize>()).prop_map(|(key, to)| HistoryStep::Move { key, to }),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// At every instant and every level: strict limits are never passed, bounded ones by less than one call, counters are
    /// the sums over the calls, and what was spent stays where it was spent when keys move.
    #[test]
    fn limits_of_all_levels_hold_in_random_trees_and_histories(
        budgets in trees(), steps in steps(), start in 0..400_i64,
    ) {
        let named: Vec<_> = budgets
            .iter()
            .filter(|budget| budget.rules.pairs.is_none())
            .map(|budget| Some(budget.budget_id))
            .chain([None])
            .collect();
        // Runs of the first key have a strict limit, those of the second a bounded one.
        let rules = |index: usize| SpendRules {
            run_limit: [Some(cost(90)), Some(cost(70)), None][index],
            enforcement: [Enforcement::Strict, Enforcement::Bounded][index % 2],
            ..SpendRules::default()
        };
        let key = |index: usize| (rules(index), named[index % named.len()]);
        let mut model = BudgetModel::new(budgets, (0..3).map(key).collect());
        // The clocks of Berlin and New York change within these months.
        let mut now = at("2026-03-07T20:00:00Z").plus_millis(start * 3_600_000);
        for step in steps {
            match step {
                HistoryStep::Call { key, input, job, run } => {
                    let mut call = call(input, 0, now);
                    call.run = run.map(|run| CallRun { run_id: run.to_string().parse().unwrap(), limit: None });
                    if let Some(job) = job {
                        call.forwarded.metadata = pairs(&format!(r#"{{"job": "{job}"}}"#));
                    }
                    let before = model.clone();
                    if model.admit(key, &call).is_err() {
                        // A refusal changes nothing.
                        assert_eq!((&model.budgets, &model.runs), (&before.budgets, &before.runs));
                    }
                }
                HistoryStep::End { which, percent } => {
                    let open = model.calls.iter().enumerate().filter(|(_, call)| call.cost.is_none());
                    let open: Vec<_> = open.map(|(index, _)| index).collect();
                    if let Some(index) = open.get(which % open.len().max(1)) {
                        let hold = model.calls[*index].hold.units();
                        model.settle(*index, Amount::from_units(hold * percent / 100));
                    }
                }
                HistoryStep::Wait { hours } => now = now.plus_millis(hours * 3_600_000),
                HistoryStep::Move { key, to } => model.keys[key].1 = named[to % named.len()],
            }
            model.assert_counted();
            model.assert_kept();
            model.assert_runs();
        }
    }
}

#[test]
fn a_hold_is_the_same_on_key_and_budgets() {
    let root = budget(None, BudgetRules::default());
    let id = root.budget_id;
    let mut model = BudgetModel::new(vec![root], vec![(SpendRules::default(), Some(id))]);
    let pending = model.admit(0, &call(10, 5, at(NOW))).unwrap();
    assert_eq!(pending.spend_hold, cost(15));
    assert_eq!(model.budgets[&id].counters.held.day, cost(15));
    assert_eq!(model.keys[0].0.counters.held.day, cost(15));
    assert_eq!(amount("0.000015"), cost(15));
}

/// The first call of a run sets its limit, and later ones may lower it.
#[test]
fn a_run_has_the_smaller_limit_of_its_calls_and_its_key() {
    let mut model = BudgetModel::new(Vec::new(), vec![(SpendRules::default(), None)]);
    let named = |id: &str, limit: Option<u64>| {
        let run = CallRun { run_id: id.parse().unwrap(), limit: limit.map(cost) };
        Call { run: Some(run), ..call(1, 0, at(NOW)) }
    };
    let limit = |model: &BudgetModel| model.runs.values().next().unwrap().limit;
    model.admit(0, &named("a", Some(5))).unwrap();
    model.settle(0, cost(3));
    assert_eq!(limit(&model), Some(cost(5)));
    let raised = model.admit(0, &named("a", Some(6))).unwrap_err();
    assert_eq!(raised, Refusal::RunLimitConflict { limit: cost(5) });
    model.admit(0, &named("a", Some(5))).unwrap();
    model.admit(0, &named("a", Some(4))).unwrap_err();
    assert_eq!(limit(&model), Some(cost(5)), "a call that is refused sets nothing");
    model.settle(1, Amount::ZERO);
    model.admit(0, &named("a", Some(4))).unwrap();
    assert_eq!(limit(&model), Some(cost(4)));
    let refused = model.admit(0, &named("a", None)).unwrap_err();
    let Refusal::SpendLimitReached { owner: LimitOwner::Run, limit: reached, reset: None, .. } =
        refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((reached.amount, reached.cycle), (cost(4), Cycle::Total));
    // Another run, and no run, are not limited by it.
    model.admit(0, &named("b", None)).unwrap();
    model.admit(0, &call(1, 0, at(NOW))).unwrap();
    assert_eq!(model.runs.len(), 2);

    // The limit of the key is that of every run, and calls without a run are the run of the day.
    model.keys[0].0.rules.run_limit = Some(cost(2));
    model.runs.clear();
    let calls = model.calls.len();
    model.admit(0, &named("a", Some(50))).unwrap();
    model.settle(calls, cost(2));
    assert!(model.admit(0, &named("a", None)).is_err());
    let unnamed = |instant: &str| call(1, 0, at(instant));
    let pending = model.admit(0, &unnamed(NOW)).unwrap();
    assert!(pending.run_id.unwrap().is_of_the_day());
    model.settle(calls + 1, cost(2));
    let refused = model.admit(0, &unnamed("2026-11-21T23:59:59Z")).unwrap_err();
    let Refusal::SpendLimitReached { reset: Some(reset), .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(reset.at, at("2026-11-22T00:00:00Z"));
    model.admit(0, &unnamed("2026-11-22T00:00:00Z")).unwrap();

    // What is left for the next call.
    let (key, run) = (&model.keys[0].0, model.runs.values().find(|run| run.limit.is_some()));
    assert_eq!(remaining(Some(key), [], run, None, false, at(NOW)), Some(Amount::ZERO));

    // A limit needs a price.
    let mut unpriced = named("c", None);
    unpriced.bound.prices = None;
    let refused = model.admit(0, &unpriced).unwrap_err();
    let owner = LimitOwner::Run;
    assert_eq!(refused, Refusal::CostBoundUnknown { owner, field: vec!["model".to_owned()] });
}

/// A call against a key, a tree of four levels, eight budgets that match it, a run, and a wallet with credit. Each row
/// uses up one account more, from the last in the order to the first, and has the account that then refuses.
#[test]
fn one_decision_is_made_over_all_accounts_of_a_call() {
    let mut budgets = vec![budget(None, BudgetRules::default())];
    for _ in 1..BUDGET_LEVELS {
        let parent = budgets.last().map(|above| above.budget_id);
        budgets.push(budget(parent, BudgetRules::default()));
    }
    let leaf = budgets.last().map(|leaf| leaf.budget_id);
    for _ in 0..8 {
        let rules = BudgetRules { pairs: Some(pairs(r#"{"job": "a"}"#)), ..BudgetRules::default() };
        budgets.push(budget(None, rules));
    }
    let mut model = BudgetModel::new(budgets, vec![(SpendRules::default(), leaf)]);
    model.draws_on_credit = true;
    model.wallet.overdraft_limit = Some(Amount::ZERO);
    model.wallet.credits.cycle.remaining = cost(3);
    let mut calling = call(2, 0, at(NOW));
    calling.forwarded.metadata = pairs(r#"{"job": "a"}"#);
    calling.run = Some(CallRun { run_id: "a".parse().unwrap(), limit: None });
    let pending = model.admit(0, &calling).unwrap();
    assert_eq!(pending.budgets.ids.len(), 12);
    let on_credit = pending.credit_hold.unwrap();
    assert_eq!(
        (pending.spend_hold, on_credit.cycle, pending.wallet_hold),
        (cost(2), cost(2), Amount::ZERO)
    );
    let held = |counters: &SpendCounters| (counters.held.total, counters.requests.total);
    let run = model.runs.values().next().unwrap();
    let all = model.budgets.values().map(|budget| &budget.counters);
    for counters in all.chain([&run.counters, &model.keys[0].0.counters]) {
        assert_eq!(held(counters), (cost(2), 1));
    }

    let mut expected = vec!["wallet".to_owned(), "run".to_owned()];
    expected.extend(pending.budgets.ids.iter().rev().map(ToString::to_string));
    expected.push("key".to_owned());
    for (row, expected) in expected.into_iter().enumerate() {
        match row {
            0 => model.wallet.credits.cycle.remaining = Amount::ZERO,
            1 => model.keys[0].0.rules.run_limit = Some(cost(2)),
            14 => model.keys[0].0.rules.spend_limit = spend_limit(2, Cycle::Daily),
            _ => {
                let id = pending.budgets.ids[13 - row];
                model.budgets.get_mut(&id).unwrap().rules.spend_limit =
                    spend_limit(2, Cycle::Daily);
            }
        }
        let refused = match model.clone().admit(0, &calling).unwrap_err() {
            Refusal::WalletInsufficient { .. } => "wallet".to_owned(),
            Refusal::SpendLimitReached { owner: LimitOwner::SpendKey, .. } => "key".to_owned(),
            Refusal::SpendLimitReached { owner: LimitOwner::Run, .. } => "run".to_owned(),
            Refusal::SpendLimitReached { owner: LimitOwner::Budget(id), .. } => id.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(refused, expected, "row {row}");
    }
}
