//! The merchant of the measurements, who sets the service up through the API.

use std::net::SocketAddr;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_pricing::Amount;

use crate::http::{field_text, request, request_json};

pub(crate) struct BenchMerchant {
    address: SocketAddr,
    pub(crate) secret_key: String,
    /// The meter of all calls.
    pub(crate) meter_id: String,
}

/// A customer: its wallet, and a token to make calls that the wallet pays.
pub(crate) struct BenchCustomer {
    pub(crate) wallet_id: String,
    pub(crate) credit: Amount,
    pub(crate) token: String,
}

impl BenchMerchant {
    /// Returns the merchant of a secret key, with a new meter.
    pub(crate) async fn new(address: SocketAddr, secret_key: String) -> anyhow::Result<Self> {
        let mut merchant = Self { address, secret_key, meter_id: String::new() };
        merchant.meter_id = merchant.create_meter().await?;
        Ok(merchant)
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let (target, host) = (format!("/v1{path}"), self.address.to_string());
        let request = request(method, &target, &host, &self.secret_key, &[], body);
        request_json(self.address, &request).await.with_context(|| format!("{method} {path}"))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send("POST", path, &body.to_string()).await
    }

    /// Creates a meter of three tiers; returns its id.
    async fn create_meter(&self) -> anyhow::Result<String> {
        let meter = json!({
            "name": "Benchmark",
            "meter_slug": "benchmark",
            "rate_type": "fixed",
            "tier_type": "tokens_1m",
            "tiers": [
                {"start": "0", "rate": "5"},
                {"start": "1000000", "rate": "3"},
                {"start": "10000000", "rate": "1"},
            ],
        });
        field_text(&self.post("/meters", &meter).await?, "meter_id")
    }

    /// Creates a customer with this amount in its wallet.
    pub(crate) async fn create_customer(&self, usd: &str) -> anyhow::Result<BenchCustomer> {
        let connection = self.post("/connections", &json!({})).await?;
        let wallet_id = field_text(&connection, "wallet_id")?;
        let credit: Amount = usd.parse()?;
        if credit.is_positive() {
            self.post(&format!("/wallets/{wallet_id}/credits"), &json!({"amount": usd})).await?;
        }
        let token = json!({
            "secret_key": self.secret_key,
            "connection_id": field_text(&connection, "connection_id")?,
            "meter_slug": "benchmark",
        });
        Ok(BenchCustomer { wallet_id, credit, token: STANDARD.encode(token.to_string()) })
    }

    /// Creates a spend key with these rules, a name and the meter; returns it with its secret.
    pub(crate) async fn create_spend_key(&self, rules: Value) -> anyhow::Result<Value> {
        let mut body = json!({"name": "Benchmark", "meter_id": self.meter_id});
        if let (Value::Object(body), Value::Object(rules)) = (&mut body, rules) {
            body.extend(rules);
        }
        self.post("/spend_keys", &body).await
    }

    /// Creates a key with every kind of limit, none of which is ever reached.
    pub(crate) async fn create_limited_key(&self, wallet_id: &str) -> anyhow::Result<String> {
        let rules = json!({
            "wallet_id": wallet_id,
            "allowed_models": ["gpt-4o*"],
            "allowed_providers": ["openai"],
            "spend_limit": {"amount": "1000000", "cycle": "daily"},
            "request_limit": {"count": 1_000_000_000, "cycle": "daily"},
            "rate_limit": {"rpm": 1_000_000, "burst": 1_000_000},
            "enforcement": "strict",
            "expires_at": "2100-01-01T00:00:00Z",
        });
        field_text(&self.create_spend_key(rules).await?, "key")
    }

    pub(crate) async fn balance(&self, wallet_id: &str) -> anyhow::Result<Amount> {
        let wallet = self.send("GET", &format!("/wallets/{wallet_id}"), "").await?;
        Ok(field_text(&wallet, "balance")?.parse()?)
    }
}
