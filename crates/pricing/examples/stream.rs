//! A stream: the cost of an answer while it arrives.
//!
//! A provider repeats its counts, and each count includes the ones before. The latest is the usage; a sum of them
//! would charge twice. `tollgate-usage` reads the counts from the bytes of a stream.

use time::macros::date;
use tollgate_pricing::{Error, Usage};

fn main() -> Result<(), Error> {
    let catalog = tollgate_prices::catalog()?;
    let budget = "0.0120".parse()?;
    for (input, output) in [(800, 1), (800, 250), (800, 700), (800, 1_400)] {
        let usage = Usage::tokens(input, output);
        let cost = catalog.cost("openai", "gpt-4o", date!(2026 - 11 - 01), &usage)?.total()?;
        println!("{output:>5} tokens of answer: {cost} USD");
        if cost > budget {
            println!("above the budget of {budget} USD");
            break;
        }
    }
    Ok(())
}
