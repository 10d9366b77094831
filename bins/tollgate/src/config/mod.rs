//! The configuration: a TOML file, every key of it optional, and the environment, which wins.

mod section;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use time::Date;
use tollgate_api::{InterfaceShape, OnDisconnect, Settings, Unpriced};
use tollgate_pricing::{
    Catalog, CatalogFile, ModelPattern, PriceBook, PriceRow, Rate, Unit, UnitPrices, import,
};
use tollgate_provider::{ProviderSettings, ProviderTable, Timeouts};
use tollgate_store::{DatabaseUrl, Options};
use toml::{Table, Value};

use section::Section;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Everything an operator has chosen, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listen: String,
    pub(crate) database_url: DatabaseUrl,
    pub(crate) journal_dir: PathBuf,
    pub(crate) migrate_on_start: bool,
    pub(crate) service_charge_rate: Rate,
    pub(crate) drain_timeout: Duration,
    pub(crate) log_format: LogFormat,
    pub(crate) settings: Settings,
    pub(crate) providers: ProviderTable,
    pub(crate) prices: PriceBook,
    /// The file in place of the built-in catalogue.
    pub(crate) catalog: Option<PathBuf>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug)]
pub(crate) struct Mistakes(Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration is not valid:")?;
        self.0.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl std::error::Error for Mistakes {}

impl Config {
    /// Reads a configuration file, if one is named, and the environment.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let table = match file {
            None => Table::new(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                text.parse().with_context(|| format!("{} is not TOML", file.display()))?
            }
        };
        let folder = file.and_then(Path::parent).map(Path::to_owned);
        Ok(Self::from_parts(table, std::env::vars(), folder)?)
    }

    /// A configuration from a table and the environment's variables, which win.
    pub(crate) fn from_parts(
        mut table: Table,
        environment: impl IntoIterator<Item = (String, String)>,
        folder: Option<PathBuf>,
    ) -> Result<Self, Mistakes> {
        overlay(&mut table, environment);
        let mut mistakes = Vec::new();
        let config = Self::from_section(Section::new("", table, &mut mistakes), folder);
        match (config, mistakes.is_empty()) {
            (Some(config), true) => Ok(config),
            _ => Err(Mistakes(mistakes)),
        }
    }

    fn from_section(mut root: Section<'_>, folder: Option<PathBuf>) -> Option<Self> {
        let database_url =
            root.take("database_url").unwrap_or(DatabaseUrl::Sqlite("tollgate.db".into()));
        let journal_dir: Option<PathBuf> = root.take("journal_dir");
        let settings = settings(&mut root);
        let providers = providers(&mut root);
        // Beside the configuration, as what it names usually is.
        let catalog: Option<PathBuf> = root.take("catalog");
        let catalog = catalog.map(|file| folder.clone().unwrap_or_default().join(file));
        let prices = prices(&mut root, &providers, catalog.as_deref());
        let config = Self {
            listen: root.take("listen").unwrap_or_else(|| "127.0.0.1:8080".to_owned()),
            journal_dir: journal_dir.unwrap_or_else(|| journal_beside(&database_url, folder)),
            database_url,
            migrate_on_start: root.take("migrate_on_start").unwrap_or(true),
            service_charge_rate: root.take("service_charge_rate").unwrap_or(Rate::ZERO),
            drain_timeout: millis(&mut root, "drain_timeout_ms", 30_000),
            log_format: root
                .word("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
                .unwrap_or(LogFormat::Text),
            settings,
            providers,
            prices: prices?,
            catalog,
        };
        root.finish();
        Some(config)
    }

    /// How the store is to be opened.
    pub(crate) fn store_options(&self, serve: bool) -> Options {
        Options {
            serve,
            migrate: self.migrate_on_start,
            service_charge_rate: self.service_charge_rate,
            journal: serve.then(|| self.journal_dir.clone()),
            ..Options::default()
        }
    }
}

/// Puts `TOLLGATE_A__B=x` over `a.b`. The file itself is named by a variable, too.
fn overlay(table: &mut Table, environment: impl IntoIterator<Item = (String, String)>) {
    // The order of providers means something, and that of an environment is chance.
    let environment: BTreeMap<_, _> = environment.into_iter().collect();
    for (name, value) in environment {
        let Some(path) = name.strip_prefix("TOLLGATE_").filter(|path| *path != "CONFIG") else {
            continue;
        };
        let path = path.to_lowercase();
        let keys: Vec<_> = path.split("__").collect();
        let Some((last, tables)) = keys.split_last() else { continue };
        let mut place = &mut *table;
        for key in tables {
            let below = place.entry(*key).or_insert_with(|| Value::Table(Table::new()));
            if !below.is_table() {
                *below = Value::Table(Table::new());
            }
            let Value::Table(below) = below else { return };
            place = below;
        }
        place.insert((*last).to_owned(), Value::String(value));
    }
}

