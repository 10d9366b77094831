//! Tests of the ledger on both databases: nothing is charged twice, lost, or overrun.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use diesel::connection::SimpleConnection;
use tollgate_domain::Payer;
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::settlement::CallReport;
use tollgate_domain::*;
use tollgate_pricing::{Amount, Tier, UnitPrices, Usage};
use tollgate_store::wallets::{MovementOutcome, WalletMovement};
use tollgate_store::{
    Conn, DatabaseUrl, Page, RecordArchive, SettleOutcome, StoreError, connections, merchants,
    meters, requests, wallets,
};
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

/// A merchant with a connection and a meter of 10 USD per million tokens.
struct MeteredShop {
    merchant: Merchant,
    secret_key_id: SecretKeyId,
    connection: Connection,
    meter: MerchantMeter,
}

async fn shop(store: &TestStore, balance: &str) -> MeteredShop {
    let new = store.merchant().await;
    let merchant_id = new.merchant.merchant_id;
    MeteredShop {
        secret_key_id: store.secret_key_id(&new).await,
        connection: store.connection(merchant_id, balance).await,
        meter: store.meter(merchant_id, &[(0, "10")]).await,
        merchant: new.merchant,
    }
}

impl MeteredShop {
    fn call(&self, store: &TestStore) -> Call {
        Call {
            connection_id: Some(self.connection.connection_id),
            meter_slug: Some(self.meter.slug.clone()),
            ..store.call(self.merchant.merchant_id, self.secret_key_id)
        }
    }

    async fn wallet(&self, store: &TestStore) -> Wallet {
        store.wallet(self.merchant.merchant_id, self.connection.wallet_id).await
    }

    async fn own_wallet(&self, store: &TestStore) -> Wallet {
        store.wallet(self.merchant.merchant_id, self.merchant.wallet_id).await
    }
}

#[test]
fn a_call_holds_its_bound_and_then_pays_what_it_used() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;

        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let wallet = shop.wallet(store).await;
        assert_eq!((wallet.balance, wallet.held), (amount("20"), amount("12")));
        let merchant_id = shop.merchant.merchant_id;
        let pending = store
            .store
            .read(move |conn| {
                requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
            })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(pending.status, RequestStatus::Pending);

        store.store.settle(request_id, answered(100_000, "0.5")).await;
        let wallet = shop.wallet(store).await;
        assert_eq!((wallet.balance, wallet.held), (amount("18.5"), Amount::ZERO));
        let done = store
            .store
            .read(move |conn| {
                requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
            })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(done.status, RequestStatus::Completed);
        assert_eq!(done.model.as_deref(), Some("m-2026"));
        assert_eq!(done.quote.total_wallet_cost, amount("1.5"));
        assert_eq!(done.priced.usage, Usage::tokens(100_000, 0));
    });
}

#[test]
fn a_settlement_delivered_three_times_is_booked_once() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();

        let report = answered(100_000, "0.5");
        let at_once = tokio::join!(
            store.store.settle(request_id, report.clone()),
            store.store.settle(request_id, report.clone()),
        );
        let again = store.store.settle(request_id, report).await;

        assert!([at_once.0, at_once.1].iter().any(|one| matches!(one, SettleOutcome::Settled(_))));
        assert_eq!(again, SettleOutcome::AlreadySettled);
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));
    });
}

#[test]
fn an_unknown_call_cannot_be_settled() {
    each_store(async |store| {
        let nobody = RequestId::generate(store.clock.now());
        // Also in one group: a call that may still be admitted must not be reported as settled.
        let calls = (0..8).map(|_| store.store.settle(nobody, answered(1, "1")));
        let outcomes = futures_util::future::join_all(calls).await;
        assert!(outcomes.iter().all(|one| *one == SettleOutcome::NotFound), "{outcomes:?}");
    });
}

#[test]
fn a_refusal_writes_nothing() {
    each_store(async |store| {
        let shop = shop(store, "0").await;
        let call = shop.call(store);
        let refusal = store.store.admit(Box::new(call)).await.unwrap().unwrap_err();
        assert!(matches!(refusal, Refusal::WalletInsufficient { .. }));
        assert_eq!(store.store.audit().await.unwrap().requests, 0);
    });
}

