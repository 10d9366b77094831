//! The details of a call that its record shows beside usage and cost: its failure and its times.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The side on which a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureSource {
    /// The provider answered with an error.
    Provider,
    /// The provider was unreachable or too slow, its answer broke off, or this service failed.
    Service,
    /// The client left.
    Client,
}

/// The reason why a call has the status `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallFailure {
    /// The side.
    pub source: FailureSource,
    /// The type of the error, in the provider's words.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The code of the error, in the provider's words or in those of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The message of the error, without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl CallFailure {
    /// A failure of this service, with a code and a message.
    pub fn of_service(code: &str, message: &str) -> Self {
        Self {
            source: FailureSource::Service,
            kind: None,
            code: Some(code.to_owned()),
            message: Some(message.to_owned()),
        }
    }
}

/// The times of a call at its provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTimings {
    /// The time at which the request was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<Timestamp>,
    /// The time at which the answer began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_byte_at: Option<Timestamp>,
    /// The time of the last byte that was read before the settlement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_byte_at: Option<Timestamp>,
}

/// The details of an ended call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDetails {
    /// The failure, for the status `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<CallFailure>,
    /// The provider's id of the request, from a header of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_request_id: Option<String>,
    /// The times at the provider.
    #[serde(default)]
    pub timings: CallTimings,
}
