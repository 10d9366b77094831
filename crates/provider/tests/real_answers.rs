//! Real answers of real providers, reduced to their usage: each reads as expected, as a body and as
//! the end of a stream. Where they come from stands in `real/README.md`.

use std::sync::LazyLock;

use awc::http::Method;
use awc::http::header::{self, HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tollgate_domain::UsageSource;
use tollgate_pricing::{Amount, PerUnit};
use tollgate_provider::{CallBody, Ended, ProviderSettings, ProviderTable, Reading, ResponseMeter};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    provider: String,
    kind: String,
    model: Option<String>,
    /// As it came, letter by letter.
    answer: Box<RawValue>,
    quantities: PerUnit<u64>,
    #[serde(default)]
    cost: Option<Amount>,
    /// Why another usage is expected than the one that the collectors read.
    #[serde(default)]
    differs: Option<String>,
    #[serde(default, rename = "expected_input_price")]
    _input_price: Option<String>,
    #[serde(default, rename = "expected_output_price")]
    _output_price: Option<String>,
    #[serde(default, rename = "expected_total_price")]
    _total_price: Option<String>,
}

fn sure<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| unreachable!("{error:?}"))
}

/// The built-in providers, and Bedrock in a region.
static TABLE: LazyLock<ProviderTable> = LazyLock::new(|| {
    let mut table = ProviderTable::builtin();
    let region = Some("eu-central-1".to_owned());
    let settings = ProviderSettings { region, ..ProviderSettings::default() };
    sure(table.configure("bedrock", settings));
    table
});

fn lines() -> Vec<Line> {
    let lines = include_str!("real/answers.jsonl").lines();
    lines.map(|line| sure(serde_json::from_str(line))).collect()
}

impl Line {
    fn url(&self, streamed: bool) -> String {
        let google = "https://generativelanguage.googleapis.com/v1beta/models";
        let bedrock = "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m";
        let chat = match self.provider.as_str() {
            "cerebras" => "https://api.cerebras.ai/v1",
            "deepseek" => "https://api.deepseek.com",
            "groq" => "https://api.groq.com/openai/v1",
            "mistral" => "https://api.mistral.ai/v1",
            "openrouter" => "https://openrouter.ai/api/v1",
            _ => "https://api.openai.com/v1",
        };
        match self.kind.as_str() {
            "chat" => format!("{chat}/chat/completions"),
            "responses" => "https://api.openai.com/v1/responses".to_owned(),
            "embeddings" => "https://api.openai.com/v1/embeddings".to_owned(),
            "messages" => "https://api.anthropic.com/v1/messages".to_owned(),
            "generate_content" if streamed => format!("{google}/m:streamGenerateContent"),
            "generate_content" => format!("{google}/m:generateContent"),
            "embed_content" => format!("{google}/m:embedContent"),
            "cohere" => "https://api.cohere.com/v2/chat".to_owned(),
            "cohere_embed" => "https://api.cohere.com/v2/embed".to_owned(),
            "converse" if streamed => format!("{bedrock}/converse-stream"),
            "converse" => format!("{bedrock}/converse"),
            other => unreachable!("{other}"),
        }
    }

    fn read(&self, content_type: &'static str, streamed: bool, body: Vec<u8>) -> Reading {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let mut request = CallBody::empty();
        request.stream = streamed;
        let endpoint = sure(TABLE.resolve(&Method::POST, &self.url(streamed)));
        let mut meter = ResponseMeter::new(&endpoint, 200, &headers, &request, false);
        meter.feed(Bytes::from(body));
        meter.finish(Ended::Complete)
    }

