//! `tollgate init`: asks what a first configuration needs, writes it, and makes a merchant.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::json;
use tollgate_domain::Clock;
use tollgate_store::{Store, StoreError, merchants};
use toml::{Table, Value};

use crate::config::TollgateConfig;
use crate::output::print_secret;

/// The name of the file that is written without `--config`.
const FILE: &str = "tollgate.toml";

/// The answers to the questions.
struct Answers {
    listen: String,
    database_url: String,
    /// A provider and its key, if one was given.
    provider: Option<(String, String)>,
    merchant: String,
}

/// Asks on the terminal. An empty line takes the default.
struct Questions<R> {
    input: R,
}

impl<R: BufRead> Questions<R> {
    fn ask(&mut self, question: &str, default: &str) -> anyhow::Result<String> {
        let mut terminal = std::io::stderr();
        match default {
            "" => write!(terminal, "{question}: ")?,
            _ => write!(terminal, "{question} [{default}]: ")?,
        }
        terminal.flush()?;
        let mut line = String::new();
        let length = self.input.read_line(&mut line).context("cannot read the answer")?;
        if length == 0 {
            // The cursor is still on the line of the question.
            writeln!(terminal)?;
            bail!("the input ended before the four questions were answered");
        }
        let answer = line.trim();
        Ok(if answer.is_empty() { default } else { answer }.to_owned())
    }

    fn answers(&mut self, database_url: &str) -> anyhow::Result<Answers> {
        let listen = self.ask("1. Address and port of the service", "127.0.0.1:8080")?;
        let database_url = self.ask(
            "2. Database: sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE",
            database_url,
        )?;
        let key = self.ask("3. A provider and its key, such as openai sk-…; empty for none", "")?;
        let provider = match key.split_once(char::is_whitespace) {
            Some((name, key)) => Some((name.to_owned(), key.trim().to_owned())),
            None if key.is_empty() => None,
            None => bail!("a provider and its key are two words, such as openai sk-…"),
        };
        let merchant = self.ask("4. Name of your shop or team", "My shop")?;
        Ok(Answers { listen, database_url, provider, merchant })
    }
}

impl Answers {
    fn configuration(&self) -> Table {
        let text = |text: &str| Value::String(text.to_owned());
        let mut table = Table::new();
        table.insert("listen".to_owned(), text(&self.listen));
        table.insert("database_url".to_owned(), text(&self.database_url));
        if let Some((name, key)) = &self.provider {
            let settings = Table::from_iter([("api_key".to_owned(), text(key))]);
            let providers = Table::from_iter([(name.clone(), Value::Table(settings))]);
            table.insert("providers".to_owned(), Value::Table(providers));
        }
        table
    }
}

/// Asks four questions, writes the configuration, and prints the secret key of a new merchant.
pub(crate) async fn run(file: Option<&Path>, json: bool) -> anyhow::Result<()> {
    let file = file.map_or_else(|| PathBuf::from(FILE), Path::to_owned);
    if file.exists() {
        bail!("{} exists: name another file by --config, or remove it", file.display());
    }
    // A relative path of a database starts at the working directory of the service, so this one is absolute.
    let folder = std::path::absolute(&file)?.parent().map(Path::to_owned).unwrap_or_default();
    let database_url = format!("sqlite:{}", folder.join("tollgate.db").display());
    let answers = Questions { input: std::io::stdin().lock() }.answers(&database_url)?;
    if !folder.is_dir() {
        bail!("there is no folder {}", folder.display());
    }
    // A variable of the environment is used in place of the file.
    let set =
        [("TOLLGATE_LISTEN", &answers.listen), ("TOLLGATE_DATABASE_URL", &answers.database_url)];
    for (variable, answer) in set {
        if let Ok(value) = std::env::var(variable)
            && value != *answer
        {
            bail!("{variable} is {value:?} and would be used in place of the answer {answer:?}");
        }
    }
    let name = answers.merchant.clone();
    if name.chars().count() > 255 {
        bail!("the name must have at most 255 characters");
    }
    let table = answers.configuration();
    // Nothing is written if the answers are not valid, or the database cannot be opened.
    let config = TollgateConfig::from_parts(table.clone(), std::env::vars(), Some(folder))?;
    let store = Store::open(&config.database_url, &config.store_options(false))
        .with_context(|| format!("cannot open {:?}", config.database_url))?;
    write(&file, &toml::to_string(&table)?)?;
    let now = Clock::system().now();
    let made = store.write(move |conn| merchants::create(conn, &name, now)).await;
    let made = made.map_err(|cause: StoreError| cause)?;
    store.close().await?;

    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let address = config.dashboard_listen.as_ref().unwrap_or(&config.listen);
    let dashboard = format!("{scheme}://{address}/dashboard");
    let (id, key) = (made.merchant.merchant_id, made.key.reveal());
    let value = json!({
        "config": file.display().to_string(),
        "merchant_id": id,
        "secret_key": key,
        "dashboard": dashboard,
    });
    let text = format!(
        "\nwritten     {path}\nmerchant    {id}\nsecret key  {key}\n\n\
         The key is not shown again. Start the service, and sign in with the key:\n\n  \
         tollgate serve --config {path}\n  {dashboard}",
        path = file.display(),
    );
    print_secret(json, &value, &text, &format!("the merchant {id}"))
}

/// Writes a new file that only its owner may read, because it has the provider's key.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written =
        open.and_then(|mut out| out.write_all(text.as_bytes()).and_then(|()| out.sync_all()));
    written.with_context(|| format!("cannot write {}", file.display()))
}
