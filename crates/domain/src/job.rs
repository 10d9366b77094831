//! Jobs: calls that a provider answers later, and whose cost is known only then.
//!
//! The call that creates a job is admitted like any other, and its hold stays until the job has ended. The first
//! observation of its end settles the call.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::delivery::Jitter;
use crate::event::EventPayload;
use crate::id::{ConnectionId, JobId, MerchantId, RequestId, SpendKeyId};
use crate::record::PricedUsage;
use crate::time::Timestamp;

/// The time after its creation at which a job expires, unless its provider says otherwise.
pub const JOB_LIFE_MILLIS: i64 = 24 * 60 * 60 * 1_000;
/// The time after its expiry at which a job is given up.
const GIVEN_UP_AFTER_MILLIS: i64 = 24 * 60 * 60 * 1_000;
/// The least time between two answers by which a provider no longer knows a job.
const MISSING_AGAIN_MILLIS: i64 = 5_000;
/// The shortest and the longest time between two looks at a job.
const LOOK_MILLIS: (i64, i64) = (2_000, 300_000);

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A response in the background.
    Response,
    /// A batch of requests.
    Batch,
    /// A video.
    Video,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The provider works on it, or its results are not read yet.
    Running,
    /// It has ended, and its call is settled.
    Succeeded,
    /// The provider reports that it failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// The provider did not finish it in time.
    Expired,
    /// The provider no longer knows it, or its end was never seen.
    Lost,
}

impl JobState {
    /// All states, as the API names them.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled, Self::Expired, Self::Lost];

    /// The name of the state in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Lost => "lost",
        }
    }
}

impl JobKind {
    /// All kinds, as the API names them.
    pub const ALL: [Self; 3] = [Self::Response, Self::Batch, Self::Video];

    /// The name of the kind in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Batch => "batch",
            Self::Video => "video",
        }
    }
}

impl FromStr for JobState {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|state| state.as_str() == word).ok_or(())
    }
}

impl FromStr for JobKind {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or(())
    }
}

/// The observer of the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobObserver {
    /// The client, which retrieved the object.
    Client,
    /// The provider, which sent an event.
    Webhook,
    /// The service, which asks from time to time.
    Poll,
}

impl JobObserver {
    /// All observers.
    pub const ALL: [Self; 3] = [Self::Client, Self::Webhook, Self::Poll];

    /// The name of the observer in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Webhook => "webhook",
            Self::Poll => "poll",
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The id.
    pub job_id: JobId,
    /// The call that created it.
    pub request_id: RequestId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The kind.
    pub kind: JobKind,
    /// The provider's name.
    pub provider: String,
    /// The provider's id of the object. It is unique at the provider.
    pub provider_object_id: String,
    /// The spend key of the call.
    pub spend_key_id: Option<SpendKeyId>,
    /// The customer of the call.
    pub connection_id: Option<ConnectionId>,
    /// The state.
    pub state: JobState,
    /// The amount that the call holds until the job has ended.
    pub hold: Amount,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time at which the object was last seen at the provider.
    pub last_seen_at: Option<Timestamp>,
    /// The time at which the end was observed.
    pub ended_at: Option<Timestamp>,
    /// The time at which the provider gives up, or a day after the creation.
    pub expires_at: Timestamp,
}

impl Job {
    /// The time of the next look at a running job: in a quarter of its age, at least 2 s and at most 5 min. Some of it is
    /// left out at random, so that jobs that began together are not looked at together.
    pub fn next_look(created_at: Timestamp, now: Timestamp, jitter: Jitter) -> Timestamp {
        let (least, most) = LOOK_MILLIS;
        let age = now.unix_micros().saturating_sub(created_at.unix_micros()).max(0) / 1_000;
        let pause = (age / 4).clamp(least, most);
        let left_out = pause.saturating_mul(i64::from(jitter.0)) / i64::from(u16::MAX) / 10;
        now.plus_millis(pause.saturating_sub(left_out).max(least))
    }

    /// Whether its end is not looked for any more: a day after it has expired.
    pub fn is_given_up(&self, now: Timestamp) -> bool {
        now >= self.expires_at.plus_millis(GIVEN_UP_AFTER_MILLIS)
    }

    /// Whether a job is lost that its provider did not know at `first`, and does not know now.
    pub fn is_lost(first: Timestamp, now: Timestamp) -> bool {
        now >= first.plus_millis(MISSING_AGAIN_MILLIS)
    }

