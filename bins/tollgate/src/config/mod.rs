//! The configuration: a TOML file with optional keys, and the environment, which overrides it.

mod environment;
mod prices;
mod section;

use std::fmt;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use tollgate_api::{ClientLimits, InterfaceShape, Settings, Tls, TlsError};
use tollgate_domain::CellNumber;
use tollgate_gateway::{CallSettings, OnDisconnect, SocketLimits, UnpricedPolicy};
use tollgate_price_import::SigningPublicKey;
use tollgate_pricing::{Amount, PriceBook, Rate};
use tollgate_provider::{ProviderSettings, ProviderTable, Timeouts, WebhookUrlPolicy};
use tollgate_store::{ArchiveOptions, DatabaseUrl, Options};
use toml::Table;

use self::environment::{line, overlay};
use self::prices::prices;
pub(crate) use self::prices::{DateArgument, check_catalog, read_catalog};
use self::section::{Section, is_near};

/// The mode bit of a file that every user of the machine may read.
const READABLE_BY_ALL: u32 = 0o004;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct TollgateConfig {
    pub(crate) listen: String,
    /// The address of the dashboard alone; without it, the dashboard is at `listen`.
    pub(crate) dashboard_listen: Option<String>,
    /// The certificate and the key for TLS; without them the service speaks plain HTTP.
    pub(crate) tls: Option<Tls>,
    pub(crate) database_url: DatabaseUrl,
    /// The directory of the journal, where settlements wait while PostgreSQL is not available.
    pub(crate) journal_dir: Option<PathBuf>,
    has_unused_journal_dir: bool,
    pub(crate) migrate_on_start: bool,
    pub(crate) service_charge_rate: Rate,
    /// The days for which refused calls are kept.
    pub(crate) refusals_keep_days: u32,
    /// The days after which the records of a month leave for the archive; without it they are kept.
    pub(crate) records_keep_days: Option<u32>,
    pub(crate) archive: Option<ArchiveOptions>,
    pub(crate) store_timeout: Duration,
    /// The cell of the database, where several are behind one router.
    pub(crate) cell: Option<CellNumber>,
    pub(crate) drain_timeout: Duration,
    pub(crate) log_format: LogFormat,
    /// Whether a line is logged for each request.
    pub(crate) access_log: bool,
    pub(crate) settings: Settings,
    pub(crate) providers: ProviderTable,
    pub(crate) prices: PriceBook,
    /// The catalogue file that replaces the built-in catalogue.
    pub(crate) catalog: Option<PathBuf>,
    /// The key by which price lists are signed. Without it none is accepted.
    pub(crate) prices_public_key: Option<SigningPublicKey>,
    /// The place of the price list.
    pub(crate) prices_url: Option<String>,
    /// Whether every user of the machine may read the configuration file.
    is_readable_by_all: bool,
}

