//! WebSockets of providers: what their messages mean for the cost of a call. All of it is pure.
//!
//! A response on a socket is a call of its own. [`ClientMessage`] is a message of the client that asks for one,
//! [`ProviderMessage`] what a message of the provider says about one, and
//! [`ResponseMeter::of_socket`](crate::ResponseMeter::of_socket) measures it.

mod envelope;
mod message;
mod responses;

use serde::Serialize;
use serde_json::value::RawValue;

use self::envelope::Envelope;
pub use self::message::{ClientMessage, Lane, ProviderFact, ProviderMessage};
use crate::issue::Issue;
use crate::object::JsonObject;

impl ClientMessage {
    /// Reads a message of a client of OpenAI's Responses API.
    ///
    /// # Errors
    /// The issues of a message that is not sent on: it is no JSON object with a known `type`, or one that two readers
    /// may understand in two ways.
    pub fn read(text: &[u8]) -> Result<Self, Vec<Issue>> {
        responses::client_message(Envelope::read(text)?)
    }
}

impl ProviderMessage {
    /// Reads a message of a provider of OpenAI's Responses API.
    pub fn read(text: &[u8]) -> Self {
        match JsonObject::of(text) {
            Some(message) => responses::provider_message(&message),
            None => Self { lane: None, response_id: None, fact: ProviderFact::Other },
        }
    }
}

/// The message by which a client of OpenAI's Responses API learns of an error. `error` is a JSON object, as the body of
/// an answer over HTTP has it.
pub fn error_message(status: u16, error: &RawValue, lane: &Lane) -> String {
    #[derive(Serialize)]
    struct ErrorMessage<'a> {
        r#type: &'static str,
        status: u16,
        error: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        stream_id: Option<&'a str>,
    }
    let message = ErrorMessage { r#type: "error", status, error, stream_id: lane.as_deref() };
    // A JSON value and numbers can always be written.
    serde_json::to_string(&message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ClientMessage, Vec<Issue>> {
        ClientMessage::read(text.as_bytes())
    }

    #[test]
    fn a_message_is_understood_in_one_way_or_not_at_all() {
        let create = |lane: Option<&str>| Ok(ClientMessage { lane: lane.map(str::to_owned) });
        assert_eq!(read(r#"{"type":"response.create","model":"m"}"#), create(None));
        assert_eq!(read(r#"{"stream_id":"a","type":"response.create"}"#), create(Some("a")));
        assert_eq!(read(r#"{"stream_id":null,"type":"response.\u0063reate"}"#), create(None));
        for (text, path, start) in [
            ("[]", "", "the message must be a JSON object"),
            ("{", "", "the message is not JSON: line 1"),
            ("{}", "type", "is required"),
            (r#"{"type":7}"#, "type", "must be a text"),
            (r#"{"type":null}"#, "type", "must be a text"),
            (r#"{"type":"session.update"}"#, "type", "is not a type"),
            // An error that answers one of these cannot be told from that of a response.
            (r#"{"type":"response.cancel"}"#, "type", "is not a type"),
            (r#"{"type":"response.processed"}"#, "type", "is not a type"),
            (r#"{"type":"response.steer"}"#, "type", "is not a type"),
            (r#"{"type":"response.cancel","type":"response.create"}"#, "type", "must not occur"),
            (r#"{"type":"response.cancel","Type":"response.create"}"#, "Type", "must be written"),
            (r#"{"type":"response.create","STREAM_ID":"a"}"#, "STREAM_ID", "must be written"),
            (r#"{"type":"response.create","\u017ftream_id":"a"}"#, "ſtream_id", "must be written"),
            (
                r#"{"type":"response.create","stream_id":"a","stream_id":"b"}"#,
                "stream_id",
                "must not occur",
            ),
            (
                r#"{"type":"response.create","stream_id":null,"stream_id":"b"}"#,
                "stream_id",
                "must not occur",
            ),
            (r#"{"type":"response.create","stream_id":1}"#, "stream_id", "must be a text"),
        ] {
            let issues = read(text).unwrap_err();
            assert_eq!(issues[0].path.join("."), path, "{text}");
            assert!(issues[0].message.starts_with(start), "{text}: {}", issues[0].message);
        }
    }

    #[test]
    fn messages_of_the_provider_say_which_response_begins_and_ends() {
        let read = |text: &str| {
            let ProviderMessage { lane, fact, .. } = ProviderMessage::read(text.as_bytes());
            (lane, fact)
        };
        let id = |text: &str| ProviderMessage::read(text.as_bytes()).response_id;
        let on = |lane: &str, fact| (Some(lane.to_owned()), fact);
        let begun = r#"{"type":"response.created","stream_id":"a","response":{"id":"resp_1"}}"#;
        assert_eq!(read(begun), on("a", ProviderFact::Begun));
        assert_eq!(id(begun).as_deref(), Some("resp_1"));
        assert_eq!(id(r#"{"type":"response.created","response":7}"#), None);
        for end in ["completed", "incomplete", "failed", "cancelled"] {
            let text = format!(r#"{{"type":"response.{end}","stream_id":"b","response":{{}}}}"#);
            assert_eq!(read(&text), on("b", ProviderFact::Ended));
        }
        let error =
            r#"{"type":"error","status":400,"error":{"code":"previous_response_not_found"}}"#;
        assert_eq!(read(error), (None, ProviderFact::Failed { status: Some(400) }));
        let error = r#"{"type":"error","error":{},"status":"no"}"#;
        assert_eq!(read(error), (None, ProviderFact::Failed { status: None }));
        for other in [r#"{"type":"response.output_text.delta","delta":"x"}"#, "{}", "x", "[1]"] {
            assert_eq!(read(other), (None, ProviderFact::Other), "{other}");
        }
    }

    #[test]
    fn an_error_has_the_form_of_the_providers() {
        let error = RawValue::from_string(r#"{"code":"c"}"#.to_owned()).unwrap();
        let message = error_message(402, &error, &None);
        assert_eq!(message, r#"{"type":"error","status":402,"error":{"code":"c"}}"#);
        let message = error_message(402, &error, &Some("a\"".to_owned()));
        assert_eq!(
            message,
            r#"{"type":"error","status":402,"error":{"code":"c"},"stream_id":"a\""}"#
        );
        let fact = ProviderMessage::read(message.as_bytes()).fact;
        assert_eq!(fact, ProviderFact::Failed { status: Some(402) });
    }
}
