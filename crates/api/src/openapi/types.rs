//! The JSON schemas of types of the layers below. They do not know utoipa, so each has a stand-in here, which
//! `build.rs` configures utoipa to take. A file whose views have such fields imports all of this.

#![expect(dead_code, reason = "these are read by their derive only")]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_aux::serde_introspection::serde_introspect;
use tollgate_pricing::Unit;
use utoipa::ToSchema;
use utoipa::openapi::Ref;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, OneOfBuilder, SchemaFormat, Type};

pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// The words of an enum as serde knows them, so that none can be left out.
fn words<T: for<'de> Deserialize<'de>>() -> ObjectBuilder {
    text().enum_values(Some(serde_introspect::<T>().iter().copied()))
}

/// The schemas of types, and their names.
macro_rules! looks {
    ($( $Type:ty as $name:expr => $schema:expr; )*) => { $(
        impl utoipa::PartialSchema for $Type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $schema.into()
            }
        }

        impl utoipa::ToSchema for $Type {
            fn name() -> std::borrow::Cow<'static, str> {
                std::borrow::Cow::Borrowed($name)
            }
        }
    )* };
}
pub(crate) use looks;

macro_rules! schemas {
    ($( $Type:ident = $schema:expr; )*) => { $(
        pub(crate) struct $Type;

        looks! { $Type as stringify!($Type).trim_end_matches("Schema") => $schema; }
    )* };
}
pub(crate) use schemas;

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
    BudgetIdSchema = "bud_";
    ConnectionIdSchema = "con_";
    CreditBundleIdSchema = "cbn_";
    DeliveryIdSchema = "dlv_";
    EventIdSchema = "evt_";
    JobIdSchema = "job_";
    MerchantIdSchema = "mch_";
    MeterIdSchema = "mtr_";
    RefusalIdSchema = "rfs_";
    RequestIdSchema = "req_";
    SecretKeyIdSchema = "sec_";
    SocketIdSchema = "skt_";
    SpendKeyIdSchema = "spk_";
    SubscriptionConfigIdSchema = "sbc_";
    SubscriptionIdSchema = "sub_";
    TransactionIdSchema = "txn_";
    WalletIdSchema = "wal_";
    WebhookIdSchema = "whk_";
}

words! {
    AnswerReportSchema = tollgate_domain::AnswerReport;
    BudgetEnforcementSchema = tollgate_domain::BudgetEnforcement;
    BudgetStatusSchema = tollgate_domain::BudgetStatus;
    BillingIntervalSchema = tollgate_domain::BillingInterval;
    ConnectionStatusSchema = tollgate_domain::ConnectionStatus;
    CycleSchema = tollgate_domain::Cycle;
    DeliveryFaultSchema = tollgate_domain::DeliveryFault;
    DeliveryStatusSchema = tollgate_domain::DeliveryStatus;
    EnforcementSchema = tollgate_domain::Enforcement;
    EventKindSchema = tollgate_domain::EventKind;
    JobKindSchema = tollgate_domain::JobKind;
    JobStateSchema = tollgate_domain::JobState;
    LedgerAccountSchema = tollgate_domain::LedgerAccount;
    PayerSchema = tollgate_domain::Payer;
    PendingKindSchema = tollgate_domain::PendingKind;
    PriceSourceSchema = tollgate_pricing::PriceSource;
    FailureSourceSchema = tollgate_domain::FailureSource;
    ProviderKeyTypeSchema = tollgate_domain::ProviderKeyType;
    RateTypeSchema = tollgate_pricing::RateType;
    RequestShapeSchema = tollgate_domain::RequestShape;
    RequestStatusSchema = tollgate_domain::RequestStatus;
    RolloverSchema = tollgate_domain::Rollover;
    SpendKeyStatusSchema = tollgate_domain::SpendKeyStatus;
    SubscriptionStatusSchema = tollgate_domain::SubscriptionStatus;
    TierPeriodSchema = tollgate_domain::TierPeriod;
    TierUnitSchema = tollgate_pricing::TierUnit;
    TokenBasisSchema = tollgate_pricing::TokenBasis;
    TransactionKindSchema = tollgate_domain::TransactionKind;
    UpgradeRuleSchema = tollgate_domain::UpgradeRule;
    UsageSourceSchema = tollgate_domain::UsageSource;
}

