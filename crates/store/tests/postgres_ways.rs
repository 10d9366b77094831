//! The ways to PostgreSQL: encrypted as `sslmode` demands, through a pooler, and silent.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use diesel::prelude::*;
use diesel::sql_types::{Bool, Text};
use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tollgate_store::{Conn, DatabaseUrl, MigrationSteps, OpenError, Options, Store, StoreError};
use tollgate_testkit::postgres::{
    self, FaultProxy, PgBouncer, PoolMode, StatementFault, TcpProxy, TestServer,
};

/// An authority for certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for a name or an address, and its key.
    fn certificate(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

#[derive(QueryableByName)]
struct Encrypted {
    #[diesel(sql_type = Bool)]
    ssl: bool,
}

/// Opens a store, and returns whether its connections are encrypted.
fn open(url: &str) -> Result<bool, String> {
    let url: DatabaseUrl = url.parse().map_err(|cause| format!("{cause}"))?;
    let store = Store::open(&url, &Options::default());
    let store = store.map_err(|cause: OpenError| cause.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let read = runtime.block_on(store.read(|conn| {
        let Conn::Postgres(conn) = conn else { unreachable!("it is PostgreSQL") };
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok::<_, StoreError>(diesel::sql_query(sql).get_result::<Encrypted>(conn)?.ssl)
    }));
    runtime.block_on(store.close()).unwrap();
    Ok(read.unwrap())
}

/// An address of this machine that no other test uses.
fn own_address(number: u8) -> Ipv4Addr {
    let [high, low] = u16::try_from(std::process::id() % 60_000).unwrap().to_be_bytes();
    Ipv4Addr::new(127, 100_u8.saturating_add(number), high, low.clamp(1, 254))
}

/// Writes a file and returns its path.
fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_connection_is_encrypted_as_its_url_demands() {
    let Some((server, database)) = postgres::server() else { return };
    let (known, stranger) = (Authority::new("Known"), Authority::new("Stranger"));
    let folder = tempfile::tempdir().unwrap();
    let roots = file(folder.path(), "known.pem", &known.pem);
    let strange_roots = file(folder.path(), "stranger.pem", &stranger.pem);
    let listen = |address: Ipv4Addr, name: &str, clients: Option<&str>| {
        let (certificate, key) = known.certificate(name);
        TestServer::listen_with_tls(&server, address, (&certificate, &key), clients);
        format!("postgres://postgres@{address}:5432/{}", database_name(database.url()))
    };

    let address = own_address(0);
    let url = listen(address, &address.to_string(), None);
    let with = |parameters: &str| open(&format!("{url}?{parameters}"));
    for parameters in [
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        format!("sslmode=require&sslrootcert={roots}"),
        format!("sslmode=verify-ca&sslrootcert={roots}"),
        format!("sslmode=verify-full&sslrootcert={roots}"),
    ] {
        assert_eq!(with(&parameters), Ok(true), "{parameters}");
    }
    database.execute("CREATE ROLE scram LOGIN SUPERUSER PASSWORD 'p@:/?x'");
    database.execute("CREATE ROLE plain LOGIN SUPERUSER");
    let as_user = |user: &str| open(&format!("{}?sslmode=require", url.replace("postgres@", user)));
    assert_eq!(as_user("scram:p%40%3A%2F%3Fx@"), Ok(true));
    let refused = as_user("scram:canary@").unwrap_err();
    assert!(refused.contains("password") && !refused.contains("canary"), "{refused}");
    // What is preferred and refused is not needed.
    let plain = url.replace("postgres@", "plain@");
    assert_eq!(open(&format!("{plain}?sslmode=prefer")), Ok(false));
    assert!(as_user("plain@").unwrap_err().contains("pg_hba.conf"));
    // The server takes only encrypted connections.
    let refused = with("sslmode=disable").unwrap_err();
    assert!(refused.contains("pg_hba.conf"), "{refused}");
    for mode in ["require", "verify-ca", "verify-full"] {
        let refused = with(&format!("sslmode={mode}&sslrootcert={strange_roots}")).unwrap_err();
        assert!(refused.contains("UnknownIssuer"), "{mode}: {refused}");
    }
    let refused = with("sslmode=verify-full&sslrootcert=system").unwrap_err();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    let refused = with("sslmode=verify-ca&sslrootcert=/no/such/file").unwrap_err();
    assert!(refused.contains("/no/such/file"), "{refused}");

    // The first server of several is not there.
    let nobody = own_address(1);
    let both = url.replace(&address.to_string(), &format!("{nobody}:1,{address}"));
    assert_eq!(open(&format!("{both}?sslmode=require")), Ok(true));

    // Another host's certificate.
    let url = listen(address, "db.test", None);
    let with = |mode: &str| open(&format!("{url}?sslmode={mode}&sslrootcert={roots}"));
    assert_eq!(with("verify-ca"), Ok(true));
    let refused = with("verify-full").unwrap_err();
    assert!(refused.contains("not valid for name"), "{refused}");

    // A client needs a certificate.
    let url = listen(address, &address.to_string(), Some(&stranger.pem));
    let refused = open(&format!("{url}?sslmode=require")).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
    let (certificate, key) = stranger.certificate("tollgate");
    let (certificate, key) =
        (file(folder.path(), "c.pem", &certificate), file(folder.path(), "c.key", &key));
    let own = format!("sslcert={certificate}&sslkey={key}");
    assert_eq!(open(&format!("{url}?sslmode=require&{own}")), Ok(true));
}

fn database_name(url: &str) -> String {
    url.trim_start_matches("postgres:///").split('?').next().unwrap().to_owned()
}

#[test]
fn a_server_without_tls_is_used_only_where_it_may_be() {
    let Some(database) = postgres::database() else { return };
    let proxy = TcpProxy::to(&database);
    let with = |mode: &str| open(&format!("{}?sslmode={mode}", proxy.url()));
    assert_eq!(with("prefer"), Ok(false));
    assert_eq!(with("disable"), Ok(false));
    let refused = with("require").unwrap_err();
    assert!(refused.contains("does not support TLS"), "{refused}");
    let nobody = format!("postgres://postgres@{}:1/tollgate?sslmode=require", own_address(2));
    let refused = open(&nobody).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn a_pooler_that_exchanges_sessions_is_refused_at_the_start() {
    let Some(database) = postgres::database() else { return };
    let url: DatabaseUrl = database.url().parse().unwrap();
    Store::migrate(&url, MigrationSteps::Expand).unwrap();
    for (mode, settings) in [
        (PoolMode::Transaction, ""),
        (PoolMode::Transaction, "server_round_robin = 1"),
        (PoolMode::Transaction, "default_pool_size = 1"),
        (PoolMode::Session, ""),
    ] {
        let Some(pooler) = PgBouncer::start(&database, mode, settings) else { return };
        let url: DatabaseUrl = pooler.url().parse().unwrap();
        let options = Options { serve: true, ..Options::default() };
        let opened = Store::open(&url, &options);
        match mode {
            PoolMode::Transaction => {
                assert!(matches!(opened, Err(OpenError::Pooler)), "{mode:?}, {settings}");
                // As commands do.
                let opened = Store::open(&url, &Options::default());
                assert!(matches!(opened, Err(OpenError::Pooler)), "{mode:?}, {settings}");
                assert!(matches!(
                    Store::migrate(&url, MigrationSteps::Expand),
                    Err(OpenError::Pooler)
                ));
            }
            PoolMode::Session => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(opened.unwrap().close()).unwrap();
                assert_eq!(open(&pooler.url()), Ok(false));
            }
        }
    }
}

#[derive(QueryableByName)]
struct Setting {
    #[diesel(sql_type = Text)]
    value: String,
}

fn synchronous_commit(conn: &mut Conn) -> Result<String, StoreError> {
    let Conn::Postgres(conn) = conn else { unreachable!("it is PostgreSQL") };
    let sql = "SELECT current_setting('synchronous_commit') AS value";
    Ok(diesel::sql_query(sql).get_result::<Setting>(conn)?.value)
}

#[test]
fn commits_are_durable_whatever_the_setting_of_the_database() {
    let Some(database) = postgres::database() else { return };
    database.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off',
            current_database()); END $$",
    );
    let url: DatabaseUrl = database.url().parse().unwrap();
    Store::migrate(&url, MigrationSteps::Expand).unwrap();
    let store = Store::open(&url, &Options { serve: true, ..Options::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert_eq!(store.write(synchronous_commit).await.unwrap(), "on");
        assert_eq!(store.write_outside_calls(synchronous_commit).await.unwrap(), "on");
        store.close().await.unwrap();
    });
}

