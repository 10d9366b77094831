//! The fields of bodies: the conversion of JSON values into domain values or issues.

use std::fmt::Display;
use std::ops::ControlFlow;
use std::str::FromStr;

use deserr::{
    DeserializeError, Deserr, ErrorKind, IntoValue, Map, MergeWithError, Sequence, Value,
    ValueKind, ValuePointerRef, take_cf_content,
};
use serde::Serialize;
use tollgate_domain::{
    AnswerReport, BillingInterval, BudgetEnforcement, BudgetStatus, Cycle, Enforcement, EventKind,
    Issue, Metadata, Payer, RequestShape, Rollover, SpendKeyStatus, TierPeriod, UpgradeRule,
};
use tollgate_pricing::{Amount, Rate, RateType, TierUnit, TokenBasis};

/// All issues of a body.
#[derive(Debug, Default)]
pub(crate) struct Issues(pub(crate) Vec<Issue>);

impl MergeWithError<Issues> for Issues {
    fn merge(this: Option<Self>, other: Issues, _: ValuePointerRef<'_>) -> ControlFlow<Self, Self> {
        let mut all = this.unwrap_or_default();
        all.0.extend(other.0);
        ControlFlow::Continue(all)
    }
}

impl DeserializeError for Issues {
    fn error<V: IntoValue>(
        this: Option<Self>,
        error: ErrorKind<'_, V>,
        location: ValuePointerRef<'_>,
    ) -> ControlFlow<Self, Self> {
        let mut path = path(location);
        let message = match error {
            ErrorKind::MissingField { field } => {
                path.push(field.to_owned());
                "is required".to_owned()
            }
            ErrorKind::UnknownKey { key, accepted } => {
                path.push(key.to_owned());
                format!("is not a field here; the fields are {}", accepted.join(", "))
            }
            ErrorKind::UnknownValue { accepted, .. } => {
                format!("must be one of {}", accepted.join(", "))
            }
            ErrorKind::IncorrectValueKind { accepted, .. } => {
                let kinds: Vec<_> = accepted.iter().map(|&kind| kind_name(kind)).collect();
                format!("must be {}", kinds.join(" or "))
            }
            ErrorKind::BadSequenceLen { expected, .. } => format!("must have {expected} elements"),
            ErrorKind::Unexpected { msg } => msg,
        };
        let mut all = this.unwrap_or_default();
        all.0.push(Issue { path, message });
        ControlFlow::Continue(all)
    }
}

/// The path of a value, from the outside in.
pub(crate) fn path(location: ValuePointerRef<'_>) -> Vec<String> {
    use deserr::ValuePointerRef::{Index, Key, Origin};
    match location {
        Origin => Vec::new(),
        Key { key, prev } => {
            let mut path = path(*prev);
            path.push(key.to_owned());
            path
        }
        Index { index, prev } => {
            let mut path = path(*prev);
            path.push(index.to_string());
            path
        }
    }
}

fn kind_name(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Null => "null",
        ValueKind::Boolean => "true or false",
        ValueKind::Integer => "a non-negative integer",
        ValueKind::NegativeInteger => "an integer",
        ValueKind::Float => "a number",
        ValueKind::String => "a string",
        ValueKind::Sequence => "an array",
        ValueKind::Map => "an object",
    }
}

/// Refuses a value with `message` as its issue.
pub(crate) fn refuse<E: DeserializeError>(
    message: impl Display,
    location: ValuePointerRef<'_>,
) -> E {
    take_cf_content(E::error::<std::convert::Infallible>(
        None,
        ErrorKind::Unexpected { msg: message.to_string() },
        location,
    ))
}

fn text<V: IntoValue, E: DeserializeError>(
    value: Value<V>,
    location: ValuePointerRef<'_>,
) -> Result<String, E> {
    match value {
        Value::String(text) => Ok(text),
        actual => Err(take_cf_content(E::error(
            None,
            ErrorKind::IncorrectValueKind { actual, accepted: &[ValueKind::String] },
            location,
        ))),
    }
}

/// A value written as a string: an amount, a rate, a date-time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedString<T>(pub(crate) T);

impl<T, E> Deserr<E> for ParsedString<T>
where
    T: FromStr,
    T::Err: Display,
    E: DeserializeError,
{
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let text = text(value, location)?;
        text.parse().map(Self).map_err(|why| refuse(why, location))
    }
}

/// An amount above zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PositiveAmount(pub(crate) Amount);

impl<E: DeserializeError> Deserr<E> for PositiveAmount {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        amount_where(Amount::is_positive, "must be greater than 0", value, location).map(Self)
    }
}

