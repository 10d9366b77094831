//! `tollgate demo`: the service with simulated providers and a business of 90 days, for a first try.

mod business;
mod storm;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};
use tollgate_domain::{
    Clock, Cycle, EventKind, Key, MerchantId, NewConnection, NewMeter, NewSpendKey, NewWebhook,
    RequestShape, SpendLimit, SpendRules, TierPeriod, Timestamp, TransactionKind,
};
use tollgate_pricing::{Amount, Meter, RateType, Tier, TierUnit};
use tollgate_simulator::{Behavior, Simulator};
use tollgate_store::wallets::WalletMovement;
use tollgate_store::{Conn, connections, meters, spend_keys, wallets, webhooks};

use self::business::usd;
use self::storm::{
    RUSH_BODY, RUSH_CALLS_THAT_FIT, RUSH_INPUT_PRICE, RUSH_OUTPUT_PRICE, rush_limit, strict_rules,
};
use crate::config::TollgateConfig;
use crate::logging;
use crate::output;
use crate::serve::Service;

/// The resources that the demo creates.
struct DemoResources {
    secret_key: String,
    connection_id: String,
    meter_slug: String,
    /// A spend key for each format.
    openai_key: String,
    anthropic_key: String,
    /// A spend key with a limit that is never passed, and that limit.
    strict_key: String,
    strict_limit: Amount,
}

/// The path at which a simulated provider receives webhooks.
const RECEIVER: &str = "/webhooks/demo";

/// Serves from a temporary store with simulated providers, and prints examples.
pub(crate) async fn run(listen: Option<&str>, json: bool) -> anyhow::Result<()> {
    eprintln!("Starting two simulated providers, and booking 90 days of a business …");
    let openai = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let anthropic = Simulator::start("127.0.0.1:0", Behavior::default())?;
    let folder = tempfile::tempdir()?;
    let config = config(listen.unwrap_or("127.0.0.1:8080"), folder.path(), [&openai, &anthropic])?;
    logging::start(config.log_format);
    let now = Clock::system().now();
    let (merchant_id, key) = business::book(&config.database_url, &config.prices, now).await?;
    // The pages send calls to the service that serves them.
    let started = Arc::new(OnceLock::new());
    let pages = storm::pages(merchant_id, key.clone(), Arc::clone(&started));
    let service = Service::start(&config, &pages).await?;
    let _ = started.set((service.store.clone(), service.address));
    let receiver = openai.url(RECEIVER);
    let create = move |conn: &mut _| create_resources(conn, merchant_id, &key, receiver, now);
    let made = service.store.write(create).await?;
    let base = format!("http://{}", service.address);
    match json {
        true => output::print_line(summary_json(&base, &made, &openai, &anthropic))?,
        false => output::print_line(welcome(&base, &made))?,
    }
    service.run_until_signal(&config).await?;
    openai.stop().await;
    anthropic.stop().await;
    Ok(())
}

fn config(
    listen: &str,
    folder: &Path,
    [openai, anthropic]: [&Simulator; 2],
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
        database_url = "sqlite:{}/tollgate.db"
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
        folder.display(),
        openai.url("/v1"),
        anthropic.url("/v1"),
    );
    Ok(TollgateConfig::from_parts(text.parse()?, [], None)?)
}

/// A webhook, a customer with 10 USD, a meter, and spend keys that draw on the customer's
/// wallet.
fn create_resources(
    conn: &mut Conn,
    merchant_id: MerchantId,
    key: &Key,
    receiver: String,
    now: Timestamp,
) -> anyhow::Result<DemoResources> {
    let events = Some(EventKind::ALL.to_vec());
    let webhook = NewWebhook { name: "Demo".to_owned(), url: receiver, events };
    webhooks::create(conn, merchant_id, webhook, now)?;
    let customer = NewConnection {
        reference_id: Some("customer-1".to_owned()),
        name: Some("Demo customer".to_owned()),
        ..NewConnection::default()
    };
    let made = connections::create(conn, merchant_id, &customer, now)?;
    let connection = made.context("a customer names no budget")?.connection;
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

    let daily = |request_shape| SpendRules {
        request_shape,
        spend_limit: Some(SpendLimit { amount: usd(1), cycle: Cycle::Daily }),
        ..SpendRules::default()
    };
    let mut spend_key = |name: &str, meter_id, rules| {
        let wallet_id = Some(connection.wallet_id);
        let new =
            NewSpendKey { name: name.to_owned(), wallet_id, meter_id, budget_id: None, rules };
        create_spend_key(conn, merchant_id, &new, now)
    };
    let meter_id = Some(meter.meter_id);
    Ok(DemoResources {
        secret_key: key.reveal().to_owned(),
        connection_id: connection.connection_id.to_string(),
        meter_slug,
        openai_key: spend_key("OpenAI's format", meter_id, daily(RequestShape::ShapeA))?,
        anthropic_key: spend_key("Anthropic's format", meter_id, daily(RequestShape::ShapeB))?,
        strict_key: spend_key("Strict", None, strict_rules())?,
        strict_limit: rush_limit(),
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

fn welcome(base: &str, made: &DemoResources) -> String {
    let DemoResources { secret_key, openai_key, strict_key, strict_limit, .. } = made;
    format!(
        r#"
Tollgate listens on {base}. Its store is temporary; Ctrl-C ends everything.

  dashboard      {base}/demo   (signs you in: 90 days of a business with 40 customers and three plans)
  a storm        {base}/demo/storm   (a button that sends 200 calls at a limit that fits 10)
  merchant key   {secret_key}

Three commands for another terminal. A call, with a spend key, as if Tollgate were the provider:

  curl -s "{base}/v1/chat/completions" -H "Authorization: Bearer {openai_key}" -H "Content-Type: application/json" -d '{{"model": "gpt-4o-mini", "messages": [{{"role": "user", "content": "What does a tollgate do?"}}]}}'

Two variables for the official SDKs and for agents:

  export OPENAI_BASE_URL="{base}/v1" OPENAI_API_KEY="{openai_key}"

200 calls at once, with a strict key whose limit of ${strict_limit:.5} fits {RUSH_CALLS_THAT_FIT}: {RUSH_CALLS_THAT_FIT} pass, the others get 402.

  seq 200 | xargs -P 200 -I{{}} curl -s -o /dev/null -w '%{{http_code}}\n' "{base}/v1/chat/completions" -H "Authorization: Bearer {strict_key}" -H "Content-Type: application/json" -d '{RUSH_BODY}' | sort | uniq -c
"#,
    )
}
