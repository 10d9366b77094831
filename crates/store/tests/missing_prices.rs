//! Tests of missing prices on both databases: one event each, up to a limit.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use tollgate_domain::settlement::CallReport;
use tollgate_domain::*;
use tollgate_store::{Page, Store, events, upkeep};
use tollgate_testkit::store::{TestStore, answered, each_store};

struct UnpricedShop {
    merchant_id: MerchantId,
    key: SecretKeyId,
}

async fn shop(store: &TestStore) -> UnpricedShop {
    let new = store.merchant().await;
    UnpricedShop { merchant_id: new.merchant.merchant_id, key: store.secret_key_id(&new).await }
}

fn without_price(model: &str) -> CallReport {
    let missing = Some(MissingPrice::of_model("house", model));
    CallReport { missing, ..answered(100, "0") }
}

impl UnpricedShop {
    /// Admits and settles a call of a model that has no price.
    async fn settle(&self, on: &Store, store: &TestStore, model: &str) {
        let call = store.call(self.merchant_id, self.key);
        let request_id = call.request_id;
        on.admit(Box::new(call)).await.unwrap().unwrap();
        on.settle(request_id, without_price(model)).await;
    }

    /// The models in the events of missing prices, once for each event.
    async fn told(&self, store: &TestStore) -> Vec<String> {
        let merchant_id = self.merchant_id;
        store.store.fold().await.unwrap();
        let page = Page { after: None, limit: 1_000 };
        let all = store.store.read(move |conn| events::list(conn, merchant_id, &page)).await;
        let news = all.unwrap().into_iter().map(|event| event.payload);
        let models = news.filter_map(|news| match news {
            EventPayload::PriceMissing { provider, model, .. } => {
                assert_eq!(provider, "house");
                Some(model)
            }
            _ => None,
        });
        let mut models: Vec<_> = models.collect();
        models.sort();
        models
    }

    async fn told_in_time(&self, store: &TestStore, count: usize) -> Vec<String> {
        loop {
            let told = self.told(store).await;
            if told.len() >= count {
                return told;
            }
            tokio::task::yield_now().await;
        }
    }
}

const A_DAY: i64 = 24 * 60 * 60 * 1_000;

#[test]
fn a_missing_price_is_told_once_a_day_to_each_merchant_that_meets_it() {
    each_store(async |store| {
        let (one, other) = (shop(store).await, shop(store).await);
        for model in ["m-1", "m-2", "m-1"] {
            one.settle(&store.store, store, model).await;
        }
        other.settle(&store.store, store, "m-1").await;
        assert_eq!(one.told(store).await, ["m-1", "m-2"]);
        assert_eq!(other.told(store).await, ["m-1"]);

        store.clock.advance_millis(A_DAY);
        one.settle(&store.store, store, "m-1").await;
        one.settle(&store.store, store, "m-1").await;
        assert_eq!(one.told(store).await, ["m-1", "m-1", "m-2"]);
    });
}

/// The nodes of a database: SQLite has one.
fn nodes(store: &TestStore) -> Vec<Store> {
    let mut nodes = vec![store.store.clone()];
    if !format!("{:?}", store.url).starts_with("sqlite") {
        nodes.push(store.open_again());
    }
    nodes
}

#[test]
fn sixty_four_settlers_on_all_nodes_tell_it_once() {
    each_store(async |store| {
        let shop = shop(store).await;
        let nodes = nodes(store);
        let mut settlers = Vec::new();
        for number in 0..64 {
            let node = nodes[number % nodes.len()].clone();
            let call = store.call(shop.merchant_id, shop.key);
            let request_id = call.request_id;
            node.admit(Box::new(call)).await.unwrap().unwrap();
            settlers.push(tokio::spawn(async move {
                node.settle(request_id, without_price("m-1")).await;
            }));
        }
        for settler in settlers {
            settler.await.unwrap();
        }
        assert_eq!(shop.told(store).await, ["m-1"]);
        for node in nodes.iter().skip(1) {
            node.close().await.unwrap();
        }
    });
}

