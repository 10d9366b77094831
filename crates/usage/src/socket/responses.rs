//! The messages of OpenAI's Responses API over a WebSocket.

use super::envelope::Envelope;
use super::message::{ClientMessage, ProviderFact, ProviderMessage};
use crate::issue::Issue;
use crate::object::JsonObject;

/// The only type that is sent on. Another one may make the provider begin a response, or answer with an error that cannot
/// be told from that of a response.
const CREATE: &str = "response.create";

pub(super) fn client_message(envelope: Envelope<'_>) -> Result<ClientMessage, Vec<Issue>> {
    match envelope.kind.as_deref() {
        Some(CREATE) => Ok(ClientMessage { lane: envelope.lane }),
        Some(_) => {
            let message = format!("is not a type that is sent on here; {CREATE} is");
            Err(vec![Issue::at(["type"], message)])
        }
        None => Err(vec![Issue::at(["type"], "is required")]),
    }
}

pub(super) fn provider_message(message: &JsonObject<'_>) -> ProviderMessage {
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
    }
}