#[test]
fn keys_connections_and_meters_of_others_are_not_found_and_deleted_ones_refused() {
    each_store(async |store| {
        let (mine, others) = (shop(store, "1").await, shop(store, "1").await);
        let refused =
            async |call: Call| store.store.admit(Box::new(call)).await.unwrap().unwrap_err();

        let foreign =
            Call { connection_id: Some(others.connection.connection_id), ..mine.call(store) };
        assert_eq!(refused(foreign).await, Refusal::ConnectionNotFound);
        let foreign = Call { meter_slug: Some(others.meter.slug.clone()), ..mine.call(store) };
        assert_eq!(refused(foreign).await, Refusal::MeterNotFound);
        let forged = Call { merchant_id: others.merchant.merchant_id, ..mine.call(store) };
        assert_eq!(refused(forged).await, Refusal::KeyInvalid);

        let (merchant_id, connection_id) =
            (mine.merchant.merchant_id, mine.connection.connection_id);
        let now = store.clock.now();
        store
            .store
            .write(move |conn| connections::delete(conn, merchant_id, connection_id, now))
            .await
            .unwrap();
        assert_eq!(refused(mine.call(store)).await, Refusal::ConnectionDisabled);

        let key_id = mine.secret_key_id;
        store
            .store
            .write(move |conn| {
                merchants::create_secret_key(conn, merchant_id, "second", now)?;
                merchants::delete_secret_key(conn, merchant_id, key_id, now)
            })
            .await
            .unwrap();
        assert_eq!(refused(mine.call(store)).await, Refusal::KeyInvalid);
    });
}

/// A node caches what calls name. A change by another node still binds its next call.
#[test]
fn what_one_node_changes_binds_the_next_call_on_another() {
    each_store(async |store| {
        if matches!(store.url, DatabaseUrl::Sqlite(_)) {
            // Only one process serves from a file.
            return;
        }
        let shop = shop(store, "1000").await;
        let (merchant_id, now) = (shop.merchant.merchant_id, store.clock.now());
        let other = store.open_again();
        // After these calls both writers of the node very likely have everything in their cache.
        let calls = (0..16).map(|_| other.admit(Box::new(shop.call(store))));
        for admitted in futures_util::future::join_all(calls).await {
            let id = admitted.unwrap().unwrap().request_id;
            other.settle(id, answered(1, "1")).await;
        }
        let next = async || {
            let decided = other.admit(Box::new(shop.call(store))).await.unwrap();
            if let Ok(pending) = &decided {
                other.settle(pending.request_id, answered(1_000_000, "1")).await;
            }
            decided.map(|pending| pending.meter.unwrap().version)
        };
        assert_eq!(next().await, Ok(1));

        let (meter_id, tiers) =
            (shop.meter.meter_id, vec![Tier { start: 0, rate: "20".parse().unwrap() }]);
        let changes = MeterChanges {
            tiers: Some(tiers),
            base_cost_payer: Some(Payer::Merchant),
            ..MeterChanges::default()
        };
        let changed = store
            .store
            .write(move |conn| meters::update(conn, merchant_id, meter_id, &changes, now));
        assert!(matches!(changed.await.unwrap(), meters::MeterUpdate::Meter(_)));
        for _ in 0..4 {
            assert_eq!(next().await, Ok(2));
        }

        let own = shop.merchant.wallet_id;
        let limit = |usd: Option<&str>| WalletChanges {
            overdraft_limit: Some(usd.map(amount)),
            ..WalletChanges::default()
        };
        let none_left = limit(Some("0"));
        let limited =
            store.store.write(move |conn| wallets::update(conn, merchant_id, own, none_left)).await;
        assert!(limited.unwrap().is_some());
        for _ in 0..4 {
            assert!(matches!(next().await, Err(Refusal::WalletInsufficient { .. })));
        }
        let unlimited = limit(None);
        let freed =
            store.store.write(move |conn| wallets::update(conn, merchant_id, own, unlimited)).await;
        assert!(freed.unwrap().is_some());
        for _ in 0..4 {
            assert_eq!(next().await, Ok(2));
        }

        let connection_id = shop.connection.connection_id;
        let deleted = store
            .store
            .write(move |conn| connections::delete(conn, merchant_id, connection_id, now));
        assert!(deleted.await.unwrap());
        for _ in 0..4 {
            assert_eq!(next().await, Err(Refusal::ConnectionDisabled));
        }
        store.assert_audited().await;
        other.close().await.unwrap();
    });
}

/// 200 calls at once on a balance that covers some of them.
///
/// Admissions, records and charges agree, and the overshoot is less than the cost of one call.
#[test]
fn two_hundred_callers_on_one_wallet_leave_no_hold_and_no_gap() {
    each_store(async |store| {
        let shop = Arc::new(shop(store, "60").await);
        let callers = (0..200).map(|_| {
            let (store, call) = (store.store.clone(), shop.call(store));
            tokio::spawn(async move {
                let request_id = call.request_id;
                if store.admit(Box::new(call)).await.unwrap().is_err() {
                    return 0;
                }
                // 12 USD: the amount of its hold.
                store.settle(request_id, answered(1_000_000, "2")).await;
                1
            })
        });
        let mut admitted = 0;
        for caller in callers.collect::<Vec<_>>() {
            admitted += caller.await.unwrap();
        }

        let audit = store.store.audit().await.unwrap();
        let wallet = shop.wallet(store).await;
        assert_eq!((audit.requests, audit.pending), (admitted, 0));
        assert_eq!(wallet.held, Amount::ZERO);
        assert_eq!(admitted, 5, "60 USD pay five calls of 12");
        assert_eq!(wallet.balance, Amount::ZERO);
    });
}

