//! What must be known of a request body before it is sent. The body itself is never parsed and
//! written again: it reaches the provider byte for byte, or with a token inserted or replaced.

mod bound;
mod edit;
mod form;
mod inspect;
mod native;
mod scan;
mod sound;
mod tools;

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use tollgate_domain::Issue;

pub use self::bound::{OutputBound, TOKENS_PER_IMAGE_MADE, UsageBound};
use self::edit::Edit;
use self::scan::Findings;
pub(crate) use self::scan::Key;
pub(crate) use self::sound::Sound;
pub use self::tools::ToolCharge;
pub(crate) use self::tools::image_model;
use crate::table::Endpoint;

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
    audio_is_exact: bool,
    /// The tiers that are asked for and may cost more than the standard, each with its field.
    pub(crate) tiers: Vec<(&'static str, String)>,
    /// Whether one-hour cache entries are asked for anywhere in the body.
    pub(crate) hour_cache: bool,
    /// How often tools of the provider's are called at most, all together.
    max_tool_calls: Option<u64>,
    findings: Findings,
    /// The first top-level field, or handle to something stored, that no length is known of.
    open_ended: Option<Vec<String>>,
    /// Where the model stands, and whether in a form: then it has no quotes.
    model_range: Option<Range<usize>>,
    is_form: bool,
    model_edit: Option<Edit>,
    usage_edit: Option<Edit>,
}

/// The longest name of a model, which is kept with the record of every call. No provider has a longer
/// one.
const MAX_MODEL_BYTES: usize = 2048;

impl CallBody {
    /// The body of a call that has none.
    pub fn empty() -> Self {
        Self { choices: 1, ..Self::default() }
    }

    /// The model that a body asks for, for when it decides where the call goes. Nothing else is
    /// looked at; `None` unless the body is a JSON object, or a form, that names one.
    pub fn model_of(body: &[u8], content_type: Option<&str>) -> Option<String> {
        if let Some((essence, parameters)) = content_type.and_then(|kind| kind.split_once(';'))
            && essence.trim().eq_ignore_ascii_case("multipart/form-data")
        {
            return form::model(body, &form::boundary(Some(parameters))?);
        }
        #[derive(Deserialize)]
        struct Named {
            model: String,
        }
        // A list of one string would do for the struct as well.
        let object = Some(body).filter(|body| body.trim_ascii_start().starts_with(b"{"))?;
        let named: Named = serde_json::from_slice(object).ok()?;
        Some(named.model).filter(|model| !model.trim().is_empty())
    }

    /// Reads a body of the type that its header says: JSON, a form, or, where the endpoint takes it,
    /// sound as it is. `managed` says that the operator's key will be used, with which handles to
    /// what the provider stores are refused unless the provider allows them.
    ///
    /// # Errors
    /// [`BodyRefused`].
    pub fn read(
        body: &[u8],
        content_type: Option<&str>,
        endpoint: &Endpoint,
        managed: bool,
    ) -> Result<Self, BodyRefused> {
        if let Some(name) = endpoint.forbidden_parameter().filter(|_| managed) {
            let issue = "is a key, sends the answer elsewhere, or leaves out what it is measured by, \
                         which is not possible with the managed key; use your own provider key";
            return Err(vec![Issue::at([&name], issue)].into());
        }
        if let Some(name) = endpoint.model_stands_twice() {
            let issue = "must not occur more than once in the query";
            return Err(vec![Issue::at([name], issue)].into());
        }
        let read = match BodyType::of(content_type, body.is_empty(), endpoint)? {
            BodyType::Json => Self::inspect(body, endpoint, managed)?,
            BodyType::Form { boundary } => form::inspect(body, &boundary, endpoint, managed)?,
            BodyType::Sound => {
                let sound = sound::length(body);
                Self {
                    model: endpoint.named_model(),
                    audio_micros: sound.micros,
                    audio_is_exact: sound.is_exact,
                    ..Self::empty()
                }
            }
        };
        if read.model.as_ref().is_some_and(|model| model.len() > MAX_MODEL_BYTES) {
            let message = format!("may have at most {MAX_MODEL_BYTES} bytes");
            return Err(vec![Issue::at(["model"], message)].into());
        }
        Ok(read)
    }

    /// Reads a JSON body. `managed` says that the operator's key will be used, with which handles
    /// to what the provider stores are refused unless the provider allows them.
    ///
    /// # Errors
    /// Everything that is wrong with the body.
    pub fn inspect(body: &[u8], endpoint: &Endpoint, managed: bool) -> Result<Self, Vec<Issue>> {
        inspect::inspect(body, endpoint, managed)
    }

    /// Notes a tier that is asked for, unless it costs no more than the standard one.
    fn ask_tier(&mut self, field: &'static str, tier: &str) {
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

/// Why a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyRefused {
    /// The endpoint takes no body of its content type, or servers read that type in different ways;
    /// what to send instead.
    ContentType(&'static str),
    /// Everything that is wrong with it.
    Invalid(Vec<Issue>),
}

impl From<Vec<Issue>> for BodyRefused {
    fn from(issues: Vec<Issue>) -> Self {
        Self::Invalid(issues)
    }
}

/// What a body is, by its header.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyType {
    Json,
    Form { boundary: String },
    Sound,
}

impl BodyType {
    /// The type that `content_type` names. A provider must read the same model and the same maxima as
    /// are read here, so there must be one way to read it: JSON is UTF-8, and no other parameter may
    /// stand there.
    fn of(
        content_type: Option<&str>,
        is_empty: bool,
        endpoint: &Endpoint,
    ) -> Result<Self, BodyRefused> {
        let refused = || {
            BodyRefused::ContentType(match (endpoint.takes_forms(), endpoint.takes_sound()) {
                (true, _) => {
                    "Send the body as Content-Type: application/json, or as multipart/form-data with \
                     a plain boundary."
                }
                (_, true) => {
                    "Send the body as Content-Type: application/json, application/octet-stream, or \
                     the type of the sound."
                }
                _ => "Send the body as Content-Type: application/json, encoded as UTF-8.",
            })
        };
        let Some(content_type) = content_type else {
            return if is_empty { Ok(Self::Json) } else { Err(refused()) };
        };
        let (essence, parameters) = match content_type.split_once(';') {
            Some((essence, parameters)) => (essence.trim(), Some(parameters.trim())),
            None => (content_type.trim(), None),
        };
        let is_utf8 = |parameter: &str| {
            let value = parameter.to_ascii_lowercase();
            matches!(value.as_str(), "charset=utf-8" | "charset=\"utf-8\"" | "")
        };
        let essence = essence.to_ascii_lowercase();
        match essence.as_str() {
            "application/json" if parameters.is_none_or(is_utf8) => Ok(Self::Json),
            "multipart/form-data" if endpoint.takes_forms() => form::boundary(parameters)
                .map(|boundary| Self::Form { boundary })
                .ok_or_else(refused),
            "application/octet-stream" if endpoint.takes_sound() => Ok(Self::Sound),
            _ if endpoint.takes_sound() => match essence.split_once('/') {
                Some(("audio" | "video", kind)) if !kind.is_empty() => Ok(Self::Sound),
                _ => Err(refused()),
            },
            _ => Err(refused()),
        }
    }
}
