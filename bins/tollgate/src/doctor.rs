//! `tollgate doctor`: checks what a service depends on, a line for each check.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::Method;
use actix_web::http::header::HeaderMap;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use time::format_description::well_known::Rfc2822;
use time::{Date, OffsetDateTime};
use tollgate_domain::{Clock, MerchantId, Timestamp};
use tollgate_pricing::Catalog;
use tollgate_provider::{
    Provider, ProviderClient, ProviderKey, RequestBody, Timeouts, UpstreamRequest, WebhookClient,
    request_headers,
};
use tollgate_store::price_lists::{self, StoredPriceList};
use tollgate_store::{DatabaseUrl, Page, Store, StoreError, merchants, webhooks};

use crate::config::TollgateConfig;
use crate::database::open;
use crate::output::{print, printable};

/// The time that a check waits for another machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time of a durable write above which a disk is called slow.
const SLOW_DISK: Duration = Duration::from_millis(20);
/// The difference of clocks that is reported. `Date` headers have whole seconds.
const CLOCK_DIFFERENCE_SECONDS: i64 = 5;
/// The age of prices that is reported.
const OLD_PRICES_DAYS: i64 = 60;
/// The least number of files that a service needs.
const LEAST_FILES: u64 = 1_024;
/// The files that a connection needs at most.
const FILES_PER_CONNECTION: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckStatus {
    Ok,
    Note,
    Failed,
}

impl CheckStatus {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Failed => "failed",
        }
    }
}

/// The checks so far.
struct Report {
    json: bool,
    has_failed: bool,
}

impl Report {
    /// Prints a check.
    fn add(&mut self, status: CheckStatus, check: &str, detail: &str) -> anyhow::Result<()> {
        self.has_failed |= status == CheckStatus::Failed;
        let word = status.word();
        let value = json!({"check": check, "status": word, "detail": detail});
        let text = format!("{word:<6}  {:<24}  {}", printable(check), printable(detail));
        print(self.json, &value, &text)
    }
}

/// Runs all checks. Returns whether none has failed.
pub(crate) async fn run(config: &TollgateConfig, json: bool) -> anyhow::Result<bool> {
    use CheckStatus::{Failed, Note, Ok as Good};
    let mut report = Report { json, has_failed: false };
    match config.warnings().as_slice() {
        [] => report.add(Good, "configuration", "is valid")?,
        notes => notes.iter().try_for_each(|note| report.add(Note, "configuration", note))?,
    }
    let store = match open(config) {
        Ok(store) => {
            report.add(Good, "database", &format!("{:?} is up to date", config.database_url))?;
            Some(store)
        }
        Err(why) => {
            report.add(Failed, "database", &format!("{why:#}"))?;
            None
        }
    };
    check_disk(config, &mut report)?;
    check_files(config, &mut report)?;
    let stored = match &store {
        Some(store) if config.prices_public_key.is_some() => {
            store.read(|conn| price_lists::latest(conn, None)).await
        }
        _ => Ok(None),
    };
    match stored {
        Ok(stored) => check_prices(config, stored, &mut report)?,
        Err(cause) => report.add(Failed, "prices", &cause.to_string())?,
    }
    if let Some(store) = &store {
        check_archive(config, store, &mut report).await?;
    }
    let mut clocks = Vec::new();
    for provider in config.providers.iter().filter(|one| one.takes_managed_calls()) {
        let at = check_provider(provider, &mut report).await?;
        let ahead = at.map(|at| (OffsetDateTime::now_utc() - at).whole_seconds());
        clocks.extend(ahead.map(|ahead| (provider.name.as_str(), ahead)));
    }
    if !config.providers.iter().any(|one| one.has_api_key()) {
        let how = "no provider has a key: set one, such as TOLLGATE_PROVIDERS__OPENAI__API_KEY";
        report.add(Note, "provider keys", how)?;
    }
    check_clock(&clocks, &mut report)?;
    if let Some(store) = store {
        check_webhooks(config, &store, &mut report).await?;
        store.close().await?;
    }
    Ok(!report.has_failed)
}

