//! Prices one call a line: JSON in, JSON out, by the prices that ship with this crate or those of
//! a catalogue file named as the argument.
//!
//! `{"provider": "openai", "model": "gpt-4o", "on": "2026-11-21", "time": "02:00:00.0", "tiers": [], "quantities":
//! {"input": 10}}` gives `{"input": "0.0000250000", "output": "0.0000000000", "pattern": "gpt-4o"}`,
//! and `{}` where there is no price.

use std::error::Error;
use std::io::{BufRead, Write};

use serde::Deserialize;
use time::{Date, Time};
use tollgate_pricing::{Catalog, PerUnit, PriceBook, Served, Usage};

#[derive(Deserialize)]
struct Call {
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
        None => Catalog::embedded()?,
    };
    let book = PriceBook::new(Catalog::default(), catalog);
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let call: Call = serde_json::from_str(&line?)?;
        let usage = Usage { quantities: call.quantities, provider_cost: None };
        let priced = book.price(&Served {
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
