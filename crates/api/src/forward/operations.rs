//! The forwarding operations, as routes mount them and as the OpenAPI document describes them.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};
use tollgate_domain::{AnswerReport, Metadata, RequestFormat};
use tollgate_gateway::{
    Credential, DropInRoute, InboundCall, OutboundCall, SocketRoute, spawn_call,
};
use tollgate_provider::ProviderClient;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{Content, HeaderBuilder, Ref, RefOr, Response, ResponseBuilder, Schema};
use utoipa::{IntoParams, IntoResponses, ToSchema};

use super::inbound::{read_call, request_head};
use super::refused::CallFacts;
use super::response::response;
use super::sockets::{is_upgrade, open_socket};
use crate::access::AccessEntry;
use crate::app::App;
use crate::http::error::ApiError;
use crate::http::fields::PositiveAmount;
use crate::openapi::fields::MetadataSchema;
use crate::openapi::marks::{CALL_ERRORS, ShapeAErrors, ShapeBErrors, mark, refused};
use crate::openapi::types::*;

/// The query of a forward, as documents have it.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct ForwardQuery {
    /// The provider's URL, percent-encoded.
    #[param(max_length = 8192, example = "https://api.openai.com/v1/chat/completions")]
    u: String,
    /// Metadata of the record.
    metadata: Option<Metadata>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read by its derive only")]
struct RunHeaders {
    /// The run of the call. Without the header, it is the value of `run` in the metadata.
    #[param(rename = "x-service-run", nullable = false, value_type = Option<String>, pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    run: Option<String>,
    /// The most US dollars of the run. The first call sets it, and later ones may lower it.
    #[param(rename = "x-service-run-limit", nullable = false, value_type = Option<PositiveAmount>)]
    run_limit: Option<PositiveAmount>,
}

/// The part of the query of a drop-in route that this service reads; the rest is the provider's.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct DropInQuery {
    /// Metadata of the record.
    metadata: Option<Metadata>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read by its derive only")]
struct MetadataHeader {
    /// As `metadata` in the query, over which it takes precedence.
    #[param(rename = "x-service-metadata", nullable = false)]
    metadata: Option<Metadata>,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "read by its derive only")]
struct ReportHeader {
    /// `cost`: the answer says what the call cost, in headers, or in a comment of a stream.
    #[param(rename = "x-service-report", nullable = false, value_type = Option<AnswerReport>)]
    report: Option<AnswerReport>,
}

/// The body of a call. It is sent to the provider byte for byte.
struct CallInput;

/// The body of a call on a drop-in route, where the model names the provider.
struct ModelCallInput;

looks! {
    CallInput as "Call" => call_schema()
        .description(Some("The provider's own. These fields are read here, if they are there."));
    ModelCallInput as "ModelCall" => call_schema()
        .description(Some("The provider's own. These fields are read here."))
        .required("model");
}

fn call_schema() -> ObjectBuilder {
    let or_null = |kind: Type| SchemaType::Array(vec![kind, Type::Null]);
    let flag = || ObjectBuilder::new().schema_type(or_null(Type::Boolean));
    let whole = || ObjectBuilder::new().schema_type(or_null(Type::Integer)).minimum(Some(0));
    let model = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    let model = model.description(Some("The model."));
    let stream = flag().description(Some("Whether the answer is a stream of events."));
    let maxima = [
        ("max_tokens", "The most tokens of an answer."),
        ("max_completion_tokens", "The most tokens of an answer, with reasoning."),
        ("max_output_tokens", "The most tokens of an answer, with reasoning."),
        ("n", "The number of answers."),
        ("best_of", "The number of answers of which the best is returned."),
    ];
    let fields = ObjectBuilder::new().property("model", model).property("stream", stream);
    maxima
        .into_iter()
        .fold(fields, |fields, (name, text)| fields.property(name, whole().description(Some(text))))
        .additional_properties(Some(ObjectBuilder::new().schema_type(SchemaType::AnyValue)))
}

/// The responses of a call: the provider's own, or an error of this service.
enum CallResponses {}

