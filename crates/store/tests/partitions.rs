//! Tests of the monthly partitions on PostgreSQL, of the tables that only grow.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use diesel::RunQueryDsl;
use diesel::sql_types::BigInt;
use tollgate_domain::*;
use tollgate_store::requests::{ListFilter, RequestFilter};
use tollgate_store::{Conn, Page, RecordArchive, StoreError, requests};
use tollgate_testkit::store::{TestStore, each_store};

#[derive(diesel::QueryableByName)]
struct PartitionCount {
    #[diesel(sql_type = BigInt)]
    count: i64,
}

/// The number of rows of a partition; `None` if there is no such partition.
async fn rows(store: &TestStore, partition: &str) -> Option<i64> {
    let count = format!("SELECT count(*) AS count FROM {partition}");
    let counted = store.store.read(move |conn| {
        let Conn::Postgres(conn) = conn else { return Ok(None) };
        Ok::<_, StoreError>(diesel::sql_query(count).get_result::<PartitionCount>(conn).ok())
    });
    counted.await.unwrap().map(|found| found.count)
}

#[test]
fn what_only_grows_is_kept_by_month_and_a_month_without_a_partition_is_kept_too() {
    each_store(async |store| {
        if store.database.is_none() {
            return;
        }
        let new = store.merchant().await;
        let merchant_id = new.merchant.merchant_id;
        let key = store.secret_key_id(&new).await;
        let connection = store.connection(merchant_id, "100").await;
        let mut ids = Vec::new();
        for millis in [0, 400 * 24 * 60 * 60 * 1_000] {
            store.clock.advance_millis(millis);
            let mut call = store.call(merchant_id, key);
            // Generated ids grow in this process, whatever the clocks of its tests show.
            call.request_id = RequestId::least(store.clock.now());
            call.connection_id = Some(connection.connection_id);
            call.forwarded.metadata = Metadata::parse(r#"{"team": "red"}"#).unwrap();
            ids.push(store.forward(call, 10, "0.5").await.unwrap().request_id);
            store.store.fold().await.unwrap();
        }
        for (table, each) in [("requests", 1), ("request_index", 4)] {
            for partition in ["2026_11", "default"] {
                let found = rows(store, &format!("{table}_{partition}")).await;
                assert_eq!(found, Some(each), "{table}_{partition}");
            }
            for empty in ["2026_12", "2027_01"] {
                assert_eq!(rows(store, &format!("{table}_{empty}")).await, Some(0));
            }
        }
        assert_eq!(rows(store, "requests_2027_12").await, None);
        // Both are listed, newest first.
        let filter = RequestFilter {
            metadata: vec![("team".to_owned(), "red".to_owned())],
            ..RequestFilter::default()
        };
        for filter in [ListFilter::default(), filter.into()] {
            let page = Page { after: None, limit: 10 };
            let listed = store.store.read(move |conn| {
                requests::list(conn, &RecordArchive::default(), merchant_id, &filter, &page)
            });
            let listed: Vec<_> =
                listed.await.unwrap().records.into_iter().map(|record| record.request_id).collect();
            assert_eq!(listed, [ids[1], ids[0]]);
        }
        // A new process makes the partitions for which the default partition has no rows.
        let next = store.open_again();
        assert_eq!(rows(store, "requests_2027_12").await, None, "its rows are elsewhere");
        assert_eq!(rows(store, "requests_2028_01").await, Some(0));
        next.close().await.unwrap();
        store.assert_audited().await;
    });
}