/// Eight settlers on two wallets. No number is given twice, and none is left out.
#[test]
fn the_records_of_a_wallet_are_numbered_without_gaps() {
    each_store(async |store| {
        let shop = Arc::new(shop(store, "1000").await);
        let settlers: Vec<_> = (0..8)
            .map(|_| {
                let calls: Vec<_> = (0..20)
                    .map(|n| match n % 4 {
                        // The merchant pays for this call.
                        0 => store.call(shop.merchant.merchant_id, shop.secret_key_id),
                        _ => shop.call(store),
                    })
                    .collect();
                let store = store.store.clone();
                tokio::spawn(async move {
                    let mut numbers = Vec::new();
                    for call in calls {
                        let (request_id, own) = (call.request_id, call.connection_id.is_none());
                        let call = store.admit(Box::new(call)).await.unwrap().unwrap();
                        assert_eq!(call.request_id, request_id);
                        let report = match numbers.len() % 3 {
                            0 => CallReport::not_sent(call.created_at),
                            _ => answered(10, "0"),
                        };
                        match store.settle(request_id, report).await {
                            SettleOutcome::Settled(settled) => numbers.push((own, settled.record)),
                            other => panic!("{other:?}"),
                        }
                    }
                    numbers
                })
            })
            .collect();
        let mut numbers = [Vec::new(), Vec::new()];
        for settler in settlers {
            for (own, record) in settler.await.unwrap() {
                numbers[usize::from(own)].push(record.sequence.unwrap());
                let merchant_id = shop.merchant.merchant_id;
                let id = record.request_id;
                let kept = store
                    .store
                    .read(move |conn| {
                        requests::find(conn, &RecordArchive::default(), merchant_id, id)
                    })
                    .await;
                assert_eq!(kept.unwrap().unwrap().sequence, record.sequence);
            }
        }
        for (numbers, count) in numbers.iter_mut().zip([120, 40]) {
            numbers.sort_unstable();
            assert_eq!(*numbers, (1..=count).collect::<Vec<_>>());
        }
    });
}

#[test]
fn an_audit_names_the_record_that_a_wallet_has_lost() {
    each_store(async |store| {
        let shop = shop(store, "100").await;
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(store.forward(shop.call(store), 10, "0.5").await.unwrap().request_id);
        }
        let change = async |sql: &'static str| {
            let changed = store.store.write(move |conn| match conn {
                Conn::Sqlite(conn) => conn.batch_execute(sql).map_err(StoreError::from),
                Conn::Postgres(conn) => conn.batch_execute(sql).map_err(StoreError::from),
            });
            changed.await.unwrap();
        };
        change("UPDATE requests SET sequence = 12 WHERE sequence = 2").await;
        let audit = store.store.audit().await.unwrap();
        let names: Vec<_> = audit.differences.iter().map(|one| one.what.as_str()).collect();
        let wallet_id = shop.connection.wallet_id;
        let expected = [
            format!("number of {} on its wallet", ids[1]),
            format!("record 2 of wallet {wallet_id}"),
        ];
        assert_eq!(names, expected);
        change("UPDATE requests SET sequence = 2 WHERE sequence = 12").await;
    });
}

/// Eight settlers on one counter. Each unit is charged once, in its tier.
#[test]
fn a_tier_counter_charges_each_unit_exactly_once_under_eight_settlers() {
    each_store(async |store| {
        let new = store.merchant().await;
        let merchant_id = new.merchant.merchant_id;
        let key = store.secret_key_id(&new).await;
        let connection = store.connection(merchant_id, "10000").await;
        let meter = store.meter(merchant_id, &[(0, "5"), (1_000, "3"), (10_000, "1")]).await;
        let settlers = (0..8).map(|_| {
            let calls: Vec<_> = (0..25)
                .map(|_| Call {
                    connection_id: Some(connection.connection_id),
                    meter_slug: Some(meter.slug.clone()),
                    ..store.call(merchant_id, key)
                })
                .collect();
            let store = store.store.clone();
            tokio::spawn(async move {
                let mut fees = Vec::new();
                for call in calls {
                    let request_id = call.request_id;
                    store.admit(Box::new(call)).await.unwrap().unwrap();
                    match store.settle(request_id, answered(100, "0")).await {
                        SettleOutcome::Settled(settled) => {
                            fees.push(settled.record.quote.total_wallet_cost)
                        }
                        other => unreachable!("{other:?}"),
                    }
                }
                fees.iter().sum::<Result<Amount, _>>().unwrap()
            })
        });
        let mut fees = Vec::new();
        for settler in settlers.collect::<Vec<_>>() {
            fees.push(settler.await.unwrap());
        }
        // 20,000 tokens: 1,000 at 5, 9,000 at 3, 10,000 at 1 USD per million.
        assert_eq!(fees.iter().sum::<Result<Amount, _>>().unwrap(), amount("0.042"));
    });
}

