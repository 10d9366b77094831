//! Jobs: how a call becomes one, and how the observation of its end settles it.
//!
//! A job has three observers: the client that retrieves its object, the provider that sends an event, and the
//! [poller](crate::poller). All of them settle it here. The store books the first, and every later one changes nothing.

use std::time::Duration;

use tollgate_domain::settlement::{CallReport, Ending};
use tollgate_domain::{
    CallDetails, CallFailure, FailureSource, JOB_LIFE_MILLIS, Job, JobEnd, JobId, JobKind,
    JobObserver, JobState, JobTerms, ObjectKind, PendingRecord, PricedUsage, ProviderObject,
    Timestamp, UsageSource, VideoTerms,
};
use tollgate_pricing::{PerUnit, Usage};
use tollgate_provider::ProviderKey;
use tollgate_store::jobs::{self, NewJob, OpenJob};
use tollgate_store::{Conn, SettleOutcome, Store, StoreError};
use tollgate_usage::{InspectedBody, ObjectState, UsageReading};

use crate::batch::BatchTotals;
use crate::gateway::Gateway;
use crate::key_seal::KeySeal;
use crate::outbound::OutboundCall;
use crate::price::{PricedCall, PricedReading, RequestedBound, price_reading};
use crate::settlement::ChargeFacts;

/// The time for which OpenAI keeps a response.
const RESPONSE_KEPT_MILLIS: i64 = 30 * JOB_LIFE_MILLIS;
/// The time for which objects are kept that have no expiry: a hundred years.
const ALWAYS_KEPT_MILLIS: i64 = 36_500 * JOB_LIFE_MILLIS;
/// The longest time that the answer of a call waits until its job is written.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before a job that is not written is written again.
const BEGIN_AGAIN: Duration = Duration::from_millis(500);
/// The longest id of an object.
const MAX_ID_BYTES: usize = 512;

/// The beginning of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobBeginning {
    /// The job is written, or is being written.
    Begun(JobId),
    /// The object has a job already: the provider has answered an earlier call again.
    Known,
}

/// An object that a call keeps at its provider. It belongs to the wallet of the call.
fn kept_object(kind: ObjectKind, id: &str, now: Timestamp) -> ProviderObject {
    let kept_for = match kind {
        ObjectKind::Response => RESPONSE_KEPT_MILLIS,
        ObjectKind::Batch | ObjectKind::Video | ObjectKind::File | ObjectKind::Conversation => {
            ALWAYS_KEPT_MILLIS
        }
    };
    let object_id = id.to_owned();
    let expires_at = now.plus_millis(kept_for);
    ProviderObject { object_id, kind, requests: None, result_of: None, tokens: None, expires_at }
}

/// The response that a call keeps at its provider, with its reported usage.
fn kept_response(id: &str, priced: &PricedUsage, now: Timestamp) -> ProviderObject {
    let reported = (priced.usage_source == UsageSource::Reported).then_some(&priced.usage);
    let sum = |usage: &Usage| usage.input_tokens().saturating_add(usage.output_tokens());
    ProviderObject { tokens: reported.map(sum), ..kept_object(ObjectKind::Response, id, now) }
}

/// The object that an answer is, if its provider keeps it and no job is needed to know its cost.
pub(crate) fn kept_answer(
    outbound: &OutboundCall,
    id: &str,
    priced: &PricedUsage,
    now: Timestamp,
) -> Option<ProviderObject> {
    if outbound.endpoint.format.creates_video() {
        return Some(kept_object(ObjectKind::Video, id, now));
    }
    outbound.call_body.keeps_answer.then(|| kept_response(id, priced, now))
}

/// The objects that the answer of a call without a price shows: the file that was uploaded, the conversation that was
/// created, and the files of results of a batch.
pub(crate) fn kept_by_free_call(
    outbound: &OutboundCall,
    reading: &UsageReading,
    now: Timestamp,
) -> Vec<ProviderObject> {
    let mut objects = match outbound.managed {
        true => kept_files(reading, now),
        false => Vec::new(),
    };
    if let Some(id) = reading.response_id.as_deref()
        && outbound.endpoint.format.creates_conversation()
        && outbound.managed
    {
        objects.push(kept_object(ObjectKind::Conversation, id, now));
    }
    // A batch needs what is known of the requests in its file, with any key.
    let is_kept = outbound.managed || outbound.file.is_some();
    if let Some(id) = reading.response_id.as_deref()
        && outbound.endpoint.format.creates_file()
        && is_kept
    {
        let expires_at = reading.expires_at.as_deref().and_then(provider_time);
        let file = kept_object(ObjectKind::File, id, now);
        objects.push(ProviderObject {
            requests: outbound.file.as_deref().cloned(),
            expires_at: expires_at.unwrap_or(file.expires_at),
            ..file
        });
    }
    objects
}

