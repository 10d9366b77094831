use awc::http::Method;

use super::*;
use crate::table::ProviderTable;

fn endpoint() -> Endpoint {
    let url = "https://api.openai.com/v1/chat/completions";
    ProviderTable::builtin().resolve(&Method::POST, url).unwrap()
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
            let mut meter = ResponseMeter::new(&endpoint, 200, &headers, &CallBody::empty(), strip);
            let piece = Bytes::from(vec![b'x'; 1024 * 1024]);
            let mut passed = 0;
            for _ in 0..20 {
                passed += meter.feed(piece.clone()).pass.len();
                assert!(meter.capacity() <= 40 * 1024 * 1024, "{}", meter.capacity());
            }
            let fed = meter.feed(Bytes::from_static(b"\n\n"));
            assert!(meter.capacity() <= 64 * 1024 + 10 * 1024 * 1024, "{}", meter.capacity());
            passed += fed.pass.len();
            let reading = meter.finish(Ended::Complete);
            assert_eq!(passed + reading.rest.len(), 20 * 1024 * 1024 + 2, "{kind} {strip}");
            assert_ne!(reading.source, UsageSource::Reported);
        }
    }
}

#[test]
fn what_cannot_be_read_is_estimated_by_its_bytes_if_it_may_be_text() {
    let output = |content_type, encoding, body: &'static [u8]| {
        let headers = headers(content_type, encoding);
        let mut meter = ResponseMeter::new(&endpoint(), 200, &headers, &CallBody::empty(), false);
        assert_eq!(meter.feed(Bytes::from_static(body)).pass, body);
        let reading = meter.finish(Ended::Complete);
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
fn what_follows_the_end_cannot_undo_it() {
    let stream = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n\
                  data: [DONE]\n\n";
    let packed = zstd::encode_all(stream.as_bytes(), 3).unwrap();
    let headers = headers("text/event-stream", "zstd");
    let mut meter = ResponseMeter::new(&endpoint(), 200, &headers, &CallBody::empty(), false);
    let fed = meter.feed(Bytes::from(packed.clone()));
    assert_eq!((fed.pass.len(), fed.held.map(|held| held.len())), (0, Some(packed.len())));
    assert!(meter.done());
    let garbage = Bytes::from_static(b"garbage behind the end");
    assert_eq!(meter.feed(garbage.clone()), Fed { pass: garbage, held: None });
    assert!(meter.done());
    let reading = meter.finish(Ended::Broken);
    assert_eq!((reading.source, reading.complete), (UsageSource::Reported, true));
    assert_eq!(reading.usage.quantities.output, 2);
}