impl IntoResponses for CallResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let anything = || Content::new(None::<RefOr<Schema>>);
        let record = HeaderBuilder::new()
            .schema(Ref::from_schema_name(RequestIdSchema::name()))
            .description(Some("The id of the record"))
            .build();
        let answered = ResponseBuilder::new()
            .description("What the provider answers")
            .content("application/json", anything())
            .content("text/event-stream", anything())
            .content("*/*", anything())
            .header("x-service-request-id", record);
        let otherwise = ResponseBuilder::new()
            .description("What else the provider answers")
            .content("*/*", anything());
        let mut responses = mark(CALL_ERRORS);
        responses.insert("200".to_owned(), answered.build().into());
        responses.insert("default".to_owned(), otherwise.build().into());
        responses
    }
}

/// The responses of the upgrade to a WebSocket.
enum SocketResponses {}

impl IntoResponses for SocketResponses {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut responses = mark(CALL_ERRORS);
        let opened = ResponseBuilder::new().description("The WebSocket is open");
        responses.insert("101".to_owned(), opened.build().into());
        responses.extend(refused::UpgradeRequired::responses());
        responses
    }
}

/// Forward a call to a provider.
///
/// The answer is the provider's, with its status. With `stream` it is an event stream.
#[utoipa::path(
    post,
    path = "/forward",
    operation_id = "forward",
    params(ForwardQuery, MetadataHeader, ReportHeader, RunHeaders),
    request_body(
        content((CallInput = "application/json"), (CallInput = "multipart/form-data"), ("*/*")),
    ),
    responses(CallResponses),
    security(("credential" = [])),
)]
pub(crate) async fn forward(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    answer(&app, async |facts| {
        if is_upgrade(&http) {
            let (route, credential) = (SocketRoute::Url, Credential::of);
            return open_socket(&http, payload, route, credential, &app, &client, facts).await;
        }
        let inbound = read_call(&http, payload, Credential::of, &app, facts).await?;
        let outbound = OutboundCall::for_url(&request_head(&http), &inbound, &app.gateway)?;
        facts.checked(outbound.summary());
        relay(&http, inbound, outbound, &app, client).await
    })
    .await
}

/// Get something from a provider.
#[utoipa::path(
    get,
    path = "/forward",
    operation_id = "forwardGet",
    params(ForwardQuery, MetadataHeader, ReportHeader, RunHeaders),
    responses(CallResponses, refused::ProviderObjectNotFound),
    security(("credential" = [])),
)]
pub(crate) async fn forward_get(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    forward(http, payload, app, client).await
}

/// Delete something at a provider.
#[utoipa::path(
    delete,
    path = "/forward",
    operation_id = "forwardDelete",
    params(ForwardQuery, MetadataHeader, ReportHeader, RunHeaders),
    responses(CallResponses, refused::ProviderObjectNotFound, refused::JobRunning),
    security(("credential" = [])),
)]
pub(crate) async fn forward_delete(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    forward(http, payload, app, client).await
}

/// The routes of the providers' own SDKs, where the model names the provider.
macro_rules! drop_ins {
    ($( $(#[$doc:meta])* $name:ident = $path:literal $id:literal $Input:ident $Shape:ident; )*) => { $(
        $(#[$doc])*
        #[utoipa::path(
            post,
            path = $path,
            operation_id = $id,
            params(DropInQuery, MetadataHeader, ReportHeader, RunHeaders),
            request_body(content(($Input = "application/json"), ("*/*"))),
            responses(CallResponses, $Shape),
            security(("credential" = [])),
        )]
        pub(crate) async fn $name(
            http: HttpRequest,
            payload: web::Payload,
            app: web::Data<App>,
            client: web::Data<ProviderClient>,
        ) -> Result<HttpResponse, ApiError> {
            drop_in(http, payload, app, client).await
        }
    )* };
}

