//! The dispatcher, which sends events to webhooks. It is one loop in a thread of its own. Each turn at the
//! store books the attempts that ended and claims due deliveries, as far as there is room; each attempt is a
//! task. No call waits for it.

mod attempts;
pub(crate) mod message;
pub(crate) mod samples;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use actix_web::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use actix_web::{rt, web};
use tokio::sync::{oneshot, watch};
use tollgate_domain::{Attempt, DeliveryFault, MAX_ANSWER_BYTES};
use tollgate_provider::WebhookClient;
use tollgate_store::StoreError;
use tollgate_store::deliveries::{AttemptCapacity, ClaimedDelivery, ENDED_AT_ONCE, EndedAttempt};

use self::attempts::{AT_ONCE, AttemptPool};
use crate::app::App;

/// The interval at which the store is queried for due deliveries.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The least pause between two turns. Attempts that end within it share one turn, because each turn costs a
/// durable commit that calls could have had.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after a turn, as a multiple of the turn's time. Where there is one writer, it belongs to others
/// for most of the time.
const PAUSES: u32 = 3;
/// The longest pause for that reason.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// The pause after a failure of the store.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The time within which an attempt must begin. After it the delivery is left until it is claimed again.
/// Together with the longest time of an attempt this is less than the store's lease.
const BEGIN_WITHIN: Duration = Duration::from_secs(15);

/// The thread that sends events to webhooks.
#[derive(Debug)]
pub struct WebhookDispatcher {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl WebhookDispatcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system starts no thread.
    pub fn start(app: web::Data<App>) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = oneshot::channel();
        std::thread::Builder::new().name("webhooks".to_owned()).spawn(move || {
            match runtime() {
                Ok(runtime) => serve(&runtime, &app, &stopped),
                Err(cause) => log::error!("webhooks are not served: {cause}"),
            }
            let _ = ending.send(());
        })?;
        Ok(Self { stop, ended })
    }

    /// Begins no more attempts, and waits for those under way, about ten seconds at most. The process may end
    /// before: attempts under way are made again.
    pub async fn stop(self) {
        // An error means that the thread has ended.
        let _ = self.stop.send(true);
        if self.ended.await.is_err() {
            log::error!("the thread of the webhooks has failed");
        }
    }
}

/// The runtime of the thread. Names are looked up in blocking threads; the store must find a free one while
/// all attempts look up names.
fn runtime() -> io::Result<rt::Runtime> {
    let threads = AT_ONCE.saturating_mul(2);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(threads).build().map(rt::Runtime::from)
}

/// Sends until it is stopped. After a panic in the loop it starts again: the deliveries under way are sent
/// again when their leases have run out.
fn serve(runtime: &rt::Runtime, app: &web::Data<App>, stopped: &watch::Receiver<bool>) {
    let deliver = || runtime.block_on(deliver(app, stopped.clone()));
    while catch_unwind(AssertUnwindSafe(deliver)).is_err() {
        log::error!("the webhook dispatcher has failed and restarts");
        std::thread::sleep(STORE_PAUSE);
    }
}

async fn deliver(app: &web::Data<App>, mut stopped: watch::Receiver<bool>) {
    let client = WebhookClient::new(app.settings.webhooks, &app.settings.resolver);
    let mut attempts = AttemptPool::default();
    // Attempts that are not booked yet.
    let mut ended = Vec::new();
    loop {
        let wait = if ended.is_empty() { LOOK_EVERY } else { Duration::ZERO };
        ended.extend(attempts.wait(wait, &mut stopped).await);
        let is_stopping = *stopped.borrow();
        if is_stopping {
            attempts.close();
            if attempts.are_idle() && ended.is_empty() {
                return;
            }
        }
        let begun = Instant::now();
        let booked = ended.len().min(ENDED_AT_ONCE);
        match turn(app, ended.get(..booked).unwrap_or_default(), attempts.room()).await {
            Ok(claimed) => {
                ended.drain(..booked);
                for claimed in claimed {
                    let (app, client) = (app.clone(), client.clone());
                    let whose = (claimed.event.merchant_id, claimed.webhook_id);
                    attempts.begin(whose, attempt(app, client, claimed, begun));
                }
                let took = begun.elapsed();
                tokio::time::sleep(PAUSE.max(took.saturating_mul(PAUSES)).min(LONG_PAUSE)).await;
            }
            Err(cause) => {
                log::warn!("webhooks wait for the store: {cause}");
                if is_stopping {
                    // The delivery is sent again when its lease has run out.
                    return;
                }
                tokio::time::sleep(STORE_PAUSE).await;
            }
        }
    }
}