/// All errors of a configuration.
#[derive(Debug)]
pub(crate) struct ConfigErrors(Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration is not valid:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for ConfigErrors {}

impl TollgateConfig {
    /// Reads a configuration file, if one is named, and the environment.
    pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let table = match file {
            None => Table::new(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| {
                    let file = file.display();
                    format!(
                        "cannot read {file}: name the configuration by --config or TOLLGATE_CONFIG, \
                         or neither for the defaults"
                    )
                })?;
                text.parse().map_err(|cause| toml_error(file, &text, &cause))?
            }
        };
        let folder = file.and_then(Path::parent).map(Path::to_owned);
        let mode = file.and_then(|file| file.metadata().ok()).map_or(0, |file| file.mode());
        let config = Self::from_parts(table, std::env::vars(), folder)?;
        Ok(Self { is_readable_by_all: mode & READABLE_BY_ALL != 0, ..config })
    }

    /// A configuration from a table and the environment's variables, which override it.
    pub(crate) fn from_parts(
        mut table: Table,
        environment: impl IntoIterator<Item = (String, String)>,
        folder: Option<PathBuf>,
    ) -> Result<Self, ConfigErrors> {
        let variables = overlay(&mut table, environment);
        let mut issues = Vec::new();
        let config = Self::from_section(Section::root(table, &mut issues), folder);
        match (config, issues.is_empty()) {
            (Some(config), true) => Ok(config),
            _ => Err(ConfigErrors(issues.iter().map(|issue| line(issue, &variables)).collect())),
        }
    }

    fn from_section(mut root: Section<'_>, folder: Option<PathBuf>) -> Option<Self> {
        let config = Self::take_all(&mut root, folder);
        if config.is_some() {
            root.finish();
        }
        config
    }

    /// Takes every known key.
    fn take_all(root: &mut Section<'_>, folder: Option<PathBuf>) -> Option<Self> {
        let secrets = folder.clone().unwrap_or_default();
        let database_url = root.take_secret("database_url", &secrets);
        let database_url = database_url.unwrap_or(DatabaseUrl::Sqlite("tollgate.db".into()));
        let is_postgres = matches!(database_url, DatabaseUrl::Postgres(_));
        let journal_dir: Option<PathBuf> = root.take("journal_dir");
        let settings = settings(root, &secrets);
        let providers = providers(root, &secrets);
        // A relative path starts at the folder of the configuration, as that of the journal.
        let catalog: Option<PathBuf> = root.take("catalog");
        let catalog = catalog.map(|file| folder.clone().unwrap_or_default().join(file));
        let prices = prices(root, &providers, catalog.as_deref());
        let refusals_keep_days = root.take("refusals_keep_days").unwrap_or(30);
        if !(1..=3_650).contains(&refusals_keep_days) {
            root.add_error("refusals_keep_days", "must be from 1 to 3650");
        }
        let (records_keep_days, archive) = archive(root);
        let config = Self {
            refusals_keep_days,
            records_keep_days,
            archive,
            tls: tls(root, &folder.clone().unwrap_or_default()),
            listen: address(root, "listen").unwrap_or_else(|| "127.0.0.1:8080".to_owned()),
            dashboard_listen: address(root, "dashboard_listen"),
            is_readable_by_all: false,
            has_unused_journal_dir: journal_dir.is_some() && !is_postgres,
            journal_dir: match is_postgres {
                // The journal must survive restarts, so it is beside the configuration by default.
                true => journal_dir
                    .or_else(|| Some(folder.unwrap_or_default().join("tollgate-journal"))),
                false => None,
            },
            database_url,
            migrate_on_start: root.take("migrate_on_start").unwrap_or(true),
            service_charge_rate: root.take("service_charge_rate").unwrap_or(Rate::ZERO),
            store_timeout: store_timeout(root),
            cell: root.take("cell"),
            drain_timeout: millis(root, "drain_timeout_ms", 30_000),
            log_format: root
                .take_word("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
                .unwrap_or(LogFormat::Text),
            access_log: root.take("access_log").unwrap_or(false),
            settings,
            providers,
            prices: prices?,
            catalog,
            prices_public_key: root.take("prices_public_key"),
            prices_url: root.take("prices_url"),
        };
        Some(config)
    }

    /// Warnings about settings that are valid but probably not intended.
    pub(crate) fn warnings(&self) -> Vec<String> {
        const LEAST_CHARS: usize = 20;
        let token = self.settings.operator_token.as_deref();
        let is_weak = token.is_some_and(|token| token.chars().count() < LEAST_CHARS);
        let fee = Amount::from_units(10_000_000_000);
        let is_dear = self.service_charge_rate.of(fee).is_ok_and(|charge| charge > fee);
        let weak = is_weak.then(|| {
            // The token gives access to all merchants, and attempts to guess it are not slowed down.
            format!("operator_token has less than {LEAST_CHARS} characters and can be guessed")
        });
        let dear = is_dear.then(|| {
            let rate = self.service_charge_rate;
            format!("service_charge_rate is {rate} times the fee: 0.019 is 1.9%")
        });
        let open = self.is_readable_by_all.then(|| {
            "every user of this machine can read the configuration file: take that away with chmod o-r"
                .to_owned()
        });
        let unused = self.has_unused_journal_dir.then(|| {
            "journal_dir is not used with SQLite, which has what was settled in its file".to_owned()
        });
        [weak, dear, open, unused].into_iter().flatten().collect()
    }

    /// The options to open the store with.
    pub(crate) fn store_options(&self, serve: bool) -> Options {
        Options {
            serve,
            migrate: self.migrate_on_start,
            service_charge_rate: self.service_charge_rate,
            journal: self.journal_dir.clone().filter(|_| serve),
            timeout: self.store_timeout,
            cell: self.cell,
            refusals_keep_days: self.refusals_keep_days,
            records_keep_days: self.records_keep_days,
            archive: self.archive.clone(),
            ..Options::default()
        }
    }
}

