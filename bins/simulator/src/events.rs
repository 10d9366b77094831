//! Events about jobs that have ended, as OpenAI sends them: signed by Standard Webhooks.

use std::time::{Duration, SystemTime};

use actix_web::rt;
use serde_json::json;
use standardwebhooks::Webhook;

use crate::answer::{new_id, unix_seconds};
use crate::behavior::{Behavior, EventDelivery, JobOutcome};
use crate::jobs::{JobState, SimulatedJob};

/// The secret of forged events.
const FORGED_SECRET: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// The longest time that a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the event of an object when its job has ended, if the behaviour has an address for events.
pub(crate) fn announce(kind: &'static str, id: &str, job: &SimulatedJob, behavior: &Behavior) {
    let Some(url) = behavior.event_url.clone() else { return };
    let secret = match behavior.events {
        EventDelivery::Lost => return,
        EventDelivery::Forged => Some(FORGED_SECRET.to_owned()),
        EventDelivery::Sent | EventDelivery::Doubled => behavior.event_secret.clone(),
    };
    let times = if behavior.events == EventDelivery::Doubled { 2 } else { 1 };
    let delay = job.left() + Duration::from_millis(behavior.event_delay_ms);
    let (id, job) = (id.to_owned(), job.clone());
    rt::spawn(async move {
        rt::time::sleep(delay).await;
        let state = match job.state() {
            JobState::Cancelled => "cancelled",
            JobState::Ended(JobOutcome::Failed) => "failed",
            JobState::Ended(JobOutcome::Expired) if kind == "batch" => "expired",
            JobState::Ended(JobOutcome::Expired) => "failed",
            JobState::Ended(_) => "completed",
            // Nothing is known of it any more.
            JobState::Running => return,
        };
        let event_id = new_id("evt_");
        let body = json!({
            "id": event_id,
            "object": "event",
            "created_at": unix_seconds(),
            "type": format!("{kind}.{state}"),
            "data": {"id": id},
        });
        for _ in 0..times {
            send(&url, secret.as_deref(), &event_id, body.to_string()).await;
        }
    });
}

/// Sends a message once. A receiver that does not answer loses it.
async fn send(url: &str, secret: Option<&str>, id: &str, body: String) {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let signed =
        secret.and_then(|secret| Webhook::new(secret).ok()?.sign(id, now, body.as_bytes()).ok());
    let request = awc::Client::builder().timeout(TIMEOUT).finish().post(url);
    let request = request
        .insert_header(("webhook-id", id))
        .insert_header(("webhook-timestamp", now.to_string()))
        .insert_header(("webhook-signature", signed.unwrap_or_default()))
        .insert_header(("content-type", "application/json"));
    drop(request.send_body(body).await);
}
