//! Jobs of a merchant, the looks at them, and the events of their providers.

use std::collections::HashMap;

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, Jitter, Job, JobEnd, JobId, JobKind, JobObserver, JobState, JobTerms, MerchantId,
    PendingRecord, PricedUsage, ProviderObject, RequestId, SpendKeyId, Timestamp,
};

use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{JobRow, OpenCallRow, ProviderObjectRow, time, to_json};
use crate::schema::{jobs, open_calls, provider_events};
use crate::tables::merchants::moved_merchants;

/// The time for which an event of a provider about an unknown object is kept.
const EVENT_KEPT_MILLIS: i64 = 10 * 60 * 1_000;

/// A job that begins, with what the store keeps of it.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The job, which is running.
    pub job: Job,
    /// The facts by which any process can settle it.
    pub terms: JobTerms,
    /// The call that created it.
    pub call: PendingRecord,
    /// The object at the provider.
    pub object: ProviderObject,
    /// The caller's own provider key, encrypted.
    pub provider_key: Option<Vec<u8>>,
    /// The time of the first look.
    pub look_at: Timestamp,
}

/// A running job, with all that is needed to settle it.
#[derive(Clone, Debug)]
pub struct OpenJob {
    /// The job.
    pub job: Job,
    /// The facts by which it is settled.
    pub terms: JobTerms,
    /// The call that created it.
    pub call: PendingRecord,
    /// The usage that the provider reported before the end.
    pub known: Option<PricedUsage>,
    /// The caller's own provider key, encrypted.
    pub provider_key: Option<Vec<u8>>,
    /// The time at which the provider first did not know it.
    pub missing_since: Option<Timestamp>,
    /// The observer that has seen its end, or has received an event about it, before it is looked at.
    pub announced_by: Option<JobObserver>,
}

/// A filter for jobs. All given conditions must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only jobs in this state.
    pub state: Option<JobState>,
    /// Only jobs of this kind.
    pub kind: Option<JobKind>,
    /// Only jobs of this customer.
    pub connection_id: Option<ConnectionId>,
    /// Only jobs of this spend key.
    pub spend_key_id: Option<SpendKeyId>,
}

/// The result of a look at a job that goes on.
#[derive(Clone, Debug, Default)]
pub struct JobLook {
    /// The time at which the provider answered the object.
    pub seen_at: Option<Timestamp>,
    /// The time at which the provider first did not know the object.
    pub missing_since: Option<Timestamp>,
    /// The usage that the provider reports so far.
    pub known: Option<PricedUsage>,
    /// The time of the next look.
    pub next_at: Timestamp,
}

#[derive(AsChangeset)]
#[diesel(table_name = jobs)]
struct JobAnnounced {
    look_at: i64,
    observer: EnumCode<JobObserver>,
}

impl JobAnnounced {
    /// The columns of a job that is due at once, because its end was seen.
    const fn by(observer: JobObserver, now: Timestamp) -> Self {
        Self { look_at: now.unix_micros(), observer: EnumCode(observer) }
    }
}

/// Begins a job. Returns whether it is new: the provider may answer one object to two calls.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn begin(conn: &mut Conn, new: &NewJob) -> Result<bool, StoreError> {
    let NewJob { job, terms, call, object, provider_key, look_at } = new;
    let row = JobRow {
        job_id: Id(job.job_id),
        request_id: Id(job.request_id),
        merchant_id: Id(job.merchant_id),
        kind: EnumCode(job.kind),
        provider: job.provider.clone(),
        object_id: job.provider_object_id.clone(),
        connection_id: job.connection_id.map(Id),
        spend_key_id: job.spend_key_id.map(Id),
        state: EnumCode(JobState::Running),
        hold: job.hold.units(),
        terms: to_json(terms),
        known: None,
        provider_key: provider_key.clone(),
        created_at: job.created_at.unix_micros(),
        last_seen_at: job.last_seen_at.map(Timestamp::unix_micros),
        missing_since: None,
        look_at: Some(look_at.unix_micros()),
        ended_at: None,
        expires_at: job.expires_at.unix_micros(),
        observer: None,
    };
    let is_new = dialect::insert_job(conn, &row)?;
    if is_new {
        dialect::insert_provider_objects(
            conn,
            &[ProviderObjectRow::new(call, object, job.created_at)],
        )?;
        if take_event(conn, &job.provider, &job.provider_object_id)? {
            let job = jobs::table.find(Id(job.job_id));
            let soon = JobAnnounced::by(JobObserver::Webhook, new.job.created_at);
            diesel::update(job).set(soon).execute(conn)?;
        }
    }
    Ok(is_new)
}

