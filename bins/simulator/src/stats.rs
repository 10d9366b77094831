//! The counts of calls, errors and tokens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::answer::TokenCounts;
use crate::endpoint::SimulatedEndpoint;

/// The counts of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStats {
    /// The calls that arrived.
    pub calls: u64,
    /// The calls that were answered with an error.
    pub errors: u64,
    /// The tokens of the prompts, cached ones included.
    pub input_tokens: u64,
    /// The tokens of the prompts that were read from a cache.
    pub cached_tokens: u64,
    /// The tokens of the answers, reasoning included.
    pub output_tokens: u64,
    /// The tokens of the answers that are reasoning.
    pub reasoning_tokens: u64,
}

/// The counts since the simulator started: the sums, and each endpoint that was called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The calls that arrived, except calls of `/stats`.
    pub calls: u64,
    /// The calls that were answered with an error.
    pub errors: u64,
    /// The tokens of all prompts, cached ones included.
    pub input_tokens: u64,
    /// The tokens of all answers, reasoning included.
    pub output_tokens: u64,
    /// The counts by path; `other` is any path that does not exist.
    pub endpoints: BTreeMap<String, EndpointStats>,
}

#[derive(Default)]
struct EndpointCounters {
    calls: AtomicU64,
    errors: AtomicU64,
    input_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    output_tokens: AtomicU64,
    reasoning_tokens: AtomicU64,
}

/// The running counts, shared by all workers.
#[derive(Default)]
pub(crate) struct SimulatorCounters {
    chat_completions: EndpointCounters,
    completions: EndpointCounters,
    responses: EndpointCounters,
    realtime: EndpointCounters,
    realtime_transcriptions: EndpointCounters,
    live: EndpointCounters,
    live_sessions: EndpointCounters,
    embeddings: EndpointCounters,
    models: EndpointCounters,
    messages: EndpointCounters,
    count_tokens: EndpointCounters,
    message_batches: EndpointCounters,
    files: EndpointCounters,
    batches: EndpointCounters,
    videos: EndpointCounters,
    generate_content: EndpointCounters,
    google_batches: EndpointCounters,
    google_videos: EndpointCounters,
    other: EndpointCounters,
}

impl SimulatorCounters {
    const fn of(&self, endpoint: SimulatedEndpoint) -> &EndpointCounters {
        match endpoint {
            SimulatedEndpoint::ChatCompletions => &self.chat_completions,
            SimulatedEndpoint::Completions => &self.completions,
            SimulatedEndpoint::Responses => &self.responses,
            SimulatedEndpoint::Realtime => &self.realtime,
            SimulatedEndpoint::RealtimeTranscriptions => &self.realtime_transcriptions,
            SimulatedEndpoint::Live => &self.live,
            SimulatedEndpoint::LiveSessions => &self.live_sessions,
            SimulatedEndpoint::Embeddings => &self.embeddings,
            SimulatedEndpoint::Models => &self.models,
            SimulatedEndpoint::Messages => &self.messages,
            SimulatedEndpoint::CountTokens => &self.count_tokens,
            SimulatedEndpoint::MessageBatches => &self.message_batches,
            SimulatedEndpoint::Files => &self.files,
            SimulatedEndpoint::Batches => &self.batches,
            SimulatedEndpoint::Videos => &self.videos,
            SimulatedEndpoint::GenerateContent => &self.generate_content,
            SimulatedEndpoint::GoogleBatches => &self.google_batches,
            SimulatedEndpoint::GoogleVideos => &self.google_videos,
            SimulatedEndpoint::Other => &self.other,
        }
    }

    pub(crate) fn count_call(&self, endpoint: SimulatedEndpoint) {
        self.of(endpoint).calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self, endpoint: SimulatedEndpoint) {
        self.of(endpoint).errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_tokens(&self, endpoint: SimulatedEndpoint, tokens: TokenCounts) {
        let counter = self.of(endpoint);
        counter.input_tokens.fetch_add(tokens.input, Ordering::Relaxed);
        counter.cached_tokens.fetch_add(tokens.cached, Ordering::Relaxed);
        counter.output_tokens.fetch_add(tokens.output, Ordering::Relaxed);
        counter.reasoning_tokens.fetch_add(tokens.reasoning, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        let mut stats = Stats::default();
        for endpoint in SimulatedEndpoint::ALL {
            let counts = self.of(endpoint).read();
            stats.calls += counts.calls;
            stats.errors += counts.errors;
            stats.input_tokens += counts.input_tokens;
            stats.output_tokens += counts.output_tokens;
            if counts.calls > 0 {
                stats.endpoints.insert(endpoint.path().to_owned(), counts);
            }
        }
        stats
    }
}

impl EndpointCounters {
    fn read(&self) -> EndpointStats {
        EndpointStats {
            calls: self.calls.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            input_tokens: self.input_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
            output_tokens: self.output_tokens.load(Ordering::Relaxed),
            reasoning_tokens: self.reasoning_tokens.load(Ordering::Relaxed),
        }
    }
}
