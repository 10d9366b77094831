//! Real answers of real providers, reduced to their usage: each reads as expected, as a body and as
//! the end of a stream. `real/README.md` names their sources.

use std::collections::BTreeSet;

use awc::http::header::{self, HeaderMap, HeaderValue};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use time::macros::date;
use tollgate_domain::UsageSource;
use tollgate_pricing::{
    Amount, BaseCost, Catalog, PerUnit, PriceBook, Rate, ServedCall, UnitPrices, Usage,
};
use tollgate_provider::AnswerHeaders;
use tollgate_usage::{InspectedBody, ResponseEnd, ResponseMeter, UsageReading};

use crate::common::endpoint;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CollectedAnswer {
    provider: String,
    kind: String,
    model: Option<String>,
    /// The answer, letter by letter.
    answer: Box<RawValue>,
    quantities: PerUnit<u64>,
    #[serde(default)]
    cost: Option<Amount>,
    /// The reason that the expected usage differs from the collectors' reading.
    #[serde(default)]
    differs: Option<String>,
    /// The cost by the prices of the day on which it was collected.
    expected_input_price: Option<String>,
    expected_output_price: Option<String>,
    expected_total_price: Option<String>,
}

fn sure<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| unreachable!("{error:?}"))
}

fn lines() -> Vec<CollectedAnswer> {
    let lines = include_str!("real/answers.jsonl").lines();
    lines.map(|line| sure(serde_json::from_str(line))).collect()
}

impl CollectedAnswer {
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

    fn read(&self, content_type: &'static str, streamed: bool, body: Vec<u8>) -> UsageReading {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        let mut request = InspectedBody::empty();
        request.stream = streamed;
        let endpoint = endpoint(&self.url(streamed));
        let mut meter =
            ResponseMeter::new(&endpoint, 200, &AnswerHeaders(&headers), &request, false);
        meter.feed(Bytes::from(body));
        meter.finish(ResponseEnd::Complete)
    }

    /// The same usage in each form of stream, with its content type.
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

    fn check(&self, reading: &UsageReading, form: &str) {
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

/// Lines whose price differs on purpose: a part of the line, and the reason.
const OTHER_PRICES: [(&str, &str); 4] = [
    ("\"iterations\"", "the advisor's turns are billed at the prices of its own model"),
    ("gpt-5.6-luna", "what was written to the cache has a price of its own"),
    ("\"provider\":\"zai\"", "it is no provider of the table"),
    ("ministral-8b-latest", "the list that it was priced with said 1 USD where the page says 0.1"),
];

#[test]
fn every_real_answer_costs_what_it_cost_on_its_day() {
    let book = PriceBook::new(Catalog::default(), tollgate_prices::catalog().unwrap());
    let (mut priced, mut wrong, mut others) = (0, Vec::new(), BTreeSet::new());
    for line in lines() {
        let Some(expected_input) = &line.expected_input_price else { continue };
        let body = line.answer.get().as_bytes().to_vec();
        let reading = line.read("application/json", false, body);
        // The cost that the provider states is left out, because the price list is tested.
        let usage = Usage { provider_cost: None, ..reading.usage };
        let found = book.price(&ServedCall {
            provider: match line.provider.as_str() {
                "aws" => "bedrock",
                "x-ai" => "xai",
                other => other,
            },
            models: reading.model.as_deref().as_slice(),
            tiers: &reading.tiers,
            on: date!(2025 - 11 - 06),
            time: None,
            usage: &usage,
            parts: &reading.parts,
        });
        let found = found.unwrap();
        let rounded = |price: &Option<String>| price.as_deref().map(half_even);
        let expected = (half_even(expected_input), rounded(&line.expected_output_price));
        let total = rounded(&line.expected_total_price);
        let ours = (found.base.input, Some(found.base.output));
        // Searches are in the total only.
        let matches = match total {
            Some(total) => found.base.total() == Ok(total) && ours.0 == expected.0,
            None => ours.0 == expected.0 && ours.1 == Some(expected.1.unwrap_or_default()),
        };
        priced += 1;
        let name = format!("\"provider\":\"{}\",{}", line.provider, line.answer.get());
        let other = OTHER_PRICES.iter().position(|(part, _)| name.contains(part));
        others.extend(other.filter(|_| !matches));
        if !matches && other.is_none() {
            wrong.push(format!(
                "{} {:?} {:?}: {ours:?}, expected {expected:?}, total {total:?}; {}",
                line.provider,
                line.model,
                found.source,
                line.answer.get()
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {priced}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(
        others,
        (0..OTHER_PRICES.len()).collect(),
        "a price that is as expected needs no reason"
    );
    assert_eq!(priced, 335);
}

/// A price of any precision as an amount.
fn half_even(price: &str) -> Amount {
    let rate: Rate = sure(price.parse());
    let one = UnitPrices { input: Some(rate), ..UnitPrices::default() };
    sure(BaseCost::of(&Usage::tokens(1_000_000, 0), &one)).input
}

#[test]
fn what_differs_on_purpose_says_why() {
    let lines = lines();
    let differing: Vec<_> = lines.iter().filter_map(|line| line.differs.as_deref()).collect();
    assert_eq!(differing.len(), 3, "{differing:?}");
    assert!(differing.iter().all(|why| why.len() > 20));
}
