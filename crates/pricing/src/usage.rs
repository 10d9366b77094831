//! Units of usage, their quantities and their prices.

use crate::amount::Amount;
use crate::rate::Rate;

/// The side of the cost that a unit counts towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostSide {
    /// Counts towards `input_cost`.
    Input,
    /// Counts towards `output_cost`, as do units that are neither input nor output.
    Output,
}

/// The quantity that a price is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceScale {
    /// The price is for a million. Microseconds are priced by the million, which is a second.
    PerMillion,
    /// The price is for each one.
    Each,
}

macro_rules! units {
    ($( #[doc = $doc:literal] $field:ident = $Unit:ident, $side:ident, $scale:ident, $parent:expr; )*) => {
        /// A kind of quantity that a provider bills.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Unit { $( #[doc = $doc] $Unit, )* }

        impl Unit {
            /// Every unit, in the order of the price keys.
            pub const ALL: &'static [Self] = &[ $( Self::$Unit, )* ];

            /// The key of the unit's price in a price row or configuration.
            pub const fn price_key(self) -> &'static str {
                match self { $( Self::$Unit => stringify!($field), )* }
            }

            /// The meaning of the unit, in a sentence.
            pub fn description(self) -> &'static str {
                match self { $( Self::$Unit => $doc.trim_start(), )* }
            }

            /// The side of the cost that the unit counts towards.
            pub const fn side(self) -> CostSide {
                match self { $( Self::$Unit => CostSide::$side, )* }
            }

            /// The quantity that the unit's price is for.
            pub const fn scale(self) -> PriceScale {
                match self { $( Self::$Unit => PriceScale::$scale, )* }
            }

            /// The unit whose price applies if this one has none.
            pub const fn parent(self) -> Option<Self> {
                match self { $( Self::$Unit => $parent, )* }
            }
        }

        /// One value for each [`Unit`].
        ///
        /// A minor version may add units: make one with `..PerUnit::default()`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
        pub struct PerUnit<T: Default + PartialEq> {
            $( #[doc = $doc]
                #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_default"))]
                pub $field: T,
            )*
        }

        impl<T: Default + PartialEq> PerUnit<T> {
            /// The value of one unit.
            pub const fn get(&self, unit: Unit) -> &T {
                match unit { $( Unit::$Unit => &self.$field, )* }
            }

            /// A mutable reference to the value of one unit.
            pub const fn get_mut(&mut self, unit: Unit) -> &mut T {
                match unit { $( Unit::$Unit => &mut self.$field, )* }
            }
        }

        impl PerUnit<u64> {
            /// The sum of both, unit by unit; it saturates at [`u64::MAX`].
            pub const fn sum(one: &Self, other: &Self) -> Self {
                Self { $( $field: one.$field.saturating_add(other.$field), )* }
            }
        }
    };
}

units! {
    /// Text tokens of the prompt that were neither read from nor written to a cache.
    input = Input, Input, PerMillion, None;
    /// Tokens of the prompt read from the provider's cache.
    cached_input = CachedInput, Input, PerMillion, Some(Self::Input);
    /// Audio tokens of the prompt read from the provider's cache.
    cached_input_audio = CachedInputAudio, Input, PerMillion, Some(Self::CachedInput);
    /// Tokens of the prompt written to the provider's cache for five minutes, or by default.
    cache_write = CacheWrite, Input, PerMillion, Some(Self::Input);
    /// Tokens of the prompt written to the provider's cache for one hour.
    cache_write_1h = CacheWrite1h, Input, PerMillion, Some(Self::CacheWrite);
    /// Audio tokens of the prompt.
    input_audio = InputAudio, Input, PerMillion, Some(Self::Input);
    /// Image tokens of the prompt.
    input_image = InputImage, Input, PerMillion, Some(Self::Input);
    /// Video tokens of the prompt.
    input_video = InputVideo, Input, PerMillion, Some(Self::Input);
    /// Text tokens of the answer, without reasoning.
    output = Output, Output, PerMillion, None;
    /// Reasoning tokens of the answer.
    reasoning = Reasoning, Output, PerMillion, Some(Self::Output);
    /// Audio tokens of the answer.
    output_audio = OutputAudio, Output, PerMillion, Some(Self::Output);
    /// Image tokens of the answer.
    output_image = OutputImage, Output, PerMillion, Some(Self::Output);
    /// Characters (Unicode scalar values) of the text sent.
    input_characters = InputCharacters, Input, PerMillion, None;
    /// Characters (Unicode scalar values) of the text received.
    output_characters = OutputCharacters, Output, PerMillion, None;
    /// Audio or video sent. The quantity is in microseconds, the price is of a second.
    input_second = InputSecond, Input, PerMillion, None;
    /// Audio or video received. The quantity is in microseconds, the price is of a second.
    output_second = OutputSecond, Output, PerMillion, None;
    /// Images generated.
    image = Image, Output, Each, None;
    /// Pages of documents that were read.
    page = Page, Output, Each, None;
    /// Calls that the provider accepted on a metered endpoint.
    request = Request, Output, Each, None;
    /// Calls of the provider's own tools that have no unit of their own.
    tool_call = ToolCall, Output, Each, None;
    /// Searches of the web.
    web_search = WebSearch, Output, Each, Some(Self::ToolCall);
    /// Searches of files that the provider stores.
    file_search = FileSearch, Output, Each, Some(Self::ToolCall);
    /// Sessions in which the provider ran code.
    code_session = CodeSession, Output, Each, Some(Self::ToolCall);
    /// Searches of the documents in the request, as rerankers charge them.
    search_unit = SearchUnit, Output, Each, None;
}

