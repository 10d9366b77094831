//! The providers that need no configuration but a key, and the name for braces in a URL.

use tollgate_usage::dialect::rows::{
    ANTHROPIC, AZURE, AZURE_V1, BEDROCK, CHAT, CHAT_ALONE, CHAT_AND_EMBEDDINGS, COHERE, DEEPGRAM,
    DEEPINFRA, ELEVENLABS, FIREWORKS, GOOGLE, GROQ, MESSAGES, MISTRAL, MOONSHOT, NEBIUS, OPENAI,
    OPENROUTER, OperationSets, TOGETHER, XAI,
};
use tollgate_usage::{Dialect, ProviderTraits};

use super::provider::Mount;

/// One row of the table.
pub(super) struct BuiltinProvider {
    pub(super) name: &'static str,
    /// Origin and path prefix. The key goes nowhere else.
    pub(super) base_url: &'static str,
    /// The parts of its API. If several have a route of an SDK, the first is called.
    pub(super) mounts: &'static [Mount],
    /// Whether `stream_options` may be inserted into a streamed body.
    pub(super) stream_options: bool,
    /// Whether chat honours `max_completion_tokens` beside `max_tokens`. Other providers ignore it.
    pub(super) max_completion_tokens: bool,
}

impl BuiltinProvider {
    /// The facts of a provider of this row that decide how its bodies are read.
    pub(super) fn traits(&self, price_list: &str) -> ProviderTraits {
        ProviderTraits {
            price_list: price_list.to_owned(),
            dialects: self.mounts.iter().map(|mount| mount.dialect).collect(),
            allow_stored_state: false,
            stream_options: self.stream_options,
            max_completion_tokens: self.max_completion_tokens,
        }
    }
}

const fn at(path: &'static str, dialect: Dialect, rows: OperationSets) -> Mount {
    Mount { path, dialect, rows }
}

/// The table, ordered by name.
pub(super) static BUILTIN: [BuiltinProvider; 23] = [
    BuiltinProvider {
        name: "anthropic",
        base_url: "https://api.anthropic.com/v1",
        mounts: &[at("", Dialect::Anthropic, ANTHROPIC), at("", Dialect::OpenAi, CHAT_ALONE)],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "azure",
        base_url: "https://{resource}.openai.azure.com",
        mounts: &[
            at("/openai/v1", Dialect::OpenAi, AZURE_V1),
            at("/openai", Dialect::Azure, AZURE),
        ],
        // From the first `api-version` with the option on.
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "bedrock",
        base_url: "https://bedrock-runtime.{region}.amazonaws.com",
        mounts: &[at("/openai/v1", Dialect::OpenAi, CHAT), at("", Dialect::Bedrock, BEDROCK)],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "cerebras",
        base_url: "https://api.cerebras.ai/v1",
        mounts: &[at("", Dialect::OpenAi, CHAT)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "cohere",
        base_url: "https://api.cohere.com",
        mounts: &[
            at("/compatibility/v1", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v2", Dialect::Cohere, COHERE),
            at("/v1", Dialect::Cohere, COHERE),
        ],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "deepgram",
        base_url: "https://api.deepgram.com/v1",
        mounts: &[at("", Dialect::Deepgram, DEEPGRAM)],
        stream_options: false,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "deepinfra",
        base_url: "https://api.deepinfra.com/v1/openai",
        mounts: &[at("", Dialect::OpenAi, DEEPINFRA)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "deepseek",
        base_url: "https://api.deepseek.com",
        mounts: &[
            at("", Dialect::OpenAi, CHAT),
            at("/v1", Dialect::OpenAi, CHAT),
            at("/beta", Dialect::OpenAi, CHAT),
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
        ],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "elevenlabs",
        base_url: "https://api.elevenlabs.io/v1",
        mounts: &[at("", Dialect::ElevenLabs, ELEVENLABS)],
        stream_options: false,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "fireworks",
        base_url: "https://api.fireworks.ai/inference/v1",
        mounts: &[at("", Dialect::OpenAi, FIREWORKS)],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "google",
        base_url: "https://generativelanguage.googleapis.com",
        mounts: &[
            at("/v1beta/openai", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v1beta", Dialect::Google, GOOGLE),
            at("/v1", Dialect::Google, GOOGLE),
            at("/v1alpha", Dialect::Google, GOOGLE),
        ],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "groq",
        base_url: "https://api.groq.com/openai/v1",
        mounts: &[at("", Dialect::OpenAi, GROQ)],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "hyperbolic",
        base_url: "https://api.hyperbolic.xyz/v1",
        mounts: &[at("", Dialect::OpenAi, CHAT)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "mistral",
        base_url: "https://api.mistral.ai/v1",
        mounts: &[at("", Dialect::OpenAi, MISTRAL)],
        // Reports usage without a request for it, and refuses unknown fields.
        stream_options: false,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "moonshot",
        base_url: "https://api.moonshot.ai",
        mounts: &[
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
            at("/v1", Dialect::OpenAi, MOONSHOT),
        ],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "nebius",
        base_url: "https://api.tokenfactory.nebius.com/v1",
        mounts: &[at("", Dialect::OpenAi, NEBIUS)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "novita",
        base_url: "https://api.novita.ai",
        mounts: &[
            at("/anthropic/v1", Dialect::Anthropic, MESSAGES),
            at("/openai/v1", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
            at("/v3/openai", Dialect::OpenAi, CHAT_AND_EMBEDDINGS),
        ],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "openai",
        base_url: "https://api.openai.com/v1",
        mounts: &[at("", Dialect::OpenAi, OPENAI)],
        stream_options: true,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "openrouter",
        base_url: "https://openrouter.ai/api/v1",
        mounts: &[at("", Dialect::OpenAi, OPENROUTER)],
        // Reports usage and its own cost without a request for it.
        stream_options: false,
        max_completion_tokens: true,
    },
    BuiltinProvider {
        name: "perplexity",
        base_url: "https://api.perplexity.ai",
        mounts: &[at("", Dialect::OpenAi, CHAT_ALONE), at("/v1", Dialect::OpenAi, CHAT_ALONE)],
        // Reports usage in every event.
        stream_options: false,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "sambanova",
        base_url: "https://api.sambanova.ai/v1",
        mounts: &[at("", Dialect::OpenAi, CHAT_AND_EMBEDDINGS)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "together",
        base_url: "https://api.together.xyz/v1",
        mounts: &[at("", Dialect::OpenAi, TOGETHER)],
        stream_options: true,
        max_completion_tokens: false,
    },
    BuiltinProvider {
        name: "xai",
        base_url: "https://api.x.ai/v1",
        mounts: &[at("", Dialect::OpenAi, XAI)],
        stream_options: true,
        max_completion_tokens: true,
    },
];

/// The row with this name.
pub(super) fn row(name: &str) -> Option<&'static BuiltinProvider> {
    BUILTIN.iter().find(|row| row.name == name)
}
