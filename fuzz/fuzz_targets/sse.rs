//! Event streams, on every kind of endpoint that has them.
//!
//! Input: which endpoint, how it is cut, how it ends and whether usage is stripped, then the body.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{Answer, ended, endpoint, lengths};
use tollgate_usage::EndpointFormat;

static ENDPOINTS: LazyLock<Vec<EndpointFormat>> = LazyLock::new(|| {
    let urls = [
        "https://api.openai.com/v1/chat/completions",
        "https://api.openai.com/v1/responses",
        "https://api.anthropic.com/v1/messages",
        "https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent",
        "https://api.cohere.com/v2/chat",
        "https://api.openai.com/v1/audio/speech",
        "https://api.openai.com/v1/images/generations",
        "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        "https://api.openai.com/v1/audio/transcriptions",
        "https://api.elevenlabs.io/v1/text-to-speech/v/stream/with-timestamps",
    ];
    urls.into_iter().map(endpoint).collect()
});

fuzz_target!(|input: &[u8]| {
    let [which, cut, how, body @ ..] = input else { return };
    let answer = Answer {
        endpoint: &ENDPOINTS[usize::from(*which) % ENDPOINTS.len()],
        content_type: "text/event-stream",
        body,
        strip: how & 0x80 != 0,
        how: ended(how & 0x7f),
    };
    answer.check_at_cuts(&lengths(*cut));
});
