//! Sends events to webhooks. One loop in a thread of its own takes turns at the store: it books how
//! attempts ended and claims what is due, as far as there is room; each attempt is a task. Nothing
//! that forwards calls waits for any of it.

pub(crate) mod message;
mod receivers;
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
use tollgate_store::deliveries::{Claimed, ENDED_AT_ONCE, Ended, Room};

use self::receivers::{AT_ONCE, Receivers};
use crate::app::App;

/// How often the store is asked whether there is anything to send.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The least pause between two turns: what ends or happens within it shares one, so that not every
/// answer costs a durable commit that calls could have had.
const PAUSE: Duration = Duration::from_millis(20);
/// How many times as long as a turn took the next one waits: where there is one writer it belongs to
/// others for most of the time, however much there is to send.
const PAUSES: u32 = 3;
/// The most that is waited for that.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// How long after a failure of the store it is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// An attempt that could not begin for so long is left to whoever claims it next. Together with the
/// time an attempt may take that is less than the store's lease.
const BEGIN_WITHIN: Duration = Duration::from_secs(15);

/// The thread that sends events to webhooks.
#[derive(Debug)]
pub struct Courier {
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl Courier {
    /// Begins to send.
    ///
    /// # Errors
    /// Those of the operating system.
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

    /// Begins nothing any more, and waits for what is under way: some ten seconds at most. Whoever
    /// waits no longer may end the process; what is under way is sent again then.
    pub async fn stop(self) {
        // Nobody listening means that the thread has ended.
        let _ = self.stop.send(true);
        if self.ended.await.is_err() {
            log::error!("the thread of the webhooks has failed");
        }
    }
}

/// Names are looked up in threads that wait for the answer; the store must find one although all of
/// them do.
fn runtime() -> io::Result<rt::Runtime> {
    let threads = AT_ONCE.saturating_mul(2);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(threads).build().map(rt::Runtime::from)
}

/// Sends until it is stopped. A fault in the loop costs what is under way, which is sent again when
/// its lease has run out, and not the service its webhooks.
fn serve(runtime: &rt::Runtime, app: &web::Data<App>, stopped: &watch::Receiver<bool>) {
    let deliver = || runtime.block_on(deliver(app, stopped.clone()));
    while catch_unwind(AssertUnwindSafe(deliver)).is_err() {
        log::error!("the loop of the webhooks has failed and begins anew");
        std::thread::sleep(STORE_PAUSE);
    }
}

async fn deliver(app: &web::Data<App>, mut stopped: watch::Receiver<bool>) {
    let client = WebhookClient::new(app.settings.webhooks, &app.settings.resolver);
    let mut receivers = Receivers::default();
    // What the store does not know yet.
    let mut ended = Vec::new();
    loop {
        let wait = if ended.is_empty() { LOOK_EVERY } else { Duration::ZERO };
        ended.extend(receivers.wait(wait, &mut stopped).await);
        let is_stopping = *stopped.borrow();
        if is_stopping {
            receivers.close();
            if receivers.are_idle() && ended.is_empty() {
                return;
            }
        }
        let begun = Instant::now();
        let booked = ended.len().min(ENDED_AT_ONCE);
        match turn(app, ended.get(..booked).unwrap_or_default(), receivers.room()).await {
            Ok(claimed) => {
                ended.drain(..booked);
                for claimed in claimed {
                    let (app, client) = (app.clone(), client.clone());
                    let whose = (claimed.event.merchant_id, claimed.webhook_id);
                    receivers.begin(whose, attempt(app, client, claimed, begun));
                }
                let took = begun.elapsed();
                tokio::time::sleep(PAUSE.max(took.saturating_mul(PAUSES)).min(LONG_PAUSE)).await;
            }
            Err(cause) => {
                log::warn!("webhooks wait for the store: {cause}");
                if is_stopping {
                    // It is sent again when its lease has run out.
                    return;
                }
                tokio::time::sleep(STORE_PAUSE).await;
            }
        }
    }
}

/// Takes a turn at the store, if there is anything to do.
async fn turn(app: &App, ended: &[Ended], room: Room) -> Result<Vec<Claimed>, StoreError> {
    if ended.is_empty() && !app.store.has_deliveries_due(room.clone()).await? {
        return Ok(Vec::new());
    }
    app.store.turn_deliveries(ended.to_vec(), room).await
}

/// One attempt: `None` when it was not made, so that it is due again when its lease has run out.
async fn attempt(
    app: web::Data<App>,
    client: WebhookClient,
    claimed: Claimed,
    claimed_at: Instant,
) -> Option<Ended> {
    let message = match message::body(&app, &claimed).await {
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
    let Claimed { delivery_id, webhook_id, attempt, .. } = claimed;
    Some(Ended { delivery_id, webhook_id, attempt, outcome })
}

/// The headers of Standard Webhooks 1.0. The timestamp is that of the attempt, so that receivers can
/// refuse messages that somebody sends again later.
fn headers(app: &App, claimed: &Claimed, body: &[u8]) -> HeaderMap {
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
    // All of them are ASCII, so none is left out.
    values.into_iter().filter_map(|(name, value)| Some((name, value.ok()?))).collect()
}

/// What a receiver said, as text: what is not UTF-8 or cannot be stored is replaced, by what may be
/// longer than it was.
fn readable(body: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(body).replace('\0', "\u{fffd}");
    let mut ends = (0..=MAX_ANSWER_BYTES).rev();
    text.truncate(ends.find(|end| text.is_char_boundary(*end)).unwrap_or(0));
    text
}