drop_ins! {
    /// Chat, in OpenAI's format (format a).
    chat_completions = "/chat/completions" "createChatCompletion" ModelCallInput ShapeAErrors;
    /// Complete a text, in OpenAI's older format (format a).
    completions = "/completions" "createCompletion" ModelCallInput ShapeAErrors;
    /// Answer, in OpenAI's format (format a).
    responses = "/responses" "createResponse" ModelCallInput ShapeAErrors;
    /// Count the tokens of a question, in OpenAI's format (format a).
    input_tokens = "/responses/input_tokens" "countInputTokens" CallInput ShapeAErrors;
    /// Embed, in OpenAI's format (format a).
    embeddings = "/embeddings" "createEmbedding" ModelCallInput ShapeAErrors;
    /// Make images, in OpenAI's format (format a).
    images = "/images/generations" "createImage" CallInput ShapeAErrors;
    /// Change images, in OpenAI's format (format a).
    image_edits = "/images/edits" "createImageEdit" CallInput ShapeAErrors;
    /// Make a video, in OpenAI's format (format a).
    ///
    /// The video is a job. It holds the price of its seconds, and costs that when it is complete.
    create_video = "/videos" "createVideo" ModelCallInput ShapeAErrors;
    /// Read a text aloud, in OpenAI's format (format a).
    speech = "/audio/speech" "createSpeech" ModelCallInput ShapeAErrors;
    /// Write down speech, in OpenAI's format (format a).
    transcriptions = "/audio/transcriptions" "createTranscription" CallInput ShapeAErrors;
    /// Write down speech in English, in OpenAI's format (format a).
    translations = "/audio/translations" "createTranslation" CallInput ShapeAErrors;
    /// Judge a text, in OpenAI's format (format a).
    moderations = "/moderations" "createModeration" CallInput ShapeAErrors;
    /// Rank documents.
    rerank = "/rerank" "rerank" ModelCallInput ShapeAErrors;
    /// Chat, in Anthropic's format (format b).
    messages = "/messages" "createMessage" ModelCallInput ShapeBErrors;
    /// Count tokens, in Anthropic's format (format b).
    count_tokens = "/messages/count_tokens" "countTokens" ModelCallInput ShapeBErrors;
    /// Begin a batch of messages, in Anthropic's format (format b).
    ///
    /// The batch is a job. It holds the most that all of its requests can cost, at the prices of batches.
    create_message_batch = "/messages/batches" "createMessageBatch" CallInput ShapeBErrors;
    /// Begin a batch of the requests in a file, in OpenAI's format (format a).
    ///
    /// The batch is a job. It holds the most that all of its requests can cost, at the prices of batches.
    create_batch = "/batches" "createBatch" CallInput ShapeAErrors;
    /// Create a conversation, in OpenAI's format (format a).
    create_conversation = "/conversations" "createConversation" CallInput ShapeAErrors;
}

/// The routes of SDKs that have a version of their own in the path.
macro_rules! native {
    ($( $(#[$doc:meta])* $name:ident = $path:literal $id:literal; )*) => { $(
        $(#[$doc])*
        #[utoipa::path(
            post,
            path = $path,
            operation_id = $id,
            params(DropInQuery, MetadataHeader, ReportHeader, RunHeaders),
            request_body = CallInput,
            responses(CallResponses),
            security(("credential" = [])),
        )]
        pub(crate) async fn $name(
            http: HttpRequest,
            payload: web::Payload,
            app: web::Data<App>,
            client: web::Data<ProviderClient>,
        ) -> Result<HttpResponse, ApiError> {
            drop_in(http, payload, app, client).await
        }
    )* };
}

native! {
    /// Chat, in Cohere's format.
    cohere_chat = "/v2/chat" "cohereChat";
    /// Embed, in Cohere's format.
    cohere_embed = "/v2/embed" "cohereEmbed";
    /// Rank documents, in Cohere's format.
    cohere_rerank = "/v2/rerank" "cohereRerank";
}

/// Call a model, in Google's format.
///
/// `call` is `generateContent`, `streamGenerateContent`, `countTokens`, `embedContent`,
/// `batchEmbedContents`, `batchGenerateContent` or `predictLongRunning`. The last two make a job.
#[utoipa::path(
    post,
    path = "/v1beta/models/{model}:{call}",
    operation_id = "googleCall",
    params(
        ("model" = String, Path, description = "The model"),
        ("call" = String, Path, description = "What it is to do"),
        DropInQuery, MetadataHeader, ReportHeader, RunHeaders,
    ),
    request_body = CallInput,
    responses(CallResponses),
    security(("credential" = [])),
)]
pub(crate) async fn google(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    drop_in(http, payload, app, client).await
}

/// List the batches of this wallet, in Google's format.
#[utoipa::path(
    get,
    path = "/v1beta/batches",
    operation_id = "listGoogleBatches",
    params(
        ("pageSize" = Option<u32>, Query, description = "From 1 to 10000. A page has at most 100."),
        ("pageToken" = Option<String>, Query, description = "The nextPageToken of the page before"),
        DropInQuery, MetadataHeader, RunHeaders,
    ),
    responses(CallResponses),
    security(("credential" = [])),
)]
pub(crate) async fn list_google_batches(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    drop_in(http, payload, app, client).await
}

