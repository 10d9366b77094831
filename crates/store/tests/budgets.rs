//! Tests of budgets under the ledger's locks, on both databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::budgets::{self, BudgetDeletion, BudgetFault};
use tollgate_store::{DatabaseUrl, Store, spend_keys};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{amount, answered};
use tollgate_testkit::{TestStore, each_store};

/// A budget with a strict daily limit, or without one. Calls hold and cost 2 USD.
fn rules(limit: Option<&str>) -> BudgetRules {
    BudgetRules {
        enforcement: BudgetEnforcement::Strict,
        spend_limit: limit.map(|usd| SpendLimit { amount: amount(usd), cycle: Cycle::Daily }),
        ..BudgetRules::default()
    }
}

async fn counters(store: &TestStore, budget: &Budget) -> SpendCounters {
    let (merchant_id, id) = (budget.merchant_id, budget.budget_id);
    let found = store.store.read(move |conn| budgets::find(conn, merchant_id, id)).await;
    found.unwrap().unwrap().counters
}

async fn key_of(store: &TestStore, budget: &Budget) -> (SpendKey, Key) {
    let (key, secret) = store.spend_key(budget.merchant_id, None, SpendRules::default()).await;
    store.move_key(&key, Some(budget.budget_id)).await;
    (key, secret)
}

async fn admit(node: &Store, call: Call) -> Result<PendingRecord, Refusal> {
    node.admit(Box::new(call)).await.unwrap().map(|pending| *pending)
}

/// The budget that refuses a call for money.
fn refusing(refusal: &Refusal) -> Option<BudgetId> {
    match refusal {
        Refusal::SpendLimitReached { owner: LimitOwner::Budget(id), .. } => Some(*id),
        _ => None,
    }
}

#[test]
fn a_call_is_held_and_counted_on_all_levels_and_the_audit_agrees() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let root = store.budget(merchant_id, None, rules(Some("5"))).await;
        let team = store.budget(merchant_id, Some(root.budget_id), rules(None)).await;
        let project = store.budget(merchant_id, Some(team.budget_id), rules(Some("3"))).await;
        let (key, secret) = key_of(store, &project).await;
        let call = || store.call_with(&key, &secret);
        let pending = admit(&store.store, call()).await.unwrap();
        assert_eq!(pending.budgets.ids.len(), 3);
        for budget in [&root, &team, &project] {
            let counters = counters(store, budget).await;
            assert_eq!((counters.held.day, counters.requests.day), (amount("2"), 1));
        }
        let refused = admit(&store.store, call()).await.unwrap_err();
        assert_eq!(refusing(&refused), Some(project.budget_id));
        store.assert_audited().await;
        let outcome = store.store.settle(pending.request_id, answered(1, "1.5")).await;
        assert_eq!(outcome.cost().unwrap().remaining, Some(amount("1.5")));
        for budget in [&root, &team, &project] {
            let counters = counters(store, budget).await;
            assert_eq!((counters.held.day, counters.spent.day), (Amount::ZERO, amount("1.5")));
        }
        // Another key below the root.
        let (other, other_secret) = key_of(store, &team).await;
        let call = || store.call_with(&other, &other_secret);
        let pending = admit(&store.store, call()).await.unwrap();
        store.store.settle(pending.request_id, answered(1, "2")).await;
        let refused = admit(&store.store, call()).await.unwrap_err();
        assert_eq!(refusing(&refused), Some(root.budget_id));
        store.assert_audited().await;
        // What was spent stays where it was spent.
        store.move_key(&key, None).await;
        let pending = admit(&store.store, store.call_with(&key, &secret)).await.unwrap();
        assert_eq!(pending.budgets.ids, []);
        store.store.settle(pending.request_id, answered(1, "2")).await;
        assert_eq!(counters(store, &project).await.spent.total, amount("1.5"));
        store.assert_audited().await;
    });
}

