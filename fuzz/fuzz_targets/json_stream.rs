//! Streams that are one JSON array in pieces. The same answers as an event stream must read the
//! same.
//!
//! Input: how it is cut, how it ends, then the body.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;
use tollgate_fuzz::{Answer, ended, endpoint, lengths};
use tollgate_usage::EndpointFormat;
use tollgate_usage::ResponseEnd;

static ENDPOINT: LazyLock<EndpointFormat> = LazyLock::new(|| {
    endpoint("https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent")
});

fuzz_target!(|input: &[u8]| {
    let [cut, how, body @ ..] = input else { return };
    let array = Answer {
        endpoint: &ENDPOINT,
        content_type: "application/json",
        body,
        strip: false,
        how: ended(*how),
    };
    let read = array.check_at_cuts(&lengths(*cut));
    assert!(read.held.is_empty());
    let Ok(items) = serde_json::from_slice::<Vec<&RawValue>>(body) else { return };
    let objects_in_a_line =
        items.iter().all(|item| item.get().starts_with('{') && !item.get().contains(['\r', '\n']));
    if !objects_in_a_line || array.how != ResponseEnd::Complete {
        return;
    }
    let events: String = items.iter().map(|item| format!("data: {}\n\n", item.get())).collect();
    let stream = Answer { content_type: "text/event-stream", body: events.as_bytes(), ..array };
    assert_eq!(stream.feed(&[usize::MAX]).reading, read.reading);
});
