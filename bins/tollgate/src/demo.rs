//! `tollgate demo`: the service with simulated providers, for a first try.

use std::io::ErrorKind;
use std::net::TcpListener;

use anyhow::{anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_domain::{
    Clock, Cycle, Enforcement, EventKind, MerchantId, NewConnection, NewMeter, NewSpendKey,
    NewWebhook, RequestShape, SpendLimit, SpendRules, TierPeriod, Timestamp, TransactionKind,
};
use tollgate_pricing::{Amount, Meter, RateType, Tier, TierUnit};
use tollgate_simulator::{Behavior, Simulator};
use tollgate_store::wallets::WalletMovement;
use tollgate_store::{Conn, connections, merchants, meters, spend_keys, wallets, webhooks};

use crate::config::TollgateConfig;
use crate::logging;
use crate::output;
use crate::serve::Service;

/// The resources that the demo creates.
struct DemoResources {
    secret_key: String,
    connection_id: String,
    wallet_id: String,
    meter_slug: String,
    /// A spend key for each format.
    openai_key: String,
    anthropic_key: String,
    /// A spend key with a limit that is never passed, and that limit.
    strict_key: String,
    strict_limit: Amount,
}

/// The body of a call that is sent far more often than its key can afford. The simulated answer is as
/// long as allowed and input is cheap, so a call costs nearly its hold: the amount that ten calls
/// release when they end is less than the hold of an eleventh.
const RUSH_BODY: &str = r#"{"model": "simulated-large", "max_tokens": 16, "messages": [{"role": "user", "content": "Me first!"}]}"#;
const RUSH_MAX_TOKENS: usize = 16;
const RUSH_CALLS_THAT_FIT: usize = 10;

/// The path at which a simulated provider receives webhooks.
const RECEIVER: &str = "/webhooks/demo";

/// The prices of its model, in USD per million tokens.
const RUSH_INPUT_PRICE: usize = 1;
const RUSH_OUTPUT_PRICE: usize = 100;

/// The most that the calls that fit can cost. A body has at most one token per byte.
fn rush_limit() -> Amount {
    const UNITS_PER_MILLIONTH_USD: usize = 10_000;
    let millionths = RUSH_BODY.len() * RUSH_INPUT_PRICE + RUSH_MAX_TOKENS * RUSH_OUTPUT_PRICE;
    let units = RUSH_CALLS_THAT_FIT * millionths * UNITS_PER_MILLIONTH_USD;
    Amount::from_units(i64::try_from(units).unwrap_or(i64::MAX))
}

/// Serves from a temporary store with simulated providers, and prints examples.
pub(crate) async fn run(listen: Option<&str>, json: bool) -> anyhow::Result<()> {
    eprintln!("Starting two simulated providers and a service on a temporary database …");
    let openai = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let anthropic = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let config = config(listen.unwrap_or("127.0.0.1:8080"), &openai, &anthropic)?;
    logging::start(config.log_format);
    let service = Service::start(&config).await?;
    let receiver = openai.url(RECEIVER);
    let made =
        service.store.write(|conn| create_resources(conn, receiver, Clock::system().now())).await?;
    let base = format!("http://{}", service.address);
    match json {
        true => output::print_line(summary_json(&base, &made, &openai, &anthropic))?,
        false => output::print_line(welcome(&base, &made, &openai, &anthropic))?,
    }
    service.run_until_signal(&config).await?;
    openai.stop().await;
    anthropic.stop().await;
    Ok(())
}

fn config(
    listen: &str,
    openai: &Simulator,
    anthropic: &Simulator,
) -> anyhow::Result<TollgateConfig> {
    // A first try should not fail because the port is in use.
    let listen = match TcpListener::bind(listen) {
        Ok(_) => listen,
        Err(cause) if cause.kind() == ErrorKind::InvalidInput => {
            bail!("{listen} is not an address to listen on: name one such as 127.0.0.1:8080")
        }
        Err(cause) => {
            eprintln!("{listen} cannot be listened on ({cause}): another port is taken");
            "127.0.0.1:0"
        }
    };
    let text = format!(
        r#"
        listen = "{listen}"
        database_url = "sqlite::memory:"
        webhook_allow_http = true
        webhook_allow_private_network = true
        [providers.openai]
        base_url = "{}"
        api_key = "simulated"
        allow_private_network = true
        [providers.anthropic]
        base_url = "{}"
        api_key = "simulated"
        allow_private_network = true
        [[prices]]
        provider = "openai"
        model = "simulated-large"
        input = "{RUSH_INPUT_PRICE}"
        output = "{RUSH_OUTPUT_PRICE}"
        "#,
        openai.url("/v1"),
        anthropic.url("/v1"),
    );
    Ok(TollgateConfig::from_parts(text.parse()?, [], None)?)
}

/// A merchant, a webhook, a customer with 10 USD, a meter, and spend keys that draw on the customer's
/// wallet.
fn create_resources(
    conn: &mut Conn,
    receiver: String,
    now: Timestamp,
) -> anyhow::Result<DemoResources> {
    let new = merchants::create(conn, "Demo merchant", now)?;
    let merchant_id = new.merchant.merchant_id;
    let events = Some(EventKind::ALL.to_vec());
    let webhook = NewWebhook { name: "Demo".to_owned(), url: receiver, events };
    webhooks::create(conn, merchant_id, webhook, now)?;
    let customer = NewConnection {
        reference_id: Some("customer-1".to_owned()),
        name: Some("Demo customer".to_owned()),
        ..NewConnection::default()
    };
    let connection = connections::create(conn, merchant_id, &customer, now)?.connection;
    let movement = WalletMovement {
        kind: TransactionKind::Credit,
        amount: usd(10),
        description: Some("Demo credit".to_owned()),
    };
    wallets::book(conn, merchant_id, connection.wallet_id, &movement, now)?;
    let rates = [(0, 5), (1_000_000, 3), (10_000_000, 1)];
    let tiers = rates.map(|(start, rate)| Tier { start, rate: rate.into() }).to_vec();
    let meter_slug = "demo".to_owned();
    let meter = NewMeter {
        name: "Demo plan".to_owned(),
        slug: Some(meter_slug.clone()),
        tier_period: TierPeriod::Lifetime,
        model: Meter::new(RateType::Fixed, TierUnit::Tokens, tiers)
            .map_err(|wrong| anyhow!("the meter of the demo: {wrong:?}"))?
            .into(),
    };
    let meter = meters::create(conn, merchant_id, &meter, now)?
        .map_err(|taken| anyhow!("the meter of the demo: {taken:?}"))?;

    let limited = |request_shape, enforcement, amount, cycle| SpendRules {
        request_shape,
        enforcement,
        spend_limit: Some(SpendLimit { amount, cycle }),
        ..SpendRules::default()
    };
    let daily = |shape| limited(shape, Enforcement::Bounded, usd(1), Cycle::Daily);
    let strict_limit = rush_limit();
    let strict = limited(RequestShape::ShapeA, Enforcement::Strict, strict_limit, Cycle::Total);
    let mut spend_key = |name: &str, meter_id, rules| {
        let wallet_id = Some(connection.wallet_id);
        let new = NewSpendKey { name: name.to_owned(), wallet_id, meter_id, rules };
        create_spend_key(conn, merchant_id, &new, now)
    };
    let meter_id = Some(meter.meter_id);
    Ok(DemoResources {
        secret_key: new.key.reveal().to_owned(),
        connection_id: connection.connection_id.to_string(),
        wallet_id: connection.wallet_id.to_string(),
        meter_slug,
        openai_key: spend_key("OpenAI's format", meter_id, daily(RequestShape::ShapeA))?,
        anthropic_key: spend_key("Anthropic's format", meter_id, daily(RequestShape::ShapeB))?,
        strict_key: spend_key("Strict", None, strict)?,
        strict_limit,
    })
}

fn create_spend_key(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewSpendKey,
    now: Timestamp,
) -> anyhow::Result<String> {
    let (_, key) = spend_keys::create(conn, merchant_id, new, now)?
        .map_err(|missing| anyhow!("a spend key of the demo: no {missing:?}"))?;
    Ok(key.reveal().to_owned())
}

const fn usd(whole: i64) -> Amount {
    Amount::from_units(whole * 10_000_000_000)
}

/// The created resources as JSON, for programs.
fn summary_json(
    base: &str,
    made: &DemoResources,
    openai: &Simulator,
    anthropic: &Simulator,
) -> Value {
    json!({
        "listening": base,
        "secret_key": made.secret_key,
        "connection_id": made.connection_id,
        "meter_slug": made.meter_slug,
        "openai_key": made.openai_key,
        "anthropic_key": made.anthropic_key,
        "strict_key": made.strict_key,
        "strict_limit": made.strict_limit,
        "openai_url": openai.url("/v1"),
        "anthropic_url": anthropic.url("/v1"),
    })
}

fn welcome(base: &str, made: &DemoResources, openai: &Simulator, anthropic: &Simulator) -> String {
    let token = STANDARD.encode(
        json!({
            "secret_key": made.secret_key,
            "connection_id": made.connection_id,
            "meter_slug": made.meter_slug,
        })
        .to_string(),
    );
    let (chat, messages) = (openai.url("/v1/chat/completions"), anthropic.url("/v1/messages"));
    format!(
        r#"
Tollgate listens on {base}. Its store is temporary; Ctrl-C ends everything.

  merchant key   {secret_key}
  connection     {connection_id} with 10.00 USD on its wallet
  meter          {meter_slug}: 5 / 3 / 1 USD per million tokens from 0 / 1 M / 10 M on
  spend keys     two that may spend 1.00 USD a day of that wallet, one for each format; one that is strict
  dashboard      {base}/dashboard: sign in with the merchant key

In another terminal, with a spend key, as if Tollgate were the provider (paste as it is):

  curl -s "{base}/v1/chat/completions" -H "Authorization: Bearer {openai_key}" -H "Content-Type: application/json" -d '{{"model": "gpt-4o-mini", "messages": [{{"role": "user", "content": "What does a tollgate do?"}}]}}'

The official SDKs need no more than this:

  export OPENAI_BASE_URL="{base}/v1" OPENAI_API_KEY="{openai_key}"

  export ANTHROPIC_BASE_URL="{base}" ANTHROPIC_API_KEY="{anthropic_key}"

Or forward a call to the provider's URL, for a connection and under a meter:

  TOKEN={token}

  curl -s "{base}/v1/forward?u={chat}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{{"model": "gpt-4o-mini", "messages": [{{"role": "user", "content": "What does a tollgate do?"}}]}}'

Streamed, with metadata to find it by:

  curl -sN "{base}/v1/forward?u={chat}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -H 'x-service-metadata: {{"user": "ada"}}' -d '{{"model": "gpt-4o-mini", "stream": true, "messages": [{{"role": "user", "content": "Count to five."}}]}}'

In the other format:

  curl -s "{base}/v1/forward?u={messages}" -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d '{{"model": "claude-sonnet-4-5", "max_tokens": 256, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

What each call used and cost, and what is left on the wallet of the connection:

  KEY={secret_key}

  curl -s "{base}/v1/requests" -H "Authorization: Bearer $KEY" | grep -oE '"(request_id|model|total_tokens|total_request_cost)":"?[^",]*'

  curl -s "{base}/v1/wallets/{wallet_id}" -H "Authorization: Bearer $KEY"

A limit holds, however many calls come at once. The strict key may spend {strict_limit} USD in total, which is
what {RUSH_CALLS_THAT_FIT} of these calls can cost at most. 200 of them, once: {RUSH_CALLS_THAT_FIT} pass, and the others get 402.

  seq 200 | xargs -P 200 -I{{}} curl -s -o /dev/null -w '%{{http_code}}\n' "{base}/v1/chat/completions" -H "Authorization: Bearer {strict_key}" -H "Content-Type: application/json" -d '{RUSH_BODY}' | sort | uniq -c

Events go to a webhook. This one is at the simulator, which shows what it has received:

  curl -s "{receiver}"
"#,
        receiver = openai.url(RECEIVER),
        secret_key = made.secret_key,
        connection_id = made.connection_id,
        wallet_id = made.wallet_id,
        meter_slug = made.meter_slug,
        openai_key = made.openai_key,
        anthropic_key = made.anthropic_key,
        strict_key = made.strict_key,
        strict_limit = made.strict_limit,
    )
}
