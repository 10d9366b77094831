//! Laws of amounts, rates, rows, meters and quotes for every input.

use proptest::prelude::*;
use tollgate_pricing::{
    Amount, BaseCost, Meter, Payer, PriceBand, PriceRow, PricingTerms, Quote, Rate, RateType, Tier,
    TierPrices, TierUnit, UnitPrices, Usage,
};

fn rates() -> impl Strategy<Value = Rate> {
    (0_u64..100_000, 0_u64..1_000_000_000).prop_map(|(whole, fraction)| {
        format!("{whole}.{fraction:09}").parse().unwrap_or(Rate::ZERO)
    })
}

fn fractions() -> impl Strategy<Value = Rate> {
    (0_u64..1_000)
        .prop_map(|thousandths| format!("0.{thousandths:03}").parse().unwrap_or(Rate::ZERO))
}

fn meters() -> impl Strategy<Value = Meter> {
    let starts = prop::collection::btree_set(1_u64..5_000, 0..4);
    let kinds = prop_oneof![Just(RateType::Fixed), Just(RateType::Percentage)];
    let payers = || prop_oneof![Just(Payer::Wallet), Just(Payer::Merchant)];
    (kinds, starts, prop::collection::vec(rates(), 5), payers(), payers()).prop_filter_map(
        "valid by construction",
        |(kind, starts, rates, base_payer, charge_payer)| {
            let tiers = std::iter::once(0).chain(starts).zip(rates);
            let tiers = tiers.map(|(start, rate)| Tier { start, rate }).collect();
            let mut meter = Meter::new(kind, TierUnit::Tokens, tiers).ok()?;
            meter.base_cost_payer = base_payer;
            meter.service_charge_payer = charge_payer;
            Some(meter)
        },
    )
}

/// Any rate, including rates near the ends of the range.
fn any_rates() -> impl Strategy<Value = Rate> {
    ("[0-9]{1,18}", "[0-9]{0,18}").prop_map(|(whole, fraction)| {
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{whole}{point}{fraction}").parse().unwrap_or(Rate::ZERO)
    })
}

/// A row with bands above 10 and 20, a tier with a band of its own, and a tier by a factor. Every price
/// identifies its place.
fn row_of_bands_and_tiers(factor: Rate) -> PriceRow {
    let prices = |input: u32| UnitPrices {
        input: Some(Rate::from(input)),
        web_search: Some(Rate::from(7)),
        ..UnitPrices::default()
    };
    let band =
        |above: u64, input: u32| PriceBand { above_input_tokens: above, prices: prices(input) };
    let own = TierPrices::Prices { prices: Box::new(prices(3)), bands: vec![band(15, 30)] };
    PriceRow {
        prices: prices(1),
        bands: vec![band(10, 10), band(20, 20)],
        tiers: [("own".to_owned(), own), ("times".to_owned(), TierPrices::Factor { factor })]
            .into(),
        ..PriceRow::default()
    }
}

