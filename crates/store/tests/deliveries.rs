//! Tests of deliveries: which event goes to which webhook, their order, and their claims by nodes.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use tollgate_domain::*;
use tollgate_store::deliveries::{
    self, AttemptCapacity, CapacityShare, ClaimedDelivery, DeliveryFilter, EndedAttempt,
};
use tollgate_store::wallets::{MovementOutcome, WalletMovement};
use tollgate_store::{
    DatabaseUrl, Options, Page, Store, StoreError, connections, merchants, wallets, webhooks,
};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::amount;
use tollgate_testkit::{TestStore, each_store};

const ROOM: usize = 8;

fn room() -> AttemptCapacity {
    AttemptCapacity { free: 1_000, webhooks: share(ROOM, []), merchants: share(1_000, []) }
}

fn share<Id: Ord, const N: usize>(each: usize, less: [(Id, usize); N]) -> CapacityShare<Id> {
    CapacityShare { each, reduced: BTreeMap::from(less) }
}

async fn webhook_of(
    store: &TestStore,
    merchant_id: MerchantId,
    events: Option<Vec<EventKind>>,
) -> WebhookId {
    let now = store.clock.now();
    let url = "https://example.com".to_owned();
    let new = NewWebhook { name: "n".to_owned(), url, events };
    let made = store.store.write(move |conn| webhooks::create(conn, merchant_id, new, now)).await;
    made.unwrap().unwrap().0.webhook_id
}

/// A customer whose balance falls below its threshold when a test needs an event.
struct LowBalanceCustomer {
    merchant_id: MerchantId,
    wallet_id: WalletId,
}

impl LowBalanceCustomer {
    async fn of(store: &TestStore, merchant_id: MerchantId) -> Self {
        let wallet_id = store.connection(merchant_id, "0").await.wallet_id;
        let changes =
            WalletChanges { low_balance_threshold: Some(Some(amount("1"))), ..Default::default() };
        let changed =
            store.store.write(move |conn| wallets::update(conn, merchant_id, wallet_id, changes));
        changed.await.unwrap().unwrap();
        Self { merchant_id, wallet_id }
    }

    /// Raises the wallet's balance and lowers it again: one event.
    async fn run_low(&self, node: &Store, now: Timestamp) {
        let (merchant_id, wallet_id) = (self.merchant_id, self.wallet_id);
        let done = node.write(move |conn| {
            for (kind, sum) in [(TransactionKind::Credit, "5"), (TransactionKind::Debit, "5")] {
                let movement = WalletMovement { kind, amount: amount(sum), description: None };
                let moved = wallets::book(conn, merchant_id, wallet_id, &movement, now)?;
                assert!(matches!(moved, MovementOutcome::Booked(_)), "{moved:?}");
            }
            Ok::<_, StoreError>(())
        });
        done.await.unwrap();
    }
}

async fn turn(store: &TestStore, ended: Vec<EndedAttempt>) -> Vec<ClaimedDelivery> {
    store.store.run_delivery_turn(ended, room()).await.unwrap()
}

fn ended(claimed: &ClaimedDelivery, status: u16) -> EndedAttempt {
    EndedAttempt {
        delivery_id: claimed.delivery_id,
        webhook_id: claimed.webhook_id,
        attempt: claimed.attempt,
        outcome: Attempt {
            response_status: Some(status),
            response_body: Some("said".to_owned()),
            fault: None,
            duration_ms: 1,
        },
    }
}

fn all_ended(claimed: &[ClaimedDelivery], status: u16) -> Vec<EndedAttempt> {
    claimed.iter().map(|claimed| ended(claimed, status)).collect()
}

async fn deliveries_of(
    store: &TestStore,
    merchant_id: MerchantId,
    webhook_id: WebhookId,
) -> Vec<Delivery> {
    let page = Page { after: None, limit: 1_000 };
    let filter = DeliveryFilter::default();
    let list = move |conn: &mut _| deliveries::list(conn, merchant_id, webhook_id, filter, &page);
    let mut found = store.store.read(list).await.unwrap().unwrap();
    found.sort_by_key(|delivery| delivery.sequence);
    found
}

