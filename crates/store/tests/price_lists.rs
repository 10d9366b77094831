//! Tests of the price lists in the database.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use tollgate_store::{DatabaseUrl, Store, price_lists};
use tollgate_testkit::store::{START, each_store};

async fn add(store: &Store, before: Option<i64>) -> Option<i64> {
    let add = move |conn: &mut _| {
        let list = format!("list after {before:?}");
        price_lists::add(conn, before, "2026-11-27", "file", &list, START)
    };
    store.write(add).await.unwrap()
}

#[test]
fn of_lists_that_are_added_at_once_one_is_the_next() {
    each_store(async |store| {
        let others = match store.url {
            DatabaseUrl::Postgres(_) => (0..3).map(|_| store.open_again()).collect(),
            _ => Vec::new(),
        };
        let mut last = None;
        for number in 1..=50 {
            let nodes = others.iter().chain([&store.store]);
            let adds = nodes.flat_map(|node| [add(node, last), add(node, last)]);
            let added = futures_util::future::join_all(adds).await;
            let added: Vec<_> = added.into_iter().flatten().collect();
            assert_eq!(added, [number]);
            last = Some(number);
        }
        for node in others {
            node.close().await.unwrap();
        }
    });
}

#[test]
fn the_last_list_applies_and_old_ones_are_deleted() {
    each_store(async |store| {
        let mut last = None;
        for _ in 0..103 {
            last = add(&store.store, last).await;
        }
        assert_eq!(last, Some(103));
        assert_eq!(add(&store.store, Some(102)).await, None);
        let latest = store.store.read(|conn| price_lists::latest(conn, None)).await.unwrap();
        assert_eq!(latest.unwrap().list, "list after Some(102)");
        let known = store.store.read(|conn| price_lists::latest(conn, Some(103))).await;
        assert_eq!(known.unwrap(), None);
        let count = |conn: &mut tollgate_store::Conn| {
            use diesel::prelude::*;
            let count = diesel::dsl::sql::<diesel::sql_types::BigInt>("count(*) FROM price_lists");
            Ok::<i64, tollgate_store::StoreError>(diesel::select(count).get_result(conn)?)
        };
        assert_eq!(store.store.read(count).await.unwrap(), 100);
    });
}