/// Call a provider by its name.
///
/// The path is one of the provider's own API, relative to its base URL. A path that repeats the path of the
/// base URL is relative to its origin.
#[utoipa::path(
    post,
    path = "/providers/{provider}/{path:.+}",
    operation_id = "callProvider",
    params(
        ("provider" = String, Path, description = "Its name in the configuration"),
        ("path" = String, Path, description = "It may have slashes"),
        DropInQuery, MetadataHeader, ReportHeader, RunHeaders,
    ),
    request_body(
        content((CallInput = "application/json"), (CallInput = "multipart/form-data"), ("*/*")),
    ),
    responses(CallResponses),
    security(("credential" = [])),
)]
pub(crate) async fn call_provider(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    let answer = answer(&app, async |facts| {
        let name = http.match_info().get("provider").unwrap_or_default();
        if is_upgrade(&http) {
            let (route, credential) = (SocketRoute::Provider(name), Credential::of_sdk);
            return open_socket(&http, payload, route, credential, &app, &client, facts).await;
        }
        let inbound = read_call(&http, payload, Credential::of_sdk, &app, facts).await?;
        let head = request_head(&http);
        let mut outbound = OutboundCall::for_provider(&head, name, &inbound, &app.gateway)?;
        outbound.lead_results_to(|| address(&http, &format!("/v1/providers/{name}/v1")));
        facts.checked(outbound.summary());
        relay(&http, inbound, outbound, &app, client).await
    });
    answer.await.map_err(|error| error.for_sdk_of(&http))
}

/// Get something of a provider by its name.
#[utoipa::path(
    get,
    path = "/providers/{provider}/{path:.+}",
    operation_id = "getOfProvider",
    params(
        ("provider" = String, Path, description = "Its name in the configuration"),
        ("path" = String, Path, description = "It may have slashes"),
        DropInQuery, MetadataHeader, ReportHeader, RunHeaders,
    ),
    responses(CallResponses, refused::ProviderObjectNotFound),
    security(("credential" = [])),
)]
pub(crate) async fn get_from_provider(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    call_provider(http, payload, app, client).await
}

/// Delete something at a provider by its name.
#[utoipa::path(
    delete,
    path = "/providers/{provider}/{path:.+}",
    operation_id = "deleteAtProvider",
    params(
        ("provider" = String, Path, description = "Its name in the configuration"),
        ("path" = String, Path, description = "It may have slashes"),
        DropInQuery, MetadataHeader, ReportHeader, RunHeaders,
    ),
    responses(CallResponses, refused::ProviderObjectNotFound, refused::JobRunning),
    security(("credential" = [])),
)]
pub(crate) async fn delete_at_provider(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    call_provider(http, payload, app, client).await
}

/// The routes of an object that the provider keeps. Each block has the parameters of its paths, and the format of errors
/// if SDKs expect one.
macro_rules! kept_objects {
    ($params:tt $errors:ty {
        $( $(#[$doc:meta])* $name:ident = $method:ident $path:literal $id:literal $($refused:path),*; )*
    }) => { $(
        $(#[$doc])*
        #[utoipa::path(
            $method,
            path = $path,
            operation_id = $id,
            params $params,
            responses(CallResponses, $errors, refused::ProviderObjectNotFound, $($refused),*),
            security(("credential" = [])),
        )]
        pub(crate) async fn $name(
            http: HttpRequest,
            payload: web::Payload,
            app: web::Data<App>,
            client: web::Data<ProviderClient>,
        ) -> Result<HttpResponse, ApiError> {
            drop_in(http, payload, app, client).await
        }
    )* };
}

/// The errors are those of this service alone.
enum NoFormat {}

impl IntoResponses for NoFormat {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        BTreeMap::new()
    }
}