fn sequences(claimed: &[ClaimedDelivery]) -> Vec<u64> {
    claimed.iter().map(|claimed| claimed.sequence).collect()
}

#[test]
fn an_event_goes_to_each_webhook_of_its_merchant_that_wants_it_once() {
    each_store(async |store| {
        let [ours, theirs] =
            [store.merchant().await, store.merchant().await].map(|made| made.merchant.merchant_id);
        let all = webhook_of(store, ours, None).await;
        let created = webhook_of(store, ours, Some(vec![EventKind::ConnectionCreated])).await;
        let deleted = webhook_of(store, ours, Some(vec![EventKind::ConnectionDeleted])).await;
        let other = webhook_of(store, theirs, None).await;
        for _ in 0..3 {
            store.connection(ours, "0").await;
        }
        let claimed = turn(store, Vec::new()).await;
        let count =
            |webhook_id| claimed.iter().filter(|claimed| claimed.webhook_id == webhook_id).count();
        assert_eq!([all, created, deleted, other].map(count), [3, 3, 0, 0]);
        for claimed in &claimed {
            assert_eq!(claimed.event.merchant_id, ours);
            assert_eq!(claimed.event.payload.kind(), EventKind::ConnectionCreated);
            assert_eq!(claimed.attempt, 1);
        }
        assert!(turn(store, all_ended(&claimed, 200)).await.is_empty());
        for delivery in deliveries_of(store, ours, all).await {
            assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Delivered, 1));
            assert_eq!(delivery.last.unwrap().response_body.as_deref(), Some("said"));
            assert_eq!(delivery.next_attempt_at, None);
        }
        let numbers: Vec<_> =
            deliveries_of(store, ours, all).await.iter().map(|one| one.sequence).collect();
        assert_eq!(numbers, [1, 2, 3]);
    });
}

#[test]
fn nothing_is_told_of_what_was_taken_back() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        webhook_of(store, merchant_id, None).await;
        let now = store.clock.now();
        let taken_back: Result<(), StoreError> = store
            .store
            .write(move |conn| {
                connections::create(conn, merchant_id, &NewConnection::default(), now)?.unwrap();
                Err(StoreError::Interrupted)
            })
            .await;
        taken_back.unwrap_err();
        assert!(!store.store.has_deliveries_due(room()).await.unwrap());
        assert!(turn(store, Vec::new()).await.is_empty());
    });
}

#[test]
fn events_of_one_resource_go_one_after_the_other_and_others_do_not_wait() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id =
            webhook_of(store, merchant_id, Some(vec![EventKind::WalletBalanceLow])).await;
        let [one, two] = [
            LowBalanceCustomer::of(store, merchant_id).await,
            LowBalanceCustomer::of(store, merchant_id).await,
        ];
        let now = store.clock.now();
        for customer in [&one, &one, &two, &one] {
            customer.run_low(&store.store, now).await;
        }
        let first = turn(store, Vec::new()).await;
        assert_eq!(sequences(&first), [1, 3], "the second and fourth wait for the first");
        assert!(turn(store, Vec::new()).await.is_empty());

        // The first fails, and the deliveries behind it wait with it.
        let failed = ended(&first[0], 500);
        assert!(turn(store, vec![failed, ended(&first[1], 204)]).await.is_empty());
        store.clock.advance_millis(5_600);
        let again = turn(store, Vec::new()).await;
        assert_eq!(sequences(&again), [1]);
        assert_eq!(again[0].attempt, 2);
        assert_eq!(again[0].event.event_id, first[0].event.event_id);
        let next = turn(store, all_ended(&again, 200)).await;
        assert_eq!(sequences(&next), [2]);
        let next = turn(store, all_ended(&next, 200)).await;
        assert_eq!(sequences(&next), [4]);
        assert!(turn(store, all_ended(&next, 200)).await.is_empty());
        let all = deliveries_of(store, merchant_id, webhook_id).await;
        assert!(all.iter().all(|one| one.status == DeliveryStatus::Delivered));
    });
}

