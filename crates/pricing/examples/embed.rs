//! Prices one call and prints its quote line by line.

use tollgate_pricing::{
    BaseCost, Meter, PricingTerms, Quote, Rate, RateType, Tier, TierUnit, UnitPrices, Usage,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Your own prices; `Catalog::embedded()` has the providers' prices.
    let prices = UnitPrices {
        input: Some("0.15".parse()?),
        output: Some("0.60".parse()?),
        ..UnitPrices::default()
    };
    // 5 USD per million tokens, 3 from the second million on, 1 from the eleventh on.
    let tier = |start, rate: &str| {
        Ok::<_, Box<dyn std::error::Error>>(Tier { start, rate: rate.parse()? })
    };
    let tiers = vec![tier(0, "5")?, tier(1_000_000, "3")?, tier(10_000_000, "1")?];
    let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers)
        .map_err(|faults| format!("the tiers are not valid: {faults:?}"))?;

    let usage = Usage::tokens(4_000_000, 1_000_000);
    let base = BaseCost::of(&usage, &prices)?;
    let terms = PricingTerms {
        meter: Some(&meter),
        counter: 0,
        service_charge_rate: Rate::ZERO,
        wallet_pays: true,
        base_due: true,
        fee_due: true,
    };
    let quote = Quote::new(&usage, base, &terms)?;

    println!("input             {:>16}", quote.base.input.to_string());
    println!("output            {:>16}", quote.base.output.to_string());
    for line in &quote.fee.lines {
        println!(
            "fee, {:>9} tokens from {:>8} at {} per million {:>8}",
            line.units, line.tier.start, line.tier.rate, line.cost
        );
    }
    println!("total             {:>16}", quote.total_request_cost.to_string());
    Ok(())
}
