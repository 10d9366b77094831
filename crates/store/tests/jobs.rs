//! Tests of jobs under the ledger's locks, on both databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_domain::admission::CallKey;
use tollgate_domain::settlement::CallReport;
use tollgate_domain::*;
use tollgate_store::jobs::{self, JobFilter, JobLook, NewJob, OpenJob};
use tollgate_store::merchants::NewMerchant;
use tollgate_store::provider_objects::{self, ObjectCaller};
use tollgate_store::{DatabaseUrl, Page, RecordArchive, SettleOutcome, Store, events, requests};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{START, a_call, amount, answered, priced};
use tollgate_testkit::{TestStore, each_store};

use crate::moving::each_pair;

const BOTH: [JobObserver; 2] = [JobObserver::Client, JobObserver::Poll];

fn new_job(call: &PendingRecord, object_id: &str) -> NewJob {
    let created_at = call.created_at;
    NewJob {
        job: Job {
            job_id: JobId::generate(created_at),
            request_id: call.request_id,
            merchant_id: call.merchant_id,
            kind: JobKind::Response,
            provider: call.forwarded.provider.clone(),
            provider_object_id: object_id.to_owned(),
            spend_key_id: call.spend_key_id,
            connection_id: call.connection_id,
            state: JobState::Running,
            hold: call.spend_hold,
            created_at,
            last_seen_at: Some(created_at),
            ended_at: None,
            expires_at: created_at.plus_millis(JOB_LIFE_MILLIS),
        },
        terms: JobTerms {
            url: "http://127.0.0.1/v1/responses/resp_1".to_owned(),
            video: None,
            at_most: priced(1_000_000, "2"),
            is_bounded: true,
            is_strict: true,
        },
        call: call.clone(),
        object: ProviderObject {
            object_id: object_id.to_owned(),
            kind: ObjectKind::Response,
            requests: None,
            result_of: None,
            tokens: None,
            expires_at: created_at.plus_millis(30 * JOB_LIFE_MILLIS),
        },
        provider_key: Some(b"sealed".to_vec()),
        look_at: created_at.plus_millis(2_000),
    }
}

async fn begin(node: &Store, new: &NewJob) -> bool {
    let new = new.clone();
    node.write_outside_calls(move |conn| jobs::begin(conn, &new)).await.unwrap()
}

async fn take_due(node: &Store, now: Timestamp) -> Vec<OpenJob> {
    let taken = move |conn: &mut _| jobs::take_due(conn, now, 100);
    node.write_outside_calls(taken).await.unwrap()
}

async fn find(node: &Store, merchant_id: MerchantId, job_id: JobId) -> Job {
    node.read(move |conn| jobs::find(conn, merchant_id, job_id)).await.unwrap().unwrap()
}

fn ended(job_id: JobId, state: JobState, observer: JobObserver, cost: &str) -> CallReport {
    CallReport { job: Some(JobEnd { job_id, state, observer }), ..answered(1_000, cost) }
}

async fn job_events(node: &Store, merchant_id: MerchantId) -> Vec<EventPayload> {
    let page = Page { after: None, limit: 1_000 };
    let all = node.read(move |conn| events::list(conn, merchant_id, &page)).await.unwrap();
    let all = all.into_iter().map(|event| event.payload);
    all.filter(|payload| payload.kind().as_str().starts_with("job.")).collect()
}

/// A running job of a merchant, whose call holds 2 USD.
async fn running(store: &TestStore, merchant: &NewMerchant, object_id: &str) -> NewJob {
    let key = store.secret_key_id(merchant).await;
    let call = a_call(merchant.merchant.merchant_id, CallKey::Secret(key), store.clock.now());
    let call = store.store.admit(Box::new(call)).await.unwrap().unwrap();
    let new = new_job(&call, object_id);
    assert!(begin(&store.store, &new).await);
    new
}

/// Another node of the same database, where it can have several.
fn other_node(store: &TestStore) -> Store {
    match store.url {
        DatabaseUrl::Postgres(_) => store.open_again(),
        _ => store.store.clone(),
    }
}

