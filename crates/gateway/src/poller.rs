//! The poller: it asks providers for the state of running jobs, from time to time.
//!
//! The time of the next look is in the store, so the nodes take turns, and go on after a restart. A job that a node has
//! taken is due again at its next time, also if the node dies.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_domain::{Jitter, Job, JobId, JobKind, JobObserver};
use tollgate_provider::http::Method;
use tollgate_provider::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use tollgate_provider::{
    AnswerHeaders, Endpoint, ProviderClient, ProviderKey, RequestBody, UpstreamRequest,
    UpstreamResponse, request_headers,
};
use tollgate_store::StoreError;
use tollgate_store::jobs::{self, JobLook, OpenJob};
use tollgate_usage::{
    BatchResultReader, EndpointFormat, InspectedBody, ResponseEnd, ResponseMeter, UsageReading,
};

use crate::batch::BatchTotals;
use crate::gateway::Gateway;
use crate::job;

/// The interval at which the store is queried for due jobs.
const QUERY_EVERY: Duration = Duration::from_millis(200);
/// The pause after a failure of the store.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// The longest time of a look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which no other node looks at a batch whose results are being read, and how often it is renewed.
const LEASE_MILLIS: i64 = 20_000;
const LEASE_EVERY: Duration = Duration::from_secs(8);
/// The most looks at a time.
const AT_ONCE: usize = 64;

/// The answer of a provider about a job.
enum LookAnswer {
    /// The object, as far as it was read, and the endpoint that answers it.
    Object(Box<UsageReading>, Arc<Endpoint>),
    /// The provider does not know the object.
    Missing,
    /// The provider could not be asked, or did not say.
    Unclear,
}

/// Looks at jobs that are due. Never returns.
///
/// It must be called within a `LocalSet` of tokio, such as a worker of actix.
pub async fn poll_jobs(gateway: Arc<Gateway>, client: ProviderClient) {
    let looking: Rc<RefCell<HashSet<JobId>>> = Rc::default();
    loop {
        let room = AT_ONCE.saturating_sub(looking.borrow().len());
        match take_due(&gateway, room).await {
            Ok(due) => {
                for open in due {
                    // A slow look may not have ended when the next one is due.
                    if !looking.borrow_mut().insert(open.job.job_id) {
                        continue;
                    }
                    let (gateway, client) = (Arc::clone(&gateway), client.clone());
                    let looking = Rc::clone(&looking);
                    tokio::task::spawn_local(async move {
                        if let Err(cause) = look(&gateway, &client, &open).await {
                            log::warn!("{}: a look is not written: {cause}", open.job.job_id);
                        }
                        looking.borrow_mut().remove(&open.job.job_id);
                    });
                }
                tokio::time::sleep(QUERY_EVERY).await;
            }
            Err(cause) => {
                log::warn!("jobs wait for the store: {cause}");
                tokio::time::sleep(STORE_PAUSE).await;
            }
        }
    }
}

async fn take_due(gateway: &Gateway, room: usize) -> Result<Vec<OpenJob>, StoreError> {
    let now = gateway.clock.now();
    if room == 0 || !gateway.store.read(move |conn| jobs::is_any_due(conn, now)).await? {
        return Ok(Vec::new());
    }
    let limit = i64::try_from(room).unwrap_or(i64::MAX);
    gateway.store.write_outside_calls(move |conn| jobs::take_due(conn, now, limit)).await
}

/// Asks the provider for the state of a job, and settles it if it has ended.
///
/// # Errors
/// [`StoreError`] when the result of the look is not written.
pub async fn look(
    gateway: &Gateway,
    client: &ProviderClient,
    open: &OpenJob,
) -> Result<(), StoreError> {
    let key = job::key_of(open, gateway.settings.job_keys.as_ref());
    look_with(gateway, client, open, key.as_ref()).await
}

/// As [`look`], with a key. Without one, the end of the job is observed by the client's own retrieval only.
pub(crate) async fn look_with(
    gateway: &Gateway,
    client: &ProviderClient,
    open: &OpenJob,
    key: Option<&ProviderKey>,
) -> Result<(), StoreError> {
    let asker = Asker { gateway, client, open, key };
    let observer = open.announced_by.unwrap_or(JobObserver::Poll);
    let asked = tokio::time::timeout(LOOK_TIMEOUT, asker.ask()).await;
    let mut answer = asked.unwrap_or(LookAnswer::Unclear);
    if let LookAnswer::Object(reading, endpoint) = &answer
        && open.job.kind == JobKind::Batch
        && let Some(end) = job::observed_end(open.job.job_id, reading, observer)
    {
        match asker.read_results(reading, &endpoint.format).await {
            Some(totals) => {
                job::settle_batch(gateway, open, (reading, totals), end).await;
                return Ok(());
            }
            // The results are read again at the next look.
            None => answer = LookAnswer::Unclear,
        }
    }
    let now = gateway.clock.now();
    let mut result = JobLook {
        next_at: Job::next_look(open.job.created_at, now, Jitter::random()),
        ..JobLook::default()
    };
    match answer {
        LookAnswer::Object(reading, _) => {
            if job::settle(gateway, open, &reading, observer).await.is_some() {
                return Ok(());
            }
            result.seen_at = Some(now);
        }
        LookAnswer::Missing => {
            let first = open.missing_since.unwrap_or(now);
            if Job::is_lost(first, now) {
                job::settle_lost(gateway, open, observer).await;
                return Ok(());
            }
            result.missing_since = Some(first);
            result.next_at = Job::second_look(first);
        }
        LookAnswer::Unclear => result.missing_since = open.missing_since,
    }
    if open.job.is_given_up(now) {
        job::settle_lost(gateway, open, observer).await;
        return Ok(());
    }
    write(gateway, open.job.job_id, result).await
}

