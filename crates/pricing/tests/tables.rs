//! The worked examples of fees and base costs, as text tables.

use tollgate_pricing::{BaseCost, Meter, Rate, Tier, Unit, UnitPrices, Usage};

/// The cells of each row of a table; blank lines and comments are skipped.
fn rows<'a, const N: usize>(table: &'a str) -> impl Iterator<Item = [&'a str; N]> + 'a {
    let lines = table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| unreachable!("{N} cells expected in: {line}"))
    })
}

fn unit(name: &str) -> Unit {
    let found = Unit::ALL.iter().find(|unit| unit.price_key() == name);
    *found.unwrap_or_else(|| unreachable!("no unit {name}"))
}

fn usage(cell: &str) -> Usage {
    let mut usage = Usage::default();
    for (name, value) in cell.split_whitespace().filter_map(|pair| pair.split_once('=')) {
        match name {
            "provider_cost" => usage.provider_cost = value.parse().ok(),
            _ => *usage.quantities.get_mut(unit(name)) = value.parse().unwrap_or(u64::MAX),
        }
    }
    usage
}

#[test]
fn every_worked_fee_comes_out_line_by_line() {
    for row in rows::<6>(include_str!("tables/fees.txt")) {
        let [kind, tiers, used, counter, base, expected] = row;
        let [rate_type, tier_unit, basis] = kind.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let tiers = tiers.split_whitespace().map(|tier| {
            let (start, rate) = tier.split_once('@').unwrap();
            Tier { start: start.parse().unwrap(), rate: rate.parse().unwrap() }
        });
        let named = |name: &str| serde_json::Value::from(name);
        let mut meter = Meter::new(
            serde_json::from_value(named(rate_type)).unwrap(),
            serde_json::from_value(named(tier_unit)).unwrap(),
            tiers.collect(),
        )
        .unwrap();
        meter.token_basis = serde_json::from_value(named(basis)).unwrap();

        let fee = meter.fee(&usage(used), counter.parse().unwrap(), base.parse().unwrap()).unwrap();

        let lines = fee.lines.iter().map(|l| format!("{}@{}={}", l.units, l.tier.start, l.cost));
        assert_eq!(lines.collect::<Vec<_>>().join(" "), expected, "{row:?}");
    }
}

#[test]
fn every_worked_base_cost_comes_out() {
    for row in rows::<4>(include_str!("tables/base_costs.txt")) {
        let [price_cell, used, input, output] = row;
        let mut prices = UnitPrices::default();
        for (name, value) in price_cell.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            *prices.get_mut(unit(name)) = Some(value.parse::<Rate>().unwrap());
        }
        let base = BaseCost::of(&usage(used), &prices).unwrap();
        assert_eq!(
            (base.input.to_string().as_str(), base.output.to_string().as_str()),
            (input, output),
            "{row:?}"
        );
    }
}

#[test]
fn a_unit_that_was_used_and_has_no_price_is_named() {
    let prices = UnitPrices { input: Some(Rate::from(1)), ..UnitPrices::default() };
    assert_eq!(BaseCost::unpriced_unit(&usage("input=1 request=1"), &prices), None);
    assert_eq!(BaseCost::unpriced_unit(&usage("input=1 output=1"), &prices), Some(Unit::Output));
}