/// The journal must survive restarts, so it is kept where the operator keeps other things.
fn journal_beside(database: &DatabaseUrl, folder: Option<PathBuf>) -> PathBuf {
    let beside_database = match database {
        DatabaseUrl::Sqlite(path) => path.parent().map(Path::to_owned),
        DatabaseUrl::SqliteTemporary => Some(std::env::temp_dir()),
        DatabaseUrl::Postgres(_) => None,
    };
    folder.or(beside_database).unwrap_or_default().join("tollgate-journal")
}

fn millis(section: &mut Section<'_>, key: &str, default: u64) -> Duration {
    Duration::from_millis(section.take(key).unwrap_or(default))
}

fn settings(root: &mut Section<'_>) -> Settings {
    let default = Settings::default();
    let mut limit = |key: &str, default: usize| root.take(key).unwrap_or(default);
    let forward_body_limit_bytes =
        limit("forward_body_limit_bytes", default.forward_body_limit_bytes);
    let body_limit_bytes = limit("body_limit_bytes", default.body_limit_bytes);
    let shapes = [("current", InterfaceShape::Current), ("earlier", InterfaceShape::Earlier)];
    let on_disconnect = [("drain", OnDisconnect::Drain), ("cancel", OnDisconnect::Cancel)];
    let unpriced = [
        ("refuse_managed", Unpriced::RefuseManaged),
        ("refuse", Unpriced::Refuse),
        ("allow", Unpriced::Allow),
    ];
    Settings {
        operator_token: root.take::<String>("operator_token").filter(|token| !token.is_empty()),
        shape: root.word("interface_shape", &shapes).unwrap_or_default(),
        on_disconnect: root.word("on_disconnect", &on_disconnect).unwrap_or_default(),
        unpriced: root.word("unpriced", &unpriced).unwrap_or_default(),
        disconnect_drain_max: millis(root, "disconnect_drain_max_ms", 120_000),
        disconnect_drain_max_bytes: root
            .take("disconnect_drain_max_bytes")
            .unwrap_or(default.disconnect_drain_max_bytes),
        forward_body_limit_bytes,
        body_limit_bytes,
        standard_rate_per_minute: root
            .take("standard_rate_per_minute")
            .unwrap_or(default.standard_rate_per_minute),
        timeouts: Timeouts {
            connect: millis(root, "connect_timeout_ms", 10_000),
            first_byte: millis(root, "first_byte_timeout_ms", 600_000),
            idle: millis(root, "idle_timeout_ms", 300_000),
        },
    }
}

fn providers(root: &mut Section<'_>) -> ProviderTable {
    let mut table = ProviderTable::builtin();
    for (name, section) in root.tables("providers") {
        let path = format!("providers.{name}");
        let mut section = root.below(&path, section);
        let settings = ProviderSettings {
            base_url: section.take("base_url"),
            resource: section.take("resource"),
            region: section.take("region"),
            dialect: section.take("dialect"),
            price_list: section.take("price_list"),
            api_key: section.take("api_key"),
            allow_private_network: section.take("allow_private_network"),
            managed_endpoints: section.texts("managed_endpoints"),
            allow_stored_state: section.take("allow_stored_state").unwrap_or(false),
            stream_options: section.take("stream_options"),
        };
        if let Err(issues) = table.configure(&name, settings) {
            for issue in issues {
                section.mistake(&issue.path.join("."), &issue.message);
            }
        }
        section.finish();
    }
    table
}

/// The operator's own prices before those of the catalogue.
fn prices(
    root: &mut Section<'_>,
    providers: &ProviderTable,
    catalog: Option<&Path>,
) -> Option<PriceBook> {
    let tables = root.rows("prices").into_iter().enumerate();
    let rows: Vec<_> = tables
        .map(|(place, row)| price_row(root.below(&format!("prices[{place}]"), row), providers))
        .collect();
    let catalog = match catalog {
        None => Catalog::embedded().map_err(|why| vec![why.to_string()]),
        Some(file) => read_catalog(file).map(Catalog::from),
    };
    match catalog {
        Ok(catalog) => {
            let stand_ins = stand_ins(root, providers, &catalog);
            Some(PriceBook::new(Catalog::new(rows), catalog).with_stand_ins(stand_ins))
        }
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| root.mistake("catalog", mistake));
            None
        }
    }
}

