//! What is known of a body once it was read, and what is to be changed in it.

use std::ops::Range;

use bytes::Bytes;

use super::edit::Edit;
use super::scan::Findings;
use super::sound::Sound;

/// The few facts of a request body that decide about money, and what is to be changed in it.
#[derive(Clone, Debug, Default)]
pub struct CallBody {
    /// The model that is asked for.
    pub model: Option<String>,
    /// Whether the answer is to be an event stream.
    pub stream: bool,
    /// Whether the body itself asks for usage in the stream.
    pub asks_usage: bool,
    /// The length of the body. A tokenizer that works on bytes makes at most as many tokens.
    pub input_bytes: u64,
    /// Whether it names models beside `model` that may serve it instead.
    pub names_other_models: bool,
    /// The largest of the maximum-token fields that the endpoint has; it bounds each answer.
    pub(crate) max_output_tokens: Option<u64>,
    /// How many answers are made at most (`n`, `best_of`, a list of prompts); at least 1.
    pub(crate) choices: u64,
    /// Characters (Unicode scalar values) of the text that is to be read aloud.
    pub(crate) characters: u64,
    /// Microseconds of the sound that is sent, by its header or its size; 0 where none is.
    pub(crate) audio_micros: u64,
    /// Whether that is the length it has.
    pub(super) audio_is_exact: bool,
    /// The tiers that are asked for and may cost more than the standard, each with its field.
    pub(crate) tiers: Vec<(&'static str, String)>,
    /// Whether one-hour cache entries are asked for anywhere in the body.
    pub(crate) hour_cache: bool,
    /// How often tools of the provider's are called at most, all together.
    pub(super) max_tool_calls: Option<u64>,
    pub(super) findings: Findings,
    /// The first top-level field, or handle to something stored, that no length is known of.
    pub(super) open_ended: Option<Vec<String>>,
    /// Where the model stands, and whether in a form: then it has no quotes.
    pub(super) model_range: Option<Range<usize>>,
    pub(super) is_form: bool,
    pub(super) model_edit: Option<Edit>,
    pub(super) usage_edit: Option<Edit>,
}

impl CallBody {
    /// The body of a call that has none.
    pub fn empty() -> Self {
        Self { choices: 1, ..Self::default() }
    }

    /// Notes a tier that is asked for, unless it costs no more than the standard one.
    pub(super) fn ask_tier(&mut self, field: &'static str, tier: &str) {
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
        if !NO_DEARER.contains(&tier) {
            self.tiers.push((field, tier.to_ascii_lowercase()));
        }
    }

    /// The sound that is sent.
    pub(crate) fn sound(&self) -> Sound {
        Sound { micros: self.audio_micros, is_exact: self.audio_is_exact }
    }

    /// How many answers are made at most; at least 1.
    pub fn answers(&self) -> u64 {
        self.choices.max(1)
    }

    /// The tiers that the call asks for by name and that may cost more than the standard, each with
    /// the field that asks.
    pub fn tiers(&self) -> &[(&'static str, String)] {
        &self.tiers
    }

    /// Asks for another model: its name alone, where the caller's began with the provider's.
    pub fn set_model(&mut self, model: &str) {
        let edit = |range| match self.is_form {
            true => Edit::plain(range, model),
            false => Edit::string(range, model),
        };
        self.model_edit = self.model_range.clone().map(edit);
        self.model = Some(model.to_owned());
    }

    /// Whether usage is asked for on the client's behalf: by `"include_usage": true` in the
    /// `stream_options` of a streamed chat body that does not ask, on a provider that has the
    /// option.
    pub fn inserts_usage(&self) -> bool {
        self.usage_edit.is_some()
    }

    /// The body as it is to be sent: usage asked for, the model set, every other byte as it was.
    /// `None` when nothing is to be changed.
    ///
    /// `body` must be the one that was inspected.
    pub fn edited(&self, body: &Bytes) -> Option<Bytes> {
        let edits = [&self.model_edit, &self.usage_edit];
        Edit::apply_all(edits.into_iter().flatten().collect(), body)
    }
}