kept_objects! { (
    ("response_id" = String, Path, description = "The id of a response of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get a response, in OpenAI's format (format a).
    ///
    /// The retrieval of a response in the background that has ended settles its job.
    retrieve_response = get "/responses/{response_id}" "getResponse";
    /// Delete a response, in OpenAI's format (format a).
    delete_response = delete "/responses/{response_id}" "deleteResponse" refused::JobRunning;
    /// Cancel a response in the background, in OpenAI's format (format a).
    cancel_response = post "/responses/{response_id}/cancel" "cancelResponse";
    /// List the input of a response, in OpenAI's format (format a).
    input_items = get "/responses/{response_id}/input_items" "listInputItems";
} }

kept_objects! { (
    ("message_batch_id" = String, Path, description = "The id of a batch of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeBErrors {
    /// Get a batch of messages, in Anthropic's format (format b).
    ///
    /// The retrieval of a batch that has ended lets its job be settled.
    retrieve_message_batch = get "/messages/batches/{message_batch_id}" "getMessageBatch";
    /// Delete a batch of messages that has ended, in Anthropic's format (format b).
    delete_message_batch =
        delete "/messages/batches/{message_batch_id}" "deleteMessageBatch" refused::JobRunning;
    /// Cancel a batch of messages, in Anthropic's format (format b).
    cancel_message_batch =
        post "/messages/batches/{message_batch_id}/cancel" "cancelMessageBatch";
    /// Get the results of a batch of messages, in Anthropic's format (format b).
    message_batch_results =
        get "/messages/batches/{message_batch_id}/results" "getMessageBatchResults";
} }

kept_objects! { (
    ("batch_id" = String, Path, description = "The id of a batch of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get a batch, in OpenAI's format (format a).
    ///
    /// The retrieval of a batch that has ended lets its job be settled.
    retrieve_batch = get "/batches/{batch_id}" "getBatch";
    /// Cancel a batch, in OpenAI's format (format a).
    cancel_batch = post "/batches/{batch_id}/cancel" "cancelBatch";
} }

kept_objects! { (
    ("video_id" = String, Path, description = "The id of a video of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get a video, in OpenAI's format (format a).
    ///
    /// The retrieval of a video that is complete settles its job.
    retrieve_video = get "/videos/{video_id}" "getVideo";
    /// Delete a video, in OpenAI's format (format a).
    delete_video = delete "/videos/{video_id}" "deleteVideo" refused::JobRunning;
    /// Get the content of a video, in OpenAI's format (format a).
    video_content = get "/videos/{video_id}/content" "getVideoContent";
} }

kept_objects! { (
    ("conversation_id" = String, Path, description = "The id of a conversation of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get a conversation, in OpenAI's format (format a).
    retrieve_conversation = get "/conversations/{conversation_id}" "getConversation";
    /// Update a conversation, in OpenAI's format (format a).
    update_conversation = post "/conversations/{conversation_id}" "updateConversation";
    /// Delete a conversation, in OpenAI's format (format a).
    delete_conversation = delete "/conversations/{conversation_id}" "deleteConversation" refused::JobRunning;
    /// List the items of a conversation, in OpenAI's format (format a).
    list_conversation_items = get "/conversations/{conversation_id}/items" "listConversationItems";
    /// Add items to a conversation, in OpenAI's format (format a).
    add_conversation_items = post "/conversations/{conversation_id}/items" "addConversationItems";
} }

kept_objects! { (
    ("conversation_id" = String, Path, description = "The id of a conversation of this wallet"),
    ("item_id" = String, Path, description = "The id of an item of it"),
    DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get an item of a conversation, in OpenAI's format (format a).
    retrieve_conversation_item =
        get "/conversations/{conversation_id}/items/{item_id}" "getConversationItem";
    /// Delete an item of a conversation, in OpenAI's format (format a).
    delete_conversation_item =
        delete "/conversations/{conversation_id}/items/{item_id}" "deleteConversationItem";
} }

kept_objects! { (
    ("batch" = String, Path, description = "The id of a batch of this wallet"),
    DropInQuery, MetadataHeader, RunHeaders,
) NoFormat {
    /// Get a batch, in Google's format.
    ///
    /// The retrieval of a batch that has ended lets its job be settled.
    retrieve_google_batch = get "/v1beta/batches/{batch:[^:/]+}" "getGoogleBatch";
    /// Delete a batch that has ended, in Google's format.
    delete_google_batch =
        delete "/v1beta/batches/{batch:[^:/]+}" "deleteGoogleBatch" refused::JobRunning;
    /// Cancel a batch, in Google's format.
    cancel_google_batch = post "/v1beta/batches/{batch}:cancel" "cancelGoogleBatch";
} }

kept_objects! { (
    ("file" = String, Path, description = "The id of a file of this wallet"),
    DropInQuery, MetadataHeader, RunHeaders,
) NoFormat {
    /// Get the content of a file that a video is in, in Google's format.
    google_file_content = get "/v1beta/files/{file}:download" "getGoogleFileContent";
} }

kept_objects! { (
    ("model" = String, Path, description = "The model"),
    ("operation" = String, Path, description = "The id of an operation of this wallet"),
    DropInQuery, MetadataHeader, RunHeaders,
) NoFormat {
    /// Get the operation of a video, in Google's format.
    ///
    /// The retrieval of an operation that is done settles its job.
    retrieve_google_operation =
        get "/v1beta/models/{model}/operations/{operation}" "getGoogleOperation";
} }

kept_objects! { (
    ("file_id" = String, Path, description = "The id of a file of this wallet"), DropInQuery, MetadataHeader, RunHeaders,
) ShapeAErrors {
    /// Get a file, in OpenAI's format (format a).
    retrieve_file = get "/files/{file_id}" "getFile";
    /// Delete a file, in OpenAI's format (format a).
    delete_file = delete "/files/{file_id}" "deleteFile";
    /// Get the content of a file, in OpenAI's format (format a).
    file_content = get "/files/{file_id}/content" "getFileContent";
} }

/// Upload a file of requests for a batch, in OpenAI's format (format a).
///
/// Each line is checked like the body of a call. The provider has the file only if all lines are right.
#[utoipa::path(
    post,
    path = "/files",
    operation_id = "createFile",
    params(DropInQuery, MetadataHeader, ReportHeader, RunHeaders),
    request_body(content(("multipart/form-data"))),
    responses(CallResponses, ShapeAErrors),
    security(("credential" = [])),
)]
pub(crate) async fn create_file(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    drop_in(http, payload, app, client).await
}

/// The lists of OpenAI's objects.
macro_rules! lists {
    ($( $(#[$doc:meta])* $name:ident = $path:literal $id:literal; )*) => { $(
        $(#[$doc])*
        #[utoipa::path(
            get,
            path = $path,
            operation_id = $id,
            params(
                ("limit" = Option<u32>, Query, description = "From 1 to 10000. A page has at most 100."),
                ("after" = Option<String>, Query, description = "The objects after this one"),
                DropInQuery, MetadataHeader, RunHeaders,
            ),
            responses(CallResponses, ShapeAErrors),
            security(("credential" = [])),
        )]
        pub(crate) async fn $name(
            http: HttpRequest,
            payload: web::Payload,
            app: web::Data<App>,
            client: web::Data<ProviderClient>,
        ) -> Result<HttpResponse, ApiError> {
            drop_in(http, payload, app, client).await
        }
    )* };
}

lists! {
    /// List the batches of this wallet, in OpenAI's format (format a).
    list_batches = "/batches" "listBatches";
    /// List the files of this wallet, in OpenAI's format (format a).
    list_files = "/files" "listFiles";
    /// List the videos of this wallet, in OpenAI's format (format a).
    list_videos = "/videos" "listVideos";
}

/// List the batches of messages of this wallet, in Anthropic's format (format b).
#[utoipa::path(
    get,
    path = "/messages/batches",
    operation_id = "listMessageBatches",
    params(
        ("limit" = Option<u32>, Query, description = "From 1 to 10000. A page has at most 100."),
        ("after_id" = Option<String>, Query, description = "The batches after this one"),
        ("before_id" = Option<String>, Query, description = "The batches before this one"),
        DropInQuery, MetadataHeader, RunHeaders,
    ),
    responses(CallResponses, ShapeBErrors),
    security(("credential" = [])),
)]
pub(crate) async fn list_message_batches(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    drop_in(http, payload, app, client).await
}

/// Open a WebSocket for responses, in OpenAI's format (format a).
///
/// Each `response.create` on it is a call. A refused one is answered by an event of the type `error`.
#[utoipa::path(
    get,
    path = "/responses",
    operation_id = "connectResponses",
    params(
        ("model" = Option<String>, Query, description = "A model of the provider. Without it, the first one is called that has such sockets."),
        DropInQuery, MetadataHeader, RunHeaders,
    ),
    responses(SocketResponses, ShapeAErrors),
    security(("credential" = [])),
)]
pub(crate) async fn connect_responses(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    let answer = connect(http, payload, app, client);
    answer.await.map_err(|error| error.for_sdk(RequestFormat::ShapeA))
}

