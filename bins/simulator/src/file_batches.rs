//! Files, and batches of the requests in one: `/v1/files` and `/v1/batches`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::answer::{TokenCounts, new_id};
use crate::behavior::{Behavior, JobOutcome};
use crate::deliver::{ResponseContent, SimulatedResponse, to_json};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::events;
use crate::form::Form;
use crate::jobs::{JobState, SimulatedJob, not_found};
use crate::refuse::refuse;
use crate::request::SimulatedRequest;
use crate::stats::SimulatorCounters;
use crate::{chat, embeddings, responses};

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A file that was uploaded, or that has results.
struct StoredFile {
    name: String,
    purpose: String,
    created_at: i64,
    content: Bytes,
}

impl StoredFile {
    fn object(&self, id: &str) -> Value {
        json!({
            "id": id,
            "object": "file",
            "bytes": self.content.len(),
            "created_at": self.created_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        })
    }
}

/// A batch of the requests in a file.
struct FileBatch {
    job: SimulatedJob,
    id: String,
    input_file_id: String,
    endpoint: String,
    metadata: Value,
    created_at: i64,
    /// The ids of the files with answers and with errors, and the lines that they have if it ends by itself.
    answers: (String, Vec<Value>),
    errors: (String, Vec<Value>),
    /// Whether its files are among those that are stored.
    has_stored_files: bool,
}

impl FileBatch {
    /// The files with results that it has now, each with its id.
    fn files(&self) -> Vec<(String, StoredFile)> {
        if self.has_no_results() {
            return Vec::new();
        }
        let files =
            [&self.answers, &self.errors].into_iter().filter(|(_, lines)| !lines.is_empty());
        let file = |lines: &[Value]| {
            // In the reverse order of the requests: any order is allowed.
            let lines = lines.iter().rev().map(|line| [to_json(line), b"\n".to_vec()].concat());
            let content = lines.collect::<Vec<_>>().concat().into();
            let name = format!("{}_output.jsonl", self.id);
            StoredFile { name, purpose: "batch_output".to_owned(), created_at: now(), content }
        };
        files.map(|(id, lines)| (id.clone(), file(lines))).collect()
    }

    /// Whether it has no files of results: it runs, was cancelled, or its file could not be read.
    fn has_no_results(&self) -> bool {
        match self.job.state() {
            JobState::Running | JobState::Cancelled => true,
            JobState::Ended(outcome) => outcome == JobOutcome::Failed,
        }
    }

    /// The batch as it is now.
    fn object(&self) -> Value {
        let state = match self.job.state() {
            JobState::Running => "in_progress",
            JobState::Cancelled => "cancelled",
            JobState::Ended(JobOutcome::Failed) => "failed",
            JobState::Ended(JobOutcome::Expired) => "expired",
            JobState::Ended(JobOutcome::Succeeded | JobOutcome::Forgotten) => "completed",
        };
        let file = |(id, lines): &(String, Vec<Value>)| {
            (!self.has_no_results() && !lines.is_empty()).then(|| id.clone())
        };
        let count = |lines: &[Value]| if self.has_no_results() { 0 } else { lines.len() };
        let at = |reached: &str| (state == reached).then(now);
        let errors = (state == "failed").then(|| {
            json!({"object": "list", "data": [{
                "code": "invalid_json_line", "message": "a simulated error", "line": 1, "param": null,
            }]})
        });
        json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": state,
            "output_file_id": file(&self.answers),
            "error_file_id": file(&self.errors),
            "created_at": self.created_at,
            "in_progress_at": self.created_at,
            "expires_at": self.created_at + DAY_SECONDS,
            "completed_at": at("completed"),
            "failed_at": at("failed"),
            "expired_at": at("expired"),
            "cancelled_at": at("cancelled"),
            "request_counts": {
                "total": self.answers.1.len() + self.errors.1.len(),
                "completed": count(&self.answers.1),
                "failed": count(&self.errors.1),
            },
            "metadata": self.metadata,
        })
    }
}

fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

/// The files and batches by their ids, in memory until they are deleted or forgotten.
pub(crate) struct FileBatches {
    files: Mutex<BTreeMap<String, StoredFile>>,
    batches: Mutex<BTreeMap<String, FileBatch>>,
    counters: Arc<SimulatorCounters>,
}