impl Unit {
    /// Whether the unit counts tokens. The tier factors of a provider multiply only token prices.
    pub const fn counts_tokens(self) -> bool {
        matches!(
            self,
            Self::Input
                | Self::CachedInput
                | Self::CachedInputAudio
                | Self::CacheWrite
                | Self::CacheWrite1h
                | Self::InputAudio
                | Self::InputImage
                | Self::InputVideo
                | Self::Output
                | Self::Reasoning
                | Self::OutputAudio
                | Self::OutputImage
        )
    }
}

#[cfg(feature = "serde")]
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl PerUnit<u64> {
    /// The quantities of the input units; all others are zero.
    pub fn inputs(&self) -> Self {
        self.of_side(CostSide::Input)
    }

    /// The quantities of the output units; all others are zero.
    pub fn outputs(&self) -> Self {
        self.of_side(CostSide::Output)
    }

    fn of_side(&self, side: CostSide) -> Self {
        let mut kept = *self;
        for &unit in Unit::ALL.iter().filter(|unit| unit.side() != side) {
            *kept.get_mut(unit) = 0;
        }
        kept
    }
}

/// The price of each unit, in USD per million or each (see [`Unit::scale`]).
///
/// `None` falls back to the price of the unit's parent.
pub type UnitPrices = PerUnit<Option<Rate>>;

impl UnitPrices {
    /// The price of `unit`: its own, or that of its nearest ancestor with a price.
    pub fn price(&self, unit: Unit) -> Option<Rate> {
        self.get(unit).or_else(|| unit.parent().and_then(|parent| self.price(parent)))
    }

    /// Whether no unit has a price above zero.
    pub fn is_all_zero(&self) -> bool {
        Unit::ALL.iter().all(|&unit| self.get(unit).is_none_or(Rate::is_zero))
    }
}

/// The usage of one call: disjoint quantities, and the provider's cost if it states one.
///
/// Every token, character and second is counted in exactly one unit, so totals are plain sums. All
/// totals saturate at [`u64::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// The quantity of each unit. Seconds are counted in microseconds.
    pub quantities: PerUnit<u64>,
    /// The cost of the call that the provider itself reports, if it does.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub provider_cost: Option<Amount>,
}

/// The usage of one model of a call that several models served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PerModelUsage {
    /// The model; absent if the answer does not name it. Then it is the call's model.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub model: Option<String>,
    /// The quantity of each unit.
    pub quantities: PerUnit<u64>,
}

const MICROS_PER_SECOND: u64 = 1_000_000;

impl Usage {
    /// A usage of text tokens only.
    pub fn tokens(input: u64, output: u64) -> Self {
        let quantities = PerUnit { input, output, ..PerUnit::default() };
        Self { quantities, provider_cost: None }
    }

    /// All tokens of the prompt: text, cached, written to a cache, audio, images and video.
    pub fn input_tokens(&self) -> u64 {
        let q = &self.quantities;
        sum([
            q.input,
            q.cached_input,
            q.cached_input_audio,
            q.cache_write,
            q.cache_write_1h,
            q.input_audio,
            q.input_image,
            q.input_video,
        ])
    }

    /// All tokens of the answer: text, reasoning, audio and images.
    pub fn output_tokens(&self) -> u64 {
        let q = &self.quantities;
        sum([q.output, q.reasoning, q.output_audio, q.output_image])
    }

    /// Tokens read from a cache, of every kind.
    pub fn cached_input_tokens(&self) -> u64 {
        self.quantities.cached_input.saturating_add(self.quantities.cached_input_audio)
    }

    /// Tokens written to a cache, of every lifetime.
    pub fn cache_write_tokens(&self) -> u64 {
        self.quantities.cache_write.saturating_add(self.quantities.cache_write_1h)
    }

    /// Characters sent and received.
    pub fn characters(&self) -> u64 {
        self.quantities.input_characters.saturating_add(self.quantities.output_characters)
    }

    /// Microseconds of audio or video sent and received.
    pub fn microseconds(&self) -> u64 {
        self.quantities.input_second.saturating_add(self.quantities.output_second)
    }

    /// Whole seconds sent, rounded up. Prices apply to the exact figure.
    pub fn input_seconds(&self) -> u64 {
        self.quantities.input_second.div_ceil(MICROS_PER_SECOND)
    }

    /// Whole seconds received, rounded up. Prices apply to the exact figure.
    pub fn output_seconds(&self) -> u64 {
        self.quantities.output_second.div_ceil(MICROS_PER_SECOND)
    }
}

fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The source of a usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum UsageSource {
    /// Stated by the provider.
    Reported,
    /// Counted up to the point at which the answer was cut.
    Partial,
    /// Estimated, because the provider stated none that can be read.
    Estimated,
    /// No usage.
    #[default]
    None,
}
