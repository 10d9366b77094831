//! The settings of the simulator, for all calls or, by headers, for one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use actix_web::http::header::HeaderMap;

const HEADER_PREFIX: &str = "x-simulate-";

/// Whether and how an answer reports its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageReport {
    /// The true usage, in dialects that have it.
    #[default]
    Reported,
    /// The field is absent, and so is the event that would carry only the usage.
    Missing,
    /// All zeros.
    Zero,
    /// The field is `null`.
    Null,
}

/// The encoding of the body of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// No encoding.
    #[default]
    Identity,
    /// Compressed, and flushed after each event of a stream.
    Gzip,
}

/// The end of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobOutcome {
    /// It ends as it should.
    #[default]
    Succeeded,
    /// It fails as a whole.
    Failed,
    /// Half of the requests of a batch expire; any other job fails.
    Expired,
    /// The provider forgets it when it would end.
    Forgotten,
}

/// The delivery of an event about the end of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventDelivery {
    /// It is sent once.
    #[default]
    Sent,
    /// It is not sent.
    Lost,
    /// It is sent twice.
    Doubled,
    /// It is signed with another secret.
    Forged,
}

/// The behaviour of the simulator; the crate's documentation describes each setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// The wait before the status line.
    pub first_byte_delay_ms: u64,
    /// The wait before each event of a stream but the first.
    pub chunk_delay_ms: u64,
    /// The number of words in the answer.
    pub words: u32,
    /// The tokens of the whole prompt; the number of its words if `None`.
    pub input_tokens: Option<u64>,
    /// The tokens of the whole answer; the number of its words if `None`.
    pub output_tokens: Option<u64>,
    /// The tokens of the prompt that are read from a cache.
    pub cached_tokens: u64,
    /// The tokens of the answer that are reasoning.
    pub reasoning_tokens: u64,
    /// Whether usage is reported.
    pub usage: UsageReport,
    /// The status of the answer; any other than 200 is an error.
    pub status: u16,
    /// The seconds of `retry-after`, sent with an error.
    pub retry_after_s: Option<u32>,
    /// The number of events after which the connection breaks.
    pub cut_after_events: Option<usize>,
    /// The number of events after which an error event ends the stream.
    pub error_after_events: Option<usize>,
    /// The encoding of bodies.
    pub encoding: Encoding,
    /// A suffix of the model in the answer, after a dash.
    pub snapshot: Option<String>,
    /// The service tier that the answer names.
    pub service_tier: String,
    /// Whether each word of a stream is the time at which it was sent.
    pub stamps: bool,
    /// The time until a job ends.
    pub job_ms: u64,
    /// The end of a job.
    pub job_outcome: JobOutcome,
    /// The number of requests of a batch, its last ones, that fail.
    pub failed_requests: usize,
    /// The address to which events of jobs are sent.
    pub event_url: Option<String>,
    /// The secret that signs them.
    pub event_secret: Option<String>,
    /// The delivery of events.
    pub events: EventDelivery,
    /// The time from the end of a job to its event.
    pub event_delay_ms: u64,
    /// The time after which a conversation on a socket ends.
    pub session_ms: Option<u64>,
    /// The only key that is accepted, as a bearer token or `x-api-key`; any key if `None`.
    pub api_key: Option<String>,
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            first_byte_delay_ms: 0,
            chunk_delay_ms: 0,
            words: 16,
            input_tokens: None,
            output_tokens: None,
            cached_tokens: 0,
            reasoning_tokens: 0,
            usage: UsageReport::Reported,
            status: 200,
            retry_after_s: None,
            cut_after_events: None,
            error_after_events: None,
            encoding: Encoding::Identity,
            snapshot: None,
            service_tier: "default".to_owned(),
            stamps: false,
            job_ms: 1_000,
            job_outcome: JobOutcome::default(),
            failed_requests: 0,
            event_url: None,
            event_secret: None,
            events: EventDelivery::default(),
            event_delay_ms: 0,
            session_ms: None,
            api_key: None,
        }
    }
}

/// Sets a field to the value of a setting; `None` if the value does not fit.
type Setter = fn(&mut Behavior, &str) -> Option<()>;

