//! A measurement of lists and sums among many records.
//!
//! `cargo run --release -p tollgate-store --example lists -- URL RECORDS` makes RECORDS calls of 90 days in the
//! empty database at URL, folds them, and measures. The table is in microseconds. With RECORDS 0, a database
//! that was filled before is measured again. With `fill` as a further argument, nothing is measured. With `one`,
//! all records are of one merchant. With `archive FOLDER DAYS`, months that are older than DAYS days are archived there first,
//! while calls are made, and deep pages begin in the archive. A last word such as `300s` ends the
//! archiving after that time. With `quiet`, no calls are made meanwhile, and nothing ends it.

#![expect(
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a program of its own, for measuring"
)]

mod archiving;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use diesel::Connection;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::*;
use tollgate_pricing::*;
use tollgate_store::requests::{self as records, RequestFilter};
use tollgate_store::wallets::WalletMovement;
use tollgate_store::{
    ArchiveOptions, Conn, DatabaseUrl, Options, Page, RecordArchive, SettleOutcome, Store,
    StoreError, merchants, meters, usage, wallets,
};
use tollgate_testkit::store::{a_call, amount, answered};

const END: i64 = 1_795_219_200_000_000;
const DAYS: i64 = 90;
const DAY: i64 = 86_400_000_000;
/// The share of each merchant in a hundred records.
const MERCHANTS: &[u64] = &[50, 30, 15, 5];
const ONE_MERCHANT: &[u64] = &[100];
const CONNECTIONS: usize = 250;
const METERS: usize = 3;
const MODELS: u64 = 8;
const USERS: u64 = 20_000;
/// The number of calls at a time.
const CALLERS: usize = 256;

struct BenchShop {
    merchant: Merchant,
    key: SecretKeyId,
    connections: Vec<tollgate_domain::Connection>,
    /// Each with its slug.
    meters: Vec<(MeterId, String)>,
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
        bail!("lists URL RECORDS [fill] [one] [quiet] [archive FOLDER DAYS [LIMITs]]");
    };
    let words: Vec<_> = arguments.collect();
    let has = |word: &str| words.iter().any(|one| one == word);
    let shares = if has("one") { ONE_MERCHANT } else { MERCHANTS };
    let url: DatabaseUrl = url.parse()?;
    let count: usize = count.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Ids grow, so no id may be made at a later time than the calls.
    let clock = Clock::manual(Timestamp::from_unix_micros(END - DAYS * DAY));
    let archive = words.iter().position(|word| word == "archive");
    let archive = archive.and_then(|place| Some((words.get(place + 1)?, words.get(place + 2)?)));
    let options = Options {
        serve: true,
        clock: clock.clone(),
        archive: archive
            .map(|(folder, _)| ArchiveOptions { url: format!("file://{folder}"), endpoint: None }),
        ..Options::default()
    };
    let store = Store::open(&url, &options)?;
    runtime.block_on(async {
        if count > 0 {
            set_up(&store, shares.len()).await?;
        }
        let shops = store.read(shops).await?;
        tokio::select! {
            () = tollgate_store::upkeep::run(store.clone()) => {}
            filled = fill(&store, &shops, shares, count) => filled?,
        }
        if let Some((_, days)) = archive {
            clock.advance_millis(DAYS * DAY / 1_000);
            let limit = words.last().and_then(|last| last.strip_suffix('s')?.parse().ok());
            let limit = Duration::from_secs(limit.unwrap_or(u64::from(u32::MAX)));
            match has("quiet") {
                true => drop(store.archive_months(days.parse()?).await?),
                false => archiving::run(&store, (&shops, shares), days.parse()?, limit).await?,
            }
        }
        store.close().await?;
        anyhow::Ok(())
    })?;
    let shops = runtime.block_on(store.read(shops))?;
    if has("fill") {
        return Ok(());
    }
    if let DatabaseUrl::Postgres(url) = &url {
        PgConnection::establish(url)?.batch_execute("VACUUM (ANALYZE)")?;
    }
    let months = runtime.block_on(store.archived_months())?;
    let cold = months.last().map(|last| last.month.parse::<Month>()).transpose();
    let cold = cold.map_err(|_| anyhow::anyhow!("it is no month"))?;
    let cold = cold.map(|month| month.range(&TimeZone::UTC).end);
    runtime.block_on(store.read_records(move |conn, archive| measure(conn, &shops, archive, cold)))
}

