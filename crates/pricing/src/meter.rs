//! Meters: fee schedules in tiers, and the fee of a call.

use std::fmt;

use crate::amount::Amount;
use crate::amount::round_ratio;
use crate::exact::Overflow;
use crate::rate::Rate;
use crate::usage::Usage;

/// The meaning of a tier's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum RateType {
    /// The rate is USD per million tokens or characters, per minute, or per request (see [`TierUnit`]). The
    /// fee is added to the base cost and does not depend on it.
    Fixed,
    /// The rate is a percentage of the base cost: `"20"` is 20 %, `"0.2"` is 0.2 %. The fee is added to
    /// the base cost.
    Percentage,
}

/// The unit that a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TierUnit {
    /// Tokens; a fixed rate is USD per million.
    #[cfg_attr(feature = "serde", serde(rename = "tokens_1m"))]
    Tokens,
    /// Characters (Unicode scalar values); a fixed rate is USD per million.
    #[cfg_attr(feature = "serde", serde(rename = "characters_1m"))]
    Characters,
    /// Minutes of audio or video, counted in microseconds; a fixed rate is USD per minute.
    #[cfg_attr(feature = "serde", serde(rename = "minutes"))]
    Minutes,
    /// Calls that the provider accepted; a fixed rate is USD per call.
    #[cfg_attr(feature = "serde", serde(rename = "requests"))]
    Requests,
}

impl TierUnit {
    /// The counted units in one unit of a tier's `start`.
    ///
    /// It is 60,000,000 for minutes, which are counted in microseconds, else 1.
    pub const fn counted_per_start(self) -> u64 {
        match self {
            Self::Minutes => 60_000_000,
            Self::Tokens | Self::Characters | Self::Requests => 1,
        }
    }

    /// The counted units that a fixed rate is for.
    const fn counted_per_rate(self) -> u128 {
        match self {
            Self::Tokens | Self::Characters => 1_000_000,
            Self::Minutes => 60_000_000,
            Self::Requests => 1,
        }
    }
}

/// The tokens that a token meter counts. Other meters ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TokenBasis {
    /// Prompt and answer, including cached, cache-write and reasoning tokens.
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "input+output"))]
    InputOutput,
    /// The answer, including reasoning tokens.
    #[cfg_attr(feature = "serde", serde(rename = "output"))]
    Output,
}

/// A range of units with a rate, from `start` up to the start of the next tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tier {
    /// The start of the tier, in single tokens or characters (not millions), minutes or requests.
    pub start: u64,
    /// USD per unit (see [`TierUnit`]), or percent of the base cost.
    pub rate: Rate,
}

/// The reason why tiers are not valid for a [`Meter`]. Tiers are named by their index, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeterError {
    /// There is no tier.
    NoTiers,
    /// The first tier does not start at 0.
    FirstStart,
    /// The tier at this index does not start above the one before it.
    NotAscending(usize),
    /// The tier at this index starts above [`Tier::MAX_START`].
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

/// Every error of the tiers of a [`Meter`]; there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierErrors(pub Vec<MeterError>);

impl fmt::Display for TierErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            let and = if number == 0 { "" } else { "; " };
            match error {
                MeterError::NoTiers => write!(f, "{and}tiers {error}")?,
                MeterError::FirstStart => write!(f, "{and}tiers[0].start {error}")?,
                MeterError::NotAscending(place) | MeterError::StartTooLarge(place) => {
                    write!(f, "{and}tiers[{place}].start {error}")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for TierErrors {}

impl Tier {
    /// The largest `start`. In microseconds it is still far within 64 bits.
    pub const MAX_START: u64 = 100_000_000_000;
}

/// A fee schedule: graduated tiers over the units that were counted so far.
///
/// ```
/// use tollgate_pricing::*;
///
/// // The provider reported 12,000 prompt tokens, 10,000 of them cached, and 800 of answer.
/// let mut usage = Usage::tokens(2_000, 800);
/// usage.quantities.cached_input = 10_000;
/// let prices = UnitPrices {
///     input: Some("0.15".parse()?),
///     cached_input: Some("0.075".parse()?),
///     output: Some("0.60".parse()?),
///     ..UnitPrices::default()
/// };
/// let base = BaseCost::of(&usage, &prices)?;
/// assert_eq!(base.total()?.to_string(), "0.0015300000");
///
/// let tiers = vec![
///     Tier { start: 0, rate: "20".parse()? },
///     Tier { start: 1_000_000, rate: "10".parse()? },
/// ];
/// let meter = Meter::new(RateType::Percentage, TierUnit::Tokens, tiers)?;
/// // 995,000 tokens were counted before this call, so it is in both tiers.
/// let fee = meter.fee(&usage, 995_000, base.total()?)?;
/// let lines: Vec<_> = fee.lines.iter().map(|line| (line.units, line.cost.to_string())).collect();
/// assert_eq!(lines, [(5_000, "0.0001195312".into()), (7_800, "0.0000932344".into())]);
/// assert_eq!(fee.amount()?.to_string(), "0.0002127656");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "SerializedMeter"))]
pub struct Meter {
    /// The meaning of the rates.
    pub rate_type: RateType,
    /// The unit that is counted.
    pub unit: TierUnit,
    /// The tokens that count, for a token meter.
    pub token_basis: TokenBasis,
    tiers: Vec<Tier>,
}

/// A meter whose tiers are not checked yet.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct SerializedMeter {
    rate_type: RateType,
    unit: TierUnit,
    #[serde(default)]
    token_basis: TokenBasis,
    tiers: Vec<Tier>,
}

#[cfg(feature = "serde")]
impl TryFrom<SerializedMeter> for Meter {
    type Error = TierErrors;

    fn try_from(read: SerializedMeter) -> Result<Self, TierErrors> {
        let meter = Self::new(read.rate_type, read.unit, read.tiers)?;
        Ok(Self { token_basis: read.token_basis, ..meter })
    }
}

/// One line of a fee: the part of the usage that is in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FeeLine {
    /// The tier.
    pub tier: Tier,
    /// The meter's unit.
    pub unit: TierUnit,
    /// The counted units in this tier: tokens, characters, microseconds or requests.
    pub units: u64,
    /// The cost of the line, rounded half-even once.
    pub cost: Amount,
}