impl FileBatches {
    pub(crate) fn new(counters: Arc<SimulatorCounters>) -> Self {
        Self { files: Mutex::default(), batches: Mutex::default(), counters }
    }

    /// The batches, after those that have ended were counted or forgotten.
    fn batches(&self) -> MutexGuard<'_, BTreeMap<String, FileBatch>> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.values_mut().for_each(|batch| batch.job.book(&self.counters));
        batches.retain(|_, batch| !batch.job.is_forgotten());
        batches
    }

    /// The files, with the results of batches that have ended.
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, StoredFile>> {
        let mut batches = self.batches();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for batch in batches.values_mut().filter(|batch| !batch.has_stored_files) {
            let results = batch.files();
            batch.has_stored_files = !results.is_empty();
            files.extend(results);
        }
        files
    }
}

/// Keeps the file of an uploaded form.
pub(crate) fn upload(
    http: &HttpRequest,
    body: &[u8],
    stored: &FileBatches,
) -> Result<SimulatedResponse, SimulatedError> {
    let form = Form::parse(http, body);
    let not_a_form = || SimulatedError::new(400, "the body is not a form with a file");
    let (name, content) = form.file.as_ref().ok_or_else(not_a_form)?;
    let purpose = form.field("purpose");
    let purpose = purpose.ok_or_else(|| SimulatedError::new(400, "purpose is required"))?;
    let (name, purpose) = (name.clone(), purpose.to_owned());
    let id = new_id("file-");
    let content = Bytes::copy_from_slice(content);
    let file = StoredFile { name, purpose, created_at: now(), content };
    let object = to_json(&file.object(&id));
    stored.files().insert(id, file);
    let content = ResponseContent::Json(object);
    Ok(SimulatedResponse { content, tokens: TokenCounts::default() })
}

#[derive(Deserialize)]
struct NewBatch {
    input_file_id: String,
    endpoint: String,
    #[serde(default)]
    metadata: Value,
}

#[derive(Deserialize)]
struct Line {
    custom_id: String,
    body: Value,
}

/// Begins a batch of the requests in a file.
pub(crate) fn begin(
    body: &[u8],
    behavior: &Behavior,
    stored: &FileBatches,
) -> Result<SimulatedResponse, SimulatedError> {
    let invalid = |error: serde_json::Error| SimulatedError::new(400, error.to_string());
    let new: NewBatch = serde_json::from_slice(body).map_err(invalid)?;
    let content = stored.files().get(&new.input_file_id).map(|file| file.content.clone());
    let content = content.ok_or_else(|| not_found("File", &new.input_file_id))?;
    let lines = content.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    let lines: Vec<Line> =
        lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(invalid)?;
    let count = lines.len();
    let served = if behavior.job_outcome == JobOutcome::Expired { count / 2 } else { count };
    let good = count.saturating_sub(behavior.failed_requests);
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    let mut tokens = TokenCounts::default();
    for (number, line) in lines.into_iter().enumerate() {
        let result = |response: Value, error: Value| {
            json!({
                "id": new_id("batch_req_"),
                "custom_id": line.custom_id,
                "response": response,
                "error": error,
            })
        };
        if number >= served {
            let message =
                "This request could not be executed before the completion window expired.";
            let error = json!({"code": "batch_expired", "message": message});
            errors.push(result(Value::Null, error));
            continue;
        }
        let answer = match number < good {
            true => answer_to(&new.endpoint, &line.body, behavior),
            false => Err(SimulatedError::simulated(500, None)),
        };
        let response = |status: u16, body: Value| json!({"status_code": status, "request_id": new_id("req_"), "body": body});
        match answer {
            Ok((body, used)) => {
                tokens = tokens.plus(used);
                answers.push(result(response(200, body), Value::Null));
            }
            Err(fault) => {
                let body = fault.body(SimulatedDialect::OpenAi, "");
                errors.push(result(response(fault.status, body), Value::Null));
            }
        }
    }
    if behavior.job_outcome == JobOutcome::Failed {
        tokens = TokenCounts::default();
    }
    let id = new_id("batch_");
    let batch = FileBatch {
        job: SimulatedJob::new(SimulatedEndpoint::Batches, tokens, behavior),
        id: id.clone(),
        input_file_id: new.input_file_id,
        endpoint: new.endpoint,
        metadata: new.metadata,
        created_at: now(),
        answers: (new_id("file-"), answers),
        errors: (new_id("file-"), errors),
        has_stored_files: false,
    };
    events::announce("batch", &id, &batch.job, behavior);
    let object = to_json(&batch.object());
    stored.batches().insert(id, batch);
    let content = ResponseContent::Json(object);
    Ok(SimulatedResponse { content, tokens: TokenCounts::default() })
}