/// The files of an answer's object that belong to the wallet of the call, as the object itself.
fn kept_files(reading: &UsageReading, now: Timestamp) -> Vec<ProviderObject> {
    let files = reading.result_files.iter();
    let file = |id: &String| ProviderObject {
        result_of: reading.response_id.clone(),
        ..kept_object(ObjectKind::File, id, now)
    };
    files.map(file).collect()
}

/// The outcome of a call that asks for its answer later.
pub(crate) enum JobOutcome {
    /// It is answered at once, or its object cannot be retrieved.
    None,
    /// Its job runs.
    Runs,
    /// The end of its job was seen.
    Ended(JobEnd),
    /// The provider has answered the object of an earlier call again.
    OfAnotherCall,
}

/// The outcome of a call that asks for its answer later. `begun` is the job of a stream whose first event named its object.
pub(crate) async fn outcome(
    outbound: &OutboundCall,
    call: &PendingRecord,
    bound: &RequestedBound,
    begun: Option<JobId>,
    reading: &UsageReading,
    gateway: &Gateway,
) -> JobOutcome {
    if let Some(job_id) = begun {
        let end = observed_end(job_id, reading, JobObserver::Client);
        return end.filter(|_| reading.complete).map_or(JobOutcome::Runs, JobOutcome::Ended);
    }
    let format = &outbound.endpoint.format;
    // The results of a batch are read later, also if it has ended, and so is an operation.
    let is_later = reading.object_state == Some(ObjectState::Running)
        || format.creates_batch()
        || format.answers_operation();
    let Some(id) = reading.response_id.as_deref().filter(|_| is_later) else {
        return JobOutcome::None;
    };
    let expires_at = reading.expires_at.as_deref().and_then(provider_time);
    match job_of(outbound, call, bound, (id, expires_at), gateway) {
        None => JobOutcome::None,
        Some(new) => match begin(&gateway.store, new).await {
            JobBeginning::Begun(_) => JobOutcome::Runs,
            JobBeginning::Known => JobOutcome::OfAnotherCall,
        },
    }
}

/// The job that a call becomes with its answer. `None` if the object has no usable id.
pub(crate) fn job_of(
    outbound: &OutboundCall,
    call: &PendingRecord,
    bound: &RequestedBound,
    (object_id, expires_at): (&str, Option<Timestamp>),
    gateway: &Gateway,
) -> Option<NewJob> {
    let now = gateway.clock.now();
    let (kind, object_kind) = match outbound.batch {
        Some(_) => (JobKind::Batch, ObjectKind::Batch),
        None if outbound.endpoint.format.creates_video() => (JobKind::Video, ObjectKind::Video),
        None => (JobKind::Response, ObjectKind::Response),
    };
    let (format, created_at) = (&outbound.endpoint.format, outbound.endpoint.recorded_url());
    let object_path = is_usable_id(object_id).then(|| format.object_path(object_id))?;
    let url = sibling_url(created_at, &format.path, &object_path)?;
    let is_counted = format.answers_operation() && kind == JobKind::Video;
    let key = match &outbound.provider_key {
        ProviderKey::Managed => None,
        ProviderKey::Own(key) => gateway.settings.job_keys.as_ref().and_then(|seal| seal.seal(key)),
    };
    Some(NewJob {
        job: Job {
            job_id: JobId::generate(now),
            request_id: call.request_id,
            merchant_id: call.merchant_id,
            kind,
            provider: call.forwarded.provider.clone(),
            provider_object_id: object_id.to_owned(),
            spend_key_id: call.spend_key_id,
            connection_id: call.connection_id,
            state: JobState::Running,
            hold: call.spend_hold,
            created_at: now,
            last_seen_at: Some(now),
            ended_at: None,
            expires_at: expires_at.unwrap_or_else(|| now.plus_millis(JOB_LIFE_MILLIS)),
        },
        terms: JobTerms {
            url,
            at_most: bound.at_most,
            is_bounded: bound.is_complete,
            is_strict: call.enforcement == Some(tollgate_domain::Enforcement::Strict),
            video: is_counted.then(|| video_terms(&outbound.call_body)),
        },
        call: call.clone(),
        object: kept_object(object_kind, object_id, now),
        provider_key: key,
        look_at: Job::next_look(now, now, tollgate_domain::Jitter::random()),
    })
}