/// Takes a turn at the store, if there is something to do.
async fn turn(
    app: &App,
    ended: &[EndedAttempt],
    room: AttemptCapacity,
) -> Result<Vec<ClaimedDelivery>, StoreError> {
    if ended.is_empty() && !app.store.has_deliveries_due(room.clone()).await? {
        return Ok(Vec::new());
    }
    app.store.run_delivery_turn(ended.to_vec(), room).await
}

/// Makes one attempt. `None` if it was not made: the delivery is due again when its lease has run out.
async fn attempt(
    app: web::Data<App>,
    client: WebhookClient,
    claimed: ClaimedDelivery,
    claimed_at: Instant,
) -> Option<EndedAttempt> {
    let message = match message::render_body(&app, &claimed).await {
        Ok(message) => message,
        Err(cause) => {
            log::warn!("{} waits for the store: {cause}", claimed.delivery_id);
            return None;
        }
    };
    if claimed_at.elapsed() > BEGIN_WITHIN {
        log::warn!("{} is not sent: this process was stopped meanwhile", claimed.delivery_id);
        return None;
    }
    let begun = Instant::now();
    let answer = match message {
        Some(body) => client.post(&claimed.url, headers(&app, &claimed, &body), body).await,
        None => Err(DeliveryFault::EventLost),
    };
    let duration_ms = u32::try_from(begun.elapsed().as_millis()).unwrap_or(u32::MAX);
    let (response_status, response_body, fault) = match answer {
        Ok(answer) => (Some(answer.status), Some(readable(&answer.body)), None),
        Err(fault) => (None, None, Some(fault)),
    };
    let outcome = Attempt { response_status, response_body, fault, duration_ms };
    app.metrics.attempted(&outcome);
    let ClaimedDelivery { delivery_id, webhook_id, attempt, .. } = claimed;
    Some(EndedAttempt { delivery_id, webhook_id, attempt, outcome })
}

/// The headers of Standard Webhooks 1.0. The timestamp is that of the attempt, so that receivers can refuse
/// messages that are replayed later.
fn headers(app: &App, claimed: &ClaimedDelivery, body: &[u8]) -> HeaderMap {
    const ID: HeaderName = HeaderName::from_static("webhook-id");
    const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
    const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
    const AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
    let now = app.clock.now();
    let id = claimed.event.event_id.to_string();
    let timestamp = now.unix_micros().div_euclid(1_000_000);
    let signatures = claimed.secrets.signatures(&id, timestamp, body, now);
    let values = [
        (ID, HeaderValue::from_str(&id)),
        (TIMESTAMP, HeaderValue::from_str(&timestamp.to_string())),
        (SIGNATURE, HeaderValue::from_str(&signatures)),
        (CONTENT_TYPE, Ok(HeaderValue::from_static("application/json"))),
        (USER_AGENT, Ok(HeaderValue::from_static(AGENT))),
    ];
    // All of them are ASCII, so no header is left out.
    values.into_iter().filter_map(|(name, value)| Some((name, value.ok()?))).collect()
}

/// A receiver's answer as text. Bytes that are not UTF-8 or cannot be stored are replaced, which may make it
/// longer.
fn readable(body: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(body).replace('\0', "\u{fffd}");
    let mut ends = (0..=MAX_ANSWER_BYTES).rev();
    text.truncate(ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0));
    text
}
