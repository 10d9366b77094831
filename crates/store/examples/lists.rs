//! A measurement of lists and sums among many records.
//!
//! `cargo run --release -p tollgate-store --example lists -- URL RECORDS` fills the empty database at URL
//! with RECORDS records of 90 days and their ledger lines, folds them, and measures. The table is in
//! microseconds. With RECORDS 0, a database that was filled before is measured again. With `fill` as a
//! further argument, the records are folded and nothing is measured.

#![expect(
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a program of its own, for measuring"
)]

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use diesel::Connection;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::requests::{self as records, HowEnded, RequestFilter};
use tollgate_store::{
    Conn, DatabaseUrl, Options, Page, Store, StoreError, merchants, meters, rollups, usage,
};

/// The tables that are filled in bulk.
mod tables {
    diesel::table! {
        requests (merchant_id, request_id) {
            merchant_id -> Text,
            request_id -> Text,
            connection_id -> Text,
            wallet_id -> Text,
            merchant_wallet_id -> Text,
            meter_id -> Nullable<Text>,
            meter_version -> Nullable<Integer>,
            disable_billing -> Bool,
            status -> Text,
            wallet_cost -> BigInt,
            merchant_cost -> BigInt,
            counted_units -> BigInt,
            swept -> Bool,
            forwarded -> Text,
            outcome -> Text,
            created_at -> BigInt,
        }
    }

    diesel::table! {
        request_index (merchant_id, key, value, request_id) {
            merchant_id -> Text,
            key -> Text,
            value -> Text,
            request_id -> Text,
        }
    }

    diesel::table! {
        transactions (wallet_id, number) {
            transaction_id -> Text,
            wallet_id -> Text,
            account -> Text,
            number -> BigInt,
            kind -> Text,
            amount -> BigInt,
            balance_after -> BigInt,
            request_id -> Nullable<Text>,
            description -> Nullable<Text>,
            idempotency_key -> Nullable<Text>,
            created_at -> BigInt,
        }
    }
}

use tables::{request_index, requests, transactions};

#[derive(Insertable)]
#[diesel(table_name = requests, treat_none_as_default_value = false)]
struct Record {
    request_id: String,
    merchant_id: String,
    connection_id: String,
    wallet_id: String,
    merchant_wallet_id: String,
    meter_id: Option<String>,
    meter_version: Option<i32>,
    disable_billing: bool,
    status: &'static str,
    wallet_cost: i64,
    merchant_cost: i64,
    counted_units: i64,
    swept: bool,
    forwarded: String,
    outcome: String,
    created_at: i64,
}

#[derive(Insertable)]
#[diesel(table_name = request_index, treat_none_as_default_value = false)]
struct Pair {
    merchant_id: String,
    key: &'static str,
    value: String,
    request_id: String,
}

/// A ledger line: the payment of a record.
#[derive(Insertable)]
#[diesel(table_name = transactions, treat_none_as_default_value = false)]
struct LedgerLine {
    transaction_id: String,
    wallet_id: String,
    account: &'static str,
    number: i64,
    kind: &'static str,
    amount: i64,
    balance_after: i64,
    request_id: Option<String>,
    description: Option<String>,
    idempotency_key: Option<String>,
    created_at: i64,
}

/// Rows that are inserted together.
#[derive(Default)]
struct Rows {
    records: Vec<Record>,
    pairs: Vec<Pair>,
    lines: Vec<LedgerLine>,
}

/// The number of ledger lines and the balance of each wallet.
type Wallets = HashMap<String, (i64, i64)>;

const END: i64 = 1_795_219_200_000_000;
const DAYS: i64 = 90;
const DAY: i64 = 86_400_000_000;
/// The share of each merchant in a hundred records.
const MERCHANTS: [u64; 4] = [50, 30, 15, 5];
const CONNECTIONS: usize = 250;
const METERS: usize = 3;
const USERS: u64 = 20_000;

struct Shop {
    merchant: Merchant,
    connections: Vec<tollgate_domain::Connection>,
    meters: Vec<MeterId>,
}

/// Pseudo-random numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// A number below `bound`. Small numbers are far more frequent than large ones.
    fn skewed(&mut self, bound: u64) -> u64 {
        let mut bound = bound;
        for _ in 0..2 {
            bound = 1 + self.below(bound);
        }
        self.below(bound)
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(count)) = (arguments.next(), arguments.next()) else {
        bail!("lists URL RECORDS [fill]");
    };
    let fill_only = arguments.next().is_some_and(|word| word == "fill");
    let url: DatabaseUrl = url.parse()?;
    let count: usize = count.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = Store::open(&url, &Options::default())?;
    if count > 0 {
        runtime.block_on(set_up(&store))?;
    }
    let shops = runtime.block_on(store.read(shops))?;
    runtime.block_on(store.close())?;
    drop(store);
    let mut conn = connect(&url)?;
    if count > 0 || fill_only {
        fill(&mut conn, &shops, count)?;
    }
    drop(conn);
    if fill_only {
        return Ok(());
    }
    measure(&mut connect(&url)?, &shops)
}

