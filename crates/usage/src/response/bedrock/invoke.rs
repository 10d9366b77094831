//! `invoke`: the body and the events of a stream have the format of the model's vendor.

use std::sync::LazyLock;

use crate::headers::{Headers, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tollgate_pricing::PerUnit;

use super::converse::{ConverseCounts, ConverseExtractor};
use crate::dialect::Api;
use crate::number::count;
use crate::object::JsonObject;
use crate::request::InspectedBody;
use crate::response::anthropic::AnthropicExtractor;
use crate::response::extractor::{ExtractedUsage, StreamEventKind, UsageExtractor};
use crate::response::json::{KeySearcher, ReportedCount};
use crate::response::openai::{OpenAiExtractor, ReasoningPlacement};

/// Gathers the usage of an answer of `invoke`. Each vendor's events are read in its own format.
/// Bedrock's count replaces figures that a vendor does not report.
pub(in crate::response) struct InvokeExtractor {
    /// The vendor of the answer, known from its first event.
    vendor: VendorExtractor,
    hour_cache: bool,
    /// Bedrock's own count.
    counted: ConverseCounts,
    closed: bool,
    images: u64,
    response_id: Option<String>,
    provider_error: bool,
    text_bytes: u64,
}

enum VendorExtractor {
    Unknown,
    Anthropic(Box<AnthropicExtractor>),
    OpenAi(Box<OpenAiExtractor>),
    /// Nova's events have the format of `converse`.
    Converse(Box<ConverseExtractor>),
    /// Llama and Titan report flat fields, with names of their own.
    Flat(FlatExtractor),
}

#[derive(Default)]
struct FlatExtractor {
    input: ReportedCount,
    output: ReportedCount,
    text_bytes: u64,
}

impl InvokeExtractor {
    pub(in crate::response) fn new(headers: &dyn Headers, request: &InspectedBody) -> Self {
        let figure = |name| {
            let count = header(headers, name).map(count);
            count.map_or(ReportedCount::Absent, |count| {
                count.map_or(ReportedCount::Unreadable, ReportedCount::Count)
            })
        };
        let input = figure("x-amzn-bedrock-input-token-count");
        let mut output = figure("x-amzn-bedrock-output-token-count");
        if output == ReportedCount::Absent && input.count().is_some() {
            // Embeddings have no output.
            output = ReportedCount::Count(0);
        }
        let counted = ConverseCounts {
            input,
            output,
            cache_read: figure("x-amzn-bedrock-cache-read-input-token-count"),
            cache_write: figure("x-amzn-bedrock-cache-write-input-token-count"),
            ..ConverseCounts::default()
        };
        Self {
            vendor: VendorExtractor::Unknown,
            hour_cache: request.hour_cache,
            counted,
            closed: false,
            images: 0,
            response_id: header(headers, "x-amzn-requestid").map(str::to_owned),
            provider_error: false,
            text_bytes: 0,
        }
    }

    /// Selects the reader by the first event.
    fn recognise(&mut self, answer: &JsonObject<'_>) {
        if !matches!(self.vendor, VendorExtractor::Unknown) {
            return;
        }
        let has = |key: &str| answer.get(key).is_some();
        let usage = answer.object("usage");
        let reports = |key: &str| usage.as_ref().is_some_and(|usage| usage.get(key).is_some());
        let kind = answer.text("type");
        let kind = kind.as_deref().unwrap_or_default();
        let nova = ["messageStart", "contentBlockStart", "contentBlockDelta", "metadata"];
        if kind == "message" || kind.starts_with("message_") || kind.starts_with("content_block_") {
            self.vendor =
                VendorExtractor::Anthropic(Box::new(AnthropicExtractor::new(self.hour_cache)));
        } else if has("choices") || reports("prompt_tokens") {
            self.vendor = VendorExtractor::OpenAi(Box::new(OpenAiExtractor::new(
                Api::Chat,
                ReasoningPlacement::Within,
            )));
        } else if reports("inputTokens") || nova.iter().any(|key| has(key)) {
            self.vendor = VendorExtractor::Converse(Box::default());
        } else if reports("input_tokens") {
            self.vendor =
                VendorExtractor::Anthropic(Box::new(AnthropicExtractor::new(self.hour_cache)));
        } else if FLAT_KEYS.iter().any(|key| has(key)) {
            self.vendor = VendorExtractor::Flat(FlatExtractor::default());
        }
    }

    /// Reads an event in the vendor's format.
    fn vendor_event(&mut self, data: &[u8], event: &JsonObject<'_>) {
        self.recognise(event);
        match &mut self.vendor {
            VendorExtractor::Unknown => {
                let text = KEYS.text_bytes(data);
                self.text_bytes = self.text_bytes.saturating_add(text);
            }
            VendorExtractor::Anthropic(reader) => {
                let name = event.text("type").unwrap_or_default();
                reader.event(name.as_bytes(), data);
            }
            VendorExtractor::OpenAi(reader) => {
                reader.event(b"", data);
            }
            VendorExtractor::Converse(reader) => {
                reader.event(b"", data);
                if let Some(metadata) = event.object("metadata") {
                    reader.absorb(&metadata);
                }
            }
            VendorExtractor::Flat(reader) => {
                reader.text_bytes = reader.text_bytes.saturating_add(KEYS.text_bytes(data));
                reader.absorb(event);
            }
        }
        if let Some(metrics) = event.object("amazon-bedrock-invocationMetrics") {
            self.counted.take_metrics(&metrics);
            self.closed = true;
        }
    }
}

impl FlatExtractor {
    fn absorb(&mut self, answer: &JsonObject<'_>) {
        self.input.update(answer.get_any(&["prompt_token_count", "inputTextTokenCount"]));
        self.output
            .update(answer.get_any(&["generation_token_count", "totalOutputTextTokenCount"]));
        for result in answer.objects("results") {
            self.output.add(result.get("tokenCount"));
        }
        if answer.get("embedding").is_some() {
            self.output = ReportedCount::Count(0);
        }
    }

    fn found(self, closed: bool) -> ExtractedUsage {
        let input = self.input.count().map(|input| PerUnit { input, ..PerUnit::default() });
        let output = self.output.count().map(|output| PerUnit { output, ..PerUnit::default() });
        ExtractedUsage {
            is_final: closed && input.is_some() && output.is_some(),
            input,
            output,
            text_bytes: self.text_bytes,
            ..ExtractedUsage::default()
        }
    }
}

impl UsageExtractor for InvokeExtractor {
    /// Reads a frame, which holds the vendor's event in base64.
    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        self.provider_error |= name == b"error";
        let Some(frame) = JsonObject::of(data) else { return StreamEventKind::Content };
        let Some(packed) = frame.text("bytes") else { return StreamEventKind::Content };
        let Ok(inner) = STANDARD.decode(packed) else { return StreamEventKind::Content };
        if let Some(event) = JsonObject::of(&inner) {
            self.vendor_event(&inner, &event);
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let Some(answer) = JsonObject::of(body) else {
            self.text_bytes = KEYS.text_bytes(body);
            return self.text_bytes > 0;
        };
        self.closed = true;
        self.recognise(&answer);
        match &mut self.vendor {
            VendorExtractor::Unknown => self.text_bytes = KEYS.text_bytes(body),
            VendorExtractor::Anthropic(reader) => drop(reader.body(body)),
            VendorExtractor::OpenAi(reader) => drop(reader.body(body)),
            VendorExtractor::Converse(reader) => drop(reader.body(body)),
            VendorExtractor::Flat(reader) => {
                reader.text_bytes = KEYS.text_bytes(body);
                reader.absorb(&answer);
            }
        }
        let images = answer.get("images");
        let images = images.and_then(|list| {
            serde_json::from_str::<Vec<&serde_json::value::RawValue>>(list.get()).ok()
        });
        self.images = u64::try_from(images.unwrap_or_default().len()).unwrap_or(0);
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let mut found = match self.vendor {
            VendorExtractor::Unknown => {
                ExtractedUsage { text_bytes: self.text_bytes, ..ExtractedUsage::default() }
            }
            VendorExtractor::Anthropic(reader) => reader.found(),
            VendorExtractor::OpenAi(reader) => reader.found(),
            VendorExtractor::Converse(reader) => reader.found(),
            VendorExtractor::Flat(reader) => reader.found(self.closed),
        };
        found.facts.provider_error |= self.provider_error;
        found.facts.response_id = found.facts.response_id.or(self.response_id);
        if !found.is_final && self.counted.readable() {
            found.input = self.counted.input().or(found.input);
            found.output = self.counted.output().or(found.output);
            found.is_final = self.closed && found.input.is_some() && found.output.is_some();
        }
        if self.images > 0 {
            found.others.image = self.images;
            // Images are billed by their number, and no other figure is reported.
            found.is_final |= found.input.is_none() && self.closed;
            found.input = Some(found.input.unwrap_or_default());
            found.output = Some(found.output.unwrap_or_default());
        }
        found
    }
}

const FLAT_KEYS: [&str; 6] = [
    "prompt_token_count",
    "generation_token_count",
    "generation",
    "inputTextTokenCount",
    "totalOutputTextTokenCount",
    "outputText",
];

static KEYS: LazyLock<KeySearcher> = LazyLock::new(|| {
    KeySearcher::new(&["text", "generation", "outputText", "content", "completion"], &[])
});
