//! Tests of spend keys under the ledger's locks, on both databases.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tollgate_domain::admission::{Call, CallKey, Refusal};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::{
    DatabaseUrl, SettleOutcome, Store, connections, events, meters, spend_keys, wallets,
};
use tollgate_testkit::random::{Random, seeds};
use tollgate_testkit::store::{amount, answered};
use tollgate_testkit::{TestStore, each_store};

/// The rules of a key with this limit. Calls hold and cost 2 USD.
fn limited_to(usd: &str, enforcement: Enforcement) -> SpendRules {
    let limit = SpendLimit { amount: amount(usd), cycle: Cycle::Daily };
    SpendRules { spend_limit: Some(limit), enforcement, ..SpendRules::default() }
}

async fn key(store: &TestStore, rules: SpendRules) -> (SpendKey, Key) {
    let merchant = store.merchant().await;
    store.spend_key(merchant.merchant.merchant_id, None, rules).await
}

async fn admit(store: &Store, call: Call) -> Result<RequestId, Refusal> {
    let request_id = call.request_id;
    store.admit(Box::new(call)).await.unwrap().map(|_| request_id)
}

#[test]
fn a_call_is_held_on_its_key_and_its_wallet_and_then_counted_and_paid() {
    each_store(async |store| {
        let merchant = store.merchant().await.merchant;
        let (made, key) = store
            .spend_key(merchant.merchant_id, None, limited_to("10", Enforcement::Strict))
            .await;
        let id = admit(&store.store, store.call_with(&made, &key)).await.unwrap();
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.held.day, counters.spent.day), (amount("2"), Amount::ZERO));
        assert_eq!((counters.requests.total, counters.last_used_at), (1, Some(store.clock.now())));
        let wallet = store.wallet(merchant.merchant_id, merchant.wallet_id).await;
        assert_eq!((wallet.balance, wallet.held), (Amount::ZERO, amount("2")));

        store.store.settle(id, answered(500_000, "1.5")).await;
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.held.day, counters.spent.total), (Amount::ZERO, amount("1.5")));
        let wallet = store.wallet(merchant.merchant_id, merchant.wallet_id).await;
        assert_eq!((wallet.balance, wallet.held), (amount("-1.5"), Amount::ZERO));
    });
}

#[test]
fn of_many_hashes_those_of_valid_keys_have_rules() {
    each_store(async |store| {
        let (paused, rules) = (SpendKeyStatus::Paused, SpendRules::default());
        let (_, one) = key(store, SpendRules { status: paused, ..rules.clone() }).await;
        let (gone, deleted) = key(store, rules.clone()).await;
        let (_, last) = key(store, rules).await;
        let (merchant_id, id, now) = (gone.merchant_id, gone.spend_key_id, store.clock.now());
        let delete = move |conn: &mut _| spend_keys::delete(conn, merchant_id, id, now);
        store.store.write(delete).await.unwrap();
        let (one, last) = (one.hash(), last.hash());
        let unknown = std::iter::repeat_with(|| {
            Key::generate(KeyKind::Spend, tollgate_domain::CellNumber::default()).hash()
        })
        .take(1_200);
        let mut hashes = vec![one, deleted.hash()];
        hashes.extend(unknown);
        hashes.push(last);
        let read = move |conn: &mut _| spend_keys::rules_by_hash(conn, &hashes);
        let found = store.store.read(read).await.unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[&one].status, paused);
        assert_eq!(found[&last].status, SpendKeyStatus::Active);
    });
}

#[test]
fn a_key_that_was_rotated_or_deleted_opens_nothing_any_more() {
    each_store(async |store| {
        let (made, old) = key(store, SpendRules::default()).await;
        let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
        let rotated = store.store.write(move |conn| spend_keys::rotate(conn, merchant_id, id));
        let (_, new) = rotated.await.unwrap().unwrap();
        let refused = admit(&store.store, store.call_with(&made, &old)).await.unwrap_err();
        assert_eq!(refused, Refusal::KeyInvalid);
        let admitted = admit(&store.store, store.call_with(&made, &new)).await.unwrap();
        store.store.settle(admitted, answered(1, "0")).await;

        let deleted =
            store.store.write(move |conn| spend_keys::delete(conn, merchant_id, id, now)).await;
        assert!(deleted.unwrap());
        let refused = admit(&store.store, store.call_with(&made, &new)).await.unwrap_err();
        assert_eq!(refused, Refusal::KeyInvalid);
        let forged = Call {
            merchant_id: store.merchant().await.merchant.merchant_id,
            ..store.call_with(&made, &new)
        };
        assert_eq!(admit(&store.store, forged).await.unwrap_err(), Refusal::KeyInvalid);
    });
}

