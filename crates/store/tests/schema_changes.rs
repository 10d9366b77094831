//! Tests of changes of the schema by a newer version of the program.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_types::Text;
use tollgate_domain::MerchantId;
use tollgate_store::merchants::NewMerchant;
use tollgate_store::{Conn, MigrationSteps, Options, SettleOutcome, Store, StoreError};
use tollgate_testkit::store::{TestStore, amount, answered, each_store};

/// The version of a migration that no program knows yet.
const LATER: &str = "29990101000000";

async fn run(store: &TestStore, sql: String) {
    let done = store.store.write(move |conn| {
        match conn {
            Conn::Sqlite(conn) => conn.batch_execute(&sql)?,
            Conn::Postgres(conn) => conn.batch_execute(&sql)?,
        }
        Ok::<_, StoreError>(())
    });
    done.await.unwrap();
}

async fn tables(store: &TestStore) -> Vec<String> {
    #[derive(QueryableByName)]
    struct TableName {
        #[diesel(sql_type = Text)]
        name: String,
    }
    let read = store.store.read(|conn| {
        let found: Vec<TableName> = match conn {
            Conn::Sqlite(conn) => {
                let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
                diesel::sql_query(sql).load(conn)?
            }
            Conn::Postgres(conn) => {
                let sql = "SELECT relname::text AS name FROM pg_class \
                           WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace";
                diesel::sql_query(sql).load(conn)?
            }
        };
        Ok::<_, StoreError>(found)
    });
    let names = read.await.unwrap().into_iter().map(|table| table.name);
    names.filter(|name| !name.starts_with("__diesel")).collect()
}

/// Makes a call, and settles it.
async fn call(store: &TestStore, merchant: &NewMerchant) {
    let merchant_id: MerchantId = merchant.merchant.merchant_id;
    let connection = store.connection(merchant_id, "10").await;
    let mut call = store.call(merchant_id, store.secret_key_id(merchant).await);
    call.connection_id = Some(connection.connection_id);
    let admitted = store.store.admit(Box::new(call)).await.unwrap().unwrap();
    let settled = store.store.settle(admitted.request_id, answered(100, "1")).await;
    assert!(matches!(settled, SettleOutcome::Settled(_)), "{settled:?}");
    let wallet = store.wallet(merchant_id, connection.wallet_id).await;
    assert_eq!(wallet.balance, amount("9"));
}

/// Opens the database as a command does.
fn open(store: &TestStore, accept_newer: bool) -> Result<Store, String> {
    let options = Options { migrate: false, accept_newer, ..Options::default() };
    Store::open(&store.url, &options).map_err(|why| why.to_string())
}

#[test]
fn a_program_works_with_what_a_newer_one_has_added() {
    each_store(async |store| {
        let merchant = store.merchant().await;
        call(store, &merchant).await;

        // A newer program adds a column to each table, a table, and an index.
        let mut sql: Vec<String> = tables(store)
            .await
            .iter()
            .map(|table| format!("ALTER TABLE {table} ADD COLUMN later BIGINT"))
            .collect();
        assert!(sql.len() > 30, "{sql:?}");
        sql.push("CREATE TABLE later_things (number BIGINT NOT NULL PRIMARY KEY)".to_owned());
        sql.push("CREATE INDEX requests_later ON requests (later)".to_owned());
        let note = "INSERT INTO __diesel_schema_migrations (version) VALUES";
        sql.push(format!("{note} ('{LATER}')"));
        run(store, sql.join(";")).await;

        // This one goes on, and starts again beside it.
        call(store, &merchant).await;
        store.store.fold().await.unwrap();
        store.assert_audited().await;
        assert_eq!(open(store, false).map(drop), Ok(()));
        assert_eq!(Store::migrate(&store.url, MigrationSteps::Contract).ok(), Some(0));

        // After a breaking migration, only the audit opens the database.
        run(store, format!("INSERT INTO breaking_migrations (version) VALUES ('{LATER}')")).await;
        let refused = open(store, false).map(drop).unwrap_err();
        assert!(refused.contains(LATER) && refused.contains("does not know"), "{refused}");
        assert_eq!(open(store, true).unwrap().audit().await.unwrap().differences, []);
        let migrated = Store::migrate(&store.url, MigrationSteps::Expand);
        assert!(migrated.is_err());
    });
}
