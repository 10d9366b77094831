//! Endpoints: the facts of a call's target that decide how its bodies are read.

use std::borrow::Cow;
use std::sync::Arc;

use http::Method;
use tollgate_pricing::Unit;

use crate::dialect::rows::{DELEGATED_RESPONSE, REALTIME_TRANSCRIPTION};
use crate::dialect::{
    Api, Dialect, HiddenTokens, ModelLocation, ObjectRole, Operation, path_model, path_object,
};

/// The facts of a provider that decide how its bodies are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderTraits {
    /// The provider whose price rows apply, such as `openai`. Some report usage in a way of their
    /// own.
    pub price_list: String,
    /// The dialects of its API.
    pub dialects: Vec<Dialect>,
    /// Whether a managed key may be used with handles to stored things (files, earlier responses,
    /// prompts). This is only safe if every caller may see the stored things of all others.
    pub allow_stored_state: bool,
    /// Whether `stream_options` may be inserted into a streamed body.
    pub stream_options: bool,
    /// Whether chat honours `max_completion_tokens` beside `max_tokens`. If not, that field bounds
    /// nothing.
    pub max_completion_tokens: bool,
}

/// The format of one endpoint: the facts of a call's target that decide how its bodies are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFormat {
    /// The facts of the provider.
    pub provider: Arc<ProviderTraits>,
    /// The method.
    pub method: Method,
    /// The dialect of the provider there.
    pub dialect: Dialect,
    /// The row that it matches.
    pub operation: Option<&'static Operation>,
    /// The path below the base URL of the provider, such as `/chat/completions`.
    pub path: String,
    /// The query, as it was sent.
    pub query: Option<String>,
}