/// Returns a merchant's job.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    job_id: JobId,
) -> Result<Option<Job>, StoreError> {
    let row = jobs::table
        .find(Id(job_id))
        .filter(jobs::merchant_id.eq(Id(merchant_id)))
        .select(JobRow::as_select())
        .first(conn)
        .optional()?;
    Ok(row.map(Job::from))
}

/// Returns a merchant's jobs, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: JobFilter,
    page: &Page<JobId>,
) -> Result<Vec<Job>, StoreError> {
    let mut query = jobs::table
        .filter(jobs::merchant_id.eq(Id(merchant_id)))
        .order(jobs::job_id.desc())
        .limit(page.rows())
        .select(JobRow::as_select())
        .into_boxed();
    if let Some(state) = filter.state {
        query = query.filter(jobs::state.eq(EnumCode(state)));
    }
    if let Some(kind) = filter.kind {
        query = query.filter(jobs::kind.eq(EnumCode(kind)));
    }
    if let Some(id) = filter.connection_id {
        query = query.filter(jobs::connection_id.eq(Id(id)));
    }
    if let Some(id) = filter.spend_key_id {
        query = query.filter(jobs::spend_key_id.eq(Id(id)));
    }
    if let Some(after) = page.after {
        query = query.filter(jobs::job_id.lt(Id(after)));
    }
    let rows: Vec<JobRow> = query.load(conn)?;
    Ok(rows.into_iter().map(Job::from).collect())
}

/// Returns the running job of a provider's object.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_open(
    conn: &mut Conn,
    provider: &str,
    object_id: &str,
) -> Result<Option<OpenJob>, StoreError> {
    let row = jobs::table
        .filter(jobs::provider.eq(provider))
        .filter(jobs::object_id.eq(object_id))
        .filter(jobs::state.eq(EnumCode(JobState::Running)))
        .select(JobRow::as_select())
        .first(conn)
        .optional()?;
    row.map(|row| open_job(conn, row)).transpose().map(Option::flatten)
}

/// Returns the jobs that these calls created.
pub(crate) fn of_calls(
    conn: &mut Conn,
    calls: &[Id<RequestId>],
) -> Result<HashMap<RequestId, JobId>, StoreError> {
    if calls.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<(Id<RequestId>, Id<JobId>)> = jobs::table
        .filter(jobs::request_id.eq_any(calls))
        .select((jobs::request_id, jobs::job_id))
        .load(conn)?;
    Ok(rows.into_iter().map(|(request_id, job_id)| (request_id.get(), job_id.get())).collect())
}

/// Returns whether a job is due.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn is_any_due(conn: &mut Conn, now: Timestamp) -> Result<bool, StoreError> {
    let due = jobs::table
        .filter(jobs::look_at.le(now.unix_micros()))
        .filter(jobs::merchant_id.ne_all(moved_merchants(conn)?))
        .select(jobs::job_id)
        .limit(1);
    let due: Vec<Id<JobId>> = due.load(conn)?;
    Ok(!due.is_empty())
}

/// Takes jobs that are due, at most `limit`. Each is due again at the time of its next look, also if this node dies
/// before.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn take_due(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<Vec<OpenJob>, StoreError> {
    let due = jobs::table
        .filter(jobs::look_at.le(now.unix_micros()))
        .filter(jobs::merchant_id.ne_all(moved_merchants(conn)?))
        .order(jobs::look_at)
        .limit(limit)
        .select(jobs::job_id);
    let ids: Vec<Id<JobId>> = match conn {
        Conn::Sqlite(conn) => due.load(conn)?,
        // A locked job is being taken by another node, or has just ended.
        Conn::Postgres(conn) => due.for_no_key_update().skip_locked().load(conn)?,
    };
    let taken = jobs::table.filter(jobs::job_id.eq_any(&ids)).select(JobRow::as_select());
    let rows: Vec<JobRow> = taken.load(conn)?;
    for row in &rows {
        let next = Job::next_look(time(row.created_at), now, Jitter::random());
        diesel::update(jobs::table.find(row.job_id))
            .set(jobs::look_at.eq(next.unix_micros()))
            .execute(conn)?;
    }
    let open = rows.into_iter().map(|row| open_job(conn, row));
    open.filter_map(Result::transpose).collect()
}