    /// The time of the second look at a job that its provider does not know.
    pub fn second_look(first: Timestamp) -> Timestamp {
        first.plus_millis(MISSING_AGAIN_MILLIS)
    }
}

/// The facts by which any process can settle a job: those of its call that the pending record lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTerms {
    /// The URL at which the provider answers the object, without secrets.
    pub url: String,
    /// The most that the job can use, at its price.
    pub at_most: PricedUsage,
    /// Whether the bound covers all of the job.
    pub is_bounded: bool,
    /// Whether a strict spend key pays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_strict: bool,
    /// The videos to be made, if their object does not state their length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoTerms>,
}

/// The facts by which delivered videos are priced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VideoTerms {
    /// The length of each, in microseconds.
    pub micros: u64,
    /// The tiers of the price list, such as their size.
    pub tiers: Vec<String>,
}

/// The observed end of a job. It is booked with the settlement of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// The job.
    pub job_id: JobId,
    /// The final state.
    pub state: JobState,
    /// The first observer.
    pub observer: JobObserver,
}

impl JobEnd {
    /// The event of the end.
    pub const fn event(self, request_id: RequestId) -> EventPayload {
        let job_id = self.job_id;
        match self.state {
            JobState::Succeeded => EventPayload::JobSucceeded { job_id, request_id },
            JobState::Lost => EventPayload::JobLost { job_id, request_id },
            JobState::Running | JobState::Failed | JobState::Cancelled | JobState::Expired => {
                EventPayload::JobFailed { job_id, request_id }
            }
        }
    }
}

/// The kind of an object that a provider keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A response.
    Response,
    /// A batch of requests.
    Batch,
    /// A file.
    File,
    /// A video.
    Video,
    /// A conversation.
    Conversation,
}

/// An object at a provider that belongs to the wallet that paid for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderObject {
    /// The provider's id of the object.
    pub object_id: String,
    /// The kind.
    pub kind: ObjectKind,
    /// The requests in a file for a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BatchRequests>,
    /// The provider's id of the batch of which a file has results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_of: Option<String>,
    /// The tokens that it has as the beginning of another call, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The time at which the provider deletes it.
    pub expires_at: Timestamp,
}

/// The requests of a batch together, as they were checked one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRequests {
    /// The path of each request below the version of the API, such as `/chat/completions`.
    pub path: String,
    /// The models, each with the fingerprint of the prices by which it is bounded. Empty for one without a price.
    pub models: BTreeMap<String, String>,
    /// The most that the requests can use, with its base cost.
    pub at_most: PricedUsage,
    /// The estimated input of the requests, with its base cost.
    pub input_estimate: PricedUsage,
    /// Whether all models have a price.
    pub is_priced: bool,
    /// The path to the field that leaves the cost without a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbounded: Option<Vec<String>>,
}

impl BatchRequests {
    /// The requests in a file that was not uploaded through this service, and that a field names: with the caller's own
    /// key, or at a provider whose stored objects are open to all callers.
    pub fn unknown(field: &[&str]) -> Self {
        Self {
            path: String::new(),
            models: BTreeMap::new(),
            at_most: PricedUsage::nothing(),
            input_estimate: PricedUsage::nothing(),
            is_priced: false,
            unbounded: Some(field.iter().map(|step| (*step).to_owned()).collect()),
        }
    }

    /// The model of all requests. `None` if there are several.
    pub fn model(&self) -> Option<&String> {
        self.models.keys().next().filter(|_| self.models.len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    #[test]
    fn the_time_between_two_looks_grows_from_two_seconds_to_five_minutes() {
        let pause = |age_s: i64, jitter| {
            let now = NOW.plus_millis(age_s * 1_000);
            (Job::next_look(NOW, now, Jitter(jitter)).unix_micros() - now.unix_micros()) / 1_000
        };
        let pauses = [0, 8, 16, 400, 1_200, 86_400].map(|age_s| pause(age_s, 0));
        assert_eq!(pauses, [2_000, 2_000, 4_000, 100_000, 300_000, 300_000]);
        assert_eq!([0, 1_200].map(|age_s| pause(age_s, u16::MAX)), [2_000, 270_000]);
    }

    #[test]
    fn a_job_is_lost_by_two_answers_five_seconds_apart() {
        assert!(!Job::is_lost(NOW, NOW.plus_millis(4_999)));
        assert!(Job::is_lost(NOW, NOW.plus_millis(5_000)));
    }
}
