//! The routes of the simulator, as it counts and answers them.

/// The provider whose request format a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedDialect {
    OpenAi,
    Anthropic,
    Google,
}

impl SimulatedDialect {
    /// The header that carries the id of a call.
    pub(crate) const fn request_id_header(self) -> &'static str {
        match self {
            Self::OpenAi => "x-request-id",
            Self::Anthropic => "request-id",
            Self::Google => "x-goog-request-id",
        }
    }
}

/// The endpoints, each of which has its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimulatedEndpoint {
    ChatCompletions,
    Completions,
    Responses,
    /// The responses on its sockets.
    Realtime,
    /// The transcriptions on them.
    RealtimeTranscriptions,
    /// The turns on its sockets.
    Live,
    /// The sessions on its sockets. Their milliseconds are counted as input tokens.
    LiveSessions,
    Embeddings,
    Models,
    Messages,
    CountTokens,
    MessageBatches,
    Files,
    Batches,
    Videos,
    GenerateContent,
    GoogleBatches,
    GoogleVideos,
    /// Any other path: answered with 404, and counted, because a call to it is an error of the caller.
    Other,
}

impl SimulatedEndpoint {
    pub(crate) const ALL: [Self; 19] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Realtime,
        Self::RealtimeTranscriptions,
        Self::Live,
        Self::LiveSessions,
        Self::Embeddings,
        Self::Models,
        Self::Messages,
        Self::CountTokens,
        Self::MessageBatches,
        Self::Files,
        Self::Batches,
        Self::Videos,
        Self::GenerateContent,
        Self::GoogleBatches,
        Self::GoogleVideos,
        Self::Other,
    ];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Realtime => "/v1/realtime",
            Self::RealtimeTranscriptions => "/v1/realtime transcriptions",
            Self::Live => "/ws/{service}",
            Self::LiveSessions => "/v1/live/sessions",
            Self::Embeddings => "/v1/embeddings",
            Self::Models => "/v1/models",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::MessageBatches => "/v1/messages/batches",
            Self::Files => "/v1/files",
            Self::Batches => "/v1/batches",
            Self::Videos => "/v1/videos",
            Self::GenerateContent => "/v1beta/models/{model}:generateContent",
            Self::GoogleBatches => "/v1beta/models/{model}:batchGenerateContent",
            Self::GoogleVideos => "/v1beta/models/{model}:predictLongRunning",
            Self::Other => "other",
        }
    }
}