/// The facts by which the videos of a request are priced.
fn video_terms(body: &InspectedBody) -> VideoTerms {
    let tiers = body.tiers().iter().map(|(_, tier)| tier.clone());
    VideoTerms { micros: body.video_micros(), tiers: tiers.collect() }
}

/// A time as a provider writes it: in seconds since 1970, or as a text.
fn provider_time(text: &str) -> Option<Timestamp> {
    match text.parse::<i64>() {
        Ok(seconds) => Timestamp::from_unix_seconds(seconds),
        Err(_) => text.parse().ok(),
    }
}

/// Whether an id can stand in a path.
fn is_usable_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(is_plain) && !id.starts_with('.')
}

/// A URL with the path `other` below the base URL, in place of its own. Its query stays.
pub(crate) fn sibling_url(url: &str, own: &str, other: &str) -> Option<String> {
    let (path, query) = match url.split_once('?') {
        Some((path, query)) if other.contains('?') => (path, format!("&{query}")),
        Some((path, query)) => (path, format!("?{query}")),
        None => (url, String::new()),
    };
    let base = path.strip_suffix(own)?;
    Some(format!("{base}{other}{query}"))
}

/// Writes a job, before the client has the id of its object. While the database is away, it is written later.
pub(crate) async fn begin(store: &Store, new: NewJob) -> JobBeginning {
    let job_id = new.job.job_id;
    match tokio::time::timeout(BEGIN_TIMEOUT, write(store, new.clone())).await {
        Ok(Ok(true)) => return JobBeginning::Begun(job_id),
        Ok(Ok(false)) => return JobBeginning::Known,
        Ok(Err(cause)) => log::error!("{job_id} is not written yet: {cause}"),
        Err(_) => log::error!("{job_id} is not written yet: the database is slow"),
    }
    let store = store.clone();
    tokio::task::spawn_local(async move {
        while let Err(cause) = write(&store, new.clone()).await {
            log::debug!("{job_id} is not written yet: {cause}");
            tokio::time::sleep(BEGIN_AGAIN).await;
        }
    });
    JobBeginning::Begun(job_id)
}

async fn write(store: &Store, new: NewJob) -> Result<bool, StoreError> {
    // A job that was written by an attempt whose answer was lost is this one.
    let own = (new.job.provider.clone(), new.job.provider_object_id.clone(), new.job.job_id);
    store
        .write_outside_calls(move |conn| {
            let (provider, object_id, job_id) = own;
            let is_new = jobs::begin(conn, &new)?;
            let found = jobs::find_open(conn, &provider, &object_id)?;
            Ok(is_new || found.is_some_and(|open| open.job.job_id == job_id))
        })
        .await
}

/// The end of a job that a reading shows. `None` while the job runs.
pub(crate) fn observed_end(
    job_id: JobId,
    reading: &UsageReading,
    observer: JobObserver,
) -> Option<JobEnd> {
    let state = match reading.object_state? {
        ObjectState::Running => return None,
        ObjectState::Succeeded => JobState::Succeeded,
        ObjectState::Failed => JobState::Failed,
        ObjectState::Cancelled => JobState::Cancelled,
        ObjectState::Expired => JobState::Expired,
    };
    Some(JobEnd { job_id, state, observer })
}

/// Settles a job by an answer that shows its end. Does nothing while the job runs.
pub(crate) async fn settle(
    gateway: &Gateway,
    open: &OpenJob,
    reading: &UsageReading,
    observer: JobObserver,
) -> Option<JobEnd> {
    let end = observed_end(open.job.job_id, reading, observer)?;
    book(gateway, open, report(gateway, open, reading, end), end).await;
    Some(end)
}

/// Takes note of the object of a job that the client has retrieved. A response that has ended is settled. The results of
/// a batch are read later, for which the client does not wait: returns whether they must be.
pub(crate) async fn observe(gateway: &Gateway, open: &OpenJob, reading: &UsageReading) -> bool {
    if open.job.kind != JobKind::Batch {
        settle(gateway, open, reading, JobObserver::Client).await;
        return false;
    }
    if observed_end(open.job.job_id, reading, JobObserver::Client).is_none() {
        return false;
    }
    let (job_id, now) = (open.job.job_id, gateway.clock.now());
    let hurry = move |conn: &mut Conn| jobs::announce(conn, job_id, JobObserver::Client, now);
    let hurried: Result<(), StoreError> = gateway.store.write_outside_calls(hurry).await;
    if let Err(cause) = hurried {
        log::warn!("{job_id} is looked at later: {cause}");
    }
    true
}

