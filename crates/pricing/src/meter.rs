use std::fmt;

use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::amount::round_ratio;
use crate::exact::Overflow;
use crate::rate::Rate;
use crate::usage::Usage;

/// How a tier's rate becomes a fee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateType {
    /// The rate is USD per unit.
    Fixed,
    /// The rate is a percentage of the provider's base cost: `"20"` is 20 %, `"0.2"` a fifth of a
    /// percent. The fee comes on top of the base cost.
    Percentage,
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierUnit {
    /// Tokens; a fixed rate is for a million.
    #[serde(rename = "tokens_1m")]
    Tokens,
    /// Characters (Unicode scalar values); a fixed rate is for a million.
    #[serde(rename = "characters_1m")]
    Characters,
    /// Minutes of audio or video, exact to the microsecond; a fixed rate is for one minute.
    #[serde(rename = "minutes")]
    Minutes,
    /// Calls that the provider accepted; a fixed rate is for each.
    #[serde(rename = "requests")]
    Requests,
}

impl TierUnit {
    /// How many counted units stand in one unit of a tier's `start`: minutes are counted in
    /// microseconds, all else as it is.
    pub const fn counted_per_start(self) -> u64 {
        match self {
            Self::Minutes => 60_000_000,
            Self::Tokens | Self::Characters | Self::Requests => 1,
        }
    }

    /// How many counted units one fixed rate is for.
    const fn counted_per_rate(self) -> u128 {
        match self {
            Self::Tokens | Self::Characters => 1_000_000,
            Self::Minutes => 60_000_000,
            Self::Requests => 1,
        }
    }
}

/// Which tokens a token meter counts. It bears on tokens only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenBasis {
    /// Prompt and answer; cached, cache-write and reasoning tokens are part of those.
    #[default]
    #[serde(rename = "input+output")]
    InputOutput,
    /// The answer, reasoning included.
    #[serde(rename = "output")]
    Output,
}

/// Who pays a part of the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payer {
    /// The merchant's own account.
    Merchant,
    /// The wallet of the request.
    #[default]
    Wallet,
}

/// A price step: from `start` on, each unit costs `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Where the tier begins, in tokens, characters, minutes or requests.
    pub start: u64,
    /// USD per unit, or percent of the base cost.
    pub rate: Rate,
}

/// Why tiers do not make a [`Meter`]; each names the tier by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeterError {
    /// There is no tier.
    NoTiers,
    /// The first tier does not start at 0.
    FirstStart,
    /// The tier at this place does not start above the one before it.
    NotAscending(usize),
    /// The tier at this place starts beyond what can be counted.
    StartTooLarge(usize),
}

impl fmt::Display for MeterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTiers => "must have at least one tier",
            Self::FirstStart => "must be \"0\" in the first tier",
            Self::NotAscending(_) => "must be greater than the start of the tier before",
            Self::StartTooLarge(_) => "must be at most 100000000000",
        })
    }
}

impl std::error::Error for MeterError {}

impl Tier {
    /// The largest `start`: in microseconds still far within 64 bits.
    pub const MAX_START: u64 = 100_000_000_000;
}

/// A fee model: graduated tiers over everything that was used under it so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// How a rate becomes a fee.
    pub rate_type: RateType,
    /// What is counted.
    pub unit: TierUnit,
    /// Which tokens count, for a token meter.
    pub token_basis: TokenBasis,
    /// Who pays the provider's base cost.
    pub base_cost_payer: Payer,
    /// Who pays the operator's service charge.
    pub service_charge_payer: Payer,
    tiers: Vec<Tier>,
}

/// One line of a fee: the part of the usage that fell into one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeeLine {
    /// The tier.
    pub tier: Tier,
    /// The tier's unit.
    pub unit: TierUnit,
    /// Counted units in this tier: tokens, characters, microseconds or requests.
    pub units: u64,
    /// The line's cost, rounded half-even once.
    pub cost: Amount,
}

/// What a meter charges for a call, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fee {
    /// One line per tier touched.
    pub lines: Vec<FeeLine>,
}

impl Fee {
    /// The exact sum of the lines.
    ///
    /// # Errors
    /// [`Overflow`] when the sum is beyond the range of an [`Amount`].
    pub fn amount(&self) -> Result<Amount, Overflow> {
        Amount::sum(self.lines.iter().map(|line| line.cost))
    }

    /// The same lines of a percentage fee as they are when the base cost is another.
    ///
    /// # Errors
    /// [`Overflow`] when a line is beyond the range of an [`Amount`].
    pub fn of_base(&self, base: Amount) -> Result<Self, Overflow> {
        let all_units = self.lines.iter().fold(0_u64, |all, line| all.saturating_add(line.units));
        let lines = self.lines.iter().map(|line| {
            let cost = percentage_cost(&line.tier, line.units, all_units, base)?;
            Ok(FeeLine { cost, ..*line })
        });
        Ok(Self { lines: lines.collect::<Result<_, Overflow>>()? })
    }
}

