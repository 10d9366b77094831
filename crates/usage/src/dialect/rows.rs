//! The endpoints on which a managed key may be used. A row is either metered by an extractor, or
//! free and harmless, or concerns an object that belongs to the caller. Fine-tuning and
//! administration have no rows.

use http::Method;

use super::operation::{
    Api, ModelLocation, ObjectRole, Operation, creates, free, keeps, metered, metered_by,
    of_object, socket,
};

/// Sets of rows, in the order in which they are tried.
pub type OperationSets = &'static [&'static [Operation]];

const NO_MODEL: ModelLocation = ModelLocation::Nowhere;

static CHAT_ROWS: [Operation; 4] = [
    metered("/chat/completions", Api::Chat),
    metered("/completions", Api::Chat),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];
static RESPONSES_ROWS: [Operation; 2] = [
    metered("/responses", Api::Responses),
    free(Method::POST, "/responses/input_tokens", ModelLocation::MaybeBody("model")),
];
/// Responses that the provider keeps.
static KEPT_RESPONSES_ROWS: [Operation; 6] = [
    creates("/responses", Api::Responses, ModelLocation::Body("model")),
    free(Method::POST, "/responses/input_tokens", ModelLocation::MaybeBody("model")),
    of_object(Method::GET, "/responses/{object}", Api::Responses, ObjectRole::Retrieves),
    of_object(Method::POST, "/responses/{object}/cancel", Api::Responses, ObjectRole::Retrieves),
    of_object(Method::GET, "/responses/{object}/input_items", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/responses/{object}", Api::Opaque, ObjectRole::Deletes),
];
/// Responses over one connection: each message has the body of a call.
static RESPONSES_SOCKET_ROWS: [Operation; 1] =
    [socket("/responses", Api::Responses, ModelLocation::Body("model"), ObjectRole::Creates)];
/// Conversations over one connection.
static REALTIME_ROWS: [Operation; 1] =
    [socket("/realtime", Api::Realtime, ModelLocation::Query("model"), ObjectRole::None)];
static AZURE_REALTIME_ROWS: [Operation; 1] =
    [socket("/realtime", Api::Realtime, ModelLocation::Query("deployment"), ObjectRole::None)];
/// The transcription of the input of such a conversation.
pub(crate) static REALTIME_TRANSCRIPTION: Operation =
    socket("/realtime", Api::Transcription, NO_MODEL, ObjectRole::None);
/// Conversations over one connection that are billed by their time.
static GPT_LIVE_ROWS: [Operation; 1] =
    [socket("/live/sessions", Api::GptLive, ModelLocation::Body("model"), ObjectRole::None)];
/// The responses that such a conversation delegates its work to.
pub(crate) static DELEGATED_RESPONSE: Operation =
    socket("/live/sessions", Api::Responses, ModelLocation::Body("model"), ObjectRole::None);
/// The paths are below the origin, and not below the base URL.
static LIVE_ROWS: [Operation; 3] = [
    live("/ws/google.ai.generativelanguage.v1.GenerativeService.BidiGenerateContent"),
    live("/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"),
    live("/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent"),
];
const fn live(path: &'static str) -> Operation {
    socket(path, Api::Live, ModelLocation::Body("model"), ObjectRole::None)
}
static EMBEDDINGS_ROWS: [Operation; 1] = [metered("/embeddings", Api::Embeddings)];
static TRANSCRIPTION_ROWS: [Operation; 2] = [
    metered("/audio/transcriptions", Api::Transcription),
    metered("/audio/translations", Api::Transcription),
];
static SPEECH_ROWS: [Operation; 1] = [metered("/audio/speech", Api::Speech)];
static IMAGE_ROWS: [Operation; 3] = [
    metered_by("/images/generations", Api::Images, ModelLocation::MaybeBody("model")),
    metered_by("/images/edits", Api::Images, ModelLocation::MaybeBody("model")),
    metered_by("/images/variations", Api::Images, ModelLocation::MaybeBody("model")),
];
static IMAGE_GENERATION_ROWS: [Operation; 1] = [metered("/images/generations", Api::Images)];
/// Free at OpenAI, and billed elsewhere.
static MODERATION_ROWS: [Operation; 1] =
    [free(Method::POST, "/moderations", ModelLocation::MaybeBody("model"))];
static RERANK_ROWS: [Operation; 1] = [metered("/rerank", Api::Rerank)];
static MESSAGES_ROWS: [Operation; 2] = [
    metered("/messages", Api::Messages),
    free(Method::POST, "/messages/count_tokens", ModelLocation::Body("model")),
];
static MESSAGE_BATCH_ROWS: [Operation; 6] = [
    creates("/messages/batches", Api::Batch, NO_MODEL),
    of_object(Method::GET, "/messages/batches", Api::Opaque, ObjectRole::Lists),
    of_object(Method::GET, "/messages/batches/{object}", Api::Batch, ObjectRole::Retrieves),
    of_object(Method::POST, "/messages/batches/{object}/cancel", Api::Batch, ObjectRole::Retrieves),
    of_object(Method::GET, "/messages/batches/{object}/results", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/messages/batches/{object}", Api::Opaque, ObjectRole::Deletes),
];
/// Videos, which are made later.
static VIDEO_ROWS: [Operation; 5] = [
    creates("/videos", Api::Video, ModelLocation::Body("model")),
    of_object(Method::GET, "/videos", Api::Opaque, ObjectRole::Lists),
    of_object(Method::GET, "/videos/{object}", Api::Video, ObjectRole::Retrieves),
    of_object(Method::GET, "/videos/{object}/content", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/videos/{object}", Api::Opaque, ObjectRole::Deletes),
];
/// Conversations, which responses continue.
static CONVERSATION_ROWS: [Operation; 8] = [
    keeps("/conversations", Api::Conversation),
    of_object(Method::GET, "/conversations/{object}", Api::Opaque, ObjectRole::Uses),
    of_object(Method::POST, "/conversations/{object}", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/conversations/{object}", Api::Opaque, ObjectRole::Deletes),
    of_object(Method::GET, "/conversations/{object}/items", Api::Opaque, ObjectRole::Uses),
    of_object(Method::POST, "/conversations/{object}/items", Api::Opaque, ObjectRole::Uses),
    of_object(Method::GET, "/conversations/{object}/items/{item}", Api::Opaque, ObjectRole::Uses),
    of_object(
        Method::DELETE,
        "/conversations/{object}/items/{item}",
        Api::Opaque,
        ObjectRole::Uses,
    ),
];
/// Files for batches, and batches of the requests in a file.
static FILE_BATCH_ROWS: [Operation; 9] = [
    keeps("/files", Api::File),
    of_object(Method::GET, "/files", Api::Opaque, ObjectRole::Lists),
    of_object(Method::GET, "/files/{object}", Api::Opaque, ObjectRole::Uses),
    of_object(Method::GET, "/files/{object}/content", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/files/{object}", Api::Opaque, ObjectRole::Deletes),
    creates("/batches", Api::Batch, NO_MODEL),
    of_object(Method::GET, "/batches", Api::Opaque, ObjectRole::Lists),
    of_object(Method::GET, "/batches/{object}", Api::Batch, ObjectRole::Retrieves),
    of_object(Method::POST, "/batches/{object}/cancel", Api::Batch, ObjectRole::Retrieves),
];
static MODEL_ROWS: [Operation; 2] =
    [free(Method::GET, "/models", NO_MODEL), free(Method::GET, "/models/{model}", NO_MODEL)];
static MISTRAL_ROWS: [Operation; 3] = [
    metered("/fim/completions", Api::Chat),
    metered("/ocr", Api::Ocr),
    metered("/moderations", Api::Embeddings),
];
static MOONSHOT_ROWS: [Operation; 1] =
    [free(Method::POST, "/tokenizers/estimate-token-count", ModelLocation::Body("model"))];
static CHAT_ALONE_ROWS: [Operation; 1] = [metered("/chat/completions", Api::Chat)];

static AZURE_ROWS: [Operation; 8] = [
    metered_by("/deployments/{deployment}/chat/completions", Api::Chat, ModelLocation::Path),
    metered_by("/deployments/{deployment}/completions", Api::Chat, ModelLocation::Path),
    metered_by("/deployments/{deployment}/embeddings", Api::Embeddings, ModelLocation::Path),
    metered_by(
        "/deployments/{deployment}/audio/transcriptions",
        Api::Transcription,
        ModelLocation::Path,
    ),
    metered_by(
        "/deployments/{deployment}/audio/translations",
        Api::Transcription,
        ModelLocation::Path,
    ),
    metered_by("/deployments/{deployment}/audio/speech", Api::Speech, ModelLocation::Path),
    metered_by("/deployments/{deployment}/images/generations", Api::Images, ModelLocation::Path),
    free(Method::GET, "/models", NO_MODEL),
];

static GOOGLE_ROWS: [Operation; 12] = [
    metered_by("/models/{model}:generateContent", Api::GenerateContent, ModelLocation::Path),
    metered_by("/models/{model}:streamGenerateContent", Api::GenerateContent, ModelLocation::Path),
    metered_by("/models/{model}:embedContent", Api::EmbedContent, ModelLocation::Path),
    metered_by("/models/{model}:batchEmbedContents", Api::EmbedContent, ModelLocation::Path),
    metered_by("/models/{model}:predict", Api::Predict, ModelLocation::Path),
    free(Method::POST, "/models/{model}:countTokens", ModelLocation::Path),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
    // Vertex.
    metered_by(
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:generateContent",
        Api::GenerateContent,
        ModelLocation::Path,
    ),
    metered_by(
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:streamGenerateContent",
        Api::GenerateContent,
        ModelLocation::Path,
    ),
    metered_by(
        "/publishers/google/models/{model}:generateContent",
        Api::GenerateContent,
        ModelLocation::Path,
    ),
    metered_by(
        "/publishers/google/models/{model}:streamGenerateContent",
        Api::GenerateContent,
        ModelLocation::Path,
    ),
];

/// Batches and videos, which are answered later by operations, and the files of videos.
static GOOGLE_JOB_ROWS: [Operation; 12] = [
    creates("/models/{model}:batchGenerateContent", Api::Batch, ModelLocation::Path),
    of_object(Method::GET, "/batches", Api::Opaque, ObjectRole::Lists),
    of_object(Method::GET, "/batches/{object}", Api::Batch, ObjectRole::Retrieves),
    of_object(Method::POST, "/batches/{object}:cancel", Api::Opaque, ObjectRole::Uses),
    of_object(Method::DELETE, "/batches/{object}", Api::Opaque, ObjectRole::Deletes),
    creates("/models/{model}:predictLongRunning", Api::Video, ModelLocation::Path),
    of_object(
        Method::GET,
        "/models/{model}/operations/{object}",
        Api::Video,
        ObjectRole::Retrieves,
    ),
    of_object(Method::GET, "/files/{object}:download", Api::Opaque, ObjectRole::Uses),
    // Vertex.
    creates(
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:predictLongRunning",
        Api::Video,
        ModelLocation::Path,
    ),
    of_object(
        Method::POST,
        "/projects/{project}/locations/{location}/publishers/google/models/{model}:fetchPredictOperation",
        Api::Video,
        ObjectRole::Retrieves,
    ),
    creates(
        "/publishers/google/models/{model}:predictLongRunning",
        Api::Video,
        ModelLocation::Path,
    ),
    of_object(
        Method::POST,
        "/publishers/google/models/{model}:fetchPredictOperation",
        Api::Video,
        ObjectRole::Retrieves,
    ),
];

static COHERE_ROWS: [Operation; 6] = [
    metered_by("/chat", Api::Cohere, ModelLocation::MaybeBody("model")),
    metered_by("/embed", Api::Cohere, ModelLocation::MaybeBody("model")),
    metered_by("/rerank", Api::Cohere, ModelLocation::MaybeBody("model")),
    free(Method::POST, "/tokenize", ModelLocation::MaybeBody("model")),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];

static BEDROCK_ROWS: [Operation; 5] = [
    metered_by("/model/{model}/converse", Api::Converse, ModelLocation::Path),
    metered_by("/model/{model}/converse-stream", Api::Converse, ModelLocation::Path),
    metered_by("/model/{model}/invoke", Api::Invoke, ModelLocation::Path),
    metered_by("/model/{model}/invoke-with-response-stream", Api::Invoke, ModelLocation::Path),
    free(Method::POST, "/model/{model}/count-tokens", ModelLocation::Path),
];

static ELEVENLABS_ROWS: [Operation; 6] = [
    metered_by("/text-to-speech/{voice}", Api::ElevenLabs, ModelLocation::MaybeBody("model_id")),
    metered_by(
        "/text-to-speech/{voice}/stream",
        Api::ElevenLabs,
        ModelLocation::MaybeBody("model_id"),
    ),
    metered_by(
        "/text-to-speech/{voice}/with-timestamps",
        Api::ElevenLabs,
        ModelLocation::MaybeBody("model_id"),
    ),
    metered_by(
        "/text-to-speech/{voice}/stream/with-timestamps",
        Api::ElevenLabs,
        ModelLocation::MaybeBody("model_id"),
    ),
    metered_by("/speech-to-text", Api::ElevenLabs, ModelLocation::Body("model_id")),
    free(Method::GET, "/models", NO_MODEL),
];

static DEEPGRAM_ROWS: [Operation; 5] = [
    metered_by("/listen", Api::Deepgram, ModelLocation::Query("model")),
    metered_by("/speak", Api::Deepgram, ModelLocation::Query("model")),
    metered_by("/read", Api::Deepgram, NO_MODEL),
    free(Method::GET, "/models", NO_MODEL),
    free(Method::GET, "/models/{model}", NO_MODEL),
];

/// OpenAI.
pub const OPENAI: OperationSets = &[
    &CHAT_ROWS,
    &KEPT_RESPONSES_ROWS,
    &RESPONSES_SOCKET_ROWS,
    &REALTIME_ROWS,
    &GPT_LIVE_ROWS,
    &EMBEDDINGS_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
    &IMAGE_ROWS,
    &MODERATION_ROWS,
    &FILE_BATCH_ROWS,
    &VIDEO_ROWS,
    &CONVERSATION_ROWS,
];
/// Chat at siblings of OpenAI.
pub const CHAT: OperationSets = &[&CHAT_ROWS];
/// Chat and embeddings at siblings of OpenAI.
pub const CHAT_AND_EMBEDDINGS: OperationSets = &[&CHAT_ROWS, &EMBEDDINGS_ROWS];
/// Anthropic.
pub const ANTHROPIC: OperationSets = &[&MESSAGES_ROWS, &MESSAGE_BATCH_ROWS, &MODEL_ROWS];
/// Anthropic's messages at other providers.
pub const MESSAGES: OperationSets = &[&MESSAGES_ROWS];
/// Azure, below its deployments.
pub const AZURE: OperationSets =
    &[&AZURE_ROWS, &AZURE_REALTIME_ROWS, &KEPT_RESPONSES_ROWS, &FILE_BATCH_ROWS];
/// Azure's newer API, as at OpenAI.
pub const AZURE_V1: OperationSets = &[
    &CHAT_ROWS,
    &KEPT_RESPONSES_ROWS,
    &RESPONSES_SOCKET_ROWS,
    &REALTIME_ROWS,
    &GPT_LIVE_ROWS,
    &EMBEDDINGS_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
    &IMAGE_GENERATION_ROWS,
    &FILE_BATCH_ROWS,
    &VIDEO_ROWS,
    &CONVERSATION_ROWS,
];
/// Google.
pub const GOOGLE: OperationSets = &[&GOOGLE_ROWS, &GOOGLE_JOB_ROWS, &LIVE_ROWS];
/// Cohere.
pub const COHERE: OperationSets = &[&COHERE_ROWS];
/// Bedrock.
pub const BEDROCK: OperationSets = &[&BEDROCK_ROWS];
/// ElevenLabs.
pub const ELEVENLABS: OperationSets = &[&ELEVENLABS_ROWS];
/// Deepgram.
pub const DEEPGRAM: OperationSets = &[&DEEPGRAM_ROWS];
/// Mistral.
pub const MISTRAL: OperationSets =
    &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &MISTRAL_ROWS, &TRANSCRIPTION_ROWS];
/// Groq.
pub const GROQ: OperationSets =
    &[&CHAT_ROWS, &RESPONSES_ROWS, &TRANSCRIPTION_ROWS, &SPEECH_ROWS, &FILE_BATCH_ROWS];
/// xAI.
pub const XAI: OperationSets = &[
    &CHAT_ROWS,
    &KEPT_RESPONSES_ROWS,
    &RESPONSES_SOCKET_ROWS,
    &EMBEDDINGS_ROWS,
    &IMAGE_GENERATION_ROWS,
    &MESSAGES_ROWS,
];
/// Together.
pub const TOGETHER: OperationSets = &[
    &CHAT_ROWS,
    &EMBEDDINGS_ROWS,
    &RERANK_ROWS,
    &IMAGE_GENERATION_ROWS,
    &TRANSCRIPTION_ROWS,
    &SPEECH_ROWS,
];
/// Fireworks.
pub const FIREWORKS: OperationSets =
    &[&CHAT_ROWS, &KEPT_RESPONSES_ROWS, &EMBEDDINGS_ROWS, &RERANK_ROWS, &MESSAGES_ROWS];
/// OpenRouter.
pub const OPENROUTER: OperationSets =
    &[&CHAT_ROWS, &RESPONSES_ROWS, &EMBEDDINGS_ROWS, &MESSAGES_ROWS];
/// DeepInfra.
pub const DEEPINFRA: OperationSets =
    &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &TRANSCRIPTION_ROWS, &SPEECH_ROWS, &IMAGE_GENERATION_ROWS];
/// Moonshot.
pub const MOONSHOT: OperationSets = &[&CHAT_ROWS, &MOONSHOT_ROWS];
/// Chat without the list of models.
pub const CHAT_ALONE: OperationSets = &[&CHAT_ALONE_ROWS];
/// Nebius.
pub const NEBIUS: OperationSets = &[&CHAT_ROWS, &EMBEDDINGS_ROWS, &IMAGE_GENERATION_ROWS];
