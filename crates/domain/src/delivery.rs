//! Deliveries: one event for one webhook, with the times of its attempts.

use serde::{Deserialize, Serialize};

use crate::event_kind::EventKind;
use crate::id::{DeliveryId, EventId, WebhookId};
use crate::time::Timestamp;

/// One event for one webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The id.
    pub delivery_id: DeliveryId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The event. The message carries this id at every attempt.
    pub event_id: EventId,
    /// The event's kind.
    pub kind: EventKind,
    /// The number of the delivery among all to this webhook, from 1 and without gaps.
    pub sequence: u64,
    /// The status.
    pub status: DeliveryStatus,
    /// The number of attempts.
    pub attempts: u32,
    /// The outcome of the last attempt. Absent before the first one, and while one runs.
    pub last: Option<Attempt>,
    /// The time of the last attempt.
    pub last_attempt_at: Option<Timestamp>,
    /// The time of the next attempt. Absent when the delivery is done, while an attempt runs, and
    /// while it waits for an earlier event of its resource.
    pub next_attempt_at: Option<Timestamp>,
    /// The time at which the event was taken up for this webhook.
    pub created_at: Timestamp,
}

/// The status of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// It waits for its first or next attempt, or an attempt runs.
    Pending,
    /// The receiver accepted it.
    Delivered,
    /// All attempts have failed, and no other follows.
    Failed,
}

/// The most of a receiver's answer that is kept, in bytes.
pub const MAX_ANSWER_BYTES: usize = 4_096;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The HTTP status of the answer, if there is one.
    pub response_status: Option<u16>,
    /// The beginning of the answer's body, at most [`MAX_ANSWER_BYTES`].
    pub response_body: Option<String>,
    /// The reason why there is no answer.
    pub fault: Option<DeliveryFault>,
    /// The duration, in milliseconds.
    pub duration_ms: u32,
}

impl Attempt {
    /// Returns whether the receiver accepted it, with a status of 200 to 299.
    pub fn has_arrived(&self) -> bool {
        self.response_status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// The reason why a receiver gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFault {
    /// The URL is no longer allowed, or the message cannot be written for it.
    UrlRefused,
    /// The host name has no address.
    NameNotFound,
    /// The address is private.
    AddressPrivate,
    /// The address refuses connections, or cannot be reached.
    Unreachable,
    /// No TLS connection was established.
    TlsFailed,
    /// The attempt took too long.
    TimedOut,
    /// The receiver closed the connection, or its answer is not HTTP.
    NoAnswer,
    /// The content of the event no longer exists.
    EventLost,
}

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// The pause after each failed attempt, in milliseconds. The attempt after the last pause is the
/// last.
const PAUSES: [i64; 7] =
    [5 * SECOND, MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 8 * HOUR, 24 * HOUR];

/// The number of failed attempts after which later events of the same resource no longer wait for
/// this one. It is reached after about six minutes.
pub const OVERTAKEN_AFTER: u32 = 4;

impl DeliveryStatus {
    /// The time of the next attempt after `failures` failed ones, counted since the delivery was
    /// sent or sent again; `None` when no attempt follows. `jitter` adds up to a tenth of the
    /// pause, so that deliveries that failed together are not retried together.
    pub fn next_attempt(failures: u32, now: Timestamp, jitter: Jitter) -> Option<Timestamp> {
        let place = usize::try_from(failures.checked_sub(1)?).ok()?;
        let pause = *PAUSES.get(place)?;
        let added = pause.saturating_mul(i64::from(jitter.0)) / i64::from(u16::MAX) / 10;
        Some(now.plus_millis(pause.saturating_add(added)))
    }
}

/// A random share, as a fraction of [`u16::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(pub u16);

impl Jitter {
    /// Generates a random share.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_eight_times_over_a_day_and_a_half() {
        let now = Timestamp::from_unix_micros(0);
        let seconds = |jitter: u16| -> Vec<i64> {
            (1..)
                .map_while(|failures| DeliveryStatus::next_attempt(failures, now, Jitter(jitter)))
                .map(|at| at.unix_micros() / 1_000_000)
                .collect()
        };
        assert_eq!(seconds(0), [5, 60, 300, 1_800, 7_200, 28_800, 86_400]);
        assert_eq!(seconds(u16::MAX), [5, 66, 330, 1_980, 7_920, 31_680, 95_040]);
        assert_eq!(DeliveryStatus::next_attempt(0, now, Jitter(0)), None);
    }

    #[test]
    fn only_a_status_of_the_two_hundreds_is_arrival() {
        let attempt = |response_status| Attempt {
            response_status,
            response_body: None,
            fault: None,
            duration_ms: 1,
        };
        for status in [200, 201, 204, 299] {
            assert!(attempt(Some(status)).has_arrived(), "{status}");
        }
        for status in [100, 199, 300, 301, 400, 410, 500] {
            assert!(!attempt(Some(status)).has_arrived(), "{status}");
        }
        assert!(!attempt(None).has_arrived());
    }
}