#[test]
fn a_key_on_the_wallet_of_a_deleted_connection_spends_nothing_any_more() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let connection = store.connection(merchant_id, "10").await;
        let wallet_id = Some(connection.wallet_id);
        let (made, key) = store.spend_key(merchant_id, wallet_id, SpendRules::default()).await;
        store.forward(store.call_with(&made, &key), 1, "1").await.unwrap();
        let (id, now) = (connection.connection_id, store.clock.now());
        let deleted =
            store.store.write(move |conn| connections::delete(conn, merchant_id, id, now));
        assert!(deleted.await.unwrap());
        let refused = admit(&store.store, store.call_with(&made, &key)).await.unwrap_err();
        assert_eq!(refused, Refusal::ConnectionDisabled);
    });
}

#[test]
fn a_change_acts_on_the_very_next_admission() {
    each_store(async |store| {
        let (made, key) = key(store, SpendRules::default()).await;
        let change = async |changes: SpendKeyChanges| {
            let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
            let changed = store
                .store
                .write(move |conn| spend_keys::update(conn, merchant_id, id, changes, now));
            assert!(matches!(changed.await.unwrap(), spend_keys::SpendKeyUpdate::SpendKey(_)));
        };
        let next = async || match admit(&store.store, store.call_with(&made, &key)).await {
            Ok(id) => {
                store.store.settle(id, answered(1, "1")).await;
                None
            }
            Err(refusal) => Some(refusal),
        };
        assert_eq!(next().await, None);
        let status =
            |status| SpendKeyChanges { status: Some(status), ..SpendKeyChanges::default() };
        change(status(SpendKeyStatus::Paused)).await;
        assert_eq!(next().await, Some(Refusal::SpendKeyPaused));
        change(status(SpendKeyStatus::Active)).await;
        assert_eq!(next().await, None);
        let limit = |usd| SpendKeyChanges {
            spend_limit: Some(Some(SpendLimit { amount: amount(usd), cycle: Cycle::Monthly })),
            ..SpendKeyChanges::default()
        };
        change(limit("2")).await;
        assert!(matches!(next().await, Some(Refusal::SpendLimitReached { .. })));
        change(limit("2.1")).await;
        assert_eq!(next().await, None);
    });
}

#[test]
fn a_limit_starts_again_at_midnight_of_its_zone_and_the_audit_counts_alike() {
    const HOUR: i64 = 3_600_000;
    let zone = |name: &str| TimeZone::named(name).unwrap();
    each_store(async |store| {
        let rules = SpendRules {
            spend_calendar: CycleCalendar::of(zone("Asia/Tokyo")),
            ..limited_to("3", Enforcement::Bounded)
        };
        let (made, key) = key(store, rules).await;
        let spend = async || match admit(&store.store, store.call_with(&made, &key)).await {
            Ok(id) => {
                store.store.settle(id, answered(1, "2")).await;
                true
            }
            Err(_) => false,
        };
        let audit = async || store.store.audit().await.unwrap().differences;
        // It is 09:00 in Tokyo, then 23:00, then 00:00.
        assert_eq!([spend().await, spend().await, spend().await], [true, true, false]);
        store.clock.advance_millis(14 * HOUR);
        assert!(!spend().await);
        store.clock.advance_millis(HOUR);
        assert_eq!([spend().await, spend().await, spend().await], [true, true, false]);
        assert!(audit().await.is_empty());
        // The new zone is used when the day of the old one ends, 24 hours later.
        let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
        let changes = SpendKeyChanges {
            spend_zone: Some(zone("America/New_York")),
            request_zone: Some(zone("Europe/Berlin")),
            ..SpendKeyChanges::default()
        };
        let update = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, changes, now);
        store.store.write(update).await.unwrap();
        store.clock.advance_millis(23 * HOUR);
        assert!(!spend().await);
        store.clock.advance_millis(HOUR);
        assert_eq!([spend().await, spend().await, spend().await], [true, true, false]);
        assert!(audit().await.is_empty());
        // Midnight in New York is at 05:00 UTC, 14 hours later.
        store.clock.advance_millis(14 * HOUR - 1);
        assert!(!spend().await);
        store.clock.advance_millis(1);
        assert!(spend().await);
        assert!(audit().await.is_empty());
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.spent.day, counters.requests.day), (amount("2"), 1));
        assert_eq!(counters.spent.total, amount("14"));
    });
}

