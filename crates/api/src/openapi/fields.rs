//! The JSON schemas of the fields of bodies, which `http/fields.rs` reads.

use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};

use super::types::{looks, schemas, text};
use crate::http::fields::{
    CountField, MAX_COUNT, MetadataField, NAME_CHARS, NameField, NonNegativeAmount, PositiveAmount,
    SLUG_CHARS, SecondsField, SlugField, TierStart,
};
use crate::resources::webhooks::WebhookTarget;

/// A pattern without NUL, which a database may not be able to hold.
pub(super) const NO_NUL: &str = r"^[^\x00]*$";

fn name() -> ObjectBuilder {
    text().min_length(Some(1)).max_length(Some(NAME_CHARS)).pattern(Some(NO_NUL))
}

pub(super) fn metadata_key() -> ObjectBuilder {
    text().max_length(Some(NAME_CHARS)).pattern(Some("^[A-Za-z0-9_]+$"))
}

pub(super) fn metadata() -> ObjectBuilder {
    ObjectBuilder::new()
        .description(Some("At most 100 pairs of strings that you can filter by."))
        .property_names(Some(text().max_length(Some(NAME_CHARS)).pattern(Some("^[A-Za-z0-9_]+$"))))
        .additional_properties(Some(name()))
        .max_properties(Some(100))
}

/// A number, or a number in a string.
fn number_or_text(maximum: u64) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::Array(vec![Type::Integer, Type::String]))
        .minimum(Some(0))
        .maximum(Some(maximum))
}

looks! {
    NameField as "Name" => name();
    MetadataField as "Metadata" => metadata();
    SlugField as "Slug" => text()
        .min_length(Some(1))
        .max_length(Some(SLUG_CHARS))
        .pattern(Some("^[a-z0-9_-]*$"));
    PositiveAmount as "PositiveAmount" => text()
        .title(Some("amount above 0"))
        .description(Some("US dollars: more than 0, at most 922337203.6854775807."))
        .pattern(Some(r"^([0-9]*[1-9][0-9]*(\.[0-9]{1,10})?|[0-9]+\.[0-9]{0,9}[1-9][0-9]{0,9})$"))
        .examples(["25"]);
    NonNegativeAmount as "NonNegativeAmount" => text()
        .title(Some("amount of at least 0"))
        .description(Some("US dollars: at most 922337203.6854775807."))
        .pattern(Some(r"^[0-9]+(\.[0-9]{1,10})?$"))
        .examples(["25"]);
    TierStart as "TierStart" => number_or_text(100_000_000_000)
        .description(Some("Tokens, characters, minutes or requests, as the meter counts."))
        .pattern(Some("^[0-9]+$"))
        .examples(["1000000"]);
    CountField as "Count" => ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0))
        .maximum(Some(MAX_COUNT));
    SecondsField as "Seconds" => number_or_text(MAX_COUNT)
        .description(Some("Seconds; as a string with up to six decimals."))
        .pattern(Some(r"^[0-9]{1,18}(\.[0-9]{1,6}0{0,12})?$"))
        .examples(["1.5"]);
    WebhookTarget as "WebhookUrl" => text()
        .description(Some("https, without user, password and fragment."))
        .max_length(Some(2048))
        .pattern(Some(r"^[Hh][Tt][Tt][Pp][Ss]?://[!-\[\]-~]+$"))
        .examples(["https://example.com/webhooks"]);
}

schemas! {
    MetadataSchema = metadata();
    MetadataFilters = {
        let pair = [metadata_key(), text().pattern(Some(NO_NUL))];
        // Not as `items: false`, which generators of clients cannot read.
        let pair = ArrayBuilder::new().prefix_items(pair).items(text());
        ArrayBuilder::new().items(pair.min_items(Some(2)).max_items(Some(2)))
    };
}