/// The answer to a request, and its tokens.
fn answer_to(
    endpoint: &str,
    body: &Value,
    behavior: &Behavior,
) -> Result<(Value, TokenCounts), SimulatedError> {
    let request = SimulatedRequest::parse(&to_json(body))?;
    let answer = match endpoint {
        "/v1/chat/completions" => chat::respond(&request, behavior),
        "/v1/responses" => responses::respond(&request, behavior),
        "/v1/embeddings" => embeddings::respond(&request, behavior)?,
        other => return Err(SimulatedError::new(400, format!("no batch can have {other}"))),
    };
    match answer.content {
        ResponseContent::Json(json) => {
            let body = serde_json::from_slice(&json).unwrap_or_default();
            Ok((body, answer.tokens.booked(behavior.usage)))
        }
        ResponseContent::Events(_) => {
            Err(SimulatedError::new(400, "a request of a batch cannot be streamed"))
        }
    }
}

/// The routes of files and batches that exist.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/v1/files", web::get().to(list_files))
        .route("/v1/files/{id}", web::get().to(retrieve_file))
        .route("/v1/files/{id}", web::delete().to(delete_file))
        .route("/v1/files/{id}/content", web::get().to(content))
        .route("/v1/batches", web::get().to(list_batches))
        .route("/v1/batches/{id}", web::get().to(retrieve_batch))
        .route("/v1/batches/{id}/cancel", web::post().to(cancel));
}

fn answer(found: Result<Value, SimulatedError>) -> HttpResponse {
    match found {
        Ok(object) => HttpResponse::Ok().content_type("application/json").body(to_json(&object)),
        Err(fault) => refuse(&fault, SimulatedDialect::OpenAi),
    }
}

fn list(objects: Vec<Value>) -> HttpResponse {
    let id = |object: Option<&Value>| object.and_then(|object| object.get("id")).cloned();
    let (first, last) = (id(objects.first()), id(objects.last()));
    answer(Ok(json!({
        "object": "list", "data": objects, "has_more": false, "first_id": first, "last_id": last,
    })))
}

async fn list_files(stored: web::Data<FileBatches>) -> HttpResponse {
    list(stored.files().iter().map(|(id, file)| file.object(id)).collect())
}

async fn retrieve_file(stored: web::Data<FileBatches>, id: web::Path<String>) -> HttpResponse {
    let object = stored.files().get(id.as_str()).map(|file| file.object(&id));
    answer(object.ok_or_else(|| not_found("File", &id)))
}

async fn delete_file(stored: web::Data<FileBatches>, id: web::Path<String>) -> HttpResponse {
    let deleted = stored.files().remove(id.as_str());
    let object = deleted.map(|_| json!({"id": *id, "object": "file", "deleted": true}));
    answer(object.ok_or_else(|| not_found("File", &id)))
}

async fn content(stored: web::Data<FileBatches>, id: web::Path<String>) -> HttpResponse {
    let content = stored.files().get(id.as_str()).map(|file| file.content.clone());
    match content {
        Some(content) => HttpResponse::Ok().content_type("application/octet-stream").body(content),
        None => refuse(&not_found("File", &id), SimulatedDialect::OpenAi),
    }
}

async fn list_batches(stored: web::Data<FileBatches>) -> HttpResponse {
    list(stored.batches().values().rev().map(FileBatch::object).collect())
}

async fn retrieve_batch(stored: web::Data<FileBatches>, id: web::Path<String>) -> HttpResponse {
    let object = stored.batches().get(id.as_str()).map(FileBatch::object);
    answer(object.ok_or_else(|| not_found("Batch", &id)))
}

async fn cancel(stored: web::Data<FileBatches>, id: web::Path<String>) -> HttpResponse {
    let cancelled = stored.batches().get_mut(id.as_str()).map(|batch| {
        batch.job.cancel();
        batch.object()
    });
    answer(cancelled.ok_or_else(|| not_found("Batch", &id)))
}