    /// The same usage as each form of stream brings it, with the type of its content.
    fn streams(&self) -> Vec<(&'static str, Vec<u8>)> {
        const EVENTS: &str = "text/event-stream";
        let answer = self.answer.get();
        let value: Value = sure(serde_json::from_str(answer));
        let with = |more: Value| {
            let all = [&value, &more].into_iter().filter_map(Value::as_object).flatten();
            let all = all.map(|(key, value)| (key.clone(), value.clone()));
            Value::Object(all.collect()).to_string()
        };
        match self.kind.as_str() {
            "chat" => {
                let last = with(json!({"choices": []}));
                vec![(EVENTS, format!("data: {last}\n\ndata: [DONE]\n\n").into())]
            }
            "responses" => {
                let name = "response.completed";
                let data = format!("{{\"type\":\"{name}\",\"response\":{answer}}}");
                vec![(EVENTS, format!("event: {name}\ndata: {data}\n\n").into())]
            }
            "messages" => {
                let mut start = value.clone();
                if let Some(output) = start.pointer_mut("/usage/output_tokens") {
                    *output = json!(1);
                }
                let delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                    "usage": value.get("usage")});
                let start = json!({"type": "message_start", "message": start});
                let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
                let (one, two) = ("event: message_start\ndata: ", "event: message_delta\ndata: ");
                vec![(EVENTS, format!("{one}{start}\n\n{two}{delta}\n\n{stop}").into())]
            }
            "generate_content" => {
                let last = with(json!({"candidates": [{"finishReason": "STOP"}]}));
                vec![
                    (EVENTS, format!("data: {answer}\r\n\r\ndata: {last}\r\n\r\n").into()),
                    ("application/json", format!("[{answer}\n,\r\n{last}]").into()),
                ]
            }
            "cohere" => {
                let data = format!("{{\"type\":\"message-end\",\"delta\":{answer}}}");
                vec![(EVENTS, format!("event: message-end\ndata: {data}\n\n").into())]
            }
            "converse" => {
                let stop = frame("messageStop", br#"{"stopReason":"end_turn"}"#);
                let frames = [stop, frame("metadata", answer.as_bytes())];
                vec![("application/vnd.amazon.eventstream", frames.concat())]
            }
            _ => Vec::new(),
        }
    }

    fn check(&self, reading: &Reading, form: &str) {
        let name = format!("{form} of {}: {}", self.provider, self.answer);
        let expected = PerUnit { request: 1, ..self.quantities };
        assert_eq!(reading.usage.quantities, expected, "{name}");
        assert_eq!(reading.usage.provider_cost, self.cost, "{name}");
        assert_eq!(reading.source, UsageSource::Reported, "{name}");
        assert!(reading.complete && !reading.provider_error, "{name}");
        let by_turns = self.answer.get().contains("\"iterations\"");
        assert_eq!(!reading.parts.is_empty(), by_turns, "{name}");
        assert!(!reading.total_differs, "{name}");
        assert_eq!(reading.model, self.model, "{name}");
    }
}

fn frame(name: &str, payload: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    for (key, value) in [(":event-type", name), (":message-type", "event")] {
        headers.push(sure(u8::try_from(key.len())));
        headers.extend_from_slice(key.as_bytes());
        headers.push(7);
        headers.extend_from_slice(&sure(u16::try_from(value.len())).to_be_bytes());
        headers.extend_from_slice(value.as_bytes());
    }
    let word = |number: usize| sure(u32::try_from(number)).to_be_bytes();
    let mut frame = word(16 + headers.len() + payload.len()).to_vec();
    frame.extend_from_slice(&word(headers.len()));
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame.extend_from_slice(&headers);
    frame.extend_from_slice(payload);
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame
}

#[test]
fn every_real_answer_reads_as_expected() {
    let lines = lines();
    assert_eq!(lines.len(), 407);
    for line in &lines {
        let body = line.answer.get().as_bytes().to_vec();
        line.check(&line.read("application/json", false, body), "body");
    }
}

#[test]
fn every_real_answer_reads_the_same_as_a_stream() {
    let mut streams = 0;
    for line in lines() {
        for (content_type, body) in line.streams() {
            line.check(&line.read(content_type, true, body), content_type);
            streams += 1;
        }
    }
    assert!(streams > 500, "{streams}");
}

#[test]
fn what_differs_on_purpose_says_why() {
    let lines = lines();
    let differing: Vec<_> = lines.iter().filter_map(|line| line.differs.as_deref()).collect();
    assert_eq!(differing.len(), 3, "{differing:?}");
    assert!(differing.iter().all(|why| why.len() > 20));
}