/// Its balance does not reach the end of the range of an amount.
#[test]
fn a_wallet_without_a_limit_is_guarded_once_it_is_far_below_zero() {
    each_store(async |store| {
        let shop = shop(store, "0").await;
        let call = || store.call(shop.merchant.merchant_id, shop.secret_key_id);
        for _ in 0..2 {
            store.forward(call(), 1, "300000000").await.unwrap();
        }
        let admitted = store.store.admit(Box::new(call())).await.unwrap().unwrap();
        assert_eq!(admitted.merchant_hold, amount("2"), "there must be room for what it can cost");
        store.store.settle(admitted.request_id, answered(1, "1")).await;
    });
}

/// A counter has room for 9 × 10¹⁸ units. Units beyond that are charged and not counted.
#[test]
fn a_full_tier_counter_stays_full_and_its_calls_are_settled() {
    const MOST: u64 = 6_000_000_000_000_000_000;
    each_store(async |store| {
        let mut shop = shop(store, "20").await;
        shop.meter = store.meter(shop.merchant.merchant_id, &[(0, "0")]).await;
        for _ in 0..3 {
            let record = store.forward(shop.call(store), MOST, "1").await.unwrap();
            assert_eq!(record.quote.total_wallet_cost, amount("1"));
        }
        let wallet = shop.wallet(store).await;
        assert_eq!((wallet.balance, wallet.held), (amount("17"), Amount::ZERO));
    });
}

#[test]
fn a_group_of_the_queue_that_cannot_be_read_keeps_no_other_waiting() {
    each_store(async |store| {
        let rows = vec!["('nothing', 0)"; 100].join(", ");
        let insert = format!("INSERT INTO rollup_queue (calls, created_at) VALUES {rows}");
        let run = |sql: String| {
            let write =
                move |conn: &mut Conn| -> Result<(), StoreError> { Ok(conn.batch_execute(&sql)?) };
            store.store.write(write)
        };
        run(insert).await.unwrap();
        let shop = shop(store, "20").await;
        store.forward(shop.call(store), 100, "1").await.unwrap();
        assert_eq!(store.store.fold().await.unwrap(), 1);
        assert_eq!(store.store.fold().await.unwrap(), 0);
        run("DELETE FROM rollup_queue WHERE calls = 'nothing'".to_owned()).await.unwrap();
    });
}

#[test]
fn a_call_keeps_the_meter_version_it_was_admitted_with() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();

        let (merchant_id, meter_id, now) =
            (shop.merchant.merchant_id, shop.meter.meter_id, store.clock.now());
        let changes =
            MeterChanges { base_cost_payer: Some(Payer::Merchant), ..MeterChanges::default() };
        store
            .store
            .write(move |conn| meters::update(conn, merchant_id, meter_id, &changes, now))
            .await
            .unwrap();
        store.store.settle(request_id, answered(100_000, "0.5")).await;
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));

        store.forward(shop.call(store), 100_000, "0.5").await.unwrap();
        assert_eq!(shop.wallet(store).await.balance, amount("17.5"));
        assert_eq!(shop.own_wallet(store).await.balance, amount("-0.5"));
    });
}

