//! Tests of a failover: PostgreSQL comes back without its last commits.
//!
//! An asynchronous standby that takes over does this.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::time::{Duration, Instant};

use tollgate_domain::admission::Refusal;
use tollgate_domain::*;
use tollgate_store::{
    RecordArchive, SettleOutcome, StoreError, requests, spend_keys, unbooked_settlements,
};
use tollgate_testkit::store::{TestStore, amount, answered, on_own_server};

/// A customer with a spend key that has limits.
struct LimitedCustomer {
    merchant_id: MerchantId,
    wallet_id: WalletId,
    spend_key: SpendKey,
    key: Key,
}

impl LimitedCustomer {
    async fn of(store: &TestStore) -> Self {
        let merchant_id = store.merchant().await.merchant.merchant_id;
        let wallet_id = store.connection(merchant_id, "100").await.wallet_id;
        let (new, now) = (
            NewSpendKey {
                name: "Key".to_owned(),
                wallet_id: Some(wallet_id),
                meter_id: None,
                budget_id: None,
                rules: SpendRules {
                    spend_limit: Some(SpendLimit { amount: amount("90"), cycle: Cycle::Daily }),
                    request_limit: Some(RequestLimit { count: 100, cycle: Cycle::Daily }),
                    ..SpendRules::default()
                },
            },
            store.clock.now(),
        );
        let made =
            store.store.write(move |conn| spend_keys::create(conn, merchant_id, &new, now)).await;
        let (spend_key, key) = made.unwrap().unwrap();
        Self { merchant_id, wallet_id, spend_key, key }
    }

