//! Anthropic's messages.
//!
//! `input_tokens` does not contain the tokens read from and written to a cache: the prompt is the
//! sum of the three. A stream reports the prompt in `message_start` and the answer in
//! `message_delta`, whose figures are cumulative and replace earlier ones, one by one. If several
//! turns or models made the answer (compaction, advisors), `iterations` has the figures of each,
//! and the figures beside it leave some of them out. The turns are then billed by their own models.
//!
//! Some servers use this format, but report as in their other format: with `total_tokens`, and with
//! cached tokens within the input. Those fields show it.

use std::sync::LazyLock;

use serde_json::value::RawValue;
use tollgate_pricing::{PerModelUsage, PerUnit};

use super::extractor::{
    ExtractedUsage, MAX_PARTS, ResponseFacts, StreamEventKind, UsageExtractor, sides,
};
use super::json::{KeySearcher, ReportedCount, split_detail};
use crate::object::JsonObject;

/// Gathers the usage of an answer.
#[derive(Default)]
pub(super) struct AnthropicExtractor {
    /// Whether the request asked for cache entries with a life of an hour.
    hour_cache: bool,
    figures: AnthropicCounts,
    /// The turns, each with its model, if that is not the model of the answer.
    iterations: Vec<(Option<String>, AnthropicCounts)>,
    searches: ReportedCount,
    malformed: bool,
    /// Whether the answer has stated why it stopped: no figure is added after that.
    stopped: bool,
    facts: ResponseFacts,
    text_bytes: u64,
}

/// The latest figures.
#[derive(Clone, Copy, Default)]
struct AnthropicCounts {
    input: ReportedCount,
    output: ReportedCount,
    thinking: ReportedCount,
    cache_read: ReportedCount,
    cache_write: ReportedCount,
    cache_write_5m: ReportedCount,
    cache_write_1h: ReportedCount,
    /// Figures of servers that count cached tokens within the input.
    cached_within: ReportedCount,
    written_within: ReportedCount,
    total: ReportedCount,
}

impl AnthropicExtractor {
    pub(super) fn new(hour_cache: bool) -> Self {
        Self { hour_cache, ..Self::default() }
    }

    fn absorb(&mut self, answer: &JsonObject<'_>) {
        let facts = &mut self.facts;
        answer.update_text("model", &mut facts.model);
        answer.update_text("id", &mut facts.response_id);
        facts.provider_error |=
            answer.object("error").is_some() || answer.text("type").as_deref() == Some("error");
        self.stopped |= answer.get("stop_reason").is_some();
        if let Some(usage) = answer.get("usage") {
            self.absorb_usage(usage);
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        let Some(usage) = JsonObject::in_value(usage) else {
            self.malformed = true;
            return;
        };
        self.malformed = false;
        self.figures.update(&usage);
        if usage.get("iterations").is_some() {
            let iterations = usage.objects("iterations");
            let read = |iteration: &JsonObject<'_>| {
                let mut figures = AnthropicCounts::default();
                figures.update(iteration);
                (iteration.text("model"), figures)
            };
            self.iterations = iterations.iter().map(read).collect();
        }
        if let Some(tools) = usage.object("server_tool_use") {
            // Fetched pages cost nothing beyond their tokens.
            self.searches.update(tools.get("web_search_requests"));
        }
        let facts = &mut self.facts;
        usage.update_text("service_tier", &mut facts.service_tier);
        let modes: Vec<_> = ["speed", "inference_geo"]
            .iter()
            .filter_map(|key| usage.text(key))
            .filter(|mode| mode != "not_available")
            .collect();
        if !modes.is_empty() {
            facts.modes = modes;
        }
    }

    /// The usage of each model, if the turns are reported.
    fn parts(&self) -> Option<Vec<PerModelUsage>> {
        if self.iterations.is_empty() || !self.iterations.iter().all(|(_, turn)| turn.readable()) {
            return None;
        }
        let mut parts: Vec<PerModelUsage> = Vec::new();
        for (model, figures) in &self.iterations {
            let model = model.clone().filter(|model| Some(model) != self.facts.model.as_ref());
            // A side that a turn does not report is 0.
            let input = figures.input(self.hour_cache).unwrap_or_default();
            let quantities = PerUnit::sum(&input, &figures.output().unwrap_or_default());
            // Models beyond the bound count as the call's own model.
            let model = model.filter(|model| {
                parts.len() < MAX_PARTS
                    || parts.iter().any(|part| part.model.as_ref() == Some(model))
            });
            match parts.iter_mut().find(|part| part.model == model) {
                Some(part) => part.quantities = PerUnit::sum(&part.quantities, &quantities),
                None => parts.push(PerModelUsage { model, quantities }),
            }
        }
        Some(parts)
    }
}