#[test]
fn whoever_makes_up_names_is_told_of_a_hundred_and_keeps_no_other_from_being_told() {
    each_store(async |store| {
        let (loud, quiet) = (shop(store).await, shop(store).await);
        let nodes = nodes(store);
        let mut settlers = Vec::new();
        for number in 0..240 {
            let node = nodes[number % nodes.len()].clone();
            let call = store.call(loud.merchant_id, loud.key);
            let request_id = call.request_id;
            node.admit(Box::new(call)).await.unwrap().unwrap();
            node.report_missing_price(
                loud.merchant_id,
                MissingPrice::of_model("house", &format!("refused-{number}")),
            );
            settlers.push(tokio::spawn(async move {
                node.settle(request_id, without_price(&format!("m-{number}"))).await;
            }));
        }
        for settler in settlers {
            settler.await.unwrap();
        }
        let told = loud.told_in_time(store, 100).await;
        assert_eq!(told.len(), 100);
        quiet.settle(&store.store, store, "m-1").await;
        assert_eq!(quiet.told(store).await, ["m-1"]);
        for node in nodes.iter().skip(1) {
            node.close().await.unwrap();
        }
        assert_eq!(loud.told(store).await.len(), 100);
    });
}

#[test]
fn a_refused_call_is_told_of_in_the_background_and_a_settled_one_not_again() {
    each_store(async |store| {
        let shop = shop(store).await;
        for _ in 0..1_000 {
            let missing = MissingPrice::of_model("house", "m-1");
            store.store.report_missing_price(shop.merchant_id, missing);
        }
        assert_eq!(shop.told_in_time(store, 1).await, ["m-1"]);
        shop.settle(&store.store, store, "m-1").await;
        let missing = MissingPrice::of_model("house", "m-2");
        store.store.report_missing_price(shop.merchant_id, missing);
        assert_eq!(shop.told_in_time(store, 2).await, ["m-1", "m-2"]);
    });
}

#[test]
fn a_model_named_with_what_no_database_takes_is_told_all_the_same() {
    each_store(async |store| {
        let shop = shop(store).await;
        shop.settle(&store.store, store, "nul\0 and a lot more ".repeat(40).as_str()).await;
        let told = shop.told(store).await;
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("nul\u{fffd} and") && told[0].len() <= 200, "{told:?}");
    });
}

#[test]
fn a_call_whose_end_nobody_knows_is_told_of_by_its_estimate() {
    each_store(async |store| {
        let shop = shop(store).await;
        let mut call = store.call(shop.merchant_id, shop.key);
        call.forwarded.input_estimate.price_source = tollgate_pricing::PriceSource::Unpriced;
        let request_id = call.request_id;
        let pending = store.store.admit(Box::new(call)).await.unwrap().unwrap();
        let unknown =
            CallReport::unknown(&pending, settlement::Ending::Unanswered, store.clock.now());
        store.store.settle(request_id, unknown).await;
        assert_eq!(shop.told(store).await, ["m"]);
    });
}

#[test]
fn upkeep_forgets_past_days_so_that_the_table_stays_small() {
    each_store(async |store| {
        let shop = shop(store).await;
        let rows = async || {
            let count = store.store.read(count_rows).await;
            count.unwrap()
        };
        shop.settle(&store.store, store, "m-1").await;
        store.store.fold().await.unwrap();
        store.clock.advance_millis(3 * A_DAY);
        store.store.renew_lease().await.unwrap();
        shop.settle(&store.store, store, "m-2").await;
        store.store.fold().await.unwrap();
        assert_eq!(rows().await, 2);
        let forgotten = async {
            while rows().await > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = upkeep::run(store.store.clone()) => {}
            () = forgotten => {}
        }
        assert_eq!(shop.told(store).await, ["m-1", "m-2"], "events stay");
    });
}

#[derive(diesel::QueryableByName)]
struct MissingPriceCount {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    count: i64,
}

fn count_rows(conn: &mut tollgate_store::Conn) -> Result<i64, tollgate_store::StoreError> {
    use diesel::RunQueryDsl;
    let rows = diesel::sql_query("SELECT count(*) AS count FROM missing_prices");
    Ok(rows.get_result::<MissingPriceCount>(conn)?.count)
}
