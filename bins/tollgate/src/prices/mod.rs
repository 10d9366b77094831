//! `tollgate prices`: lists, imports and compares the prices of providers.

mod changes;
mod update;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};
use time::Date;
use tollgate_domain::Clock;
use tollgate_price_import::{
    ImportFormat, ImportOptions, ImportedPrices, disagreements, import_into, to_text,
};
use tollgate_pricing::{
    Catalog, CatalogFile, PriceBand, PriceBook, PriceMatch, PriceRow, PriceScale, PriceSource,
    Rate, TierPrices, Unit, UnitPrices,
};

use self::changes::{refuse_unreviewed, report};
use self::update::UpdateMode;
use crate::config::{DateArgument, TollgateConfig, read_catalog};
use crate::output;
use crate::price_lists::configured_prices;
use crate::progress::Progress;

/// A parser of the formats of price lists; shells complete them.
fn formats() -> impl TypedValueParser<Value = ImportFormat> {
    let names = [ImportFormat::GenaiPrices, ImportFormat::Litellm].map(ImportFormat::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<ImportFormat>())
}

#[derive(Subcommand)]
pub(crate) enum PricesCommand {
    /// List the prices of this configuration: its own rows first, then the catalogue's.
    List {
        /// List only prices of this provider.
        #[arg(long)]
        provider: Option<String>,
        /// List only the rows that price this model, at each provider that has it.
        #[arg(long)]
        model: Option<String>,
        /// The day (UTC) of the prices; default: today.
        #[arg(long, value_name = "DATE")]
        on: Option<DateArgument>,
    },
    /// Read a price list into a catalogue file, and print what that changes.
    Import {
        /// The format of the price list.
        #[arg(long, value_parser = formats())]
        format: ImportFormat,
        /// The price list.
        file: PathBuf,
        /// The catalogue file; default: the configured one. A file that does not exist starts as a copy of
        /// the built-in catalogue.
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
        /// Add missing prices and change none.
        #[arg(long)]
        only_missing: bool,
        /// Refuse an import that makes a price higher or lower by more than this factor, or that changes a
        /// price from or to 0.
        #[arg(long, default_value = "3", value_name = "FACTOR")]
        max_factor: Rate,
        /// Accept such changes.
        #[arg(long)]
        accept: bool,
        /// Write nothing.
        #[arg(long)]
        dry_run: bool,
        /// The first day (UTC) of changed prices; default: today.
        #[arg(long, value_name = "DATE")]
        from: Option<DateArgument>,
        /// Also print what was not imported.
        #[arg(long)]
        notes: bool,
    },
    /// Read a signed price list into the database: all nodes use it within 30 seconds. It needs
    /// `prices_public_key` in the configuration.
    Update {
        /// A URL or a file, whose signature has the same name and `.sig`; default: `prices_url` of the
        /// configuration.
        place: Option<String>,
        /// Refuse a list that makes a price higher or lower by more than this factor, or that changes a price
        /// from or to 0.
        #[arg(long, default_value = "3", value_name = "FACTOR")]
        max_factor: Rate,
        /// Accept such changes.
        #[arg(long)]
        accept: bool,
        /// Write nothing.
        #[arg(long)]
        dry_run: bool,
        /// The first day (UTC) of changed prices; default: today.
        #[arg(long, value_name = "DATE")]
        from: Option<DateArgument>,
    },
    /// Compare two lists: `embedded`, a catalogue file, `genai-prices:FILE` or `litellm:FILE`.
    Check {
        /// The first list.
        first: String,
        /// The second list.
        second: String,
        /// The day (UTC) of the prices; default: today.
        #[arg(long, value_name = "DATE")]
        on: Option<DateArgument>,
    },
}