#[test]
fn what_a_dead_process_left_is_swept_to_the_merchant_and_corrected_by_who_knows_better() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();

        store.clock.advance_millis(60_000);
        assert_eq!(
            store.store.sweep().await.unwrap(),
            0,
            "who asks is alive, whatever its lease says"
        );
        store.store.close().await.unwrap();
        let next = store.open_again();
        if matches!(store.url, tollgate_store::DatabaseUrl::Postgres(_)) {
            assert_eq!(next.sweep().await.unwrap(), 0, "others may have been unable to renew");
            store.clock.advance_millis(60_000);
            assert_eq!(next.sweep().await.unwrap(), 0, "it stood still itself");
            store.expire_other_leases(&next).await;
        }
        assert_eq!(next.sweep().await.unwrap(), 1);
        let merchant_id = shop.merchant.merchant_id;
        let swept = store
            .store
            .read(move |conn| {
                requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
            })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (swept.status, swept.priced.usage_source),
            (RequestStatus::Error, UsageSource::Estimated)
        );
        assert_eq!(shop.wallet(store).await.held, Amount::ZERO);
        assert_eq!(shop.own_wallet(store).await.balance, amount("-0.25"));
        store.assert_audited().await;

        next.settle(request_id, answered(100_000, "0.5")).await;
        assert_eq!(next.audit().await.unwrap().differences, []);
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));
        assert_eq!(shop.own_wallet(store).await.balance, Amount::ZERO);
        let again = next.settle(request_id, answered(100_000, "0.5")).await;
        assert_eq!(again, SettleOutcome::AlreadySettled);
        next.close().await.unwrap();
    });
}

/// Both may be in one group, as after a connection that was silent.
#[test]
fn a_call_that_is_swept_and_reported_at_once_releases_its_hold_once() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.admit(Box::new(shop.call(store))).await.unwrap().unwrap();
        let held = shop.wallet(store).await.held;
        // A new connection for reading would wait for the writers.
        next.read(Conn::ping).await.unwrap();
        // The writers are busy until both settlements wait.
        let busy = || {
            next.write(|_| {
                std::thread::sleep(Duration::from_millis(700));
                Ok::<_, StoreError>(())
            })
        };
        let after = async |millis| tokio::time::sleep(Duration::from_millis(millis)).await;
        let (one, other, swept, settled) = tokio::join!(
            busy(),
            busy(),
            async {
                after(100).await;
                next.sweep().await
            },
            async {
                after(300).await;
                next.settle(request_id, answered(100_000, "0.5")).await
            }
        );
        one.and(other).unwrap();
        assert_eq!(swept.unwrap(), 1);
        assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
        let left = shop.wallet(store).await.held;
        assert!(left.is_positive() && left < held, "{left} of {held}");
        assert_eq!(next.audit().await.unwrap().differences, []);
        next.close().await.unwrap();
    });
}

/// The node that admitted it, whose clock or connection was stopped, has it as pending.
#[test]
fn a_call_that_another_node_has_swept_is_settled_at_the_first_attempt() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let other = store.open_again();
        store.expire_other_leases(&other).await;
        assert_eq!(other.sweep().await.unwrap(), 1);
        assert_eq!(shop.own_wallet(store).await.balance, amount("-0.25"));
        let outcome = store.store.settle(request_id, answered(100_000, "0.5")).await;
        assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));
        assert_eq!(shop.own_wallet(store).await.balance, Amount::ZERO);
        other.close().await.unwrap();
    });
}

#[test]
fn a_merchants_account_with_a_limit_is_held_and_refused_like_any_wallet() {
    each_store(async |store| {
        let shop = shop(store, "0").await;
        let (merchant_id, wallet_id) = (shop.merchant.merchant_id, shop.merchant.wallet_id);
        let changes =
            WalletChanges { overdraft_limit: Some(Some(amount("3"))), ..WalletChanges::default() };
        store
            .store
            .write(move |conn| wallets::update(conn, merchant_id, wallet_id, changes))
            .await
            .unwrap();
        let call = || Box::new(store.call(merchant_id, shop.secret_key_id));

        let (first, second) = (call(), call());
        let ids = [first.request_id, second.request_id];
        store.store.admit(first).await.unwrap().unwrap();
        store.store.admit(second).await.unwrap().unwrap();
        assert_eq!(shop.own_wallet(store).await.held, amount("4"));
        assert!(matches!(
            store.store.admit(call()).await.unwrap(),
            Err(Refusal::WalletInsufficient { .. })
        ));
        for id in ids {
            store.store.settle(id, answered(10, "0.5")).await;
        }
        let own = shop.own_wallet(store).await;
        assert_eq!((own.balance, own.held), (amount("-1"), Amount::ZERO));
    });
}

