//! Dialects of providers: their endpoints, the position of the model in a call, and the answers that
//! report usage.

mod operation;
pub mod rows;

use std::fmt;
use std::str::FromStr;

use http::Method;

pub use self::operation::{Api, ModelLocation, ObjectRole, Operation, path_matches};
pub(crate) use self::operation::{path_model, path_object};
use self::rows::*;

/// The request and response format of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Chat completions, responses, embeddings, audio and images as at OpenAI.
    OpenAi,
    /// As [`Dialect::OpenAi`], below the deployments of an Azure resource.
    Azure,
    /// Messages as at Anthropic.
    Anthropic,
    /// `generateContent` as at Gemini and Vertex.
    Google,
    /// Chat, embeddings and reranking as at Cohere.
    Cohere,
    /// `converse` and `invoke` as at Amazon Bedrock.
    Bedrock,
    /// Speech as at ElevenLabs.
    ElevenLabs,
    /// Speech as at Deepgram.
    Deepgram,
    /// An unknown format: calls pass, and usage is estimated.
    None,
}

/// The most tokens that a provider counts beyond the bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HiddenTokens {
    /// The tokens of an image, however few bytes it has.
    pub(crate) per_image: u64,
    /// The tokens that the provider writes into the prompt for a tool, and once for tools as such.
    pub(crate) per_tool: u64,
}

impl HiddenTokens {
    /// The larger figure of each field.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            per_image: self.per_image.max(other.per_image),
            per_tool: self.per_tool.max(other.per_tool),
        }
    }
}

impl Dialect {
    /// Every dialect, in the order in which the documentation names them.
    pub const ALL: [Self; 9] = [
        Self::OpenAi,
        Self::Azure,
        Self::Anthropic,
        Self::Google,
        Self::Cohere,
        Self::Bedrock,
        Self::ElevenLabs,
        Self::Deepgram,
        Self::None,
    ];

    /// The endpoints of a provider of this dialect.
    pub const fn operations(self) -> OperationSets {
        match self {
            Self::OpenAi => OPENAI,
            Self::Azure => AZURE,
            Self::Anthropic => ANTHROPIC,
            Self::Google => GOOGLE,
            Self::Cohere => COHERE,
            Self::Bedrock => BEDROCK,
            Self::ElevenLabs => ELEVENLABS,
            Self::Deepgram => DEEPGRAM,
            Self::None => &[],
        }
    }

    /// The word of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Azure => "azure",
            Self::Anthropic => "anthropic",
            Self::Google => "google",
            Self::Cohere => "cohere",
            Self::Bedrock => "bedrock",
            Self::ElevenLabs => "elevenlabs",
            Self::Deepgram => "deepgram",
            Self::None => "none",
        }
    }

    /// The row of the endpoint at `path`, below the base URL.
    pub fn operation(self, method: &Method, path: &str) -> Option<&'static Operation> {
        let mut rows = self.operations().iter().copied().flatten();
        rows.find(|row| row.method == *method && path_matches(row.path, path))
    }

    /// The figures of the documentation ("Images and vision", "Vision", "Tool use"), rounded up.
    pub(crate) const fn hidden_tokens(self) -> HiddenTokens {
        match self {
            // gpt-4o-mini counts most: 2,833, and 5,667 for each of at most 8 tiles, are 48,169.
            // Tools are counted as their text.
            Self::OpenAi | Self::Azure => HiddenTokens { per_image: 50_000, per_tool: 0 },
            // At most 4,784 for an image in high resolution. The prompt for tools has up to 530
            // tokens. Of Anthropic's own tools, the text editor has 700 and the computer 735, with
            // a prompt of 499.
            Self::Anthropic => HiddenTokens { per_image: 5_000, per_tool: 1_000 },
            _ => HiddenTokens { per_image: 50_000, per_tool: 1_000 },
        }
    }

    /// The API of an endpoint without a row, called with the caller's own key. Most report usage as
    /// their siblings do.
    pub(crate) const fn fallback_api(self) -> Api {
        match self {
            Self::OpenAi | Self::Azure => Api::Responses,
            Self::Anthropic => Api::Messages,
            Self::Google => Api::GenerateContent,
            Self::Cohere => Api::Cohere,
            Self::Bedrock => Api::Invoke,
            Self::ElevenLabs => Api::ElevenLabs,
            Self::Deepgram => Api::Deepgram,
            Self::None => Api::Opaque,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of a word that names no dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseDialectError;

impl FromStr for Dialect {
    type Err = ParseDialectError;

    fn from_str(word: &str) -> Result<Self, ParseDialectError> {
        Self::ALL.into_iter().find(|dialect| dialect.as_str() == word).ok_or(ParseDialectError)
    }
}

impl fmt::Display for ParseDialectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected one of ")?;
        for (place, dialect) in Dialect::ALL.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{:?}", dialect.as_str())?;
        }
        Ok(())
    }
}

impl std::error::Error for ParseDialectError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_named_by_the_words_of_the_configuration() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.as_str().parse(), Ok(dialect));
        }
        let unknown = "OpenAI".parse::<Dialect>().unwrap_err().to_string();
        assert!(unknown.contains("\"openai\", \"azure\""), "{unknown}");
    }
}
