//! The storm of the demo: 200 calls at once with a key whose limit fits ten of them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tollgate_api::Pages;
use tollgate_dashboard::{DemoPages, StormResult};
use tollgate_domain::{
    Clock, Cycle, Enforcement, Key, MerchantId, NewSpendKey, RequestShape, SpendLimit, SpendRules,
};
use tollgate_pricing::Amount;
use tollgate_store::{Store, spend_keys};

const CALLS: usize = 200;

/// The body of a call that is sent far more often than its key can afford. The simulated answer is as
/// long as allowed and input is cheap, so a call costs nearly its hold: the amount that ten calls
/// release when they end is less than the hold of an eleventh.
pub(super) const RUSH_BODY: &str = r#"{"model": "simulated-large", "max_tokens": 16, "messages": [{"role": "user", "content": "Me first!"}]}"#;
const RUSH_MAX_TOKENS: usize = 16;
pub(super) const RUSH_CALLS_THAT_FIT: usize = 10;

/// The prices of its model, in USD per million tokens.
pub(super) const RUSH_INPUT_PRICE: usize = 1;
pub(super) const RUSH_OUTPUT_PRICE: usize = 100;

/// The most that the calls that fit can cost. A body has at most one token per byte.
pub(super) fn rush_limit() -> Amount {
    const UNITS_PER_MILLIONTH_USD: usize = 10_000;
    let millionths = RUSH_BODY.len() * RUSH_INPUT_PRICE + RUSH_MAX_TOKENS * RUSH_OUTPUT_PRICE;
    let units = RUSH_CALLS_THAT_FIT * millionths * UNITS_PER_MILLIONTH_USD;
    Amount::from_units(i64::try_from(units).unwrap_or(i64::MAX))
}

/// The store of the running service, and its address.
pub(super) type StartedService = Arc<OnceLock<(Store, SocketAddr)>>;

/// The pages of the demo, which send calls to the service once it runs.
pub(super) fn pages(merchant_id: MerchantId, key: Key, started: StartedService) -> Pages {
    let storm = move || -> futures_util::future::BoxFuture<'static, _> {
        let started = Arc::clone(&started);
        Box::pin(async move {
            let Some((store, address)) = started.get() else {
                return Err("The service has not started.".to_owned());
            };
            let sent = send(store, *address, merchant_id).await;
            sent.map_err(|cause| format!("The calls could not be sent: {cause}"))
        })
    };
    tollgate_dashboard::pages_with_demo(DemoPages { key, storm: Arc::new(storm) })
}

/// Makes a key and sends the calls.
async fn send(
    store: &Store,
    address: SocketAddr,
    merchant_id: MerchantId,
) -> anyhow::Result<StormResult> {
    let now = Clock::system().now();
    let (made, key) = store
        .write(move |conn| {
            let rules = strict_rules();
            let new = NewSpendKey {
                name: "Storm".to_owned(),
                wallet_id: None,
                meter_id: None,
                budget_id: None,
                rules,
            };
            let made = spend_keys::create(conn, merchant_id, &new, now)?;
            made.map_err(|missing| anyhow::anyhow!("no {missing:?}"))
        })
        .await?;
    let request: Arc<str> = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{RUSH_BODY}",
        key.reveal(),
        RUSH_BODY.len(),
    )
    .into();
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        calls.spawn(status(address, Arc::clone(&request)));
    }
    let (mut answered, mut refused) = (0, 0);
    while let Some(status) = calls.join_next().await {
        match status?? {
            200 => answered += 1,
            402 => refused += 1,
            _ => (),
        }
    }
    let millis = began.elapsed().as_millis();
    let id = made.spend_key_id;
    let key = store.read(move |conn| spend_keys::find(conn, merchant_id, id)).await?;
    let spent = key.map(|key| key.counters.spent.total).unwrap_or_default();
    Ok(StormResult {
        calls: CALLS,
        answered,
        refused,
        limit: format!("{:.5}", rush_limit()),
        spent: format!("{spent:.5}"),
        is_kept: spent <= rush_limit(),
        millis,
    })
}

/// The status of a call, once its answer is whole.
async fn status(address: SocketAddr, request: Arc<str>) -> io::Result<u16> {
    let mut tcp = TcpStream::connect(address).await?;
    tcp.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    tcp.read_to_end(&mut answer).await?;
    let head = String::from_utf8_lossy(&answer);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no answer"))
}

/// The rules of a key that spends its limit, and not more.
pub(super) fn strict_rules() -> SpendRules {
    SpendRules {
        request_shape: RequestShape::ShapeA,
        enforcement: Enforcement::Strict,
        spend_limit: Some(SpendLimit { amount: rush_limit(), cycle: Cycle::Total }),
        ..SpendRules::default()
    }
}
