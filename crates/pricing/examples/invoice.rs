//! An invoice: a month's calls of one customer, priced by the day of each, with a fee in tiers.

use time::macros::date;
use tollgate_pricing::{Amount, Error, Meter, RateType, Tier, TierUnit, Usage};

fn main() -> Result<(), Error> {
    let catalog = tollgate_prices::catalog()?;
    // 20 % on top of the provider's price, 10 % from the second million tokens on.
    let tiers = vec![
        Tier { start: 0, rate: "20".parse()? },
        Tier { start: 1_000_000, rate: "10".parse()? },
    ];
    let meter = Meter::new(RateType::Percentage, TierUnit::Tokens, tiers)?;
    let calls = [
        (date!(2026 - 11 - 02), "gpt-4o-mini", Usage::tokens(600_000, 50_000)),
        (date!(2026 - 11 - 09), "gpt-4o-mini", Usage::tokens(700_000, 20_000)),
        (date!(2026 - 11 - 23), "gpt-4o", Usage::tokens(3_000, 900)),
    ];
    let (mut total, mut counter) = (Amount::ZERO, 0);
    for (day, model, usage) in calls {
        let cost = catalog.cost("openai", model, day, &usage)?.total()?;
        let fee = meter.fee(&usage, counter, cost)?;
        println!("{day}  {model:12}  cost {cost}");
        for line in &fee.lines {
            println!("    {:>7} tokens at {:>2} %  {}", line.units, line.tier.rate, line.cost);
        }
        total = total.checked_add(cost)?.checked_add(fee.amount()?)?;
        counter += meter.count(&usage);
    }
    // One rounding, of the total.
    println!("total {total}, to pay {}", total.round_to_cents()?);
    Ok(())
}
