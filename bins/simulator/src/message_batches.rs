//! Batches of messages: `POST /v1/messages/batches`, and what can be done with one later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Deserialize;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::answer::{TokenCounts, new_id};
use crate::anthropic;
use crate::behavior::{Behavior, JobOutcome};
use crate::deliver::{ResponseContent, SimulatedResponse, to_json};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::jobs::{JobState, SimulatedJob, not_found};
use crate::refuse::refuse;
use crate::request::SimulatedRequest;
use crate::stats::SimulatorCounters;

/// A request of a batch, with the result that it has if it is served.
struct BatchRequest {
    custom_id: String,
    result: Value,
}

/// A batch of messages.
struct MessageBatch {
    job: SimulatedJob,
    id: String,
    results_url: String,
    created_at: OffsetDateTime,
    requests: Vec<BatchRequest>,
    /// The number of requests that are served before it ends by itself.
    served: usize,
}

impl MessageBatch {
    /// The results when it has ended, in the reverse order of its requests: any order is allowed.
    fn results(&self) -> Vec<Value> {
        let (served, rest) = match self.job.state() {
            JobState::Running => (0, "processing"),
            JobState::Cancelled => (0, "canceled"),
            JobState::Ended(_) => (self.served, "expired"),
        };
        let results = self.requests.iter().enumerate().rev();
        let result = |(number, request): (usize, &BatchRequest)| {
            let result =
                if number < served { request.result.clone() } else { json!({"type": rest}) };
            json!({"custom_id": request.custom_id, "result": result})
        };
        results.map(result).collect()
    }

    /// The batch as it is now.
    fn object(&self) -> Value {
        // Its results are those of this state or a later one.
        let state = self.job.state();
        let results = self.results();
        let of = |kind: &str| {
            let results = results.iter().filter_map(|one| one.get("result")?.get("type"));
            results.filter(|found| *found == kind).count()
        };
        let now = OffsetDateTime::now_utc();
        let has_ended = state != JobState::Running;
        json!({
            "id": self.id,
            "type": "message_batch",
            "processing_status": if has_ended { "ended" } else { "in_progress" },
            "request_counts": {
                "processing": of("processing"),
                "succeeded": of("succeeded"),
                "errored": of("errored"),
                "canceled": of("canceled"),
                "expired": of("expired"),
            },
            "created_at": written(self.created_at),
            "expires_at": written(self.created_at + Duration::DAY),
            "ended_at": has_ended.then(|| written(now)),
            "cancel_initiated_at": (state == JobState::Cancelled).then(|| written(now)),
            "archived_at": null,
            "results_url": has_ended.then_some(&self.results_url),
        })
    }
}

fn written(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

/// The batches by their ids, in memory until they are deleted or forgotten.
pub(crate) struct MessageBatches {
    batches: Mutex<BTreeMap<String, MessageBatch>>,
    counters: Arc<SimulatorCounters>,
}

impl MessageBatches {
    pub(crate) fn new(counters: Arc<SimulatorCounters>) -> Self {
        Self { batches: Mutex::default(), counters }
    }

    /// The batches, after those that have ended were counted or forgotten.
    fn current(&self) -> MutexGuard<'_, BTreeMap<String, MessageBatch>> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.values_mut().for_each(|batch| batch.job.book(&self.counters));
        batches.retain(|_, batch| !batch.job.is_forgotten());
        batches
    }
}

#[derive(Deserialize)]
struct NewBatch {
    requests: Vec<NewRequest>,
}

#[derive(Deserialize)]
struct NewRequest {
    custom_id: String,
    params: Value,
}

/// Begins a batch of the requests in the body.
pub(crate) fn begin(
    http: &HttpRequest,
    body: &[u8],
    behavior: &Behavior,
    batches: &MessageBatches,
) -> Result<SimulatedResponse, SimulatedError> {
    let new: NewBatch = serde_json::from_slice(body)
        .map_err(|error| SimulatedError::new(400, error.to_string()))?;
    let served = match behavior.job_outcome {
        JobOutcome::Expired => new.requests.len() / 2,
        JobOutcome::Succeeded | JobOutcome::Failed | JobOutcome::Forgotten => new.requests.len(),
    };
    let good = match behavior.job_outcome {
        JobOutcome::Failed => 0,
        _ => new.requests.len().saturating_sub(behavior.failed_requests),
    };
    let mut tokens = TokenCounts::default();
    let requests = new.requests.into_iter().enumerate().map(|(number, request)| {
        let answer = match number < good {
            true => message(&request.params, behavior),
            false => Err(SimulatedError::simulated(500, None)),
        };
        let result = match answer {
            Ok((message, used)) => {
                if number < served {
                    tokens = tokens.plus(used);
                }
                json!({"type": "succeeded", "message": message})
            }
            Err(fault) => {
                let error = fault.body(SimulatedDialect::Anthropic, &new_id("req_"));
                json!({"type": "errored", "error": error})
            }
        };
        BatchRequest { custom_id: request.custom_id, result }
    });
    let requests = requests.collect();
    let id = new_id("msgbatch_");
    // The address is that at which the simulator was called.
    let called = http.connection_info();
    let results_url =
        format!("{}://{}/v1/messages/batches/{id}/results", called.scheme(), called.host());
    let job = SimulatedJob::new(SimulatedEndpoint::MessageBatches, tokens, behavior);
    let created_at = OffsetDateTime::now_utc();
    let batch = MessageBatch { job, id: id.clone(), results_url, created_at, requests, served };
    let object = to_json(&batch.object());
    batches.current().insert(id, batch);
    let content = ResponseContent::Json(object);
    Ok(SimulatedResponse { content, tokens: TokenCounts::default() })
}

