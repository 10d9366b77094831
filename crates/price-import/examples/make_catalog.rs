//! Makes `catalog.json` from the price lists of other projects.
//!
//! Usage: `make_catalog GENAI_PRICES.json LITELLM.json DAY SOURCE… > catalog.json`.
//!
//! The first list counts; the second adds what it lacks. Notes on decisions go to standard error.

use std::error::Error;

use time::Date;
use tollgate_price_import::{ImportFormat, fill, tidy, to_text};
use tollgate_pricing::PriceRow;

/// The largest answers, in tokens, of models for which neither list states them any more.
const LARGEST_ANSWERS: [(&str, &str, u64); 1] = [("openai", "o1-preview", 100_000)];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [genai_prices, litellm, day, sources @ ..] = arguments.as_slice() else {
        return Err("usage: make_catalog GENAI_PRICES.json LITELLM.json DAY SOURCE…".into());
    };
    let day: Date = serde_json::from_str(&format!("{day:?}"))?;
    let read = |format: ImportFormat, path: &str| -> Result<_, Box<dyn Error>> {
        Ok(format.read(&std::fs::read_to_string(path)?)?)
    };
    let first = read(ImportFormat::GenaiPrices, genai_prices)?;
    for note in &first.notes {
        eprintln!("genai-prices: {note}");
    }
    let mut file = first.into_file();
    // Models of other makers have other prices at Azure than at their makers.
    if let Some(others) = file.fallbacks.get_mut("azure") {
        others.retain(|other| ["openai", "anthropic"].contains(&other.as_str()));
    }
    for note in fill(&mut file, read(ImportFormat::Litellm, litellm)?, day) {
        eprintln!("litellm: {note}");
    }
    for (provider, id, tokens) in LARGEST_ANSWERS {
        let named = |row: &&mut PriceRow| {
            row.provider == provider && row.models.iter().any(|model| model.as_str() == id)
        };
        for row in file.rows.iter_mut().filter(named) {
            row.max_output_tokens = row.max_output_tokens.or(Some(tokens));
        }
    }
    file.sources = sources.to_vec();
    tidy(&mut file);
    for error in file.row_errors() {
        eprintln!("error: {error}");
    }
    print!("{}", to_text(&file));
    Ok(())
}