/// Open a WebSocket for a conversation by voice or text, in OpenAI's format (format a).
///
/// Each response is a call, and so is each transcription of input. A refused message is answered by an event of the type
/// `error`.
#[utoipa::path(
    get,
    path = "/realtime",
    operation_id = "connectRealtime",
    params(
        ("model" = Option<String>, Query, description = "The model. A session for transcription has none."),
        ("intent" = Option<String>, Query, description = "`transcription` for a session without responses"),
        DropInQuery, MetadataHeader, RunHeaders,
    ),
    responses(SocketResponses, ShapeAErrors),
    security(("credential" = [])),
)]
pub(crate) async fn connect_realtime(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    connect_responses(http, payload, app, client).await
}

/// Open a WebSocket for a conversation by voice that is billed by its time, in OpenAI's format (GPT-Live).
///
/// The session is one call. Each response of a model that it delegates to is another call. The session is ended before the
/// time that its limits allow is over.
#[utoipa::path(
    get,
    path = "/live/sessions",
    operation_id = "connectLiveSession",
    params(DropInQuery, MetadataHeader, RunHeaders),
    responses(SocketResponses, ShapeAErrors),
    security(("credential" = [])),
)]
pub(crate) async fn connect_live_session(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    connect_responses(http, payload, app, client).await
}