/// The days for which records are kept, and the archive to which they leave.
fn archive(root: &mut Section<'_>) -> (Option<u32>, Option<ArchiveOptions>) {
    const URL: &str = "archive_url";
    let (url, endpoint): (Option<String>, Option<String>) =
        (root.take(URL), root.take("archive_endpoint"));
    let keep_days: Option<u32> = root.take("records_keep_days");
    if keep_days.is_some_and(|days| !(1..=36_500).contains(&days)) {
        root.add_error("records_keep_days", "must be from 1 to 36500");
    }
    if keep_days.is_some() && url.is_none() {
        root.add_error(URL, "is missing: records leave for it after `records_keep_days`");
    }
    let is_http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
    if endpoint.as_ref().is_some_and(|endpoint| !is_http(endpoint)) {
        root.add_error("archive_endpoint", "must be a URL that begins with http:// or https://");
    }
    let archive = url.map(|url| ArchiveOptions { url, endpoint });
    if archive.as_ref().is_some_and(|archive| archive.location().is_err()) {
        root.add_error(
            URL,
            "must be file:///FOLDER or s3://BUCKET/PREFIX, without a user or parameters",
        );
    }
    (keep_days, archive)
}

/// The position and the cause of a TOML error. The text itself, which the parser would show, is left
/// out: it may be a key.
fn toml_error(file: &Path, text: &str, cause: &toml::de::Error) -> anyhow::Error {
    let before = cause.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count().saturating_add(1);
    anyhow!("{} is not TOML: line {line}: {}", file.display(), cause.message())
}

/// `ADDRESS:PORT`, where the address may be a name.
fn address(root: &mut Section<'_>, key: &str) -> Option<String> {
    let address: String = root.take(key)?;
    let parts = address.rsplit_once(':').filter(|(address, _)| !address.is_empty());
    if parts.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        root.add_error(key, "must be ADDRESS:PORT, such as 127.0.0.1:8080");
    }
    Some(address)
}

fn millis(section: &mut Section<'_>, key: &str, default: u64) -> Duration {
    Duration::from_millis(section.take(key).unwrap_or(default))
}

/// The time for which PostgreSQL may be silent.
fn store_timeout(root: &mut Section<'_>) -> Duration {
    const KEY: &str = "store_timeout_ms";
    let millis = root.take(KEY).unwrap_or(5_000);
    if !(500..=600_000).contains(&millis) {
        root.add_error(KEY, "must be from 500 to 600000");
    }
    Duration::from_millis(millis)
}

/// A time limit, which must not be 0.
fn time_limit(section: &mut Section<'_>, key: &str, default: u64) -> Duration {
    Duration::from_millis(section.take_positive(key).unwrap_or(default))
}

