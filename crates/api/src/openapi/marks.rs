//! What annotations of operations say of their errors: words in the place of responses. `errors.rs` makes
//! responses of them.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{RefOr, Response};

use crate::http::error::{ApiError, ErrorCode};

/// What stands for the codes that come with what an operation takes.
pub(super) const COMMON: &str = "common";
/// What stands for the codes of a call, and for what the provider answers in place of ours.
pub(crate) const OF_A_CALL: &str = "call";
/// What says that errors are those of SDKs.
pub(super) const OF_SHAPE_A: &str = "shape_a";
pub(super) const OF_SHAPE_B: &str = "shape_b";
pub(super) const OF_EITHER_SHAPE: &str = "either_shape";

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
    ConnectionDisabled,
    ConnectionNotFound,
    CreditBundleNotFound,
    DeliveryNotFound,
    ForwardEndpointNotSupported,
    ForwardTokenJsonInvalid,
    IdempotencyKeyReused,
    LastSecretKey,
    MeterInUse,
    MeterNotFound,
    MeterSlugTaken,
    ModelNotFound,
    ModelPriceUnknown,
    RateLimited,
    RequestNotFound,
    SecretKeyNotFound,
    SpendKeyExpired,
    SpendKeyNotFound,
    SpendKeyPaused,
    UpgradeNotSupported,
    SubscriptionConfigNotFound,
    SubscriptionExists,
    SubscriptionNotFound,
    WalletNotFound,
    WebhookNotFound,
}

/// What an annotation says of an operation's errors.
pub(crate) fn mark(name: &str) -> BTreeMap<String, RefOr<Response>> {
    BTreeMap::from([(name.to_owned(), Response::new("").into())])
}

/// Whatever an operation that takes the same can be refused with.
impl IntoResponses for ApiError {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(COMMON)
    }
}

/// The errors have what SDKs of format a read, too.
pub(crate) enum OfShapeA {}

impl IntoResponses for OfShapeA {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(OF_SHAPE_A)
    }
}

/// The errors have what SDKs of format b read, too.
pub(crate) enum OfShapeB {}

impl IntoResponses for OfShapeB {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(OF_SHAPE_B)
    }
}

/// The errors have what SDKs of one of the formats read, too.
pub(crate) enum OfEitherShape {}

impl IntoResponses for OfEitherShape {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        mark(OF_EITHER_SHAPE)
    }
}