fn connect(url: &DatabaseUrl) -> Result<Conn> {
    Ok(match url {
        DatabaseUrl::Sqlite(path) => {
            let mut conn = SqliteConnection::establish(path.to_str().context("a path of text")?)?;
            conn.batch_execute("PRAGMA synchronous = OFF")?;
            Conn::Sqlite(conn)
        }
        DatabaseUrl::Postgres(url) => Conn::Postgres(PgConnection::establish(url)?),
        DatabaseUrl::SqliteTemporary => bail!("name a file"),
    })
}

async fn set_up(store: &Store) -> Result<()> {
    let now = Timestamp::from_unix_micros(END - DAYS * DAY);
    for _ in MERCHANTS {
        let made = store.write(move |conn| merchants::create(conn, "Shop", now)).await?;
        let merchant_id = made.merchant.merchant_id;
        store
            .write(move |conn| {
                for number in 0..METERS {
                    let tiers = vec![Tier { start: 0, rate: 10.into() }];
                    let model = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers);
                    let new = NewMeter {
                        name: format!("Meter {number}"),
                        slug: None,
                        tier_period: TierPeriod::Lifetime,
                        model: model.unwrap_or_else(|_| unreachable!("it is a good one")),
                    };
                    let _ = meters::create(conn, merchant_id, &new, now)?;
                }
                for _ in 0..CONNECTIONS {
                    let new = NewConnection::default();
                    tollgate_store::connections::create(conn, merchant_id, &new, now)?;
                }
                Ok::<_, StoreError>(())
            })
            .await?;
    }
    Ok(())
}

fn shops(conn: &mut Conn) -> Result<Vec<Shop>, StoreError> {
    let mut shops = Vec::new();
    for merchant in merchants::list(conn, &Page { after: None, limit: 100 })? {
        let id = merchant.merchant_id;
        let page = Page { after: None, limit: 1_000 };
        let connections = tollgate_store::connections::list(conn, id, &page)?;
        let page = Page { after: None, limit: 100 };
        let meters = meters::list(conn, id, &page)?.iter().map(|meter| meter.meter_id).collect();
        shops.push(Shop { merchant, connections, meters });
    }
    Ok(shops)
}

fn fill(conn: &mut Conn, shops: &[Shop], count: usize) -> Result<()> {
    const CHUNK: usize = 50_000;
    let mut dice = Dice(20_261_121);
    let began = Instant::now();
    if let Conn::Sqlite(conn) = conn {
        conn.batch_execute("PRAGMA journal_mode = OFF; PRAGMA cache_size = -2000000")?;
    }
    let (mut made, mut wallets) = (0, Wallets::new());
    while made < count {
        let chunk = CHUNK.min(count - made);
        let mut rows = Rows::default();
        for number in made..made + chunk {
            let at = END - DAYS * DAY + (number as i64) * (DAYS * DAY / count as i64);
            record(shops, &mut dice, at, &mut wallets, &mut rows);
        }
        insert(conn, &rows)?;
        made += chunk;
        show(made, count);
    }
    eprintln!("{made} records after {:?}", began.elapsed());
    let now = Timestamp::from_unix_micros(END);
    conn.write(|conn| rollups::rebuild(conn, now))?;
    eprintln!("added up after {:?}", began.elapsed());
    match conn {
        Conn::Sqlite(conn) => conn.batch_execute("PRAGMA journal_mode = WAL")?,
        Conn::Postgres(conn) => conn.batch_execute("VACUUM (ANALYZE)")?,
    }
    eprintln!("ready after {:?}", began.elapsed());
    Ok(())
}

/// Shows a progress bar on a terminal.
fn show(made: usize, count: usize) {
    let percent = made * 100 / count.max(1);
    if std::io::stderr().is_terminal() {
        let bar = "█".repeat(percent / 4) + &"░".repeat(25 - percent / 4);
        let end = if made < count { "" } else { "\n" };
        eprint!("\r\x1b[2K{bar} {percent:3} %  {made} of {count} records{end}");
    }
}

