//! Deliveries: an event on its way to one webhook, and when it is tried again.

use serde::{Deserialize, Serialize};

use crate::event_kind::EventKind;
use crate::id::{DeliveryId, EventId, WebhookId};
use crate::time::Timestamp;

/// An event on its way to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub delivery_id: DeliveryId,
    /// Where it goes.
    pub webhook_id: WebhookId,
    /// What it tells of. The message bears this id at every attempt.
    pub event_id: EventId,
    /// The event's kind.
    pub kind: EventKind,
    /// Its number among all that go to this webhook, from 1 and without gaps.
    pub sequence: u64,
    /// How it stands.
    pub status: DeliveryStatus,
    /// How often it was tried.
    pub attempts: u32,
    /// How the last attempt ended; absent before the first one, and while one is under way.
    pub last: Option<Attempt>,
    /// When it was last tried.
    pub last_attempt_at: Option<Timestamp>,
    /// When it is tried next. Absent when it is done, while an attempt is under way, and while it
    /// waits for an earlier event of its resource.
    pub next_attempt_at: Option<Timestamp>,
    /// When the event was taken up for this webhook.
    pub created_at: Timestamp,
}

/// How a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// It waits for its first or next attempt, or one is under way.
    Pending,
    /// The receiver took it.
    Delivered,
    /// It was tried as often as it is.
    Failed,
}

/// How much of a receiver's answer is kept, in bytes.
pub const MAX_ANSWER_BYTES: usize = 4_096;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The status of the receiver's answer, if it gave one.
    pub response_status: Option<u16>,
    /// The beginning of its body, at most [`MAX_ANSWER_BYTES`].
    pub response_body: Option<String>,
    /// Why there is no answer.
    pub fault: Option<DeliveryFault>,
    /// How long it took, in milliseconds.
    pub duration_ms: u32,
}

impl Attempt {
    /// Whether the receiver took it: with any status of 200 to 299.
    pub fn has_arrived(&self) -> bool {
        self.response_status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// Why a receiver gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryFault {
    /// The URL is not one that is called any more, or the message cannot be written for it.
    UrlRefused,
    /// Its name has no address.
    NameNotFound,
    /// Its address is private.
    AddressPrivate,
    /// Nobody listens there, or it cannot be reached.
    Unreachable,
    /// No secure connection came about.
    TlsFailed,
    /// The time ran out.
    TimedOut,
    /// It closed the connection, or what it said is not HTTP.
    NoAnswer,
    /// What is to be told is not there any more.
    EventLost,
}

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// How long is waited after each attempt that failed, in milliseconds; after the last one it is
/// given up.
const PAUSES: [i64; 7] =
    [5 * SECOND, MINUTE, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 8 * HOUR, 24 * HOUR];

/// After so many failed attempts, about six minutes, later events of the same resource wait no
/// longer for one that the receiver does not take.
pub const OVERTAKEN_AFTER: u32 = 4;

impl DeliveryStatus {
    /// When to try again what has failed so often since it was sent or sent anew; `None` gives up.
    /// `jitter` is a random number below 1: so that what failed together does not come back
    /// together, up to a tenth is added.
    pub fn next_attempt(failures: u32, now: Timestamp, jitter: Jitter) -> Option<Timestamp> {
        let place = usize::try_from(failures.checked_sub(1)?).ok()?;
        let pause = *PAUSES.get(place)?;
        let added = pause.saturating_mul(i64::from(jitter.0)) / i64::from(u16::MAX) / 10;
        Some(now.plus_millis(pause.saturating_add(added)))
    }
}

/// A random share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(pub u16);

impl Jitter {
    /// A random one.
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