/// An amount of at least zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NonNegativeAmount(pub(crate) Amount);

impl<E: DeserializeError> Deserr<E> for NonNegativeAmount {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let holds = |amount| amount >= Amount::ZERO;
        amount_where(holds, "must not be negative", value, location).map(Self)
    }
}

fn amount_where<V: IntoValue, E: DeserializeError>(
    holds: impl Fn(Amount) -> bool,
    otherwise: &str,
    value: Value<V>,
    location: ValuePointerRef<'_>,
) -> Result<Amount, E> {
    let ParsedString(amount) = ParsedString::<Amount>::deserialize_from_value(value, location)?;
    if holds(amount) { Ok(amount) } else { Err(refuse(otherwise, location)) }
}

/// A whole number from 1 to `MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundedInt<const MAX: u32>(pub(crate) u32);

impl<const MAX: u32, E: DeserializeError> Deserr<E> for BoundedInt<MAX> {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let number = match value {
            Value::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let number = number.filter(|number| (1..=MAX).contains(number));
        number
            .map(Self)
            .ok_or_else(|| refuse(format!("must be an integer from 1 to {MAX}"), location))
    }
}

/// A list of at most `MAX` elements.
#[derive(Clone, Debug)]
pub(crate) struct BoundedVec<const MAX: usize, T>(pub(crate) Vec<T>);

impl<const MAX: usize, T> Default for BoundedVec<MAX, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const MAX: usize, T: Deserr<E>, E: DeserializeError> Deserr<E> for BoundedVec<MAX, T>
where
    Vec<T>: Deserr<E>,
{
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        match value {
            Value::Sequence(items) if items.len() > MAX => {
                Err(refuse(format!("must have at most {MAX} elements"), location))
            }
            value => Vec::deserialize_from_value(value, location).map(Self),
        }
    }
}

/// A text of 1 to 255 characters.
#[derive(Clone, Debug)]
pub(crate) struct NameField(pub(crate) String);

pub(crate) const NAME_CHARS: usize = 255;

impl<E: DeserializeError> Deserr<E> for NameField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let text = text(value, location)?;
        // A database may not be able to hold a NUL.
        match text.is_empty() || text.chars().count() > NAME_CHARS || text.contains('\0') {
            true => Err(refuse("must have 1 to 255 characters, none of them NUL", location)),
            false => Ok(Self(text)),
        }
    }
}

/// A slug: 1 to 64 characters of `a-z`, `0-9`, `-`, `_`.
#[derive(Clone, Debug)]
pub(crate) struct SlugField(pub(crate) String);

pub(crate) const SLUG_CHARS: usize = 64;

impl<E: DeserializeError> Deserr<E> for SlugField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let text = text(value, location)?;
        let clean = text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'));
        match clean && (1..=SLUG_CHARS).contains(&text.len()) {
            true => Ok(Self(text)),
            false => Err(refuse("must have 1 to 64 characters of a-z, 0-9, - and _", location)),
        }
    }
}

/// A word of a domain enum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnumField<T>(pub(crate) T);

/// The words of an enum, in the order in which they are documented.
pub(crate) trait EnumWords: Serialize + Copy + 'static {
    const ALL: &'static [Self];
}

macro_rules! words {
    ($( $Enum:ident { $($Variant:ident),* } )*) => { $(
        impl EnumWords for $Enum {
            const ALL: &'static [Self] = &[ $( Self::$Variant ),* ];
        }
    )* };
}

words! {
    AnswerReport { Cost }
    RateType { Fixed, Percentage }
    TierUnit { Tokens, Characters, Minutes, Requests }
    TokenBasis { InputOutput, Output }
    Payer { Merchant, Wallet }
    TierPeriod { Lifetime, Month }
    SpendKeyStatus { Active, Paused }
    RequestShape { Any, ShapeA, ShapeB }
    BudgetEnforcement { Bounded, Strict, Observe }
    BudgetStatus { Active, Paused }
    Enforcement { Bounded, Strict }
    Cycle { Daily, Weekly, Monthly, Total }
    BillingInterval { Day, Week, Month, Year }
    Rollover { Full, None }
    UpgradeRule { Carry, Expire, Prorate }
}

impl EnumWords for EventKind {
    const ALL: &'static [Self] = Self::ALL;
}

impl<T: EnumWords, E: DeserializeError> Deserr<E> for EnumField<T> {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let text = text(value, location)?;
        let words = T::ALL.iter().map(|word| match serde_json::to_value(word) {
            Ok(serde_json::Value::String(word)) => word,
            _ => String::new(),
        });
        let words: Vec<_> = words.collect();
        let place = words.iter().position(|word| *word == text);
        let found = place.and_then(|place| T::ALL.get(place)).copied();
        found
            .map(Self)
            .ok_or_else(|| refuse(format!("must be one of {}", words.join(", ")), location))
    }
}

