//! The laws of quotes for every input.

use proptest::prelude::*;
use tollgate_domain::{FeeModel, Payer, PricingTerms, Quote};
use tollgate_pricing::{
    Amount, BaseCost, Meter, Rate, RateType, Tier, TierUnit, UnitPrices, Usage,
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

fn fee_models() -> impl Strategy<Value = FeeModel> {
    let starts = prop::collection::btree_set(1_u64..5_000, 0..4);
    let kinds = prop_oneof![Just(RateType::Fixed), Just(RateType::Percentage)];
    let payers = || prop_oneof![Just(Payer::Wallet), Just(Payer::Merchant)];
    (kinds, starts, prop::collection::vec(rates(), 5), payers(), payers()).prop_filter_map(
        "valid by construction",
        |(kind, starts, rates, base_cost_payer, service_charge_payer)| {
            let tiers = std::iter::once(0).chain(starts).zip(rates);
            let tiers = tiers.map(|(start, rate)| Tier { start, rate }).collect();
            let meter = Meter::new(kind, TierUnit::Tokens, tiers).ok()?;
            Some(FeeModel { meter, base_cost_payer, service_charge_payer })
        },
    )
}

proptest! {
    #[test]
    fn a_quote_is_the_exact_sum_of_its_lines(
        meter in prop::option::of(fee_models()),
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
        let lines = quote.fee.lines.iter().map(|line| line.cost).sum::<Result<Amount, _>>()?;
        prop_assert_eq!(quote.total_request_cost, [owed, lines, quote.service_charge.amount].iter().sum::<Result<Amount, _>>()?);
        prop_assert_eq!(quote.total_request_cost, quote.total_wallet_cost.checked_add(quote.total_merchant_cost)?);
        if !wallet_pays {
            prop_assert_eq!(quote.total_wallet_cost, Amount::ZERO);
        }
    }
}
