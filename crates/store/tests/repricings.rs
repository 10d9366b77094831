//! Tests of repricings on both databases: what is booked, what is not, and nothing twice.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_domain::admission::Call;
use tollgate_domain::repricing::{CostShares, reprice};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::repricings::{Repricing, RepricingOutcome, RepricingScope};
use tollgate_store::wallets::{MovementOutcome, WalletMovement};
use tollgate_store::{
    DatabaseUrl, Page, RecordArchive, SettleOutcome, Store, StoreError, events, meters, requests,
    subscription_configs, subscriptions, wallets,
};
use tollgate_testkit::store::{START, TestStore, amount, answered, each_store, priced};

/// A merchant with a customer, a fixed meter and a percentage meter.
struct RepricingShop {
    merchant: Merchant,
    key: SecretKeyId,
    connection: Connection,
    fixed: MerchantMeter,
    percentage: MerchantMeter,
}

async fn shop(store: &TestStore, balance: &str) -> RepricingShop {
    let new = store.merchant().await;
    let merchant_id = new.merchant.merchant_id;
    RepricingShop {
        key: store.secret_key_id(&new).await,
        connection: store.connection(merchant_id, balance).await,
        fixed: store.meter(merchant_id, &[(0, "10")]).await,
        percentage: percentage(store, merchant_id, [Payer::Wallet; 2]).await,
        merchant: new.merchant,
    }
}

/// A meter of 20 % of the first million tokens and 10 % of the rest.
async fn percentage(
    store: &TestStore,
    merchant_id: MerchantId,
    payers: [Payer; 2],
) -> MerchantMeter {
    let tiers = [(0, 20), (1_000_000, 10)];
    let tiers = tiers.map(|(start, rate)| Tier { start, rate: Rate::from(rate) }).to_vec();
    let meter = Meter::new(RateType::Percentage, TierUnit::Tokens, tiers).unwrap();
    let [base_cost_payer, service_charge_payer] = payers;
    let model = FeeModel { meter, base_cost_payer, service_charge_payer };
    let new =
        NewMeter { name: "Share".to_owned(), slug: None, tier_period: TierPeriod::Lifetime, model };
    let now = store.clock.now();
    let made = store.store.write(move |conn| meters::create(conn, merchant_id, &new, now)).await;
    made.unwrap().unwrap()
}

impl RepricingShop {
    fn bare_call(&self, store: &TestStore) -> Call {
        store.call(self.merchant.merchant_id, self.key)
    }

    fn call(&self, store: &TestStore, meter: &MerchantMeter) -> Call {
        Call {
            connection_id: Some(self.connection.connection_id),
            meter_slug: Some(meter.slug.clone()),
            ..self.bare_call(store)
        }
    }

    /// The balances of the customer's wallet and of the merchant's own.
    async fn balances(&self, store: &TestStore) -> [Amount; 2] {
        let merchant_id = self.merchant.merchant_id;
        [
            store.wallet(merchant_id, self.connection.wallet_id).await.balance,
            store.wallet(merchant_id, self.merchant.wallet_id).await.balance,
        ]
    }

    async fn record(&self, store: &TestStore, request_id: RequestId) -> RequestRecord {
        let merchant_id = self.merchant.merchant_id;
        let found = store.store.read(move |conn| {
            requests::find(conn, &RecordArchive::default(), merchant_id, request_id)
        });
        found.await.unwrap().unwrap()
    }

    async fn lines(&self, store: &TestStore, wallet_id: WalletId) -> Vec<Transaction> {
        let page = Page { after: None, limit: 1_000 };
        let lines = store.store.read_records(move |conn, archive| {
            wallets::list_transactions(conn, archive, wallet_id, &page)
        });
        lines.await.unwrap()
    }
}

fn amounts(of: [&str; 2]) -> [Amount; 2] {
    of.map(amount)
}

/// A price book with a price in USD per million tokens for each of these models at `house`.
fn book(rows: &[(&str, &str)]) -> PriceBook {
    let rows = rows.iter().map(|&(model, input)| PriceRow {
        provider: "house".to_owned(),
        models: vec![ModelPattern::new(model)],
        prices: UnitPrices { input: Some(input.parse().unwrap()), ..UnitPrices::default() },
        ..PriceRow::default()
    });
    PriceBook::new(Catalog::default(), Catalog::new(rows))
}

