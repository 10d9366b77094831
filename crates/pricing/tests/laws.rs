//! Laws of amounts, rates, base costs and meters for every input.

use proptest::prelude::*;
use tollgate_pricing::{
    Amount, BaseCost, Meter, Overflow, Rate, RateType, Tier, TierErrors, TierUnit, Usage,
};

pub(crate) fn rates() -> impl Strategy<Value = Rate> {
    (0_u64..100_000, 0_u64..1_000_000_000).prop_map(|(whole, fraction)| {
        format!("{whole}.{fraction:09}").parse().unwrap_or(Rate::ZERO)
    })
}

fn meters() -> impl Strategy<Value = Meter> {
    let starts = prop::collection::btree_set(1_u64..5_000, 0..4);
    let kinds = prop_oneof![Just(RateType::Fixed), Just(RateType::Percentage)];
    (kinds, starts, prop::collection::vec(rates(), 5)).prop_filter_map(
        "valid by construction",
        |(kind, starts, rates)| {
            let tiers = std::iter::once(0).chain(starts).zip(rates);
            let tiers = tiers.map(|(start, rate)| Tier { start, rate }).collect();
            Meter::new(kind, TierUnit::Tokens, tiers).ok()
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
    fn an_amount_and_its_opposite_are_zero(units: i64) {
        let amount = Amount::from_units(units);
        prop_assert_eq!(amount.checked_add(-amount), Ok(Amount::ZERO));
        prop_assert_eq!(-(-amount), amount);
    }

    /// A sum beyond the range is an error, in whichever order the amounts come.
    #[test]
    fn a_sum_is_exact_or_an_error(units in prop::collection::vec(any::<i64>(), 0..4)) {
        let amounts: Vec<_> = units.iter().map(|&units| Amount::from_units(units)).collect();
        let exact: i128 = amounts.iter().map(|amount| i128::from(amount.units())).sum();
        match amounts.iter().sum::<Result<Amount, _>>() {
            Ok(sum) => prop_assert_eq!(i128::from(sum.units()), exact),
            Err(Overflow) => prop_assert!(exact.abs() > i128::from(i64::MAX)),
        }
    }

    /// Checked with the rounding of another crate.
    #[test]
    fn cents_are_rounded_half_even(units in prop_oneof![any::<i64>(), (-1_000_i64..1_000).prop_map(|n| n * 50_000_000)]) {
        use bigdecimal::{BigDecimal, RoundingMode};
        let amount = Amount::from_units(units);
        let expected = BigDecimal::from(amount).with_scale_round(2, RoundingMode::HalfEven);
        match amount.round_to_cents() {
            Ok(cents) => prop_assert_eq!(BigDecimal::from(cents), expected),
            Err(Overflow) => prop_assert!(expected.abs() > BigDecimal::from(Amount::MAX)),
        }
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
    assert_eq!("-922337203.6854775808".parse::<Amount>(), Err(OutOfRange));
    assert_eq!("-922337203.6854775807".parse(), Ok(Amount::MIN));
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
        (-i64::MAX, "-922337203.6854775807"),
        // Each amount has an opposite.
        (i64::MIN, "-922337203.6854775807"),
    ] {
        assert_eq!(Amount::from_units(units).to_string(), text);
        #[cfg(feature = "serde")]
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
    let errors = |found: &[_]| Err(TierErrors(found.to_vec()));
    assert_eq!(Meter::check_tiers(&[]), errors(&[NoTiers]));
    assert_eq!(Meter::check_tiers(&tiers(&[1])), errors(&[FirstStart]));
    assert_eq!(
        Meter::check_tiers(&tiers(&[5, 5, 3])),
        errors(&[FirstStart, NotAscending(1), NotAscending(2)])
    );
    assert_eq!(Meter::check_tiers(&tiers(&[0, 1, 2])), Ok(()));
}

#[test]
fn a_counter_beyond_64_bits_is_an_error_and_no_fee_of_zero() {
    let tiers = vec![Tier { start: 0, rate: Rate::from(1) }];
    let meter = Meter::new(RateType::Fixed, TierUnit::Tokens, tiers).unwrap();
    let fee = |counter| meter.fee(&Usage::tokens(1_000, 0), counter, Amount::ZERO);
    assert_eq!(fee(u64::MAX - 500), Err(Overflow));
    assert_eq!(fee(u64::MAX - 1_000).unwrap().lines[0].units, 1_000);
}

#[test]
fn a_stated_total_stays_the_total() {
    for (input, total) in
        [(Amount::MIN, Amount::MAX), (Amount::MAX, Amount::MIN), (Amount::USD, Amount::ZERO)]
    {
        assert_eq!(BaseCost::from_total(input, total).total(), Ok(total), "{input} {total}");
    }
}

#[test]
fn amounts_and_rates_are_aligned_as_numbers() {
    let amount = -Amount::from_cents(150).unwrap();
    assert_eq!(
        format!("{amount:>15}|{amount:<15}|{amount}"),
        "  -1.5000000000|-1.5000000000  |-1.5000000000"
    );
    assert_eq!(format!("{:>5}|{:05}", Rate::from(7), Rate::from(7)), "    7|00007");
    assert_eq!(Amount::from_cents(i64::MAX), Err(Overflow));
}

#[cfg(feature = "serde")]
#[test]
fn a_meter_is_read_only_if_its_tiers_are_valid() {
    let read = |tiers: &str| {
        let text = format!(r#"{{"rate_type": "fixed", "unit": "tokens_1m", "tiers": {tiers}}}"#);
        serde_json::from_str::<Meter>(&text).map_err(|error| error.to_string())
    };
    assert!(read(r#"[{"start": 0, "rate": "1"}]"#).is_ok());
    assert_eq!(read("[]"), Err("tiers must have at least one tier".to_owned()));
    let turned = read(r#"[{"start": 500, "rate": "1"}, {"start": 100, "rate": "2"}]"#).unwrap_err();
    assert!(turned.contains("tiers[0].start") && turned.contains("tiers[1].start"), "{turned}");
}