pub(crate) async fn run(
    config: &TollgateConfig,
    command: PricesCommand,
    json: bool,
) -> anyhow::Result<()> {
    let day = |day: Option<DateArgument>| {
        day.map_or_else(|| Clock::system().now().date(), |DateArgument(day)| day)
    };
    match command {
        PricesCommand::List { provider, model, on } => {
            let book = configured_prices(config).await?;
            list(&book, provider.as_deref(), model.as_deref(), day(on), json)
        }
        PricesCommand::Update { place, max_factor, accept, dry_run, from } => {
            let options = ImportOptions { from: day(from), max_factor, only_missing: false };
            update::run(config, place, &options, UpdateMode { accept, dry_run, json }).await
        }
        PricesCommand::Check { first, second, on } => check(&first, &second, day(on), json),
        PricesCommand::Import {
            format,
            file,
            into,
            only_missing,
            max_factor,
            accept,
            dry_run,
            from,
            notes,
        } => {
            let update = ImportOptions { from: day(from), max_factor, only_missing };
            let list = read_list(format, &file)?;
            if notes {
                let others = list.notes.iter().filter(|note| !note.left_out);
                others.for_each(|note| eprintln!("note: {note}"));
            }
            let into = into.or_else(|| config.catalog.clone());
            let catalog = match into.as_deref() {
                None if !dry_run => {
                    bail!("name the catalogue file: --into FILE, or `catalog` in the configuration")
                }
                Some(path) if path.exists() => read_file(path)?,
                _ => tollgate_prices::catalog()?.file().clone(),
            };
            let (mut updated, changes) = import_into(&catalog, list, Some(format), &update);
            report(&changes, json)?;
            refuse_unreviewed(&changes, max_factor, accept);
            let Some(path) = into.filter(|_| !dry_run) else { return Ok(()) };
            if updated.rows != catalog.rows {
                updated.sources.push(format!("{} of {}", format.name(), update.from));
                updated.sources.dedup();
                updated.released = Some(Clock::system().now().date());
            }
            write(&path, &updated)
        }
    }
}

/// Reads a price list. A model whose prices cannot be read keeps its old ones, or has none, so these
/// models are always reported.
fn read_list(format: ImportFormat, file: &Path) -> anyhow::Result<ImportedPrices> {
    let mut progress = Progress::new();
    progress.update(format_args!("reading {} …", file.display()));
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let list =
        format.read(&text).with_context(|| format!("{} cannot be imported", file.display()))?;
    progress.clear();
    list.notes.iter().filter(|note| note.left_out).for_each(|note| eprintln!("note: {note}"));
    if list.rows.is_empty() && !list.notes.iter().any(|note| note.left_out) {
        bail!(
            "{} holds no price that can be imported: is it a list of this format?",
            file.display()
        );
    }
    Ok(list)
}

fn read_file(path: &Path) -> anyhow::Result<CatalogFile> {
    read_catalog(path).map_err(|errors| anyhow::anyhow!("{}", errors.join("\n")))
}

/// Replaces the file by a rename, so that a service never reads a part of it. It keeps its mode, and its owner
/// if root writes it. Prices are no secret, so every user may read a new one.
fn write(path: &Path, file: &CatalogFile) -> anyhow::Result<()> {
    replace(path, &to_text(file)).with_context(|| format!("cannot write {}", path.display()))
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    // A link stays.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut written = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    written.write_all(text.as_bytes())?;
    let mut mode = Permissions::from_mode(0o644);
    if let Ok(before) = path.metadata() {
        mode = before.permissions();
        // Only root may. The users of another owner's file must read it.
        if chown(written.path(), Some(before.uid()), Some(before.gid())).is_err() {
            mode.set_mode(mode.mode() | 0o044);
        }
    }
    written.as_file().set_permissions(mode)?;
    written.as_file().sync_all()?;
    written.persist(&path)?;
    Ok(())
}

fn list(
    book: &PriceBook,
    provider: Option<&str>,
    model: Option<&str>,
    on: Date,
    json: bool,
) -> anyhow::Result<()> {
    let stand_in = provider.and_then(|name| book.stand_in(name));
    let of_provider = |row: &PriceRow| {
        provider.is_none_or(|name| name == row.provider || stand_in == Some(&*row.provider))
    };
    let Some(model) = model else {
        let mut rows = book.rows_on(on).filter(|(row, _)| of_provider(row)).peekable();
        if rows.peek().is_none() {
            let known: BTreeSet<_> = book.rows().map(|(row, _)| &*row.provider).collect();
            let known = Vec::from_iter(known).join(", ");
            eprintln!("There is no price of that provider on {on}. There are prices of {known}.");
        }
        return rows
            .try_for_each(|(row, list)| output::print_lines(&row_lines(row, list, None, json)));
    };
    let providers: BTreeSet<&str> = match provider {
        Some(provider) => [provider].into(),
        None => {
            let named = book.rows().map(|(row, _)| &*row.provider);
            named.chain(book.providers_with_stand_in()).collect()
        }
    };
    let mut is_listed = false;
    for provider in providers {
        for PriceMatch { row, pattern, source } in book.find_all(provider, model, on) {
            // A price that is taken from another provider is shown with that provider.
            output::print_lines(&row_lines(row, source, Some((provider, pattern.as_str())), json))?;
            is_listed = true;
        }
    }
    if !is_listed {
        eprintln!("There is no price of that model on {on}.");
    }
    Ok(())
}