/// Writes the result of a look at a job, unless it has ended.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn looked(conn: &mut Conn, job_id: JobId, look: &JobLook) -> Result<(), StoreError> {
    let running = jobs::table.find(Id(job_id)).filter(jobs::state.eq(EnumCode(JobState::Running)));
    diesel::update(running)
        .set((
            jobs::look_at.eq(look.next_at.unix_micros()),
            jobs::observer.eq(None::<EnumCode<JobObserver>>),
            jobs::missing_since.eq(look.missing_since.map(Timestamp::unix_micros)),
            look.seen_at.map(|at| jobs::last_seen_at.eq(at.unix_micros())),
            look.known.as_ref().map(|known| jobs::known.eq(to_json(known))),
        ))
        .execute(conn)?;
    Ok(())
}

/// Takes an event of a provider about an object: a job of it is due at once. An event about an unknown object is kept for
/// ten minutes, because it may come before the answer that names the object.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn take_provider_event(
    conn: &mut Conn,
    provider: &str,
    object_id: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let of_object =
        jobs::table.filter(jobs::provider.eq(provider)).filter(jobs::object_id.eq(object_id));
    let known: i64 = of_object.count().get_result(conn)?;
    if known == 0 {
        return Ok(dialect::insert_provider_event(conn, provider, object_id, now)?);
    }
    let running = of_object.filter(jobs::look_at.is_not_null());
    diesel::update(running).set(JobAnnounced::by(JobObserver::Webhook, now)).execute(conn)?;
    Ok(())
}

/// Lets a running job be due at once, because its end was seen.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn announce(
    conn: &mut Conn,
    job_id: JobId,
    observer: JobObserver,
    now: Timestamp,
) -> Result<(), StoreError> {
    let running = jobs::table.find(Id(job_id)).filter(jobs::look_at.is_not_null());
    diesel::update(running).set(JobAnnounced::by(observer, now)).execute(conn)?;
    Ok(())
}

/// Deletes events that were kept for ten minutes.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn forget_events(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let last = now.plus_millis(-EVENT_KEPT_MILLIS).unix_micros();
    diesel::delete(provider_events::table.filter(provider_events::received_at.lt(last)))
        .execute(conn)?;
    Ok(())
}

/// Ends jobs, in the transaction that settles their calls.
pub(crate) fn end(conn: &mut Conn, ended: &[JobEnd], now: Timestamp) -> Result<(), StoreError> {
    for JobEnd { job_id, state, observer } in ended {
        let seen_at = (*state != JobState::Lost).then(|| jobs::last_seen_at.eq(now.unix_micros()));
        diesel::update(jobs::table.find(Id(*job_id)))
            .set((
                jobs::state.eq(EnumCode(*state)),
                jobs::observer.eq(EnumCode(*observer)),
                jobs::ended_at.eq(now.unix_micros()),
                jobs::look_at.eq(None::<i64>),
                jobs::provider_key.eq(None::<Vec<u8>>),
                seen_at,
            ))
            .execute(conn)?;
    }
    Ok(())
}

/// A running job with its call. `None` if there is no such call, which is an error of the store.
fn open_job(conn: &mut Conn, row: JobRow) -> Result<Option<OpenJob>, StoreError> {
    let open = open_calls::table
        .find(row.request_id)
        .select(OpenCallRow::as_select())
        .first(conn)
        .optional()?;
    let call = match open {
        Some(open) => PendingRecord::try_from(&open)?,
        // It was swept before the job was written. The settlement corrects it.
        None => {
            let id = row.request_id;
            let settled = dialect::requests(conn, row.merchant_id.get(), &[id], RowLock::No)?;
            let Some(settled) = settled.first() else {
                log::error!("{} has no call", row.job_id);
                return Ok(None);
            };
            settled.call()?
        }
    };
    Ok(Some(OpenJob {
        terms: row.terms()?,
        known: row.known()?,
        provider_key: row.provider_key.clone(),
        missing_since: row.missing_since.map(time),
        announced_by: row.observer.map(|observer| observer.0),
        call,
        job: row.into(),
    }))
}

/// Takes the event about an object that came before its job.
fn take_event(conn: &mut Conn, provider: &str, object_id: &str) -> Result<bool, StoreError> {
    let event = provider_events::table.find((object_id, provider));
    Ok(diesel::delete(event).execute(conn)? > 0)
}
