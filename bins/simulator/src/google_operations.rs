//! Google's operations: batches of `:batchGenerateContent`, and videos of `:predictLongRunning`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::answer::{TokenCounts, new_id};
use crate::behavior::{Behavior, JobOutcome};
use crate::deliver::{ResponseContent, SimulatedResponse, to_json};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::google;
use crate::jobs::{JobState, SimulatedJob, not_found};
use crate::refuse::refuse;
use crate::stats::SimulatorCounters;

/// The most requests of a simulated batch, and the most videos of a request.
const MOST: usize = 50_000;

/// An operation.
struct GoogleOperation {
    job: SimulatedJob,
    name: String,
    created: String,
    work: Work,
}

/// The work of an operation.
enum Work {
    /// The results of a batch of a model.
    Batch { model: String, display_name: Value, results: Vec<Value> },
    /// The ids of videos, and the number of those that are filtered.
    Videos { ids: Vec<String>, filtered: usize, is_vertex: bool },
}

impl GoogleOperation {
    /// The operation as it is now. `base` is the address at which the simulator is called.
    fn object(&self, base: &str) -> Value {
        let state = self.job.state();
        let mut object = json!({"name": self.name});
        let metadata = match &self.work {
            Work::Batch { model, display_name, results } => {
                self.batch_metadata(state, model, display_name, results)
            }
            Work::Videos { .. } => Value::Null,
        };
        let done = match (&self.work, state) {
            (_, JobState::Running) => Value::Null,
            (_, JobState::Cancelled) => json!({"error": {"code": 1, "message": "cancelled"}}),
            (_, JobState::Ended(JobOutcome::Failed)) => {
                json!({"error": {"code": 13, "message": "a simulated error"}})
            }
            (_, JobState::Ended(JobOutcome::Expired)) => {
                json!({"error": {"code": 4, "message": "expired"}})
            }
            (Work::Batch { results, .. }, _) => json!({"response": output(results)}),
            (Work::Videos { ids, filtered, is_vertex }, _) => {
                json!({"response": videos(ids, *filtered, *is_vertex, base)})
            }
        };
        let is_done = (!done.is_null()).then(|| json!({"done": true}));
        let metadata = (!metadata.is_null()).then(|| json!({"metadata": metadata}));
        for fields in [metadata, is_done, Some(done)].iter().flatten() {
            if let (Some(all), Some(more)) = (object.as_object_mut(), fields.as_object()) {
                all.extend(more.clone());
            }
        }
        object
    }

    fn batch_metadata(
        &self,
        state: JobState,
        model: &str,
        display_name: &Value,
        results: &[Value],
    ) -> Value {
        let word = match state {
            JobState::Running => "BATCH_STATE_RUNNING",
            JobState::Cancelled => "BATCH_STATE_CANCELLED",
            JobState::Ended(JobOutcome::Failed) => "BATCH_STATE_FAILED",
            JobState::Ended(JobOutcome::Expired) => "BATCH_STATE_EXPIRED",
            JobState::Ended(_) => "BATCH_STATE_SUCCEEDED",
        };
        let answered = results.iter().filter(|result| result.get("response").is_some()).count();
        let requests = results.len().to_string();
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let stats = match word {
            "BATCH_STATE_SUCCEEDED" => json!({
                "requestCount": requests,
                "successfulRequestCount": answered.to_string(),
                "failedRequestCount": (results.len() - answered).to_string(),
            }),
            _ => json!({"requestCount": requests, "pendingRequestCount": requests}),
        };
        let mut metadata = json!({
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "model": format!("models/{model}"),
            "displayName": display_name,
            "createTime": self.created,
            "updateTime": now,
            "batchStats": stats,
            "state": word,
            "name": self.name,
        });
        if let (Some(fields), "BATCH_STATE_SUCCEEDED") = (metadata.as_object_mut(), word) {
            fields.insert("output".to_owned(), output(results));
            fields.insert("endTime".to_owned(), json!(now));
        }
        metadata
    }
}

fn output(results: &[Value]) -> Value {
    json!({"inlinedResponses": {"inlinedResponses": results}})
}

