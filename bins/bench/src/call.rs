//! The chat call of all measurements.

use std::net::SocketAddr;

use serde_json::json;

use crate::http::request;

#[derive(Clone, Debug, Default)]
pub(crate) struct ChatCall {
    pub(crate) streams: bool,
    /// The behaviour of the provider: headers of the simulator.
    pub(crate) behavior: Vec<(&'static str, String)>,
    /// The model, if not the default.
    pub(crate) model: Option<&'static str>,
    /// The number of bytes that are added to the question.
    pub(crate) padding: usize,
    /// The `max_tokens` of the call, if not the default.
    pub(crate) max_tokens: Option<u64>,
}

/// The path of chat calls, at the provider and on Tollgate's drop-in route.
const CHAT: &str = "/v1/chat/completions";

impl ChatCall {
    /// The call as a stream with this time between events, each of which has the time at which it was sent.
    pub(crate) fn paced(apart_ms: u64) -> Self {
        let behavior = vec![
            ("x-simulate-chunk-delay-ms", apart_ms.to_string()),
            ("x-simulate-stamps", "true".to_owned()),
        ];
        Self { streams: true, behavior, ..Self::default() }
    }

    /// The call with a body of this size, at least that of the default.
    pub(crate) fn of_size(bytes: usize) -> Self {
        let padding = bytes.saturating_sub(Self::default().body().len());
        Self { padding, ..Self::default() }
    }

    /// The bytes of the call to an address.
    pub(crate) fn request_to(&self, address: SocketAddr, credential: &str) -> Vec<u8> {
        let headers: Vec<_> =
            self.behavior.iter().map(|(name, value)| (*name, value.as_str())).collect();
        request("POST", CHAT, &address.to_string(), credential, &headers, &self.body())
    }

    fn body(&self) -> String {
        let question = "A toll is to be paid at a gate across an old road that leads over a \
            mountain. Who built such gates, what was the money for, and why did most of them \
            disappear again?";
        let padding: String = " far".chars().cycle().take(self.padding).collect();
        let mut body = json!({
            "model": self.model.unwrap_or("gpt-4o-mini"),
            "max_tokens": self.max_tokens.unwrap_or(64),
            "temperature": 0.2,
            "messages": [
                {"role": "system", "content": "You answer questions about roads, and you answer \
                    them briefly, in one sentence, without any lists."},
                {"role": "user", "content": format!("{question}{padding}")},
            ],
        });
        if let (true, Some(fields)) = (self.streams, body.as_object_mut()) {
            fields.insert("stream".to_owned(), json!(true));
            // The client requests the usage, so that all targets pass on the same bytes.
            fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        body.to_string()
    }
}