async fn set_up(store: &Store, merchants: usize) -> Result<()> {
    let now = Timestamp::from_unix_micros(END - DAYS * DAY);
    for _ in 0..merchants {
        let made = store.write(move |conn| merchants::create(conn, "Shop", now)).await?;
        let merchant_id = made.merchant.merchant_id;
        store
            .write(move |conn| {
                for number in 0..METERS {
                    let tiers = vec![Tier { start: 0, rate: 10.into() }];
                    let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers);
                    let new = NewMeter {
                        name: format!("Meter {number}"),
                        slug: Some(format!("meter-{number}")),
                        tier_period: TierPeriod::Lifetime,
                        model: meter.unwrap_or_else(|_| unreachable!("it is a good one")).into(),
                    };
                    let _ = meters::create(conn, merchant_id, &new, now)?;
                }
                for _ in 0..CONNECTIONS {
                    let new = NewConnection::default();
                    let made = tollgate_store::connections::create(conn, merchant_id, &new, now)?;
                    let made = made.unwrap_or_else(|| unreachable!("it names no budget"));
                    let credit = WalletMovement {
                        kind: TransactionKind::Credit,
                        amount: amount("1000000"),
                        description: None,
                    };
                    let wallet_id = made.connection.wallet_id;
                    let _ = wallets::book(conn, merchant_id, wallet_id, &credit, now)?;
                }
                Ok::<_, StoreError>(())
            })
            .await?;
    }
    Ok(())
}

fn shops(conn: &mut Conn) -> Result<Vec<BenchShop>, StoreError> {
    let mut shops = Vec::new();
    for merchant in merchants::list(conn, &Page { after: None, limit: 100 })? {
        let id = merchant.merchant_id;
        let page = Page { after: None, limit: 1_000 };
        let connections = tollgate_store::connections::list(conn, id, &page)?;
        let page = Page { after: None, limit: 100 };
        let meters = meters::list(conn, id, &page)?.into_iter();
        let meters = meters.map(|meter| (meter.meter_id, meter.slug)).collect();
        let keys = merchants::list_secret_keys(conn, id, &Page { after: None, limit: 1 })?;
        let key = keys.first().map(|key| key.secret_key_id);
        let key = key.unwrap_or_else(|| unreachable!("a merchant has a key"));
        shops.push(BenchShop { merchant, key, connections, meters });
    }
    Ok(shops)
}

/// Makes calls whose times are spread over all days.
async fn fill(store: &Store, shops: &[BenchShop], shares: &[u64], count: usize) -> Result<()> {
    let mut dice = Dice(20_261_121);
    let began = Instant::now();
    let calls = (0..count).map(|number| {
        let at = END - DAYS * DAY + (number as i64) * (DAYS * DAY / count as i64);
        call(shops, shares, &mut dice, Timestamp::from_unix_micros(at))
    });
    let made = stream::iter(calls).map(async |(call, report)| {
        let request_id = call.request_id;
        let admitted = store.admit(Box::new(call)).await?;
        admitted.map_err(|refused| anyhow::anyhow!("{refused:?}"))?;
        // On a busy machine, a settlement can take longer than the store waits for it.
        loop {
            match store.settle(request_id, report.clone()).await {
                SettleOutcome::Settled(_) | SettleOutcome::AlreadySettled => return Ok(()),
                SettleOutcome::NotSettled => {}
                other => bail!("{other:?}"),
            }
        }
    });
    let made = made.buffer_unordered(CALLERS).enumerate();
    made.map(|(number, made)| made.map(|()| number + 1))
        .try_for_each(async |made| {
            show(made, count);
            Ok(())
        })
        .await?;
    store.fold().await?;
    if count > 0 {
        store.write(settle_in_time).await?;
    }
    eprintln!("{count} records after {:?}", began.elapsed());
    Ok(())
}