/// The start of a tier, a non-negative integer. It is a string, as the API documents it, or a number, as
/// responses carry it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierStart(pub(crate) u64);

impl<E: DeserializeError> Deserr<E> for TierStart {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let start = match value {
            Value::Integer(start) => Some(start),
            Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
            _ => None,
        };
        let message = "must be a non-negative integer in a string, such as \"1000000\"";
        start.map(Self).ok_or_else(|| refuse(message, location))
    }
}

/// A count, up to the most that is counted in one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountField(pub(crate) u64);

pub(crate) const MAX_COUNT: u64 = 1_000_000_000_000;

impl<E: DeserializeError> Deserr<E> for CountField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        match value {
            Value::Integer(count) if count <= MAX_COUNT => Ok(Self(count)),
            _ => Err(refuse(format!("must be an integer from 0 to {MAX_COUNT}"), location)),
        }
    }
}

/// Seconds, kept in microseconds: an integer, or a decimal number in a string.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SecondsField(pub(crate) u64);

impl<E: DeserializeError> Deserr<E> for SecondsField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let text = match value {
            Value::Integer(seconds) => Some(seconds.to_string()),
            Value::String(text) => Some(text),
            _ => None,
        };
        let micros = text.and_then(|text| text.parse::<Rate>().ok()?.micros());
        let micros = micros.filter(|micros| *micros <= MAX_COUNT.saturating_mul(1_000_000));
        micros.map(Self).ok_or_else(|| {
            let message = format!(
                "must be an integer from 0 to {MAX_COUNT}, or a string with at most six decimals, \
                 such as \"1.5\""
            );
            refuse(message, location)
        })
    }
}

/// Metadata of a resource: an object of strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetadataField(pub(crate) Metadata);

impl<E: DeserializeError> Deserr<E> for MetadataField {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        let json = to_json(value);
        Metadata::from_json(&json).map(Self).map_err(|faults| {
            let mut all: Option<E> = None;
            for issue in faults.0 {
                let key = issue.path.last().map_or("", String::as_str);
                let inner = location.push_key(key);
                let place = if issue.path.is_empty() { location } else { inner };
                let error: ErrorKind<'_, std::convert::Infallible> =
                    ErrorKind::Unexpected { msg: issue.message };
                all = Some(take_cf_content(E::error(all, error, place)));
            }
            all.unwrap_or_else(|| refuse("must be an object of strings", location))
        })
    }
}

/// The JSON of a value. Callers read only its kinds, so the loss of precision in numbers has no effect.
pub(crate) fn to_json<V: IntoValue>(value: Value<V>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Boolean(yes) => yes.into(),
        Value::Integer(number) => number.into(),
        Value::NegativeInteger(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::String(text) => text.into(),
        Value::Sequence(items) => {
            items.into_iter().map(|item| to_json(item.into_value())).collect()
        }
        Value::Map(map) => {
            map.into_iter().map(|(key, value)| (key, to_json(value.into_value()))).collect()
        }
    }
}

/// A field of a change that cannot be cleared: absent keeps it, null is refused.
#[derive(Clone, Debug)]
pub(crate) struct PatchField<T>(pub(crate) Option<T>);

impl<T> Default for PatchField<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Deserr<E>, E: DeserializeError> Deserr<E> for PatchField<T> {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        match value {
            Value::Null => Err(refuse("must not be null; leave it out to keep it", location)),
            value => T::deserialize_from_value(value, location).map(|value| Self(Some(value))),
        }
    }
}

/// A field of a change: absent keeps it, null clears it.
#[derive(Clone, Debug, Default)]
pub(crate) enum NullablePatch<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

impl<T> NullablePatch<T> {
    /// The change as the domain has it: `None` keeps, `Some(None)` clears.
    pub(crate) fn into_option<U>(self, unwrap: impl FnOnce(T) -> U) -> Option<Option<U>> {
        match self {
            Self::Keep => None,
            Self::Clear => Some(None),
            Self::Set(value) => Some(Some(unwrap(value))),
        }
    }
}

impl<T: Deserr<E>, E: DeserializeError> Deserr<E> for NullablePatch<T> {
    fn deserialize_from_value<V: IntoValue>(
        value: Value<V>,
        location: ValuePointerRef<'_>,
    ) -> Result<Self, E> {
        match value {
            Value::Null => Ok(Self::Clear),
            value => T::deserialize_from_value(value, location).map(Self::Set),
        }
    }
}