#[test]
fn a_job_outlives_its_node_and_is_settled_once_by_whoever_sees_its_end_first() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let new = running(store, &merchant, "resp_1").await;
        let job_id = new.job.job_id;
        let other = other_node(store);
        store.expire_other_leases(&other).await;
        assert_eq!(other.sweep().await.unwrap(), 0, "a job is not swept");
        store.assert_audited().await;
        let request_id = new.job.request_id;
        let pending = requests_find(&other, merchant_id, request_id).await;
        assert_eq!((pending.status, pending.job_id), (RequestStatus::Pending, Some(job_id)));

        let observations = (0..20).map(|index| {
            let node = if index % 2 == 0 { &store.store } else { &other };
            node.settle(request_id, ended(job_id, JobState::Succeeded, BOTH[index % 2], "0.5"))
        });
        let outcomes = join_all(observations).await;
        let settled = outcomes.iter().filter(|it| matches!(it, SettleOutcome::Settled(_)));
        assert_eq!(settled.count(), 1, "{outcomes:?}");
        let others = outcomes.iter().filter(|it| **it == SettleOutcome::AlreadySettled);
        assert_eq!(others.count(), 19, "{outcomes:?}");
        let job = find(&other, merchant_id, job_id).await;
        assert_eq!((job.state, job.ended_at), (JobState::Succeeded, Some(store.clock.now())));
        let record = requests_find(&other, merchant_id, request_id).await;
        assert_eq!((record.status, record.job_id), (RequestStatus::Completed, Some(job_id)));
        assert_eq!(
            job_events(&other, merchant_id).await,
            [EventPayload::JobSucceeded { job_id, request_id }]
        );
        let later = store.clock.now().plus_millis(600_000);
        assert!(take_due(&other, later).await.is_empty(), "an ended job is not looked at");
    });
}

/// A look may begin before the pause of a move and end after it.
#[test]
fn a_job_of_a_merchant_that_has_moved_is_settled_in_the_new_cell_alone() {
    each_pair(async |store, target| {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let new = running(store, &merchant, &merchant_id.to_string()).await;
        let due = store.clock.now().plus_millis(3_000);
        let looked_at = take_due(&store.store, due).await;
        assert_eq!(looked_at.len(), 1);
        store.store.move_merchant(target, merchant_id, Duration::from_secs(10)).await.unwrap();
        let end = || ended(new.job.job_id, JobState::Succeeded, JobObserver::Poll, "0.5");
        let here = store.store.settle_job(&looked_at[0].job, end()).await;
        assert_eq!(here, SettleOutcome::Moved);
        let there = target.settle_job(&looked_at[0].job, end()).await;
        assert!(matches!(there, SettleOutcome::Settled(_)), "{there:?}");
        for of in [&store.store, target] {
            assert_eq!(of.audit().await.unwrap().differences, []);
        }
        assert_eq!(job_events(&store.store, merchant_id).await, []);
    });
}

async fn requests_find(node: &Store, merchant_id: MerchantId, id: RequestId) -> RequestRecord {
    node.read(move |conn| requests::find(conn, &RecordArchive::default(), merchant_id, id))
        .await
        .unwrap()
        .unwrap()
}

#[test]
fn a_call_that_was_swept_before_its_job_was_written_is_corrected() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let key = store.secret_key_id(&merchant).await;
        let merchant_id = merchant.merchant.merchant_id;
        let call = a_call(merchant_id, CallKey::Secret(key), store.clock.now());
        let call = store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let other = other_node(store);
        store.expire_other_leases(&other).await;
        let is_swept = other.sweep().await.unwrap() == 1;
        assert_eq!(is_swept, matches!(store.url, DatabaseUrl::Postgres(_)));
        let new = new_job(&call, "resp_1");
        assert!(begin(&store.store, &new).await);
        store.assert_audited().await;
        let found = other.read(|conn| jobs::find_open(conn, "house", "resp_1")).await.unwrap();
        let found = found.unwrap();
        assert_eq!((found.job.job_id, found.call.request_id), (new.job.job_id, call.request_id));
        let report = ended(new.job.job_id, JobState::Succeeded, JobObserver::Poll, "0.5");
        other.settle(call.request_id, report).await;
        let record = requests_find(&other, merchant_id, call.request_id).await;
        assert_eq!(record.quote.total_request_cost, amount("0.5"));
        assert_eq!(find(&other, merchant_id, new.job.job_id).await.state, JobState::Succeeded);
    });
}