/// Measures a durable write where settlements are made durable by this process.
fn check_disk(config: &TollgateConfig, report: &mut Report) -> anyhow::Result<()> {
    let folder = match (&config.database_url, &config.journal_dir) {
        (DatabaseUrl::Sqlite(file), _) => file.parent(),
        (_, Some(journal)) => journal.parent(),
        _ => None,
    };
    let folder = folder.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match sync_time(folder) {
        Ok(took) => {
            let detail = format!(
                "a durable write in {} takes {}.{:02} ms",
                folder.display(),
                took.as_micros() / 1_000,
                took.as_micros() % 1_000 / 10
            );
            let status = if took > SLOW_DISK { CheckStatus::Note } else { CheckStatus::Ok };
            report.add(status, "disk", &detail)
        }
        Err(cause) => {
            let detail = format!("cannot write in {}: {cause}", folder.display());
            report.add(CheckStatus::Failed, "disk", &detail)
        }
    }
}

/// The median time of a small durable write in a directory.
fn sync_time(folder: &Path) -> std::io::Result<Duration> {
    const WRITES: usize = 9;
    let mut file = tempfile::tempfile_in(folder)?;
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let begun = Instant::now();
        file.write_all(&[0; 4_096])?;
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times.get(WRITES / 2).copied().unwrap_or_default())
}

/// Compares the limit of open files, which `serve` raises to its maximum, with the connections.
fn check_files(config: &TollgateConfig, report: &mut Report) -> anyhow::Result<()> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let connections = u64::try_from(config.settings.clients.max_connections).unwrap_or(u64::MAX);
    let needed = connections.saturating_mul(FILES_PER_CONNECTION);
    let detail = format!("at most {most} can be open");
    match most {
        ..LEAST_FILES => report.add(CheckStatus::Failed, "files", &detail),
        _ if most < needed => {
            let more = format!("{detail}; {connections} connections may need {needed}");
            report.add(CheckStatus::Note, "files", &more)
        }
        _ => report.add(CheckStatus::Ok, "files", &detail),
    }
}

/// Reads the manifests of the months that are in the archive.
async fn check_archive(
    config: &TollgateConfig,
    store: &Store,
    report: &mut Report,
) -> anyhow::Result<()> {
    match (store.archived_months().await, &config.archive) {
        (Err(cause), _) => report.add(CheckStatus::Failed, "archive", &cause.to_string()),
        (Ok(months), place) => match (months.last(), place) {
            (Some(last), _) => {
                report.add(CheckStatus::Ok, "archive", &format!("has months until {}", last.month))
            }
            (None, Some(_)) => {
                report.add(CheckStatus::Note, "archive", "has no month yet, and was not tried")
            }
            (None, None) => Ok(()),
        },
    }
}

/// Reports the age of the prices: those of the list in the database, if it is used.
fn check_prices(
    config: &TollgateConfig,
    stored: Option<StoredPriceList>,
    report: &mut Report,
) -> anyhow::Result<()> {
    if let Some(list) = &stored
        && let Err(cause) = Catalog::from_json(&list.list)
    {
        let detail = format!("price list {} of the database cannot be read: {cause}", list.number);
        return report.add(CheckStatus::Failed, "prices", &detail);
    }
    let is_stored = stored.is_some();
    let (name, day) = match (stored, &config.catalog) {
        (Some(StoredPriceList { number, released, .. }), _) => {
            (format!("price list {number} of the database"), parse_day(&released))
        }
        (None, Some(file)) => {
            let changed = file.metadata().and_then(|metadata| metadata.modified());
            let day = changed.ok().map(|at| OffsetDateTime::from(at).date());
            (file.display().to_string(), day)
        }
        // The day of the commit that the program is built from, which has its catalogue.
        (None, None) => ("the built-in catalogue".to_owned(), parse_day(env!("BUILD_DAY"))),
    };
    let today = Clock::system().now().date();
    match day.map(|day| (today - day).whole_days()) {
        None => report.add(CheckStatus::Ok, "prices", &format!("{name}, of unknown age")),
        Some(days @ ..=OLD_PRICES_DAYS) => {
            report.add(CheckStatus::Ok, "prices", &format!("{name}, {days} days old"))
        }
        Some(days) => {
            let how = match is_stored {
                true => "release a newer one",
                false => "compare it by `tollgate prices import --dry-run`",
            };
            report.add(CheckStatus::Note, "prices", &format!("{name} is {days} days old: {how}"))
        }
    }
}

fn parse_day(day: &str) -> Option<Date> {
    let format = time::macros::format_description!("[year]-[month]-[day]");
    Date::parse(day, format).ok()
}