async fn write(gateway: &Gateway, job_id: JobId, look: JobLook) -> Result<(), StoreError> {
    gateway.store.write_outside_calls(move |conn| jobs::looked(conn, job_id, &look)).await
}

/// Asks the provider of a job.
struct Asker<'a> {
    gateway: &'a Gateway,
    client: &'a ProviderClient,
    open: &'a OpenJob,
    key: Option<&'a ProviderKey>,
}

impl Asker<'_> {
    /// Retrieves the object of the job.
    async fn ask(&self) -> LookAnswer {
        let (endpoint, mut answer) = match self.retrieve(&self.open.terms.url).await {
            Some(asked) => asked,
            None => return LookAnswer::Unclear,
        };
        match answer.status {
            200 => {}
            404 | 410 => return LookAnswer::Missing,
            status => {
                log::debug!("{}: the provider answers {status}", self.open.job.job_id);
                return LookAnswer::Unclear;
            }
        }
        let headers = AnswerHeaders(&answer.headers);
        let body = InspectedBody::empty();
        let meter = ResponseMeter::new(&endpoint.format, answer.status, &headers, &body, false);
        let mut meter = meter.with_memory(&self.gateway.answer_memory);
        while let Some(piece) = answer.next().await {
            let Ok(piece) = piece else { return LookAnswer::Unclear };
            meter.feed(piece);
        }
        let reading = Box::new(meter.finish(ResponseEnd::Complete));
        LookAnswer::Object(reading, endpoint)
    }

    /// Asks for what is at a URL. `None` if there is no answer, or no key.
    async fn retrieve(&self, url: &str) -> Option<(Arc<Endpoint>, UpstreamResponse)> {
        let Self { gateway, client, open, key } = self;
        let key = (*key)?;
        let Some(endpoint) = endpoint_of(gateway, &open.job.provider, url) else {
            log::warn!("{}: {} has no such URL any more", open.job.job_id, open.job.provider);
            return None;
        };
        let merchant_id = open.job.merchant_id;
        let mut headers = request_headers(&HeaderMap::new(), &endpoint, key, merchant_id, true);
        let body = endpoint.format.retrieval_body(&open.job.provider_object_id);
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let request = UpstreamRequest {
            endpoint: &endpoint,
            method: endpoint.method.clone(),
            headers,
            body: body.map(Bytes::from).map(RequestBody::from).unwrap_or_default(),
            managed: *key == ProviderKey::Managed,
        };
        match client.send(request).await {
            Ok(answer) => Some((endpoint, answer)),
            Err(why) => {
                log::debug!("{}: {why}", open.job.job_id);
                None
            }
        }
    }

    /// Reads the results of a batch that has ended. Meanwhile no other node looks at it. `None` if they cannot be read now.
    async fn read_results(
        &self,
        reading: &UsageReading,
        format: &EndpointFormat,
    ) -> Option<BatchTotals> {
        let Self { gateway, open, .. } = self;
        let results = async {
            let mut totals = BatchTotals::default();
            let model = open.call.forwarded.model.as_deref().unwrap_or_default();
            let answered = format.request_path(reading.request_path.as_deref(), model);
            for path in format.result_paths(&reading.result_files) {
                let url = job::sibling_url(&open.terms.url, &format.path, &path)?;
                self.add_results(&url, &answered, &mut totals).await?;
            }
            let (read, stated) = (totals.answers(), reading.answered_requests.unwrap_or(0));
            if read < stated {
                log::warn!("{}: {read} of {stated} answers are in its results", open.job.job_id);
                return None;
            }
            Some(totals)
        };
        let lease = async {
            loop {
                let until = gateway.clock.now().plus_millis(LEASE_MILLIS);
                let look = JobLook { next_at: until, ..JobLook::default() };
                if let Err(cause) = write(gateway, open.job.job_id, look).await {
                    log::debug!("{}: {cause}", open.job.job_id);
                }
                tokio::time::sleep(LEASE_EVERY).await;
            }
        };
        tokio::select! {
            totals = results => totals,
            () = lease => None,
        }
    }

    /// Reads and prices the results at a URL, of requests to a path.
    async fn add_results(&self, url: &str, path: &str, totals: &mut BatchTotals) -> Option<()> {
        let Self { gateway, open, .. } = self;
        let (endpoint, mut answer) = self.retrieve(url).await?;
        if answer.status != 200 {
            log::warn!("{}: its results are answered with {}", open.job.job_id, answer.status);
            return None;
        }
        let answers =
            gateway.providers.find_below(&endpoint.provider, &Method::POST, path, None)?;
        let mut reader = BatchResultReader::new(&endpoint.format, &answers.format);
        let metrics = gateway.metrics.of(&open.job.provider);
        while let Some(piece) = answer.next().await {
            let piece = piece.ok()?;
            reader.feed(&piece, |reading| totals.add(reading, &open.call, gateway, metrics));
            // Other looks have their turn between two pieces.
            tokio::task::yield_now().await;
        }
        Some(())
    }
}

/// The endpoint of a URL at the provider of this name. Other providers may have the same host, and its own may have changed.
fn endpoint_of(gateway: &Gateway, provider: &str, url: &str) -> Option<Arc<Endpoint>> {
    let (_, below) = url.split_once("://")?;
    let path = below.get(below.find('/')?..)?;
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let provider = gateway.providers.get(provider)?;
    // Vertex AI answers an operation to a POST.
    let endpoints = [Method::GET, Method::POST].into_iter().filter_map(|method| {
        let endpoint = provider.endpoint_at(&method, path, query).ok()?;
        endpoint.format.operation.is_some().then_some(endpoint)
    });
    endpoints.take(1).next().map(Arc::new)
}