#[test]
fn an_object_has_one_job_and_its_event_may_come_first() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        let (node, now) = (&store.store, store.clock.now());
        let event = |object: &'static str| {
            let take = move |conn: &mut _| jobs::take_provider_event(conn, "house", object, now);
            node.write_outside_calls(take)
        };
        event("resp_1").await.unwrap();
        event("resp_1").await.unwrap();
        let first = running(store, &merchant, "resp_1").await;
        let due = take_due(node, now).await;
        assert_eq!(due.len(), 1, "it was announced");
        assert!(
            due[0].announced_by == Some(JobObserver::Webhook)
                && due[0].provider_key.as_deref() == Some(b"sealed")
        );
        assert!(take_due(node, now).await.is_empty(), "another node has taken it");

        let key = store.secret_key_id(&merchant).await;
        let call = a_call(merchant.merchant.merchant_id, CallKey::Secret(key), now);
        let call = node.admit(Box::new(call)).await.unwrap().unwrap();
        assert!(!begin(node, &new_job(&call, "resp_1")).await, "the object has a job");
        node.settle(call.request_id, answered(0, "0")).await;

        let second = running(store, &merchant, "resp_2").await;
        assert!(take_due(node, now).await.is_empty());
        event("resp_2").await.unwrap();
        let due = take_due(node, now).await;
        assert_eq!(due.len(), 1);
        assert_eq!(
            (due[0].job.job_id, due[0].announced_by),
            (second.job.job_id, Some(JobObserver::Webhook))
        );
        assert_eq!(due[0].terms, second.terms);

        let look = JobLook {
            seen_at: Some(now),
            known: Some(priced(10, "0.1")),
            missing_since: None,
            next_at: now.plus_millis(1_500),
        };
        let job_id = second.job.job_id;
        node.write_outside_calls(move |conn| jobs::looked(conn, job_id, &look)).await.unwrap();
        assert!(take_due(node, now.plus_millis(1_499)).await.is_empty());
        let due = take_due(node, now.plus_millis(1_500)).await;
        assert_eq!(due[0].known, Some(priced(10, "0.1")));

        let merchant_id = merchant.merchant.merchant_id;
        let page = Page { after: None, limit: 1 };
        let filter = JobFilter { state: Some(JobState::Running), ..JobFilter::default() };
        let listed = node.read(move |conn| jobs::list(conn, merchant_id, filter, &page));
        let ids: Vec<_> = listed.await.unwrap().into_iter().map(|job| job.job_id).collect();
        assert_eq!(ids, [second.job.job_id, first.job.job_id], "one more than the page");
    });
}

