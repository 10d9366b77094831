//! WebSockets of clients, and what is left of them.

use std::time::Duration;

use serde_json::Value;
use tollgate_testkit::{TestRequest, TestSocket};

use super::Gateway;

pub async fn open(request: TestRequest) -> TestSocket {
    match request.open_socket().await {
        Ok((socket, _)) => socket,
        Err(answer) => unreachable!("{}", answer.text()),
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
