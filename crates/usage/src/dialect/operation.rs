//! Operations: the endpoints of a provider, and the format of their answers.

use http::Method;

/// The format of the answers of an operation, which determines how usage is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI's `/chat/completions`, and the older `/completions`.
    Chat,
    /// OpenAI's `/responses`.
    Responses,
    /// OpenAI's `/realtime`: responses on a WebSocket, of a conversation that the provider keeps.
    Realtime,
    /// OpenAI's `/live/sessions`: a WebSocket of one conversation, which is billed by its time.
    GptLive,
    /// Google's `BidiGenerateContent`: turns on a WebSocket, of a conversation that the provider keeps.
    Live,
    /// OpenAI's `/embeddings`: only input tokens.
    Embeddings,
    /// OpenAI's `/audio/transcriptions` and `/audio/translations`: sound is the input.
    Transcription,
    /// OpenAI's `/audio/speech`: sound is the output.
    Speech,
    /// OpenAI's `/images/…`.
    Images,
    /// Document reading as at Mistral: pages are the input.
    Ocr,
    /// Document ranking as at the siblings of OpenAI.
    Rerank,
    /// Anthropic's `/messages`.
    Messages,
    /// Google's `generateContent`, streamed or not.
    GenerateContent,
    /// Google's `embedContent` and `batchEmbedContents`.
    EmbedContent,
    /// Google's `predict`, which makes images.
    Predict,
    /// All endpoints of Cohere, which bills by `billed_units`.
    Cohere,
    /// Bedrock's `converse` and `converse-stream`.
    Converse,
    /// Bedrock's `invoke`: the body has the format of the model's vendor.
    Invoke,
    /// ElevenLabs: credits in a header.
    ElevenLabs,
    /// Deepgram: seconds in the answer, characters in a header.
    Deepgram,
    /// OpenAI's `/batches` and Anthropic's `/messages/batches`: requests that are answered within a day.
    Batch,
    /// OpenAI's `/videos`: made later, and billed by its seconds.
    Video,
    /// OpenAI's `/files`: a file that is uploaded.
    File,
    /// OpenAI's `/conversations`: messages that responses continue.
    Conversation,
    /// Any other: its answers report no usage in a known form.
    Opaque,
}

/// The position of the model in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelLocation {
    /// Under this key of the JSON body, or in this field of the form.
    Body(&'static str),
    /// Under this key, if present; else the provider uses a default.
    MaybeBody(&'static str),
    /// In the segment `{model}` of the path.
    Path,
    /// In this parameter of the query.
    Query(&'static str),
    /// Nowhere.
    Nowhere,
}

/// The part of an operation in the life of an object that the provider keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectRole {
    /// It has none.
    None,
    /// Its answer names a new object.
    Creates,
    /// It answers the object `{object}` of the path, as it is now.
    Retrieves,
    /// It concerns the object of the path, and answers something else.
    Uses,
    /// It deletes the object of the path.
    Deletes,
    /// It lists objects.
    Lists,
}

/// One endpoint of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The method; `CONNECT` for a WebSocket, as in RFC 8441.
    pub method: Method,
    /// The path below the base URL and the mount. `{…}` stands for one segment, or for the part of
    /// one before the rest of the pattern.
    pub path: &'static str,
    /// Whether it costs money. Free ones are harmless: model lists, token counting.
    pub metered: bool,
    /// The format of its answers.
    pub api: Api,
    /// The position of the model in a call.
    pub model: ModelLocation,
    /// Its part in the life of an object.
    pub object: ObjectRole,
}

pub(super) const fn metered(path: &'static str, api: Api) -> Operation {
    Operation {
        method: Method::POST,
        path,
        metered: true,
        api,
        model: ModelLocation::Body("model"),
        object: ObjectRole::None,
    }
}

/// As [`metered_by`], for an endpoint whose answer is an object that the provider keeps.
pub(super) const fn creates(path: &'static str, api: Api, model: ModelLocation) -> Operation {
    Operation { method: Method::POST, path, metered: true, api, model, object: ObjectRole::Creates }
}