    /// Admits a call, and tries again while the database is away.
    async fn admits(&self, store: &TestStore) -> RequestId {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let call = store.call_with(&self.spend_key, &self.key);
            match store.store.admit(Box::new(call)).await {
                Ok(admitted) => return admitted.unwrap().request_id,
                Err(StoreError::Unavailable(_) | StoreError::Interrupted) => {}
                Err(cause) => panic!("{cause}"),
            }
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn change(&self, store: &TestStore, changes: SpendKeyChanges) {
        let (merchant_id, id, now) =
            (self.merchant_id, self.spend_key.spend_key_id, store.clock.now());
        // A connection of the pool may be one to the previous server.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let changes = changes.clone();
            let update =
                move |conn: &mut _| spend_keys::update(conn, merchant_id, id, changes, now);
            match store.store.write(update).await {
                Ok(spend_keys::SpendKeyUpdate::SpendKey(_)) => break,
                Err(StoreError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
            assert!(Instant::now() < deadline);
        }
    }

    async fn settles(&self, store: &TestStore, request_id: RequestId) {
        let outcome = store.store.settle(request_id, answered(1_000, "1")).await;
        assert!(
            matches!(outcome, SettleOutcome::Settled(_) | SettleOutcome::Journaled),
            "{outcome:?}"
        );
    }

    async fn status(&self, store: &TestStore, request_id: RequestId) -> Option<RequestStatus> {
        let merchant_id = self.merchant_id;
        let found = store
            .store
            .read(move |conn| {
                requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
            })
            .await;
        found.unwrap().map(|record| record.status)
    }

    /// Fails unless these calls are soon paid once each and nothing is held.
    async fn has_paid(&self, store: &TestStore, calls: &[RequestId]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let paid = i64::try_from(calls.len()).unwrap();
        loop {
            // As upkeep does.
            let _ = store.store.renew_lease().await;
            let _ = store.store.replay_journal().await;
            let wallet = store.wallet(self.merchant_id, self.wallet_id).await;
            let due = amount("100").checked_sub(amount(&paid.to_string())).unwrap();
            if wallet.balance == due && wallet.held.is_zero() {
                break;
            }
            assert!(Instant::now() < deadline, "{wallet:?} is not {due}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for request_id in calls {
            let status = self.status(store, *request_id).await;
            assert_eq!(status, Some(RequestStatus::Completed), "{request_id}");
        }
        store.assert_audited().await;
    }
}

#[test]
fn a_database_without_its_last_commits_gets_every_answer_again() {
    on_own_server(async |store, server| {
        let customer = LimitedCustomer::of(store).await;
        let before = customer.admits(store).await;
        customer.settles(store, before).await;
        let open_then = customer.admits(store).await;
        server.take_snapshot();

        // The server loses all of this.
        customer.settles(store, open_then).await;
        let settled = customer.admits(store).await;
        customer.settles(store, settled).await;
        let open = customer.admits(store).await;
        server.restore_snapshot();
        assert_eq!(customer.status(store, open_then).await, Some(RequestStatus::Pending));
        assert_eq!(customer.status(store, settled).await, None);

        // It was sent before the loss and answered after it.
        customer.settles(store, open).await;
        customer.has_paid(store, &[before, open_then, settled, open]).await;
    });
}

/// A node can book nothing for a wallet that the database does not have.
#[test]
fn an_answer_whose_customer_is_lost_is_named() {
    on_own_server(async |store, server| {
        let known = LimitedCustomer::of(store).await;
        server.take_snapshot();
        // The node has a connection again.
        let before = known.admits(store).await;
        known.settles(store, before).await;
        let unknown = LimitedCustomer::of(store).await;
        let lost = unknown.admits(store).await;
        unknown.settles(store, lost).await;
        server.restore_snapshot();
        let after = known.admits(store).await;
        known.settles(store, after).await;
        let waiting = store.journal().join(format!("{lost}.json"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !waiting.exists() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }

        let unbooked = |seconds| {
            let within = Duration::from_secs(seconds);
            unbooked_settlements(&store.journal(), within).unwrap()
        };
        assert!(unbooked(60).is_empty(), "a node may be booking it now");
        known.has_paid(store, &[before, after]).await;
        assert!(unbooked(0).contains(&waiting), "{waiting:?}");
    });
}

/// The lost change and the later one have the same number.
#[test]
fn a_change_of_a_key_counts_after_another_change_was_lost() {
    on_own_server(async |store, server| {
        let customer = LimitedCustomer::of(store).await;
        server.take_snapshot();
        let name = SpendKeyChanges { name: Some("Lost".to_owned()), ..SpendKeyChanges::default() };
        customer.change(store, name).await;
        let before = customer.admits(store).await;
        customer.settles(store, before).await;
        server.restore_snapshot();
        // The node has a connection again.
        let after = customer.admits(store).await;
        customer.settles(store, after).await;
        let paused =
            SpendKeyChanges { status: Some(SpendKeyStatus::Paused), ..SpendKeyChanges::default() };
        customer.change(store, paused).await;
        let call = store.call_with(&customer.spend_key, &customer.key);
        let refused = store.store.admit(Box::new(call)).await.unwrap().unwrap_err();
        assert_eq!(refused, Refusal::SpendKeyPaused);
        customer.has_paid(store, &[before, after]).await;
    });
}

/// The call is booked by a new process that has only the journal.
#[test]
fn the_journal_is_enough_to_book_a_call_that_the_database_does_not_know() {
    on_own_server(async |store, server| {
        let customer = LimitedCustomer::of(store).await;
        server.take_snapshot();
        let lost = customer.admits(store).await;
        server.stop();
        customer.settles(store, lost).await;
        server.start();
        server.restore_snapshot();
        store.store.close().await.unwrap_or_default();
        let next = store.open_again();
        next.replay_journal().await.unwrap();
        let wallet = store.wallet(customer.merchant_id, customer.wallet_id).await;
        assert_eq!((wallet.balance, wallet.held), (amount("99"), amount("0")));
        assert_eq!(customer.status(store, lost).await, Some(RequestStatus::Completed));
        next.close().await.unwrap();
    });
}

#[test]
fn an_open_call_that_its_living_node_does_not_know_is_ended() {
    on_own_server(async |store, server| {
        let customer = LimitedCustomer::of(store).await;
        let open_then = customer.admits(store).await;
        server.take_snapshot();
        customer.settles(store, open_then).await;
        customer.has_paid(store, &[open_then]).await;
        // Late enough that none of it is remembered.
        store.clock.advance_millis(120_000);
        let later = customer.admits(store).await;
        customer.settles(store, later).await;
        server.restore_snapshot();
        let again = customer.admits(store).await;
        customer.settles(store, again).await;
        let deadline = Instant::now() + Duration::from_secs(20);
        while customer.status(store, open_then).await != Some(RequestStatus::Error) {
            assert!(Instant::now() < deadline);
            let _ = store.store.sweep().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        customer.has_paid(store, &[later, again]).await;
    });
}