#[test]
fn an_event_that_has_failed_four_times_holds_nobody_up_any_more() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        webhook_of(store, merchant_id, Some(vec![EventKind::WalletBalanceLow])).await;
        let customer = LowBalanceCustomer::of(store, merchant_id).await;
        for _ in 0..3 {
            customer.run_low(&store.store, store.clock.now()).await;
        }
        for attempt in 1..=4 {
            let claimed = turn(store, Vec::new()).await;
            assert_eq!((sequences(&claimed), claimed[0].attempt), (vec![1], attempt));
            if attempt == 4 {
                customer.run_low(&store.store, store.clock.now()).await;
                assert!(turn(store, Vec::new()).await.is_empty(), "it is not lost yet");
            }
            let overtaking = turn(store, all_ended(&claimed, 500)).await;
            let expected: &[u64] = if attempt < 4 { &[] } else { &[2] };
            assert_eq!(sequences(&overtaking), expected);
            if attempt == 4 {
                let next = turn(store, all_ended(&overtaking, 200)).await;
                assert_eq!(sequences(&next), [3]);
                // A new event does not wait for the first either, but for the events between.
                customer.run_low(&store.store, store.clock.now()).await;
                assert!(turn(store, Vec::new()).await.is_empty());
                let next = turn(store, all_ended(&next, 200)).await;
                assert_eq!(sequences(&next), [4]);
                assert_eq!(sequences(&turn(store, all_ended(&next, 200)).await), [5]);
            }
            store.clock.advance_millis(6 * 60 * 1_000);
        }
    });
}

#[test]
fn it_is_tried_eight_times_and_then_given_up_until_somebody_sends_it_again() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        store.connection(merchant_id, "0").await;
        let mut pauses = Vec::new();
        let mut claimed = turn(store, Vec::new()).await;
        loop {
            assert_eq!(claimed.len(), 1);
            assert!(turn(store, all_ended(&claimed, 503)).await.is_empty());
            let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
            let Some(next) = delivery.next_attempt_at else {
                assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Failed, 8));
                break;
            };
            assert_eq!(delivery.status, DeliveryStatus::Pending);
            let pause = (next.unix_micros() - store.clock.now().unix_micros()) / 1_000;
            pauses.push(pause / 1_000);
            store.clock.advance_millis(pause - 1);
            assert!(turn(store, Vec::new()).await.is_empty(), "not before its time");
            store.clock.advance_millis(2);
            claimed = turn(store, Vec::new()).await;
        }
        let least = [5, 60, 300, 1_800, 7_200, 28_800, 86_400];
        assert_eq!(pauses.len(), least.len());
        for (pause, least) in pauses.into_iter().zip(least) {
            assert!((least..=least + least / 10).contains(&pause), "{pause} s of {least}");
        }

        let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
        let (delivery_id, now) = (delivery.delivery_id, store.clock.now());
        let send_again = move |conn: &mut _| {
            deliveries::redeliver(conn, merchant_id, webhook_id, delivery_id, now)
        };
        let sent = store.store.write(send_again).await.unwrap().unwrap();
        assert_eq!((sent.status, sent.attempts), (DeliveryStatus::Pending, 8));
        let claimed = turn(store, Vec::new()).await;
        assert_eq!((claimed.len(), claimed[0].attempt), (1, 9));
        assert!(turn(store, all_ended(&claimed, 500)).await.is_empty());
        let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
        assert_eq!(delivery.status, DeliveryStatus::Pending, "it is tried eight times more");
    });
}