/// The message that answers a request, and its tokens.
fn message(params: &Value, behavior: &Behavior) -> Result<(Value, TokenCounts), SimulatedError> {
    let request = SimulatedRequest::parse(&to_json(params))?;
    let answer = anthropic::respond(&request, behavior);
    match answer.content {
        ResponseContent::Json(json) => {
            let message = serde_json::from_slice(&json).unwrap_or_default();
            Ok((message, answer.tokens.booked(behavior.usage)))
        }
        ResponseContent::Events(_) => {
            Err(SimulatedError::new(400, "a request of a batch cannot be streamed"))
        }
    }
}

/// The routes of batches that exist.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/v1/messages/batches", web::get().to(list))
        .route("/v1/messages/batches/{id}", web::get().to(retrieve))
        .route("/v1/messages/batches/{id}", web::delete().to(delete))
        .route("/v1/messages/batches/{id}/cancel", web::post().to(cancel))
        .route("/v1/messages/batches/{id}/results", web::get().to(results));
}

fn answer(found: Result<Value, SimulatedError>) -> HttpResponse {
    match found {
        Ok(object) => HttpResponse::Ok().content_type("application/json").body(to_json(&object)),
        Err(fault) => refuse(&fault, SimulatedDialect::Anthropic),
    }
}

/// Does something with a batch.
fn with<T>(
    batches: &MessageBatches,
    id: &str,
    act: impl FnOnce(&mut MessageBatch) -> T,
) -> Result<T, SimulatedError> {
    batches.current().get_mut(id).map(act).ok_or_else(|| not_found("Batch", id))
}

async fn retrieve(batches: web::Data<MessageBatches>, id: web::Path<String>) -> HttpResponse {
    answer(with(&batches, &id, |batch| batch.object()))
}

async fn cancel(batches: web::Data<MessageBatches>, id: web::Path<String>) -> HttpResponse {
    answer(with(&batches, &id, |batch| {
        batch.job.cancel();
        batch.object()
    }))
}

async fn delete(batches: web::Data<MessageBatches>, id: web::Path<String>) -> HttpResponse {
    let mut current = batches.current();
    let state = current.get(id.as_str()).map(|batch| batch.job.state());
    answer(match state {
        None => Err(not_found("Batch", &id)),
        Some(JobState::Running) => {
            Err(SimulatedError::new(400, "a batch that runs cannot be deleted"))
        }
        Some(JobState::Cancelled | JobState::Ended(_)) => {
            current.remove(id.as_str());
            Ok(json!({"id": *id, "type": "message_batch_deleted"}))
        }
    })
}

async fn list(batches: web::Data<MessageBatches>) -> HttpResponse {
    let objects: Vec<_> = batches.current().values().rev().map(MessageBatch::object).collect();
    let id = |object: Option<&Value>| object.and_then(|object| object.get("id")).cloned();
    let (first, last) = (id(objects.first()), id(objects.last()));
    answer(Ok(json!({"data": objects, "has_more": false, "first_id": first, "last_id": last})))
}

async fn results(batches: web::Data<MessageBatches>, id: web::Path<String>) -> HttpResponse {
    let results = with(&batches, &id, |batch| match batch.job.state() {
        JobState::Running => Err(SimulatedError::new(400, "the batch has no results yet")),
        JobState::Cancelled | JobState::Ended(_) => Ok(batch.results()),
    });
    match results.flatten() {
        Ok(results) => {
            let lines: Vec<_> =
                results.iter().map(|result| [to_json(result), b"\n".to_vec()].concat()).collect();
            HttpResponse::Ok().content_type("application/x-jsonl").body(lines.concat())
        }
        Err(fault) => refuse(&fault, SimulatedDialect::Anthropic),
    }
}