schemas! {
    AmountSchema = text()
        .title(Some("amount"))
        .description(Some("US dollars, exactly."))
        .pattern(Some(r"^-?[0-9]+\.[0-9]{10}$"))
        .examples(["25.0000000000"]);
    LimitQuantitySchema = OneOfBuilder::new()
        .item(AmountSchema::schema())
        .item(ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)));
    RateSchema = text()
        .title(Some("decimal in a string"))
        .description(Some("A non-negative decimal, exactly."))
        .pattern(Some(r"^[0-9]{1,18}(\.[0-9]{1,18})?$"))
        .examples(["0.15"]);
    RunIdSchema = text()
        .title(Some("id of a run"))
        .description(Some("The id of a run, as its calls have it. Empty for the run of a day."))
        .pattern(Some("^[A-Za-z0-9._:-]{0,128}$"))
        .examples(["task-1234"]);
    TimestampSchema = text()
        .title(Some("timestamp"))
        .description(Some("An instant in UTC."))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .pattern(Some("Z$"))
        .examples(["2026-11-21T12:00:00Z"]);
    // A test event can be neither requested nor left out.
    WantedKind = text().enum_values(Some(tollgate_domain::EventKind::ALL.iter().map(|kind| kind.as_str())));
    LocalTimeSchema = text()
        .title(Some("timestamp with an offset"))
        .description(Some("An instant, with the offset in which it was asked for."))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2026-11-21T00:00:00+01:00"]);
    UnitPricesSchema = unit_prices()
        .description(Some("USD per million tokens, characters or seconds; of other units, each."));
    BandSchema = unit_prices()
        .description(Some("Prices of calls whose whole prompt is longer than a bound."))
        .property(
            "above_input_tokens",
            ObjectBuilder::new()
                .schema_type(Type::Integer)
                .description(Some("The prompt has more tokens than this.")),
        )
        .required("above_input_tokens");
}

fn unit_prices() -> ObjectBuilder {
    let rate = |unit: &Unit| {
        let rate = Ref::builder().ref_location_from_schema_name(RateSchema::name());
        rate.description(Some(unit.description())).build()
    };
    let prices = ObjectBuilder::new();
    Unit::ALL.iter().fold(prices, |prices, unit| prices.property(unit.price_key(), rate(unit)))
}

/// Prices of some models at a provider, for a time.
#[derive(ToSchema)]
#[schema(as = PriceRow)]
pub(crate) struct PriceRowSchema {
    /// The provider's name in the configuration.
    provider: String,
    /// Ids of models, or prefixes with a `*` at the end.
    models: Vec<String>,
    /// The first day (UTC) on which the row holds.
    #[schema(format = Date, nullable = false)]
    effective_from: Option<String>,
    /// The last day (UTC) on which the row holds.
    #[schema(format = Date, nullable = false)]
    effective_to: Option<String>,
    /// The hours of the day at which the row holds.
    #[schema(nullable = false)]
    hours: Option<HoursSchema>,
    /// The source of the figures.
    #[schema(nullable = false)]
    source: Option<String>,
    /// Whether prices of 0 are intended.
    #[schema(nullable = false)]
    free: Option<bool>,
    /// The most tokens that an answer can have.
    #[schema(nullable = false)]
    max_output_tokens: Option<u64>,
    /// The prices by unit, in US dollars per million or each.
    prices: UnitPricesSchema,
    /// The prices by unit for prompts above a number of tokens.
    #[schema(nullable = false)]
    bands: Option<Vec<BandSchema>>,
    /// The prices in the tiers of the provider, by the name of the tier.
    #[schema(nullable = false)]
    tiers: Option<BTreeMap<String, TierPricesSchema>>,
}

/// Hours of every day (UTC), to the minute.
#[derive(ToSchema)]
#[schema(as = Hours)]
pub(crate) struct HoursSchema {
    /// The first minute, such as `08:30`.
    #[schema(pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    from: String,
    /// The minute after the last.
    #[schema(pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    to: String,
}

/// The prices of a call in a tier: a factor on the prices of tokens, or prices of its own.
#[derive(ToSchema)]
#[schema(as = TierPrices)]
#[serde(untagged)]
pub(crate) enum TierPricesSchema {
    Factor {
        /// The factor on the prices of tokens.
        factor: RateSchema,
    },
    Prices {
        /// The prices in this tier.
        prices: UnitPricesSchema,
        /// Prices for long prompts in this tier.
        #[schema(nullable = false)]
        bands: Option<Vec<BandSchema>>,
    },
}

#[derive(ToSchema)]
#[schema(as = RateLimit)]
pub(crate) struct RateLimitSchema {
    /// The most calls per 60 seconds.
    rpm: u32,
    /// The most calls that may come at once.
    burst: u32,
}

/// One fault of an input.
#[derive(ToSchema)]
#[schema(as = Issue)]
pub(crate) struct IssueSchema {
    /// Field names and array positions from the outside in; empty for the input as a whole.
    path: Vec<String>,
    /// The problem, and what is expected.
    message: String,
}