fn everything() -> RepricingScope {
    let today = START.date();
    RepricingScope { from: today, to: today, provider: None, model: None, merchant_id: None }
}

async fn walk(
    store: &Store,
    scope: &RepricingScope,
    book: &PriceBook,
    only_look: bool,
) -> Vec<Repricing> {
    let mut told = Vec::new();
    store.reprice(scope, book, only_look, |one| told.push(one)).await.unwrap();
    told
}

/// Reprices everything and books it. Returns the records that differ.
async fn repriced(store: &Store, book: &PriceBook) -> Vec<Repricing> {
    let mut told = walk(store, &everything(), book, false).await;
    told.retain(|one| one.outcome != RepricingOutcome::Same);
    told
}

fn more(one: &Repricing) -> CostShares {
    match &one.outcome {
        RepricingOutcome::Differs(change) => change.more,
        other => panic!("does not differ: {other:?}"),
    }
}

#[test]
fn what_a_record_differs_by_is_booked_once_and_the_record_stays_as_it_was() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store, &shop.percentage);
        let record = store.forward(call, 500_000, "1").await.unwrap();
        assert_eq!(shop.balances(store).await, amounts(["18.8", "0"]));

        let book = book(&[("m-2026", "3")]);
        let only_look = walk(&store.store, &everything(), &book, true).await;
        assert_eq!(more(&only_look[0]).wallet, amount("0.6"));
        assert_eq!(shop.balances(store).await, amounts(["18.8", "0"]), "a look books nothing");

        // Half a million tokens at 3 USD are 1.5 USD, and 20 % of that is 0.3.
        assert_eq!(repriced(&store.store, &book).await, only_look);
        assert_eq!(shop.balances(store).await, amounts(["18.2", "0"]));
        assert_eq!(repriced(&store.store, &book).await, []);
        assert_eq!(shop.balances(store).await, amounts(["18.2", "0"]));
        assert_eq!(shop.record(store, record.request_id).await, record);
        let lines = shop.lines(store, shop.connection.wallet_id).await;
        assert_eq!(lines.len(), 3);
        let line = &lines[0];
        assert_eq!((line.kind, line.amount), (TransactionKind::Correction, amount("-0.6")));
        assert_eq!(line.request_id, Some(record.request_id));
        assert_eq!(line.description.as_deref(), Some("repriced"));

        let back = self::book(&[("m", "2")]);
        assert_eq!(more(&repriced(&store.store, &back).await[0]).wallet, amount("-0.6"));
        assert_eq!(shop.balances(store).await, amounts(["18.8", "0"]));
    });
}

#[test]
fn who_paid_the_record_pays_the_difference() {
    each_store(async |store| {
        let shop = shop(store, "100").await;
        let merchant_id = shop.merchant.merchant_id;
        let merchants = percentage(store, merchant_id, [Payer::Merchant, Payer::Wallet]).await;
        let own_key = |mut call: Call| {
            call.forwarded.provider_key_type = ProviderKeyType::Unmanaged;
            call
        };
        let not_billed = Call { disable_billing: true, ..shop.call(store, &shop.percentage) };
        let (spend_key, key) = store.spend_key(merchant_id, None, SpendRules::default()).await;
        // Each is 100,000 tokens that cost 0.1 and now cost 0.3. The percentages are 20 %.
        for (call, wallet, merchant) in [
            (shop.call(store, &shop.percentage), "0.24", "0"),
            (shop.call(store, &shop.fixed), "0.2", "0"),
            (shop.call(store, &merchants), "0.04", "0.2"),
            (own_key(shop.call(store, &shop.percentage)), "0.04", "0"),
            (own_key(shop.call(store, &shop.fixed)), "0", "0"),
            (not_billed, "0", "0.24"),
            (shop.bare_call(store), "0", "0.2"),
            (own_key(shop.bare_call(store)), "0", "0"),
            (store.call_with(&spend_key, &key), "0.2", "0"),
        ] {
            let on_own =
                call.connection_id.is_none() && matches!(call.key, admission::CallKey::Spend(..));
            store.forward(call, 100_000, "0.1").await.unwrap();
            let before = shop.balances(store).await;
            let told = repriced(&store.store, &book(&[("m", "3")])).await;
            assert_eq!(told.len(), 1);
            assert_eq!(
                more(&told[0]),
                CostShares { wallet: amount(wallet), merchant: amount(merchant) }
            );
            let after = shop.balances(store).await;
            let paid = [0, 1].map(|which| before[which].checked_sub(after[which]).unwrap());
            let expected = if on_own { ["0", wallet] } else { [wallet, merchant] };
            assert_eq!(paid, amounts(expected));
        }
    });
}