#[test]
fn metadata_and_customers_lead_to_budgets_at_once() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let connection = store.connection(merchant_id, "100").await;
        let wallet_id = Some(connection.wallet_id);
        let (key, secret) = store.spend_key(merchant_id, wallet_id, SpendRules::default()).await;
        let call = |metadata: &str| {
            let mut call = store.call_with(&key, &secret);
            call.forwarded.metadata = Metadata::parse(metadata).unwrap();
            call
        };
        let counted = async |metadata: &str| {
            let pending = admit(&store.store, call(metadata)).await.unwrap();
            store.store.settle(pending.request_id, answered(1, "1")).await;
            pending.budgets.ids
        };
        assert_eq!(counted(r#"{"job": "a"}"#).await, []);
        let pairs = Some(Metadata::parse(r#"{"job": "a"}"#).unwrap());
        let mut job = store.budget(merchant_id, None, BudgetRules { pairs, ..rules(None) }).await;
        assert_eq!(counted(r#"{"job": "a"}"#).await, [job.budget_id]);
        assert_eq!(counted(r#"{"job": "b"}"#).await, []);
        let own = store.budget(merchant_id, None, rules(None)).await;
        store.move_customer(&connection, Some(own.budget_id)).await;
        assert_eq!(counted(r#"{"job": "a"}"#).await, [job.budget_id, own.budget_id]);
        job.rules.status = BudgetStatus::Paused;
        store.save_budget(&job, false).await.unwrap();
        let refused = admit(&store.store, call(r#"{"job": "a"}"#)).await.unwrap_err();
        assert_eq!(refused, Refusal::BudgetPaused { budget_id: job.budget_id });
        assert_eq!(counted("{}").await, [own.budget_id]);
        let mut paused = own.clone();
        paused.rules.status = BudgetStatus::Paused;
        store.save_budget(&paused, false).await.unwrap();
        let refused = admit(&store.store, call("{}")).await.unwrap_err();
        assert_eq!(refused, Refusal::BudgetPaused { budget_id: own.budget_id });
        store.assert_audited().await;
    });
}

#[test]
fn a_tree_is_kept_sound_and_what_is_named_is_not_deleted() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let other = store.merchant().await.merchant.merchant_id;
        let mut chain = vec![store.budget(merchant_id, None, rules(None)).await];
        for _ in 1..BUDGET_LEVELS {
            chain.push(
                store.budget(merchant_id, chain.last().map(|one| one.budget_id), rules(None)).await,
            );
        }
        let last = chain.last().unwrap().clone();
        let below = |merchant_id| Budget {
            budget_id: BudgetId::generate(store.clock.now()),
            merchant_id,
            parent_id: Some(last.budget_id),
            ..last.clone()
        };
        let deep = store.save_budget(&below(merchant_id), true).await;
        assert_eq!(deep, Err(BudgetFault::Parent(ParentFault::TooDeep)));
        let foreign = store.save_budget(&below(other), true).await;
        assert_eq!(foreign, Err(BudgetFault::Parent(ParentFault::Unknown)));
        let mut root = chain.first().unwrap().clone();
        root.parent_id = Some(last.budget_id);
        let circle = store.save_budget(&root, false).await;
        assert_eq!(circle, Err(BudgetFault::Parent(ParentFault::Cycle)));
        let (key, _) = key_of(store, &last).await;
        let delete = async |merchant_id, id| {
            let now = store.clock.now();
            let delete = move |conn: &mut _| budgets::delete(conn, merchant_id, id, now);
            store.store.write(delete).await.unwrap()
        };
        let (first_id, last_id) = (chain.first().unwrap().budget_id, last.budget_id);
        assert_eq!(delete(merchant_id, first_id).await, BudgetDeletion::InUse);
        assert_eq!(delete(merchant_id, last_id).await, BudgetDeletion::InUse);
        assert_eq!(delete(other, last_id).await, BudgetDeletion::NotFound);
        let pairs = Some(Metadata::parse(r#"{"job": "a"}"#).unwrap());
        let mut matching = last.clone();
        matching.rules.pairs = pairs;
        assert_eq!(store.save_budget(&matching, false).await, Err(BudgetFault::IsNamed));
        store.move_key(&key, None).await;
        store.save_budget(&matching, false).await.unwrap();
        assert_eq!(delete(merchant_id, last_id).await, BudgetDeletion::Deleted);
        assert_eq!(delete(merchant_id, last_id).await, BudgetDeletion::NotFound);
    });
}

#[test]
fn at_most_a_hundred_active_budgets_match_calls() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let matching = |status| BudgetRules {
            status,
            pairs: Some(Metadata::parse(r#"{"job": "a"}"#).unwrap()),
            ..BudgetRules::default()
        };
        let active = || matching(BudgetStatus::Active);
        let mut last = store.budget(merchant_id, None, matching(BudgetStatus::Paused)).await;
        for _ in 0..MATCHING_BUDGETS {
            last = store.budget(merchant_id, None, active()).await;
        }
        let budget_id = BudgetId::generate(store.clock.now());
        let mut more = Budget { budget_id, ..last.clone() };
        let refused = store.save_budget(&more, true).await;
        assert_eq!(refused, Err(BudgetFault::TooManyMatching));
        more.rules.status = BudgetStatus::Paused;
        store.save_budget(&more, true).await.unwrap();
        more.rules = active();
        let refused = store.save_budget(&more, false).await;
        assert_eq!(refused, Err(BudgetFault::TooManyMatching));
        last.rules.status = BudgetStatus::Paused;
        store.save_budget(&last, false).await.unwrap();
        store.save_budget(&more, false).await.unwrap();
    });
}

#[test]
fn what_a_dead_process_left_is_no_longer_held_on_its_budgets() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let root = store.budget(merchant_id, None, rules(Some("5"))).await;
        let observed =
            BudgetRules { enforcement: BudgetEnforcement::Observe, ..rules(Some("0.5")) };
        let team = store.budget(merchant_id, Some(root.budget_id), observed).await;
        let (key, secret) = key_of(store, &team).await;
        let pending = admit(&store.store, store.call_with(&key, &secret)).await.unwrap();
        assert!(!pending.budgets.would_refuse);
        store.store.settle(pending.request_id, answered(1, "1")).await;
        let pending = admit(&store.store, store.call_with(&key, &secret)).await.unwrap();
        assert!(pending.budgets.would_refuse);
        assert_eq!(counters(store, &root).await.held.day, amount("2"));
        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.sweep().await.unwrap();
        assert_eq!(next.audit().await.unwrap().differences, []);
        assert_eq!(counters(store, &root).await.held.total, Amount::ZERO);
        // The real usage arrives after the sweep.
        next.settle(pending.request_id, answered(500_000, "1.5")).await;
        assert_eq!(next.audit().await.unwrap().differences, []);
        for budget in [&root, &team] {
            assert_eq!(counters(store, budget).await.spent.total, amount("2.5"));
        }
        next.close().await.unwrap();
    });
}

/// A tree of four levels with a tight limit somewhere, 200 callers, and budgets that match.
async fn race(nodes: &[Store], store: &TestStore, merchant_id: MerchantId, seed: u64) {
    const CALLERS: u64 = 200;
    let mut random = Random(seed);
    let fits = seed % 7 + 1;
    let tight = format!("{}.9", fits * 2);
    // The level whose limit is tight; the fifth is a budget that matches the calls.
    let level = random.index(5);
    let limit = |of| if level == of { Some(tight.as_str()) } else { Some("10000") };
    let root = store.budget(merchant_id, None, rules(limit(0))).await;
    let second = store.budget(merchant_id, Some(root.budget_id), rules(limit(1))).await;
    let third = store.budget(merchant_id, Some(second.budget_id), rules(limit(2))).await;
    let leaf = store.budget(merchant_id, Some(third.budget_id), rules(limit(3))).await;
    let job = format!(r#"{{"job": "{seed}"}}"#);
    let pairs = Some(Metadata::parse(&job).unwrap());
    let matching = BudgetRules { pairs, ..rules(limit(4)) };
    let matching = store.budget(merchant_id, None, matching).await;
    let mut keys = Vec::new();
    for _ in 0..4 {
        keys.push(key_of(store, &leaf).await);
    }
    let barrier = Arc::new(tokio::sync::Barrier::new(usize::try_from(CALLERS).unwrap()));
    let callers = (0..CALLERS).map(|_| {
        let node = nodes.get(random.index(nodes.len())).unwrap().clone();
        let (key, secret) = keys.get(random.index(keys.len())).unwrap();
        let mut call = store.call_with(key, secret);
        call.forwarded.metadata = Metadata::parse(&job).unwrap();
        let (barrier, ends) = (Arc::clone(&barrier), random.one_in(2));
        tokio::spawn(async move {
            barrier.wait().await;
            let Ok(pending) = admit(&node, call).await else { return None };
            if ends {
                node.settle(pending.request_id, answered(1_000_000, "2")).await;
                return Some(None);
            }
            Some(Some(pending.request_id))
        })
    });
    let (mut admitted, mut open) = (0, Vec::new());
    for caller in callers.collect::<Vec<_>>() {
        if let Some(call) = caller.await.unwrap() {
            admitted += 1;
            open.extend(call);
        }
    }
    assert_eq!(admitted, fits, "seed {seed}, level {level}");
    for id in open {
        nodes.first().unwrap().settle(id, answered(1_000_000, "2")).await;
    }
    for budget in [&root, &second, &third, &leaf, &matching] {
        let counters = counters(store, budget).await;
        assert_eq!(counters.held.total, Amount::ZERO, "seed {seed}");
        assert_eq!(counters.spent.total, amount(&format!("{}", fits * 2)), "seed {seed}");
    }
}

#[test]
fn of_two_hundred_callers_below_four_levels_exactly_those_that_fit_are_admitted() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        for seed in 0..seeds(8) {
            race(std::slice::from_ref(&store.store), store, merchant_id, seed).await;
        }
        store.assert_audited().await;
    });
}

#[test]
fn on_two_nodes_as_on_one() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            // SQLite allows one process; another test checks that.
            return;
        }
        let second = store.open_again();
        second.renew_lease().await.unwrap();
        let nodes = [store.store.clone(), second.clone()];
        let merchant_id = store.merchant().await.merchant.merchant_id;
        for seed in 0..seeds(8) {
            race(&nodes, store, merchant_id, seed).await;
        }
        store.assert_audited().await;
        second.close().await.unwrap();
    });
}

