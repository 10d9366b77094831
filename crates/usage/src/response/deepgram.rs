//! Deepgram's answers. A transcription reports its length and channels, speech states its
//! characters in a header, and a text analysis reports its tokens.

use crate::headers::{Headers, header};
use tollgate_pricing::PerUnit;

use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use super::json::{ReportedCount, unix_seconds};
use crate::number::{count, micros};
use crate::object::JsonObject;
use crate::request::InspectedBody;

/// The billed operation of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeepgramTask {
    Listen,
    Speak,
    Read,
}

/// Gathers the usage of an answer.
pub(super) struct DeepgramExtractor {
    task: DeepgramTask,
    /// The characters read aloud: as stated in the header, and as sent.
    stated_characters: Option<u64>,
    sent_characters: u64,
    /// Microseconds of sound on all channels: as stated in the answer, and as sent.
    heard: Option<u64>,
    sent: u64,
    input: ReportedCount,
    output: ReportedCount,
    facts: ResponseFacts,
}

impl DeepgramExtractor {
    pub(super) fn new(path: Option<&str>, headers: &dyn Headers, request: &InspectedBody) -> Self {
        let stated_characters = header(headers, "dg-char-count").and_then(count);
        let task = match path {
            Some("/speak") => DeepgramTask::Speak,
            Some("/read") => DeepgramTask::Read,
            _ if stated_characters.is_some() => DeepgramTask::Speak,
            _ => DeepgramTask::Listen,
        };
        let facts = ResponseFacts {
            model: header(headers, "dg-model-name").map(str::to_owned),
            response_id: header(headers, "dg-request-id").map(str::to_owned),
            ..ResponseFacts::default()
        };
        Self {
            task,
            stated_characters,
            sent_characters: request.characters,
            heard: None,
            sent: request.audio_micros,
            input: ReportedCount::Absent,
            output: ReportedCount::Absent,
            facts,
        }
    }

    fn absorb(&mut self, metadata: &JsonObject<'_>) {
        let facts = &mut self.facts;
        metadata.update_text("request_id", &mut facts.response_id);
        let created = metadata.text("created").and_then(|text| unix_seconds(&text));
        facts.created_unix_s = created.or(facts.created_unix_s);
        facts.model = only_model(metadata).or(facts.model.take());
        let length = metadata.get("duration").and_then(|length| micros(length.get()));
        let channels = metadata.get("channels").map_or(Some(1), |channels| count(channels.get()));
        self.heard =
            length.zip(channels).and_then(|(length, channels)| length.checked_mul(channels.max(1)));
        // Analyses of the text cost tokens, for sound and for text.
        for key in ["summary_info", "sentiment_info", "topics_info", "intents_info"] {
            if let Some(info) = metadata.object(key) {
                self.input.add(info.get("input_tokens"));
                self.output.add(info.get("output_tokens"));
            }
        }
    }
}

/// The family of the model, if only one served the call.
fn only_model(metadata: &JsonObject<'_>) -> Option<String> {
    let models: Vec<String> = serde_json::from_str(metadata.get("models")?.get()).ok()?;
    let [model] = models.as_slice() else { return None };
    metadata.object("model_info")?.object(model)?.text("arch")
}

impl UsageExtractor for DeepgramExtractor {
    /// Sound is not kept for reading.
    fn tells_text(&self) -> bool {
        self.task != DeepgramTask::Speak
    }

    fn event(&mut self, _: &[u8], data: &[u8]) -> StreamEventKind {
        self.body(data);
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let answer = JsonObject::of(body);
        if let Some(metadata) = answer.as_ref().and_then(|answer| answer.object("metadata")) {
            self.absorb(&metadata);
        }
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let readable = ![self.input, self.output].contains(&ReportedCount::Unreadable);
        let (stated, others) = match self.task {
            DeepgramTask::Speak => (
                self.stated_characters.is_some(),
                PerUnit {
                    input_characters: self.stated_characters.unwrap_or(self.sent_characters),
                    ..PerUnit::default()
                },
            ),
            DeepgramTask::Listen => (
                self.heard.is_some(),
                PerUnit { input_second: self.heard.unwrap_or(self.sent), ..PerUnit::default() },
            ),
            DeepgramTask::Read => (self.input.count().is_some(), PerUnit::default()),
        };
        let is_final = stated && readable;
        let input = PerUnit { input: self.input.or_zero(), ..PerUnit::default() };
        ExtractedUsage {
            is_final,
            // The input text is estimated by its bytes if no tokens are reported.
            input: (is_final || self.task != DeepgramTask::Read).then_some(input),
            output: Some(PerUnit { output: self.output.or_zero(), ..PerUnit::default() }),
            others,
            facts: self.facts,
            ..ExtractedUsage::default()
        }
    }
}