#[test]
fn wallet_and_merchant_shares_of_a_key_on_the_merchants_own_wallet_are_two_lines_there() {
    each_store(async |store| {
        let shop = shop(store, "0").await;
        let merchant_id = shop.merchant.merchant_id;
        let meter = percentage(store, merchant_id, [Payer::Merchant, Payer::Wallet]).await;
        let (spend_key, key) = store.spend_key(merchant_id, None, SpendRules::default()).await;
        let call =
            Call { meter_slug: Some(meter.slug.clone()), ..store.call_with(&spend_key, &key) };
        store.forward(call, 100_000, "0.1").await.unwrap();
        repriced(&store.store, &book(&[("m", "3")])).await;
        assert_eq!(shop.balances(store).await[1], amount("-0.36"));
        let lines = shop.lines(store, shop.merchant.wallet_id).await;
        let corrections = lines.iter().filter(|line| line.kind == TransactionKind::Correction);
        let amounts: Vec<_> = corrections.map(|line| line.amount).collect();
        assert_eq!(amounts, ["-0.2", "-0.04"].map(amount));
    });
}

#[test]
fn what_a_list_did_not_price_and_what_has_no_price_now_stays_as_it_is() {
    each_store(async |store| {
        let shop = shop(store, "100").await;
        let settle = async |price_source, model: &str| {
            let call = shop.call(store, &shop.percentage);
            let request_id = call.request_id;
            store.store.admit(Box::new(call)).await.unwrap().unwrap();
            let priced = PricedUsage { price_source, ..priced(1_000_000, "1") };
            let model = Some(model.to_owned());
            let report = CallReport { priced, model, ..answered(1_000_000, "1") };
            store.store.settle(request_id, report).await;
        };
        settle(PriceSource::Provider, "m-2026").await;
        settle(PriceSource::Catalog, "gone").await;
        let rejected = shop.call(store, &shop.percentage);
        let rejected_id = rejected.request_id;
        store.store.admit(Box::new(rejected)).await.unwrap().unwrap();
        store.store.settle(rejected_id, CallReport::not_sent(START)).await;
        let open = shop.call(store, &shop.percentage);
        let open_id = open.request_id;
        store.store.admit(Box::new(open)).await.unwrap().unwrap();

        let before = shop.balances(store).await;
        let told = repriced(&store.store, &book(&[("m-2026", "3")])).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (told[0].model.as_deref(), &told[0].outcome),
            (Some("gone"), &RepricingOutcome::NoPrice)
        );
        assert_eq!(shop.balances(store).await, before);
        store.store.settle(open_id, CallReport::not_sent(START)).await;
    });
}

#[test]
fn an_unpriced_call_is_charged_when_its_price_is_known() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store, &shop.percentage);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let priced = PricedUsage { price_source: PriceSource::Unpriced, ..priced(2_000_000, "0") };
        store.store.settle(request_id, CallReport { priced, ..answered(2_000_000, "0") }).await;
        assert_eq!(shop.balances(store).await, amounts(["20", "0"]));
        repriced(&store.store, &book(&[("m", "2")])).await;
        // 4 USD, with 20 % of one half and 10 % of the other.
        assert_eq!(shop.balances(store).await, amounts(["15.4", "0"]));
    });
}

