//! Cohere's answers, of both versions of its API.
//!
//! `billed_units` is the bill. `tokens` beside it, which contains Cohere's additions to the prompt,
//! and `cached_tokens` are not billed.

use std::sync::LazyLock;

use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use super::json::{KeySearcher, ReportedCount};
use crate::object::JsonObject;

const ENDS: [&[u8]; 2] = [b"message-end", b"stream-end"];

/// Gathers the usage of an answer.
#[derive(Default)]
pub(super) struct CohereExtractor {
    input: ReportedCount,
    output: ReportedCount,
    image_tokens: ReportedCount,
    images: ReportedCount,
    searches: ReportedCount,
    /// Whether a bill was reported. A unit that it does not name costs nothing.
    billed: bool,
    malformed: bool,
    closed: bool,
    facts: ResponseFacts,
    text_bytes: u64,
}

impl CohereExtractor {
    fn absorb(&mut self, answer: &JsonObject<'_>) {
        let facts = &mut self.facts;
        let id = ["id", "response_id", "generation_id"].iter().find_map(|key| answer.text(key));
        facts.response_id = id.or(facts.response_id.take());
        facts.provider_error |= answer.get("error").is_some()
            || answer.text("finish_reason").is_some_and(|reason| reason == "ERROR");
        for key in ["usage", "meta"] {
            if let Some(usage) = answer.object(key)
                && let Some(billed) = usage.get("billed_units")
            {
                self.absorb_bill(billed);
            }
        }
    }

    fn absorb_bill(&mut self, billed: &RawValue) {
        let Some(billed) = JsonObject::in_value(billed) else {
            self.malformed = true;
            return;
        };
        self.malformed = false;
        self.billed = true;
        self.input.update(billed.get("input_tokens"));
        self.output.update(billed.get("output_tokens"));
        self.image_tokens.update(billed.get("image_tokens"));
        self.images.update(billed.get("images"));
        self.searches.update(billed.get("search_units"));
    }

    /// Whether an event is the last of a stream, in either version.
    fn is_end(event: &JsonObject<'_>) -> bool {
        ["type", "event_type"]
            .iter()
            .filter_map(|key| event.text(key))
            .any(|kind| ENDS.contains(&kind.as_bytes()))
    }
}

impl UsageExtractor for CohereExtractor {
    fn end_markers(&self) -> &'static [&'static [u8]] {
        &[
            b"event: message-end",
            b"event:message-end",
            b"event: stream-end",
            b"event:stream-end",
            b"data: {\"type\":\"message-end\"",
            b"data: {\"event_type\":\"stream-end\"",
        ]
    }

    /// Decides by the first field that shows the end.
    fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        let unnamed =
            name.is_empty() && ENDS.iter().any(|end| memchr::memmem::find(data, end).is_some());
        ENDS.contains(&name)
            || (unnamed && JsonObject::of(data).is_some_and(|it| Self::is_end(&it)))
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        let ends = self.ends_stream(name, data);
        let seen = KEYS.look(data);
        if !ends {
            // The last event repeats the text.
            self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        }
        let introduces = self.facts.response_id.is_none() && IDS.look(data).tells;
        if !ends && !introduces && !seen.tells {
            return StreamEventKind::Content;
        }
        let Some(event) = JsonObject::of(data) else { return StreamEventKind::Content };
        self.closed |= ends;
        self.absorb(&event);
        for key in ["delta", "response"] {
            if let Some(inner) = event.object(key) {
                self.absorb(&inner);
            }
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = KEYS.text_bytes(body);
        let Some(answer) = JsonObject::of(body) else { return self.text_bytes > 0 };
        self.closed = true;
        self.absorb(&answer);
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let all = [self.input, self.output, self.image_tokens, self.images, self.searches];
        let readable = self.billed && !self.malformed && !all.contains(&ReportedCount::Unreadable);
        let input = PerUnit {
            input: self.input.or_zero(),
            input_image: self.image_tokens.or_zero(),
            ..PerUnit::default()
        };
        let output = PerUnit { output: self.output.or_zero(), ..PerUnit::default() };
        // Newer models bill the tokens of an image, older ones the image.
        let by_tokens = self.image_tokens.or_zero() > 0;
        ExtractedUsage {
            is_final: self.closed && readable,
            input: readable.then_some(input),
            output: readable.then_some(output),
            others: PerUnit {
                search_unit: self.searches.or_zero(),
                image: if by_tokens { 0 } else { self.images.or_zero() },
                ..PerUnit::default()
            },
            facts: self.facts,
            text_bytes: self.text_bytes,
            ..ExtractedUsage::default()
        }
    }
}

static KEYS: LazyLock<KeySearcher> =
    LazyLock::new(|| KeySearcher::new(&["text", "thinking", "arguments"], &["error"]));
static IDS: LazyLock<KeySearcher> =
    LazyLock::new(|| KeySearcher::new(&[], &["id", "generation_id"]));
