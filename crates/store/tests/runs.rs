//! Tests of runs under the ledger's locks, on both databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use futures_util::future::join_all;
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::*;
use tollgate_pricing::Amount;
use tollgate_store::requests::{self, ListFilter};
use tollgate_store::runs::{self, RunFilter};
use tollgate_store::{Conn, DatabaseUrl, Page, RecordArchive, Store};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{amount, answered};
use tollgate_testkit::{TestStore, each_store};

/// A key that limits its runs. Calls hold and cost 2 USD.
fn rules(limit: Option<&str>) -> SpendRules {
    SpendRules {
        enforcement: Enforcement::Strict,
        run_limit: limit.map(amount),
        ..SpendRules::default()
    }
}

fn named(call: Call, run: &str, limit: Option<&str>) -> Call {
    let run = CallRun { run_id: run.parse().unwrap(), limit: limit.map(amount) };
    Call { run: Some(run), ..call }
}

async fn admit(node: &Store, call: Call) -> Result<PendingRecord, Refusal> {
    node.admit(Box::new(call)).await.unwrap().map(|pending| *pending)
}

async fn list(store: &TestStore, merchant_id: MerchantId, filter: RunFilter) -> Vec<Run> {
    let page = Page { after: None, limit: 100 };
    store.store.read(move |conn| runs::list(conn, merchant_id, filter, &page)).await.unwrap()
}

fn is_of_run(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::SpendLimitReached { owner: LimitOwner::Run, .. })
}

#[test]
fn a_run_is_made_by_its_first_call_and_counts_and_limits_its_calls() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let (key, secret) = store.spend_key(merchant_id, None, rules(None)).await;
        let call = |run: &str, limit| named(store.call_with(&key, &secret), run, limit);
        let refused = admit(&store.store, call("a", Some("1"))).await.unwrap_err();
        assert!(is_of_run(&refused), "{refused:?}");
        assert_eq!(
            list(store, merchant_id, RunFilter::default()).await,
            [],
            "a refusal makes none"
        );

        let pending = admit(&store.store, call("a", Some("5"))).await.unwrap();
        assert_eq!(pending.run_id.as_ref().map(RunId::as_str), Some("a"));
        store.assert_audited().await;
        let outcome = store.store.settle(pending.request_id, answered(1, "1.5")).await;
        assert_eq!(outcome.cost().unwrap().remaining, Some(amount("3.5")));
        store.clock.advance_millis(1_000);
        admit(&store.store, call("a", Some("4"))).await.unwrap();
        let conflict = admit(&store.store, call("a", Some("4.5"))).await.unwrap_err();
        assert_eq!(conflict, Refusal::RunLimitConflict { limit: amount("4") });
        let refused = admit(&store.store, call("a", None)).await.unwrap_err();
        assert!(is_of_run(&refused), "{refused:?}");
        admit(&store.store, call("b", None)).await.unwrap();
        store.assert_audited().await;

        let found = list(store, merchant_id, RunFilter::default()).await;
        let [b, a] = &found[..] else { panic!("{found:?}") };
        assert_eq!((a.run_id.as_str(), b.run_id.as_str()), ("a", "b"));
        assert_eq!((a.limit, a.spend_key_id), (Some(amount("4")), Some(key.spend_key_id)));
        let counters = &a.counters;
        assert_eq!((counters.spent.total, counters.held.total), (amount("1.5"), amount("2")));
        assert_eq!((counters.requests.total, a.first_at), (2, Some(pending.created_at)));
        let filter = RunFilter {
            connection_id: Some(ConnectionId::generate(store.clock.now())),
            ..RunFilter::default()
        };
        assert_eq!(list(store, merchant_id, filter).await, []);
        let next = Page { after: Some(b.account_id), limit: 1 };
        let next = store
            .store
            .read(move |conn| runs::list(conn, merchant_id, RunFilter::default(), &next));
        assert_eq!(next.await.unwrap(), std::slice::from_ref(a));

        // The records of the run, the pending one too.
        let filter = ListFilter { run_id: Some("a".parse().unwrap()), ..ListFilter::default() };
        let page = Page { after: None, limit: 10 };
        let found = store.store.read(move |conn| {
            requests::list(conn, &RecordArchive::default(), merchant_id, &filter, &page)
        });
        let statuses: Vec<_> =
            found.await.unwrap().records.iter().map(|record| record.status).collect();
        assert_eq!(statuses, [RequestStatus::Pending, RequestStatus::Completed]);

        // Another owner with the same id of a run has another run.
        let secret_key_id = store.secret_key_id(&merchant).await;
        let own = named(store.call(merchant_id, secret_key_id), "a", None);
        admit(&store.store, own).await.unwrap();
        assert_eq!(list(store, merchant_id, RunFilter::default()).await.len(), 3);
        store.assert_audited().await;
    });
}

#[test]
fn calls_without_a_run_are_the_run_of_their_day_if_the_key_limits_its_runs() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let (key, secret) = store.spend_key(merchant_id, None, rules(Some("3"))).await;
        let mut costs = Vec::new();
        for _ in 0..2 {
            let pending = admit(&store.store, store.call_with(&key, &secret)).await.unwrap();
            assert!(pending.run_id.clone().unwrap().is_of_the_day());
            let refused = admit(&store.store, store.call_with(&key, &secret)).await.unwrap_err();
            assert!(is_of_run(&refused), "{refused:?}");
            store.store.settle(pending.request_id, answered(1, "2")).await;
            costs.push(amount("2"));
            store.clock.advance_millis(24 * 60 * 60 * 1_000);
        }
        let found = list(store, merchant_id, RunFilter::default()).await;
        assert_eq!(found.iter().map(|run| run.counters.spent.total).collect::<Vec<_>>(), costs);
        store.assert_audited().await;
    });
}