#[test]
fn a_meter_of_a_spend_key_charges_its_calls_and_cannot_be_deleted() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let meter = store.meter(merchant_id, &[(0, "10")]).await;
        let (made, key) = store.spend_key(merchant_id, None, SpendRules::default()).await;
        let (id, meter_id, now) = (made.spend_key_id, meter.meter_id, store.clock.now());
        let named =
            SpendKeyChanges { meter_id: Some(Some(meter_id)), ..SpendKeyChanges::default() };
        let change = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, named, now);
        store.store.write(change).await.unwrap();
        let record = store.forward(store.call_with(&made, &key), 100_000, "0.5").await.unwrap();
        assert_eq!(record.quote.total_wallet_cost, amount("1.5"));
        assert_eq!(record.spend_key_id, Some(id));

        let delete = move |conn: &mut _| meters::delete(conn, merchant_id, meter_id, now);
        assert_eq!(
            store.store.write(delete).await.unwrap(),
            meters::MeterDeletion::InUse(meters::MeterUse::BySpendKeys)
        );
        let unnamed = SpendKeyChanges { meter_id: Some(None), ..SpendKeyChanges::default() };
        let change = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, unnamed, now);
        store.store.write(change).await.unwrap();
        assert_eq!(store.store.write(delete).await.unwrap(), meters::MeterDeletion::Deleted);
    });
}

#[test]
fn a_refusal_writes_nothing_to_the_key() {
    each_store(async |store| {
        let (made, key) = key(store, limited_to("1", Enforcement::Strict)).await;
        assert!(admit(&store.store, store.call_with(&made, &key)).await.is_err());
        assert_eq!(store.reload_spend_key(&made).await.counters, SpendCounters::default());
    });
}

/// Another node locks the rows of the key and of its wallet. A refused call does not wait for them.
#[test]
fn a_refusal_waits_for_no_row_lock() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            // SQLite has no row locks; there is one writer.
            return;
        }
        let (made, key) = key(store, limited_to("1", Enforcement::Strict)).await;
        let wallet_id = made.wallet_id;
        let other = store.open_again();
        let (locked, is_locked) = tokio::sync::oneshot::channel();
        let (release, until) = std::sync::mpsc::channel::<()>();
        let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
        let holder = other.clone();
        let holding = tokio::spawn(async move {
            let paced = SpendKeyChanges {
                rate_limit: Some(Some(RateLimit { rpm: 1_000, burst: 1_000 })),
                ..SpendKeyChanges::default()
            };
            holder
                .write(move |conn| {
                    spend_keys::update(conn, merchant_id, id, paced, now)?;
                    let limit = WalletChanges::default();
                    wallets::update(conn, merchant_id, wallet_id, limit)?;
                    locked.send(()).unwrap();
                    until.recv().unwrap();
                    Ok::<_, tollgate_store::StoreError>(())
                })
                .await
        });
        is_locked.await.unwrap();
        let refused = admit(&store.store, store.call_with(&made, &key));
        let refused = tokio::time::timeout(Duration::from_secs(5), refused).await;
        assert!(matches!(refused, Ok(Err(Refusal::SpendLimitReached { .. }))), "{refused:?}");
        release.send(()).unwrap();
        holding.await.unwrap().unwrap();
        other.close().await.unwrap();
    });
}