/// Gives all records and ledger lines the times of their calls. The clock of the store has stood still.
fn settle_in_time(conn: &mut Conn) -> Result<(), StoreError> {
    let settled = "UPDATE requests SET settled_at = created_at";
    let booked = |id: &str| {
        format!(
            "UPDATE transactions SET created_at = r.created_at, transaction_id = {id} FROM requests AS r \
             WHERE transactions.merchant_id = r.merchant_id AND transactions.request_id = r.request_id"
        )
    };
    match conn {
        Conn::Sqlite(conn) => {
            let id = "unhex(hex(substr(r.request_id, 1, 6)) || hex(substr(transaction_id, 7)))";
            conn.batch_execute(&format!("{settled}; {}", booked(id)))?;
        }
        Conn::Postgres(conn) => {
            let id = "substr(r.request_id, 1, 6) || substr(transaction_id, 7)";
            conn.batch_execute(&format!("{settled}; {}", booked(id)))?;
        }
    }
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

/// A random call, and how it ends.
fn call(
    shops: &[BenchShop],
    shares: &[u64],
    dice: &mut Dice,
    at: Timestamp,
) -> (Call, settlement::CallReport) {
    let mut share = dice.below(100);
    let mut of = 0;
    while share >= shares[of] {
        share -= shares[of];
        of += 1;
    }
    let shop = &shops[of];
    let meter = match dice.below(100) {
        0..80 => Some(0),
        80..95 => Some(1),
        95 => Some(2),
        _ => None,
    };
    let mut call = Call {
        connection_id: Some(
            shop.connections[dice.skewed(CONNECTIONS as u64) as usize].connection_id,
        ),
        meter_slug: meter.map(|number: usize| shop.meters[number].1.clone()),
        ..a_call(shop.merchant.merchant_id, CallKey::Secret(shop.key), at)
    };
    let pairs: serde_json::Map<_, _> =
        metadata(dice).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    call.forwarded.metadata = Metadata::from_json(&pairs.into()).unwrap_or_default();
    let tokens = 50 + dice.below(3_000);
    let report = answered(tokens, &format!("0.{:010}", tokens * 5_000));
    let model = Some(format!("model-{}", dice.skewed(MODELS)));
    (call, settlement::CallReport { timestamp: at, model, ..report })
}

/// A kind of query. Each query of a kind is drawn at random.
type FilterGenerator = fn(&BenchShop, &mut Dice) -> RequestFilter;

const FILTERS: [(&str, FilterGenerator); 13] = [
    ("no filter", |_, _| RequestFilter::default()),
    ("connection", |shop, dice| of_connection(shop, dice, Vec::new())),
    ("meter, common", |shop, _| of_meter(shop, 0, Vec::new())),
    ("meter, rare", |shop, _| of_meter(shop, 2, Vec::new())),
    ("connection + meter, rare", |shop, dice| RequestFilter {
        meter_id: Some(shop.meters[2].0),
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

fn of_connection(
    shop: &BenchShop,
    dice: &mut Dice,
    metadata: Vec<(String, String)>,
) -> RequestFilter {
    let connection = &shop.connections[dice.skewed(CONNECTIONS as u64) as usize];
    RequestFilter { connection_id: Some(connection.connection_id), ..with(metadata) }
}

fn of_meter(shop: &BenchShop, number: usize, metadata: Vec<(String, String)>) -> RequestFilter {
    RequestFilter { meter_id: Some(shop.meters[number].0), ..with(metadata) }
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

/// Deep pages begin before `cold`, the end of the archived months, if there are any.
fn measure(
    conn: &mut Conn,
    shops: &[BenchShop],
    archive: &RecordArchive,
    cold: Option<Timestamp>,
) -> Result<()> {
    const TIMES: usize = 200;
    const AT_MOST: Duration = Duration::from_secs(20);
    let mut dice = Dice(4);
    println!(
        "| filter | list p50 | p95 | deep page p50 | p95 | 90 days p50 | p95 | at +05:45 p50 | p95 |"
    );
    println!("|---|{}", "---:|".repeat(8));
    for (name, question) in FILTERS {
        let mut columns = [const { Vec::new() }; 4];
        let began = Instant::now();
        for _ in (0..TIMES).take_while(|_| began.elapsed() < AT_MOST) {
            // Half of the queries are the largest merchant's.
            let number = dice.below(8).saturating_sub(4) as usize;
            let shop = &shops[number.min(shops.len() - 1)];
            let id = shop.merchant.merchant_id;
            let filter = question(shop, &mut dice);
            let newest = cold.map_or(END, Timestamp::unix_micros);
            let days = (newest - (END - DAYS * DAY)) / DAY;
            let seconds = dice.below((days.max(1) as u64).min(60) * 86_400) as i64;
            let deep =
                Some(RequestId::least(Timestamp::from_unix_micros(newest - seconds * 1_000_000)));
            for (column, after) in [(0, None), (1, deep)] {
                let began = Instant::now();
                let filter = filter.clone().into();
                records::list(conn, archive, id, &filter, &Page { after, limit: 10 })?;
                columns[column].push(began.elapsed());
            }
            for (column, offset) in [(2, "Z"), (3, "+05:45")] {
                let end = Timestamp::from_unix_micros(END).to_string().replace('Z', offset);
                let end: LocalTime = end.parse()?;
                let start = end.minus_days(DAYS).instant();
                let span = TimeSpan::new(start, end.instant(), end.zone(), Interval::Day);
                let span = span.ok().context("a span")?;
                let began = Instant::now();
                usage::sums(conn, archive, id, &filter, &[], &span)?;
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
