//! Tests of bodies that are too large to be kept.

use http::Method;
use http::header::{self, HeaderMap};

use super::*;
use crate::dialect::Dialect;

fn endpoint() -> EndpointFormat {
    endpoint_at("/chat/completions")
}

fn endpoint_at(path: &str) -> EndpointFormat {
    EndpointFormat::of(Dialect::OpenAi, Method::POST, path)
}

fn at_google(path: &str) -> EndpointFormat {
    EndpointFormat::of(Dialect::Google, Method::POST, &format!("/models/{path}"))
}

fn headers(content_type: &'static str, encoding: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static(encoding));
    headers
}

#[test]
fn a_line_of_twenty_megabytes_passes_and_costs_bounded_memory() {
    let endpoint = endpoint();
    for strip in [false, true] {
        for kind in ["text/event-stream", "application/json"] {
            let headers = headers(kind, "identity");
            let mut meter =
                ResponseMeter::new(&endpoint, 200, &headers, &InspectedBody::empty(), strip);
            let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
            let mut passed = 0;
            for _ in 0..20 {
                passed += meter.feed(piece.clone()).pass.len();
                assert!(meter.capacity() <= 40 * 1024 * 1024, "{}", meter.capacity());
            }
            let fed = meter.feed(Bytes::from_static(b"\n\n"));
            assert!(meter.capacity() <= 64 * 1024 + 10 * 1024 * 1024, "{}", meter.capacity());
            passed += fed.pass.len();
            let reading = meter.finish(ResponseEnd::Complete);
            assert_eq!(passed + reading.rest.len(), 20 * 1024 * 1024 + 2, "{kind} {strip}");
            assert_ne!(reading.source, UsageSource::Reported);
        }
    }
}

