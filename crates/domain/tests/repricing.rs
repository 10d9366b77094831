//! Repricing of records: it always equals a settlement at the new prices.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use proptest::prelude::*;
use tollgate_domain::repricing::{CostShares, is_priced_by_list, price_again, reprice};
use tollgate_domain::settlement::{CallReport, Ending, settle};
use tollgate_domain::*;
use tollgate_pricing::*;

const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn base(units: i64) -> BaseCost {
    BaseCost { input: Amount::from_units(units), output: Amount::ZERO }
}

/// A call of a customer with a meter and a managed key.
fn pending() -> PendingRecord {
    PendingRecord {
        request_id: RequestId::generate(NOW),
        merchant_id: MerchantId::generate(NOW),
        reference_id: None,
        connection_id: Some(ConnectionId::generate(NOW)),
        spend_key_id: None,
        wallet_id: Some(WalletId::generate(NOW)),
        merchant_wallet_id: WalletId::generate(NOW),
        meter: Some(MeterVersion { meter_id: MeterId::generate(NOW), version: 1 }),
        disable_billing: false,
        forwarded: ForwardedRequest {
            provider: "house".to_owned(),
            endpoint: "POST http://127.0.0.1/v1/chat/completions".to_owned(),
            metered: true,
            provider_key_type: ProviderKeyType::Managed,
            model: Some("m".to_owned()),
            metadata: Metadata::default(),
            socket_id: None,
            input_estimate: PricedUsage::nothing(),
        },
        spend_hold: Amount::ZERO,
        wallet_hold: Amount::ZERO,
        credit_hold: None,
        merchant_hold: Amount::ZERO,
        enforcement: None,
        budgets: CallBudgets::default(),
        run_id: None,
        report: None,
        ahead: false,
        created_at: NOW,
    }
}

fn report(tokens: u64, base: BaseCost) -> CallReport {
    let priced = PricedUsage {
        usage: Usage::tokens(tokens, 0),
        usage_source: UsageSource::Reported,
        base,
        price_source: PriceSource::Catalog,
    };
    CallReport { ending: Ending::Answered, priced, ..CallReport::not_sent(NOW) }
}

fn percentage(tiers: &[(u64, &str)]) -> FeeModel {
    let tiers = tiers.iter().map(|&(start, text)| Tier { start, rate: rate(text) });
    Meter::new(RateType::Percentage, TierUnit::Tokens, tiers.collect()).unwrap().into()
}

fn shares(wallet: &str, merchant: &str) -> CostShares {
    CostShares { wallet: amount(wallet), merchant: amount(merchant) }
}

#[test]
fn a_percentage_follows_the_base_line_by_line_and_the_service_charge_follows_the_fee() {
    // 300 of 1,000 tokens at 20 %, the rest at 10 %; a charge of 10 % of the fee.
    let mut meter = percentage(&[(0, "20"), (1_000, "10")]);
    meter.service_charge_payer = Payer::Merchant;
    let pending = pending();
    let record = settle(&pending, &report(1_000, base(0)), Some(&meter), 700, rate("0.1")).record;
    assert_eq!(CostShares::of(&record), CostShares::default());

    let now = reprice(&pending, &record, BaseCost { input: amount("1"), output: amount("1") });
    let now = now.unwrap();
    // 2 × (0.3 × 20 % + 0.7 × 10 %) = 0.26, and 0.026 of charge.
    assert_eq!(now.shares, shares("2.26", "0.026"));
    assert!(!now.service_charge_kept);
}

#[test]
fn a_record_that_does_not_say_its_service_charge_rate_tells_it_by_charge_and_fee() {
    let meter = percentage(&[(0, "50")]);
    let pending = pending();
    let mut record =
        settle(&pending, &report(10, base(400)), Some(&meter), 0, rate("0.019")).record;
    // 1.9 % of 200 units are 3.8, booked as 4. The rate that follows from the record is 4 of 200.
    assert_eq!(record.quote.service_charge.amount, Amount::from_units(4));
    record.service_charge_rate = None;
    let now = reprice(&pending, &record, base(4_000)).unwrap();
    assert_eq!(now.shares.wallet, Amount::from_units(4_000 + 2_000 + 40));
    assert!(!now.service_charge_kept);
}

