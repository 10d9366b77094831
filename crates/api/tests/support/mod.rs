//! The whole service in process, on each database, with a scripted provider.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test harness fails by panicking"
)]
#![expect(unreachable_pub, reason = "it is all of one program")]

pub mod browser;
pub mod document;
pub mod sockets;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::web;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use document::assert_documented;
use serde_json::{Value, json};
use tollgate_api::{App, BoundServer, InterfaceShape, Settings, WebhookDispatcher};
use tollgate_domain::{Clock, Connection, MerchantMeter};
use tollgate_gateway::InFlightCalls;
use tollgate_pricing::{Catalog, ModelPattern, PriceBook, PriceRow, TierPrices, UnitPrices};
use tollgate_provider::{ProviderSettings, ProviderTable, WebhookUrlPolicy};
use tollgate_store::merchants::NewMerchant;
use tollgate_testkit::{
    ScriptedProvider, TestRequest, TestResponse, TestStore, broken_tls_url, each_store,
};

/// A service with a merchant, a connection with 10 USD, and a meter of 10 USD per million tokens.
pub struct Gateway<'a> {
    pub store: &'a TestStore,
    pub address: SocketAddr,
    pub provider: ScriptedProvider,
    pub merchant: NewMerchant,
    pub connection: Connection,
    pub meter: MerchantMeter,
    pub app: web::Data<App>,
    /// The calls in flight.
    pub calls: InFlightCalls,
    /// Whether answers must conform to the OpenAPI document.
    is_documented: bool,
    /// A chat URL of a configured provider that does not listen.
    pub nobody: String,
    /// A chat URL of a provider that should speak TLS and does not.
    pub untrusted: String,
}

/// A spend key of a test.
pub struct TestSpendKey {
    pub key: String,
    /// The path of the resource, below `/v1`.
    pub path: String,
    /// The answer to its creation.
    pub made: Value,
}

/// The secret by which events of the providers of tests are signed.
pub const PROVIDER_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub const OPERATOR_TOKEN: &str = "operator-token-of-tests";

/// Settings with short waits.
pub fn settings() -> Settings {
    let mut settings =
        Settings { operator_token: Some(OPERATOR_TOKEN.to_owned()), ..Settings::default() };
    settings.calls.timeouts.first_byte = Duration::from_secs(20);
    settings.calls.timeouts.idle = Duration::from_secs(20);
    settings
}

