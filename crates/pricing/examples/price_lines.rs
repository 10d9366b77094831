//! Prices one call per line, JSON in and JSON out.
//!
//! The prices are those of `tollgate-prices`, or of a price list file that is named as the argument.
//!
//! `{"provider": "openai", "model": "gpt-4o", "on": "2026-11-21", "time": "02:00:00.0", "tiers": [], "quantities":
//! {"input": 10}}` returns `{"input": "0.0000250000", "output": "0.0000000000", "pattern": "gpt-4o",
//! "unlisted_tiers": []}`, and `{}` if there is no price.

use std::error::Error;
use std::io::{BufRead, Write};

use serde::Deserialize;
use time::{Date, Time};
use tollgate_pricing::{Catalog, PerUnit, PriceBook, ServedCall, Usage};

#[derive(Deserialize)]
struct CallLine {
    provider: String,
    model: String,
    on: Date,
    #[serde(default)]
    time: Option<Time>,
    #[serde(default)]
    tiers: Vec<String>,
    quantities: PerUnit<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let catalog = match std::env::args().nth(1) {
        Some(path) => Catalog::from_json(&std::fs::read_to_string(path)?)?,
        None => tollgate_prices::catalog()?,
    };
    let book = PriceBook::new(Catalog::default(), catalog);
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let call: CallLine = serde_json::from_str(&line?)?;
        let usage = Usage { quantities: call.quantities, provider_cost: None };
        let priced = book.price(&ServedCall {
            provider: &call.provider,
            models: &[&call.model],
            tiers: &call.tiers,
            on: call.on,
            time: call.time,
            usage: &usage,
            parts: &[],
        })?;
        let answer = match priced.applied.first() {
            None => serde_json::json!({}),
            Some(applied) => serde_json::json!({
                "input": priced.base.input,
                "output": priced.base.output,
                "pattern": applied.model,
                "unlisted_tiers": priced.unlisted_tiers,
            }),
        };
        writeln!(answers, "{answer}")?;
    }
    Ok(())
}
