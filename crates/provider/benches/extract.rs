//! The time that a meter takes for an answer.

#![expect(clippy::expect_used, reason = "a benchmark that cannot begin has nothing to say")]

use std::hint::black_box;

use awc::http::Method;
use awc::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tollgate_provider::{AnswerHeaders, ProviderTable};
use tollgate_usage::{EndpointFormat, InspectedBody, ResponseEnd, ResponseMeter};

const EVENTS: usize = 200;

/// An event of a stream, as OpenAI sends it.
fn event(text: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-BfX2v3wq\",\"object\":\"chat.completion.chunk\",\
         \"created\":1763700000,\"model\":\"gpt-4o-mini-2024-07-18\",\"service_tier\":\"default\",\
         \"system_fingerprint\":\"fp_34a54ae93c\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":null}}],\
         \"usage\":null,\"obfuscation\":\"aXkQ2m\"}}\n\n"
    )
}

const USAGE: &str = "data: {\"id\":\"chatcmpl-BfX2v3wq\",\"object\":\"chat.completion.chunk\",\
    \"created\":1763700000,\"model\":\"gpt-4o-mini-2024-07-18\",\"service_tier\":\"default\",\
    \"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29,\
    \"prompt_tokens_details\":{\"cached_tokens\":0,\"audio_tokens\":0},\
    \"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0,\
    \"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}}\n\n";

struct ChatStream {
    endpoint: EndpointFormat,
    headers: HeaderMap,
    call: InspectedBody,
}

impl ChatStream {
    fn new() -> Self {
        let url = "https://api.openai.com/v1/chat/completions";
        let endpoint = ProviderTable::builtin().resolve(&Method::POST, url);
        let endpoint = endpoint.expect("an endpoint of the table").format;
        let body = br#"{"model":"gpt-4o-mini","stream":true,"messages":[]}"#;
        let call = InspectedBody::inspect(body, &endpoint, false).expect("a body");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Self { endpoint, headers, call }
    }

    fn meter(&self) -> ResponseMeter {
        ResponseMeter::new(&self.endpoint, 200, &AnswerHeaders(&self.headers), &self.call, false)
    }
}

fn measuring(c: &mut Criterion) {
    let stream = ChatStream::new();
    let mut group = c.benchmark_group("stream");
    let longer = "word ".repeat(60);
    for (name, text) in [("short events", " word"), ("longer events", longer.as_str())] {
        let piece = Bytes::from(event(text).repeat(EVENTS));
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        group.throughput(Throughput::Bytes(length));
        group.bench_function(name, |b| {
            // The extractor parses the first events for the model and the id. They are left out of
            // the measurement.
            let mut meter = stream.meter();
            meter.feed(Bytes::from(event("first").repeat(8)));
            b.iter(|| meter.feed(black_box(piece.clone())));
        });
    }
    group.throughput(Throughput::Elements(1));
    let usage = Bytes::from(USAGE);
    group.bench_function("event with usage", |b| {
        let mut meter = stream.meter();
        b.iter(|| meter.feed(black_box(usage.clone())));
    });
    group.bench_function("whole of 24 events", |b| {
        let first = Bytes::from(event(" word").repeat(22));
        let last = Bytes::from_static(b"data: [DONE]\n\n");
        b.iter(|| {
            let mut meter = stream.meter();
            for piece in [&first, &usage, &last] {
                meter.feed(black_box(piece.clone()));
            }
            meter.finish(ResponseEnd::Complete)
        });
    });
    group.finish();
}

criterion_group!(benches, measuring);
criterion_main!(benches);