/// A row of `[[prices]]`. One that prices nothing would let calls through that cost something, so it
/// has to say that this is meant.
fn price_row(mut section: Section<'_>, providers: &ProviderTable) -> PriceRow {
    let provider: Option<String> = section.take("provider");
    let model: Option<String> = section.take("model");
    for (key, value) in [("provider", &provider), ("model", &model)] {
        if value.is_none() {
            section.mistake(key, "is required");
        }
    }
    if provider.as_deref().is_some_and(|name| providers.get(name).is_none()) {
        section.mistake("provider", "is not a provider, built-in or configured");
    }
    if model.as_deref() == Some("") {
        section.mistake("model", "must not be empty");
    }
    let says_free = section.has("free");
    let free: Option<bool> = section.take("free");
    let is_read = says_free == free.is_some();
    let free = free.unwrap_or(false);
    let (mut prices, mut named, mut read) = (UnitPrices::default(), 0_usize, Vec::new());
    for &unit in Unit::ALL {
        named = named.saturating_add(usize::from(section.has(unit.price_key())));
        let price: Option<Rate> = section.take(unit.price_key());
        read.extend(price);
        *prices.get_mut(unit) = price;
    }
    // A figure that could not be read is a mistake of its own.
    if read.len() == named && is_read {
        match (read.iter().all(|price| price.is_zero()), free) {
            (true, false) if named == 0 => {
                section.mistake("", "names no price; what costs nothing has free = true");
            }
            (true, false) => {
                section.mistake("", "has no price above 0; if that is meant, set free = true");
            }
            (false, true) => section.mistake("free", "has prices above 0"),
            _ => (),
        }
    }
    if free {
        // So that nothing of a call is without a price.
        for &unit in Unit::ALL.iter().filter(|unit| unit.parent().is_none()) {
            *prices.get_mut(unit) = Some(Rate::ZERO);
        }
    }
    let effective_from = section.take("effective_from").map(|Day(date)| date);
    let effective_to = section.take("effective_to").map(|Day(date)| date);
    if effective_from.zip(effective_to).is_some_and(|(from, to)| to < from) {
        section.mistake("effective_to", "is before effective_from");
    }
    let max_output_tokens = section.take("max_output_tokens");
    section.finish();
    PriceRow {
        provider: provider.unwrap_or_default(),
        models: vec![ModelPattern::new(model.unwrap_or_default())],
        effective_from,
        effective_to,
        free,
        max_output_tokens,
        prices,
        ..PriceRow::default()
    }
}

/// For each provider with a `price_list`, whose prices that are.
fn stand_ins(
    root: &mut Section<'_>,
    providers: &ProviderTable,
    catalog: &Catalog,
) -> BTreeMap<String, String> {
    // The catalogue also prices providers whose address has a name to fill in.
    let rows = catalog.file().rows.iter();
    let listed: BTreeSet<&str> = rows.map(|row| row.provider.as_str()).collect();
    let mut stand_ins = BTreeMap::new();
    for provider in providers.iter().filter(|one| one.price_list != one.name) {
        let (name, list) = (&provider.name, &provider.price_list);
        if providers.get(list).is_none() && !listed.contains(list.as_str()) {
            let path = format!("providers.{name}.price_list");
            root.mistake(&path, "is not a provider, built-in or configured");
        }
        stand_ins.insert(name.clone(), list.clone());
    }
    stand_ins
}

/// Reads a catalogue file, or says everything that is wrong with it.
pub(crate) fn read_catalog(file: &Path) -> Result<CatalogFile, Vec<String>> {
    let name = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|why| vec![format!("cannot read {name}: {why}")])?;
    let catalog = CatalogFile::from_json(&text).map_err(|why| vec![format!("{name}: {why}")])?;
    let mistakes = import::mistakes(&catalog);
    match mistakes.is_empty() {
        true => Ok(catalog),
        false => Err(mistakes.iter().map(|mistake| format!("{name}: {mistake}")).collect()),
    }
}

/// A date, as configuration and command line have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Day(pub(crate) Date);

impl FromStr for Day {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let date = serde_json::from_value(serde_json::Value::from(text));
        date.map(Self).map_err(|_| "expected a date, such as \"2026-11-21\"")
    }
}

#[cfg(test)]
mod tests {
    use tollgate_pricing::PriceSource;