/// Settles a batch by the answers to its requests.
pub(crate) async fn settle_batch(
    gateway: &Gateway,
    open: &OpenJob,
    (reading, totals): (&UsageReading, BatchTotals),
    end: JobEnd,
) {
    let now = gateway.clock.now();
    let (read, lines) = totals.finish();
    let ending = match end.state {
        JobState::Succeeded => Ending::Answered,
        _ => Ending::Broken,
    };
    let model = match lines.as_slice() {
        [only] => Some(only.model.clone()).filter(|model| !model.is_empty()),
        _ => None,
    };
    let report = CallReport {
        provider_status: Some(200),
        priced: read.priced,
        missing: read.missing,
        model,
        response_id: Some(open.job.provider_object_id.clone()),
        job: Some(end),
        lines,
        objects: kept_files(reading, now),
        details: CallDetails {
            failure: failure(end.state, &UsageReading::nothing(), true),
            ..CallDetails::default()
        },
        ..ended(gateway, ending)
    };
    book(gateway, open, report, end).await;
}

/// Settles a job that its provider does not know any more, or whose end was never seen.
pub(crate) async fn settle_lost(gateway: &Gateway, open: &OpenJob, observer: JobObserver) {
    let end = JobEnd { job_id: open.job.job_id, state: JobState::Lost, observer };
    let known = open.known.unwrap_or_else(PricedUsage::nothing);
    let priced = match open.terms.is_strict {
        true => PricedUsage { usage_source: UsageSource::Estimated, ..open.terms.at_most },
        false => known,
    };
    let message = "The provider no longer knows the job, or its end was never seen.";
    let failure = CallFailure::of_service("job_lost", message);
    let report = CallReport {
        priced,
        job: Some(end),
        details: CallDetails { failure: Some(failure), ..CallDetails::default() },
        ..ended(gateway, Ending::Broken)
    };
    book(gateway, open, report, end).await;
}

async fn book(gateway: &Gateway, open: &OpenJob, report: CallReport, end: JobEnd) {
    let metrics = gateway.metrics.of(&open.job.provider);
    let counted = report.clone();
    match gateway.store.settle_job(&open.job, report).await {
        SettleOutcome::Settled(_) | SettleOutcome::SettledFree(_) | SettleOutcome::Journaled => {
            metrics.ended(&counted);
            metrics.job_ended(end);
        }
        SettleOutcome::AlreadySettled | SettleOutcome::Moved => {}
        outcome @ (SettleOutcome::TakenBack
        | SettleOutcome::NotFound
        | SettleOutcome::NotSettled) => {
            log::error!("{} is not settled: {outcome:?}", open.job.job_id);
        }
    }
}

/// The report of a job with this ending, which has cost nothing.
fn ended(gateway: &Gateway, ending: Ending) -> CallReport {
    CallReport { ending, ..CallReport::not_sent(gateway.clock.now()) }
}

/// The report of a job by the answer that shows its end.
fn report(gateway: &Gateway, open: &OpenJob, reading: &UsageReading, end: JobEnd) -> CallReport {
    let OpenJob { job, terms, call, .. } = open;
    let now = gateway.clock.now();
    let metrics = gateway.metrics.of(&job.provider);
    let ending = match end.state {
        JobState::Succeeded => Ending::Answered,
        _ => Ending::Broken,
    };
    let bound = RequestedBound { at_most: terms.at_most, is_complete: terms.is_bounded };
    let reading = &with_lengths(reading, terms.video.as_ref());
    let read = match (end.state, reading.source) {
        (_, UsageSource::Reported) | (JobState::Succeeded, _) => {
            let priced = PricedCall {
                provider: &job.provider,
                requested: call.forwarded.model.as_deref(),
                answers: 1,
                came_in: call.created_at,
            };
            match (job.kind, reading.source) {
                (JobKind::Video, source) if source != UsageSource::Reported => PricedReading {
                    // It is delivered, and nothing is stated of its length.
                    priced: PricedUsage { usage_source: UsageSource::Estimated, ..terms.at_most },
                    ..PricedReading::nothing()
                },
                _ => price_reading(&with_input(reading, call), &priced, gateway, metrics),
            }
        }
        _ => PricedReading::nothing(),
    };
    let is_suspicious = bound.is_far_exceeded_by(&read.priced);
    if is_suspicious {
        metrics.suspicious();
        log::warn!("{}: far more is reported than it could use", job.job_id);
    }
    let facts = ChargeFacts {
        ending,
        is_stream: false,
        is_strict: terms.is_strict,
        provider_error: true,
        is_suspicious,
    };
    let PricedReading { priced, applied, missing } = facts.charged(read, &bound);
    let stated = reading.created_unix_s.and_then(Timestamp::from_unix_seconds);
    CallReport {
        provider_status: Some(200),
        priced,
        applied,
        missing,
        model: reading.model.clone(),
        response_id: Some(job.provider_object_id.clone()),
        timestamp: stated.unwrap_or(now),
        suspicious: is_suspicious,
        job: Some(end),
        objects: match job.kind {
            JobKind::Response => vec![kept_response(&job.provider_object_id, &priced, now)],
            JobKind::Batch | JobKind::Video => Vec::new(),
        },
        details: CallDetails {
            failure: failure(end.state, reading, gateway.settings.keep_error_messages),
            ..CallDetails::default()
        },
        ..ended(gateway, ending)
    }
}