#[test]
fn only_what_is_asked_for_is_priced_again() {
    each_store(async |store| {
        let (one, other) = (shop(store, "100").await, shop(store, "100").await);
        let day = 24 * 60 * 60 * 1_000;
        for _ in 0..3 {
            for (shop, provider) in [(&one, "house"), (&one, "mansion"), (&other, "house")] {
                let mut call = shop.call(store, &shop.fixed);
                call.forwarded.provider = provider.to_owned();
                store.forward(call, 1_000_000, "1").await.unwrap();
            }
            store.clock.advance_millis(day - 1);
        }
        // Admitted at 00:00:00.000, and at 23:59:59.999 and 23:59:59.998 of the next day.
        let book = {
            let row = |provider: &str| PriceRow {
                provider: provider.to_owned(),
                models: vec![ModelPattern::new("m*")],
                prices: UnitPrices { input: Some(3.into()), ..UnitPrices::default() },
                ..PriceRow::default()
            };
            PriceBook::new(Catalog::default(), Catalog::new([row("house"), row("mansion")]))
        };
        let today = START.date();
        let tomorrow = today.next_day().unwrap();
        let count =
            async |scope: RepricingScope| walk(&store.store, &scope, &book, true).await.len();
        let all = RepricingScope { to: tomorrow, ..everything() };
        assert_eq!(count(all.clone()).await, 9);
        assert_eq!(count(everything()).await, 6);
        assert_eq!(count(RepricingScope { from: tomorrow, ..all.clone() }).await, 3);
        assert_eq!(
            count(RepricingScope { from: tomorrow.next_day().unwrap(), ..all.clone() }).await,
            0
        );
        let of = RepricingScope { merchant_id: Some(other.merchant.merchant_id), ..all.clone() };
        assert_eq!(count(of).await, 3);
        assert_eq!(
            count(RepricingScope { provider: Some("mansion".to_owned()), ..all.clone() }).await,
            3
        );
        let model =
            |text: &str| RepricingScope { model: Some(ModelPattern::new(text)), ..all.clone() };
        assert_eq!(count(model("m-2026")).await, 9);
        assert_eq!(count(model("m-*")).await, 9);
        assert_eq!(count(model("m")).await, 0);
    });
}

#[test]
fn prices_are_those_of_the_day_of_the_record() {
    each_store(async |store| {
        let shop = shop(store, "100").await;
        let today = START.date();
        for _ in 0..2 {
            store.forward(shop.bare_call(store), 1_000_000, "1").await.unwrap();
            store.clock.advance_millis(24 * 60 * 60 * 1_000);
        }
        let row = |from: Option<_>, input: u32| PriceRow {
            provider: "house".to_owned(),
            models: vec![ModelPattern::new("m")],
            effective_from: from,
            prices: UnitPrices { input: Some(input.into()), ..UnitPrices::default() },
            ..PriceRow::default()
        };
        let rows = [row(None, 2), row(today.next_day(), 5)];
        let book = PriceBook::new(Catalog::default(), Catalog::new(rows));
        let scope = RepricingScope { to: today.next_day().unwrap(), ..everything() };
        let told = walk(&store.store, &scope, &book, false).await;
        let merchants: Vec<_> = told.iter().map(|one| more(one).merchant).collect();
        assert_eq!(merchants, ["1", "4"].map(amount));
    });
}

#[test]
fn a_balance_without_room_lets_the_record_go_and_the_others_are_booked() {
    each_store(async |store| {
        let (full, other) = (shop(store, "0.1").await, shop(store, "20").await);
        for (shop, cost) in [(&full, "600000000"), (&other, "1")] {
            store.forward(shop.call(store, &shop.fixed), 1, cost).await.unwrap();
        }
        let (merchant_id, wallet_id) = (full.merchant.merchant_id, full.connection.wallet_id);
        for _ in 0..2 {
            let amount = amount("499999999");
            let movement =
                WalletMovement { kind: TransactionKind::Credit, amount, description: None };
            let now = store.clock.now();
            let book =
                move |conn: &mut _| wallets::book(conn, merchant_id, wallet_id, &movement, now);
            assert!(matches!(store.store.write(book).await.unwrap(), MovementOutcome::Booked(_)));
        }
        // Nearly all of it is given back. The first wallet has no room for that.
        let told = repriced(&store.store, &book(&[("m", "1")])).await;
        let outcomes: Vec<_> =
            told.iter().map(|one| matches!(one.outcome, RepricingOutcome::OutOfRange(_))).collect();
        assert_eq!(outcomes, [true, false]);
        assert_eq!(other.balances(store).await[0], amount("19.999989"));
    });
}

#[test]
fn a_cost_that_no_amount_can_say_is_told_and_left() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        store.forward(shop.bare_call(store), 1_000_000_000_000, "1").await.unwrap();
        let told = repriced(&store.store, &book(&[("m", "100000000")])).await;
        assert_eq!(told[0].outcome, RepricingOutcome::TooMuch);
    });
}

