//! Fresh stores on both databases, and helpers to fill them.

use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tollgate_domain::admission::{Call, CallKey, CostBound};
use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::budgets::BudgetFault;
use tollgate_store::connections::ConnectionUpdate;
use tollgate_store::merchants::NewMerchant;
use tollgate_store::spend_keys::SpendKeyUpdate;
use tollgate_store::wallets::{MovementOutcome, WalletMovement};
use tollgate_store::{
    ArchiveOptions, DatabaseUrl, MigrationSteps, Options, Store, StoreError, budgets, connections,
    merchants, meters, spend_keys, wallets,
};

use crate::postgres::{self, TestDatabase, TestServer};

/// A store of one test.
pub struct TestStore {
    /// The store, opened to serve.
    pub store: Store,
    /// The manual clock of the store.
    pub clock: Clock,
    /// The URL of its database.
    pub url: DatabaseUrl,
    /// Its database, if that is PostgreSQL.
    pub database: Option<TestDatabase>,
    folder: tempfile::TempDir,
}

/// The time at which the clock of a test begins: 2026-11-21T00:00:00Z.
pub const START: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

/// The time limit of a test on one database, enough for a slow machine and many seeds. A test that waits
/// for ever then fails by its name.
const TEST_TIMEOUT: Duration = Duration::from_secs(1_200);

/// Runs `test` on a fresh store of each database: SQLite, then PostgreSQL. Both end audited.
pub fn each_store(test: impl AsyncFn(&TestStore)) {
    for database in databases() {
        let store = TestStore::open(database);
        store.run(Box::pin(test(&store)));
    }
}

/// Runs `test` on a fresh store of a PostgreSQL server of its own. It ends audited.
pub fn on_own_server(test: impl AsyncFn(&TestStore, &TestServer)) {
    let Some((server, database)) = postgres::server() else { return };
    migrate(&database.url().parse().unwrap());
    let store = TestStore::open(Some(database));
    store.run(Box::pin(test(&store, &server)));
}

/// SQLite, and a fresh database of PostgreSQL if that is installed.
fn databases() -> impl Iterator<Item = Option<TestDatabase>> {
    let postgres = postgres::migrated_database(|url| migrate(&url.parse().unwrap()));
    [None].into_iter().chain(postgres.map(Some))
}

/// Waits for a test.
pub fn block_on(test: impl Future<Output = ()>) {
    wait_for(Box::pin(test));
}

/// All tests have one type here. Else the runtime is compiled for each of them.
type AnyTest<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

fn wait_for(test: AnyTest<'_>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

impl TestStore {
    fn open(database: Option<TestDatabase>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.db");
        let url = match &database {
            None => {
                fs::write(&file, &*MIGRATED).unwrap();
                DatabaseUrl::Sqlite(file)
            }
            Some(database) => database.url().parse().unwrap(),
        };
        println!("on {url:?}");
        let clock = Clock::manual(START);
        let store = open(&url, &clock, folder.path());
        Self { store, clock, url, database, folder }
    }

    fn run(&self, test: AnyTest<'_>) {
        block_on(async {
            self.store.renew_lease().await.unwrap();
            let in_time = tokio::time::timeout(TEST_TIMEOUT, test).await;
            in_time.expect("the test ends in time");
            self.assert_audited().await;
            self.store.close().await.unwrap();
        });
    }
}

/// A SQLite file with the schema, made once.
static MIGRATED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("migrated.db");
    migrate(&DatabaseUrl::Sqlite(file.clone()));
    fs::read(file).unwrap()
});

fn migrate(url: &DatabaseUrl) {
    Store::migrate(url, MigrationSteps::Expand).unwrap();
}

fn journal(folder: &Path) -> PathBuf {
    folder.join("journal")
}

fn open(url: &DatabaseUrl, clock: &Clock, folder: &Path) -> Store {
    let journal = Some(journal(folder));
    let archive = format!("file://{}", folder.join("archive").display());
    let options = Options {
        serve: true,
        clock: clock.clone(),
        journal,
        archive: Some(ArchiveOptions { url: archive, endpoint: None }),
        ..Options::default()
    };
    Store::open(url, &options).unwrap()
}

/// The amount in `text`.
pub fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

impl TestStore {
    /// Opens the same database again, as another process would. SQLite allows one at a time.
    pub fn open_again(&self) -> Store {
        self.open_by(&self.url)
    }

    /// As [`Self::open_again`], by another URL of the database.
    pub fn open_by(&self, url: &DatabaseUrl) -> Store {
        self.open_in(url, self.folder.path())
    }

    /// Opens another database by the clock of this one. Its journal and its archive are in `folder`.
    pub fn open_in(&self, url: &DatabaseUrl, folder: &Path) -> Store {
        open(url, &self.clock, folder)
    }

    /// The folder of the archive.
    pub fn archive(&self) -> PathBuf {
        self.folder.path().join("archive")
    }

