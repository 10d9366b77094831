//! The messages of OpenAI's Responses API over a WebSocket.

use serde::Serialize;
use serde_json::value::RawValue;

use super::fields::{FieldNames, Fields};
use super::message::{ClientMessage, ClientRole, ProviderFact, ProviderMessage};
use crate::issue::Issue;
use crate::object::JsonObject;

/// The only type that is sent on. Another one may make the provider begin a response, or answer with an error that cannot
/// be told from that of a response.
const CREATE: &str = "response.create";

const FIELDS: FieldNames = &[("type", "type"), ("stream_id", "stream_id")];

/// Reads a message of a client.
pub(super) fn client_message(text: &[u8]) -> Result<ClientMessage, Vec<Issue>> {
    let fields = Fields::of_message(text, FIELDS)?;
    if fields.stated("type").is_some_and(|kind| kind.get() == "null") {
        return Err(vec![Issue::at(["type"], "must be a text")]);
    }
    let kind = fields.only_text("type")?;
    let lane = fields.only_text("stream_id")?;
    match kind.as_deref() {
        Some(CREATE) => Ok(ClientMessage {
            role: ClientRole::Asks,
            lane: lane.map(std::borrow::Cow::into_owned),
            ..ClientMessage::default()
        }),
        Some(_) => {
            let message = format!("is not a type that is sent on here; {CREATE} is");
            Err(vec![Issue::at(["type"], message)])
        }
        None => Err(vec![Issue::at(["type"], "is required")]),
    }
}

/// The message of an error.
pub(super) fn error_message(
    status: u16,
    error: &RawValue,
    refused: Option<&ClientMessage>,
) -> String {
    #[derive(Serialize)]
    struct ErrorMessage<'a> {
        r#type: &'static str,
        status: u16,
        error: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        stream_id: Option<&'a str>,
    }
    let stream_id = refused.and_then(|refused| refused.lane.as_deref());
    let message = ErrorMessage { r#type: "error", status, error, stream_id };
    // A JSON value and numbers can always be written.
    serde_json::to_string(&message).unwrap_or_default()
}

/// Reads a message of the provider.
pub(super) fn provider_message(text: &[u8]) -> ProviderMessage {
    let Some(message) = JsonObject::of(text) else {
        return ProviderMessage::of(ProviderFact::Other);
    };
    let fact = match message.text("type").as_deref() {
        Some("response.created") => ProviderFact::Begun,
        Some(
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled",
        ) => ProviderFact::Ended,
        Some("error") => {
            let status = message.get("status").and_then(|status| status.get().parse().ok());
            ProviderFact::Failed { status }
        }
        _ => ProviderFact::Other,
    };
    ProviderMessage {
        lane: message.text("stream_id"),
        response_id: message.object("response").and_then(|response| response.text("id")),
        fact,
        ..ProviderMessage::of(ProviderFact::Other)
    }
}