impl EndpointFormat {
    /// The endpoint of a dialect at a path below its base URL, such as `/chat/completions`, at a
    /// provider without particulars.
    pub fn of(dialect: Dialect, method: Method, path: &str) -> Self {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (path, None),
        };
        let provider = ProviderTraits {
            price_list: dialect.as_str().to_owned(),
            dialects: vec![dialect],
            allow_stored_state: false,
            stream_options: matches!(dialect, Dialect::OpenAi | Dialect::Azure),
            max_completion_tokens: matches!(dialect, Dialect::OpenAi | Dialect::Azure),
        };
        Self {
            provider: Arc::new(provider),
            dialect,
            operation: dialect.operation(&method, path),
            method,
            path: path.to_owned(),
            query,
        }
    }

    /// Its part in the life of an object that the provider keeps.
    pub fn object_role(&self) -> ObjectRole {
        self.operation.map_or(ObjectRole::None, |operation| operation.object)
    }

    /// Whether its answer is an object that the provider keeps.
    pub(crate) fn answers_object(&self) -> bool {
        matches!(self.object_role(), ObjectRole::Creates | ObjectRole::Retrieves)
    }

    /// Whether it is a WebSocket.
    pub fn is_socket(&self) -> bool {
        self.method == Method::CONNECT
    }

    /// The endpoint of the transcriptions of its input, which are calls of their own.
    #[must_use]
    pub fn of_transcriptions(&self) -> Self {
        Self { operation: Some(&REALTIME_TRANSCRIPTION), ..self.clone() }
    }

    /// The endpoint of the responses that a session delegates its work to, which are calls of their own. Another endpoint
    /// has the responses itself.
    #[must_use]
    pub fn of_responses(&self) -> Self {
        match self.api() {
            Api::GptLive => Self { operation: Some(&DELEGATED_RESPONSE), ..self.clone() },
            _ => self.clone(),
        }
    }

    /// Whether it creates a batch of requests.
    pub fn creates_batch(&self) -> bool {
        self.object_role() == ObjectRole::Creates && self.api() == Api::Batch
    }

    /// Whether it creates a batch of the requests in an uploaded file.
    pub fn creates_batch_of_file(&self) -> bool {
        self.creates_batch() && self.matches_operation("/batches")
    }

    /// Whether it creates a video.
    pub fn creates_video(&self) -> bool {
        self.object_role() == ObjectRole::Creates && self.api() == Api::Video
    }

    /// Whether it creates a conversation.
    pub fn creates_conversation(&self) -> bool {
        self.api() == Api::Conversation
    }

    /// Whether it uploads a file.
    pub fn creates_file(&self) -> bool {
        self.api() == Api::File
    }

    /// Whether its answers are a batch of requests.
    pub fn answers_batch(&self) -> bool {
        self.api() == Api::Batch
    }

    /// Whether its answer is a long-running operation of Google's.
    pub fn answers_operation(&self) -> bool {
        self.dialect == Dialect::Google
            && matches!(self.api(), Api::Batch | Api::Video)
            && self.answers_object()
    }

    /// The path of an object that a call creates here, by its id.
    pub fn object_path(&self, id: &str) -> String {
        let path = self.path.as_str();
        match path.rsplit_once(':') {
            Some((_, "batchGenerateContent")) => format!("/batches/{id}"),
            // Vertex names the operation in the body.
            Some((model, "predictLongRunning")) if is_vertex(path) => {
                format!("{model}:fetchPredictOperation")
            }
            Some((model, "predictLongRunning")) => format!("{model}/operations/{id}"),
            _ => format!("{path}/{id}"),
        }
    }

    /// The paths of the results of a batch that is retrieved here, with these files.
    pub fn result_paths(&self, files: &[String]) -> Vec<String> {
        let of_files = |path: fn(&String) -> String| files.iter().map(path).collect();
        match self.dialect {
            Dialect::Anthropic => vec![format!("{}/results", self.path)],
            // They are in the operation itself.
            Dialect::Google if files.is_empty() => vec![self.path.clone()],
            Dialect::Google => of_files(|id| format!("/files/{id}:download?alt=media")),
            _ => of_files(|id| format!("/files/{id}/content")),
        }
    }

    /// The path of each request of a batch that is retrieved here. Only OpenAI's object states it.
    pub fn request_path(&self, stated: Option<&str>, model: &str) -> String {
        match (self.dialect, stated) {
            (Dialect::Anthropic, _) => "/messages".to_owned(),
            (Dialect::Google, _) => format!("/models/{model}:generateContent"),
            (_, Some(path)) => path.strip_prefix("/v1").unwrap_or(path).to_owned(),
            (_, None) => "/chat/completions".to_owned(),
        }
    }

    /// The body of the call that retrieves an object here, if the path does not name the object.
    pub fn retrieval_body(&self, id: &str) -> Option<String> {
        let model = self.path.strip_suffix(":fetchPredictOperation")?.trim_start_matches('/');
        Some(format!("{{\"operationName\":\"{model}/operations/{id}\"}}"))
    }

    /// The provider's id of the object that the path names.
    pub fn object_id(&self) -> Option<String> {
        path_object(self.operation?.path, &self.path)
    }

    fn query_pairs(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        url::form_urlencoded::parse(self.query.as_deref().unwrap_or_default().as_bytes())
    }

    /// Whether the call may cost money: its row says so, or it is a POST without a row.
    pub fn metered(&self) -> bool {
        self.operation.map_or(self.method == Method::POST, |operation| operation.metered)
    }

    /// The model that the path or the query names.
    pub(crate) fn named_model(&self) -> Option<String> {
        let operation = self.operation?;
        match operation.model {
            ModelLocation::Path => path_model(operation.path, &self.path),
            ModelLocation::Query(name) => self.query(name),
            ModelLocation::Body(_) | ModelLocation::MaybeBody(_) | ModelLocation::Nowhere => None,
        }
    }

    /// The query parameter that names the model, if one does.
    pub fn model_parameter(&self) -> Option<&'static str> {
        match self.operation?.model {
            ModelLocation::Query(name) => Some(name),
            _ => None,
        }
    }

    /// The query parameter that names the model, if it occurs more than once.
    pub(crate) fn duplicate_model_parameter(&self) -> Option<&'static str> {
        let name = self.model_parameter()?;
        let models = self.query_pairs().filter(|(key, _)| key == name);
        (models.count() > 1).then_some(name)
    }

    /// A query parameter that the managed key may not be used with: it sends the answer elsewhere,
    /// selects parts or forms of it that may lack the usage, or is itself a key.
    pub(crate) fn forbidden_parameter(&self) -> Option<String> {
        let model = match self.operation.map(|operation| operation.model) {
            Some(ModelLocation::Query(name)) => name,
            _ => "",
        };
        // Some servers read fields from the query if the body lacks them.
        let is_of_body = |name: &str| {
            const OF_BODY: [&str; 8] = [
                "model",
                "stream",
                "stream_options",
                "n",
                "max_tokens",
                "max_completion_tokens",
                "max_output_tokens",
                "_method",
            ];
            let has_body = self.method == Method::POST || self.is_socket();
            has_body && name != model && OF_BODY.contains(&name)
        };
        // The content of a file instead of its object.
        let is_download = self.path.ends_with(":download");
        let forbidden = |name: &str, value: &str| match self.dialect {
            _ if is_of_body(name) => true,
            // Its address has none. They might join another session.
            _ if self.api() == Api::GptLive => true,
            // A call that was begun elsewhere.
            _ if name == "call_id" => self.api() == Api::Realtime,
            Dialect::Deepgram => name == "callback" || name == "callback_method",
            Dialect::Google => {
                const KEYS: [&str; 4] = ["key", "$key", "access_token", "oauth_token"];
                KEYS.contains(&name)
                    || matches!(name, "fields" | "$fields" | "$alt" | "callback" | "$callback")
                    || (name == "alt" && !matches!(value, "sse" | "json") && !is_download)
            }
            _ => false,
        };
        let mut pairs = self.query_pairs();
        let found = pairs.find(|(name, value)| forbidden(&name.to_ascii_lowercase(), value))?;
        Some(found.0.into_owned())
    }

    /// Whether this is the listed endpoint with this path.
    pub(crate) fn matches_operation(&self, path: &str) -> bool {
        self.operation.is_some_and(|row| row.path == path)
    }

    /// Whether sound may be the whole body.
    pub(crate) fn takes_sound(&self) -> bool {
        self.matches_operation("/listen") && self.api() == Api::Deepgram
    }

    /// The sets of units of which a price list must have one each, to price the bill of this
    /// endpoint. A model that is listed for another kind of use has no price here.
    pub fn billed_units(&self) -> &'static [&'static [Unit]] {
        const SOUND: &[Unit] = &[Unit::InputSecond, Unit::Input];
        match self.api() {
            Api::Chat
            | Api::Responses
            | Api::Messages
            | Api::GenerateContent
            | Api::Live
            | Api::Converse
            | Api::Invoke => &[&[Unit::Input], &[Unit::Output]],
            // Some models are billed by time.
            Api::Realtime => &[SOUND],
            Api::GptLive => &[&[Unit::InputSecond]],
            Api::Embeddings => &[&[Unit::Input]],
            Api::EmbedContent => &[&[Unit::Input, Unit::InputCharacters]],
            Api::Transcription => &[SOUND],
            Api::Speech => &[&[Unit::InputCharacters, Unit::OutputAudio, Unit::OutputSecond]],
            Api::Images => &[&[Unit::Image, Unit::OutputImage]],
            Api::Video => &[&[Unit::OutputSecond]],
            Api::Predict => &[&[Unit::Image]],
            Api::Ocr => &[&[Unit::Page]],
            Api::Rerank
            | Api::Cohere
            | Api::ElevenLabs
            | Api::Deepgram
            | Api::Batch
            | Api::File
            | Api::Conversation
            | Api::Opaque => &[],
        }
    }

    /// Whether its messages may name uploaded files.
    pub(crate) fn takes_files(&self) -> bool {
        matches!(self.dialect, Dialect::OpenAi | Dialect::Azure)
            && matches!(self.api(), Api::Chat | Api::Responses)
    }

    /// Whether a body may be a form: on endpoints that take files, and on unknown ones.
    pub(crate) fn takes_forms(&self) -> bool {
        self.operation.is_none_or(|operation| {
            matches!(operation.api, Api::Transcription | Api::Images | Api::Video | Api::ElevenLabs)
        })
    }

    /// Whether `max_completion_tokens` bounds an answer.
    pub(crate) fn honours_max_completion_tokens(&self) -> bool {
        let is_chat = self.operation.is_some_and(|row| row.path.ends_with("/chat/completions"));
        is_chat && self.provider.max_completion_tokens
    }

    /// The most tokens that the provider counts beyond the bytes of a body. If a provider has
    /// OpenAI's format beside its own, its models count as in its own format.
    pub(crate) fn hidden_tokens(&self) -> HiddenTokens {
        let own = self.dialect.hidden_tokens();
        let others = self.provider.dialects.iter().filter(|_| self.dialect == Dialect::OpenAi);
        others.fold(own, |most, dialect| most.max(dialect.hidden_tokens()))
    }

    /// The value of a parameter of the query.
    pub fn query(&self, name: &str) -> Option<String> {
        let (_, value) = self.query_pairs().find(|(key, _)| key == name)?;
        Some(value.into_owned())
    }

    pub(crate) fn api(&self) -> Api {
        match self.operation {
            Some(operation) => operation.api,
            None => self.dialect.fallback_api(),
        }
    }
}

