//! The endpoints on which a managed key may be used. A row is either metered by an extractor, or
//! free and harmless. Files, stored answers, batches, fine-tuning and administration have no rows.

use http::Method;

use super::operation::{Api, ModelIn, Operation, free, metered, metered_by};

/// Sets of rows, in the order in which they are tried.
pub type Rows = &'static [&'static [Operation]];

const NO_MODEL: ModelIn = ModelIn::Nowhere;

static CHAT_ROWS: [Operation; 4] = [
    metered("/chat/completions", Api::Chat),
    metered("/completions", Api::Chat),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];
static RESPONSES_ROWS: [Operation; 2] = [
    metered("/responses", Api::Responses),
    free(Method::POST, "/responses/input_tokens", ModelIn::MaybeBody("model")),
];
static EMBEDDINGS_ROWS: [Operation; 1] = [metered("/embeddings", Api::Embeddings)];
static TRANSCRIPTION_ROWS: [Operation; 2] = [
    metered("/audio/transcriptions", Api::Transcription),
    metered("/audio/translations", Api::Transcription),
];
static SPEECH_ROWS: [Operation; 1] = [metered("/audio/speech", Api::Speech)];
static IMAGE_ROWS: [Operation; 3] = [
    metered_by("/images/generations", Api::Images, ModelIn::MaybeBody("model")),
    metered_by("/images/edits", Api::Images, ModelIn::MaybeBody("model")),
    metered_by("/images/variations", Api::Images, ModelIn::MaybeBody("model")),
];
static IMAGE_GENERATION_ROWS: [Operation; 1] = [metered("/images/generations", Api::Images)];
/// Free at OpenAI, and billed elsewhere.
static MODERATION_ROWS: [Operation; 1] =
    [free(Method::POST, "/moderations", ModelIn::MaybeBody("model"))];
static RERANK_ROWS: [Operation; 1] = [metered("/rerank", Api::Rerank)];
static MESSAGES_ROWS: [Operation; 2] = [
    metered("/messages", Api::Messages),
    free(Method::POST, "/messages/count_tokens", ModelIn::Body("model")),
];
static MODEL_ROWS: [Operation; 2] =
    [free(Method::GET, "/models", NO_MODEL), free(Method::GET, "/models/{model}", NO_MODEL)];
static MISTRAL_ROWS: [Operation; 3] = [
    metered("/fim/completions", Api::Chat),
    metered("/ocr", Api::Ocr),
    metered("/moderations", Api::Embeddings),
];
static MOONSHOT_ROWS: [Operation; 1] =
    [free(Method::POST, "/tokenizers/estimate-token-count", ModelIn::Body("model"))];
static CHAT_ALONE_ROWS: [Operation; 1] = [metered("/chat/completions", Api::Chat)];

static AZURE_ROWS: [Operation; 9] = [
    metered_by("/deployments/{deployment}/chat/completions", Api::Chat, ModelIn::Path),
    metered_by("/deployments/{deployment}/completions", Api::Chat, ModelIn::Path),
    metered_by("/deployments/{deployment}/embeddings", Api::Embeddings, ModelIn::Path),
    metered_by("/deployments/{deployment}/audio/transcriptions", Api::Transcription, ModelIn::Path),
    metered_by("/deployments/{deployment}/audio/translations", Api::Transcription, ModelIn::Path),
    metered_by("/deployments/{deployment}/audio/speech", Api::Speech, ModelIn::Path),
    metered_by("/deployments/{deployment}/images/generations", Api::Images, ModelIn::Path),
    metered("/responses", Api::Responses),
    free(Method::GET, "/models", NO_MODEL),
];

static GOOGLE_ROWS: [Operation; 12] = [
    metered_by("/models/{model}:generateContent", Api::GenerateContent, ModelIn::Path),
    metered_by("/models/{model}:streamGenerateContent", Api::GenerateContent, ModelIn::Path),
    metered_by("/models/{model}:embedContent", Api::EmbedContent, ModelIn::Path),
    metered_by("/models/{model}:batchEmbedContents", Api::EmbedContent, ModelIn::Path),
    metered_by("/models/{model}:predict", Api::Predict, ModelIn::Path),
    free(Method::POST, "/models/{model}:countTokens", ModelIn::Path),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
    // Vertex.
    metered_by(
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:generateContent",
        Api::GenerateContent,
        ModelIn::Path,
    ),
    metered_by(
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:streamGenerateContent",
        Api::GenerateContent,
        ModelIn::Path,
    ),
    metered_by(
        "/publishers/google/models/{model}:generateContent",
        Api::GenerateContent,
        ModelIn::Path,
    ),
    metered_by(
        "/publishers/google/models/{model}:streamGenerateContent",
        Api::GenerateContent,
        ModelIn::Path,
    ),
];

static COHERE_ROWS: [Operation; 6] = [
    metered_by("/chat", Api::Cohere, ModelIn::MaybeBody("model")),
    metered_by("/embed", Api::Cohere, ModelIn::MaybeBody("model")),
    metered_by("/rerank", Api::Cohere, ModelIn::MaybeBody("model")),
    free(Method::POST, "/tokenize", ModelIn::MaybeBody("model")),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];

