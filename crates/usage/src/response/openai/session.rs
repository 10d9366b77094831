//! The session of a conversation at GPT-Live.

use memchr::memmem;
use tollgate_pricing::PerUnit;

use crate::number::micros;
use crate::object::JsonObject;
use crate::response::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};

/// Reads the messages of a session. They state the whole time so far, so the last value counts.
#[derive(Default)]
pub(in crate::response) struct SessionExtractor {
    facts: ResponseFacts,
    reported_micros: Option<u64>,
    /// The time that has passed, for a session that reports none.
    passed_micros: u64,
    closed: bool,
}

impl UsageExtractor for SessionExtractor {
    fn ends_stream(&self, _: &[u8], data: &[u8]) -> bool {
        let may_end = memmem::find(data, b"session.closed").is_some();
        may_end && JsonObject::of(data).is_some_and(|message| is_closing(&message))
    }

    fn event(&mut self, _: &[u8], data: &[u8]) -> StreamEventKind {
        let tells = |key: &[u8]| memmem::find(data, key).is_some();
        // Most messages are sound.
        if !tells(b"\"usage\"") && !tells(b"\"session\"") {
            return StreamEventKind::Content;
        }
        let Some(message) = JsonObject::of(data) else { return StreamEventKind::Content };
        self.closed |= is_closing(&message);
        if let Some(session) = message.object("session") {
            session.update_text("id", &mut self.facts.response_id);
            session.update_text("model", &mut self.facts.model);
        }
        let usage = message.object("usage");
        let seconds = usage.as_ref().and_then(|usage| usage.get("seconds"));
        self.reported_micros =
            seconds.and_then(|seconds| micros(seconds.get())).or(self.reported_micros);
        StreamEventKind::Content
    }

    fn body(&mut self, _: &[u8]) -> bool {
        true
    }

    fn passed(&mut self, micros: u64) {
        self.passed_micros = micros;
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let input_second = self.reported_micros.unwrap_or(self.passed_micros);
        ExtractedUsage {
            input: Some(PerUnit::default()),
            output: Some(PerUnit::default()),
            others: PerUnit { input_second, ..PerUnit::default() },
            is_final: self.closed && self.reported_micros.is_some(),
            facts: self.facts,
            ..ExtractedUsage::default()
        }
    }
}

fn is_closing(message: &JsonObject<'_>) -> bool {
    message.text("type").as_deref() == Some("session.closed")
}