#[test]
fn an_object_belongs_to_the_wallet_that_paid_for_it_until_it_expires() {
    each_store(async |store| {
        let (acme, other) = (store.merchant().await, store.merchant().await);
        let merchant_id = acme.merchant.merchant_id;
        let customer = store.connection(merchant_id, "10").await;
        let (key, secret) =
            store.spend_key(merchant_id, Some(customer.wallet_id), SpendRules::default()).await;
        let (own_key, own_secret) = store.spend_key(merchant_id, None, SpendRules::default()).await;
        let object = ProviderObject {
            object_id: "resp_9".to_owned(),
            kind: ObjectKind::Response,
            requests: None,
            result_of: None,
            tokens: Some(77),
            expires_at: START.plus_millis(1_000),
        };
        let call = store.call_with(&key, &secret);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let report = CallReport { objects: vec![object], ..answered(1, "0.5") };
        store.store.settle(request_id, report).await;

        let owned = async |merchant: &NewMerchant, key, connection_id, at| {
            let merchant_id = merchant.merchant.merchant_id;
            let caller = ObjectCaller { merchant_id, key, connection_id };
            let found = move |conn: &mut _| provider_objects::owned(conn, &caller, "resp_9", at);
            let found = store.store.read(found).await.unwrap();
            assert!(found.iter().all(|one| (one.tokens, &*one.provider) == (Some(77), "house")));
            found.len()
        };
        let of_key = CallKey::Spend(key.spend_key_id, secret.hash());
        let of_own = CallKey::Spend(own_key.spend_key_id, own_secret.hash());
        let secret_key = CallKey::Secret(store.secret_key_id(&acme).await);
        let foreign = CallKey::Secret(store.secret_key_id(&other).await);
        let customer_id = Some(customer.connection_id);
        for (merchant, key, connection_id, expected) in [
            (&acme, of_key, None, 1),
            (&acme, secret_key, customer_id, 1),
            (&acme, secret_key, None, 0),
            (&acme, of_own, None, 0),
            (&other, foreign, None, 0),
            (&other, foreign, customer_id, 0),
            (&other, of_key, None, 0),
        ] {
            let found = owned(merchant, key, connection_id, START).await;
            assert_eq!(found, expected, "{key:?} {connection_id:?}");
        }
        assert_eq!(owned(&acme, of_key, None, START.plus_millis(1_000)).await, 0, "it expires");
        let forget = |conn: &mut _| provider_objects::forget(conn, "house", "resp_9");
        store.store.write_outside_calls(forget).await.unwrap();
        assert_eq!(owned(&acme, of_key, None, START).await, 0, "it was deleted");
    });
}

/// Jobs of two nodes, whose ends are observed by several, announced, looked at and swept, in any order.
#[test]
fn every_job_of_a_random_history_is_settled_once_and_leaves_no_hold() {
    for seed in 0..seeds(4) {
        each_store(async |store| {
            let mut dice = Random(seed);
            let merchant = store.merchant().await;
            let merchant_id = merchant.merchant.merchant_id;
            let other = other_node(store);
            other.renew_lease().await.unwrap();
            let mut open = Vec::new();
            for index in 0..30_u64 {
                let object = format!("resp_{index}");
                let cost = format!("0.{:03}", dice.below(999) + 1);
                open.push((running(store, &merchant, &object).await, cost));
                store.clock.advance_millis(i64::try_from(dice.below(4_000)).unwrap());
            }
            store.expire_other_leases(&other).await;
            let all: Vec<_> = open.iter().map(|(new, cost)| (new.clone(), cost.clone())).collect();
            let work = all.iter().map(async |(new, cost)| {
                let (job_id, request_id) = (new.job.job_id, new.job.request_id);
                let object = new.job.provider_object_id.clone();
                let now = store.clock.now();
                let announce =
                    move |conn: &mut _| jobs::take_provider_event(conn, "house", &object, now);
                other.write_outside_calls(announce).await.unwrap();
                for node in [&store.store, &other, &store.store] {
                    let report = ended(job_id, JobState::Succeeded, JobObserver::Client, cost);
                    node.settle(request_id, report).await;
                }
            });
            let sweeps = async {
                for _ in 0..10 {
                    other.sweep().await.unwrap();
                    take_due(&other, store.clock.now()).await;
                }
            };
            tokio::join!(join_all(work), sweeps);
            for (new, cost) in &all {
                let record = requests_find(&store.store, merchant_id, new.job.request_id).await;
                assert_eq!(record.quote.total_request_cost, amount(cost), "seed {seed}");
                assert!(!record.swept && record.job_id == Some(new.job.job_id));
            }
            assert_eq!(job_events(&store.store, merchant_id).await.len(), 30);
            let own = merchant.merchant.wallet_id;
            assert!(store.wallet(merchant_id, own).await.held.is_zero());
            assert_eq!(store.store.count_backlog().await.unwrap().holds, 0);
        });
    }
}