proptest! {
    #[test]
    fn a_product_of_rates_is_exact_and_rounded_once(one in any_rates(), other in any_rates()) {
        use bigdecimal::{BigDecimal, RoundingMode};
        let big = |rate: Rate| rate.to_string().parse::<BigDecimal>().unwrap();
        let exact = (big(one) * big(other)).with_scale_round(18, RoundingMode::HalfEven);
        let largest: BigDecimal = "999999999999999999.999999999999999999".parse().unwrap();
        prop_assert_eq!(big(one.times(other)), exact.min(largest));
        prop_assert_eq!(one.times(other), other.times(one));
    }

    #[test]
    fn a_call_meets_the_prices_of_its_band_and_tiers(
        tokens in 0_u64..40, own: bool, times: bool, unknown: bool, factor in rates(),
    ) {
        let names = [("own", own), ("times", times), ("unknown", unknown)];
        let tiers: Vec<_> = names.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        let row = row_of_bands_and_tiers(factor);
        let selected = row.prices_for(tokens, &tiers);
        let input = match (own, tokens) {
            (true, 0..=15) => 3,
            (true, _) => 30,
            (false, 0..=10) => 1,
            (false, 11..=20) => 10,
            (false, _) => 20,
        };
        let input = Rate::from(input);
        let input = if times { input.times(factor) } else { input };
        prop_assert_eq!(selected.prices.input, Some(input));
        // A unit that is no token has the same price in every tier.
        prop_assert_eq!(selected.prices.web_search, Some(Rate::from(7)));
        prop_assert_eq!(selected.unlisted_tiers.len(), usize::from(unknown));
        // The bound covers every call of at most this number of tokens, whichever of the tiers serve it.
        let bound = row.highest_prices(tokens, &["own", "times", "unknown"]);
        prop_assert!(bound.input >= selected.prices.input);
    }

    #[test]
    fn an_amount_reads_back_what_it_printed(units: i64) {
        let amount = Amount::from_units(units);
        prop_assert_eq!(amount.to_string().parse(), Ok(amount));
        prop_assert_eq!(amount.to_string().split_once('.').map(|(_, decimals)| decimals.len()), Some(10));
    }

    #[test]
    fn a_rate_reads_back_what_it_printed(rate in rates()) {
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in ".{0,60}") {
        let _ = text.parse::<Amount>();
        let _ = text.parse::<Rate>();
    }

    #[test]
    fn a_quote_is_the_exact_sum_of_its_lines(
        meter in prop::option::of(meters()),
        (input, output, counter) in (0_u64..10_000, 0_u64..10_000, 0_u64..10_000),
        (input_price, output_price, charge) in (rates(), rates(), fractions()),
        (wallet_pays, base_due, fee_due) in any::<(bool, bool, bool)>(),
    ) {
        let usage = Usage::tokens(input, output);
        let prices = UnitPrices { input: Some(input_price), output: Some(output_price), ..UnitPrices::default() };
        let base = BaseCost::of(&usage, &prices)?;
        let terms = PricingTerms { meter: meter.as_ref(), counter, service_charge_rate: charge, wallet_pays, base_due, fee_due };
        let quote = Quote::new(&usage, base, &terms)?;

        let owed = if base_due { quote.base.total()? } else { Amount::ZERO };
        let lines = Amount::sum(quote.fee.lines.iter().map(|line| line.cost))?;
        prop_assert_eq!(quote.total_request_cost, Amount::sum([owed, lines, quote.service_charge.amount])?);
        prop_assert_eq!(quote.total_request_cost, quote.total_wallet_cost.checked_add(quote.total_merchant_cost)?);
        if !wallet_pays {
            prop_assert_eq!(quote.total_wallet_cost, Amount::ZERO);
        }
    }

    /// A usage in one call or in two touches the same units of the same tiers.
    #[test]
    fn splitting_a_usage_keeps_the_units_of_each_tier(
        meter in meters(), first in 0_u64..10_000, second in 0_u64..10_000, counter in 0_u64..10_000,
    ) {
        let fee = |tokens, counter| meter.fee(&Usage::tokens(tokens, 0), counter, Amount::ZERO);
        let whole = fee(first + second, counter)?;
        let parts = [fee(first, counter)?, fee(second, counter + first)?];
        for tier in meter.tiers() {
            let units = |lines: &[tollgate_pricing::FeeLine]| -> u64 {
                lines.iter().filter(|line| line.tier == *tier).map(|line| line.units).sum()
            };
            prop_assert_eq!(units(&whole.lines), units(&parts[0].lines) + units(&parts[1].lines));
        }
        let total: u64 = whole.lines.iter().map(|line| line.units).sum();
        prop_assert_eq!(total, first + second);
    }
}

#[test]
fn what_is_too_precise_or_too_large_is_an_error_and_never_rounded() {
    use tollgate_pricing::ParseAmountError::{Malformed, OutOfRange, TooPrecise};
    for (text, error) in [
        ("0.00000000001", TooPrecise),
        ("922337203.6854775808", OutOfRange),
        ("99999999999999999999", OutOfRange),
        ("", Malformed),
        ("1.", Malformed),
        (".5", Malformed),
        ("1e3", Malformed),
        ("+1", Malformed),
        ("- 1", Malformed),
        ("1,5", Malformed),
        ("١", Malformed),
    ] {
        assert_eq!(text.parse::<Amount>(), Err(error), "{text}");
    }
    assert_eq!("-922337203.6854775808".parse::<Amount>(), Ok(Amount::from_units(i64::MIN)));
}

#[test]
fn an_amount_is_written_with_ten_decimals_however_small_or_large() {
    for (units, text) in [
        (0, "0.0000000000"),
        (1, "0.0000000001"),
        (-1, "-0.0000000001"),
        (9_999_999_999, "0.9999999999"),
        (-10_000_000_000, "-1.0000000000"),
        (i64::MAX, "922337203.6854775807"),
        (i64::MIN, "-922337203.6854775808"),
    ] {
        assert_eq!(Amount::from_units(units).to_string(), text);
        assert_eq!(
            serde_json::to_string(&Amount::from_units(units)).unwrap(),
            format!("\"{text}\"")
        );
    }
}

#[test]
fn tiers_are_checked_and_every_fault_is_named() {
    use tollgate_pricing::MeterError::{FirstStart, NoTiers, NotAscending};
    let tiers = |starts: &[u64]| -> Vec<Tier> {
        starts.iter().map(|&start| Tier { start, rate: Rate::ZERO }).collect()
    };
    assert_eq!(Meter::check_tiers(&[]), Err(vec![NoTiers]));
    assert_eq!(Meter::check_tiers(&tiers(&[1])), Err(vec![FirstStart]));
    assert_eq!(
        Meter::check_tiers(&tiers(&[5, 5, 3])),
        Err(vec![FirstStart, NotAscending(1), NotAscending(2)])
    );
    assert_eq!(Meter::check_tiers(&tiers(&[0, 1, 2])), Ok(()));
}