fn videos(ids: &[String], filtered: usize, is_vertex: bool, base: &str) -> Value {
    let reasons = vec!["a simulated filter"; filtered];
    if is_vertex {
        let video = |id: &String| json!({"gcsUri": format!("gs://simulated/{id}.mp4"), "mimeType": "video/mp4"});
        let videos: Vec<_> = ids.iter().map(video).collect();
        return json!({"raiMediaFilteredCount": filtered, "videos": videos});
    }
    let sample = |id: &String| json!({"video": {"uri": format!("{base}/v1beta/files/{id}:download?alt=media")}});
    let samples: Vec<_> = ids.iter().map(sample).collect();
    json!({"generateVideoResponse": {
        "generatedSamples": samples,
        "raiMediaFilteredCount": filtered,
        "raiMediaFilteredReasons": reasons,
    }})
}

/// The operations by their ids, in memory until they are deleted or forgotten.
pub(crate) struct GoogleOperations {
    operations: Mutex<BTreeMap<String, GoogleOperation>>,
    counters: Arc<SimulatorCounters>,
}

impl GoogleOperations {
    pub(crate) fn new(counters: Arc<SimulatorCounters>) -> Self {
        Self { operations: Mutex::default(), counters }
    }

    /// The operations, after those that have ended were counted or forgotten.
    fn current(&self) -> MutexGuard<'_, BTreeMap<String, GoogleOperation>> {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.values_mut().for_each(|operation| operation.job.book(&self.counters));
        operations.retain(|_, operation| !operation.job.is_forgotten());
        operations
    }

    /// Begins an operation, and answers it.
    fn begin(
        &self,
        (id, name): (String, String),
        (endpoint, tokens): (SimulatedEndpoint, TokenCounts),
        work: Work,
        behavior: &Behavior,
    ) -> SimulatedResponse {
        let job = SimulatedJob::new(endpoint, tokens, behavior);
        let created = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        let operation = GoogleOperation { job, name, created, work };
        let content = ResponseContent::Json(to_json(&operation.object("")));
        self.current().insert(id, operation);
        SimulatedResponse { content, tokens: TokenCounts::default() }
    }
}

/// The value under one of two spellings.
fn field<'a>(object: &'a Value, names: [&str; 2]) -> Option<&'a Value> {
    names.iter().find_map(|name| object.get(name))
}

/// Begins a batch of the requests in the body.
pub(crate) fn begin_batch(
    model: &str,
    body: &[u8],
    behavior: &Behavior,
    operations: &GoogleOperations,
) -> Result<SimulatedResponse, SimulatedError> {
    let body = parse(body)?;
    let batch = body.get("batch").unwrap_or(&Value::Null);
    let input = field(batch, ["inputConfig", "input_config"]);
    let requests = input.and_then(|input| input.pointer("/requests/requests")?.as_array());
    let requests = requests.filter(|list| (1..=MOST).contains(&list.len()));
    let requests = requests.ok_or_else(|| SimulatedError::new(400, "the batch has no requests"))?;
    let good = requests.len().saturating_sub(behavior.failed_requests);
    let mut tokens = TokenCounts::default();
    let mut results = Vec::new();
    for (number, item) in requests.iter().enumerate() {
        let metadata = item.get("metadata").unwrap_or(&Value::Null);
        let request = google::request(model, item.get("request").unwrap_or(&Value::Null));
        let mut result = match request {
            Ok(request) if number < good => {
                let (answer, used) = google::respond(&request, behavior);
                tokens = tokens.plus(used.booked(behavior.usage));
                json!({"response": answer})
            }
            _ => json!({"error": {"code": 13, "message": "a simulated error"}}),
        };
        if let (Some(fields), false) = (result.as_object_mut(), metadata.is_null()) {
            fields.insert("metadata".to_owned(), metadata.clone());
        }
        results.push(result);
    }
    if matches!(behavior.job_outcome, JobOutcome::Failed | JobOutcome::Expired) {
        tokens = TokenCounts::default();
    }
    let display_name = field(batch, ["displayName", "display_name"]).cloned().unwrap_or_default();
    let work = Work::Batch { model: model.to_owned(), display_name, results };
    let id = new_id("b");
    let name = (id.clone(), format!("batches/{id}"));
    Ok(operations.begin(name, (SimulatedEndpoint::GoogleBatches, tokens), work, behavior))
}