/// The certificate and the key of the service; relative paths start at the folder of the configuration.
fn tls(root: &mut Section<'_>, folder: &Path) -> Option<Tls> {
    const CERTIFICATE: &str = "tls_certificate";
    const KEY: &str = "tls_key";
    let files: [Option<PathBuf>; 2] = [CERTIFICATE, KEY].map(|key| root.take(key));
    let [certificate, key] = files.map(|file| file.map(|file| folder.join(file)));
    match (certificate, key) {
        (None, None) => return None,
        (Some(_), None) => root.add_error(KEY, "is required with tls_certificate"),
        (None, Some(_)) => root.add_error(CERTIFICATE, "is required with tls_key"),
        (Some(certificate), Some(key)) => match Tls::read(&certificate, &key) {
            Ok(tls) => return Some(tls),
            Err(TlsError::Certificate(why)) => root.add_error(CERTIFICATE, &why),
            Err(TlsError::Key(why)) => root.add_error(KEY, &why),
        },
    }
    None
}

fn settings(root: &mut Section<'_>, folder: &Path) -> Settings {
    let default = Settings::default();
    let mut limit = |key: &str, default: usize| root.take_positive(key).unwrap_or(default);
    let forward_body_limit_bytes =
        limit("forward_body_limit_bytes", default.forward_body_limit_bytes);
    let body_limit_bytes = limit("body_limit_bytes", default.body_limit_bytes);
    let body_memory_bytes = limit("body_memory_bytes", default.body_memory_bytes);
    let job_file_limit_bytes = limit("job_file_limit_bytes", default.job_file_limit_bytes);
    let answer_memory_bytes = limit("answer_memory_bytes", default.calls.answer_memory_bytes);
    let max_connections = limit("max_connections", default.clients.max_connections);
    let message_bytes = limit("socket_frame_limit_bytes", default.calls.sockets.message_bytes);
    let most_sockets = limit("sockets_per_node", default.calls.sockets.most);
    let workers = limit("workers", default.workers.get());
    if workers > 1_024 {
        root.add_error("workers", "must be at most 1024");
    }
    if body_memory_bytes < forward_body_limit_bytes {
        root.add_error("body_memory_bytes", "must be at least forward_body_limit_bytes");
    }
    let shapes = [("current", InterfaceShape::Current), ("earlier", InterfaceShape::Earlier)];
    let on_disconnect = [("drain", OnDisconnect::Drain), ("cancel", OnDisconnect::Cancel)];
    let unpriced = [
        ("refuse_managed", UnpricedPolicy::RefuseManaged),
        ("refuse", UnpricedPolicy::Refuse),
        ("allow", UnpricedPolicy::Allow),
    ];
    Settings {
        operator_token: root
            .take_secret::<String>("operator_token", folder)
            .filter(|token| !token.is_empty()),
        shape: root.take_word("interface_shape", &shapes).unwrap_or_default(),
        calls: CallSettings {
            on_disconnect: root.take_word("on_disconnect", &on_disconnect).unwrap_or_default(),
            unpriced: root.take_word("unpriced", &unpriced).unwrap_or_default(),
            disconnect_drain_max: millis(root, "disconnect_drain_max_ms", 900_000),
            disconnect_drain_max_bytes: root
                .take("disconnect_drain_max_bytes")
                .unwrap_or(default.calls.disconnect_drain_max_bytes),
            answer_memory_bytes,
            keep_error_messages: root.take("keep_error_messages").unwrap_or(true),
            sockets: SocketLimits {
                max: time_limit(root, "socket_max_ms", 3_600_000),
                idle: time_limit(root, "socket_idle_ms", 600_000),
                message_bytes,
                most: most_sockets,
            },
            job_keys: root.take_secret("job_key_secret", folder),
            timeouts: Timeouts {
                connect: time_limit(root, "connect_timeout_ms", 10_000),
                first_byte: time_limit(root, "first_byte_timeout_ms", 600_000),
                idle: time_limit(root, "idle_timeout_ms", 300_000),
            },
        },
        forward_body_limit_bytes,
        body_limit_bytes,
        body_memory_bytes,
        job_file_limit_bytes,
        standard_rate_per_minute: root
            .take("standard_rate_per_minute")
            .unwrap_or(default.standard_rate_per_minute),
        clients: ClientLimits {
            head_timeout: time_limit(root, "client_head_timeout_ms", 10_000),
            body_timeout: time_limit(root, "client_body_timeout_ms", 30_000),
            keep_alive: millis(root, "keep_alive_ms", 75_000),
            max_connections,
        },
        workers: NonZeroUsize::new(workers).unwrap_or(default.workers),
        webhooks: WebhookUrlPolicy {
            http: root.take("webhook_allow_http").unwrap_or(false),
            private_network: root.take("webhook_allow_private_network").unwrap_or(false),
        },
        resolver: default.resolver,
        // `serve` sets these.
        access_log: None,
        commit: default.commit,
    }
}