    use super::*;

    fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, Mistakes> {
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::from_parts(text.parse().unwrap(), environment, None)
    }

    #[test]
    fn every_mistake_is_found_at_once_with_its_key() {
        let text = r#"
            listn = "127.0.0.1:1"
            database_url = "mysql://x"
            on_disconnect = "explode"
            service_charge_rate = 0.019
            idle_timeout_ms = "soon"
            [providers.house]
            dialect = "openai"
            colour = "blue"
            [[prices]]
            provider = "hosue"
            input = "-1"
        "#;
        let Mistakes(mistakes) = read(text, &[]).unwrap_err();
        for key in [
            "listn",
            "database_url",
            "on_disconnect",
            "service_charge_rate",
            "idle_timeout_ms",
            "providers.house.base_url",
            "providers.house.colour",
            "prices[0].model",
            "prices[0].provider",
            "prices[0].input",
        ] {
            assert!(
                mistakes.iter().any(|one| one.starts_with(&format!("{key}: "))),
                "{key}: {mistakes:#?}"
            );
        }
        assert_eq!(mistakes.len(), 10, "{mistakes:#?}");
    }

    #[test]
    fn the_environment_wins_and_reaches_every_scalar() {
        let text = "listen = \"127.0.0.1:1\"\nidle_timeout_ms = 5";
        let config = read(
            text,
            &[
                ("TOLLGATE_LISTEN", "127.0.0.1:2"),
                ("TOLLGATE_IDLE_TIMEOUT_MS", "7"),
                ("TOLLGATE_CONFIG", "elsewhere.toml"),
                ("TOLLGATE_PROVIDERS__OPENAI__API_KEY", "sk-1"),
                ("PATH", "/bin"),
            ],
        )
        .unwrap();
        assert_eq!(config.listen, "127.0.0.1:2");
        assert_eq!(config.settings.timeouts.idle, Duration::from_millis(7));
        assert!(config.providers.get("openai").unwrap().has_api_key());
    }