impl Meter {
    /// A meter whose base cost and service charge are paid by the wallet, counting prompt and
    /// answer tokens; change the public fields for anything else.
    ///
    /// # Errors
    /// Every fault of the tiers: there must be one, the first starts at 0, starts strictly ascend.
    pub fn new(
        rate_type: RateType,
        unit: TierUnit,
        tiers: Vec<Tier>,
    ) -> Result<Self, Vec<MeterError>> {
        Self::check_tiers(&tiers)?;
        Ok(Self {
            rate_type,
            unit,
            token_basis: TokenBasis::default(),
            base_cost_payer: Payer::default(),
            service_charge_payer: Payer::default(),
            tiers,
        })
    }

    /// The tiers, ascending, the first at 0.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Checks tiers without making a meter.
    ///
    /// # Errors
    /// As [`Meter::new`].
    pub fn check_tiers(tiers: &[Tier]) -> Result<(), Vec<MeterError>> {
        let mut errors = Vec::new();
        match tiers.first() {
            None => errors.push(MeterError::NoTiers),
            Some(first) if first.start != 0 => errors.push(MeterError::FirstStart),
            Some(_) => {}
        }
        let pairs = tiers.iter().zip(tiers.iter().skip(1));
        errors.extend(
            pairs
                .enumerate()
                .filter(|(_, (one, next))| next.start <= one.start)
                .map(|(place, _)| MeterError::NotAscending(place + 1)),
        );
        let too_large = tiers.iter().enumerate().filter(|(_, tier)| tier.start > Tier::MAX_START);
        errors.extend(too_large.map(|(place, _)| MeterError::StartTooLarge(place)));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The same meter with its dearest rate for everything: for upper bounds, where it is not yet
    /// known in which tier the call will fall.
    pub fn at_dearest_rate(&self) -> Self {
        let rate = self.tiers.iter().map(|tier| tier.rate).max().unwrap_or(Rate::ZERO);
        Self { tiers: vec![Tier { start: 0, rate }], ..self.clone() }
    }

    /// How many units of this meter `usage` counts: tokens, characters, microseconds or requests.
    pub fn count(&self, usage: &Usage) -> u64 {
        match self.unit {
            TierUnit::Tokens => match self.token_basis {
                TokenBasis::InputOutput => {
                    usage.input_tokens().saturating_add(usage.output_tokens())
                }
                TokenBasis::Output => usage.output_tokens(),
            },
            TierUnit::Characters => usage.characters(),
            TierUnit::Minutes => usage.microseconds(),
            TierUnit::Requests => usage.quantities.request,
        }
    }

    /// The fee for `usage` when `counter` units were used before it and the provider's cost of the
    /// call is `base`.
    ///
    /// A percentage walks the same tiers: each line takes its share of the base cost in proportion
    /// to its units; with no units the whole base goes to the tier in which the counter stands.
    ///
    /// # Errors
    /// [`Overflow`] when a line is beyond the range of an [`Amount`].
    pub fn fee(&self, usage: &Usage, counter: u64, base: Amount) -> Result<Fee, Overflow> {
        let all_units = self.count(usage);
        let lines = self
            .split(counter, all_units)
            .map(|(tier, units)| {
                let cost = match self.rate_type {
                    RateType::Fixed => self.fixed_cost(tier, units)?,
                    RateType::Percentage => percentage_cost(tier, units, all_units, base)?,
                };
                Ok(FeeLine { tier: *tier, unit: self.unit, units, cost })
            })
            .collect::<Result<_, Overflow>>()?;
        Ok(Fee { lines })
    }

    /// The tiers that `units` after `counter` touch, each with its part of the units. The one walk
    /// over tiers, for both rate types. A percentage of no units touches the tier of the counter.
    fn split(&self, counter: u64, units: u64) -> impl Iterator<Item = (&Tier, u64)> {
        let end = counter.saturating_add(units);
        let whole_base = units == 0 && self.rate_type == RateType::Percentage;
        let per_start = self.unit.counted_per_start();
        let start_of = move |tier: &Tier| tier.start.saturating_mul(per_start);
        self.tiers.iter().enumerate().filter_map(move |(place, tier)| {
            let from = start_of(tier);
            let to = self.tiers.get(place + 1).map_or(u64::MAX, start_of);
            let inside = end.min(to).saturating_sub(counter.max(from));
            let holds_counter = (from..to).contains(&counter);
            (inside > 0 || (whole_base && holds_counter)).then_some((tier, inside))
        })
    }

    fn fixed_cost(&self, tier: &Tier, units: u64) -> Result<Amount, Overflow> {
        let (rate, scale) = tier.rate.fraction();
        round_ratio(
            &[u128::from(units), rate, u128::from(Amount::USD.units().unsigned_abs())],
            &[self.unit.counted_per_rate(), scale],
        )
    }
}

fn percentage_cost(tier: &Tier, units: u64, all: u64, base: Amount) -> Result<Amount, Overflow> {
    let (rate, scale) = tier.rate.fraction();
    let base = u128::from(base.units().max(0).unsigned_abs());
    let (part, whole) = if all == 0 { (1, 1) } else { (u128::from(units), u128::from(all)) };
    round_ratio(&[base, rate, part], &[100, scale, whole])
}
