//! Tests of subscriptions and credit under the ledger's locks, on both databases.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use diesel::connection::{Connection as _, SimpleConnection as _};
use diesel::{PgConnection, SqliteConnection};
use tollgate_domain::admission::{Call, Refusal};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::subscriptions::{self, ChangeOutcome, RenewalScope, SubscribeOutcome};
use tollgate_store::{
    Conn, DatabaseUrl, Page, StoreError, connections, events, meters, subscription_configs, wallets,
};
use tollgate_testkit::store::{amount, answered};
use tollgate_testkit::{TestStore, each_store};

/// A merchant with a meter, a configuration linked to it, and a subscribed customer.
struct SubscribedCustomer<'a> {
    store: &'a TestStore,
    merchant_id: MerchantId,
    secret_key_id: SecretKeyId,
    connection: Connection,
    meter: MerchantMeter,
    config: SubscriptionConfig,
    bundle: CreditBundle,
    subscription: SubscriptionState,
}

fn plan(
    price: &str,
    included: &str,
    rollover: Rollover,
    meters: &[MeterId],
) -> NewSubscriptionConfig {
    NewSubscriptionConfig {
        name: "Plan".to_owned(),
        period_amount: amount(price),
        billing_interval: BillingInterval::Month,
        terms: ConfigTerms {
            included_credit: amount(included),
            rollover_type: rollover,
            bundle_rollover_type: Rollover::Full,
            meter_ids: meters.to_vec(),
        },
        credit_bundles: vec![NewCreditBundle {
            name: "Bundle".to_owned(),
            cost: amount("9"),
            credit_amount: amount("10"),
        }],
    }
}

impl<'a> SubscribedCustomer<'a> {
    async fn of(store: &'a TestStore, balance: &str, included: &str, rollover: Rollover) -> Self {
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let secret_key_id = store.secret_key_id(&merchant).await;
        let connection = store.connection(merchant_id, balance).await;
        let meter = store.meter(merchant_id, &[(0, "0")]).await;
        let new = plan("25", included, rollover, &[meter.meter_id]);
        let now = store.clock.now();
        let made = store
            .store
            .write(move |conn| subscription_configs::create(conn, merchant_id, &new, now));
        let made = made.await.unwrap().unwrap();
        let (connection_id, config_id) =
            (connection.connection_id, made.config.subscription_config_id);
        let started = store.store.write(move |conn| {
            subscriptions::create(conn, merchant_id, connection_id, config_id, now)
        });
        let SubscribeOutcome::Subscription(subscription) = started.await.unwrap() else {
            panic!("not started");
        };
        Self {
            store,
            merchant_id,
            secret_key_id,
            connection,
            meter,
            config: made.config,
            bundle: made.credit_bundles.first().cloned().unwrap(),
            subscription: *subscription,
        }
    }

    fn call(&self) -> Call {
        Call {
            connection_id: Some(self.connection.connection_id),
            meter_slug: Some(self.meter.slug.clone()),
            ..self.store.call(self.merchant_id, self.secret_key_id)
        }
    }

    /// The balance, cycle credit and bundle credit.
    async fn left(&self) -> (String, String, String) {
        let wallet = self.store.wallet(self.merchant_id, self.connection.wallet_id).await;
        let Credits { cycle, bundle, .. } = wallet.credits;
        let short = |amount: Amount| {
            amount.to_string().trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        (short(wallet.balance), short(cycle.remaining), short(bundle.remaining))
    }

    async fn lines(&self) -> Vec<Transaction> {
        let wallet_id = self.connection.wallet_id;
        let page = Page { after: None, limit: 100 };
        let mut lines = self
            .store
            .store
            .read_records(move |conn, archive| {
                wallets::list_transactions(conn, archive, wallet_id, &page)
            })
            .await
            .unwrap();
        lines.reverse();
        lines
    }

    async fn told(&self) -> Vec<&'static str> {
        let merchant_id = self.merchant_id;
        let page = Page { after: None, limit: 100 };
        let told = self.store.store.read(move |conn| events::list(conn, merchant_id, &page));
        told.await.unwrap().iter().rev().map(|event| event.payload.kind().as_str()).collect()
    }

    async fn pass_month(&self) {
        let end = BillingInterval::Month.end_of(self.store.clock.now(), 1);
        let micros = end.unix_micros() - self.store.clock.now().unix_micros();
        self.store.clock.advance_millis(micros / 1_000);
        self.store.store.renew_lease().await.unwrap();
    }

    async fn buy(&self) -> ChangeOutcome {
        let (merchant_id, id, bundle, now) = (
            self.merchant_id,
            self.subscription.subscription_id,
            self.bundle.credit_bundle_id,
            self.store.clock.now(),
        );
        let bought =
            move |conn: &mut _| subscriptions::buy_bundle(conn, merchant_id, id, bundle, now);
        self.store.store.write(bought).await.unwrap()
    }
}

fn left(balance: &str, cycle: &str, bundle: &str) -> (String, String, String) {
    (balance.to_owned(), cycle.to_owned(), bundle.to_owned())
}