#[test]
fn a_poisoned_call_fails_alone() {
    each_store(async |store| {
        let shop = shop(store, "100").await;
        let merchant_id = shop.merchant.merchant_id;
        let spoilt = store.connection(merchant_id, "100").await.connection_id;
        let spoil = "UPDATE connections SET metadata = 'no JSON' WHERE connection_id = \
                     (SELECT connection_id FROM connections ORDER BY connection_id DESC LIMIT 1)";
        let spoil = move |conn: &mut Conn| match conn {
            Conn::Sqlite(conn) => conn.batch_execute(spoil).map_err(StoreError::from),
            Conn::Postgres(conn) => conn.batch_execute(spoil).map_err(StoreError::from),
        };
        store.store.write(spoil).await.unwrap();
        // A row that cannot be read. Other calls of its group must not be affected.
        let calls: Vec<_> = (0..6)
            .map(|n| match n {
                3 => Call { connection_id: Some(spoilt), ..shop.call(store) },
                _ => shop.call(store),
            })
            .collect();
        let ids: Vec<_> = calls.iter().map(|call| call.request_id).collect();
        let waiting: Vec<_> = calls
            .into_iter()
            .map(|call| {
                let store = store.store.clone();
                tokio::spawn(async move { store.admit(Box::new(call)).await.is_ok() })
            })
            .collect();
        let mut admitted = Vec::new();
        for one in waiting {
            admitted.push(one.await.unwrap());
        }
        assert_eq!(admitted, [true, true, true, false, true, true]);
        for id in ids {
            store.store.settle(id, answered(1, "0")).await;
        }
    });
}

#[test]
fn a_settlement_that_postgres_cannot_take_waits_in_the_journal_and_is_booked_later() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let shop = shop(store, "20").await;
        let call = shop.call(store);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        store.store.close().await.unwrap();
        let outcome = store.store.settle(request_id, answered(100_000, "0.5")).await;
        assert_eq!(outcome, SettleOutcome::Journaled);
        assert_eq!(
            shop.wallet(store).await.held,
            amount("12"),
            "nothing is lost, nothing is booked"
        );

        // The next process of the service. Its sweeper may come before the journal.
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.sweep().await.unwrap();
        assert_eq!(shop.own_wallet(store).await.balance, amount("-0.25"));
        assert_eq!(next.replay_journal().await.unwrap(), 1);
        assert_eq!(next.replay_journal().await.unwrap(), 0);
        assert_eq!(next.audit().await.unwrap().differences, []);
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));
        assert_eq!(shop.own_wallet(store).await.balance, Amount::ZERO);
        next.close().await.unwrap();
    });
}

#[test]
fn the_folder_of_the_journal_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    each_store(async |store| {
        if store.database.is_some() {
            let mode = fs::metadata(store.journal()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
    });
}

/// Other files in the folder do not keep settlements from being booked.
///
/// A missing folder is made.
#[test]
fn an_odd_or_missing_journal_folder_keeps_no_settlement_waiting() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let journal = store.journal();
        let shop = shop(store, "20").await;
        let [one, other] = [(); 2].map(|()| shop.call(store));
        let ids = [one.request_id, other.request_id];
        store.store.admit(Box::new(one)).await.unwrap().unwrap();
        store.store.close().await.unwrap();
        // Another program has removed the folder.
        fs::remove_dir_all(&journal).unwrap();
        let outcome = store.store.settle(ids[0], answered(100_000, "0.5")).await;
        assert_eq!(outcome, SettleOutcome::Journaled);

        fs::create_dir(journal.join("a-folder.json")).unwrap();
        for (name, text) in [
            ("0-no-json.json", "{"),
            ("1-no-settlement.json", "{}"),
            ("2-half.unfinished", "{"),
            ("notes.txt", "Whoever reads this"),
        ] {
            fs::write(journal.join(name), text).unwrap();
        }
        let next = store.open_again();
        next.renew_lease().await.unwrap();
        assert_eq!(next.replay_journal().await.unwrap(), 1);
        assert_eq!(next.audit().await.unwrap().differences, []);
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));
        let mut left: Vec<_> = fs::read_dir(&journal)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        // A file that may be a settlement is kept under another name, for inspection.
        assert_eq!(
            left,
            [
                "0-no-json.unreadable",
                "1-no-settlement.unreadable",
                "2-half.unfinished",
                "a-folder.json",
                "notes.txt"
            ]
        );
        next.admit(Box::new(other)).await.unwrap().unwrap();
        next.settle(ids[1], answered(100_000, "0.5")).await;
        assert_eq!(next.audit().await.unwrap().differences, []);
        assert_eq!(shop.wallet(store).await.balance, amount("17"));
        next.close().await.unwrap();
    });
}

#[test]
fn two_processes_on_one_sqlite_file_are_one_too_many() {
    each_store(async |store| {
        if matches!(store.url, tollgate_store::DatabaseUrl::Postgres(_)) {
            let second = store.open_again();
            return second.close().await.unwrap();
        }
        let second = tollgate_store::Store::open(
            &store.url,
            &tollgate_store::Options { serve: true, ..tollgate_store::Options::default() },
        );
        assert!(matches!(second, Err(tollgate_store::OpenError::InUse)));
    });
}

