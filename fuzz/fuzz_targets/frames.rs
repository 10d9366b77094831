//! Binary frames, as Bedrock's streams have them: bytes as they are, and frames that are whole, with
//! any names and payloads, of which one byte may be damaged.
//!
//! Input: the mode and which endpoint, how it is cut, how it ends, then the body, or the frames as
//! `[length of the name, name, length of the payload in two bytes, payload]`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{Answer, ended, endpoint, lengths};
use tollgate_usage::EndpointFormat;

static ENDPOINTS: LazyLock<Vec<EndpointFormat>> = LazyLock::new(|| {
    let base = "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m";
    [format!("{base}/converse-stream"), format!("{base}/invoke-with-response-stream")]
        .iter()
        .map(|url| endpoint(url))
        .collect()
});

fn frame(kind: &str, name: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut headers = Vec::new();
    for (key, value) in [(":message-type", kind.as_bytes()), (":event-type", name)] {
        headers.push(u8::try_from(key.len()).unwrap_or(0));
        headers.extend_from_slice(key.as_bytes());
        headers.push(7);
        headers.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_be_bytes());
        headers.extend_from_slice(value);
    }
    let word = |number: usize| u32::try_from(number).unwrap_or(0).to_be_bytes();
    let mut frame = word(16 + headers.len() + payload.len()).to_vec();
    frame.extend_from_slice(&word(headers.len()));
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame.extend_from_slice(&headers);
    frame.extend_from_slice(payload);
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    frame
}

fn frames(mut description: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let Some((&length, rest)) = description.split_first() {
        let (name, rest) = rest.split_at(usize::from(length & 0x3f).min(rest.len()));
        let Some((size, rest)) = rest.split_first_chunk::<2>() else { break };
        let (payload, rest) = rest.split_at(usize::from(u16::from_be_bytes(*size)).min(rest.len()));
        let kind = if length & 0x80 == 0 { "event" } else { "exception" };
        frames.extend_from_slice(&frame(kind, name, payload));
        description = rest;
    }
    frames
}

fuzz_target!(|input: &[u8]| {
    let [mode, cut, how, body @ ..] = input else { return };
    let mut built = Vec::new();
    if mode & 2 != 0 {
        built = frames(body);
        let at = usize::from(*mode >> 2);
        if at > 0
            && let Some(byte) = built.get_mut(at * 5)
        {
            *byte ^= 0x20;
        }
    }
    let answer = Answer {
        endpoint: &ENDPOINTS[usize::from(mode & 1)],
        content_type: "application/vnd.amazon.eventstream",
        body: if built.is_empty() { body } else { &built },
        strip: false,
        how: ended(*how),
    };
    let read = answer.check_at_cuts(&lengths(*cut));
    assert!(read.held.is_empty());
});