/// The longest wait for an answer in these tests.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

fn open_impatient(url: &str) -> Store {
    let options = Options { timeout: ANSWERS_WITHIN, ..Options::default() };
    Store::open(&url.parse().unwrap(), &options).unwrap()
}

async fn sleeps(store: &Store, time: Duration) -> Result<(), StoreError> {
    let seconds = time.as_secs_f64();
    store
        .write(move |conn| {
            let Conn::Postgres(conn) = conn else { unreachable!("it is PostgreSQL") };
            diesel::sql_query(format!("SELECT pg_sleep({seconds})")).execute(conn)?;
            Ok(())
        })
        .await
}

/// Uses all connections for writing, and some for reading.
async fn uses_connections(store: &Store) -> Vec<Result<(), StoreError>> {
    // The second writer takes a group when the first has worked on one for a while.
    let slow = sleeps(store, Duration::from_millis(100));
    let writes = async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        join_all((0..8).map(|_| sleeps(store, Duration::from_millis(20)))).await
    };
    let reads = (0..4).map(|_| store.read(Conn::ping));
    let (slow, mut ended, reads) = tokio::join!(slow, writes, join_all(reads));
    ended.extend(reads);
    ended.push(slow);
    ended
}

/// Fails unless reads and writes end in time, and soon work again.
async fn is_not_held_by_silence(store: &Store) {
    let began = Instant::now();
    let ended = uses_connections(store).await;
    let took = began.elapsed();
    assert!(took > ANSWERS_WITHIN / 2, "nothing was silent: {ended:?} after {took:?}");
    assert!(took < 3 * ANSWERS_WITHIN, "{took:?}");
    while sleeps(store, Duration::ZERO).await.is_err() || store.read(Conn::ping).await.is_err() {
        assert!(began.elapsed() < 10 * ANSWERS_WITHIN);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_go_silent_are_closed_and_opened_again() {
    let Some(database) = postgres::database() else { return };
    // From another machine.
    let proxy = TcpProxy::to(&database);
    let store = open_impatient(proxy.url());
    uses_connections(&store).await.into_iter().for_each(Result::unwrap);
    proxy.silence();
    is_not_held_by_silence(&store).await;
    store.close().await.unwrap();

    // By a Unix socket.
    let proxy = FaultProxy::to(&database);
    let store = open_impatient(proxy.url());
    uses_connections(&store).await.into_iter().for_each(Result::unwrap);
    proxy.set_plan(|number| (number <= 2).then_some(StatementFault::Silent));
    is_not_held_by_silence(&store).await;
    store.close().await.unwrap();
}

/// The server takes the handshake of a new connection, and does not answer its first statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_silent_while_it_is_opened_holds_no_thread() {
    let Some(database) = postgres::database() else { return };
    let proxy = FaultProxy::to(&database);
    let store = open_impatient(proxy.url());
    proxy.set_plan(|_| Some(StatementFault::Silent));
    let began = Instant::now();
    while began.elapsed() < 6 * ANSWERS_WITHIN {
        let asked = Instant::now();
        let ended = uses_connections(&store).await;
        assert!(ended.iter().all(Result::is_err), "{ended:?}");
        let took = asked.elapsed();
        assert!(took < 8 * ANSWERS_WITHIN, "{took:?}");
    }
    proxy.end_faults();
    let began = Instant::now();
    while sleeps(&store, Duration::ZERO).await.is_err() || store.read(Conn::ping).await.is_err() {
        assert!(began.elapsed() < 10 * ANSWERS_WITHIN);
    }
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_works_is_not_silent() {
    let Some(database) = postgres::database() else { return };
    let proxy = TcpProxy::to(&database);
    let store = open_impatient(proxy.url());
    sleeps(&store, 3 * ANSWERS_WITHIN).await.unwrap();
    sleeps(&store, 2 * ANSWERS_WITHIN).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_suspended_holds_no_thread() {
    let Some((server, database)) = postgres::server() else { return };
    let authority = Authority::new("Known");
    let address = own_address(3);
    let (certificate, key) = authority.certificate(&address.to_string());
    server.listen_with_tls(address, (&certificate, &key), None);
    let encrypted = format!(
        "postgres://postgres@{address}:5432/{}?sslmode=require",
        database_name(database.url())
    );
    for url in [database.url(), &encrypted] {
        let store = open_impatient(url);
        uses_connections(&store).await.into_iter().for_each(Result::unwrap);
        let suspended = server.suspend();
        let began = Instant::now();
        let ended = uses_connections(&store).await;
        assert!(ended.iter().all(Result::is_err), "{ended:?}");
        let took = began.elapsed();
        assert!(took < 8 * ANSWERS_WITHIN, "{took:?}");
        drop(suspended);
        while sleeps(&store, Duration::ZERO).await.is_err() {
            assert!(began.elapsed() < 10 * ANSWERS_WITHIN);
        }
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_for_the_values_of_a_statement_where_citus_is_present() {
    #[derive(QueryableByName)]
    struct PlanMode {
        #[diesel(sql_type = diesel::sql_types::Text)]
        plan_cache_mode: String,
    }
    let Some(database) = postgres::database() else { return };
    let url: DatabaseUrl = database.url().parse().unwrap();
    for (install, expected) in [
        ("SELECT 1", "force_generic_plan"),
        (
            "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion) \
             VALUES (99999, 'citus', 10, 11, false, '13.0')",
            "auto",
        ),
    ] {
        database.execute(install);
        let store = Store::open(&url, &Options::default()).unwrap();
        let mode = store.write(|conn| {
            let Conn::Postgres(conn) = conn else { unreachable!("it is PostgreSQL") };
            let mode: PlanMode = diesel::sql_query("SHOW plan_cache_mode").get_result(conn)?;
            Ok::<_, StoreError>(mode.plan_cache_mode)
        });
        assert_eq!(mode.await.unwrap(), expected);
        store.close().await.unwrap();
    }
}