/// All settings: the names of their headers without `x-simulate-`, their values in words, and their setters.
const SETTINGS: [(&str, &str, Setter); 24] = [
    ("first-byte-delay-ms", "milliseconds", |to, value| put(&mut to.first_byte_delay_ms, value)),
    ("chunk-delay-ms", "milliseconds", |to, value| put(&mut to.chunk_delay_ms, value)),
    ("words", "a number of words", |to, value| put(&mut to.words, value)),
    ("input-tokens", "a number, or none", |to, value| put_option(&mut to.input_tokens, value)),
    ("output-tokens", "a number, or none", |to, value| put_option(&mut to.output_tokens, value)),
    ("cached-tokens", "a number", |to, value| put(&mut to.cached_tokens, value)),
    ("reasoning-tokens", "a number", |to, value| put(&mut to.reasoning_tokens, value)),
    ("usage", "reported, missing, zero or null", |to, value| put(&mut to.usage, value)),
    ("status", "200 to 599", |to, value| put_status(&mut to.status, value)),
    ("retry-after", "seconds, or none", |to, value| put_option(&mut to.retry_after_s, value)),
    ("cut-after-events", "a number, or none", |to, value| {
        put_option(&mut to.cut_after_events, value)
    }),
    ("error-after-events", "a number, or none", |to, value| {
        put_option(&mut to.error_after_events, value)
    }),
    ("encoding", "identity or gzip", |to, value| put(&mut to.encoding, value)),
    ("snapshot", "a text, or none", |to, value| put_option(&mut to.snapshot, value)),
    ("service-tier", "a text", |to, value| put(&mut to.service_tier, value)),
    ("stamps", "true or false", |to, value| put(&mut to.stamps, value)),
    ("job-ms", "milliseconds", |to, value| put(&mut to.job_ms, value)),
    ("job-outcome", "succeeded, failed, expired or forgotten", |to, value| {
        put(&mut to.job_outcome, value)
    }),
    ("failed-requests", "a number", |to, value| put(&mut to.failed_requests, value)),
    ("event-url", "a URL, or none", |to, value| put_option(&mut to.event_url, value)),
    ("event-secret", "a secret, or none", |to, value| put_option(&mut to.event_secret, value)),
    ("events", "sent, lost, doubled or forged", |to, value| put(&mut to.events, value)),
    ("event-delay-ms", "milliseconds", |to, value| put(&mut to.event_delay_ms, value)),
    ("session-ms", "milliseconds, or none", |to, value| put_option(&mut to.session_ms, value)),
];

/// The values, in words, and the setter of the setting of this name.
fn setting_of(setting: &str) -> Option<(&'static str, Setter)> {
    SETTINGS.iter().find(|(name, ..)| *name == setting).map(|(_, takes, put)| (*takes, *put))
}

/// A setting that does not exist, or a value that does not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    setting: String,
    value: String,
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value } = self;
        match setting_of(setting) {
            Some((takes, _)) => {
                write!(f, "the setting {setting} cannot have the value {value:?}; it takes {takes}")
            }
            None => {
                let names: Vec<_> = SETTINGS.iter().map(|(name, ..)| *name).collect();
                write!(f, "there is no setting {setting:?}; there are {}", names.join(", "))
            }
        }
    }
}

impl std::error::Error for InvalidSetting {}

impl Behavior {
    /// Changes one setting, named like its header without `x-simulate-`.
    ///
    /// # Errors
    /// [`InvalidSetting`] when there is no such setting, or the value does not fit it.
    pub fn set(&mut self, setting: &str, value: &str) -> Result<(), InvalidSetting> {
        let value = value.trim();
        let done = setting_of(setting).and_then(|(_, put)| put(self, value));
        let invalid = || InvalidSetting { setting: setting.to_owned(), value: value.to_owned() };
        done.ok_or_else(invalid)
    }

    /// This behaviour with the settings of one call; borrowed if the call has none.
    pub(crate) fn overridden_by(
        &self,
        headers: &HeaderMap,
    ) -> Result<Cow<'_, Self>, InvalidSetting> {
        let mut behavior = Cow::Borrowed(self);
        for (name, value) in headers {
            if let Some(setting) = name.as_str().strip_prefix(HEADER_PREFIX) {
                let value = String::from_utf8_lossy(value.as_bytes());
                behavior.to_mut().set(setting, &value)?;
            }
        }
        Ok(behavior)
    }
}

fn put<T: FromStr>(setting: &mut T, value: &str) -> Option<()> {
    *setting = value.parse().ok()?;
    Some(())
}

fn put_option<T: FromStr>(setting: &mut Option<T>, value: &str) -> Option<()> {
    *setting = match value {
        "none" => None,
        _ => Some(value.parse().ok()?),
    };
    Some(())
}

/// Sets a status that can end an exchange; 1xx cannot.
fn put_status(setting: &mut u16, value: &str) -> Option<()> {
    *setting = value.parse().ok().filter(|status| (200..600).contains(status))?;
    Some(())
}

impl FromStr for UsageReport {
    type Err = ();

    fn from_str(value: &str) -> Result<Self, ()> {
        match value {
            "reported" => Ok(Self::Reported),
            "missing" => Ok(Self::Missing),
            "zero" => Ok(Self::Zero),
            "null" => Ok(Self::Null),
            _ => Err(()),
        }
    }
}

impl FromStr for Encoding {
    type Err = ();

    fn from_str(value: &str) -> Result<Self, ()> {
        match value {
            "identity" => Ok(Self::Identity),
            "gzip" => Ok(Self::Gzip),
            _ => Err(()),
        }
    }
}

impl FromStr for EventDelivery {
    type Err = ();

    fn from_str(value: &str) -> Result<Self, ()> {
        match value {
            "sent" => Ok(Self::Sent),
            "lost" => Ok(Self::Lost),
            "doubled" => Ok(Self::Doubled),
            "forged" => Ok(Self::Forged),
            _ => Err(()),
        }
    }
}

impl FromStr for JobOutcome {
    type Err = ();

    fn from_str(value: &str) -> Result<Self, ()> {
        match value {
            "succeeded" => Ok(Self::Succeeded),
            "failed" => Ok(Self::Failed),
            "expired" => Ok(Self::Expired),
            "forgotten" => Ok(Self::Forgotten),
            _ => Err(()),
        }
    }
}