/// Whether a path is one of Vertex AI, which has an operation for videos that names the object in the body.
fn is_vertex(path: &str) -> bool {
    path.contains("/publishers/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paths_of_objects_and_results_are_those_of_the_provider() {
        let at = |dialect, path: &str| EndpointFormat::of(dialect, Method::POST, path);
        assert_eq!(at(Dialect::OpenAi, "/responses").object_path("r"), "/responses/r");
        let google = |path: &str| at(Dialect::Google, path).object_path("o");
        assert_eq!(google("/models/g:batchGenerateContent"), "/batches/o");
        assert_eq!(google("/models/veo:predictLongRunning"), "/models/veo/operations/o");
        let model = "/projects/p/locations/l/publishers/google/models/veo";
        let fetch = google(&format!("{model}:predictLongRunning"));
        assert_eq!(fetch, format!("{model}:fetchPredictOperation"));
        let body = at(Dialect::Google, &fetch).retrieval_body("o");
        let name = "projects/p/locations/l/publishers/google/models/veo/operations/o";
        assert_eq!(body, Some(format!(r#"{{"operationName":"{name}"}}"#)));
        let of = |dialect, path: &str, files: &[&str]| {
            let files: Vec<_> = files.iter().map(|id| (*id).to_owned()).collect();
            at(dialect, path).result_paths(&files)
        };
        assert_eq!(of(Dialect::OpenAi, "/batches/b", &["f"]), ["/files/f/content"]);
        assert_eq!(
            of(Dialect::Anthropic, "/messages/batches/b", &[]),
            ["/messages/batches/b/results"]
        );
        assert_eq!(of(Dialect::Google, "/batches/b", &[]), ["/batches/b"]);
        assert_eq!(of(Dialect::Google, "/batches/b", &["f"]), ["/files/f:download?alt=media"]);
    }
}
