//! Responses in the background: `POST /v1/responses` with `background`, and what can be done with one later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::{HttpRequest, HttpResponse, rt, web};
use serde_json::{Value, json};

use crate::answer::TokenCounts;
use crate::behavior::{Behavior, JobOutcome};
use crate::deliver::{ResponseContent, SimulatedResponse, to_json};
use crate::endpoint::{SimulatedDialect, SimulatedEndpoint};
use crate::error::SimulatedError;
use crate::events;
use crate::jobs::{JobState, SimulatedJob, not_found};
use crate::refuse::refuse;
use crate::request::SimulatedRequest;
use crate::responses::{self, ResponsePair};
use crate::stats::SimulatorCounters;

/// A response that is made in the background.
struct BackgroundResponse {
    job: SimulatedJob,
    pair: ResponsePair,
    input: Value,
}

impl BackgroundResponse {
    /// The response as it is now.
    fn object(&self) -> Value {
        let state = self.job.state();
        let mut object = match state {
            JobState::Ended(JobOutcome::Succeeded) => self.pair.last.clone(),
            JobState::Running | JobState::Cancelled | JobState::Ended(_) => self.pair.first.clone(),
        };
        let (status, error) = match state {
            JobState::Running => ("in_progress", Value::Null),
            JobState::Cancelled => ("cancelled", Value::Null),
            JobState::Ended(JobOutcome::Succeeded) => return object,
            JobState::Ended(JobOutcome::Failed | JobOutcome::Expired | JobOutcome::Forgotten) => {
                let error = json!({"code": "server_error", "message": "a simulated failure"});
                ("failed", error)
            }
        };
        if let Some(fields) = object.as_object_mut() {
            fields.insert("status".to_owned(), status.into());
            fields.insert("error".to_owned(), error);
        }
        object
    }
}

/// The responses in the background by their ids, in memory until they are deleted or forgotten.
pub(crate) struct BackgroundResponses {
    responses: Mutex<BTreeMap<String, BackgroundResponse>>,
    counters: Arc<SimulatorCounters>,
}

impl BackgroundResponses {
    pub(crate) fn new(counters: Arc<SimulatorCounters>) -> Self {
        Self { responses: Mutex::default(), counters }
    }

    /// The responses, after those that have ended were counted or forgotten.
    fn current(&self) -> MutexGuard<'_, BTreeMap<String, BackgroundResponse>> {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        responses.values_mut().for_each(|response| response.job.book(&self.counters));
        responses.retain(|_, response| !response.job.is_forgotten());
        responses
    }
}

/// Begins a response in the background, and answers with it or with the stream of its events.
pub(crate) fn begin(
    request: &SimulatedRequest,
    body: &[u8],
    behavior: &Behavior,
    jobs: &BackgroundResponses,
) -> SimulatedResponse {
    let pair = responses::pair(request, behavior);
    let id = pair.id.clone();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let input = body.get("input").cloned().unwrap_or_default();
    let mut job = SimulatedJob::new(
        SimulatedEndpoint::Responses,
        pair.tokens.booked(behavior.usage),
        behavior,
    );
    let content = match request.stream() {
        true => {
            job.end();
            ResponseContent::Events(pair.events.clone())
        }
        false => {
            let mut queued = pair.first.clone();
            if let Some(fields) = queued.as_object_mut() {
                fields.insert("status".to_owned(), "queued".into());
            }
            ResponseContent::Json(to_json(&queued))
        }
    };
    events::announce("response", &id, &job, behavior);
    jobs.current().insert(id, BackgroundResponse { job, pair, input });
    // Its tokens are counted when its end is seen, which that of a stream is at once.
    drop(jobs.current());
    SimulatedResponse { content, tokens: TokenCounts::default() }
}

/// The routes of a response that exists.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/v1/responses/{id}", web::get().to(retrieve))
        .route("/v1/responses/{id}", web::delete().to(delete))
        .route("/v1/responses/{id}/cancel", web::post().to(cancel))
        .route("/v1/responses/{id}/input_items", web::get().to(input_items));
}

fn answer(found: Result<Value, SimulatedError>) -> HttpResponse {
    match found {
        Ok(object) => HttpResponse::Ok().content_type("application/json").body(to_json(&object)),
        Err(fault) => refuse(&fault, SimulatedDialect::OpenAi),
    }
}

/// Does something with a response.
fn with<T>(
    jobs: &BackgroundResponses,
    id: &str,
    act: impl FnOnce(&mut BackgroundResponse) -> T,
) -> Result<T, SimulatedError> {
    jobs.current().get_mut(id).map(act).ok_or_else(|| not_found("Response", id))
}

async fn retrieve(
    http: HttpRequest,
    jobs: web::Data<BackgroundResponses>,
    id: web::Path<String>,
) -> HttpResponse {
    let query: Vec<(String, String)> =
        web::Query::from_query(http.query_string()).map(web::Query::into_inner).unwrap_or_default();
    let value =
        |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if value("stream") != Some("true") {
        return answer(with(&jobs, &id, |response| response.object()));
    }
    let after = value("starting_after").and_then(|number| number.parse::<usize>().ok());
    let left = match with(&jobs, &id, |response| response.job.left()) {
        Ok(left) => left,
        Err(fault) => return answer(Err(fault)),
    };
    // The events of a response that runs come when it ends.
    rt::time::sleep(left).await;
    let first = after.map_or(0, |number| number.saturating_add(1));
    match with(&jobs, &id, |response| response.pair.events.bytes_from(first).to_vec()) {
        Ok(events) => {
            HttpResponse::Ok().content_type("text/event-stream; charset=utf-8").body(events)
        }
        Err(fault) => answer(Err(fault)),
    }
}

async fn cancel(jobs: web::Data<BackgroundResponses>, id: web::Path<String>) -> HttpResponse {
    answer(with(&jobs, &id, |response| {
        response.job.cancel();
        response.object()
    }))
}

async fn delete(jobs: web::Data<BackgroundResponses>, id: web::Path<String>) -> HttpResponse {
    let deleted = jobs.current().remove(id.as_str());
    answer(match deleted {
        Some(_) => Ok(json!({"id": *id, "object": "response", "deleted": true})),
        None => Err(not_found("Response", &id)),
    })
}

async fn input_items(jobs: web::Data<BackgroundResponses>, id: web::Path<String>) -> HttpResponse {
    answer(with(&jobs, &id, |response| {
        let items = match &response.input {
            Value::Array(items) => items.clone(),
            text => vec![
                json!({"id": format!("msg_{}", id.as_str()), "type": "message", "role": "user",
                "content": [{"type": "input_text", "text": text}]}),
            ],
        };
        json!({"object": "list", "data": items, "has_more": false})
    }))
}