#[test]
fn all_that_were_given_up_are_sent_again_at_once() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        let begun = store.clock.now();
        for _ in 0..2 {
            store.connection(merchant_id, "0").await;
        }
        let failing_since = async || {
            let read = move |conn: &mut _| deliveries::failing_since(conn, webhook_id);
            store.store.read(read).await.unwrap()
        };
        let statuses = async || {
            let all = deliveries_of(store, merchant_id, webhook_id).await;
            all.iter().map(|one| one.status).collect::<Vec<_>>()
        };
        assert_eq!(failing_since().await, None);
        let mut claimed = turn(store, Vec::new()).await;
        while statuses().await.contains(&DeliveryStatus::Pending) {
            let more = turn(store, all_ended(&claimed, 500)).await;
            assert_eq!(failing_since().await, Some(begun));
            store.clock.advance_millis(13 * 3_600_000);
            claimed = more.into_iter().chain(turn(store, Vec::new()).await).collect();
        }
        assert_eq!(statuses().await, [DeliveryStatus::Failed; 2]);
        let now = store.clock.now();
        let again =
            move |conn: &mut _| deliveries::redeliver_failed(conn, merchant_id, webhook_id, now);
        assert_eq!(store.store.write(again).await.unwrap(), Some(2));
        assert_eq!(store.store.write(again).await.unwrap(), Some(0));
        let stranger = store.merchant().await.merchant.merchant_id;
        let of_another =
            move |conn: &mut _| deliveries::redeliver_failed(conn, stranger, webhook_id, now);
        assert_eq!(store.store.write(of_another).await.unwrap(), None);
        let claimed = turn(store, Vec::new()).await;
        assert_eq!(claimed.len(), 2);
        turn(store, all_ended(&claimed, 200)).await;
        assert_eq!(statuses().await, [DeliveryStatus::Delivered; 2]);
        assert_eq!(failing_since().await, None);
    });
}

#[test]
fn what_a_dead_node_had_claimed_is_claimed_again_and_its_late_answer_is_nobodys() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        store.connection(merchant_id, "0").await;
        let lost = turn(store, Vec::new()).await;
        store.clock.advance_millis(29_999);
        assert!(turn(store, Vec::new()).await.is_empty());
        store.clock.advance_millis(1);
        let again = turn(store, Vec::new()).await;
        assert_eq!((again.len(), again[0].attempt), (1, 2));
        assert_eq!(again[0].event, lost[0].event);
        // The first node was only slow.
        assert!(turn(store, all_ended(&lost, 500)).await.is_empty());
        let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
        assert_eq!((delivery.status, delivery.last), (DeliveryStatus::Pending, None));
        assert!(turn(store, all_ended(&again, 200)).await.is_empty());
        assert!(turn(store, all_ended(&again, 500)).await.is_empty(), "it is booked once");
        let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
        assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Delivered, 2));
    });
}

#[test]
fn an_attempt_that_was_cut_off_is_no_failure_of_the_receiver() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        store.connection(merchant_id, "0").await;
        let mut claimed = turn(store, Vec::new()).await;
        for attempt in 2..=12 {
            store.clock.advance_millis(30_000);
            store.store.renew_lease().await.unwrap();
            claimed = turn(store, Vec::new()).await;
            assert_eq!(claimed[0].attempt, attempt);
        }
        turn(store, all_ended(&claimed, 500)).await;
        let delivery = deliveries_of(store, merchant_id, webhook_id).await.remove(0);
        assert_eq!((delivery.status, delivery.attempts), (DeliveryStatus::Pending, 12));
        store.clock.advance_millis(5_600);
        assert_eq!(turn(store, Vec::new()).await.len(), 1, "it has failed once");
    });
}

