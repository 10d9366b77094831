//! `converse`: one form for all models.

use std::sync::LazyLock;

use crate::headers::{Headers, header};
use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use crate::object::Object;
use crate::response::extractor::{EventKind, Extract, Facts, Found};
use crate::response::json::{Figure, Keys};

/// Gathers the usage of an answer of `converse`.
#[derive(Default)]
pub(in crate::response) struct Converse {
    figures: Figures,
    malformed: bool,
    /// Whether the answer is whole: the frame that reports usage is the last, and a body is whole.
    closed: bool,
    facts: Facts,
    text_bytes: u64,
}

/// The latest figures. Cached tokens are reported beside the input.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) input: Figure,
    pub(super) output: Figure,
    pub(super) total: Figure,
    pub(super) cache_read: Figure,
    pub(super) cache_write: Figure,
    pub(super) cache_write_1h: Figure,
}

impl Converse {
    pub(in crate::response) fn new(headers: &dyn Headers) -> Self {
        let response_id = header(headers, "x-amzn-requestid").map(str::to_owned);
        Self { facts: Facts { response_id, ..Facts::default() }, ..Self::default() }
    }

    pub(super) fn absorb(&mut self, answer: &Object<'_>) {
        let tier = answer.object("serviceTier").and_then(|tier| tier.text("type"));
        self.facts.service_tier = tier.or(self.facts.service_tier.take());
        if let Some(usage) = answer.get("usage") {
            self.absorb_usage(usage);
            self.closed = true;
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        match Object::in_value(usage) {
            Some(usage) => self.figures.take(&usage),
            None => self.malformed = true,
        }
    }
}

impl Extract for Converse {
    fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        let seen = KEYS.look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        self.facts.provider_error |= name == b"error";
        if seen.tells
            && let Some(event) = Object::of(data)
        {
            self.absorb(&event);
        }
        EventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = KEYS.text_bytes(body);
        let Some(answer) = Object::of(body) else { return self.text_bytes > 0 };
        self.absorb(&answer);
        true
    }

    fn found(self: Box<Self>) -> Found {
        let readable = !self.malformed && self.figures.readable();
        let input = self.figures.input().filter(|_| readable);
        let output = self.figures.output().filter(|_| readable);
        Found {
            is_final: self.closed && input.is_some() && output.is_some(),
            input,
            output,
            total_differs: self.figures.total_differs(),
            facts: self.facts,
            text_bytes: self.text_bytes,
            ..Found::default()
        }
    }
}

impl Figures {
    fn take(&mut self, usage: &Object<'_>) {
        self.input.take(usage.get("inputTokens"));
        self.output.take(usage.get("outputTokens"));
        self.total.take(usage.get("totalTokens"));
        // Each figure is sent under two names.
        let read = ["cacheReadInputTokens", "cacheReadInputTokenCount"];
        let write = ["cacheWriteInputTokens", "cacheWriteInputTokenCount"];
        self.cache_read.take(usage.any(&read));
        self.cache_write.take(usage.any(&write));
        for detail in usage.objects("cacheDetails") {
            if detail.text("ttl").as_deref() == Some("1h") {
                self.cache_write_1h.take(detail.get("inputTokens"));
            }
        }
    }

    /// Takes Bedrock's own count, in a stream of `invoke`.
    pub(super) fn take_metrics(&mut self, metrics: &Object<'_>) {
        self.input.take(metrics.get("inputTokenCount"));
        self.output.take(metrics.get("outputTokenCount"));
        self.cache_read.take(metrics.get("cacheReadInputTokenCount"));
        self.cache_write.take(metrics.get("cacheWriteInputTokenCount"));
    }

    pub(super) fn readable(&self) -> bool {
        let all = [self.input, self.output, self.cache_read, self.cache_write, self.cache_write_1h];
        !all.contains(&Figure::Unreadable)
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
static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(&["text", "input"], &["usage"]));