/// Begins videos. `parent` is the path of their model.
pub(crate) fn begin_videos(
    parent: &str,
    body: &[u8],
    behavior: &Behavior,
    operations: &GoogleOperations,
) -> Result<SimulatedResponse, SimulatedError> {
    let body = parse(body)?;
    let instances = body.get("instances").and_then(Value::as_array);
    let instances = instances.map_or(0, Vec::len);
    if instances == 0 {
        return Err(SimulatedError::new(400, "instances is required"));
    }
    let samples = body.pointer("/parameters/sampleCount").and_then(Value::as_u64).unwrap_or(1);
    let all = usize::try_from(samples).unwrap_or(MOST).saturating_mul(instances).min(MOST);
    let filtered = behavior.failed_requests.min(all);
    let ids = (filtered..all).map(|_| new_id("f")).collect();
    let work = Work::Videos { ids, filtered, is_vertex: parent.contains("publishers/") };
    let id = new_id("o");
    let name = (id.clone(), format!("{parent}/operations/{id}"));
    let endpoint = (SimulatedEndpoint::GoogleVideos, TokenCounts::default());
    Ok(operations.begin(name, endpoint, work, behavior))
}

pub(crate) fn parse(body: &[u8]) -> Result<Value, SimulatedError> {
    serde_json::from_slice(body).map_err(|error| SimulatedError::new(400, error.to_string()))
}

/// The routes of operations that exist, below a version.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/batches", web::get().to(list))
        .route("/batches/{id}:cancel", web::post().to(cancel))
        .service(
            web::resource("/batches/{id}")
                .route(web::get().to(retrieve))
                .route(web::delete().to(delete)),
        )
        .route("/models/{model}/operations/{id}", web::get().to(retrieve))
        .route("/files/{id}:download", web::get().to(content))
        .route(
            "/{model:.*publishers/google/models/[^/:]+}:fetchPredictOperation",
            web::post().to(fetch),
        );
}

/// The address at which the simulator is called.
fn base(http: &HttpRequest) -> String {
    let called = http.connection_info();
    format!("{}://{}", called.scheme(), called.host())
}

fn answer(found: Option<Value>, id: &str) -> HttpResponse {
    match found {
        Some(object) => HttpResponse::Ok().content_type("application/json").body(to_json(&object)),
        None => refuse(&not_found("Operation", id), SimulatedDialect::Google),
    }
}

fn id_of(http: &HttpRequest) -> &str {
    http.match_info().get("id").unwrap_or_default()
}

async fn retrieve(http: HttpRequest, operations: web::Data<GoogleOperations>) -> HttpResponse {
    let (id, base) = (id_of(&http), base(&http));
    answer(operations.current().get(id).map(|operation| operation.object(&base)), id)
}

async fn fetch(
    http: HttpRequest,
    body: web::Bytes,
    operations: web::Data<GoogleOperations>,
) -> HttpResponse {
    let body = parse(&body).unwrap_or_default();
    let name = field(&body, ["operationName", "operation_name"]).and_then(Value::as_str);
    let id = name.and_then(|name| name.rsplit('/').next()).unwrap_or_default();
    let base = base(&http);
    answer(operations.current().get(id).map(|operation| operation.object(&base)), id)
}

async fn cancel(http: HttpRequest, operations: web::Data<GoogleOperations>) -> HttpResponse {
    let id = id_of(&http);
    let cancelled = operations.current().get_mut(id).map(|operation| {
        operation.job.cancel();
        json!({})
    });
    answer(cancelled, id)
}

async fn delete(http: HttpRequest, operations: web::Data<GoogleOperations>) -> HttpResponse {
    let id = id_of(&http);
    answer(operations.current().remove(id).map(|_| json!({})), id)
}

async fn list(http: HttpRequest, operations: web::Data<GoogleOperations>) -> HttpResponse {
    let base = base(&http);
    let current = operations.current();
    let batches = current.values().rev().filter(|one| matches!(one.work, Work::Batch { .. }));
    let objects: Vec<_> = batches.map(|operation| operation.object(&base)).collect();
    answer(Some(json!({"operations": objects})), "")
}

async fn content(http: HttpRequest, operations: web::Data<GoogleOperations>) -> HttpResponse {
    let id = id_of(&http);
    let has_file = operations.current().values().any(|operation| {
        let is_done = operation.job.state() == JobState::Ended(JobOutcome::Succeeded);
        is_done && matches!(&operation.work, Work::Videos { ids, .. } if ids.iter().any(|one| one == id))
    });
    match has_file {
        true => HttpResponse::Ok().content_type("video/mp4").body("not really a video"),
        false => answer(None, id),
    }
}
