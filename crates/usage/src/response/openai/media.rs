//! Transcription, speech and images: OpenAI's endpoints that bill some models by tokens, and others
//! by seconds, characters or images.
//!
//! | endpoint | reported | else |
//! |---|---|---|
//! | transcription | `usage` (tokens or seconds), `duration` | last timestamp of subtitles, length of the sent sound |
//! | speech | `usage` in the last event of a stream | characters that were sent |
//! | images | `usage`, the images in the answer | number of requested images |

use tollgate_pricing::PerUnit;

use super::counts::ReasoningPlacement;
use super::text::{DELTA_KEYS, OpenAiExtractor};
use crate::dialect::Api;
use crate::number::micros;
use crate::object::JsonObject;
use crate::request::{AudioLength, InspectedBody};
use crate::response::estimate;
use crate::response::extractor::{ExtractedUsage, StreamEventKind, UsageExtractor};

/// Gathers the usage of an answer.
pub(in crate::response) struct MediaExtractor {
    usage: OpenAiExtractor,
    api: Api,
    /// Microseconds of sound: as stated in the answer, and by its last timestamp.
    heard: Option<u64>,
    told: Option<u64>,
    images: Option<u64>,
    sent: AudioLength,
    characters: u64,
    asked_images: u64,
    /// Whether the model is billed by tokens. Without a report, they are estimated.
    by_tokens: bool,
    /// Whether the whole answer is there.
    closed: bool,
}

/// The tokens of a second of sound, and of a character that is read aloud: the ratio of the prices
/// for minutes and for tokens of the same models, rounded up.
const TOKENS_PER_SECOND_HEARD: u64 = 17;
const TOKENS_PER_CHARACTER_READ: u64 = 2;
const CHARACTERS_PER_TOKEN: u64 = 4;
/// The tokens of a square image at high quality.
const TOKENS_PER_IMAGE: u64 = 4_160;
const MICROS_PER_SECOND: u64 = 1_000_000;

impl MediaExtractor {
    pub(in crate::response) fn new(api: Api, request: &InspectedBody) -> Self {
        let by_tokens = request.model.as_deref().is_some_and(|model| model.contains("gpt-"));
        Self {
            usage: OpenAiExtractor::new(api, ReasoningPlacement::Within),
            api,
            heard: None,
            told: None,
            images: None,
            sent: request.sound(),
            characters: request.characters,
            asked_images: request.choices.max(1),
            by_tokens,
            closed: false,
        }
    }

    fn is_last(name: &[u8]) -> bool {
        matches!(name, b"transcript.text.done" | b"speech.audio.done")
    }

    /// Adds the usage that follows without a report. A stated length or count is as good as a
    /// report. The last timestamp is not: silence may follow it, and a cut answer has another one.
    fn unreported(&self, found: &mut ExtractedUsage) {
        let mut tokens = (PerUnit::default(), PerUnit::default());
        let stated = match self.api {
            Api::Transcription => {
                let length = self.heard.unwrap_or_else(|| self.sent.with_reported(self.told));
                found.others.input_second = length;
                if self.by_tokens {
                    let seconds = length.div_ceil(MICROS_PER_SECOND);
                    tokens.0.input_audio = seconds.saturating_mul(TOKENS_PER_SECOND_HEARD);
                    found.others.input_second = 0;
                    tokens.1.output = estimate::tokens(found.text_bytes);
                } else {
                    // The text costs nothing beside the sound.
                    found.text_bytes = 0;
                }
                self.heard.is_some() && !self.by_tokens
            }
            Api::Speech => {
                found.others.input_characters = self.characters;
                if self.by_tokens {
                    tokens.0.input = self.characters.div_ceil(CHARACTERS_PER_TOKEN);
                    tokens.1.output_audio =
                        self.characters.saturating_mul(TOKENS_PER_CHARACTER_READ);
                }
                false
            }
            _ => {
                let images = self.images.unwrap_or(self.asked_images);
                found.others.image = images;
                if self.by_tokens {
                    tokens.1.output_image = images.saturating_mul(TOKENS_PER_IMAGE);
                }
                self.images.is_some() && !self.by_tokens
            }
        };
        found.input = Some(tokens.0);
        found.output = Some(tokens.1);
        found.is_final = stated && self.closed;
    }
}