#[test]
fn a_run_is_forgotten_thirty_days_after_its_last_call_and_begins_again() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let (key, secret) = store.spend_key(merchant_id, None, rules(None)).await;
        let call = |run: &str| named(store.call_with(&key, &secret), run, Some("3"));
        let forget = async || {
            let now = store.clock.now();
            store.store.write(move |conn: &mut Conn| runs::forget_old(conn, now)).await.unwrap()
        };
        let [old, open] = [call("old"), call("open")];
        let settled = admit(&store.store, old).await.unwrap();
        store.store.settle(settled.request_id, answered(1, "2")).await;
        let open = admit(&store.store, open).await.unwrap();
        store.clock.advance_millis(30 * 24 * 60 * 60 * 1_000);
        assert_eq!(forget().await, 0);
        store.clock.advance_millis(1);
        assert_eq!(forget().await, 1, "one with an open call is kept");
        store.store.settle(open.request_id, answered(1, "2")).await;
        assert_eq!(forget().await, 1);
        store.assert_audited().await;
        let again = admit(&store.store, call("old")).await.unwrap();
        store.store.settle(again.request_id, answered(1, "1")).await;
        let found = list(store, merchant_id, RunFilter::default()).await;
        let [run] = &found[..] else { panic!("{found:?}") };
        assert_eq!((run.counters.spent.total, run.first_at), (amount("1"), Some(again.created_at)));
        store.assert_audited().await;
    });
}

/// A call that the sweeper ended is corrected on its run, or on none if that is forgotten.
#[test]
fn a_correction_counts_on_its_run_unless_that_is_forgotten() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let (key, secret) = store.spend_key(merchant_id, None, rules(None)).await;
        let mut swept = Vec::new();
        for run in ["kept", "forgotten", "again"] {
            let call = named(store.call_with(&key, &secret), run, Some("5"));
            swept.push(admit(&store.store, call).await.unwrap().request_id);
        }
        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.sweep().await.unwrap();
        next.settle(*swept.first().unwrap(), answered(500_000, "1.5")).await;
        assert_eq!(next.audit().await.unwrap().differences, []);
        store.clock.advance_millis(31 * 24 * 60 * 60 * 1_000);
        next.renew_lease().await.unwrap();
        let now = store.clock.now();
        next.write(move |conn: &mut Conn| runs::forget_old(conn, now)).await.unwrap();
        let again = named(store.call_with(&key, &secret), "again", None);
        let again = admit(&next, again).await.unwrap();
        for id in swept.into_iter().skip(1) {
            let outcome = next.settle(id, answered(500_000, "1.5")).await;
            assert_eq!(outcome.cost().unwrap().total_request_cost, amount("1.5"));
        }
        assert_eq!(next.audit().await.unwrap().differences, []);
        let page = Page { after: None, limit: 10 };
        let found =
            next.read(move |conn| runs::list(conn, merchant_id, RunFilter::default(), &page));
        let found = found.await.unwrap();
        let [run] = &found[..] else { panic!("{found:?}") };
        assert_eq!((run.run_id.as_str(), run.counters.spent.total), ("again", Amount::ZERO));
        assert_eq!(run.first_at, Some(again.created_at));
        next.close().await.unwrap();
    });
}

/// Two hundred callers on new runs at once, of keys and of a merchant: of each run exactly the calls that fit are
/// admitted.
async fn race(nodes: &[Store], store: &TestStore) {
    for seed in 0..seeds(3) {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let secret_key_id = store.secret_key_id(&merchant).await;
        let mut random = Random(seed);
        let mut keys = Vec::new();
        for _ in 0..3 {
            keys.push(store.spend_key(merchant_id, None, rules(Some("7"))).await);
        }
        let calls = (0..200_usize).map(|number| {
            let run = format!("run-{}", random.below(4));
            let call = match keys.get(random.index(4)) {
                Some((key, secret)) => named(store.call_with(key, secret), &run, None),
                // No row but that of the run is shared by these.
                None => named(store.call(merchant_id, secret_key_id), &run, Some("7")),
            };
            let node = nodes.get(number % nodes.len()).unwrap().clone();
            tokio::spawn(async move { admit(&node, call).await })
        });
        let outcomes = join_all(calls.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap);
        let outcomes: Vec<_> = outcomes.collect();
        let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        assert!(refused.into_iter().all(is_of_run), "seed {seed}");
        let found = list(store, merchant_id, RunFilter::default()).await;
        let calls: Vec<_> = found
            .iter()
            .map(|run| (run.spend_key_id.is_some(), run.counters.requests.total))
            .collect();
        // A strict limit has room for three holds of 2 USD. A bounded one takes the call that crosses it.
        let is_right = |(is_strict, calls): &(bool, u64)| *calls == if *is_strict { 3 } else { 4 };
        assert_eq!(calls.len(), 16, "seed {seed}");
        assert!(calls.iter().all(is_right), "seed {seed}: {calls:?}");
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 12 * 3 + 4 * 4);
    }
    store.assert_audited().await;
}

#[test]
fn of_two_hundred_callers_on_new_runs_exactly_those_that_fit_are_admitted() {
    each_store(async |store| race(std::slice::from_ref(&store.store), store).await);
}

#[test]
fn on_two_nodes_new_runs_are_made_once() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            return;
        }
        let second = store.open_again();
        second.renew_lease().await.unwrap();
        race(&[store.store.clone(), second.clone()], store).await;
        second.close().await.unwrap();
    });
}