#[test]
fn a_node_that_stops_within_a_transaction_is_not_waited_for_for_long() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            return;
        }
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        let now = store.clock.now();
        let change = move |conn: &mut _| {
            let changes = WebhookChanges::default();
            webhooks::update(conn, merchant_id, webhook_id, changes, now)
        };
        let (locked, when_locked) = tokio::sync::oneshot::channel();
        let stopped = store.open_again();
        let held = tokio::spawn(async move {
            let done = stopped.read(move |conn| {
                conn.write(|conn| {
                    let changed = change(conn)?;
                    locked.send(()).unwrap();
                    std::thread::sleep(Duration::from_secs(15));
                    Ok::<_, StoreError>(changed)
                })
            });
            (done.await, stopped)
        });
        when_locked.await.unwrap();
        let begun = Instant::now();
        store.connection(merchant_id, "0").await;
        let waits = store.store.run_delivery_turn(Vec::new(), room()).await;
        assert!(matches!(waits, Err(StoreError::Unavailable(_))), "{waits:?}");
        let waits = store.store.write_outside_calls(change).await;
        assert!(matches!(waits, Err(StoreError::Unavailable(_))), "{waits:?}");
        assert!(begun.elapsed() < Duration::from_secs(8));
        let claimed = loop {
            match store.store.run_delivery_turn(Vec::new(), room()).await {
                Ok(claimed) => break claimed,
                Err(_) => assert!(begun.elapsed() < Duration::from_secs(14)),
            }
        };
        assert_eq!(claimed.len(), 1);
        let (done, stopped) = held.await.unwrap();
        done.unwrap_err();
        stopped.close().await.unwrap();
    });
}

#[test]
fn who_has_the_store_to_himself_waits_for_no_lease() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        webhook_of(store, merchant_id, None).await;
        for _ in 0..3 {
            store.connection(merchant_id, "0").await;
        }
        let claimed = turn(store, Vec::new()).await;
        turn(store, vec![ended(&claimed[0], 200), ended(&claimed[1], 500)]).await;
        store.store.close().await.unwrap();
        let again = store.open_again();
        let first = again.run_delivery_turn(Vec::new(), room()).await.unwrap();
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            assert_eq!(sequences(&first), [3], "what was under way; what has failed waits");
            assert_eq!(first[0].attempt, 2);
        } else {
            assert!(first.is_empty(), "another node may be at it");
        }
        again.close().await.unwrap();
    });
}

#[test]
fn a_webhook_without_room_takes_no_turn_from_others() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let [dead, alive] = [
            webhook_of(store, merchant_id, None).await,
            webhook_of(store, merchant_id, None).await,
        ];
        for _ in 0..40 {
            store.connection(merchant_id, "0").await;
        }
        let claimed = turn(store, Vec::new()).await;
        assert_eq!(claimed.len(), 2 * ROOM);
        let webhooks = share(ROOM, [(dead, 0), (alive, 1)]);
        let narrow = AttemptCapacity { free: 5, webhooks, ..room() };
        assert!(store.store.has_deliveries_due(narrow.clone()).await.unwrap());
        let claimed = store.store.run_delivery_turn(Vec::new(), narrow).await.unwrap();
        assert_eq!(claimed.len(), 1);
        assert_eq!(claimed[0].webhook_id, alive);
        for full in [
            AttemptCapacity { webhooks: share(ROOM, [(dead, 0), (alive, 0)]), ..room() },
            AttemptCapacity { merchants: share(9, [(merchant_id, 0)]), ..room() },
        ] {
            assert!(!store.store.has_deliveries_due(full.clone()).await.unwrap());
            assert!(store.store.run_delivery_turn(Vec::new(), full).await.unwrap().is_empty());
        }
        let of_merchant = AttemptCapacity { merchants: share(3, []), ..room() };
        let claimed = store.store.run_delivery_turn(Vec::new(), of_merchant).await.unwrap();
        assert_eq!(claimed.len(), 3, "of both webhooks together");
        let none = AttemptCapacity { free: 0, ..room() };
        assert!(!store.store.has_deliveries_due(none).await.unwrap());
    });
}

#[test]
fn a_backlog_however_old_keeps_nobody_elses_event_waiting_for_long() {
    each_store(async |store| {
        let [busy, quiet] =
            [store.merchant().await, store.merchant().await].map(|made| made.merchant.merchant_id);
        for _ in 0..70 {
            webhook_of(store, busy, None).await;
        }
        for _ in 0..20 {
            store.connection(busy, "0").await;
        }
        let narrow =
            || AttemptCapacity { free: 8, webhooks: share(1, []), merchants: share(1_000, []) };
        let step = async |ended: Vec<EndedAttempt>| {
            store.clock.advance_millis(20);
            store.store.run_delivery_turn(ended, narrow()).await.unwrap()
        };
        let mut claimed = Vec::new();
        for _ in 0..20 {
            claimed = step(all_ended(&claimed, 200)).await;
        }
        assert_eq!(claimed.len(), 8, "there is a backlog");
        let webhook_id = webhook_of(store, quiet, None).await;
        store.connection(quiet, "0").await;
        let mut turns = 0;
        while !claimed.iter().any(|claimed| claimed.webhook_id == webhook_id) {
            claimed = step(all_ended(&claimed, 200)).await;
            turns += 1;
            assert!(turns <= 10, "it waits for its turn, and not for the backlog");
        }
    });
}

