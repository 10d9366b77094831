//! The facts that are read from a request body, and the changes to be made to it.

use std::ops::Range;

use bytes::Bytes;

use super::audio::AudioLength;
use super::edit::BodyEdit;
use super::scan::{NamedFile, ScanFindings};
use crate::number::micros;

/// The field with the length of a video, and the length that is assumed without it.
pub(super) struct VideoLength {
    path: &'static [&'static str],
    usual_micros: u64,
}

/// OpenAI's.
pub(super) const OPENAI_VIDEO: VideoLength =
    VideoLength { path: &["seconds"], usual_micros: 4_000_000 };
/// Google's.
pub(super) const GOOGLE_VIDEO: VideoLength =
    VideoLength { path: &["parameters", "durationSeconds"], usual_micros: 8_000_000 };

/// The few facts of a request body that decide about money, and the changes to be made.
#[derive(Clone, Debug, Default)]
pub struct InspectedBody {
    /// The requested model.
    pub model: Option<String>,
    /// Whether an event stream is requested.
    pub stream: bool,
    /// Whether the body itself asks for usage in the stream.
    pub asks_usage: bool,
    /// The length of the body. A tokenizer that works on bytes makes at most this number of tokens.
    pub input_bytes: u64,
    /// Whether the answer is asked for later.
    pub background: bool,
    /// Whether the provider keeps the answer under an id.
    pub keeps_answer: bool,
    /// The earlier response that the body continues, where its owner must be known.
    pub previous_response_id: Option<String>,
    /// The conversation that the body continues, where its owner must be known. Its tokens are not known.
    pub conversation: Option<String>,
    /// The files that the body names, where their owner must be known. Their tokens are not known.
    pub files: Vec<NamedFile>,
    /// The most tokens of that response as input.
    pub(super) previous_tokens: u64,
    /// Whether the body names other models that may serve the call instead.
    pub names_other_models: bool,
    /// The largest of the maximum-token fields that the endpoint has; it bounds each answer.
    pub(crate) max_output_tokens: Option<u64>,
    /// The most answers that are made (`n`, `best_of`, a list of prompts); at least 1.
    pub(crate) choices: u64,
    /// Characters (Unicode scalar values) of the text to be read aloud.
    pub(crate) characters: u64,
    /// Microseconds of the sound in the body, by its header or its size; 0 if there is none.
    pub(crate) audio_micros: u64,
    /// Whether `audio_micros` is the true length.
    pub(super) audio_is_exact: bool,
    /// Microseconds of each video to be made; 0 if there is none.
    pub(super) video_micros: u64,
    /// The operation that the body names, by its id, where its owner must be known.
    pub operation: Option<String>,
    /// The requested tiers that may cost more than the standard, each with its field.
    pub(crate) tiers: Vec<(&'static str, String)>,
    /// Whether one-hour cache entries are requested anywhere in the body.
    pub(crate) hour_cache: bool,
    /// The most calls of the provider's tools, all together.
    pub(super) max_tool_calls: Option<u64>,
    pub(super) findings: ScanFindings,
    /// The first top-level field, or handle to something stored, whose length is not known.
    pub(super) open_ended: Option<Vec<String>>,
    /// The position of the model, and whether the body is a form, in which it has no quotes.
    pub(super) model_range: Option<Range<usize>>,
    pub(super) is_form: bool,
    pub(super) model_edit: Option<BodyEdit>,
    pub(super) usage_edit: Option<BodyEdit>,
}

impl InspectedBody {
    /// The facts of a call without a body, or of one whose body is not known.
    ///
    /// The answer's `content-type` must then name its format, and an estimate has no input tokens.
    pub fn empty() -> Self {
        Self { choices: 1, ..Self::default() }
    }

    /// The facts of a response on a socket, whose input is in earlier messages.
    pub(crate) fn of_socket(model: Option<String>) -> Self {
        Self { model, stream: true, audio_is_exact: true, ..Self::empty() }
    }

    /// Notes a requested tier, unless it costs no more than the standard one.
    pub(super) fn add_tier(&mut self, field: &'static str, tier: &str) {
        const NO_DEARER: [&str; 8] = [
            "auto",
            "default",
            "standard",
            "standard_only",
            "on_demand",
            "flex",
            "batch",
            "global",
        ];
        let tier = tier.to_ascii_lowercase();
        // Google's words.
        let tier = tier.strip_prefix("service_tier_").unwrap_or(&tier);
        if !NO_DEARER.contains(&tier) && tier != "unspecified" {
            self.tiers.push((field, tier.to_owned()));
        }
    }

    /// Notes the length of each video to be made, in seconds, and its size. Without the length, the cost has no bound. A
    /// price row may have a tier for the size.
    pub(super) fn set_video(
        &mut self,
        field: &VideoLength,
        seconds: Option<&str>,
        size: Option<&str>,
    ) {
        // 0 may stand for the length that the provider takes by itself.
        match seconds.and_then(micros).filter(|length| *length > 0) {
            Some(length) => self.video_micros = length,
            None => {
                self.video_micros = field.usual_micros;
                self.leave_open(field.path);
            }
        }
        if let Some(size) = size {
            self.add_tier("size", size);
        }
    }

    /// Notes that a field leaves the cost without a bound, unless another one does.
    pub(crate) fn leave_open(&mut self, field: &[&str]) {
        let path = || field.iter().map(|step| (*step).to_owned()).collect();
        self.open_ended.get_or_insert_with(path);
    }

    /// The length of each video to be made, in microseconds.
    pub const fn video_micros(&self) -> u64 {
        self.video_micros
    }

    /// Sets the tokens of the earlier response that the body continues. They are input of the call. If they are not known,
    /// its cost has no bound.
    pub fn continue_from(&mut self, tokens: Option<u64>) {
        match tokens {
            Some(tokens) => self.previous_tokens = tokens,
            None => self.open_ended = Some(vec!["previous_response_id".to_owned()]),
        }
    }

    /// The sound in the body.
    pub(crate) fn sound(&self) -> AudioLength {
        AudioLength { micros: self.audio_micros, is_exact: self.audio_is_exact }
    }

    /// The most answers that are made; at least 1.
    pub fn answers(&self) -> u64 {
        self.choices.max(1)
    }

    /// The requested tiers that may cost more than the standard, each with its field.
    pub fn tiers(&self) -> &[(&'static str, String)] {
        &self.tiers
    }

    /// Sets the model: its name alone, if the caller's name began with the provider's.
    pub fn set_model(&mut self, model: &str) {
        let edit = |range| match self.is_form {
            true => BodyEdit::plain(range, model),
            false => BodyEdit::string(range, model),
        };
        self.model_edit = self.model_range.clone().map(edit);
        self.model = Some(model.to_owned());
    }

    /// Whether usage is requested on the client's behalf: by `"include_usage": true` in the
    /// `stream_options` of a streamed chat body without it, at a provider that has the option.
    pub fn inserts_usage(&self) -> bool {
        self.usage_edit.is_some()
    }

    /// The body to be sent: with usage requested, the model set, and every other byte unchanged.
    /// `None` if nothing changes.
    ///
    /// `body` must be the inspected one.
    pub fn apply_edits(&self, body: &Bytes) -> Option<Bytes> {
        let edits = [&self.model_edit, &self.usage_edit];
        BodyEdit::apply_all(edits.into_iter().flatten().collect(), body)
    }
}