#[test]
fn a_balance_that_falls_by_a_repricing_is_told_of() {
    each_store(async |store| {
        let shop = shop(store, "1.1").await;
        store.forward(shop.call(store, &shop.fixed), 100_000, "0.1").await.unwrap();
        repriced(&store.store, &book(&[("m", "2")])).await;
        let merchant_id = shop.merchant.merchant_id;
        let page = Page { after: None, limit: 10 };
        let told = store.store.read(move |conn| events::list(conn, merchant_id, &page)).await;
        let kinds: Vec<_> =
            told.unwrap().iter().map(|event| event.payload.kind().as_str()).collect();
        assert!(kinds.contains(&"wallet.balance_depleted"), "{kinds:?}");
    });
}

#[test]
fn what_a_call_drew_from_credit_is_given_back_on_the_balance() {
    each_store(async |store| {
        let shop = shop(store, "5").await;
        let (merchant_id, connection_id) =
            (shop.merchant.merchant_id, shop.connection.connection_id);
        let new = NewSubscriptionConfig {
            name: "Plan".to_owned(),
            period_amount: amount("25"),
            billing_interval: BillingInterval::Month,
            terms: ConfigTerms {
                included_credit: amount("20"),
                rollover_type: Rollover::None,
                bundle_rollover_type: Rollover::Full,
                meter_ids: vec![shop.percentage.meter_id],
            },
            credit_bundles: Vec::new(),
        };
        let now = store.clock.now();
        let subscribe = move |conn: &mut _| -> Result<_, StoreError> {
            let made = subscription_configs::create(conn, merchant_id, &new, now)?.unwrap();
            let config_id = made.config.subscription_config_id;
            subscriptions::create(conn, merchant_id, connection_id, config_id, now)
        };
        store.store.write(subscribe).await.unwrap();
        store.forward(shop.call(store, &shop.percentage), 500_000, "5").await.unwrap();
        let wallet = async || store.wallet(merchant_id, shop.connection.wallet_id).await;
        assert_eq!(wallet().await.credits.cycle.remaining, amount("14"));
        repriced(&store.store, &book(&[("m", "4")])).await;
        assert_eq!(wallet().await.credits.cycle.remaining, amount("14"));
        assert_eq!(wallet().await.balance, amount("8.6"));
    });
}

/// A sweep books the estimate, a repricing changes its price, then the usage is known.
#[test]
fn a_late_settlement_after_a_repricing_is_put_right_by_the_next_repricing() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        let call = shop.call(store, &shop.percentage);
        let request_id = call.request_id;
        store.store.admit(Box::new(call)).await.unwrap().unwrap();
        store.store.close().await.unwrap();
        let next = store.open_again();
        store.expire_other_leases(&next).await;
        next.sweep().await.unwrap();

        let book = book(&[("m", "2")]);
        assert_eq!(repriced(&next, &book).await.len(), 1, "the estimate cost 0.25");
        let settled = next.settle(request_id, answered(500_000, "1.5")).await;
        assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
        repriced(&next, &book).await;
        assert_eq!(repriced(&next, &book).await, []);
        let merchant_id = shop.merchant.merchant_id;
        let wallet_id = shop.connection.wallet_id;
        let wallet = next.read(move |conn| wallets::find(conn, merchant_id, wallet_id)).await;
        assert_eq!(wallet.unwrap().unwrap().balance, amount("18.8"));
        assert_eq!(next.audit().await.unwrap().differences, []);
        next.close().await.unwrap();
    });
}

/// The stores of a database. SQLite has one that serves, and others beside it.
fn nodes(store: &TestStore) -> Vec<Store> {
    let beside = tollgate_store::Options {
        clock: store.clock.clone(),
        migrate: false,
        ..tollgate_store::Options::default()
    };
    let other = match store.url {
        DatabaseUrl::Postgres(_) => store.open_again(),
        DatabaseUrl::Sqlite(_) | DatabaseUrl::SqliteTemporary => {
            Store::open(&store.url, &beside).unwrap()
        }
    };
    vec![store.store.clone(), other]
}