#[test]
fn without_a_fee_to_tell_the_rate_from_the_service_charge_stays_and_that_is_said() {
    let meter = percentage(&[(0, "50")]);
    let pending = pending();
    let mut record = settle(&pending, &report(10, base(0)), Some(&meter), 0, rate("0.5")).record;
    record.service_charge_rate = None;
    let now = reprice(&pending, &record, base(4_000)).unwrap();
    assert_eq!(now.shares.wallet, Amount::from_units(6_000));
    assert!(now.service_charge_kept);
    assert!(!reprice(&pending, &record, base(0)).unwrap().service_charge_kept);
}

#[test]
fn what_nobody_was_charged_for_by_a_list_is_left_alone() {
    let pending = pending();
    let of = |report: CallReport| settle(&pending, &report, None, 0, Rate::ZERO).record;
    let mut unpriced = report(10, base(0));
    unpriced.priced.price_source = PriceSource::Unpriced;
    let mut stated = report(10, base(5));
    stated.priced.price_source = PriceSource::Provider;
    assert!(is_priced_by_list(&of(report(10, base(5)))));
    assert!(is_priced_by_list(&of(unpriced)));
    assert!(!is_priced_by_list(&of(stated)));
    assert!(!is_priced_by_list(&of(CallReport::not_sent(NOW))));
    assert!(!is_priced_by_list(&settlement::in_flight(&pending, None)));
}

fn book(rows: &[(&str, u32)]) -> PriceBook {
    let rows = rows.iter().map(|&(model, input)| PriceRow {
        provider: "house".to_owned(),
        models: vec![ModelPattern::new(model)],
        prices: UnitPrices { input: Some(input.into()), ..UnitPrices::default() },
        tiers: [("priority".to_owned(), TierPrices::Factor { factor: 2.into() })].into(),
        ..PriceRow::default()
    });
    PriceBook::new(Catalog::new(rows), Catalog::default())
}

#[test]
fn parts_and_tiers_of_the_applied_prices_are_priced_again_each_by_its_model() {
    let pending = pending();
    let part = |model: Option<&str>, input| PerModelUsage {
        model: model.map(str::to_owned),
        quantities: Usage::tokens(input, 0).quantities,
    };
    let usage = Usage::tokens(1_000_000, 0);
    let parts = [part(Some("m-small"), 400_000)];
    let served = ServedCall {
        provider: "house",
        models: &["m"],
        tiers: &["priority".to_owned()],
        on: NOW.date(),
        time: Some(NOW.time()),
        usage: &usage,
        parts: &parts,
    };
    let before = book(&[("m", 3), ("m-small", 1)]).price(&served).unwrap();
    let mut report = report(1_000_000, before.base);
    report.applied = before.applied;
    let record = settle(&pending, &report, None, 0, Rate::ZERO).record;
    assert_eq!(record.priced.base.total(), Ok(amount("4.4")));

    let again = |rows: &[_]| price_again(&pending, &record, &book(rows)).unwrap();
    assert_eq!(again(&[("m", 3), ("m-small", 1)]).base, record.priced.base);
    assert_eq!(again(&[("m", 3), ("m-small", 2)]).base.total(), Ok(amount("5.2")));
    assert_eq!(again(&[("m", 3)]).base.total(), Ok(amount("6")), "no row of its own: the call's");
    assert_eq!(again(&[("other", 3)]).source, PriceSource::Unpriced);
}

#[test]
fn a_record_without_applied_prices_is_priced_by_its_model_else_by_the_one_asked_for() {
    let pending = pending();
    let mut report = report(1_000_000, base(0));
    report.model = Some("m-2026".to_owned());
    let record = settle(&pending, &report, None, 0, Rate::ZERO).record;
    let total = |rows: &[_]| price_again(&pending, &record, &book(rows)).unwrap().base.total();
    assert_eq!(total(&[("m-2026", 5), ("m", 3)]), Ok(amount("5")));
    assert_eq!(total(&[("m", 3)]), Ok(amount("3")));
}

#[derive(Clone, Debug)]
struct RepricingCase {
    rate_type: RateType,
    payers: [Payer; 2],
    tiers: Vec<(u64, u64)>,
    has_meter: bool,
    has_wallet: bool,
    disable_billing: bool,
    managed: bool,
    counter: u64,
    service_charge: u64,
    ending: Ending,
}

