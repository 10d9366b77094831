//! How providers speak: which endpoints they have, where the model of a call stands, how they take
//! their key, and in which of their answers usage is reported.

mod operation;
mod rows;

use std::fmt;
use std::str::FromStr;

use tollgate_domain::RequestFormat;

pub use self::operation::Operation;
pub(crate) use self::operation::{Api, ModelIn, path_matches, path_model};
pub(crate) use self::rows::*;

/// The way a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Chat completions, responses, embeddings, audio and images as OpenAI has them.
    OpenAi,
    /// The same below the deployments of an Azure resource.
    Azure,
    /// Messages as Anthropic has them.
    Anthropic,
    /// `generateContent` as Gemini and Vertex have it.
    Google,
    /// Chat, embeddings and reranking as Cohere has them.
    Cohere,
    /// `converse` and `invoke` as Amazon Bedrock has them.
    Bedrock,
    /// Speech as ElevenLabs has it.
    ElevenLabs,
    /// Speech as Deepgram has it.
    Deepgram,
    /// Nothing is known: calls pass and usage is estimated.
    None,
}

/// How the provider wants its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `Authorization: Bearer <key>`.
    Bearer,
    /// `Authorization: Token <key>`.
    Token,
    /// The key alone, in a header of this name.
    Named(&'static str),
}

/// Tokens that a provider counts beyond those of the bytes of a body, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HiddenTokens {
    /// An image, however few bytes it was packed into.
    pub(crate) per_image: u64,
    /// What is written for a tool, and once for tools as such, into the prompt.
    pub(crate) per_tool: u64,
}

impl HiddenTokens {
    /// The larger figures of both.
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

    /// The endpoints of a configured provider that speaks so.
    pub(crate) const fn operations(self) -> Rows {
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

    /// The format of its requests, if it is one of the two.
    pub const fn shape(self) -> Option<RequestFormat> {
        match self {
            Self::OpenAi | Self::Azure => Some(RequestFormat::ShapeA),
            Self::Anthropic => Some(RequestFormat::ShapeB),
            _ => None,
        }
    }

    /// The word for it in a configuration.
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

    pub(crate) const fn key_header(self) -> KeyHeader {
        match self {
            Self::OpenAi | Self::Cohere | Self::Bedrock | Self::None => KeyHeader::Bearer,
            Self::Azure => KeyHeader::Named("api-key"),
            Self::Anthropic => KeyHeader::Named("x-api-key"),
            Self::Google => KeyHeader::Named("x-goog-api-key"),
            Self::ElevenLabs => KeyHeader::Named("xi-api-key"),
            Self::Deepgram => KeyHeader::Token,
        }
    }

    /// Figures of the providers' own documentation ("Images and vision", "Vision", "Tool use"),
    /// rounded up.
    pub(crate) const fn hidden_tokens(self) -> HiddenTokens {
        match self {
            // gpt-4o-mini counts most: 2,833 and 5,667 for each of at most 8 tiles are 48,169.
            // Tools are counted as the text that they are.
            Self::OpenAi | Self::Azure => HiddenTokens { per_image: 50_000, per_tool: 0 },
            // At most 4,784 for an image in high resolution. The prompt for tools has up to 530
            // tokens; of Anthropic's own, the text editor has 700 and the computer 735, with a
            // prompt of 499.
            Self::Anthropic => HiddenTokens { per_image: 5_000, per_tool: 1_000 },
            _ => HiddenTokens { per_image: 50_000, per_tool: 1_000 },
        }
    }

    /// What to expect of an endpoint that has no row, used with the caller's own key: most report
    /// usage as their siblings do.
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

/// A word that names no dialect.
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