/// Open a WebSocket for a conversation by voice or text, in Google's format (Gemini Live).
///
/// Each turn of the model is a call. The socket is closed when a call is refused.
#[utoipa::path(
    get,
    path = "/ws/{service}",
    operation_id = "connectLive",
    params(
        ("service" = String, Path, description = "Such as `google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent`"),
        DropInQuery, MetadataHeader, RunHeaders,
    ),
    responses(SocketResponses),
    security(("credential" = [])),
)]
pub(crate) async fn connect_live(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    connect(http, payload, app, client).await
}

async fn connect(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    answer(&app, async |facts| {
        let (route, credential) = (SocketRoute::DropIn, Credential::of_sdk);
        open_socket(&http, payload, route, credential, &app, &client, facts).await
    })
    .await
}

async fn drop_in(
    http: HttpRequest,
    payload: web::Payload,
    app: web::Data<App>,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    let route = DropInRoute::of(&request_head(&http));
    let answer = answer(&app, async |facts| {
        let inbound = read_call(&http, payload, Credential::of_sdk, &app, facts).await?;
        let mut outbound = route.outbound(&request_head(&http), &inbound, &app.gateway).await?;
        outbound.lead_results_to(|| address(&http, "/v1"));
        facts.checked(outbound.summary());
        relay(&http, inbound, outbound, &app, client).await
    });
    answer.await.map_err(|error| match route.format() {
        Some(format) => error.for_sdk(format),
        None => error,
    })
}

/// The address of a path of this service, as the client called it. `None` if that is no address.
fn address(http: &HttpRequest, path: &str) -> Option<String> {
    let called = http.connection_info();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
    let is_address =
        matches!(called.scheme(), "http" | "https") && called.host().bytes().all(is_plain);
    is_address.then(|| format!("{}://{}{path}", called.scheme(), called.host()))
}

/// Answers a call, and counts and keeps its refusal.
async fn answer(
    app: &App,
    call: impl AsyncFnOnce(&mut CallFacts) -> Result<HttpResponse, ApiError>,
) -> Result<HttpResponse, ApiError> {
    let mut facts = CallFacts::default();
    let answer = call(&mut facts).await;
    answer.map_err(|error| {
        app.metrics.refused(&error);
        facts.keep(error, app)
    })
}

/// Starts the task of a call, and relays its answer.
async fn relay(
    http: &HttpRequest,
    inbound: InboundCall,
    outbound: OutboundCall,
    app: &App,
    client: web::Data<ProviderClient>,
) -> Result<HttpResponse, ApiError> {
    let mut outbound = outbound;
    if let Some(list) = outbound.own_list(&inbound, &app.gateway, &client).await? {
        return Ok(HttpResponse::Ok().json(list));
    }
    outbound.check_objects(&inbound, &app.gateway).await?;
    outbound.plan_file(&inbound, &app.gateway).await?;
    outbound.plan_batch(&inbound, &app.gateway).await?;
    let (client, access) = (client.into_inner(), AccessEntry::of(http));
    let from_call = spawn_call(inbound, outbound, &app.gateway, &client, access)?;
    Ok(response(http, from_call).await?)
}
