//! Deepgram's answers. A transcription reports its length and channels, speech states its
//! characters in a header, and a text analysis reports its tokens.

use crate::headers::{Headers, header};
use tollgate_pricing::PerUnit;

use super::extractor::{EventKind, Extract, Facts, Found};
use super::json::{Figure, unix_seconds};
use crate::number::{count, micros};
use crate::object::Object;
use crate::request::CallBody;

/// The billed operation of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Listen,
    Speak,
    Read,
}

/// Gathers the usage of an answer.
pub(super) struct Deepgram {
    task: Task,
    /// The characters read aloud: as stated in the header, and as sent.
    stated_characters: Option<u64>,
    sent_characters: u64,
    /// Microseconds of sound on all channels: as stated in the answer, and as sent.
    heard: Option<u64>,
    sent: u64,
    input: Figure,
    output: Figure,
    facts: Facts,
}

impl Deepgram {
    pub(super) fn new(path: Option<&str>, headers: &dyn Headers, request: &CallBody) -> Self {
        let stated_characters = header(headers, "dg-char-count").and_then(count);
        let task = match path {
            Some("/speak") => Task::Speak,
            Some("/read") => Task::Read,
            _ if stated_characters.is_some() => Task::Speak,
            _ => Task::Listen,
        };
        let facts = Facts {
            model: header(headers, "dg-model-name").map(str::to_owned),
            response_id: header(headers, "dg-request-id").map(str::to_owned),
            ..Facts::default()
        };
        Self {
            task,
            stated_characters,
            sent_characters: request.characters,
            heard: None,
            sent: request.audio_micros,
            input: Figure::Absent,
            output: Figure::Absent,
            facts,
        }
    }

    fn absorb(&mut self, metadata: &Object<'_>) {
        let facts = &mut self.facts;
        metadata.tell("request_id", &mut facts.response_id);
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
fn only_model(metadata: &Object<'_>) -> Option<String> {
    let models: Vec<String> = serde_json::from_str(metadata.get("models")?.get()).ok()?;
    let [model] = models.as_slice() else { return None };
    metadata.object("model_info")?.object(model)?.text("arch")
}

impl Extract for Deepgram {
    /// Sound is not kept for reading.
    fn tells_text(&self) -> bool {
        self.task != Task::Speak
    }

    fn event(&mut self, _: &[u8], data: &[u8]) -> EventKind {
        self.body(data);
        EventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let answer = Object::of(body);
        if let Some(metadata) = answer.as_ref().and_then(|answer| answer.object("metadata")) {
            self.absorb(&metadata);
        }
        true
    }

    fn found(self: Box<Self>) -> Found {
        let readable = ![self.input, self.output].contains(&Figure::Unreadable);
        let (stated, others) = match self.task {
            Task::Speak => (
                self.stated_characters.is_some(),
                PerUnit {
                    input_characters: self.stated_characters.unwrap_or(self.sent_characters),
                    ..PerUnit::default()
                },
            ),
            Task::Listen => (
                self.heard.is_some(),
                PerUnit { input_second: self.heard.unwrap_or(self.sent), ..PerUnit::default() },
            ),
            Task::Read => (self.input.count().is_some(), PerUnit::default()),
        };
        let is_final = stated && readable;
        let input = PerUnit { input: self.input.or_zero(), ..PerUnit::default() };
        Found {
            is_final,
            // The input text is estimated by its bytes if no tokens are reported.
            input: (is_final || self.task != Task::Read).then_some(input),
            output: Some(PerUnit { output: self.output.or_zero(), ..PerUnit::default() }),
            others,
            facts: self.facts,
            ..Found::default()
        }
    }
}