#[test]
fn what_a_dead_process_left_is_no_longer_held_on_its_key() {
    each_store(async |store| {
        let (made, key) = key(store, limited_to("2", Enforcement::Strict)).await;
        let id = admit(&store.store, store.call_with(&made, &key)).await.unwrap();
        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.sweep().await.unwrap();
        assert_eq!(next.audit().await.unwrap().differences, []);
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.held.total, counters.spent.total), (Amount::ZERO, amount("0.25")));
        // The real usage arrives after the sweep.
        next.settle(id, answered(500_000, "1.5")).await;
        assert_eq!(next.audit().await.unwrap().differences, []);
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.held.total, counters.spent.total), (Amount::ZERO, amount("1.5")));
        next.close().await.unwrap();
    });
}

/// The settlement of a dropped task is booked, even without a runtime.
#[test]
fn a_settlement_that_nobody_waits_for_is_booked() {
    each_store(async |store| {
        let (made, key) = key(store, limited_to("2", Enforcement::Strict)).await;
        let id = admit(&store.store, store.call_with(&made, &key)).await.unwrap();
        let dropped = store.store.clone();
        std::thread::spawn(move || dropped.settle_in_background(id, answered(1, "1.5")))
            .join()
            .unwrap();
        while store.reload_spend_key(&made).await.counters.spent.total != amount("1.5") {
            tokio::task::yield_now().await;
        }
        let again = store.store.settle(id, answered(1, "1.5")).await;
        assert_eq!(again, SettleOutcome::AlreadySettled);
    });
}

/// Waits until nothing is pending.
async fn settled(store: &TestStore) {
    while store.store.audit().await.unwrap().pending > 0 {
        tokio::task::yield_now().await;
    }
}

/// The caller has given up before the answer, or with the answer in hand.
///
/// No caller settles the admitted call, and it must not hold money for as long as this process lives.
#[test]
fn an_admission_that_nobody_waits_for_is_ended() {
    each_store(async |store| {
        let (made, key) = key(store, limited_to("2", Enforcement::Strict)).await;
        // The row is locked for a while: by the one writer of SQLite, or by another node.
        let other = match store.url {
            DatabaseUrl::Postgres(_) => store.open_again(),
            _ => store.store.clone(),
        };
        let keep_row = |rpm| {
            let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
            let (holder, (began, has_begun)) = (other.clone(), tokio::sync::oneshot::channel());
            let busy = tokio::spawn(async move {
                let paced = SpendKeyChanges {
                    rate_limit: Some(Some(RateLimit { rpm, burst: 1_000 })),
                    ..SpendKeyChanges::default()
                };
                let slowly = move |conn: &mut _| {
                    spend_keys::update(conn, merchant_id, id, paced, now)?;
                    began.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(200));
                    Ok::<_, tollgate_store::StoreError>(())
                };
                holder.write(slowly).await
            });
            (busy, has_begun)
        };
        let (busy, has_begun) = keep_row(1_000);
        has_begun.await.unwrap();
        let waiting = store.store.admit(Box::new(store.call_with(&made, &key)));
        let gone = tokio::time::timeout(Duration::from_millis(10), waiting).await;
        assert!(gone.is_err(), "it was given up");
        busy.await.unwrap().unwrap();
        while store.store.audit().await.unwrap().requests < 1 {
            tokio::task::yield_now().await;
        }
        settled(store).await;
        assert_eq!(store.reload_spend_key(&made).await.counters.held.total, Amount::ZERO);

        let (busy, has_begun) = keep_row(2_000);
        has_begun.await.unwrap();
        let mut waiting = Box::pin(store.store.admit(Box::new(store.call_with(&made, &key))));
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut nobody).is_pending());
        busy.await.unwrap().unwrap();
        while store.store.audit().await.unwrap().requests < 2 {
            tokio::task::yield_now().await;
        }
        // The admission is committed, and answered now or soon; the caller is gone.
        drop(waiting);
        settled(store).await;
        assert_eq!(store.reload_spend_key(&made).await.counters.held.total, Amount::ZERO);
        let next = admit(&store.store, store.call_with(&made, &key)).await.unwrap();
        store.store.settle(next, answered(1, "1")).await;
        if matches!(store.url, DatabaseUrl::Postgres(_)) {
            other.close().await.unwrap();
        }
    });
}

