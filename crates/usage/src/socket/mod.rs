//! WebSockets of providers: what their messages mean for the cost of a call. All of it is pure.
//!
//! A response on a socket is a call of its own. A [`Conversation`] reads the messages of both sides: which of them begins or
//! ends a response, and the most that the next one can use.
//! [`ResponseMeter::of_socket`](crate::ResponseMeter::of_socket) measures a response.
//!
//! | module | protocol |
//! |---|---|
//! | `responses` | OpenAI's Responses API |
//! | `realtime` | OpenAI's Realtime API |
//! | `live` | Google's Gemini Live API |

mod conversation;
mod fields;
mod live;
mod message;
mod realtime;
mod responses;

use serde::Serialize;
use serde_json::value::RawValue;

pub use self::conversation::{Conversation, SocketInput};
pub use self::message::{ClientMessage, ClientRole, Lane, ProviderFact, ProviderMessage};

/// The message by which a client of OpenAI's learns of an error. `error` is a JSON object, as the body of an answer over
/// HTTP has it. `refused` is the message that is refused, if it was read.
pub fn error_message(status: u16, error: &RawValue, refused: Option<&ClientMessage>) -> String {
    #[derive(Serialize)]
    struct ErrorMessage<'a> {
        r#type: &'static str,
        status: u16,
        error: MessageError<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stream_id: Option<&'a str>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum MessageError<'a> {
        Plain(&'a RawValue),
        /// With the client's id of the refused message.
        OfEvent(serde_json::Map<String, serde_json::Value>),
    }
    let stream_id = refused.and_then(|refused| refused.lane.as_deref());
    let event_id = refused.and_then(|refused| refused.event_id.clone());
    let of_event = event_id.and_then(|event_id| {
        let mut fields: serde_json::Map<_, _> = serde_json::from_str(error.get()).ok()?;
        fields.insert("event_id".to_owned(), event_id.into());
        Some(MessageError::OfEvent(fields))
    });
    let error = of_event.unwrap_or(MessageError::Plain(error));
    let message = ErrorMessage { r#type: "error", status, error, stream_id };
    // A JSON value and numbers can always be written.
    serde_json::to_string(&message).unwrap_or_default()
}

#[cfg(test)]
mod tests;