fn insert(conn: &mut Conn, rows: &Rows) -> Result<()> {
    match conn {
        Conn::Sqlite(conn) => conn.transaction(|conn| {
            for row in &rows.records {
                diesel::insert_into(requests::table).values(row).execute(conn)?;
            }
            for row in &rows.pairs {
                diesel::insert_into(request_index::table).values(row).execute(conn)?;
            }
            for row in &rows.lines {
                diesel::insert_into(transactions::table).values(row).execute(conn)?;
            }
            diesel::QueryResult::Ok(())
        })?,
        Conn::Postgres(conn) => {
            diesel::copy_from(requests::table).from_insertable(&rows.records).execute(conn)?;
            diesel::copy_from(request_index::table).from_insertable(&rows.pairs).execute(conn)?;
            diesel::copy_from(transactions::table).from_insertable(&rows.lines).execute(conn)?;
        }
    }
    Ok(())
}

/// The metadata of a call. Nearly all have two common pairs, many a user, few a rare one.
fn metadata(dice: &mut Dice) -> Vec<(&'static str, String)> {
    let mut pairs = Vec::new();
    if dice.below(10) < 7 {
        let env = match dice.below(10_000) {
            0 => "canary",
            n if n < 1_000 => "dev",
            _ => "prod",
        };
        pairs.push(("env", env.to_owned()));
        pairs.push(("feature", format!("feature-{}", dice.skewed(8))));
    }
    if dice.below(10) < 3 {
        pairs.push(("user", format!("user-{}", dice.skewed(USERS))));
    }
    pairs
}