#[test]
fn one_call_may_draw_on_cycle_credit_bundles_and_the_balance_each_as_its_own_line() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "100", "1.5", Rollover::None).await;
        assert!(matches!(customer.buy().await, ChangeOutcome::Subscription(_)));
        let call = Call { bound: tollgate_testkit::store::million_tokens(), ..customer.call() };
        store.forward(call, 1, "13.25").await.unwrap();
        assert_eq!(customer.left().await, left("98.25", "0", "0"));
        let lines: Vec<_> = customer
            .lines()
            .await
            .into_iter()
            .map(|line| (line.account, line.kind, line.amount.to_string()))
            .collect();
        use LedgerAccount::*;
        use TransactionKind as Kind;
        let expected = [
            (Balance, Kind::Credit, "100.0000000000"),
            (CycleCredit, Kind::CreditGrant, "1.5000000000"),
            (BundleCredit, Kind::BundlePurchase, "10.0000000000"),
            (CycleCredit, Kind::Usage, "-1.5000000000"),
            (BundleCredit, Kind::Usage, "-10.0000000000"),
            (Balance, Kind::Usage, "-1.7500000000"),
        ];
        assert_eq!(lines, expected.map(|(account, kind, sum)| (account, kind, sum.to_owned())));
    });
}

#[test]
fn a_call_under_another_meter_leaves_the_credit_alone() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "100", "25", Rollover::None).await;
        let other = store.meter(customer.merchant_id, &[(0, "0")]).await;
        let call = Call { meter_slug: Some(other.slug), ..customer.call() };
        store.forward(call, 1, "3").await.unwrap();
        assert_eq!(customer.left().await, left("97", "25", "0"));
        store.forward(customer.call(), 1, "3").await.unwrap();
        assert_eq!(customer.left().await, left("97", "22", "0"));
    });
}

#[test]
fn credit_alone_lets_calls_in_until_it_is_used_up_or_expires() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "0", "4", Rollover::None).await;
        store.forward(customer.call(), 1, "3").await.unwrap();
        store.forward(customer.call(), 1, "1").await.unwrap();
        let refused = store.store.admit(Box::new(customer.call())).await.unwrap().unwrap_err();
        assert!(matches!(refused, Refusal::WalletInsufficient { .. }), "{refused:?}");
        // No renewal has run when the next call comes in the next cycle.
        customer.pass_month().await;
        store.forward(customer.call(), 1, "1").await.unwrap();
        assert_eq!(customer.left().await, left("0", "3", "0"));
        let told = ["connection.created", "subscription.created", "subscription.renewed"];
        assert_eq!(customer.told().await, told);
    });
}

#[test]
fn of_25_included_and_15_used_the_next_cycle_has_35_with_full_and_25_with_none() {
    for (rollover, next) in [(Rollover::Full, "35"), (Rollover::None, "25")] {
        each_store(async |store| {
            let customer = SubscribedCustomer::of(store, "0", "25", rollover).await;
            store.forward(customer.call(), 1, "15").await.unwrap();
            assert_eq!(customer.left().await, left("0", "10", "0"));
            customer.pass_month().await;
            let whose = RenewalScope::Connection(customer.connection.connection_id);
            assert_eq!(store.store.renew(whose).await.unwrap(), 1);
            assert_eq!(store.store.renew(RenewalScope::Everybody).await.unwrap(), 0);
            assert_eq!(customer.left().await, left("0", next, "0"));
        });
    }
}

/// Another program keeps the database from being written.
#[test]
fn a_renewal_for_a_read_that_cannot_be_written_is_an_error_within_five_seconds() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "0", "25", Rollover::None).await;
        customer.pass_month().await;
        let mut keeper = match &store.url {
            DatabaseUrl::Sqlite(file) => {
                Conn::Sqlite(SqliteConnection::establish(file.to_str().unwrap()).unwrap())
            }
            DatabaseUrl::Postgres(url) => Conn::Postgres(PgConnection::establish(url).unwrap()),
            DatabaseUrl::SqliteTemporary => panic!("tests name a file"),
        };
        keeper
            .batch_execute(match &keeper {
                Conn::Sqlite(_) => "BEGIN IMMEDIATE",
                Conn::Postgres(_) => "BEGIN; LOCK TABLE subscriptions IN EXCLUSIVE MODE",
            })
            .unwrap();
        let begun = Instant::now();
        let whose = RenewalScope::Wallet(customer.connection.wallet_id);
        let renewed = store.store.renew(whose).await;
        assert!(matches!(renewed, Err(StoreError::Unavailable(_))), "{renewed:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        keeper.batch_execute("ROLLBACK").unwrap();
        store.store.renew(whose).await.unwrap();
        assert_eq!(customer.left().await, left("0", "25", "0"));
    });
}