#[test]
fn what_a_balance_has_no_room_for_is_refused_before_and_kept_in_the_record_after() {
    each_store(async |store| {
        let poor = store.merchant().await;
        let (merchant_id, wallet_id) = (poor.merchant.merchant_id, poor.merchant.wallet_id);
        let now = store.clock.now();
        let debit = |usd: &str| {
            let movement = WalletMovement {
                kind: TransactionKind::Debit,
                amount: usd.parse().unwrap(),
                description: None,
            };
            store
                .store
                .write(move |conn| wallets::book(conn, merchant_id, wallet_id, &movement, now))
        };
        assert!(matches!(debit("400000000").await.unwrap(), MovementOutcome::Booked(_)));
        assert_eq!(debit("0.0000000001").await.unwrap(), MovementOutcome::OutOfRange);

        // Calls may take the balance to the end of the range of an amount.
        let key = store.secret_key_id(&poor).await;
        let holding = |usd: &str| {
            let mut call = store.call(merchant_id, key);
            let request = Some(usd.parse().unwrap());
            call.bound.prices = Some(UnitPrices { request, ..UnitPrices::default() });
            call
        };
        let mut open = Vec::new();
        for _ in 0..2 {
            let call = holding("1");
            open.push(call.request_id);
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
        }
        let outcome = store.store.settle(open[0], answered(1_000_000, "522337000")).await;
        assert!(matches!(outcome, SettleOutcome::Settled(_)), "{outcome:?}");
        // 203.68 USD are left. The other call holds one of them.
        let refused = store.store.admit(Box::new(holding("203"))).await.unwrap().unwrap_err();
        assert!(matches!(refused, Refusal::WalletInsufficient { .. }), "{refused:?}");
        let admitted = holding("202");
        open.push(admitted.request_id);
        store.store.admit(Box::new(admitted)).await.unwrap().unwrap();

        // A call that costs more than its hold is booked as far as there is room, and keeps its cost.
        let outcome = store.store.settle(open[1], answered(1_000_000, "500")).await;
        let SettleOutcome::Settled(settled) = outcome else { unreachable!("{outcome:?}") };
        let record = settled.record;
        assert_eq!(record.quote.total_request_cost, "500".parse().unwrap());
        store.store.settle(open[2], answered(1_000_000, "1")).await;
        let own = store.store.read(move |conn| wallets::find_own(conn, merchant_id)).await.unwrap();
        assert_eq!(own.unwrap().balance, Amount::MIN);
        let audit = store.store.audit().await.unwrap();
        assert_eq!((audit.pending, audit.differences), (0, Vec::new()));
    });
}

#[test]
fn a_call_ahead_that_does_not_begin_leaves_no_trace() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let merchant_id = shop.merchant.merchant_id;
        let [unused, dropped, begun] = [(); 3].map(|()| Call { ahead: true, ..shop.call(store) });
        let ids = [unused.request_id, dropped.request_id, begun.request_id];
        let find = async |id| {
            let found = store
                .store
                .read(move |conn| requests::find(conn, &RecordArchive::default(), merchant_id, id))
                .await;
            found.unwrap()
        };
        let listed = async || {
            let filter = requests::ListFilter::default();
            let page = Page { after: None, limit: 10 };
            let list = store.store.read(move |conn| {
                requests::list(conn, &RecordArchive::default(), merchant_id, &filter, &page)
            });
            list.await.unwrap().records.len()
        };
        store.store.admit(Box::new(unused)).await.unwrap().unwrap();
        assert_eq!(shop.wallet(store).await.held, amount("12"));
        assert!(find(ids[0]).await.is_none());
        assert_eq!(listed().await, 0);
        store.assert_audited().await;
        let not_sent = CallReport::not_sent(store.clock.now());
        let outcome = store.store.settle(ids[0], not_sent.clone()).await;
        assert_eq!(outcome, SettleOutcome::TakenBack);
        assert_eq!(store.store.settle(ids[0], not_sent).await, SettleOutcome::NotFound);
        let wallet = shop.wallet(store).await;
        assert_eq!((wallet.balance, wallet.held), (amount("20"), Amount::ZERO));
        assert_eq!(listed().await, 0);
        store.assert_audited().await;

        // The one that begins is a call of that time.
        store.store.admit(Box::new(begun)).await.unwrap().unwrap();
        store.clock.advance_millis(60_000);
        let began = store.store.begin(ids[2]).await.unwrap().unwrap();
        assert_eq!((began.ahead, began.created_at), (false, store.clock.now()));
        assert!(began.request_id > ids[2]);
        assert!(store.store.begin(ids[2]).await.unwrap().is_none());
        assert!(find(ids[2]).await.is_none());
        let pending = find(began.request_id).await.unwrap();
        assert_eq!(
            (pending.status, pending.created_at),
            (RequestStatus::Pending, began.created_at)
        );
        assert_eq!(listed().await, 1);
        assert_eq!(shop.wallet(store).await.held, amount("12"));
        store.assert_audited().await;
        store.store.settle(began.request_id, answered(100_000, "0.5")).await;
        assert_eq!(find(began.request_id).await.unwrap().sequence, Some(1));
        assert_eq!(shop.wallet(store).await.balance, amount("18.5"));

        // A call whose beginning was not written, because the database was away, has a record by its report.
        store.store.admit(Box::new(dropped)).await.unwrap().unwrap();
        store.store.settle(ids[1], answered(100_000, "0.5")).await;
        assert_eq!(find(ids[1]).await.unwrap().sequence, Some(2));
        assert_eq!(shop.wallet(store).await.balance, amount("17"));
        assert!(store.store.begin(ids[1]).await.unwrap().is_none());
        store.assert_audited().await;
    });
}