/// Asks a provider for its models with the operator's key. Returns the provider's time.
async fn check_provider(
    provider: &Arc<Provider>,
    report: &mut Report,
) -> anyhow::Result<Option<OffsetDateTime>> {
    use CheckStatus::{Failed, Note, Ok as Good};
    let check = format!("provider {}", provider.name);
    let endpoint = provider.endpoint_at(&Method::GET, "/models", None).ok();
    let Some(endpoint) = endpoint.filter(|endpoint| endpoint.allows_managed_key()) else {
        report.add(Good, &check, "has no free operation that can try the key")?;
        return Ok(None);
    };
    // Providers see a hash of the merchant; no merchant has this id.
    let no_merchant = MerchantId::least(Timestamp::from_unix_micros(0));
    let headers =
        request_headers(&HeaderMap::new(), &endpoint, &ProviderKey::Managed, no_merchant, false);
    let client = ProviderClient::new(Timeouts {
        connect: PATIENCE,
        first_byte: PATIENCE,
        ..Timeouts::default()
    });
    let begun = Instant::now();
    let request = UpstreamRequest {
        endpoint: &endpoint,
        method: Method::GET,
        headers,
        body: RequestBody::default(),
        managed: true,
    };
    let answer = match client.send(request).await {
        Ok(answer) => answer,
        Err(cause) => {
            report.add(
                Failed,
                &check,
                &format!("{} gave no answer: {cause}", provider.base_url),
            )?;
            return Ok(None);
        }
    };
    let (status, millis) = (answer.status, begun.elapsed().as_millis());
    match status {
        200..300 if !provider.has_api_key() => {
            report.add(Good, &check, &format!("answers without a key, in {millis} ms"))?;
        }
        200..300 => report.add(Good, &check, &format!("takes the key, in {millis} ms"))?,
        401 | 403 => {
            report.add(Failed, &check, &format!("refuses the key with status {status}"))?
        }
        404 | 405 => {
            report.add(Note, &check, "answers, but has no list of models to try the key")?
        }
        _ => report.add(Failed, &check, &format!("answers with status {status}"))?,
    }
    let date = answer.headers.get("date").and_then(|date| date.to_str().ok());
    Ok(date.and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok()))
}

/// Compares this clock with those of providers, given as the seconds by which this one is ahead. One that agrees is
/// enough, because a provider's clock can be wrong, too.
fn check_clock(clocks: &[(&str, i64)], report: &mut Report) -> anyhow::Result<()> {
    let Some((provider, ahead)) = clocks.iter().min_by_key(|(_, ahead)| ahead.unsigned_abs())
    else {
        let detail = "is not compared, because no provider answered";
        return report.add(CheckStatus::Note, "clock", detail);
    };
    let detail = match ahead {
        0 => format!("agrees with that of {provider}"),
        1.. => format!("is {ahead} s ahead of that of {provider}"),
        _ => format!("is {} s behind that of {provider}", ahead.unsigned_abs()),
    };
    let is_near = ahead.abs() <= CLOCK_DIFFERENCE_SECONDS;
    report.add(if is_near { CheckStatus::Ok } else { CheckStatus::Failed }, "clock", &detail)
}

/// Asks the URL of every webhook for its head.
async fn check_webhooks(
    config: &TollgateConfig,
    store: &Store,
    report: &mut Report,
) -> anyhow::Result<()> {
    let found = store.read(|conn| {
        let everything = Page { after: None, limit: u32::MAX };
        let mut found = Vec::new();
        for merchant in merchants::list(conn, &everything)? {
            let all = Page { after: None, limit: u32::MAX };
            found.extend(webhooks::list(conn, merchant.merchant_id, &all)?);
        }
        Ok::<_, StoreError>(found)
    });
    let client = WebhookClient::new(config.settings.webhooks, &config.settings.resolver);
    for webhook in found.await? {
        let check = format!("webhook {}", webhook.name);
        match client.probe(&webhook.url).await {
            Ok(status) => {
                let detail = format!("{} answers with status {status}", webhook.url);
                report.add(CheckStatus::Ok, &check, &detail)?;
            }
            Err(fault) => {
                let word = serde_json::to_value(fault)?;
                let word = word.as_str().unwrap_or_default().replace('_', " ");
                let detail = format!("{} gives no answer: {word}", webhook.url);
                report.add(CheckStatus::Failed, &check, &detail)?;
            }
        }
    }
    Ok(())
}
