//! `invoke`: the body and the events of a stream have the format of the model's vendor.

use std::sync::LazyLock;

use crate::headers::{Headers, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tollgate_pricing::PerUnit;

use super::converse::{Converse, Figures};
use crate::dialect::Api;
use crate::number::count;
use crate::object::Object;
use crate::request::CallBody;
use crate::response::anthropic::Anthropic;
use crate::response::extractor::{EventKind, Extract, Found};
use crate::response::json::{Figure, Keys};
use crate::response::openai::{OpenAi, Thoughts};

/// Gathers the usage of an answer of `invoke`. Each vendor's events are read in its own format.
/// Bedrock's count replaces figures that a vendor does not report.
pub(in crate::response) struct Invoke {
    /// The vendor of the answer, known from its first event.
    vendor: Vendor,
    hour_cache: bool,
    /// Bedrock's own count.
    counted: Figures,
    closed: bool,
    images: u64,
    response_id: Option<String>,
    provider_error: bool,
    text_bytes: u64,
}

enum Vendor {
    Unknown,
    Anthropic(Box<Anthropic>),
    OpenAi(Box<OpenAi>),
    /// Nova's events have the format of `converse`.
    Converse(Box<Converse>),
    /// Llama and Titan report flat fields, with names of their own.
    Flat(Flat),
}

#[derive(Default)]
struct Flat {
    input: Figure,
    output: Figure,
    text_bytes: u64,
}

impl Invoke {
    pub(in crate::response) fn new(headers: &dyn Headers, request: &CallBody) -> Self {
        let figure = |name| {
            let count = header(headers, name).map(count);
            count.map_or(Figure::Absent, |count| count.map_or(Figure::Unreadable, Figure::Count))
        };
        let input = figure("x-amzn-bedrock-input-token-count");
        let mut output = figure("x-amzn-bedrock-output-token-count");
        if output == Figure::Absent && input.count().is_some() {
            // Embeddings have no output.
            output = Figure::Count(0);
        }
        let counted = Figures {
            input,
            output,
            cache_read: figure("x-amzn-bedrock-cache-read-input-token-count"),
            cache_write: figure("x-amzn-bedrock-cache-write-input-token-count"),
            ..Figures::default()
        };
        Self {
            vendor: Vendor::Unknown,
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
    fn recognise(&mut self, answer: &Object<'_>) {
        if !matches!(self.vendor, Vendor::Unknown) {
            return;
        }
        let has = |key: &str| answer.get(key).is_some();
        let usage = answer.object("usage");
        let reports = |key: &str| usage.as_ref().is_some_and(|usage| usage.get(key).is_some());
        let kind = answer.text("type");
        let kind = kind.as_deref().unwrap_or_default();
        let nova = ["messageStart", "contentBlockStart", "contentBlockDelta", "metadata"];
        if kind == "message" || kind.starts_with("message_") || kind.starts_with("content_block_") {
            self.vendor = Vendor::Anthropic(Box::new(Anthropic::new(self.hour_cache)));
        } else if has("choices") || reports("prompt_tokens") {
            self.vendor = Vendor::OpenAi(Box::new(OpenAi::new(Api::Chat, Thoughts::Within)));
        } else if reports("inputTokens") || nova.iter().any(|key| has(key)) {
            self.vendor = Vendor::Converse(Box::default());
        } else if reports("input_tokens") {
            self.vendor = Vendor::Anthropic(Box::new(Anthropic::new(self.hour_cache)));
        } else if FLAT_KEYS.iter().any(|key| has(key)) {
            self.vendor = Vendor::Flat(Flat::default());
        }
    }

    /// Reads an event in the vendor's format.
    fn vendor_event(&mut self, data: &[u8], event: &Object<'_>) {
        self.recognise(event);
        match &mut self.vendor {
            Vendor::Unknown => {
                let text = KEYS.text_bytes(data);
                self.text_bytes = self.text_bytes.saturating_add(text);
            }
            Vendor::Anthropic(reader) => {
                let name = event.text("type").unwrap_or_default();
                reader.event(name.as_bytes(), data);
            }
            Vendor::OpenAi(reader) => {
                reader.event(b"", data);
            }
            Vendor::Converse(reader) => {
                reader.event(b"", data);
                if let Some(metadata) = event.object("metadata") {
                    reader.absorb(&metadata);
                }
            }
            Vendor::Flat(reader) => {
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

impl Flat {
    fn absorb(&mut self, answer: &Object<'_>) {
        self.input.take(answer.any(&["prompt_token_count", "inputTextTokenCount"]));
        self.output.take(answer.any(&["generation_token_count", "totalOutputTextTokenCount"]));
        for result in answer.objects("results") {
            self.output.add(result.get("tokenCount"));
        }
        if answer.get("embedding").is_some() {
            self.output = Figure::Count(0);
        }
    }

    fn found(self, closed: bool) -> Found {
        let input = self.input.count().map(|input| PerUnit { input, ..PerUnit::default() });
        let output = self.output.count().map(|output| PerUnit { output, ..PerUnit::default() });
        Found {
            is_final: closed && input.is_some() && output.is_some(),
            input,
            output,
            text_bytes: self.text_bytes,
            ..Found::default()
        }
    }
}

impl Extract for Invoke {
    /// Reads a frame, which holds the vendor's event in base64.
    fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        self.provider_error |= name == b"error";
        let Some(frame) = Object::of(data) else { return EventKind::Content };
        let Some(packed) = frame.text("bytes") else { return EventKind::Content };
        let Ok(inner) = STANDARD.decode(packed) else { return EventKind::Content };
        if let Some(event) = Object::of(&inner) {
            self.vendor_event(&inner, &event);
        }
        EventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let Some(answer) = Object::of(body) else {
            self.text_bytes = KEYS.text_bytes(body);
            return self.text_bytes > 0;
        };
        self.closed = true;
        self.recognise(&answer);
        match &mut self.vendor {
            Vendor::Unknown => self.text_bytes = KEYS.text_bytes(body),
            Vendor::Anthropic(reader) => drop(reader.body(body)),
            Vendor::OpenAi(reader) => drop(reader.body(body)),
            Vendor::Converse(reader) => drop(reader.body(body)),
            Vendor::Flat(reader) => {
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

    fn found(self: Box<Self>) -> Found {
        let mut found = match self.vendor {
            Vendor::Unknown => Found { text_bytes: self.text_bytes, ..Found::default() },
            Vendor::Anthropic(reader) => reader.found(),
            Vendor::OpenAi(reader) => reader.found(),
            Vendor::Converse(reader) => reader.found(),
            Vendor::Flat(reader) => reader.found(self.closed),
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

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    Keys::new(&["text", "generation", "outputText", "content", "completion"], &[])
});