/// While calls are made, keys move between budgets, and limits are lowered and raised.
#[test]
fn budgets_that_change_under_load_neither_deadlock_nor_lose_a_call() {
    each_store(async |store| {
        let second = match store.url {
            DatabaseUrl::Sqlite(_) => store.store.clone(),
            _ => store.open_again(),
        };
        second.renew_lease().await.unwrap();
        let nodes = [store.store.clone(), second.clone()];
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let root = store.budget(merchant_id, None, rules(Some("300"))).await;
        let mut teams = Vec::new();
        for _ in 0..4 {
            teams.push(store.budget(merchant_id, Some(root.budget_id), rules(Some("100"))).await);
        }
        let mut keys = Vec::new();
        for team in &teams {
            keys.push(key_of(store, team).await);
        }
        let mut random = Random(7);
        let mut tasks = Vec::new();
        for number in 0..400 {
            let node = nodes.get(random.index(2)).unwrap().clone();
            let (key, secret) = keys.get(random.index(4)).unwrap();
            if number % 10 == 0 {
                let (key, team) = (key.clone(), teams.get(random.index(4)).unwrap().budget_id);
                let now = store.clock.now();
                let changes =
                    SpendKeyChanges { budget_id: Some(Some(team)), ..SpendKeyChanges::default() };
                tasks.push(tokio::spawn(async move {
                    let moved = node.write(move |conn| {
                        spend_keys::update(conn, merchant_id, key.spend_key_id, changes, now)
                    });
                    moved.await.unwrap();
                }));
                continue;
            }
            if number % 25 == 1 {
                let mut changed = teams.get(random.index(4)).unwrap().clone();
                let usd = format!("{}", 10 + random.below(100));
                changed.rules.spend_limit =
                    Some(SpendLimit { amount: amount(&usd), cycle: Cycle::Daily });
                tasks.push(tokio::spawn(async move {
                    let saved = node.write(move |conn| budgets::save(conn, &changed, false)).await;
                    saved.unwrap().unwrap();
                }));
                continue;
            }
            let call = store.call_with(key, secret);
            tasks.push(tokio::spawn(async move {
                if let Ok(pending) = admit(&node, call).await {
                    tokio::task::yield_now().await;
                    node.settle(pending.request_id, answered(1_000_000, "2")).await;
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let root = counters(store, &root).await;
        assert_eq!(root.held.total, Amount::ZERO);
        assert!(root.spent.day <= amount("300"), "{}", root.spent.day);
        store.assert_audited().await;
        if !matches!(store.url, DatabaseUrl::Sqlite(_)) {
            second.close().await.unwrap();
        }
    });
}
