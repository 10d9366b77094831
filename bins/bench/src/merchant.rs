//! Who sets the service up: a merchant, through the routes that merchants have.

use std::net::SocketAddr;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_pricing::Amount;

use crate::http::{ask, request};
use crate::stand::text_or_count;

pub(crate) struct Merchant {
    pub(crate) address: SocketAddr,
    pub(crate) secret_key: String,
}

/// Somebody who pays, and the token to call with on his account.
pub(crate) struct Connection {
    pub(crate) wallet_id: String,
    pub(crate) credit: Amount,
    pub(crate) token: String,
}

impl Merchant {
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let (target, host) = (format!("/v1{path}"), self.address.to_string());
        let request = request(method, &target, &host, &self.secret_key, &[], body);
        ask(self.address, &request).await.with_context(|| format!("{method} {path}"))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask("POST", path, &body.to_string()).await
    }

    /// The meter under which everything is priced, and its id.
    pub(crate) async fn meter(&self) -> anyhow::Result<String> {
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
        text_or_count(&self.post("/meters", &meter).await?, "meter_id")
    }

    /// A connection with so much money on its wallet.
    pub(crate) async fn connection(&self, usd: &str) -> anyhow::Result<Connection> {
        let connection = self.post("/connections", &json!({})).await?;
        let wallet_id = text_or_count(&connection, "wallet_id")?;
        let credit: Amount = usd.parse()?;
        if credit.is_positive() {
            self.post(&format!("/wallets/{wallet_id}/credits"), &json!({"amount": usd})).await?;
        }
        let token = json!({
            "secret_key": self.secret_key,
            "connection_id": text_or_count(&connection, "connection_id")?,
            "meter_slug": "benchmark",
        });
        Ok(Connection { wallet_id, credit, token: STANDARD.encode(token.to_string()) })
    }

    /// A spend key with these rules, as it is shown once.
    pub(crate) async fn spend_key(&self, rules: &Value) -> anyhow::Result<String> {
        text_or_count(&self.post("/spend_keys", rules).await?, "key")
    }
}
