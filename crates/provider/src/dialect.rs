use std::fmt;
use std::str::FromStr;

use awc::http::Method;
use tollgate_domain::RequestShape;

/// The way a provider speaks: which endpoints it has, how it takes its key, and where it reports
/// usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Chat completions, responses, completions and embeddings as OpenAI has them.
    OpenAi,
    /// Messages as Anthropic has them.
    Anthropic,
    /// Nothing is known: calls pass and usage is estimated.
    None,
}

/// What an answer of an operation looks like, which is where its usage is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Api {
    /// OpenAI's `/chat/completions`, and the older `/completions`.
    Chat,
    /// OpenAI's `/responses`.
    Responses,
    /// OpenAI's `/embeddings`: tokens go in, none come out.
    Embeddings,
    /// Anthropic's `/messages`.
    Messages,
    /// Anything else: no usage is known to be in it.
    Opaque,
}

/// How the provider wants its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `Authorization: Bearer <key>`.
    Bearer,
    /// `x-api-key: <key>`, with the version header that Anthropic demands beside it.
    XApiKey,
}

/// Tokens that a provider counts beyond those of the bytes of a body, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HiddenTokens {
    /// An image, however few bytes it was packed into.
    pub(crate) per_image: u64,
    /// What is written for a tool, and once for tools as such, into the prompt.
    pub(crate) per_tool: u64,
}

/// One endpoint that a dialect knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The method.
    pub method: Method,
    /// The path below the provider's base URL; `{…}` stands for exactly one segment.
    pub path: &'static str,
    /// Whether it costs money. What does not is harmless: model lists, token counting.
    pub metered: bool,
    pub(crate) api: Api,
}

const fn metered(path: &'static str, api: Api) -> Operation {
    Operation { method: Method::POST, path, metered: true, api }
}

const fn free(method: Method, path: &'static str) -> Operation {
    Operation { method, path, metered: false, api: Api::Opaque }
}

static OPENAI: [Operation; 7] = [
    metered("/chat/completions", Api::Chat),
    metered("/responses", Api::Responses),
    metered("/embeddings", Api::Embeddings),
    metered("/completions", Api::Chat),
    free(Method::POST, "/moderations"),
    free(Method::GET, "/models"),
    free(Method::GET, "/models/{model}"),
];

static ANTHROPIC: [Operation; 4] = [
    metered("/messages", Api::Messages),
    free(Method::POST, "/messages/count_tokens"),
    free(Method::GET, "/models"),
    free(Method::GET, "/models/{model}"),
];

impl Dialect {
    /// The endpoints on which a managed key may be used, in the order in which they are tried.
    pub fn operations(self) -> &'static [Operation] {
        match self {
            Self::OpenAi => &OPENAI,
            Self::Anthropic => &ANTHROPIC,
            Self::None => &[],
        }
    }

    /// The format of its requests, if it is one of the two.
    pub const fn shape(self) -> Option<RequestShape> {
        match self {
            Self::OpenAi => Some(RequestShape::ShapeA),
            Self::Anthropic => Some(RequestShape::ShapeB),
            Self::None => None,
        }
    }

    /// The word for it in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::None => "none",
        }
    }

    pub(crate) const fn key_header(self) -> KeyHeader {
        match self {
            Self::OpenAi | Self::None => KeyHeader::Bearer,
            Self::Anthropic => KeyHeader::XApiKey,
        }
    }

    /// Figures of the providers' own documentation ("Images and vision", "Vision", "Tool use"),
    /// rounded up.
    pub(crate) const fn hidden_tokens(self) -> HiddenTokens {
        match self {
            // gpt-4o-mini counts most: 2,833 and 5,667 for each of at most 8 tiles are 48,169.
            // Tools are counted as the text that they are.
            Self::OpenAi => HiddenTokens { per_image: 50_000, per_tool: 0 },
            // At most 4,784 for an image in high resolution. The prompt for tools has up to 530
            // tokens; of Anthropic's own, the text editor has 700 and the computer 735, with a
            // prompt of 499.
            Self::Anthropic => HiddenTokens { per_image: 5_000, per_tool: 1_000 },
            Self::None => HiddenTokens { per_image: 50_000, per_tool: 1_000 },
        }
    }

    /// What to expect of an endpoint that has no row, used with the caller's own key: most report
    /// usage as their siblings do.
    pub(crate) const fn fallback_api(self) -> Api {
        match self {
            Self::OpenAi => Api::Responses,
            Self::Anthropic => Api::Messages,
            Self::None => Api::Opaque,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no dialect that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseDialectError {
    planned: bool,
}

/// Words that a reader of the documentation may expect to work.
const PLANNED: [&str; 5] = ["bedrock", "cohere", "deepgram", "elevenlabs", "google"];

impl FromStr for Dialect {
    type Err = ParseDialectError;

    fn from_str(word: &str) -> Result<Self, ParseDialectError> {
        let known = [Self::OpenAi, Self::Anthropic, Self::None];
        let found = known.into_iter().find(|dialect| dialect.as_str() == word);
        found.ok_or(ParseDialectError { planned: PLANNED.contains(&word) })
    }
}

impl fmt::Display for ParseDialectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.planned {
            "this dialect is not supported yet; \"none\" forwards without reading usage"
        } else {
            "expected \"openai\", \"anthropic\" or \"none\""
        })
    }
}

impl std::error::Error for ParseDialectError {}

/// Whether `path` is an instance of `pattern`, in which `{…}` stands for one segment.
pub(crate) fn path_matches(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let all = pattern.split('/').all(|expected| {
        segments.next().is_some_and(|segment| match expected.starts_with('{') {
            true => !segment.is_empty(),
            false => segment == expected,
        })
    });
    all && segments.next().is_none()
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
    fn dialects_are_named_by_the_words_of_the_configuration() {
        for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::None] {
            assert_eq!(dialect.as_str().parse(), Ok(dialect));
        }
        let planned = "google".parse::<Dialect>().unwrap_err().to_string();
        assert!(planned.contains("not supported yet"), "{planned}");
        let unknown = "OpenAI".parse::<Dialect>().unwrap_err().to_string();
        assert!(unknown.contains("expected"), "{unknown}");
    }
}