/// Runs `test` on a service of each database.
pub fn each_gateway(test: impl AsyncFn(&Gateway<'_>)) {
    each_gateway_with(settings(), test);
}

/// As [`each_gateway`], with these settings.
pub fn each_gateway_with(settings: Settings, test: impl AsyncFn(&Gateway<'_>)) {
    each_store(async |store| {
        run(store, settings.clone(), Clock::system(), PriceSet::OfTests, &test).await;
    });
}

/// As [`each_gateway`], with the built-in providers at the scripted one (each below a path of its name),
/// their keys, and their real prices.
pub fn each_gateway_at_real_prices(test: impl AsyncFn(&Gateway<'_>)) {
    each_gateway_at_real_prices_under(settings(), test);
}

/// As [`each_gateway_at_real_prices`], with these settings.
pub fn each_gateway_at_real_prices_under(settings: Settings, test: impl AsyncFn(&Gateway<'_>)) {
    each_store(async |store| {
        run(store, settings.clone(), Clock::system(), PriceSet::Embedded, &test).await;
    });
}

/// As [`each_gateway`], with the clock of the store, which moves only when the test moves it.
pub fn each_gateway_by_the_stores_clock(test: impl AsyncFn(&Gateway<'_>)) {
    each_gateway_by_the_stores_clock_under(settings(), test);
}

/// As [`each_gateway_by_the_stores_clock`], with these settings.
pub fn each_gateway_by_the_stores_clock_under(
    settings: Settings,
    test: impl AsyncFn(&Gateway<'_>),
) {
    each_store(async |store| {
        let clock = store.clock.clone();
        run(store, settings.clone(), clock, PriceSet::OfTests, &test).await;
    });
}

/// As [`each_gateway_by_the_stores_clock`], with a dispatcher and any receivers; rate limits are off.
pub fn each_gateway_with_webhooks(test: impl AsyncFn(&Gateway<'_>)) {
    let webhooks = WebhookUrlPolicy { http: true, private_network: true };
    let settings = Settings { webhooks, standard_rate_per_minute: 0, ..settings() };
    each_gateway_with_webhooks_under(settings, test);
}

/// As [`each_gateway_with_webhooks`], with these settings.
pub fn each_gateway_with_webhooks_under(settings: Settings, test: impl AsyncFn(&Gateway<'_>)) {
    let test = async |gateway: &Gateway<'_>| {
        let dispatcher = WebhookDispatcher::start(gateway.app.clone()).unwrap();
        test(gateway).await;
        dispatcher.stop().await;
    };
    each_store(async |store| {
        run(store, settings.clone(), store.clock.clone(), PriceSet::OfTests, &test).await;
    });
}

/// The providers of a gateway, and their prices.
enum PriceSet {
    /// A few providers, at round prices.
    OfTests,
    /// The built-in providers, at the prices of the catalogue.
    Embedded,
}

async fn run(
    store: &TestStore,
    settings: Settings,
    clock: Clock,
    prices: PriceSet,
    test: &impl AsyncFn(&Gateway<'_>),
) {
    let gateway = Gateway::start(store, settings, clock, prices).await;
    test(&gateway).await;
    gateway.end().await;
}

impl<'a> Gateway<'a> {
    async fn start(
        store: &'a TestStore,
        settings: Settings,
        clock: Clock,
        prices: PriceSet,
    ) -> Self {
        let is_documented = settings.shape == InterfaceShape::Current;
        let provider = ScriptedProvider::start();
        let merchant = store.merchant().await;
        let merchant_id = merchant.merchant.merchant_id;
        let connection = store.connection(merchant_id, "10").await;
        let meter = store.meter(merchant_id, &[(0, "10")]).await;
        let (nobody, untrusted) = (nobody(), broken_tls_url());
        let forwarding = Arc::new(tollgate_gateway::Gateway::new(
            store.store.clone(),
            settings.calls.clone(),
            match prices {
                PriceSet::OfTests => providers(&provider, &nobody, &untrusted),
                PriceSet::Embedded => builtin_providers(&provider),
            },
            match prices {
                PriceSet::OfTests => round_prices(),
                PriceSet::Embedded => {
                    PriceBook::new(Catalog::default(), tollgate_prices::catalog().unwrap())
                }
            },
            clock,
        ));
        let app = web::Data::new(App::new(Arc::clone(&forwarding), settings));
        let BoundServer { address, server } = tollgate_api::listen(
            app.clone(),
            "127.0.0.1:0",
            None,
            &tollgate_api::ServedRoutes {
                interface: true,
                pages: Some(tollgate_dashboard::pages()),
            },
        )
        .unwrap();
        tokio::spawn(server);
        Self {
            store,
            address,
            provider,
            merchant,
            connection,
            meter,
            app,
            calls: forwarding.calls.clone(),
            is_documented,
            nobody: format!("{nobody}/chat/completions"),
            untrusted: format!("{untrusted}/chat/completions"),
        }
    }

    async fn end(self) {
        self.calls.drain(Duration::from_secs(5)).await;
        assert_eq!(self.calls.running(), 0);
        assert_eq!(self.store.store.audit().await.unwrap().pending, 0, "every call is settled");
    }

    /// The merchant's secret key.
    pub fn key(&self) -> &str {
        self.merchant.key.reveal()
    }

    /// A request of the merchant.
    pub fn call(&self, method: &str, path: &str) -> TestRequest {
        self.call_without_key(method, path).bearer(self.key())
    }

    pub fn call_without_key(&self, method: &str, path: &str) -> TestRequest {
        TestRequest::new(self.address, method, &format!("/v1{path}"))
    }

    /// Sends a request of the merchant, and checks that the answer is documented.
    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> TestResponse {
        let call = self.call(method, path);
        let answer = body.into_iter().fold(call, |call, body| call.json(body)).send().await;
        if self.is_documented {
            assert_documented(method, &format!("/v1{path}"), &answer);
        }
        answer
    }

    pub async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.send("POST", path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PATCH", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> TestResponse {
        self.send("DELETE", path, None).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PUT", path, Some(body)).await
    }

    /// Creates a spend key with these fields and a name.
    pub async fn spend_key(&self, more: &Value) -> TestSpendKey {
        let mut fields = json!({"name": "Key"});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.post("/spend_keys", &fields).await.expect(201);
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        TestSpendKey {
            key: text("key"),
            path: format!("/spend_keys/{}", text("spend_key_id")),
            made,
        }
    }

    /// The forward token of the connection and the meter, with more or other fields.
    pub fn token(&self, more: &Value) -> String {
        let mut fields = json!({
            "secret_key": self.key(),
            "connection_id": self.connection.connection_id.to_string(),
            "meter_slug": self.meter.slug,
        });
        let all = fields.as_object_mut().unwrap();
        all.extend(more.as_object().unwrap().clone());
        STANDARD.encode(fields.to_string())
    }

    /// A forward to a path of the provider, with the default token.
    pub fn forward(&self, path: &str) -> TestRequest {
        self.forward_to(&self.provider.url(path)).bearer(&self.token(&json!({})))
    }

    /// A forward to a URL, without a credential.
    pub fn forward_to(&self, u: &str) -> TestRequest {
        let u: String = url::form_urlencoded::byte_serialize(u.as_bytes()).collect();
        self.call_without_key("POST", &format!("/forward?u={u}"))
    }

    /// A chat call through the gateway.
    pub fn chat(&self) -> TestRequest {
        self.forward("/v1/chat/completions").json(&chat_body())
    }

    /// The only record, once it is settled.
    pub async fn record(&self) -> Value {
        let mut list = self.records().await;
        assert_eq!(list.len(), 1, "{list:?}");
        list.remove(0)
    }

    /// All records, newest first, once none is pending.
    pub async fn records(&self) -> Vec<Value> {
        loop {
            let list = self.get("/requests?limit=100").await.expect(200);
            let records = list["data"].as_array().unwrap().clone();
            if records.iter().all(|record| record["status"] != "pending") {
                return records;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Balance and holds of the connection's wallet.
    pub async fn wallet(&self) -> (String, String) {
        let wallet = self.get(&format!("/wallets/{}", self.connection.wallet_id)).await.expect(200);
        (
            wallet["balance"].as_str().unwrap().to_owned(),
            wallet["held"].as_str().unwrap().to_owned(),
        )
    }
}

/// The base URL of a port where no process listens: it was free a moment ago.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/v1", listener.local_addr().unwrap())
}

/// The scripted provider under two names: `house` has the one dialect, `mansion` the other. A call that
/// follows the name of `public` to a private address would reach it, too.
fn providers(provider: &ScriptedProvider, nobody: &str, untrusted: &str) -> ProviderTable {
    let mut table = ProviderTable::builtin();
    let rows = [
        ("house", "openai", provider.url("/v1")),
        ("mansion", "anthropic", provider.url("/anthropic/v1")),
        ("palace", "google", provider.url("/google/v1beta")),
        ("nobody", "openai", nobody.to_owned()),
        ("nowhere", "openai", NOWHERE.to_owned()),
        ("untrusted", "openai", untrusted.to_owned()),
        (PUBLIC, "openai", format!("https://{PUBLIC_HOST}:{}/v1", provider.addr().port())),
    ];
    for (name, dialect, base_url) in rows {
        let settings = ProviderSettings {
            base_url: Some(base_url),
            dialect: Some(dialect.to_owned()),
            api_key: Some("managed-provider-key".to_owned()),
            allow_private_network: Some(name != PUBLIC),
            stream_options: Some(true),
            webhook_secret: Some(PROVIDER_SECRET.to_owned()),
            ..ProviderSettings::default()
        };
        table.configure(name, settings).unwrap();
    }
    table
}

/// The built-in providers, all at the scripted one, with the paths of their own hosts.
fn builtin_providers(provider: &ScriptedProvider) -> ProviderTable {
    let mut table = ProviderTable::builtin();
    let names: Vec<_> = table.iter().map(|provider| provider.name.clone()).collect();
    for name in names.iter().map(String::as_str).chain(["azure", "bedrock"]) {
        // The path prefix of the provider's own URL is kept.
        let own = table.get(name).map(|provider| provider.base_url.path().to_owned());
        let own = own.unwrap_or_default();
        let settings = ProviderSettings {
            base_url: Some(provider.url(&format!("/{name}{}", own.trim_end_matches('/')))),
            api_key: Some(format!("key-of-{name}")),
            allow_private_network: Some(true),
            ..ProviderSettings::default()
        };
        table.configure(name, settings).unwrap();
    }
    table
}

/// A provider that must have a public address.
const PUBLIC: &str = "public";
/// Its host name, for which a test's resolver has the addresses.
pub const PUBLIC_HOST: &str = "provider.test";

/// A host that has no address.
pub const NOWHERE: &str = "https://nowhere.invalid/v1";

/// 1 USD per million input tokens, 2 per million output tokens, for models that begin with `m`, and half of that for batches
/// of models that begin with `m-half` or, in Google's format, with `g`. Two
/// are listed by their ids: there, a call of the provider's tools costs 0.01 USD, and the greatest
/// length of an answer is not known. A second of a session costs 0.001 USD for models that begin with `voice`.
fn round_prices() -> PriceBook {
    let row = |provider: &str| PriceRow {
        provider: provider.to_owned(),
        models: vec![ModelPattern::new("m*")],
        max_output_tokens: Some(1_000),
        prices: UnitPrices {
            input: Some(1.into()),
            output: Some(2.into()),
            ..UnitPrices::default()
        },
        ..PriceRow::default()
    };
    let listed = |provider: &str, id: &str| {
        let mut listed = row(provider);
        listed.models = vec![ModelPattern::new(id)];
        listed.max_output_tokens = None;
        listed.prices.tool_call = Some("0.01".parse().unwrap());
        listed
    };
    let patterns = ["house", "mansion", "nobody", "nowhere", "untrusted", PUBLIC].map(row);
    let ids = [("house", "m-listed"), ("mansion", "m-listed"), ("nobody", "m-rare")];
    let mut half = row("mansion");
    half.models = vec![ModelPattern::new("m-half*")];
    half.tiers =
        [("batch".to_owned(), TierPrices::Factor { factor: "0.5".parse().unwrap() })].into();
    let ids = ids.map(|(provider, id)| listed(provider, id));
    let mut google = row("palace");
    google.models = vec![ModelPattern::new("g*")];
    google.tiers = half.tiers.clone();
    let films = [film("house", "1024x1792"), film("palace", "1080p")];
    let voice = PriceRow {
        provider: "house".to_owned(),
        models: vec![ModelPattern::new("voice*")],
        prices: UnitPrices {
            input_second: Some("0.001".parse().unwrap()),
            ..UnitPrices::default()
        },
        ..PriceRow::default()
    };
    let rows = patterns.into_iter().chain(ids).chain([half, google, voice]).chain(films);
    PriceBook::new(Catalog::new(rows), Catalog::default())
}

/// 0.1 USD per second of a video, and 0.5 in a large size, for models that begin with `film`.
fn film(provider: &str, large_size: &str) -> PriceRow {
    let second = |price: &str| UnitPrices {
        output_second: Some(price.parse().unwrap()),
        ..UnitPrices::default()
    };
    let large = TierPrices::Prices { prices: Box::new(second("0.5")), bands: Vec::new() };
    PriceRow {
        provider: provider.to_owned(),
        models: vec![ModelPattern::new("film*")],
        prices: second("0.1"),
        tiers: [(large_size.to_owned(), large)].into(),
        ..PriceRow::default()
    }
}

pub fn chat_body() -> Value {
    json!({"model": "m-1", "messages": [{"role": "user", "content": "Hello"}]})
}

/// A chat answer that used 1,000 input and 500 output tokens: 0.002 USD at the provider, and
/// 0.015 USD of fee.
pub fn chat_answer() -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m-1-2026",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    })
}

/// A text field of an answer.
pub fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("{name} of {value}")).to_owned()
}

/// The fields with more or other ones.
pub fn with(mut fields: Value, more: &Value) -> Value {
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

/// The names of the fields of an object, in order.
pub fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Fails unless the answer is this refusal.
#[track_caller]
pub fn assert_refused(answer: &TestResponse, status: u16, code: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (status, code), "{}", answer.text());
}

/// Fails unless the request was refused for exactly these fields.
#[track_caller]
pub fn assert_issues(answer: &TestResponse, paths: &[&str]) {
    assert_refused(answer, 400, "validation_failed");
    let mut found = answer.issue_paths();
    found.sort();
    let mut expected = paths.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected, "{}", answer.text());
}
