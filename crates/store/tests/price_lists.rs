//! Tests of the price lists in the database.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use tollgate_store::price_lists;
use tollgate_testkit::store::{START, TestStore, each_store};

async fn add(store: &TestStore, before: Option<i64>) -> Option<i64> {
    let add = move |conn: &mut _| {
        let list = format!("list after {before:?}");
        price_lists::add(conn, before, "2026-11-27", "file", &list, START)
    };
    store.store.write(add).await.unwrap()
}

#[test]
fn the_last_list_applies_and_old_ones_are_deleted() {
    each_store(async |store| {
        let mut last = None;
        for _ in 0..103 {
            last = add(store, last).await;
        }
        assert_eq!(last, Some(103));
        assert_eq!(add(store, Some(102)).await, None);
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