#[test]
fn a_flood_of_one_merchants_events_keeps_nobody_elses_event_waiting() {
    each_store(async |store| {
        let [busy, quiet] =
            [store.merchant().await, store.merchant().await].map(|made| made.merchant.merchant_id);
        for _ in 0..webhooks::MOST_WEBHOOKS {
            webhook_of(store, busy, None).await;
        }
        let webhook_id = webhook_of(store, quiet, None).await;
        for _ in 0..100 {
            store.connection(busy, "0").await;
        }
        store.connection(quiet, "0").await;
        let mut turns = 0;
        while deliveries_of(store, quiet, webhook_id).await.is_empty() {
            let none = AttemptCapacity { free: 0, ..room() };
            store.clock.advance_millis(20);
            store.store.run_delivery_turn(Vec::new(), none).await.unwrap();
            turns += 1;
            assert!(turns <= 30, "its turn comes by lot, and not behind the flood");
        }
    });
}

#[test]
fn what_waits_for_two_days_is_given_up_and_nothing_waits_for_it() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id =
            webhook_of(store, merchant_id, Some(vec![EventKind::WalletBalanceLow])).await;
        let customer = LowBalanceCustomer::of(store, merchant_id).await;
        for _ in 0..2 {
            customer.run_low(&store.store, store.clock.now()).await;
        }
        let claimed = turn(store, Vec::new()).await;
        assert_eq!(sequences(&claimed), [1]);
        turn(store, all_ended(&claimed, 500)).await;
        store.clock.advance_millis(48 * 60 * 60 * 1_000);
        store.store.renew_lease().await.unwrap();
        customer.run_low(&store.store, store.clock.now()).await;
        let none = AttemptCapacity { free: 0, ..room() };
        store.store.run_delivery_turn(Vec::new(), none).await.unwrap();
        store.clock.advance_millis(1);
        store.store.forget_deliveries().await.unwrap();
        let stand: Vec<_> = deliveries_of(store, merchant_id, webhook_id)
            .await
            .iter()
            .map(|one| (one.status, one.attempts))
            .collect();
        let failed = DeliveryStatus::Failed;
        assert_eq!(stand, [(failed, 1), (failed, 0), (DeliveryStatus::Pending, 0)]);
        assert_eq!(sequences(&turn(store, Vec::new()).await), [3]);
    });
}

#[test]
fn a_webhook_is_not_told_of_what_happened_before_it_was_made() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        store.connection(merchant_id, "0").await;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        let after = store.connection(merchant_id, "0").await.connection_id;
        let claimed = turn(store, Vec::new()).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!((claimed[0].webhook_id, claimed[0].sequence), (webhook_id, 1));
        assert_eq!(claimed[0].event.payload.resource(), after.to_string());
    });
}

#[test]
fn nothing_more_goes_to_a_webhook_that_was_deleted() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        store.connection(merchant_id, "0").await;
        let claimed = turn(store, Vec::new()).await;
        store.connection(merchant_id, "0").await;
        let now = store.clock.now();
        let delete = move |conn: &mut _| webhooks::delete(conn, merchant_id, webhook_id, now);
        assert!(store.store.write(delete).await.unwrap());
        assert!(!store.store.write(delete).await.unwrap(), "once");
        assert!(turn(store, all_ended(&claimed, 500)).await.is_empty());
        store.clock.advance_millis(100_000);
        assert!(!store.store.has_deliveries_due(room()).await.unwrap());
        assert!(turn(store, Vec::new()).await.is_empty());
        let test = move |conn: &mut _| deliveries::send_test(conn, merchant_id, webhook_id, now);
        assert!(store.store.write(test).await.unwrap().is_none());
    });
}