/// A row as lines of text, or as one line of JSON.
fn row_lines(
    row: &PriceRow,
    list: PriceSource,
    found: Option<(&str, &str)>,
    json: bool,
) -> Vec<String> {
    if json {
        let mut value = json!(row);
        if let Value::Object(object) = &mut value {
            object.insert("list".to_owned(), json!(list));
            if let Some((provider, pattern)) = found {
                object.insert("priced_provider".to_owned(), json!(provider));
                object.insert("pattern".to_owned(), json!(pattern));
            }
        }
        return vec![value.to_string()];
    }
    let models: Vec<_> = row.models.iter().map(|model| model.as_str()).collect();
    let models = found.map_or_else(|| models.join(" "), |(_, pattern)| pattern.to_owned());
    let at = match found {
        Some((provider, _)) if provider != row.provider => {
            format!("{provider} (as {})", row.provider)
        }
        _ => row.provider.clone(),
    };
    let prices = |prices: &UnitPrices| -> String {
        let units = Unit::ALL.iter().filter_map(|&unit| {
            let price = (*prices.get(unit))?;
            let per = match (unit.scale(), unit) {
                (PriceScale::Each, _) => " each",
                (_, Unit::InputSecond | Unit::OutputSecond) => " a second",
                _ => "",
            };
            Some(format!("{} {price}{per}", unit.price_key()))
        });
        units.collect::<Vec<_>>().join(", ")
    };
    let from = row.effective_from.map(|day| format!(", from {day}")).unwrap_or_default();
    let to = row.effective_to.map(|day| format!(", to {day}")).unwrap_or_default();
    let hours = row.hours.map(|hours| format!(", at {hours} UTC")).unwrap_or_default();
    let word = if list == PriceSource::Custom { "custom" } else { "catalog" };
    let source = row.source.as_deref().map(|source| format!(": {source}")).unwrap_or_default();
    let free = if row.free { ", free" } else { "" };
    let mut lines = vec![
        format!("{at} {models} ({word}{source}{from}{to}{hours}{free})"),
        format!("    {}", prices(&row.prices)),
    ];
    let banded = |before: &str, bands: &[PriceBand]| -> Vec<String> {
        let lines = bands.iter().map(|band| {
            let above = band.above_input_tokens;
            format!("    {before}above {above} input tokens: {}", prices(&band.prices))
        });
        lines.collect()
    };
    lines.extend(banded("", &row.bands));
    for (tier, own) in &row.tiers {
        match own {
            TierPrices::Factor { factor } => {
                lines.push(format!("    {tier}: {factor} times the price of every token"));
            }
            TierPrices::Prices { prices: own, bands } => {
                lines.push(format!("    {tier}: {}", prices(own)));
                lines.extend(banded(&format!("{tier}, "), bands));
            }
        }
    }
    lines
}

fn check(first: &str, second: &str, on: Date, json: bool) -> anyhow::Result<()> {
    let found = disagreements(&read_by_name(first)?, &read_by_name(second)?, on);
    let lines = found.iter().map(|one| match json {
        true => json!(one).to_string(),
        false => format!(
            "{} {}: {} {} against {}",
            one.provider, one.model, one.figure, one.first, one.second
        ),
    });
    output::print_lines(&lines.collect::<Vec<_>>())?;
    if !found.is_empty() {
        if !json {
            output::print_line(format_args!("{} figures disagree.", found.len()))?;
        }
        std::process::exit(1)
    }
    Ok(())
}

/// Reads a list by its name on the command line.
fn read_by_name(name: &str) -> anyhow::Result<Catalog> {
    if name == "embedded" {
        return Ok(tollgate_prices::catalog()?);
    }
    let format = name
        .split_once(':')
        .and_then(|(format, file)| Some((format.parse::<ImportFormat>().ok()?, file)));
    match format {
        Some((format, file)) => Ok(read_list(format, Path::new(file))?.into_catalog()),
        None => Ok(read_file(Path::new(name))?.into()),
    }
}
