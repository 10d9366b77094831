//! Videos: `POST /v1/videos`, and what can be done with one later.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use actix_web::{HttpRequest, HttpResponse, web};
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

/// A video.
struct Video {
    job: SimulatedJob,
    /// Its object while it runs.
    object: Value,
}

impl Video {
    /// The video as it is now.
    fn object(&self) -> Value {
        let status = match self.job.state() {
            JobState::Running => "in_progress",
            JobState::Ended(JobOutcome::Failed) => "failed",
            JobState::Ended(JobOutcome::Expired) => "expired",
            JobState::Ended(_) => "completed",
            JobState::Cancelled => "cancelled",
        };
        let error = json!({"code": "video_generation_failed", "message": "a simulated error"});
        let now = json!({
            "status": status,
            "progress": if status == "completed" { 100 } else { 0 },
            "error": if status == "failed" { error } else { Value::Null },
        });
        let fields = [&self.object, &now].into_iter().filter_map(Value::as_object).flatten();
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// The videos by their ids, in memory until they are deleted or forgotten.
#[derive(Default)]
pub(crate) struct Videos(Mutex<BTreeMap<String, Video>>);

impl Videos {
    fn current(&self) -> MutexGuard<'_, BTreeMap<String, Video>> {
        let mut videos = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        videos.retain(|_, video| !video.job.is_forgotten());
        videos
    }
}

/// Begins a video.
pub(crate) fn begin(
    http: &HttpRequest,
    body: &[u8],
    behavior: &Behavior,
    videos: &Videos,
) -> Result<SimulatedResponse, SimulatedError> {
    let form = Form::parse(http, body);
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| {
        let of_form = form.field(name).map(str::to_owned);
        of_form.or_else(|| Some(json.get(name)?.as_str()?.to_owned()))
    };
    let required = |name: &str| {
        field(name).ok_or_else(|| SimulatedError::new(400, format!("{name} is required")))
    };
    let id = new_id("video_");
    let object = json!({
        "id": id,
        "object": "video",
        "model": required("model")?,
        "prompt": required("prompt")?,
        "seconds": field("seconds").unwrap_or_else(|| "4".to_owned()),
        "size": field("size").unwrap_or_else(|| "720x1280".to_owned()),
        "status": "queued",
        "progress": 0,
        "created_at": OffsetDateTime::now_utc().unix_timestamp(),
        "completed_at": null,
        "expires_at": null,
        "error": null,
        "remixed_from_video_id": null,
    });
    let job = SimulatedJob::new(SimulatedEndpoint::Videos, TokenCounts::default(), behavior);
    events::announce("video", &id, &job, behavior);
    let answer = ResponseContent::Json(to_json(&object));
    videos.current().insert(id, Video { job, object });
    Ok(SimulatedResponse { content: answer, tokens: TokenCounts::default() })
}

/// The routes of videos that exist.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/v1/videos", web::get().to(list))
        .route("/v1/videos/{id}", web::get().to(retrieve))
        .route("/v1/videos/{id}", web::delete().to(delete))
        .route("/v1/videos/{id}/content", web::get().to(content));
}

fn answer(found: Option<Value>, id: &str) -> HttpResponse {
    match found {
        Some(object) => HttpResponse::Ok().content_type("application/json").body(to_json(&object)),
        None => refuse(&not_found("Video", id), SimulatedDialect::OpenAi),
    }
}

async fn retrieve(videos: web::Data<Videos>, id: web::Path<String>) -> HttpResponse {
    answer(videos.current().get(id.as_str()).map(Video::object), &id)
}

async fn delete(videos: web::Data<Videos>, id: web::Path<String>) -> HttpResponse {
    let deleted = videos.current().remove(id.as_str());
    answer(deleted.map(|_| json!({"id": *id, "object": "video.deleted", "deleted": true})), &id)
}

async fn content(videos: web::Data<Videos>, id: web::Path<String>) -> HttpResponse {
    let state = videos.current().get(id.as_str()).map(|video| video.job.state());
    match state {
        Some(JobState::Ended(JobOutcome::Succeeded)) => {
            HttpResponse::Ok().content_type("video/mp4").body("not really a video")
        }
        _ => answer(None, &id),
    }
}

async fn list(videos: web::Data<Videos>) -> HttpResponse {
    let objects: Vec<_> = videos.current().values().rev().map(Video::object).collect();
    let id = |object: Option<&Value>| object.and_then(|object| object.get("id")).cloned();
    let (first, last) = (id(objects.first()), id(objects.last()));
    let list = json!({
        "object": "list", "data": objects, "has_more": false, "first_id": first, "last_id": last,
    });
    answer(Some(list), "")
}
