//! How the types of the layers below look in JSON. They do not know utoipa, so each has a stand-in here,
//! which `build.rs` tells utoipa to take: a file whose views have such fields uses all of this.

#![expect(dead_code, reason = "these are read by their derive only")]

use std::borrow::Cow;

use serde::Deserialize;
use serde_aux::serde_introspection::serde_introspect;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// The words by which serde knows the variants of an enum, so that none can be forgotten here.
fn words<T: for<'de> Deserialize<'de>>() -> ObjectBuilder {
    text().enum_values(Some(serde_introspect::<T>().iter().copied()))
}

macro_rules! schemas {
    ($( $Type:ident = $schema:expr; )*) => { $(
        pub(crate) struct $Type;

        impl PartialSchema for $Type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $Type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($Type).trim_end_matches("Schema"))
            }
        }
    )* };
}

macro_rules! ids {
    ($( $Id:ident = $prefix:literal; )*) => {
        schemas! { $(
            $Id = text()
                .pattern(Some(concat!("^", $prefix, "[0-7][0-9A-HJKMNP-TV-Z]{25}$")))
                .examples([concat!($prefix, "01KAK0E8G00000000000000000")]);
        )* }
    };
}

macro_rules! words {
    ($( $Type:ident = $Enum:path; )*) => {
        schemas! { $( $Type = words::<$Enum>(); )* }
    };
}

ids! {
    ConnectionIdSchema = "con_";
    CreditBundleIdSchema = "cbn_";
    DeliveryIdSchema = "dlv_";
    EventIdSchema = "evt_";
    MeterIdSchema = "mtr_";
    RequestIdSchema = "req_";
    SpendKeyIdSchema = "spk_";
    SubscriptionConfigIdSchema = "sbc_";
    SubscriptionIdSchema = "sub_";
    WalletIdSchema = "wal_";
    WebhookIdSchema = "whk_";
}

words! {
    BillingIntervalSchema = tollgate_domain::BillingInterval;
    ConnectionStatusSchema = tollgate_domain::ConnectionStatus;
    CycleSchema = tollgate_domain::Cycle;
    DeliveryFaultSchema = tollgate_domain::DeliveryFault;
    DeliveryStatusSchema = tollgate_domain::DeliveryStatus;
    EnforcementSchema = tollgate_domain::Enforcement;
    EventKindSchema = tollgate_domain::EventKind;
    PayerSchema = tollgate_pricing::Payer;
    PendingKindSchema = tollgate_domain::PendingKind;
    PriceSourceSchema = tollgate_pricing::PriceSource;
    ProviderKeyTypeSchema = tollgate_domain::ProviderKeyType;
    RateTypeSchema = tollgate_pricing::RateType;
    RequestShapeSchema = tollgate_domain::RequestShape;
    RequestStatusSchema = tollgate_domain::RequestStatus;
    RolloverSchema = tollgate_domain::Rollover;
    SpendKeyStatusSchema = tollgate_domain::SpendKeyStatus;
    SubscriptionStatusSchema = tollgate_domain::SubscriptionStatus;
    TierUnitSchema = tollgate_pricing::TierUnit;
    TokenBasisSchema = tollgate_pricing::TokenBasis;
    UsageSourceSchema = tollgate_domain::UsageSource;
}

schemas! {
    AmountSchema = text()
        .description(Some("US dollars, exactly."))
        .pattern(Some(r"^-?[0-9]+\.[0-9]{10}$"))
        .examples(["25.0000000000"]);
    RateSchema = text()
        .description(Some("A non-negative decimal, exactly."))
        .pattern(Some(r"^[0-9]{1,18}(\.[0-9]{1,18})?$"))
        .examples(["0.15"]);
    TimestampSchema = text()
        .description(Some("An instant in UTC."))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .pattern(Some("Z$"))
        .examples(["2026-11-21T12:00:00Z"]);
    // A test event cannot be asked for, nor left out.
    WantedKind = text().enum_values(Some(tollgate_domain::EventKind::ALL.iter().map(|kind| kind.as_str())));
    MetadataSchema = ObjectBuilder::new().additional_properties(Some(text()));
}

#[derive(ToSchema)]
#[schema(as = SpendLimit)]
pub(crate) struct SpendLimitSchema {
    amount: AmountSchema,
    cycle: CycleSchema,
}

#[derive(ToSchema)]
#[schema(as = RequestLimit)]
pub(crate) struct RequestLimitSchema {
    count: u64,
    cycle: CycleSchema,
}

#[derive(ToSchema)]
#[schema(as = RateLimit)]
pub(crate) struct RateLimitSchema {
    rpm: u32,
    burst: u32,
}

/// One thing that is wrong with an input.
#[derive(ToSchema)]
#[schema(as = Issue)]
pub(crate) struct IssueSchema {
    /// Field names and array positions from the outside in; empty for the input as a whole.
    path: Vec<String>,
    /// What is wrong and what would be right.
    message: String,
}