    #[test]
    fn a_catalogue_file_is_read_in_place_of_the_built_in_one_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let read = |rows: &str| {
            std::fs::write(folder.path().join("p.json"), format!(r#"{{"rows": [{rows}]}}"#))
                .unwrap();
            let table = "catalog = \"p.json\"".parse().unwrap();
            Config::from_parts(table, [], Some(folder.path().to_owned()))
        };
        let config =
            read(r#"{"provider": "openai", "models": ["m"], "prices": {"input": "1"}}"#).unwrap();
        assert_eq!(config.prices.rows().count(), 1);
        let table = [
            (r#"{"provider": "a", "models": ["m"], "prices": {"inputt": "1"}}"#, "unknown field"),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "bands": [{"above_input_tokens": 5, "outptu": "1"}]}"#,
                "unknown field",
            ),
            (r#"{"provider": "a", "models": ["m"], "prices": {"input": "0"}}"#, "set free"),
            (
                r#"{"provider": "a", "models": ["m*"], "free": true, "prices": {"input": "0"}}"#,
                "m* is a pattern",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "tiers": {"flex": {"factor": "0"}}}"#,
                "a factor of 0",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "bands": [{"above_input_tokens": 5, "input": "0"}]}"#,
                "has no price above 0",
            ),
            (r#"{"provider": "a", "models": [], "prices": {"input": "1"}}"#, "at least one"),
            (
                r#"{"provider": "a", "models": ["m", "M"], "prices": {"input": "1"}}"#,
                "listed twice",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"}, "bands": [
                    {"above_input_tokens": 5, "input": "2"}, {"above_input_tokens": 4, "input": "3"}]}"#,
                "must ascend",
            ),
            (
                r#"{"provider": "a", "models": ["m"], "prices": {"input": "1"},
                    "effective_from": "2026-02-01", "effective_to": "2026-01-01"}"#,
                "before effective_from",
            ),
        ];
        for (rows, expected) in table {
            let Mistakes(mistakes) = read(rows).unwrap_err();
            let [mistake] = mistakes.as_slice() else { panic!("{mistakes:?}") };
            assert!(mistake.starts_with("catalog: ") && mistake.contains(expected), "{mistake}");
        }
    }

    #[test]
    fn a_row_that_prices_nothing_is_a_mistake_unless_it_is_meant() {
        let mistakes = |keys: &str| match read(
            &format!("[[prices]]\nprovider = \"openai\"\nmodel = \"m\"\n{keys}"),
            &[],
        ) {
            Ok(_) => Vec::new(),
            Err(Mistakes(mistakes)) => mistakes,
        };
        let table = [
            ("", "prices[0]: names no price; what costs nothing has free = true"),
            (
                "max_output_tokens = 5",
                "prices[0]: names no price; what costs nothing has free = true",
            ),
            ("free = false", "prices[0]: names no price; what costs nothing has free = true"),
            (
                "input = \"0\"\noutput = \"0.0\"",
                "prices[0]: has no price above 0; if that is meant, set free = true",
            ),
            ("input = \"1\"\nfree = true", "prices[0].free: has prices above 0"),
        ];
        for (keys, expected) in table {
            assert_eq!(mistakes(keys), [expected], "{keys}");
        }
        for keys in ["free = true", "input = \"0\"\nfree = true", "input = \"0\"\noutput = \"1\""] {
            assert_eq!(mistakes(keys), Vec::<String>::new(), "{keys}");
        }
        // What cannot be read is one mistake, not two.
        assert_eq!(mistakes("input = \"x\"").len(), 1);
        assert_eq!(mistakes("free = \"maybe\"").len(), 1);
        let Mistakes(mistakes) =
            read("[[prices]]\nprovider = \"openai\"\nmodel = \"\"\ninput = \"1\"", &[])
                .unwrap_err();
        assert_eq!(mistakes, ["prices[0].model: must not be empty"]);
    }

    #[test]
    fn what_is_free_leaves_nothing_without_a_price() {
        let text = "[[prices]]\nprovider = \"openai\"\nmodel = \"m\"\nfree = true";
        let config = read(text, &[]).unwrap();
        let found = config.prices.find("openai", "m", time::macros::date!(2026 - 11 - 21)).unwrap();
        for &unit in Unit::ALL {
            assert_eq!(found.row.prices.price(unit), Some(Rate::ZERO), "{unit:?}");
        }
        assert!(found.row.free);
    }

    const HOUSE: &str = "[providers.house]\nbase_url = \"https://house.example\"\n\
        dialect = \"openai\"\nprice_list = ";

    #[test]
    fn prices_are_those_of_the_price_list_unless_the_provider_has_its_own() {
        let own = "\n[[prices]]\nprovider = \"house\"\nmodel = \"gpt-4o\"\ninput = \"7\"";
        let config = read(&format!("{HOUSE}\"openai\"{own}"), &[]).unwrap();
        let find = |model| {
            let found = config.prices.find("house", model, time::macros::date!(2026 - 11 - 21));
            found.map(|found| (found.row.provider.as_str(), found.source))
        };
        assert_eq!(find("gpt-4o"), Some(("house", PriceSource::Custom)));
        assert_eq!(find("gpt-4o-mini"), Some(("openai", PriceSource::Catalog)));
    }

    #[test]
    fn an_unknown_price_list_is_a_mistake() {
        let Mistakes(mistakes) = read(&format!("{HOUSE}\"opnai\""), &[]).unwrap_err();
        let expected = "providers.house.price_list: is not a provider, built-in or configured";
        assert_eq!(mistakes, [expected]);
        // Built in, but without an address until it is configured.
        assert!(read(&format!("{HOUSE}\"azure\""), &[]).is_ok());
    }

    #[test]
    fn providers_keep_the_order_of_the_file_and_those_of_the_environment_follow_by_name() {
        let text = r#"
            [providers.zeta]
            base_url = "https://zeta.example"
            dialect = "openai"
            [[prices]]
            provider = "zeta"
            model = "*"
            input = "1"
            [providers.openai]
            [providers.alpha]
            base_url = "https://alpha.example"
            dialect = "anthropic"
            [providers]
            mistral = { stream_options = false }
        "#;
        let config = read(
            text,
            &[
                ("TOLLGATE_PROVIDERS__XAI__API_KEY", "sk-1"),
                ("TOLLGATE_PROVIDERS__OPENAI__API_KEY", "sk-2"),
                ("TOLLGATE_PROVIDERS__GROQ__API_KEY", "sk-3"),
            ],
        )
        .unwrap();
        let names: Vec<_> = config.providers.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names[..6], ["zeta", "openai", "alpha", "mistral", "groq", "xai"]);
    }

    #[test]
    fn an_empty_configuration_is_a_good_one() {
        let config = read("", &[]).unwrap();
        assert_eq!(config.database_url, DatabaseUrl::Sqlite("tollgate.db".into()));
        assert_eq!(config.journal_dir, PathBuf::from("tollgate-journal"));
    }
}