#[test]
fn several_operators_at_once_while_calls_are_settled_book_nothing_twice() {
    each_store(async |store| {
        let shop = shop(store, "1000").await;
        let nodes = nodes(store);
        for _ in 0..60 {
            store.forward(shop.call(store, &shop.percentage), 1_000, "0.1").await.unwrap();
        }
        let mut racers = Vec::new();
        for number in 0..60 {
            let call = match number % 2 {
                0 => shop.call(store, &shop.percentage),
                _ => shop.bare_call(store),
            };
            let node = store.store.clone();
            racers.push(tokio::spawn(async move {
                let request_id = call.request_id;
                node.admit(Box::new(call)).await.unwrap().unwrap();
                node.settle(request_id, answered(1_000, "0.1")).await;
                0
            }));
        }
        for number in 0..6 {
            let node = nodes[number % nodes.len()].clone();
            racers.push(tokio::spawn(async move {
                repriced(&node, &book(&[("m", "200")])).await.len()
            }));
        }
        let mut booked = 0;
        for racer in racers {
            booked += racer.await.unwrap();
        }
        booked += repriced(&store.store, &book(&[("m", "200")])).await.len();
        assert_eq!(booked, 120, "each record once");
        assert_eq!(repriced(&nodes[1], &book(&[("m", "200")])).await, []);
        // 0.2 USD each: 90 calls of the customer with 20 %, 30 of the merchant without.
        assert_eq!(shop.balances(store).await, amounts(["978.4", "-6"]));
        nodes[1].close().await.unwrap();
    });
}

#[test]
fn operators_who_book_the_same_records_at_once_book_each_record_once() {
    each_store(async |store| {
        let shop = shop(store, "1000").await;
        let nodes = nodes(store);
        for _ in 0..20 {
            store.forward(shop.call(store, &shop.percentage), 1_000, "0.1").await.unwrap();
        }
        for round in 1..=20 {
            let price = (round * 100).to_string();
            let start = Arc::new(tokio::sync::Barrier::new(8));
            let racers = (0..8).map(|number| {
                let (node, price) = (nodes[number % nodes.len()].clone(), price.clone());
                let start = Arc::clone(&start);
                tokio::spawn(async move {
                    start.wait().await;
                    repriced(&node, &book(&[("m", &price)])).await.len()
                })
            });
            let mut booked = 0;
            for racer in racers.collect::<Vec<_>>() {
                booked += racer.await.unwrap();
            }
            // The first prices are the prices of the records.
            assert_eq!(booked, if round == 1 { 0 } else { 20 }, "at {price}");
        }
        assert_eq!(shop.balances(store).await, amounts(["952", "0"]));
        nodes[1].close().await.unwrap();
    });
}