/// The fee of a call, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fee {
    /// One line per tier that the call touches.
    pub lines: Vec<FeeLine>,
}

impl Fee {
    /// The exact sum of the lines.
    ///
    /// # Errors
    /// [`Overflow`] when the sum is beyond the range of an [`Amount`].
    pub fn amount(&self) -> Result<Amount, Overflow> {
        self.lines.iter().map(|line| line.cost).sum()
    }

    /// The lines of a percentage fee, recalculated for another base cost.
    ///
    /// A line does not say whether its rate is a percentage; the caller must know.
    ///
    /// # Errors
    /// [`Overflow`] when a line is beyond the range of an [`Amount`].
    pub fn recalculate_for(&self, base: Amount) -> Result<Self, Overflow> {
        let all_units = self.lines.iter().fold(0_u64, |all, line| all.saturating_add(line.units));
        let lines = self.lines.iter().map(|line| {
            let cost = percentage_cost(&line.tier, line.units, all_units, base)?;
            Ok(FeeLine { cost, ..*line })
        });
        Ok(Self { lines: lines.collect::<Result<_, Overflow>>()? })
    }
}

impl Meter {
    /// A meter of these tiers.
    ///
    /// Prompt and answer tokens count; [`Meter::token_basis`] changes that.
    ///
    /// # Errors
    /// Every fault of the tiers. There must be at least one, the first must start at 0, starts must
    /// ascend strictly and be at most [`Tier::MAX_START`].
    pub fn new(rate_type: RateType, unit: TierUnit, tiers: Vec<Tier>) -> Result<Self, TierErrors> {
        Self::check_tiers(&tiers)?;
        Ok(Self { rate_type, unit, token_basis: TokenBasis::default(), tiers })
    }

    /// The tiers, ascending, the first at 0.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Checks tiers as [`Meter::new`] does.
    ///
    /// # Errors
    /// As [`Meter::new`].
    pub fn check_tiers(tiers: &[Tier]) -> Result<(), TierErrors> {
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
        if errors.is_empty() { Ok(()) } else { Err(TierErrors(errors)) }
    }

    /// The meter with one tier at its highest rate. It gives upper bounds while the tier of a call is
    /// not known.
    pub fn at_highest_rate(&self) -> Self {
        let rate = self.tiers.iter().map(|tier| tier.rate).max().unwrap_or(Rate::ZERO);
        Self { tiers: vec![Tier { start: 0, rate }], ..self.clone() }
    }

    /// The units of this meter in `usage`: tokens, characters, microseconds or requests.
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

    /// The fee for `usage` at a base cost of `base`, when `counter` units were counted before it.
    ///
    /// `counter` is in the units of [`Meter::count`]. Each line is rounded half-even once. A percentage
    /// uses the same tiers: each line takes a share of the base cost in proportion to its units; without
    /// units the whole base cost goes to the tier that contains the counter.
    ///
    /// # Errors
    /// [`Overflow`] when a line is beyond the range of an [`Amount`], or the counter beyond 64 bits.
    pub fn fee(&self, usage: &Usage, counter: u64, base: Amount) -> Result<Fee, Overflow> {
        let all_units = self.count(usage);
        counter.checked_add(all_units).ok_or(Overflow)?;
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

    /// The tiers that `units` after `counter` touch, each with its part of the units.
    ///
    /// It serves both rate types. A percentage of no units touches the tier that contains the counter.
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
