//! Everything at once for somebody who has just arrived.

use std::net::TcpListener;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tollgate_domain::{Clock, NewConnection, NewMeter, TierPeriod, Timestamp, TransactionKind};
use tollgate_pricing::{Meter, RateType, Tier, TierUnit};
use tollgate_simulator::{Behavior, Simulator};
use tollgate_store::wallets::Movement;
use tollgate_store::{Conn, StoreError, connections, merchants, meters, wallets};

use crate::config::Config;
use crate::logging;
use crate::serve::Service;

/// What the demo has made.
struct Made {
    secret_key: String,
    connection_id: String,
    meter_slug: String,
}

/// Serves from a temporary store with simulated providers, and prints what to try.
pub(crate) async fn run(listen: Option<&str>) -> anyhow::Result<()> {
    println!("Starting two simulated providers and a service on a temporary database …");
    let openai = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let anthropic = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let config = config(listen.unwrap_or("127.0.0.1:8080"), &openai, &anthropic)?;
    logging::start(config.log_format);
    let service = Service::start(&config).await?;
    let made = service.store.write(|conn| make(conn, Clock::system().now())).await?;
    print_welcome(&format!("http://{}", service.address), &made, &openai, &anthropic);
    service.until_signal(&config).await?;
    openai.stop().await;
    anthropic.stop().await;
    Ok(())
}

fn config(listen: &str, openai: &Simulator, anthropic: &Simulator) -> anyhow::Result<Config> {
    // Somebody who tries something out should not have to look for a port first.
    let listen = match TcpListener::bind(listen) {
        Ok(_) => listen,
        Err(_) => "127.0.0.1:0",
    };
    let text = format!(
        r#"
        listen = "{listen}"
        database_url = "sqlite::memory:"
        [providers.openai]
        base_url = "{}"
        api_key = "simulated"
        allow_private_network = true
        [providers.anthropic]
        base_url = "{}"
        api_key = "simulated"
        allow_private_network = true
        "#,
        openai.url("/v1"),
        anthropic.url("/v1"),
    );
    Ok(Config::from_parts(text.parse()?, [], None)?)
}

/// A merchant, a customer with 10 USD, and a meter.
fn make(conn: &mut Conn, now: Timestamp) -> Result<Made, StoreError> {
    let new = merchants::create(conn, "Demo merchant", now)?;
    let merchant_id = new.merchant.merchant_id;
    let customer = NewConnection {
        reference_id: Some("customer-1".to_owned()),
        name: Some("Demo customer".to_owned()),
        ..NewConnection::default()
    };
    let connection = connections::create(conn, merchant_id, &customer, now)?.connection;
    let movement = Movement {
        kind: TransactionKind::Credit,
        amount: tollgate_pricing::Amount::from_units(100_000_000_000),
        description: Some("Demo credit".to_owned()),
    };
    wallets::book(conn, merchant_id, connection.wallet_id, &movement, now)?;
    let rates = [(0, 5), (1_000_000, 3), (10_000_000, 1)];
    let tiers = rates.map(|(start, rate)| Tier { start, rate: rate.into() }).to_vec();
    let meter_slug = "demo".to_owned();
    if let Ok(model) = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers) {
        let meter = NewMeter {
            name: "Demo plan".to_owned(),
            slug: Some(meter_slug.clone()),
            tier_period: TierPeriod::Lifetime,
            model,
        };
        // The slug is free: the merchant is new.
        let _ = meters::create(conn, merchant_id, &meter, now)?;
    }
    Ok(Made {
        secret_key: new.key.reveal().to_owned(),
        connection_id: connection.connection_id.to_string(),
        meter_slug,
    })
}

fn print_welcome(base: &str, made: &Made, openai: &Simulator, anthropic: &Simulator) {
    let token = STANDARD.encode(
        json!({
            "secret_key": made.secret_key,
            "connection_id": made.connection_id,
            "meter_slug": made.meter_slug,
        })
        .to_string(),
    );
    let (chat, messages) = (openai.url("/v1/chat/completions"), anthropic.url("/v1/messages"));
    println!(
        r#"
Tollgate listens on {base}. Its store is temporary; Ctrl-C ends everything.

  merchant key   {secret_key}
  connection     {connection_id} with 10.00 USD on its wallet
  meter          {meter_slug}: 5 / 3 / 1 USD per million tokens from 0 / 1 M / 10 M on

Forward a call (paste as it is):

  TOKEN={token}

  curl -s "{base}/v1/forward?u={chat}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{{"model": "gpt-4o-mini", "messages": [{{"role": "user", "content": "What does a tollgate do?"}}]}}'

Streamed, with metadata to find it by:

  curl -sN "{base}/v1/forward?u={chat}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -H 'x-service-metadata: {{"user": "ada"}}' -d '{{"model": "gpt-4o-mini", "stream": true, "messages": [{{"role": "user", "content": "Count to five."}}]}}'

In the other format:

  curl -s "{base}/v1/forward?u={messages}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{{"model": "claude-sonnet-4-5", "max_tokens": 256, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

What it used, what it cost, and who paid:

  KEY={secret_key}

  curl -s "{base}/v1/requests" -H "Authorization: Bearer $KEY"

  curl -s "{base}/v1/requests/$(curl -s "{base}/v1/requests?limit=1" -H "Authorization: Bearer $KEY" | grep -o 'req_[0-9A-Z]*' | head -1)" -H "Authorization: Bearer $KEY"
"#,
        secret_key = made.secret_key,
        connection_id = made.connection_id,
        meter_slug = made.meter_slug,
    );
}