fn providers(root: &mut Section<'_>, folder: &Path) -> ProviderTable {
    let mut table = ProviderTable::builtin();
    for (name, section) in root.take_tables("providers") {
        let mut section = root.subsection(["providers", &name], section);
        let settings = ProviderSettings {
            base_url: section.take("base_url"),
            resource: section.take("resource"),
            region: section.take("region"),
            dialect: section.take("dialect"),
            price_list: section.take("price_list"),
            // An empty key counts as not set: containers pass on variables without a value.
            api_key: section.take_secret::<String>("api_key", folder).filter(|key| !key.is_empty()),
            allow_private_network: section.take("allow_private_network"),
            managed_endpoints: section.take_texts("managed_endpoints"),
            allow_stored_state: section.take("allow_stored_state").unwrap_or(false),
            stream_options: section.take("stream_options"),
            max_completion_tokens: section.take("max_completion_tokens"),
            webhook_secret: section
                .take_secret::<String>("webhook_secret", folder)
                .filter(|secret| !secret.is_empty()),
        };
        if let Err(issues) = table.configure(&name, settings) {
            // A name close to a built-in one is probably a typing error.
            let builtin = ProviderTable::builtin();
            let near = builtin.iter().filter(|_| builtin.get(&name).is_none());
            let near = near.into_iter().find(|known| is_near(&known.name, &name));
            for issue in issues {
                let hint = near.map(|near| format!("; do you mean {}?", near.name));
                let message = format!("{}{}", issue.message, hint.unwrap_or_default());
                section.add_issue(issue.path.iter().map(String::as_str), &message);
            }
        }
        section.finish();
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn read(
        text: &str,
        environment: &[(&str, &str)],
    ) -> Result<TollgateConfig, ConfigErrors> {
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        TollgateConfig::from_parts(text.parse().unwrap(), environment, None)
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
        let ConfigErrors(errors) = read(text, &[]).unwrap_err();
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
                errors.iter().any(|one| one.starts_with(&format!("{key}: "))),
                "{key}: {errors:#?}"
            );
        }
        assert_eq!(errors.len(), 10, "{errors:#?}");
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
        assert_eq!(config.settings.calls.timeouts.idle, Duration::from_millis(7));
        assert!(config.providers.get("openai").unwrap().has_api_key());
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

    /// The keys of the document with their defaults.
    fn documented() -> Vec<(String, String)> {
        let document = include_str!("../../../../docs/operate/configuration.md");
        let (_, keys) = document.split_once("\n## Keys\n").unwrap();
        let (keys, _) = keys.split_once("\n## ").unwrap();
        let items = keys.split("\n- `").skip(1);
        items
            .flat_map(|item| {
                let (names, rest) = item.split_once(" (default: ").unwrap();
                let default = rest.strip_prefix('`').and_then(|rest| rest.split('`').next());
                let default = default.unwrap_or_default().to_owned();
                let names = names.split(", ").map(|name| name.trim_matches('`').to_owned());
                names.map(|name| (name, default.clone())).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn the_reference_names_every_key_and_no_other() {
        let mut errors = Vec::new();
        let mut root = Section::root(Table::new(), &mut errors);
        TollgateConfig::take_all(&mut root, None);
        let mut known: Vec<_> = root.known().to_vec();
        // These have their own sections.
        known.retain(|key| !["providers", "prices", "catalog"].contains(&key.as_str()));
        let mut documented: Vec<_> = documented().into_iter().map(|(key, _)| key).collect();
        known.sort();
        documented.sort();
        assert_eq!(documented, known);
    }

    #[test]
    fn a_secret_may_stand_in_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).to_str().unwrap().to_owned()
        };
        let (key, token) = (file("key", "sk-1\n"), file("token", "a-token-of-the-operator"));
        let url = file("url", "postgres://localhost/tollgate\r\n");
        let text = format!(
            "operator_token_file = \"{token}\"\ndatabase_url_file = \"{url}\"\n\
             [providers.openai]\napi_key_file = \"{key}\""
        );
        let config = read(&text, &[]).unwrap();
        assert!(config.providers.get("openai").unwrap().has_api_key());
        let token = config.settings.operator_token.as_deref();
        assert_eq!(token, Some("a-token-of-the-operator"));
        assert_eq!(
            config.database_url,
            DatabaseUrl::Postgres("postgres://localhost/tollgate".to_owned())
        );
        let empty = [("TOLLGATE_OPERATOR_TOKEN_FILE", ""), ("TOLLGATE_OPERATOR_TOKEN", "x")];
        assert_eq!(read("", &empty).unwrap().settings.operator_token.as_deref(), Some("x"));

        let issues = |text: &str| {
            let ConfigErrors(issues) = read(text, &[]).unwrap_err();
            issues.join("; ")
        };
        let both = format!("operator_token = \"x\"\noperator_token_file = \"{key}\"");
        assert_eq!(issues(&both), "operator_token_file: must not be there with operator_token");
        let missing = issues("[providers.openai]\napi_key_file = \"/no/such\"");
        assert!(missing.starts_with("providers.openai.api_key_file: /no/such: "), "{missing}");
        let wrong = issues(&format!("job_key_secret_file = \"{key}\""));
        assert!(wrong.ends_with("key: it has no job_key_secret"), "{wrong}");
    }

    #[test]
    fn the_reference_tells_the_defaults() {
        let default = format!("{:?}", read("", &[]).unwrap());
        let mut compared = 0;
        for (key, text) in documented() {
            // Defaults that depend on other keys are described in words.
            if text.is_empty() || key == "journal_dir" {
                continue;
            }
            let config = read(&format!("{key} = {text:?}"), &[]).unwrap();
            assert_eq!(format!("{config:?}"), default, "{key}");
            compared += 1;
        }
        assert!(compared >= 20, "{compared}");
    }

    #[test]
    fn what_is_packaged_sets_keys_that_there_are() {
        let keys: Vec<_> = documented().into_iter().map(|(key, _)| key).collect();
        for (name, text) in [
            ("Dockerfile", include_str!("../../../../Dockerfile")),
            ("compose.yaml", include_str!("../../../../compose.yaml")),
            ("unit", include_str!("../../../../packaging/tollgate.service")),
        ] {
            let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
            let set: Vec<_> = words.filter_map(|word| word.strip_prefix("TOLLGATE_")).collect();
            assert!(set.len() >= 2, "{name}: {set:?}");
            let of_root = set.iter().filter(|key| **key != "CONFIG" && !key.contains("__"));
            for key in of_root {
                assert!(keys.contains(&key.to_lowercase()), "{name}: {key}");
            }
        }
    }

    #[test]
    fn where_to_listen_is_an_address_and_a_port() {
        for listen in ["127.0.0.1:0", "[::1]:8080", "localhost:80"] {
            assert_eq!(read(&format!("listen = {listen:?}"), &[]).unwrap().listen, listen);
        }
        for wrong in ["foo", "0.0.0.0", ":8080", "8080", "127.0.0.1:x", "127.0.0.1:70000"] {
            let ConfigErrors(errors) = read(&format!("listen = {wrong:?}"), &[]).unwrap_err();
            assert_eq!(errors, ["listen: must be ADDRESS:PORT, such as 127.0.0.1:8080"], "{wrong}");
        }
    }

    #[test]
    fn a_mistyped_key_is_told_what_it_may_be() {
        let ConfigErrors(errors) =
            read("listn = \"x\"\n[providers.openai]\napikey = \"x\"", &[]).unwrap_err();
        assert!(errors.iter().any(|one| one.ends_with("do you mean listen?")), "{errors:?}");
        assert!(errors.iter().any(|one| one.ends_with("do you mean api_key?")), "{errors:?}");
        let ConfigErrors(errors) = read("[providers.opnai]\napi_key = \"x\"", &[]).unwrap_err();
        assert!(errors[0].ends_with("; do you mean openai?"), "{errors:?}");
        // A correct name gets no hint.
        let ConfigErrors(errors) =
            read("[providers.openai]\nbase_url = \"http://127.0.0.1/v1\"", &[]).unwrap_err();
        assert!(!errors[0].contains("do you mean"), "{errors:?}");
    }

    #[test]
    fn a_mistake_of_the_environment_is_named_as_it_was_set() {
        let environment = [
            ("TOLLGATE_LISTN", "x"),
            ("TOLLGATE_PROVIDERS__OPENAI__COLOUR", "blue"),
            ("TOLLGATE_PROVIDER__OPENAI__API_KEY", "x"),
            ("TOLLGATE_PROVIDERS__OPENIA__API_KEY", "x"),
        ];
        let ConfigErrors(errors) = read("", &environment).unwrap_err();
        for named in [
            "listn (TOLLGATE_LISTN): ",
            "providers.openai.colour (TOLLGATE_PROVIDERS__OPENAI__COLOUR): ",
            "provider (TOLLGATE_PROVIDER__OPENAI__API_KEY): ",
            "providers.openia.base_url (TOLLGATE_PROVIDERS__OPENIA__API_KEY): ",
        ] {
            assert!(errors.iter().any(|one| one.starts_with(named)), "{errors:?}");
        }
        // An error of the file is not attributed to a variable.
        let ConfigErrors(errors) =
            read("[providers.openai]\nbase_url = \"x\"", &environment[1..2]).unwrap_err();
        assert!(errors.iter().any(|one| one.starts_with("providers.openai.base_url: ")));
    }

    #[test]
    fn a_limit_of_nothing_is_a_mistake_and_so_are_workers_without_limit() {
        for key in [
            "first_byte_timeout_ms",
            "idle_timeout_ms",
            "client_head_timeout_ms",
            "max_connections",
            "workers",
            "forward_body_limit_bytes",
            "job_file_limit_bytes",
            "socket_max_ms",
            "socket_idle_ms",
            "socket_frame_limit_bytes",
            "sockets_per_node",
        ] {
            let ConfigErrors(errors) = read(&format!("{key} = 0"), &[]).unwrap_err();
            assert_eq!(errors, [format!("{key}: must be at least 1")]);
        }
        let ConfigErrors(errors) = read("workers = 1025", &[]).unwrap_err();
        assert_eq!(errors, ["workers: must be at most 1024"]);
    }

    #[test]
    fn what_is_rarely_meant_is_doubted() {
        let doubts = |text: &str| read(text, &[]).unwrap().warnings().len();
        assert_eq!(doubts("service_charge_rate = \"1\""), 0);
        assert_eq!(doubts("service_charge_rate = \"19\"\noperator_token = \"short\""), 2);
    }

    #[test]
    fn an_empty_key_is_none() {
        let config = read("", &[("TOLLGATE_PROVIDERS__OPENAI__API_KEY", "")]).unwrap();
        assert!(!config.providers.get("openai").unwrap().has_api_key());
    }

    #[test]
    fn an_empty_configuration_is_a_good_one() {
        let config = read("", &[]).unwrap();
        assert_eq!(config.database_url, DatabaseUrl::Sqlite("tollgate.db".into()));
        assert_eq!(config.journal_dir, None);
        let postgres = read("database_url = \"postgres://localhost/tollgate\"", &[]).unwrap();
        assert_eq!(postgres.journal_dir, Some("tollgate-journal".into()));
        assert_eq!(read("journal_dir = \"journal\"", &[]).unwrap().warnings().len(), 1);
    }
}