#[test]
fn what_cannot_be_read_is_estimated_by_its_bytes_if_it_may_be_text() {
    let output = |content_type, encoding, body: &'static [u8]| {
        let headers = headers(content_type, encoding);
        let mut meter =
            ResponseMeter::new(&endpoint(), 200, &headers, &InspectedBody::empty(), false);
        assert_eq!(meter.feed(Bytes::from_static(body)).pass, body);
        let reading = meter.finish(ResponseEnd::Complete);
        assert_eq!(reading.source, UsageSource::Estimated);
        assert!(reading.complete);
        reading.usage.quantities.output
    };
    assert_eq!(output("text/html", "identity", b"<p>Hello!</p>."), 4);
    assert_eq!(output("application/json", "unknown", b"fourteen bytes"), 4);
    assert_eq!(output("text/event-stream", "gzip", b"not gzip at al"), 4);
    assert_eq!(output("audio/mpeg", "unknown", b"fourteen bytes"), 0);
    assert_eq!(output("application/json", "identity", br#"{"content":"seven b"}"#), 2);
}

#[test]
fn the_line_that_ends_a_stream_waits_though_others_of_its_event_may_have_passed() {
    let stream = "id: 7\ndata: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n\
                  : all said\nid: 8\nretry: 5\ndata: [DONE]\n\n";
    let before = stream.find("data: [DONE]").unwrap();
    let headers = headers("text/event-stream", "identity");
    for cut in 0..=stream.len() {
        let mut meter =
            ResponseMeter::new(&endpoint(), 200, &headers, &InspectedBody::empty(), false);
        let (mut passed, mut held) = (Vec::new(), Vec::new());
        for piece in [&stream.as_bytes()[..cut], &stream.as_bytes()[cut..]] {
            let fed = meter.feed(Bytes::copy_from_slice(piece));
            passed.extend_from_slice(&fed.pass);
            held.extend_from_slice(&fed.held.unwrap_or_default());
        }
        assert!(meter.done() && passed.len() <= before, "cut at {cut}");
        assert_eq!([passed, held].concat(), stream.as_bytes(), "cut at {cut}");
    }
}

#[test]
fn what_follows_the_end_cannot_undo_it() {
    let stream = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n\
                  data: [DONE]\n\n";
    let packed = zstd::encode_all(stream.as_bytes(), 3).unwrap();
    let headers = headers("text/event-stream", "zstd");
    let mut meter = ResponseMeter::new(&endpoint(), 200, &headers, &InspectedBody::empty(), false);
    let fed = meter.feed(Bytes::from(packed.clone()));
    assert_eq!((fed.pass.len(), fed.held.map(|held| held.len())), (0, Some(packed.len())));
    assert!(meter.done());
    let garbage = Bytes::from_static(b"garbage behind the end");
    assert_eq!(meter.feed(garbage.clone()), MeteredPiece { pass: garbage, held: None });
    assert!(meter.done());
    let reading = meter.finish(ResponseEnd::Broken);
    assert_eq!((reading.source, reading.complete), (UsageSource::Reported, true));
    assert_eq!(reading.usage.quantities.output, 2);
}

/// The reading of a body of nine megabytes with this beginning and end.
fn read_large(
    path: &str,
    encoding: &'static str,
    call: &InspectedBody,
    ends: [&str; 2],
) -> UsageReading {
    let [first, last] = ends;
    let body = format!("{first}{}{last}", "0.25,".repeat(9 * 1024 * 1024 / 5));
    let body = match encoding {
        "zstd" => zstd::encode_all(body.as_bytes(), 1).unwrap(),
        _ => body.into_bytes(),
    };
    let headers = headers("application/json", encoding);
    let mut meter = ResponseMeter::new(&endpoint_at(path), 200, &headers, call, false);
    for piece in body.chunks(50_001) {
        assert_eq!(meter.feed(Bytes::copy_from_slice(piece)).pass, piece);
    }
    meter.finish(ResponseEnd::Complete)
}

#[test]
fn the_usage_at_the_end_of_a_body_beyond_the_bound_is_read() {
    let start = r#"{"data":[{"embedding":["#;
    let end = r#"1]}],"usage":{"prompt_tokens":8,"total_tokens":8},"model":"e"}"#;
    for encoding in ["identity", "zstd"] {
        let reading = read_large("/embeddings", encoding, &InspectedBody::empty(), [start, end]);
        let quantities = reading.usage.quantities;
        assert_eq!((reading.source, reading.complete), (UsageSource::Reported, true));
        assert_eq!((quantities.input, quantities.output), (8, 0), "{encoding}");
    }
    let end = r#"1]}],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#;
    let reading =
        read_large("/chat/completions", "identity", &InspectedBody::empty(), [start, end]);
    let quantities = reading.usage.quantities;
    assert_eq!(
        (reading.source, quantities.input, quantities.output),
        (UsageSource::Reported, 5, 7)
    );
}

/// The reading of Google's answer of nine megabytes with this beginning and end.
fn read_large_of_google(path: &str, ends: [&str; 2]) -> UsageReading {
    let endpoint = at_google(path);
    let headers = headers("application/json", "identity");
    let mut meter = ResponseMeter::new(&endpoint, 200, &headers, &InspectedBody::empty(), false);
    for piece in [ends[0].to_owned(), "A".repeat(9 * 1024 * 1024), ends[1].to_owned()] {
        meter.feed(Bytes::from(piece));
    }
    meter.finish(ResponseEnd::Complete)
}

#[test]
fn a_large_image_is_billed_by_its_figures_or_as_one_image_and_never_as_text() {
    let start = r#"{"candidates":[{"content":{"parts":[{"inlineData":{"data":""#;
    let end = r#""}}]}}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":1290,
        "totalTokenCount":1299,"candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":1290}]}}"#;
    let reading = read_large_of_google("g:generateContent", [start, end]);
    let quantities = PerUnit { input: 9, output_image: 1290, request: 1, ..PerUnit::default() };
    assert_eq!((reading.source, reading.usage.quantities), (UsageSource::Reported, quantities));

    let start = r#"{"predictions":[{"bytesBase64Encoded":""#;
    let reading = read_large_of_google("imagen:predict", [start, r#""}]}"#]);
    let quantities = PerUnit { image: 1, request: 1, ..PerUnit::default() };
    assert_eq!((reading.source, reading.usage.quantities), (UsageSource::Estimated, quantities));

    let ends = [r#"{"data":[{"b64_json":""#, r#""}]}"#];
    let reading = read_large("/images/generations", "identity", &InspectedBody::empty(), ends);
    assert_eq!((reading.source, reading.usage.quantities), (UsageSource::Estimated, quantities));
}

#[test]
fn an_estimate_keeps_to_what_the_call_can_bring() {
    let output = |path, body: &str| {
        let call = InspectedBody::inspect(body.as_bytes(), &endpoint_at(path), false).unwrap();
        let reading = read_large(path, "identity", &call, [r#"{"data":["#, "1]}"]);
        assert_eq!(reading.source, UsageSource::Estimated);
        reading.usage.quantities.output
    };
    assert_eq!(output("/embeddings", r#"{"model":"e"}"#), 0);
    assert_eq!(output("/chat/completions", r#"{"model":"m","max_tokens":100}"#), 100);
    assert_eq!(output("/chat/completions", r#"{"model":"m","max_tokens":100,"n":3}"#), 300);
    assert!(output("/chat/completions", r#"{"model":"m"}"#) > 2_000_000);
}

#[cfg(feature = "faults")]
#[test]
#[should_panic(expected = "ordered by x-fault")]
fn a_fault_comes_when_it_is_ordered() {
    let mut headers = headers("application/json", "identity");
    headers.insert(header::HeaderName::from_static("x-fault"), "panic".parse().unwrap());
    ResponseMeter::new(&endpoint(), 200, &headers, &InspectedBody::empty(), false);
}

/// Images come as text of many megabytes, in a body, an event or an item. The usage beside them
/// counts.
#[test]
fn usage_beside_something_very_large_is_read() {
    let large = "A".repeat(9 * 1024 * 1024);
    let google = &at_google("g:streamGenerateContent");
    let usage = r#""usage":{"input_tokens":10,"output_tokens":200,"total_tokens":210}"#;
    let metadata = r#""usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":200,"totalTokenCount":210}"#;
    let item = format!(
        "{{\"candidates\":[{{\"content\":{{\"data\":\"{large}\"}},\"finishReason\":\"STOP\"}}],{metadata}}}"
    );
    let images = &endpoint_at("/images/edits");
    let responses = &endpoint_at("/responses");
    let cases = [
        (google, "text/event-stream", format!("data: {item}\n\n")),
        (google, "application/json", format!("[{item}]")),
        (
            images,
            "application/json",
            format!("{{{usage},\"data\":[{{\"b64_json\":\"{large}\"}}]}}"),
        ),
        (
            images,
            "application/json",
            format!("{{\"data\":[{{\"b64_json\":\"{large}\"}}],{usage}}}"),
        ),
        (
            images,
            "text/event-stream",
            format!(
                "event: image_edit.completed\ndata: {{\"type\":\"image_edit.completed\",\"b64_json\":\"{large}\",{usage}}}\n\n"
            ),
        ),
        (
            responses,
            "text/event-stream",
            format!(
                "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{{\"result\":\"{large}\"}}],{usage}}}}}\n\n"
            ),
        ),
    ];
    for (endpoint, kind, body) in cases {
        let mut request = InspectedBody::empty();
        request.stream = true;
        let headers = headers(kind, "identity");
        let mut meter = ResponseMeter::new(endpoint, 200, &headers, &request, false);
        let mut bytes = 0;
        for piece in body.as_bytes().chunks(60_000) {
            let fed = meter.feed(Bytes::copy_from_slice(piece));
            bytes += fed.pass.len() + fed.held.map_or(0, |held| held.len());
        }
        let reading = meter.finish(ResponseEnd::Complete);
        assert_eq!(bytes + reading.rest.len(), body.len(), "{} {kind}", endpoint.path);
        let usage = reading.usage;
        assert_eq!(
            (usage.input_tokens(), usage.output_tokens()),
            (10, 200),
            "{} {kind}",
            endpoint.path
        );
        assert_eq!(reading.source, UsageSource::Reported, "{} {kind}", endpoint.path);
    }
}