/// A call waits for the row of its key while the key is paused. The pause comes first.
#[test]
fn a_call_that_waited_for_its_keys_row_obeys_what_was_changed_meanwhile() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            // SQLite has no row locks; there is one writer.
            return;
        }
        let (made, key) = key(store, SpendRules::default()).await;
        let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
        let other = store.open_again();
        let (locked, is_locked) = tokio::sync::oneshot::channel();
        let (release, until) = std::sync::mpsc::channel::<()>();
        let holder = other.clone();
        let holding = tokio::spawn(async move {
            let paused = SpendKeyChanges {
                status: Some(SpendKeyStatus::Paused),
                rate_limit: Some(Some(RateLimit { rpm: 1_000, burst: 1_000 })),
                ..SpendKeyChanges::default()
            };
            holder
                .write(move |conn| {
                    spend_keys::update(conn, merchant_id, id, paused, now)?;
                    locked.send(()).unwrap();
                    until.recv().unwrap();
                    Ok::<_, tollgate_store::StoreError>(())
                })
                .await
        });
        is_locked.await.unwrap();
        let (node, call) = (store.store.clone(), store.call_with(&made, &key));
        let mut waiting = tokio::spawn(async move { admit(&node, call).await });
        let soon = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
        assert!(soon.is_err(), "it waits for the row");
        release.send(()).unwrap();
        holding.await.unwrap().unwrap();
        assert_eq!(waiting.await.unwrap().unwrap_err(), Refusal::SpendKeyPaused);
        other.close().await.unwrap();
    });
}

#[test]
fn a_thousand_settlements_at_once_tell_of_each_threshold_once() {
    each_store(async |store| {
        let (made, key) = key(store, limited_to("10", Enforcement::Bounded)).await;
        let mut open = Vec::new();
        // All are admitted while the limit is far away, so that the end of each counts.
        for _ in 0..5 {
            open.push(admit(&store.store, store.call_with(&made, &key)).await.unwrap());
        }
        let raised = SpendKeyChanges {
            spend_limit: Some(Some(SpendLimit { amount: amount("5000"), cycle: Cycle::Daily })),
            ..SpendKeyChanges::default()
        };
        let (merchant_id, id, now) = (made.merchant_id, made.spend_key_id, store.clock.now());
        let change = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, raised, now);
        store.store.write(change).await.unwrap();
        let admissions = (0..995).map(|_| {
            let (store, call) = (store.store.clone(), store.call_with(&made, &key));
            tokio::spawn(async move { admit(&store, call).await.unwrap() })
        });
        for admission in admissions.collect::<Vec<_>>() {
            open.push(admission.await.unwrap());
        }
        let lowered = SpendKeyChanges {
            spend_limit: Some(Some(SpendLimit { amount: amount("1000"), cycle: Cycle::Daily })),
            ..SpendKeyChanges::default()
        };
        let change = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, lowered, now);
        store.store.write(change).await.unwrap();
        let settlers = open.into_iter().map(|id| {
            let store = store.store.clone();
            tokio::spawn(async move { store.settle(id, answered(1, "1.5")).await })
        });
        for settler in settlers.collect::<Vec<_>>() {
            assert!(matches!(settler.await.unwrap(), SettleOutcome::Settled(_)));
        }
        let page = tollgate_store::Page { after: None, limit: 100 };
        let told =
            store.store.read(move |conn| events::list(conn, merchant_id, &page)).await.unwrap();
        let mut told: Vec<_> = told
            .iter()
            .filter_map(|event| match &event.payload {
                EventPayload::SpendKeyThresholdReached { threshold, spend_key } => {
                    Some((*threshold, spend_key.counters.spent.day.to_string()))
                }
                EventPayload::SpendKeyLimitReached { spend_key } => {
                    Some((100, spend_key.counters.spent.day.to_string()))
                }
                _ => None,
            })
            .collect();
        told.sort();
        let expected = [(80, "801.0000000000"), (95, "951.0000000000"), (100, "1000.5000000000")];
        assert_eq!(told, expected.map(|(percent, spent)| (percent, spent.to_owned())));
    });
}

