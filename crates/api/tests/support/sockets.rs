//! WebSockets of clients, and what is left of them.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{TestRequest, TestSocket};

use super::Gateway;

pub async fn open(request: TestRequest) -> TestSocket {
    match request.open_socket().await {
        Ok((socket, _)) => socket,
        Err(answer) => unreachable!("{}", answer.text()),
    }
}

/// A spend key with these rules, on the customer's wallet.
pub async fn customer_key(gateway: &Gateway<'_>, rules: &Value) -> String {
    let mut fields = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
    fields.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    gateway.spend_key(&fields).await.key
}

/// Sends a message, which arrives as it is.
pub async fn pass(from: &mut TestSocket, to: &mut TestSocket, message: &Value) {
    let text = serde_json::to_string_pretty(message).unwrap();
    from.send_text(&text).await;
    assert_eq!(to.text().await, text);
}

/// The amount that is held on the customer's wallet.
pub async fn held(gateway: &Gateway<'_>) -> f64 {
    gateway.wallet().await.1.parse().unwrap()
}

/// Waits until this is held.
pub async fn until_held(gateway: &Gateway<'_>, is_it: impl Fn(f64) -> bool) {
    while !is_it(held(gateway).await) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until no socket is open. Nothing is held then.
pub async fn until_closed(gateway: &Gateway<'_>) {
    while !gateway.app.gateway.sockets.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(gateway.wallet().await.1, "0.0000000000");
}

/// The columns of a record that the table of endings has.
pub fn ending(record: &Value) -> [&str; 3] {
    ["status", "usage_source", "total_wallet_cost"].map(|name| record[name].as_str().unwrap())
}
