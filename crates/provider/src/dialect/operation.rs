use awc::http::Method;
use tollgate_domain::RequestFormat;

/// What an answer of an operation looks like, which is where its usage is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Api {
    /// OpenAI's `/chat/completions`, and the older `/completions`.
    Chat,
    /// OpenAI's `/responses`.
    Responses,
    /// OpenAI's `/embeddings`: tokens go in, none come out.
    Embeddings,
    /// OpenAI's `/audio/transcriptions` and `/audio/translations`: sound goes in.
    Transcription,
    /// OpenAI's `/audio/speech`: sound comes out.
    Speech,
    /// OpenAI's `/images/…`.
    Images,
    /// Reading documents, as Mistral has it: pages go in.
    Ocr,
    /// Ranking documents, as the siblings of OpenAI have it.
    Rerank,
    /// Anthropic's `/messages`.
    Messages,
    /// Google's `generateContent`, streamed or not.
    GenerateContent,
    /// Google's `embedContent` and `batchEmbedContents`.
    EmbedContent,
    /// Google's `predict`, which makes images.
    Predict,
    /// Everything of Cohere's: what it bills stands in `billed_units`.
    Cohere,
    /// Bedrock's `converse` and `converse-stream`.
    Converse,
    /// Bedrock's `invoke`: the body is the vendor's.
    Invoke,
    /// ElevenLabs: credits in a header.
    ElevenLabs,
    /// Deepgram: seconds in the answer, characters in a header.
    Deepgram,
    /// Anything else: no usage is known to be in it.
    Opaque,
}

impl Api {
    /// The format of its requests, if it is one of the two.
    pub(crate) const fn shape(self) -> Option<RequestFormat> {
        match self {
            Self::Chat | Self::Responses | Self::Embeddings => Some(RequestFormat::ShapeA),
            Self::Messages => Some(RequestFormat::ShapeB),
            _ => None,
        }
    }
}

/// Where a call names its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelIn {
    /// Under this key of the JSON body, or in this field of the form.
    Body(&'static str),
    /// Under this key, if it is there: else the provider takes its own.
    MaybeBody(&'static str),
    /// In the segment `{model}` of the path.
    Path,
    /// In this parameter of the query.
    Query(&'static str),
    /// Nowhere.
    Nowhere,
}

/// One endpoint that a provider has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The method.
    pub method: Method,
    /// The path below the base URL and the mount; `{…}` stands for one segment, or for the part of
    /// one that ends as the pattern does.
    pub path: &'static str,
    /// Whether it costs money. What does not is harmless: model lists, token counting.
    pub metered: bool,
    pub(crate) api: Api,
    pub(crate) model: ModelIn,
}

pub(super) const fn metered(path: &'static str, api: Api) -> Operation {
    Operation { method: Method::POST, path, metered: true, api, model: ModelIn::Body("model") }
}

pub(super) const fn metered_by(path: &'static str, api: Api, model: ModelIn) -> Operation {
    Operation { method: Method::POST, path, metered: true, api, model }
}

pub(super) const fn free(method: Method, path: &'static str, model: ModelIn) -> Operation {
    Operation { method, path, metered: false, api: Api::Opaque, model }
}

/// Whether `path` is an instance of `pattern`.
pub(crate) fn path_matches(pattern: &str, path: &str) -> bool {
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

/// What stands at `{model}` or `{deployment}`, percent-decoded.
pub(crate) fn path_model(pattern: &str, path: &str) -> Option<String> {
    let found = pattern.split('/').zip(path.split('/')).find_map(|(expected, segment)| {
        let (name, ending) = wildcard(expected)?;
        matches!(name, "model" | "deployment").then(|| segment.strip_suffix(ending))?
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