    /// The directory of the journal, where settlements wait while the database is unavailable.
    pub fn journal(&self) -> PathBuf {
        journal(self.folder.path())
    }

    /// Advances the clock by a minute in which only `alive` renews its lease.
    pub async fn expire_other_leases(&self, alive: &Store) {
        for _ in 0..10 {
            self.clock.advance_millis(6_000);
            alive.renew_lease().await.unwrap();
        }
    }

    /// A new merchant.
    pub async fn merchant(&self) -> NewMerchant {
        let now = self.clock.now();
        self.store.write(move |conn| merchants::create(conn, "Acme", now)).await.unwrap()
    }

    /// The id of a merchant's only secret key.
    pub async fn secret_key_id(&self, merchant: &NewMerchant) -> SecretKeyId {
        let hash = merchant.key.hash();
        let key =
            self.store.read(move |conn| merchants::find_secret_key(conn, &hash)).await.unwrap();
        key.unwrap().secret_key_id
    }

    /// A new customer with `balance` on its wallet.
    pub async fn connection(&self, merchant_id: MerchantId, balance: &str) -> Connection {
        let now = self.clock.now();
        let new = NewConnection::default();
        let made = self.store.write(move |conn| connections::create(conn, merchant_id, &new, now));
        let connection = made.await.unwrap().unwrap().connection;
        if amount(balance).is_positive() {
            self.credit(merchant_id, connection.wallet_id, balance).await;
        }
        connection
    }

    /// A new spend key with these rules, on this wallet or the merchant's own.
    pub async fn spend_key(
        &self,
        merchant_id: MerchantId,
        wallet_id: Option<WalletId>,
        rules: SpendRules,
    ) -> (SpendKey, Key) {
        let now = self.clock.now();
        let new = NewSpendKey {
            name: "Key".to_owned(),
            wallet_id,
            meter_id: None,
            budget_id: None,
            rules,
        };
        let made = self.store.write(move |conn| spend_keys::create(conn, merchant_id, &new, now));
        made.await.unwrap().unwrap()
    }

    /// A new budget.
    pub async fn budget(
        &self,
        merchant_id: MerchantId,
        parent_id: Option<BudgetId>,
        rules: BudgetRules,
    ) -> Budget {
        let now = self.clock.now();
        let budget = Budget {
            budget_id: BudgetId::generate(now),
            merchant_id,
            parent_id,
            name: "Team".to_owned(),
            rules,
            metadata: Metadata::default(),
            counters: SpendCounters::default(),
            created_at: now,
        };
        self.save_budget(&budget, true).await.unwrap();
        budget
    }

    /// Makes or changes a budget.
    ///
    /// # Errors
    /// As [`budgets::save`].
    pub async fn save_budget(&self, budget: &Budget, is_new: bool) -> Result<(), BudgetFault> {
        let budget = budget.clone();
        self.store.write(move |conn| budgets::save(conn, &budget, is_new)).await.unwrap()
    }

    /// Lets the calls of a spend key count against another budget, or none.
    pub async fn move_key(&self, key: &SpendKey, budget_id: Option<BudgetId>) {
        let (merchant_id, id, now) = (key.merchant_id, key.spend_key_id, self.clock.now());
        let changes = SpendKeyChanges { budget_id: Some(budget_id), ..SpendKeyChanges::default() };
        let change = move |conn: &mut _| spend_keys::update(conn, merchant_id, id, changes, now);
        let changed = self.store.write(change).await.unwrap();
        assert!(matches!(changed, SpendKeyUpdate::SpendKey(_)), "{changed:?}");
    }

    /// Lets the calls of a customer count against another budget, or none.
    pub async fn move_customer(&self, customer: &Connection, budget_id: Option<BudgetId>) {
        let (merchant_id, id, now) =
            (customer.merchant_id, customer.connection_id, self.clock.now());
        let changes =
            ConnectionChanges { budget_id: Some(budget_id), ..ConnectionChanges::default() };
        let change = move |conn: &mut _| connections::update(conn, merchant_id, id, &changes, now);
        let changed = self.store.write(change).await.unwrap();
        assert!(matches!(changed, ConnectionUpdate::Connection(_)), "{changed:?}");
    }

    /// The current state of the spend key.
    pub async fn reload_spend_key(&self, key: &SpendKey) -> SpendKey {
        let (merchant_id, id) = (key.merchant_id, key.spend_key_id);
        let found = self.store.read(move |conn| spend_keys::find(conn, merchant_id, id)).await;
        found.unwrap().unwrap()
    }

    /// Credits money to a wallet.
    pub async fn credit(&self, merchant_id: MerchantId, wallet_id: WalletId, sum: &str) {
        let now = self.clock.now();
        let movement = WalletMovement {
            kind: TransactionKind::Credit,
            amount: amount(sum),
            description: None,
        };
        let booked = self
            .store
            .write(move |conn| wallets::book(conn, merchant_id, wallet_id, &movement, now));
        assert!(matches!(booked.await.unwrap(), MovementOutcome::Booked(_)));
    }