/// More records than are read at a time, and far more than one transaction writes.
#[test]
fn a_long_walk_leaves_no_record_out_and_takes_none_twice() {
    each_store(async |store| {
        let shop = shop(store, "1000").await;
        let calls = (0..1_100).map(|_| {
            let (call, store) = (shop.bare_call(store), store.store.clone());
            tokio::spawn(async move {
                let request_id = call.request_id;
                store.admit(Box::new(call)).await.unwrap().unwrap();
                store.settle(request_id, answered(1_000, "0.1")).await;
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        let told = repriced(&store.store, &book(&[("m", "200")])).await;
        assert_eq!(told.len(), 1_100);
        assert_eq!(shop.balances(store).await[1], amount("-220"));
        assert_eq!(
            walk(&store.store, &everything(), &book(&[("m", "200")]), true).await.len(),
            1_100
        );
    });
}

/// Pseudo-random numbers that are the same in every run.
struct PriceRandom(u64);

impl PriceRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A price with enough decimals that costs are rounded.
    fn price(&mut self) -> String {
        format!("{}.{:07}", self.below(40), self.below(10_000_000))
    }
}

/// After any prices in any order, the ledger is that of the records at the last prices.
///
/// Nothing is left to book, and the first prices lead back to the start.
#[test]
fn after_any_number_of_repricings_the_ledger_is_that_of_the_last_prices() {
    each_store(async |store| {
        let mut dice = PriceRandom(0x9e37_79b9_7f4a_7c15);
        let shop = shop(store, "1000000").await;
        let merchant_id = shop.merchant.merchant_id;
        let other = percentage(store, merchant_id, [Payer::Merchant, Payer::Merchant]).await;
        let (spend_key, key) = store
            .spend_key(merchant_id, Some(shop.connection.wallet_id), SpendRules::default())
            .await;
        let before = shop.balances(store).await;
        let first: Vec<_> = (0..3).map(|_| dice.price()).collect();
        let names = ["m-a", "m-b", "m-c"];
        let book_of = |prices: &[String]| {
            let rows: Vec<_> =
                names.iter().zip(prices).map(|(name, price)| (*name, price.as_str())).collect();
            book(&rows)
        };
        let mut pending = BTreeMap::new();
        for _ in 0..50 {
            let mut call = match dice.below(6) {
                0 => shop.bare_call(store),
                1 => store.call_with(&spend_key, &key),
                2 => shop.call(store, &shop.fixed),
                3 => shop.call(store, &other),
                4 => Call { disable_billing: true, ..shop.call(store, &shop.percentage) },
                _ => shop.call(store, &shop.percentage),
            };
            if dice.below(4) == 0 {
                call.forwarded.provider_key_type = ProviderKeyType::Unmanaged;
            }
            let tokens = dice.below(100_000);
            let which = usize::try_from(dice.below(3)).unwrap();
            let usage = Usage::tokens(tokens, 0);
            let served = ServedCall {
                provider: "house",
                models: &[names[which]],
                tiers: &[],
                on: START.date(),
                time: Some(START.time()),
                usage: &usage,
                parts: &[],
            };
            let CostBreakdown { base, source, applied, .. } =
                book_of(&first).price(&served).unwrap();
            let priced = PricedUsage { base, price_source: source, ..priced(tokens, "0") };
            let model = Some(names[which].to_owned());
            let applied = if dice.below(2) == 0 { Vec::new() } else { applied };
            let ending = if dice.below(5) == 0 { Ending::Broken } else { Ending::Answered };
            let report = CallReport {
                ending,
                priced,
                model,
                applied: applied.clone(),
                ..answered(tokens, "0")
            };
            let request_id = call.request_id;
            let admitted = store.store.admit(Box::new(call)).await.unwrap().unwrap();
            store.store.settle(request_id, report).await;
            assert_eq!(
                shop.record(store, request_id).await.applied,
                applied,
                "the record keeps them"
            );
            pending.insert(request_id, (*admitted, which));
        }
        let settled = shop.balances(store).await;
        assert_eq!(repriced(&store.store, &book_of(&first)).await, [], "nothing has changed yet");

        for round in 0..6 {
            let prices: Vec<_> = match round {
                5 => first.clone(),
                _ => (0..3).map(|_| dice.price()).collect(),
            };
            let book = book_of(&prices);
            let told = repriced(&store.store, &book).await;
            assert!(told.len() > 20, "{told:?}");
            let mut expected = before;
            for (request_id, (pending, which)) in &pending {
                let record = shop.record(store, *request_id).await;
                let price =
                    UnitPrices { input: prices[*which].parse().ok(), ..UnitPrices::default() };
                let base = BaseCost::of(&record.priced.usage, &price).unwrap();
                let shares = reprice(pending, &record, base).unwrap().shares;
                expected[0] = expected[0].checked_sub(shares.wallet).unwrap();
                expected[1] = expected[1].checked_sub(shares.merchant).unwrap();
            }
            assert_eq!(shop.balances(store).await, expected);
            assert_eq!(repriced(&store.store, &book).await, []);
            store.assert_audited().await;
        }
        assert_eq!(shop.balances(store).await, settled, "back at the first prices");
    });
}

#[test]
fn the_audit_misses_a_repricing_that_is_not_in_the_ledger() {
    each_store(async |store| {
        let shop = shop(store, "20").await;
        store.forward(shop.bare_call(store), 1_000_000, "1").await.unwrap();
        repriced(&store.store, &book(&[("m", "2")])).await;
        let meddle = |units: i64| {
            let sql = format!("UPDATE repricings SET merchant_delta = merchant_delta + {units}");
            store.store.write(move |conn| -> Result<(), StoreError> {
                use diesel::RunQueryDsl;
                diesel::sql_query(sql).execute(conn)?;
                Ok(())
            })
        };
        meddle(7).await.unwrap();
        let differences = store.store.audit().await.unwrap().differences;
        assert_eq!(differences.len(), 1);
        assert_eq!(differences[0].kept - differences[0].recomputed, -7);
        meddle(-7).await.unwrap();
    });
}