#[test]
fn a_call_ahead_of_a_dead_process_is_swept_without_a_record() {
    each_store(async |store| {
        let shop = shop(store, "40").await;
        let merchant_id = shop.merchant.merchant_id;
        let [ahead, begun] = [(); 2].map(|()| Call { ahead: true, ..shop.call(store) });
        let ids = [ahead.request_id, begun.request_id];
        for call in [ahead, begun] {
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
        }
        let begun = store.store.begin(ids[1]).await.unwrap().unwrap().request_id;
        store.clock.advance_millis(60_000);
        store.store.close().await.unwrap();
        let next = store.open_again();
        if matches!(store.url, DatabaseUrl::Postgres(_)) {
            next.sweep().await.unwrap();
            store.clock.advance_millis(60_000);
            next.sweep().await.unwrap();
            store.expire_other_leases(&next).await;
        }
        assert_eq!(next.sweep().await.unwrap(), 2);
        let find = async |id| {
            next.read(move |conn| requests::find(conn, &RecordArchive::default(), merchant_id, id))
                .await
                .unwrap()
        };
        assert!(find(ids[0]).await.is_none());
        assert_eq!(find(begun).await.unwrap().status, RequestStatus::Error);
        assert_eq!(shop.wallet(store).await.held, Amount::ZERO);
        assert_eq!(next.audit().await.unwrap().differences, []);
        next.close().await.unwrap();
    });
}

/// A key that is limited to two requests a day counts none that did not begin.
#[test]
fn a_call_ahead_that_does_not_begin_counts_against_no_limit() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let rules = SpendRules {
            request_limit: Some(RequestLimit { count: 2, cycle: Cycle::Daily }),
            ..SpendRules::default()
        };
        let (made, key) = store.spend_key(merchant_id, None, rules).await;
        for round in 0..4 {
            let call = Call { ahead: true, ..store.call_with(&made, &key) };
            let id = call.request_id;
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            match round {
                3 => drop(store.store.settle(id, answered(1, "0.5")).await),
                _ => drop(store.store.settle(id, CallReport::not_sent(store.clock.now())).await),
            }
            store.assert_audited().await;
        }
        let call = store.call_with(&made, &key);
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let refused =
            store.store.admit(Box::new(store.call_with(&made, &key))).await.unwrap().unwrap_err();
        assert!(matches!(refused, Refusal::RequestLimitReached { .. }), "{refused:?}");
    });
}

/// The limits of a day count it on the day on which it begins, and its hold as well.
#[test]
fn a_call_ahead_counts_in_the_cycle_in_which_it_begins() {
    each_store(async |store| {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let rules = SpendRules {
            request_limit: Some(RequestLimit { count: 1, cycle: Cycle::Daily }),
            run_limit: Some(amount("100")),
            ..SpendRules::default()
        };
        let (made, key) = store.spend_key(merchant_id, None, rules).await;
        let call = Call { ahead: true, ..store.call_with(&made, &key) };
        let id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        store.clock.advance_millis(24 * 3_600 * 1_000);
        let begun = store.store.begin(id).await.unwrap().unwrap();
        assert_eq!(begun.created_at, store.clock.now());
        store.assert_audited().await;
        let refused = store.store.admit(Box::new(store.call_with(&made, &key))).await;
        assert!(matches!(refused.unwrap(), Err(Refusal::RequestLimitReached { .. })));
        store.store.settle(begun.request_id, answered(1, "0.5")).await;
        store.assert_audited().await;
        let counters = store.reload_spend_key(&made).await.counters;
        assert_eq!((counters.spent.day, counters.held.day), (amount("0.5"), Amount::ZERO));
        assert_eq!((counters.requests.day, counters.requests.total), (1, 1));
    });
}