fn payer() -> impl Strategy<Value = Payer> {
    prop_oneof![Just(Payer::Wallet), Just(Payer::Merchant)]
}

fn terms() -> impl Strategy<Value = RepricingCase> {
    let rate_type = prop_oneof![Just(RateType::Fixed), Just(RateType::Percentage)];
    let tiers = prop::collection::vec((1_u64..5_000, 0_u64..300), 0..3);
    let ending = prop_oneof![
        Just(Ending::Answered),
        Just(Ending::Broken),
        Just(Ending::Rejected),
        Just(Ending::Unanswered)
    ];
    (
        (rate_type, [payer(), payer()], tiers, 0_u64..9_000, 0_u64..1_000, ending),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    )
        .prop_map(|(one, flags)| {
            let (rate_type, payers, mut steps, counter, service_charge, ending) = one;
            let (has_meter, has_wallet, disable_billing, managed) = flags;
            let mut tiers = vec![(0, 20)];
            let mut start = 0;
            for (more, rate) in steps.drain(..) {
                start += more;
                tiers.push((start, rate));
            }
            RepricingCase {
                rate_type,
                payers,
                tiers,
                has_meter,
                has_wallet,
                disable_billing,
                managed,
                counter,
                service_charge,
                ending,
            }
        })
}

impl RepricingCase {
    fn meter(&self) -> Option<FeeModel> {
        let tiers = self.tiers.iter().map(|&(start, units)| Tier {
            start,
            rate: rate(&format!("{}.{}", units / 10, units % 10)),
        });
        let meter = Meter::new(self.rate_type, TierUnit::Tokens, tiers.collect()).unwrap();
        let [base_cost_payer, service_charge_payer] = self.payers;
        self.has_meter.then_some(FeeModel { meter, base_cost_payer, service_charge_payer })
    }

    fn pending(&self) -> PendingRecord {
        let mut pending = pending();
        pending.disable_billing = self.disable_billing;
        pending.wallet_id = pending.wallet_id.filter(|_| self.has_wallet);
        if !self.managed {
            pending.forwarded.provider_key_type = ProviderKeyType::Unmanaged;
        }
        pending
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A repriced call costs what a settlement at the new prices would have cost.
    #[test]
    fn a_repriced_call_costs_each_what_it_would_have_cost_at_those_prices(
        terms in terms(),
        tokens in 0_u64..12_000,
        before in 0_i64..1_000_000_000,
        after in 0_i64..1_000_000_000,
    ) {
        let (pending, meter) = (terms.pending(), terms.meter());
        let charge = rate(&format!("0.{:03}", terms.service_charge));
        let settled = |units| {
            let report = CallReport { ending: terms.ending, ..report(tokens, base(units)) };
            settle(&pending, &report, meter.as_ref(), terms.counter, charge).record
        };
        let record = settled(before);
        let repriced = |units| reprice(&pending, &record, base(units)).unwrap();
        prop_assert_eq!(repriced(after).shares, CostShares::of(&settled(after)));
        prop_assert_eq!(repriced(before).shares, CostShares::of(&record));
        prop_assert!(!repriced(after).service_charge_kept);
    }
}

#[test]
fn a_record_is_priced_again_at_the_hour_of_its_admission() {
    let peak: PriceRow = serde_json::from_str(
        r#"{"provider": "house", "models": ["m"], "hours": {"from": "01:00", "to": "04:00"},
            "prices": {"input": "2"}}"#,
    )
    .unwrap();
    let day = PriceRow {
        hours: None,
        prices: UnitPrices { input: Some(1.into()), ..UnitPrices::default() },
        ..peak.clone()
    };
    let book = PriceBook::new(Catalog::default(), Catalog::new([peak, day]));
    let minutes = |minutes: i64| NOW.plus_millis(minutes * 60 * 1_000);
    for (admitted, cost) in [(59, "1"), (60, "2"), (239, "2"), (240, "1")] {
        let pending = PendingRecord { created_at: minutes(admitted), ..pending() };
        let record = settle(&pending, &report(1_000_000, base(0)), None, 0, Rate::ZERO).record;
        let again = price_again(&pending, &record, &book).unwrap();
        assert_eq!(again.base.total(), Ok(amount(cost)), "{admitted} minutes after midnight");
    }
}
