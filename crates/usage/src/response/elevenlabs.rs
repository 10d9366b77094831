//! ElevenLabs' answers. Speech states the billed characters in a header, with the model's factor
//! included. A transcription states its length, or at least the end of its last word.

use crate::headers::{Headers, header};
use tollgate_pricing::PerUnit;

use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use crate::number::{count, micros};
use crate::object::JsonObject;
use crate::request::{AudioLength, InspectedBody};

/// Gathers the usage of an answer.
pub(super) struct ElevenLabsExtractor {
    hears: bool,
    /// Characters: as billed in the header, and as sent.
    billed: Option<u64>,
    characters: u64,
    /// Microseconds of sound on all channels: as stated in the answer, and by its last word.
    stated: Option<u64>,
    told: Option<u64>,
    sent: AudioLength,
    facts: ResponseFacts,
}

impl ElevenLabsExtractor {
    pub(super) fn new(path: Option<&str>, headers: &dyn Headers, request: &InspectedBody) -> Self {
        let facts = ResponseFacts {
            response_id: header(headers, "request-id").map(str::to_owned),
            ..ResponseFacts::default()
        };
        Self {
            hears: path == Some("/speech-to-text"),
            billed: header(headers, "character-cost").and_then(count),
            characters: request.characters,
            stated: None,
            told: None,
            sent: request.sound(),
            facts,
        }
    }
}

/// The end of the last word.
fn last_end(answer: &JsonObject<'_>) -> Option<u64> {
    let words = answer.objects("words");
    words.iter().filter_map(|word| micros(word.get("end")?.get())).max()
}

impl UsageExtractor for ElevenLabsExtractor {
    /// Sound is not kept for reading, nor the text beside it.
    fn tells_text(&self) -> bool {
        self.hears
    }

    fn event(&mut self, _: &[u8], _: &[u8]) -> StreamEventKind {
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let Some(answer) = JsonObject::of(body) else { return true };
        let channels = answer.objects("transcripts");
        let count = u64::try_from(channels.len()).unwrap_or(u64::MAX).max(1);
        let of_all = |length: u64| length.checked_mul(count);
        let keys = ["audio_duration_secs", "audio_duration_seconds", "audio_duration"];
        let length = answer.get_any(&keys).and_then(|length| micros(length.get()));
        self.stated = length.and_then(of_all);
        // Each channel counts with the length of the longest.
        let ends = channels.iter().chain(std::iter::once(&answer)).filter_map(last_end);
        self.told = ends.max().and_then(of_all);
        true
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let others = if self.hears {
            let length = self.stated.unwrap_or_else(|| self.sent.with_reported(self.told));
            PerUnit { input_second: length, ..PerUnit::default() }
        } else {
            let characters = self.billed.unwrap_or(self.characters);
            PerUnit { input_characters: characters, ..PerUnit::default() }
        };
        ExtractedUsage {
            is_final: if self.hears { self.stated.is_some() } else { self.billed.is_some() },
            input: Some(PerUnit::default()),
            output: Some(PerUnit::default()),
            others,
            facts: self.facts,
            ..ExtractedUsage::default()
        }
    }
}