/// The reading of delivered videos, each with the length that was requested if the answer only counts them.
fn with_lengths(reading: &UsageReading, video: Option<&VideoTerms>) -> UsageReading {
    let mut reading = reading.clone();
    if let (Some(samples), Some(video)) = (reading.samples, video) {
        let output_second = samples.saturating_mul(video.micros);
        reading.usage.quantities = PerUnit { output_second, request: 1, ..PerUnit::default() };
        reading.source = UsageSource::Reported;
        reading.tiers = video.tiers.clone();
    }
    reading
}

/// The reading of a retrieved answer. An answer that reports no usage has the estimated input of its call.
fn with_input(reading: &UsageReading, call: &PendingRecord) -> UsageReading {
    let mut reading = reading.clone();
    if reading.source != UsageSource::Reported {
        let input = call.forwarded.input_estimate.usage.quantities.inputs();
        let output = reading.usage.quantities.outputs();
        reading.usage.quantities = PerUnit::sum(&input, &output);
        reading.source = UsageSource::Estimated;
    }
    reading
}

/// The failure of a job that has not succeeded.
fn failure(state: JobState, reading: &UsageReading, keeps_message: bool) -> Option<CallFailure> {
    match state {
        JobState::Failed => {
            let words = reading.error.clone().unwrap_or_default();
            Some(CallFailure {
                source: FailureSource::Provider,
                kind: words.kind,
                code: words.code,
                message: words.message.filter(|_| keeps_message),
            })
        }
        JobState::Cancelled => {
            let failure = CallFailure::of_service("job_cancelled", "The job was cancelled.");
            Some(CallFailure { source: FailureSource::Client, ..failure })
        }
        JobState::Expired => {
            let message = "The provider did not finish the job in time.";
            let failure = CallFailure::of_service("job_expired", message);
            Some(CallFailure { source: FailureSource::Provider, ..failure })
        }
        JobState::Running | JobState::Succeeded | JobState::Lost => None,
    }
}

/// The key that sealed jobs are looked at with. `None` if there is none.
pub(crate) fn key_of(open: &OpenJob, seal: Option<&KeySeal>) -> Option<ProviderKey> {
    match open.call.forwarded.provider_key_type {
        tollgate_domain::ProviderKeyType::Managed => Some(ProviderKey::Managed),
        tollgate_domain::ProviderKeyType::Unmanaged => {
            let key = seal?.open(open.provider_key.as_deref()?)?;
            ProviderKey::own(key).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_object_takes_the_place_of_that_of_its_creation_and_the_query_stays() {
        let url = |at| sibling_url(at, "/responses", "/responses/resp_1");
        assert_eq!(
            url("https://api.openai.com/v1/responses").as_deref(),
            Some("https://api.openai.com/v1/responses/resp_1")
        );
        assert_eq!(
            url("https://a.example/openai/responses?api-version=1").as_deref(),
            Some("https://a.example/openai/responses/resp_1?api-version=1")
        );
        assert_eq!(url("https://a.example/elsewhere"), None);
        assert_eq!(
            sibling_url("https://a.example/v1/b?a=1", "/b", "/f:download?alt=media").as_deref(),
            Some("https://a.example/v1/f:download?alt=media&a=1")
        );
    }

    #[test]
    fn an_id_that_would_change_a_path_is_not_usable() {
        for id in ["", "..", "a/b", "a?b", "a b", "%2e", &"x".repeat(513)] {
            assert!(!is_usable_id(id), "{id}");
        }
        assert!(is_usable_id("resp_1"));
    }
}