/// A WebSocket whose messages are calls.
pub(super) const fn socket(
    path: &'static str,
    api: Api,
    model: ModelLocation,
    object: ObjectRole,
) -> Operation {
    Operation { method: Method::CONNECT, path, metered: true, api, model, object }
}

/// As [`creates`], for an object that costs nothing.
pub(super) const fn keeps(path: &'static str, api: Api) -> Operation {
    Operation {
        method: Method::POST,
        path,
        metered: false,
        api,
        model: ModelLocation::Nowhere,
        object: ObjectRole::Creates,
    }
}

/// An endpoint of an object that the path names as `{object}`. It is free: the call that created the object is billed.
pub(super) const fn of_object(
    method: Method,
    path: &'static str,
    api: Api,
    object: ObjectRole,
) -> Operation {
    Operation { method, path, metered: false, api, model: ModelLocation::Nowhere, object }
}

pub(super) const fn metered_by(path: &'static str, api: Api, model: ModelLocation) -> Operation {
    Operation { method: Method::POST, path, metered: true, api, model, object: ObjectRole::None }
}

pub(super) const fn free(method: Method, path: &'static str, model: ModelLocation) -> Operation {
    Operation { method, path, metered: false, api: Api::Opaque, model, object: ObjectRole::None }
}

/// Whether `path` is an instance of `pattern`.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let all = pattern.split('/').all(|expected| {
        segments.next().is_some_and(|segment| match wildcard(expected) {
            Some((_, ending)) => {
                segment
                    .strip_suffix(ending)
                    .is_some_and(|rest| !rest.is_empty() && !rest.contains(':'))
                    || (ending.is_empty() && !segment.is_empty())
            }
            None => segment == expected,
        })
    });
    all && segments.next().is_none()
}

/// The percent-decoded text at `{model}` or `{deployment}`.
pub(crate) fn path_model(pattern: &str, path: &str) -> Option<String> {
    path_text(pattern, path, &["model", "deployment"])
}

/// The percent-decoded text at `{object}`.
pub(crate) fn path_object(pattern: &str, path: &str) -> Option<String> {
    path_text(pattern, path, &["object"])
}

fn path_text(pattern: &str, path: &str, names: &[&str]) -> Option<String> {
    let found = pattern.split('/').zip(path.split('/')).find_map(|(expected, segment)| {
        let (name, ending) = wildcard(expected)?;
        names.contains(&name).then(|| segment.strip_suffix(ending))?
    })?;
    let decoded = percent_encoding::percent_decode_str(found).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// The name and the ending of a segment such as `{model}:generateContent`.
fn wildcard(segment: &str) -> Option<(&str, &str)> {
    segment.strip_prefix('{')?.split_once('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_exactly_one_segment() {
        assert!(path_matches("/models", "/models"));
        assert!(path_matches("/models/{model}", "/models/gpt-4o"));
        for other in ["/models/", "/models/a/b", "/model", "/models", "", "/", "/models//"] {
            assert!(!path_matches("/models/{model}", other), "{other}");
        }
        assert!(!path_matches("/models", "/models/"));
    }

    #[test]
    fn a_pattern_may_end_within_a_segment() {
        let pattern = "/models/{model}:generateContent";
        assert!(path_matches(pattern, "/models/gemini-2.0-flash:generateContent"));
        assert_eq!(path_model(pattern, "/models/g:generateContent").as_deref(), Some("g"));
        for other in [
            "/models/:generateContent",
            "/models/g:streamGenerateContent",
            "/models/g",
            "/models/a:b:generateContent",
        ] {
            assert!(!path_matches(pattern, other), "{other}");
        }
        let converse = "/model/{model}/converse";
        assert_eq!(path_model(converse, "/model/a.b-v1%3A0/converse").as_deref(), Some("a.b-v1:0"));
        assert_eq!(path_model("/voices/{voice}", "/voices/x"), None);
    }
}
