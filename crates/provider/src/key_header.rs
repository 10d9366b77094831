//! The headers in which providers take their keys.

use tollgate_usage::Dialect;

/// The header in which the provider takes its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `Authorization: Bearer <key>`.
    Bearer,
    /// `Authorization: Token <key>`.
    Token,
    /// The key alone, in a header of this name.
    Named(&'static str),
}

/// The header for the key of a provider of this dialect.
pub(crate) const fn key_header(dialect: Dialect) -> KeyHeader {
    match dialect {
        Dialect::OpenAi | Dialect::Cohere | Dialect::Bedrock | Dialect::None => KeyHeader::Bearer,
        Dialect::Azure => KeyHeader::Named("api-key"),
        Dialect::Anthropic => KeyHeader::Named("x-api-key"),
        Dialect::Google => KeyHeader::Named("x-goog-api-key"),
        Dialect::ElevenLabs => KeyHeader::Named("xi-api-key"),
        Dialect::Deepgram => KeyHeader::Token,
    }
}