impl UsageExtractor for MediaExtractor {
    fn end_markers(&self) -> &'static [&'static [u8]] {
        match self.api {
            Api::Transcription | Api::Speech => &[
                b"event: transcript.text.done",
                b"event: speech.audio.done",
                b"data: {\"type\":\"transcript.text.done\"",
                b"data: {\"type\":\"speech.audio.done\"",
            ],
            // Each image ends with its own event.
            _ => &[],
        }
    }

    fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        let unnamed = name.is_empty()
            && [&b"transcript.text.done"[..], b"speech.audio.done"]
                .iter()
                .any(|end| memchr::memmem::find(data, end).is_some());
        let says_so = |event: JsonObject<'_>| {
            event.text("type").is_some_and(|kind| Self::is_last(kind.as_bytes()))
        };
        Self::is_last(name) || (unnamed && JsonObject::of(data).is_some_and(says_so))
    }

    /// Sound is not kept for reading.
    fn tells_text(&self) -> bool {
        self.api != Api::Speech
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        let seen = DELTA_KEYS.look(data);
        if seen.tells {
            self.usage.event(name, data);
            self.closed = true;
            self.usage.closed = true;
            if let Some(event) = JsonObject::of(data)
                && event.text("type").is_some_and(|kind| kind.ends_with(".completed"))
            {
                self.images = Some(self.images.unwrap_or(0).saturating_add(1));
            }
        } else {
            self.usage.text_bytes = self.usage.text_bytes.saturating_add(seen.text_bytes);
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.closed = true;
        if let Some(answer) = JsonObject::of(body) {
            self.usage.body(body);
            self.heard = answer.get("duration").and_then(|length| micros(text_of(length.get())));
            if answer.get("data").is_some() {
                let images = answer.objects("data").len();
                self.images = u64::try_from(images).ok();
            }
            return true;
        }
        self.told = last_timestamp(body);
        self.usage.text_bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
        true
    }

    fn found(mut self: Box<Self>) -> ExtractedUsage {
        let usage = std::mem::replace(
            &mut self.usage,
            OpenAiExtractor::new(self.api, ReasoningPlacement::Within),
        );
        let mut found = Box::new(usage).found();
        if found.input.is_none() && found.others.input_second > 0 {
            // `usage` states only seconds.
            found.input = Some(PerUnit::default());
            found.output = Some(PerUnit::default());
            found.is_final = self.closed;
        }
        if found.input.is_none() {
            self.unreported(&mut found);
        }
        found
    }
}

/// The text of a number that may be in quotes.
fn text_of(json: &str) -> &str {
    json.trim_matches('"')
}

/// The end of the last line of subtitles (SRT, WebVTT), in microseconds. Arrows in the spoken text
/// do not count.
fn last_timestamp(body: &[u8]) -> Option<u64> {
    let mut arrows = memchr::memmem::rfind_iter(body, b"-->");
    arrows.find_map(|at| {
        // A timestamp is not longer than this.
        let rest = body.get(at..)?.get(3..)?;
        let rest = rest.get(..64).unwrap_or(rest);
        timestamp(String::from_utf8_lossy(rest).split_whitespace().next()?)
    })
}

fn timestamp(stamp: &str) -> Option<u64> {
    let stamp = stamp.replace(',', ".");
    if !stamp.contains(':') {
        return None;
    }
    let mut length: u64 = 0;
    for (place, part) in stamp.rsplit(':').enumerate() {
        let scale = 60_u64.checked_pow(u32::try_from(place).ok()?)?;
        length = length.checked_add(micros(part)?.checked_mul(scale)?)?;
    }
    Some(length)
}
