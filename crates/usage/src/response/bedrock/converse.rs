//! `converse`: one form for all models.

use std::sync::LazyLock;

use crate::headers::{Headers, header};
use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use crate::object::JsonObject;
use crate::response::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use crate::response::json::{KeySearcher, ReportedCount};

/// Gathers the usage of an answer of `converse`.
#[derive(Default)]
pub(in crate::response) struct ConverseExtractor {
    figures: ConverseCounts,
    malformed: bool,
    /// Whether the answer is whole: the frame that reports usage is the last, and a body is whole.
    closed: bool,
    facts: ResponseFacts,
    text_bytes: u64,
}

/// The latest figures. Cached tokens are reported beside the input.
#[derive(Clone, Copy, Default)]
pub(super) struct ConverseCounts {
    pub(super) input: ReportedCount,
    pub(super) output: ReportedCount,
    pub(super) total: ReportedCount,
    pub(super) cache_read: ReportedCount,
    pub(super) cache_write: ReportedCount,
    pub(super) cache_write_1h: ReportedCount,
}

impl ConverseExtractor {
    pub(in crate::response) fn new(headers: &dyn Headers) -> Self {
        let response_id = header(headers, "x-amzn-requestid").map(str::to_owned);
        Self { facts: ResponseFacts { response_id, ..ResponseFacts::default() }, ..Self::default() }
    }

    pub(super) fn absorb(&mut self, answer: &JsonObject<'_>) {
        let tier = answer.object("serviceTier").and_then(|tier| tier.text("type"));
        self.facts.service_tier = tier.or(self.facts.service_tier.take());
        if let Some(usage) = answer.get("usage") {
            self.absorb_usage(usage);
            self.closed = true;
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        match JsonObject::in_value(usage) {
            Some(usage) => self.figures.update(&usage),
            None => self.malformed = true,
        }
    }
}

impl UsageExtractor for ConverseExtractor {
    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        let seen = KEYS.look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        self.facts.provider_error |= name == b"error";
        if seen.tells
            && let Some(event) = JsonObject::of(data)
        {
            self.absorb(&event);
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = KEYS.text_bytes(body);
        let Some(answer) = JsonObject::of(body) else { return self.text_bytes > 0 };
        self.absorb(&answer);
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let readable = !self.malformed && self.figures.readable();
        let input = self.figures.input().filter(|_| readable);
        let output = self.figures.output().filter(|_| readable);
        ExtractedUsage {
            is_final: self.closed && input.is_some() && output.is_some(),
            input,
            output,
            total_differs: self.figures.total_differs(),
            facts: self.facts,
            text_bytes: self.text_bytes,
            ..ExtractedUsage::default()
        }
    }
}

impl ConverseCounts {
    fn update(&mut self, usage: &JsonObject<'_>) {
        self.input.update(usage.get("inputTokens"));
        self.output.update(usage.get("outputTokens"));
        self.total.update(usage.get("totalTokens"));
        // Each figure is sent under two names.
        let read = ["cacheReadInputTokens", "cacheReadInputTokenCount"];
        let write = ["cacheWriteInputTokens", "cacheWriteInputTokenCount"];
        self.cache_read.update(usage.get_any(&read));
        self.cache_write.update(usage.get_any(&write));
        for detail in usage.objects("cacheDetails") {
            if detail.text("ttl").as_deref() == Some("1h") {
                self.cache_write_1h.update(detail.get("inputTokens"));
            }
        }
    }

    /// Takes Bedrock's own count, in a stream of `invoke`.
    pub(super) fn take_metrics(&mut self, metrics: &JsonObject<'_>) {
        self.input.update(metrics.get("inputTokenCount"));
        self.output.update(metrics.get("outputTokenCount"));
        self.cache_read.update(metrics.get("cacheReadInputTokenCount"));
        self.cache_write.update(metrics.get("cacheWriteInputTokenCount"));
    }

    pub(super) fn readable(&self) -> bool {
        let all = [self.input, self.output, self.cache_read, self.cache_write, self.cache_write_1h];
        !all.contains(&ReportedCount::Unreadable)
    }

    pub(super) fn input(&self) -> Option<PerUnit<u64>> {
        let input = self.input.count()?;
        let hour = self.cache_write_1h.or_zero();
        Some(PerUnit {
            input,
            cached_input: self.cache_read.or_zero(),
            cache_write: self.cache_write.or_zero().saturating_sub(hour),
            cache_write_1h: hour,
            ..PerUnit::default()
        })
    }

    pub(super) fn output(&self) -> Option<PerUnit<u64>> {
        Some(PerUnit { output: self.output.count()?, ..PerUnit::default() })
    }

    /// Whether the sum of the parts differs from the stated total, if there is one.
    fn total_differs(&self) -> bool {
        let parts = [self.input, self.output, self.cache_read, self.cache_write];
        let sum = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.or_zero()));
        self.total.count().is_some_and(|total| total != sum)
    }
}

/// Arguments of tools are under `input`, as text in a stream.
static KEYS: LazyLock<KeySearcher> =
    LazyLock::new(|| KeySearcher::new(&["text", "input"], &["usage"]));
