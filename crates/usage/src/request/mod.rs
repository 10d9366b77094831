//! The facts that must be known of a request body before it is sent. The body is not parsed and
//! written again: it reaches the provider byte for byte, or with a token inserted or replaced.

mod audio;
mod body;
mod bound;
mod edit;
mod form;
mod inspect;
mod native;
mod scan;
mod tools;
mod upload;

use crate::issue::Issue;
use serde::Deserialize;

pub(crate) use self::audio::AudioLength;
pub use self::body::InspectedBody;
pub use self::bound::{OutputBound, TOKENS_PER_IMAGE_MADE, UsageBound};
pub use self::inspect::MISSPELT;
pub(crate) use self::scan::folded;
pub use self::scan::{NamedFile, misspelt_key};
pub use self::tools::ToolCharge;
pub(crate) use self::tools::image_model;
pub use self::upload::{UploadForm, UploadReader};
use crate::endpoint::EndpointFormat;

/// The longest name of a model, which is kept with the record of every call. No provider has a
/// longer one.
const MAX_MODEL_BYTES: usize = 2048;

/// Refuses a parameter of the query that would let a call pass unmeasured. An answer that may settle a job must be whole
/// with any key.
fn check_query(endpoint: &EndpointFormat, managed: bool) -> Result<(), BodyRefusal> {
    if let Some(name) = endpoint.duplicate_model_parameter() {
        let issue = "must not occur more than once in the query";
        return Err(vec![Issue::at([name], issue)].into());
    }
    let applies = managed || endpoint.answers_object();
    match endpoint.forbidden_parameter().filter(|_| applies) {
        None => Ok(()),
        Some(name) => {
            let issue = "is a key, sends the answer elsewhere, or leaves out what it is measured by, \
                         which is not possible with the managed key; use your own provider key";
            Err(vec![Issue::at([&name], issue)].into())
        }
    }
}

impl InspectedBody {
    /// The model that a body names, for a call that it routes. Nothing else is read. `None` unless
    /// the body is a JSON object or a form that names one.
    pub fn model_of(body: &[u8], content_type: Option<&str>) -> Option<String> {
        if let Some((essence, parameters)) = content_type.and_then(|kind| kind.split_once(';'))
            && essence.trim().eq_ignore_ascii_case("multipart/form-data")
        {
            return form::model(body, &form::boundary(Some(parameters))?);
        }
        #[derive(Deserialize)]
        struct ModelField {
            model: String,
        }
        // Serde would also accept a list of one string for the struct.
        let object = Some(body).filter(|body| body.trim_ascii_start().starts_with(b"{"))?;
        let named: ModelField = serde_json::from_slice(object).ok()?;
        Some(named.model).filter(|model| !model.trim().is_empty())
    }

    /// Reads a body of the type in its header: JSON, a form, or plain sound, if the endpoint takes
    /// it. `managed` says that the operator's key will be used. Handles to things that the provider
    /// stores are then refused, unless the provider allows them.
    ///
    /// # Errors
    /// [`BodyRefusal`] says why the body is not forwarded.
    pub fn read(
        body: &[u8],
        content_type: Option<&str>,
        endpoint: &EndpointFormat,
        managed: bool,
    ) -> Result<Self, BodyRefusal> {
        check_query(endpoint, managed)?;
        let read = match BodyType::of(content_type, body.is_empty(), endpoint)? {
            BodyType::Json => Self::inspect(body, endpoint, managed)?,
            BodyType::Form { boundary } => form::inspect(body, &boundary, endpoint, managed)?,
            BodyType::Sound => {
                let sound = audio::length(body);
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

    /// The facts of a call whose body is not sent, such as a GET.
    ///
    /// # Errors
    /// The issue of a parameter of the query, as [`InspectedBody::read`] has it.
    pub fn without_body(endpoint: &EndpointFormat, managed: bool) -> Result<Self, BodyRefusal> {
        check_query(endpoint, managed)?;
        Ok(Self::empty())
    }

    /// Reads a JSON body.
    ///
    /// Pass `false` for `managed` if the caller owns the provider's key. `true` is for a key that callers
    /// share: handles to objects that the provider stores are then refused, unless the provider allows them.
    ///
    /// # Errors
    /// All issues of the body.
    pub fn inspect(
        body: &[u8],
        endpoint: &EndpointFormat,
        managed: bool,
    ) -> Result<Self, Vec<Issue>> {
        inspect::inspect(body, endpoint, managed)
    }
}

/// The reason that a body is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyRefusal {
    /// The endpoint takes no body of its content type, or servers read that type in different ways.
    /// The text says what to send instead.
    ContentType(&'static str),
    /// All issues of the body.
    Invalid(Vec<Issue>),
}

impl From<Vec<Issue>> for BodyRefusal {
    fn from(issues: Vec<Issue>) -> Self {
        Self::Invalid(issues)
    }
}

/// The type of a body, by its header.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyType {
    Json,
    Form { boundary: String },
    Sound,
}

impl BodyType {
    /// The type that `content_type` names. The provider must read the same model and maxima as this
    /// service, so there must be one way to read the body: JSON is UTF-8, and other parameters are
    /// refused.
    fn of(
        content_type: Option<&str>,
        is_empty: bool,
        endpoint: &EndpointFormat,
    ) -> Result<Self, BodyRefusal> {
        let refused = || {
            BodyRefusal::ContentType(match (endpoint.takes_forms(), endpoint.takes_sound()) {
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
