//! The messages of OpenAI's Responses API over a WebSocket.

use super::envelope::Envelope;
use super::message::{ClientMessage, ProviderFact, ProviderMessage};
use crate::issue::Issue;
use crate::object::JsonObject;

/// The types of messages that begin no response.
const FREE: [&str; 2] = ["response.cancel", "response.processed"];

pub(super) fn client_message(envelope: &Envelope<'_>) -> Result<ClientMessage, Vec<Issue>> {
    match envelope.kind.as_deref() {
        Some("response.create") => Ok(ClientMessage::Create(envelope.lane.clone())),
        Some(kind) if FREE.contains(&kind) => Ok(ClientMessage::Free),
        // Another type may make the provider begin a response.
        Some(_) => {
            let message = format!(
                "is not a type that is sent on here: response.create, or {}",
                FREE.join(", or ")
            );
            Err(vec![Issue::at(["type"], message)])
        }
        None => Err(vec![Issue::at(["type"], "is required")]),
    }
}

pub(super) fn provider_message(message: &JsonObject<'_>) -> ProviderMessage {
    let fact = match message.text("type").as_deref() {
        Some("response.created") => ProviderFact::Begun,
        Some("response.completed" | "response.incomplete" | "response.failed") => {
            ProviderFact::Ended
        }
        Some("error") => {
            let status = message.get("status").and_then(|status| status.get().parse().ok());
            ProviderFact::Failed { status }
        }
        _ => ProviderFact::Other,
    };
    ProviderMessage { lane: message.text("stream_id"), fact }
}