fn record(shops: &[Shop], dice: &mut Dice, at: i64, wallets: &mut Wallets, rows: &mut Rows) {
    let mut share = dice.below(100);
    let mut of = 0;
    while share >= MERCHANTS[of] {
        share -= MERCHANTS[of];
        of += 1;
    }
    let shop = &shops[of];
    let connection = &shop.connections[dice.skewed(CONNECTIONS as u64) as usize];
    let meter = match dice.below(100) {
        0..80 => Some(shop.meters[0]),
        80..95 => Some(shop.meters[1]),
        95 => Some(shop.meters[2]),
        _ => None,
    };
    let tokens = 50 + dice.below(3_000);
    let fee = if meter.is_some() { tokens * 100_000 } else { 0 };
    let fee_lines = match meter {
        Some(_) => format!(r#"[[0,"10","tokens_1m",{tokens},{fee}]]"#),
        None => "[]".to_owned(),
    };
    let wallet_cost = (tokens * 5_000 + fee) as i64;
    let at_time = Timestamp::from_unix_micros(at);
    let request_id = RequestId::generate(at_time).to_string();
    let merchant_id = shop.merchant.merchant_id.to_string();
    let metadata = metadata(dice);
    let map: serde_json::Map<_, _> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
    let meter = meter.map(|id| (":meter", id.to_string()));
    let connection_id = connection.connection_id.to_string();
    let ids = meter.clone().into_iter().chain([(":connection", connection_id.clone())]);
    rows.pairs.extend(metadata.into_iter().chain(ids).map(|(key, value)| Pair {
        merchant_id: merchant_id.clone(),
        key,
        value,
        request_id: request_id.clone(),
    }));
    let wallet_id = connection.wallet_id.to_string();
    let (number, balance_after) = wallets.entry(wallet_id.clone()).or_default();
    *number += 1;
    *balance_after -= wallet_cost;
    rows.lines.push(LedgerLine {
        transaction_id: TransactionId::generate(at_time).to_string(),
        wallet_id: wallet_id.clone(),
        account: "balance",
        number: *number,
        kind: "usage",
        amount: -wallet_cost,
        balance_after: *balance_after,
        request_id: Some(request_id.clone()),
        description: None,
        idempotency_key: None,
        created_at: at,
    });
    rows.records.push(Record {
        merchant_id,
        connection_id,
        wallet_id,
        merchant_wallet_id: shop.merchant.wallet_id.to_string(),
        meter_version: meter.as_ref().map(|_| 1),
        meter_id: meter.map(|(_, id)| id),
        disable_billing: false,
        status: "completed",
        wallet_cost,
        merchant_cost: 0,
        counted_units: tokens as i64,
        swept: false,
        forwarded: format!(
            r#"{{"provider":"openai","endpoint":"POST https://api.openai.com/v1/chat/completions","model":"gpt-4o-mini","metadata":{}}}"#,
            serde_json::Value::from(map),
        ),
        outcome: format!(
            r#"{{"model":"gpt-4o-mini-2024-07-18","response_id":"chatcmpl-CLpzs3xQ1Y5uW7Jm","provider_status":200,"timestamp":{at},"settled_at":{at},"usage":{{"quantities":{{"input":{tokens},"output":{}}}}},"base":[{},{}],"fee":{fee_lines},"costs":[{wallet_cost},0],"counted_units":{tokens}}}"#,
            tokens / 5,
            tokens * 4_000,
            tokens * 1_000,
        ),
        created_at: at,
        request_id,
    });
}

/// A kind of query. Each query of a kind is drawn at random.
type Question = fn(&Shop, &mut Dice) -> RequestFilter;

const QUESTIONS: [(&str, Question); 13] = [
    ("no filter", |_, _| RequestFilter::default()),
    ("connection", |shop, dice| of_connection(shop, dice, Vec::new())),
    ("meter, common", |shop, _| of_meter(shop, 0, Vec::new())),
    ("meter, rare", |shop, _| of_meter(shop, 2, Vec::new())),
    ("connection + meter, rare", |shop, dice| RequestFilter {
        meter_id: Some(shop.meters[2]),
        ..of_connection(shop, dice, Vec::new())
    }),
    ("env = prod", |_, _| with(vec![prod()])),
    ("env = canary", |_, _| with(vec![("env".to_owned(), "canary".to_owned())])),
    ("user", |_, dice| with(vec![user(dice)])),
    ("env = prod, feature", |_, dice| with(vec![prod(), feature(dice)])),
    ("env = prod, user", |_, dice| with(vec![prod(), user(dice)])),
    ("env = prod, meter, rare", |shop, _| of_meter(shop, 2, vec![prod()])),
    ("env = prod, connection", |shop, dice| of_connection(shop, dice, vec![prod()])),
    ("user, connection", |shop, dice| {
        let pairs = vec![user(dice)];
        of_connection(shop, dice, pairs)
    }),
];

fn with(metadata: Vec<(String, String)>) -> RequestFilter {
    RequestFilter { metadata, ..RequestFilter::default() }
}

fn of_connection(shop: &Shop, dice: &mut Dice, metadata: Vec<(String, String)>) -> RequestFilter {
    let connection = &shop.connections[dice.skewed(CONNECTIONS as u64) as usize];
    RequestFilter { connection_id: Some(connection.connection_id), ..with(metadata) }
}

fn of_meter(shop: &Shop, number: usize, metadata: Vec<(String, String)>) -> RequestFilter {
    RequestFilter { meter_id: Some(shop.meters[number]), ..with(metadata) }
}

fn prod() -> (String, String) {
    ("env".to_owned(), "prod".to_owned())
}

fn feature(dice: &mut Dice) -> (String, String) {
    ("feature".to_owned(), format!("feature-{}", dice.skewed(8)))
}

fn user(dice: &mut Dice) -> (String, String) {
    ("user".to_owned(), format!("user-{}", dice.skewed(USERS)))
}

fn measure(conn: &mut Conn, shops: &[Shop]) -> Result<()> {
    const TIMES: usize = 200;
    let mut dice = Dice(4);
    println!(
        "| filter | list p50 | p95 | deep page p50 | p95 | 90 days p50 | p95 | at +05:45 p50 | p95 |"
    );
    println!("|---|{}", "---:|".repeat(8));
    for (name, question) in QUESTIONS {
        let mut columns = [const { Vec::new() }; 4];
        for _ in 0..TIMES {
            // Half of the queries are the largest merchant's.
            let shop = &shops[dice.below(8).saturating_sub(4) as usize];
            let id = shop.merchant.merchant_id;
            let filter = question(shop, &mut dice);
            let back =
                Timestamp::from_unix_micros(END - (dice.below(60 * 86_400) as i64) * 1_000_000);
            let deep = Some(RequestId::generate(back));
            for (column, after) in [(0, None), (1, deep)] {
                let began = Instant::now();
                records::list(conn, id, &filter, HowEnded::Anyhow, &Page { after, limit: 10 })?;
                columns[column].push(began.elapsed());
            }
            for (column, offset) in [(2, "Z"), (3, "+05:45")] {
                let end = Timestamp::from_unix_micros(END).to_string().replace('Z', offset);
                let end: LocalTime = end.parse()?;
                let span = Span::new(end.minus_days(DAYS), end);
                let span = span.ok().context("a span")?;
                let began = Instant::now();
                usage::by_day(conn, id, &filter, &span)?;
                columns[column].push(began.elapsed());
            }
        }
        print!("| {name} |");
        for times in &mut columns {
            times.sort();
            let at = |percent: usize| times[times.len() * percent / 100].as_micros();
            print!(" {} | {} |", at(50), at(95));
        }
        println!();
    }
    Ok(())
}