#[test]
fn a_call_keeps_what_it_has_reserved_through_a_renewal_and_the_rest_expires_with_it() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "0", "25", Rollover::None).await;
        // The call holds 2 USD.
        let call = customer.call();
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        customer.pass_month().await;
        store.store.renew(RenewalScope::Everybody).await.unwrap();
        assert_eq!(customer.left().await, left("0", "27", "0"));
        store.assert_audited().await;
        store.store.settle(request_id, answered(1, "0.5")).await;
        assert_eq!(customer.left().await, left("0", "25", "0"));
        let last = customer.lines().await.pop().unwrap();
        assert_eq!((last.kind, last.amount), (TransactionKind::CreditExpiry, amount("-1.5")));
        assert_eq!(last.request_id, Some(request_id));
    });
}

#[test]
fn a_deleted_connection_loses_its_subscription_at_once() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "5", "25", Rollover::Full).await;
        let (merchant_id, id) = (customer.merchant_id, customer.connection.connection_id);
        let now = store.clock.now();
        let deleted =
            store.store.write(move |conn| connections::delete(conn, merchant_id, id, now));
        assert!(deleted.await.unwrap());
        assert_eq!(customer.left().await, left("5", "0", "0"));
        let refused = store.store.admit(Box::new(customer.call())).await.unwrap().unwrap_err();
        assert_eq!(refused, Refusal::ConnectionDisabled);
        let told = customer.told().await;
        assert_eq!(told[2..], ["subscription.cancelled", "connection.deleted"]);
        assert!(matches!(customer.buy().await, ChangeOutcome::Ended(_)));
    });
}

/// The connection's subscription has ended without a renewal. A new one is refused.
#[test]
fn an_order_that_is_refused_leaves_a_subscription_that_has_ended_whole() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "0", "25", Rollover::Full).await;
        let (merchant_id, id) = (customer.merchant_id, customer.subscription.subscription_id);
        let connection_id = customer.connection.connection_id;
        let config_id = customer.config.subscription_config_id;
        let now = store.clock.now();
        let cancel = move |conn: &mut _| subscriptions::cancel(conn, merchant_id, id, now);
        assert!(matches!(store.store.write(cancel).await.unwrap(), ChangeOutcome::Subscription(_)));
        let retire =
            move |conn: &mut _| subscription_configs::delete(conn, merchant_id, config_id, now);
        assert!(store.store.write(retire).await.unwrap());
        customer.pass_month().await;
        let now = store.clock.now();
        let subscribe = move |conn: &mut _| {
            subscriptions::create(conn, merchant_id, connection_id, config_id, now)
        };
        assert_eq!(store.store.write(subscribe).await.unwrap(), SubscribeOutcome::ConfigNotFound);
        assert_eq!(store.store.renew(RenewalScope::Merchant(merchant_id)).await.unwrap(), 1);
        assert_eq!(customer.left().await, left("0", "0", "0"));
        assert_eq!(customer.told().await[2..], ["subscription.cancelled"]);
    });
}

#[test]
fn the_last_meter_of_a_configuration_cannot_be_deleted() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "0", "25", Rollover::Full).await;
        let (merchant_id, meter_id, now) =
            (customer.merchant_id, customer.meter.meter_id, store.clock.now());
        let delete = move |conn: &mut _| meters::delete(conn, merchant_id, meter_id, now);
        let in_use = meters::MeterDeletion::InUse(meters::MeterUse::ByConfigs);
        assert_eq!(store.store.write(delete).await.unwrap(), in_use);
        // Also while a customer has a configuration that is no longer offered.
        let config_id = customer.config.subscription_config_id;
        let retire =
            move |conn: &mut _| subscription_configs::delete(conn, merchant_id, config_id, now);
        assert!(store.store.write(retire).await.unwrap());
        assert_eq!(store.store.write(delete).await.unwrap(), in_use);
        let id = customer.subscription.subscription_id;
        let cancel = move |conn: &mut _| subscriptions::cancel(conn, merchant_id, id, now);
        assert!(matches!(store.store.write(cancel).await.unwrap(), ChangeOutcome::Subscription(_)));
        customer.pass_month().await;
        store.store.renew(RenewalScope::Merchant(merchant_id)).await.unwrap();
        assert_eq!(store.store.write(delete).await.unwrap(), meters::MeterDeletion::Deleted);
    });
}

#[test]
fn a_balance_that_falls_is_told_once_when_it_is_low_and_once_when_nothing_is_left() {
    each_store(async |store| {
        let customer = SubscribedCustomer::of(store, "10", "0", Rollover::None).await;
        let (merchant_id, wallet_id) = (customer.merchant_id, customer.connection.wallet_id);
        let changes = WalletChanges {
            low_balance_threshold: Some(Some(amount("5"))),
            ..WalletChanges::default()
        };
        let update = move |conn: &mut _| wallets::update(conn, merchant_id, wallet_id, changes);
        store.store.write(update).await.unwrap().unwrap();
        for cost in ["5", "1", "1"] {
            store.forward(customer.call(), 1, cost).await.unwrap();
        }
        assert_eq!(customer.told().await[2..], ["wallet.balance_low"]);
        store.forward(customer.call(), 1, "4").await.unwrap();
        store.credit(merchant_id, wallet_id, "20").await;
        store.forward(customer.call(), 1, "30").await.unwrap();
        let told = ["wallet.balance_low", "wallet.balance_depleted"];
        assert_eq!(customer.told().await[2..], [told, told].concat());
    });
}