static BEDROCK_ROWS: [Operation; 5] = [
    metered_by("/model/{model}/converse", Api::Converse, ModelIn::Path),
    metered_by("/model/{model}/converse-stream", Api::Converse, ModelIn::Path),
    metered_by("/model/{model}/invoke", Api::Invoke, ModelIn::Path),
    metered_by("/model/{model}/invoke-with-response-stream", Api::Invoke, ModelIn::Path),
    free(Method::POST, "/model/{model}/count-tokens", ModelIn::Path),
];

static ELEVENLABS_ROWS: [Operation; 6] = [
    metered_by("/text-to-speech/{voice}", Api::ElevenLabs, ModelIn::MaybeBody("model_id")),
    metered_by("/text-to-speech/{voice}/stream", Api::ElevenLabs, ModelIn::MaybeBody("model_id")),
    metered_by(
        "/text-to-speech/{voice}/with-timestamps",
        Api::ElevenLabs,
        ModelIn::MaybeBody("model_id"),
    ),
    metered_by(
        "/text-to-speech/{voice}/stream/with-timestamps",
        Api::ElevenLabs,
        ModelIn::MaybeBody("model_id"),
    ),
    metered_by("/speech-to-text", Api::ElevenLabs, ModelIn::Body("model_id")),
    free(Method::GET, "/models", NO_MODEL),
];

static DEEPGRAM_ROWS: [Operation; 5] = [
    metered_by("/listen", Api::Deepgram, ModelIn::Query("model")),
    metered_by("/speak", Api::Deepgram, ModelIn::Query("model")),
    metered_by("/read", Api::Deepgram, NO_MODEL),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];

/// OpenAI.
pub const OPENAI: Rows = &[
    &CHAT_ROWS,
    &RESPONSES_ROWS,
    &EMBEDDINGS_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
    &IMAGE_ROWS,
    &MODERATION_ROWS,
];
/// Chat at siblings of OpenAI.
pub const CHAT: Rows = &[&CHAT_ROWS];
/// Chat and embeddings at siblings of OpenAI.
pub const CHAT_AND_EMBEDDINGS: Rows = &[&CHAT_ROWS, &EMBEDDINGS_ROWS];
/// Anthropic.
pub const ANTHROPIC: Rows = &[&MESSAGES_ROWS, &MODEL_ROWS];
/// Anthropic's messages at other providers.
pub const MESSAGES: Rows = &[&MESSAGES_ROWS];
/// Azure, below its deployments.
pub const AZURE: Rows = &[&AZURE_ROWS];
/// Azure's newer API, as at OpenAI.
pub const AZURE_V1: Rows = &[
    &CHAT_ROWS,
    &RESPONSES_ROWS,
    &EMBEDDINGS_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
    &IMAGE_GENERATION_ROWS,
];
/// Google.
pub const GOOGLE: Rows = &[&GOOGLE_ROWS];
/// Cohere.
pub const COHERE: Rows = &[&COHERE_ROWS];
/// Bedrock.
pub const BEDROCK: Rows = &[&BEDROCK_ROWS];
/// ElevenLabs.
pub const ELEVENLABS: Rows = &[&ELEVENLABS_ROWS];
/// Deepgram.
pub const DEEPGRAM: Rows = &[&DEEPGRAM_ROWS];
/// Mistral.
pub const MISTRAL: Rows = &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &MISTRAL_ROWS, &TRANSCRIPTION_ROWS];
/// Groq.
pub const GROQ: Rows = &[&CHAT_ROWS, &RESPONSES_ROWS, &TRANSCRIPTION_ROWS, &SPEECH_ROWS];
/// xAI.
pub const XAI: Rows =
    &[&CHAT_ROWS, &RESPONSES_ROWS, &EMBEDDINGS_ROWS, &IMAGE_GENERATION_ROWS, &MESSAGES_ROWS];
/// Together.
pub const TOGETHER: Rows = &[
    &CHAT_ROWS,
    &EMBEDDINGS_ROWS,
    &RERANK_ROWS,
    &IMAGE_GENERATION_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
];
/// Fireworks.
pub const FIREWORKS: Rows =
    &[&CHAT_ROWS, &RESPONSES_ROWS, &EMBEDDINGS_ROWS, &RERANK_ROWS, &MESSAGES_ROWS];
/// OpenRouter.
pub const OPENROUTER: Rows = &[&CHAT_ROWS, &RESPONSES_ROWS, &EMBEDDINGS_ROWS, &MESSAGES_ROWS];
/// DeepInfra.
pub const DEEPINFRA: Rows =
    &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &TRANSCRIPTION_ROWS, &SPEECH_ROWS, &IMAGE_GENERATION_ROWS];
/// Moonshot.
pub const MOONSHOT: Rows = &[&CHAT_ROWS, &MOONSHOT_ROWS];
/// Chat_alone.
pub const CHAT_ALONE: Rows = &[&CHAT_ALONE_ROWS];
/// Nebius.
pub const NEBIUS: Rows = &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &IMAGE_GENERATION_ROWS];