#[test]
fn a_merchant_has_a_hundred_webhooks_at_most_and_nobody_elses() {
    each_store(async |store| {
        let [ours, theirs] =
            [store.merchant().await, store.merchant().await].map(|made| made.merchant.merchant_id);
        let first = webhook_of(store, ours, None).await;
        for _ in 1..webhooks::MOST_WEBHOOKS {
            webhook_of(store, ours, None).await;
        }
        let now = store.clock.now();
        let new =
            || NewWebhook { name: "n".into(), url: "https://example.com".into(), events: None };
        let too_many =
            store.store.write(move |conn| webhooks::create(conn, ours, new(), now)).await.unwrap();
        assert!(too_many.is_none());
        let delete = |who| move |conn: &mut _| webhooks::delete(conn, who, first, now);
        assert!(!store.store.write(delete(theirs)).await.unwrap());
        let found = store.store.read(move |conn| webhooks::find(conn, theirs, first)).await;
        assert_eq!(found.unwrap(), None);
        assert!(store.store.write(delete(ours)).await.unwrap());
        webhook_of(store, ours, None).await;
    });
}

#[test]
fn what_is_older_than_thirty_days_is_forgotten_unless_it_is_on_its_way() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let webhook_id = webhook_of(store, merchant_id, None).await;
        let kept = async || -> Vec<u64> {
            store.store.forget_deliveries().await.unwrap();
            let kept = deliveries_of(store, merchant_id, webhook_id).await;
            kept.iter().map(|one| one.sequence).collect()
        };
        for status in [200, 500] {
            store.connection(merchant_id, "0").await;
            let claimed = turn(store, Vec::new()).await;
            turn(store, all_ended(&claimed, status)).await;
        }
        store.clock.advance_millis(30 * 24 * 60 * 60 * 1_000);
        store.store.renew_lease().await.unwrap();
        store.connection(merchant_id, "0").await;
        let second = deliveries_of(store, merchant_id, webhook_id).await.remove(1).delivery_id;
        let now = store.clock.now();
        let send_again =
            move |conn: &mut _| deliveries::redeliver(conn, merchant_id, webhook_id, second, now);
        store.store.write(send_again).await.unwrap().unwrap();
        let claimed = turn(store, Vec::new()).await;
        assert_eq!(sequences(&claimed), [2, 3]);
        assert_eq!(kept().await, [1, 2, 3]);
        store.clock.advance_millis(1);
        assert_eq!(kept().await, [2, 3], "the second is on its way");
        turn(store, all_ended(&claimed, 200)).await;
        assert_eq!(kept().await, [3]);
    });
}

/// The attempts of a delivery for which nodes have raced.
#[derive(Default)]
struct AttemptLog {
    attempts: BTreeSet<u32>,
    first_claims: u32,
}

#[test]
fn nodes_that_race_make_each_attempt_once_in_order_and_lose_nothing() {
    each_store(async |store| {
        for seed in 0..seeds(6) {
            race(store, seed).await;
        }
    });
}

