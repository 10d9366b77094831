//! The providers that need no configuration but a key, and, where a URL has a name in braces, that
//! name.

use super::Mount;
use crate::dialect::{
    ANTHROPIC, AZURE, AZURE_V1, BEDROCK, CHAT, CHAT_AND_EMBEDDINGS, COHERE, DEEPGRAM, DEEPINFRA,
    Dialect, ELEVENLABS, FIREWORKS, GOOGLE, GROQ, MESSAGES, MISTRAL, MOONSHOT, NEBIUS, OPENAI,
    OPENROUTER, PERPLEXITY, Rows, TOGETHER, XAI,
};

/// One row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Origin and path prefix; the first is the one to call, the others are the same by other names.
    pub(super) base_urls: &'static [&'static str],
    /// What lies below them. Where several have a route of an SDK, the first is called.
    pub(super) mounts: &'static [Mount],
    /// Whether `stream_options` may be inserted into a streamed body.
    pub(super) stream_options: bool,
}

const fn at(path: &'static str, dialect: Dialect, rows: Rows) -> Mount {
    Mount { path, dialect, rows }
}

/// Ordered by name.
pub(super) static BUILTIN: [Row; 23] = [
    Row {
        name: "anthropic",
        base_urls: &["https://api.anthropic.com/v1"],
        mounts: &[at("", Dialect::Anthropic, ANTHROPIC)],
        stream_options: false,
    },
    Row {
        name: "azure",
        base_urls: &["https://{resource}.openai.azure.com"],
        mounts: &[
            at("/openai/v1", Dialect::OpenAi, AZURE_V1),
            at("/openai", Dialect::Azure, AZURE),
        ],
        // From the api-version on that has it.
        stream_options: true,
    },
    Row {
        name: "bedrock",
        base_urls: &["https://bedrock-runtime.{region}.amazonaws.com"],
        mounts: &[at("/openai/v1", Dialect::OpenAi, CHAT), at("", Dialect::Bedrock, BEDROCK)],
        stream_options: true,
    },
    Row {
        name: "cerebras",
        base_urls: &["https://api.cerebras.ai/v1"],
        mounts: &[at("", Dialect::OpenAi, CHAT)],
        stream_options: true,
    },
    Row {
        name: "cohere",
        base_urls: &["https://api.cohere.com", "https://api.cohere.ai"],
        mounts: &[
            at("/compatibility/v1", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v2", Dialect::Cohere, COHERE),
            at("/v1", Dialect::Cohere, COHERE),
        ],
        stream_options: true,
    },
    Row {
        name: "deepgram",
        base_urls: &["https://api.deepgram.com/v1"],
        mounts: &[at("", Dialect::Deepgram, DEEPGRAM)],
        stream_options: false,
    },
    Row {
        name: "deepinfra",
        base_urls: &["https://api.deepinfra.com/v1/openai"],
        mounts: &[at("", Dialect::OpenAi, DEEPINFRA)],
        stream_options: true,
    },
    Row {
        name: "deepseek",
        base_urls: &["https://api.deepseek.com"],
        mounts: &[
            at("", Dialect::OpenAi, CHAT),
            at("/v1", Dialect::OpenAi, CHAT),
            at("/beta", Dialect::OpenAi, CHAT),
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
        ],
        stream_options: true,
    },
    Row {
        name: "elevenlabs",
        base_urls: &["https://api.elevenlabs.io/v1"],
        mounts: &[at("", Dialect::ElevenLabs, ELEVENLABS)],
        stream_options: false,
    },
    Row {
        name: "fireworks",
        base_urls: &["https://api.fireworks.ai/inference/v1"],
        mounts: &[at("", Dialect::OpenAi, FIREWORKS)],
        stream_options: true,
    },
    Row {
        name: "google",
        base_urls: &["https://generativelanguage.googleapis.com"],
        mounts: &[
            at("/v1beta/openai", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v1beta", Dialect::Google, GOOGLE),
            at("/v1", Dialect::Google, GOOGLE),
        ],
        stream_options: true,
    },
    Row {
        name: "groq",
        base_urls: &["https://api.groq.com/openai/v1"],
        mounts: &[at("", Dialect::OpenAi, GROQ)],
        stream_options: true,
    },
    Row {
        name: "hyperbolic",
        base_urls: &["https://api.hyperbolic.xyz/v1"],
        mounts: &[at("", Dialect::OpenAi, CHAT)],
        stream_options: true,
    },
    Row {
        name: "mistral",
        base_urls: &["https://api.mistral.ai/v1"],
        mounts: &[at("", Dialect::OpenAi, MISTRAL)],
        // Reports usage unasked, and refuses fields that it does not know.
        stream_options: false,
    },
    Row {
        name: "moonshot",
        base_urls: &["https://api.moonshot.ai", "https://api.moonshot.cn"],
        mounts: &[
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
            at("/v1", Dialect::OpenAi, MOONSHOT),
        ],
        stream_options: true,
    },
    Row {
        name: "nebius",
        base_urls: &[
            "https://api.tokenfactory.nebius.com/v1",
            "https://api.studio.nebius.com/v1",
            "https://api.studio.nebius.ai/v1",
        ],
        mounts: &[at("", Dialect::OpenAi, NEBIUS)],
        stream_options: true,
    },
    Row {
        name: "novita",
        base_urls: &["https://api.novita.ai"],
        mounts: &[
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
            at("/openai/v1", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v3/openai", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
        ],
        stream_options: true,
    },
    Row {
        name: "openai",
        base_urls: &["https://api.openai.com/v1"],
        mounts: &[at("", Dialect::OpenAi, OPENAI)],
        stream_options: true,
    },
    Row {
        name: "openrouter",
        base_urls: &["https://openrouter.ai/api/v1"],
        mounts: &[at("", Dialect::OpenAi, OPENROUTER)],
        // Reports usage and its own cost unasked.
        stream_options: false,
    },
    Row {
        name: "perplexity",
        base_urls: &["https://api.perplexity.ai"],
        mounts: &[at("", Dialect::OpenAi, PERPLEXITY), at("/v1", Dialect::OpenAi, PERPLEXITY)],
        // Reports usage in every event.
        stream_options: false,
    },
    Row {
        name: "sambanova",
        base_urls: &["https://api.sambanova.ai/v1"],
        mounts: &[at("", Dialect::OpenAi, CHAT_AND_EMBEDDINGS)],
        stream_options: true,
    },
    Row {
        name: "together",
        base_urls: &["https://api.together.xyz/v1", "https://api.together.ai/v1"],
        mounts: &[at("", Dialect::OpenAi, TOGETHER)],
        stream_options: true,
    },
    Row {
        name: "xai",
        base_urls: &["https://api.x.ai/v1"],
        mounts: &[at("", Dialect::OpenAi, XAI)],
        stream_options: true,
    },
];

/// The row of a name.
pub(super) fn row(name: &str) -> Option<&'static Row> {
    BUILTIN.iter().find(|row| row.name == name)
}
