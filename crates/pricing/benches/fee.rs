//! The duration of one base cost and fee; the name of the benchmark has the target.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tollgate_pricing::{
    Amount, BaseCost, Meter, Rate, RateType, Tier, TierUnit, UnitPrices, Usage,
};

fn fee_with_three_tiers(c: &mut Criterion) {
    let rate = |text: &str| text.parse::<Rate>().unwrap_or(Rate::ZERO);
    let prices = UnitPrices {
        input: Some(rate("0.15")),
        output: Some(rate("0.6")),
        ..UnitPrices::default()
    };
    let tiers = [(0, "5"), (1_000_000, "3"), (10_000_000, "1")]
        .map(|(start, text)| Tier { start, rate: rate(text) });
    let Ok(meter) = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers.to_vec()) else { return };
    let usage = Usage::tokens(4_000_000, 8_000_000);
    c.bench_function("base_cost_and_fee_with_three_tiers (target: under 1 µs)", |b| {
        b.iter(|| {
            let base = BaseCost::of(black_box(&usage), black_box(&prices)).unwrap_or_default();
            let base = base.total().unwrap_or(Amount::ZERO);
            meter.fee(&usage, black_box(10), base)
        });
    });
}

criterion_group!(benches, fee_with_three_tiers);
criterion_main!(benches);