/// Runs two nodes while events happen, receivers fail, and a webhook is deleted.
async fn race(store: &TestStore, seed: u64) {
    const CUSTOMERS: usize = 6;
    const EVENTS: usize = 10;
    let nodes = match &store.url {
        DatabaseUrl::Postgres(_) => {
            let options = Options { serve: true, clock: store.clock.clone(), ..Options::default() };
            vec![
                Store::open(&store.url, &options).unwrap(),
                Store::open(&store.url, &options).unwrap(),
            ]
        }
        _ => vec![store.store.clone(), store.store.clone()],
    };
    let now = store.clock.now();
    let made = store.store.write(move |conn| merchants::create(conn, "Racer", now)).await.unwrap();
    let merchant_id = made.merchant.merchant_id;
    let low = || Some(vec![EventKind::WalletBalanceLow]);
    let stays =
        [webhook_of(store, merchant_id, low()).await, webhook_of(store, merchant_id, low()).await];
    let goes = webhook_of(store, merchant_id, low()).await;
    let mut happening = Vec::new();
    for number in 0..CUSTOMERS {
        let customer = LowBalanceCustomer::of(store, merchant_id).await;
        let node = nodes[number % nodes.len()].clone();
        let mut random = Random(seed * 100 + u64::try_from(number).unwrap());
        happening.push(tokio::spawn(async move {
            for _ in 0..EVENTS {
                customer.run_low(&node, now).await;
                for _ in 0..random.below(3) {
                    tokio::task::yield_now().await;
                }
            }
        }));
    }
    let senders: Vec<_> = nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            let (node, clock) = (node.clone(), store.clock.clone());
            let mut random = Random(seed * 1_000 + u64::try_from(number).unwrap());
            tokio::spawn(async move {
                let (mut log, mut results, mut idle) = (Vec::new(), Vec::new(), 0);
                while idle < 200 {
                    let claimed = node.run_delivery_turn(results, room()).await.unwrap();
                    idle = if claimed.is_empty() { idle + 1 } else { 0 };
                    results = Vec::new();
                    for claimed in &claimed {
                        if claimed.attempt > 1 || !random.one_in(7) {
                            let status = if random.one_in(4) { 500 } else { 200 };
                            results.push(ended(claimed, status));
                        }
                    }
                    // A delivery whose answer this node does not book is claimed again later.
                    log.extend(claimed);
                    if random.one_in(3) {
                        clock.advance_millis(i64::try_from(random.below(8_000)).unwrap());
                    }
                    tokio::task::yield_now().await;
                }
                log
            })
        })
        .collect();
    let delete = move |conn: &mut _| webhooks::delete(conn, merchant_id, goes, now);
    assert!(nodes[0].write(delete).await.unwrap());
    for one in happening {
        one.await.unwrap();
    }
    let mut seen: HashMap<DeliveryId, AttemptLog> = HashMap::new();
    let mut of_wallets: BTreeMap<(WebhookId, String), BTreeMap<u64, EventId>> = BTreeMap::new();
    for sender in senders {
        for claimed in sender.await.unwrap() {
            let resource = (claimed.webhook_id, claimed.event.payload.resource());
            let events = of_wallets.entry(resource).or_default();
            events.insert(claimed.sequence, claimed.event.event_id);
            let seen = seen.entry(claimed.delivery_id).or_default();
            assert!(seen.attempts.insert(claimed.attempt), "an attempt is made once, seed {seed}");
            seen.first_claims += u32::from(claimed.attempt == 1);
        }
    }
    // The ids of one process grow, and these are made under the lock of their wallet.
    let in_order = |events: &BTreeMap<u64, EventId>| events.values().is_sorted();
    assert!(of_wallets.values().all(in_order), "those of a wallet in their order, seed {seed}");
    // Deliveries with an unknown outcome arrive in the end.
    for _ in 0..60 {
        store.clock.advance_millis(20 * 60 * 1_000);
        let claimed = turn(store, Vec::new()).await;
        turn(store, all_ended(&claimed, 200)).await;
    }
    for webhook_id in stays {
        let all = deliveries_of(store, merchant_id, webhook_id).await;
        let numbers: Vec<_> = all.iter().map(|one| one.sequence).collect();
        let expected: Vec<_> = (1..=u64::try_from(CUSTOMERS * EVENTS).unwrap()).collect();
        assert_eq!(numbers, expected, "every event, each once, seed {seed}");
        assert!(all.iter().all(|one| one.status == DeliveryStatus::Delivered), "seed {seed}");
    }
    assert!(seen.values().all(|seen| seen.first_claims == 1), "seed {seed}");
    if matches!(store.url, DatabaseUrl::Postgres(_)) {
        for node in nodes {
            node.close().await.unwrap();
        }
    }
}