    /// A new meter of fixed rates: pairs of start and USD per million tokens.
    pub async fn meter(&self, merchant_id: MerchantId, tiers: &[(u64, &str)]) -> MerchantMeter {
        let tiers = tiers.iter().map(|&(start, rate)| Tier { start, rate: rate.parse().unwrap() });
        let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers.collect()).unwrap();
        let model = FeeModel::from(meter);
        let new = NewMeter {
            name: "Plan".to_owned(),
            slug: None,
            tier_period: TierPeriod::Lifetime,
            model,
        };
        let now = self.clock.now();
        let made = self.store.write(move |conn| meters::create(conn, merchant_id, &new, now));
        made.await.unwrap().unwrap()
    }

    /// The current state of the wallet.
    pub async fn wallet(&self, merchant_id: MerchantId, wallet_id: WalletId) -> Wallet {
        let found = self.store.read(move |conn| wallets::find(conn, merchant_id, wallet_id)).await;
        found.unwrap().unwrap()
    }

    /// Fails unless balances, counters and holds agree with the ledger.
    pub async fn assert_audited(&self) {
        let audit = self.store.audit().await.unwrap();
        assert_eq!(audit.differences, []);
    }

    /// A call with a bound of a million input tokens, which cost 2 USD at the provider.
    pub fn call(&self, merchant_id: MerchantId, secret_key_id: SecretKeyId) -> Call {
        a_call(merchant_id, CallKey::Secret(secret_key_id), self.clock.now())
    }

    /// As [`Self::call`], with a spend key.
    pub fn call_with(&self, spend_key: &SpendKey, key: &Key) -> Call {
        let no_secret_key = SecretKeyId::generate(self.clock.now());
        Call {
            key: CallKey::Spend(spend_key.spend_key_id, key.hash()),
            ..self.call(spend_key.merchant_id, no_secret_key)
        }
    }

    /// Admits a call and settles it with `tokens` input tokens and a base cost of `base`.
    pub async fn forward(
        &self,
        call: Call,
        tokens: u64,
        base: &str,
    ) -> Result<RequestRecord, StoreError> {
        let request_id = call.request_id;
        self.store.admit(Box::new(call)).await?.unwrap();
        match self.store.settle(request_id, answered(tokens, base)).await {
            tollgate_store::SettleOutcome::Settled(settled) => {
                Ok(Arc::unwrap_or_clone(settled.record))
            }
            other => panic!("not settled: {other:?}"),
        }
    }
}

/// A bound of a million input tokens at 2 USD per million.
pub fn million_tokens() -> CostBound {
    CostBound {
        input_tokens: 1_000_000,
        answers: 1,
        prices: Some(UnitPrices { input: Some(2.into()), ..UnitPrices::default() }),
        ..CostBound::default()
    }
}

/// A call at `at` with a bound of a million input tokens, which cost 2 USD at the provider.
pub fn a_call(merchant_id: MerchantId, key: CallKey, at: Timestamp) -> Call {
    Call {
        request_id: RequestId::generate(at),
        merchant_id,
        key,
        connection_id: None,
        meter_slug: None,
        disable_billing: false,
        forwarded: ForwardedRequest {
            provider: "house".to_owned(),
            endpoint: "POST http://127.0.0.1/v1/chat/completions".to_owned(),
            metered: true,
            provider_key_type: ProviderKeyType::Managed,
            model: Some("m".to_owned()),
            metadata: Metadata::default(),
            socket_id: None,
            input_estimate: PricedUsage {
                usage_source: UsageSource::Estimated,
                ..priced(100, "0.25")
            },
        },
        shape: Some(RequestFormat::ShapeA),
        names_other_models: false,
        run: None,
        bound: million_tokens(),
        report: None,
        ahead: false,
        created_at: at,
    }
}

/// A reported usage of input tokens with a base cost of `base`.
pub fn priced(tokens: u64, base: &str) -> PricedUsage {
    PricedUsage {
        usage: Usage::tokens(tokens, 0),
        usage_source: UsageSource::Reported,
        base: BaseCost { input: amount(base), output: Amount::ZERO },
        price_source: PriceSource::Catalog,
    }
}

/// The report of a call that the provider answered.
pub fn answered(tokens: u64, base: &str) -> CallReport {
    CallReport {
        ending: Ending::Answered,
        provider_status: Some(200),
        model: Some("m-2026".to_owned()),
        response_id: Some("resp_1".to_owned()),
        priced: priced(tokens, base),
        applied: Vec::new(),
        missing: None,
        timestamp: START,
        suspicious: false,
        extended: false,
        job: None,
        lines: Vec::new(),
        objects: Vec::new(),
        details: CallDetails::default(),
    }
}