impl UsageExtractor for AnthropicExtractor {
    fn end_markers(&self) -> &'static [&'static [u8]] {
        &[
            b"event: message_stop",
            b"event:message_stop",
            b"data: {\"type\":\"message_stop\"",
            b"event: error",
            b"event:error",
        ]
    }

    /// Decides by the first field that shows the end. Nothing follows an error.
    fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        let unnamed_end =
            name.is_empty() && memchr::memmem::find(data, b"\"message_stop\"").is_some();
        let says_so = |event: JsonObject<'_>| event.text("type").as_deref() == Some("message_stop");
        matches!(name, b"message_stop" | b"error")
            || (unnamed_end && JsonObject::of(data).is_some_and(says_so))
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        let seen = KEYS.look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        self.facts.provider_error |= name == b"error";
        if seen.tells
            && let Some(event) = JsonObject::of(data)
        {
            self.absorb(&event);
            for key in ["message", "delta"] {
                if let Some(inner) = event.object(key) {
                    self.absorb(&inner);
                }
            }
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = KEYS.text_bytes(body);
        let Some(answer) = JsonObject::of(body) else { return self.text_bytes > 0 };
        self.absorb(&answer);
        // A body is whole, whatever reason it states.
        self.stopped = true;
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let readable = !self.malformed
            && self.figures.readable()
            && self.searches != ReportedCount::Unreadable;
        let parts = self.parts().filter(|_| readable);
        let (input, output) = match &parts {
            Some(parts) => {
                let (input, output) = sides(parts);
                (Some(input), Some(output))
            }
            None => (
                self.figures.input(self.hour_cache).filter(|_| readable),
                self.figures.output().filter(|_| readable),
            ),
        };
        // If one model made all of it, there are no parts.
        let parts = parts.unwrap_or_default();
        let several = parts.iter().any(|part| part.model.is_some());
        ExtractedUsage {
            is_final: self.stopped && input.is_some() && output.is_some(),
            input,
            output,
            others: PerUnit { web_search: self.searches.or_zero(), ..PerUnit::default() },
            parts: if several { parts } else { Vec::new() },
            total_differs: self.figures.total_differs(),
            facts: self.facts,
            text_bytes: self.text_bytes,
            ..ExtractedUsage::default()
        }
    }
}

impl AnthropicCounts {
    fn update(&mut self, usage: &JsonObject<'_>) {
        self.input.update(usage.get("input_tokens"));
        self.output.update(usage.get("output_tokens"));
        self.cache_read.update(usage.get("cache_read_input_tokens"));
        self.cache_write.update(usage.get("cache_creation_input_tokens"));
        self.total.update(usage.get("total_tokens"));
        if let Some(split) = usage.object("cache_creation") {
            self.cache_write_5m.update(split.get("ephemeral_5m_input_tokens"));
            self.cache_write_1h.update(split.get("ephemeral_1h_input_tokens"));
        }
        if let Some(details) = usage.object("input_tokens_details") {
            self.cached_within.update(details.get("cached_tokens"));
            self.written_within.update(details.get("cache_write_tokens"));
        }
        if let Some(details) = usage.object("output_tokens_details") {
            self.thinking.update(details.get_any(&["thinking_tokens", "reasoning_tokens"]));
        }
    }

    fn readable(&self) -> bool {
        let all = [
            self.input,
            self.output,
            self.thinking,
            self.cache_read,
            self.cache_write,
            self.cache_write_5m,
            self.cache_write_1h,
            self.cached_within,
            self.written_within,
        ];
        !all.contains(&ReportedCount::Unreadable)
    }

    fn input(&self, hour_cache: bool) -> Option<PerUnit<u64>> {
        let mut input = self.input.count()?;
        let (five_minutes, hour) = self.cache_writes(hour_cache);
        let cached = split_detail(&mut input, self.cached_within);
        let written = split_detail(&mut input, self.written_within);
        Some(PerUnit {
            input,
            cached_input: self.cache_read.or_zero().saturating_add(cached),
            cache_write: five_minutes.saturating_add(written),
            cache_write_1h: hour,
            ..PerUnit::default()
        })
    }

    fn output(&self) -> Option<PerUnit<u64>> {
        let mut output = self.output.count()?;
        let reasoning = split_detail(&mut output, self.thinking);
        Some(PerUnit { output, reasoning, ..PerUnit::default() })
    }

    /// The tokens written to the cache for five minutes, and for an hour.
    ///
    /// A later event may raise the total, because the server's tools write too, and never reports
    /// the split. Tokens that the known split does not cover count as five minutes, the provider's
    /// default. If an hour was requested or has been seen, they count as the more expensive hour.
    fn cache_writes(&self, hour_cache: bool) -> (u64, u64) {
        let (five_minutes, hour) = (self.cache_write_5m.or_zero(), self.cache_write_1h.or_zero());
        let split = five_minutes.saturating_add(hour);
        let rest = self.cache_write.or_zero().saturating_sub(split);
        if hour > 0 || hour_cache {
            (five_minutes, hour.saturating_add(rest))
        } else {
            (five_minutes.saturating_add(rest), hour)
        }
    }

    /// Whether the sum of the parts differs from the stated total, if there is one.
    fn total_differs(&self) -> bool {
        let parts = [self.input, self.output, self.cache_read, self.cache_write];
        let sum = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.or_zero()));
        self.total.count().is_some_and(|total| total != sum)
    }
}

static KEYS: LazyLock<KeySearcher> = LazyLock::new(|| {
    KeySearcher::new(&["text", "thinking", "partial_json"], &["usage", "error", "stop_reason"])
});
