//! `GET /usage`: sums of each day, and what is said to bad questions.

mod support;

use serde_json::{Value, json};
use support::{Gateway, chat_answer, each_gateway, each_gateway_by_the_stores_clock};

async fn chat(gateway: &Gateway<'_>, more: &Value, metadata: &str) {
    let call = gateway.chat().bearer(&gateway.token(more));
    gateway.provider.json(&chat_answer());
    call.header("X-Metadata", metadata).send().await.expect(200);
}

fn zero() -> Value {
    json!({
        "total_requests": 0, "total_usage_tokens": 0, "total_usage_cost": "0.0000000000",
        "total_fee_amount": "0.0000000000", "total_service_charge_amount": "0.0000000000",
        "total_request_cost": "0.0000000000", "total_wallet_cost": "0.0000000000",
        "total_merchant_cost": "0.0000000000"
    })
}
