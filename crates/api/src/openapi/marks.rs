//! Marks for the errors of operations: names in annotations in the place of responses. `errors.rs` makes
//! responses of them.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{RefOr, Response};

use crate::http::error::{ApiError, ErrorCode};

/// The mark for the codes that follow from what an operation takes.
pub(super) const COMMON: &str = "common";
/// The mark for the codes of a call, and for the provider's own answer.
pub(crate) const CALL_ERRORS: &str = "call";
/// The marks for errors with the fields that SDKs read.
pub(super) const SHAPE_A_ERRORS: &str = "shape_a";
pub(super) const SHAPE_B_ERRORS: &str = "shape_b";
pub(super) const EITHER_SHAPE_ERRORS: &str = "either_shape";

macro_rules! refusals {
    ($( $Code:ident, )*) => {
        /// The codes that annotations of operations name among their `responses`.
        pub(crate) mod refused {
            use super::*;

            $(
                pub(crate) enum $Code {}

                impl IntoResponses for $Code {
                    fn responses() -> BTreeMap<String, RefOr<Response>> {
                        mark(ErrorCode::$Code.name())
                    }
                }
            )*
        }
    };
}

refusals! {
    AuthHeaderMissing,
    AuthInvalid,
    BudgetInUse,
    BudgetNotFound,
    ConnectionDisabled,
    ConnectionNotFound,
    CreditBundleNotFound,
    DeliveryNotFound,
    ForwardEndpointNotSupported,
    ForwardTokenJsonInvalid,
    IdempotencyKeyReused,
    JobNotFound,
    JobRunning,
    LastSecretKey,
    MeterInUse,
    MeterNotFound,
    MeterSlugTaken,
    ModelNotFound,
    ModelPriceUnknown,
    ProviderObjectNotFound,
    RateLimited,
    RequestNotFound,
    RefusalNotFound,
    SecretKeyNotFound,
    SpendKeyExpired,
    SpendKeyNotFound,
    SpendKeyPaused,
    UpgradeRequired,
    SubscriptionConfigNotFound,
    SubscriptionExists,
    SubscriptionNotFound,
    WalletNotFound,
    WebhookNotFound,
}

/// A mark as the responses of an operation.
pub(crate) fn mark(name: &str) -> BTreeMap<String, RefOr<Response>> {
    BTreeMap::from([(name.to_owned(), Response::new("").into())])
}

/// All errors that follow from what the operation takes.
impl IntoResponses for ApiError {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(COMMON)
    }
}

/// The errors have the fields that SDKs of format a read.
pub(crate) enum ShapeAErrors {}

impl IntoResponses for ShapeAErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(SHAPE_A_ERRORS)
    }
}

/// The errors have the fields that SDKs of format b read.
pub(crate) enum ShapeBErrors {}

impl IntoResponses for ShapeBErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(SHAPE_B_ERRORS)
    }
}

/// The errors have the fields that SDKs of one of the formats read.
pub(crate) enum EitherShapeErrors {}

impl IntoResponses for EitherShapeErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(EITHER_SHAPE_ERRORS)
    }
}
