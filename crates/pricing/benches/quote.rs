//! The duration of one quote; the name of the benchmark has the target.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate_pricing::{
    BaseCost, Meter, PricingTerms, Quote, Rate, RateType, Tier, TierUnit, UnitPrices, Usage,
};

fn quote_with_three_tiers(c: &mut Criterion) {
    let rate = |text: &str| text.parse::<Rate>().unwrap_or(Rate::ZERO);
    let prices = UnitPrices {
        input: Some(rate("0.15")),
        output: Some(rate("0.6")),
        ..UnitPrices::default()
    };
    let tiers = [(0, "5"), (1_000_000, "3"), (10_000_000, "1")]
        .map(|(start, text)| Tier { start, rate: rate(text) });
    let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers.to_vec()).ok();
    let usage = Usage::tokens(4_000_000, 8_000_000);
    c.bench_function("quote_with_three_tiers (target: under 1 µs)", |b| {
        b.iter(|| {
            let base = BaseCost::of(black_box(&usage), black_box(&prices)).unwrap_or_default();
            let terms = PricingTerms {
                meter: meter.as_ref(),
                counter: black_box(10),
                service_charge_rate: rate("0.019"),
                wallet_pays: true,
                base_due: true,
                fee_due: true,
            };
            Quote::new(&usage, base, &terms)
        });
    });
}

criterion_group!(benches, quote_with_three_tiers);
criterion_main!(benches);