/// Lets 200 callers call these nodes at once. Returns the number of admissions.
///
/// Some calls end at once and cost the amount of their hold, so that no money becomes free.
async fn race(nodes: &[Store], store: &TestStore, made: &SpendKey, key: &Key, seed: u64) -> u64 {
    const CALLERS: u64 = 200;
    let mut random = Random(seed);
    let barrier = Arc::new(tokio::sync::Barrier::new(usize::try_from(CALLERS).unwrap()));
    let callers = (0..CALLERS).map(|_| {
        let node = usize::try_from(random.below(u64::try_from(nodes.len()).unwrap())).unwrap();
        let node = nodes.get(node).unwrap().clone();
        let (call, barrier) = (store.call_with(made, key), Arc::clone(&barrier));
        let (pause, ends) = (random.below(4), random.below(2) == 0);
        tokio::spawn(async move {
            barrier.wait().await;
            for _ in 0..pause {
                tokio::task::yield_now().await;
            }
            let Ok(id) = admit(&node, call).await else { return None };
            if ends {
                node.settle(id, answered(1_000_000, "2")).await;
                return Some(None);
            }
            Some(Some(id))
        })
    });
    let (mut admitted, mut open) = (0, Vec::new());
    for caller in callers.collect::<Vec<_>>() {
        if let Some(call) = caller.await.unwrap() {
            admitted += 1;
            open.extend(call);
        }
    }
    for id in open {
        nodes.first().unwrap().settle(id, answered(1_000_000, "2")).await;
    }
    admitted
}

async fn races(nodes: &[Store], store: &TestStore) {
    let merchant_id = store.merchant().await.merchant.merchant_id;
    for seed in 0..seeds(25) {
        let fits = seed % 7 + 1;
        let limit = format!("{}.9", fits * 2);
        let rules = limited_to(&limit, Enforcement::Strict);
        let (made, key) = store.spend_key(merchant_id, None, rules).await;
        let admitted = race(nodes, store, &made, &key, seed).await;
        assert_eq!(admitted, fits, "seed {seed}");
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!(counters.held.total, Amount::ZERO, "seed {seed}");
        assert_eq!(counters.spent.total, amount(&format!("{}", fits * 2)), "seed {seed}");
    }
}

#[test]
fn of_two_hundred_callers_on_a_strict_limit_exactly_those_that_fit_are_admitted() {
    each_store(async |store| races(std::slice::from_ref(&store.store), store).await);
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
        races(&[store.store.clone(), second.clone()], store).await;
        second.close().await.unwrap();
    });
}

#[test]
fn rates_and_counts_hold_on_four_nodes_as_on_one() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            return;
        }
        let others: Vec<_> = (0..3).map(|_| store.open_again()).collect();
        let nodes: Vec<_> = std::iter::once(store.store.clone()).chain(others.clone()).collect();
        let rate = SpendRules {
            rate_limit: Some(RateLimit { rpm: 60, burst: 5 }),
            ..SpendRules::default()
        };
        let count = SpendRules {
            request_limit: Some(RequestLimit { count: 7, cycle: Cycle::Total }),
            ..SpendRules::default()
        };
        for (rules, passing) in [(rate, 5), (count, 7)] {
            let (made, key) = key(store, rules).await;
            assert_eq!(race(&nodes, store, &made, &key, 1).await, passing);
        }
        for node in others {
            node.close().await.unwrap();
        }
    });
}

/// The bucket's limit for a minute holds on each node.
#[test]
fn in_a_minute_no_more_pass_than_the_rate_and_the_burst() {
    each_store(async |store| {
        let rules = SpendRules {
            rate_limit: Some(RateLimit { rpm: 60, burst: 3 }),
            ..SpendRules::default()
        };
        let (made, key) = key(store, rules).await;
        let mut passed = 0;
        for _ in 0..600 {
            if let Ok(id) = admit(&store.store, store.call_with(&made, &key)).await {
                store.store.settle(id, answered(1, "0")).await;
                passed += 1;
            }
            store.clock.advance_millis(100);
        }
        assert_eq!(passed, 62, "3 at once and one a second after the first");
    });
}

#[test]
fn a_call_of_a_spend_key_that_nobody_has_is_refused() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let nobody = SpendKeyId::generate(store.clock.now());
        let call = Call {
            key: CallKey::Spend(
                nobody,
                Key::generate(KeyKind::Spend, tollgate_domain::CellNumber::default()).hash(),
            ),
            ..store.call(merchant_id, SecretKeyId::generate(store.clock.now()))
        };
        assert_eq!(admit(&store.store, call).await.unwrap_err(), Refusal::KeyInvalid);
    });
}
