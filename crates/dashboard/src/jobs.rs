//! The page of jobs: calls that their provider answers later.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{ConnectionId, Job, JobId, JobState, SpendKeyId};
use tollgate_store::jobs::{self, JobFilter};
use tollgate_store::{Conn, StoreError, connections, spend_keys};

use crate::answer::{PageError, respond};
use crate::clock::{Moment, PageClock};
use crate::page::{DashboardSection, Pager, Shell, name_of, page_of};
use crate::requests::Badge;
use crate::session::SessionUser;
use crate::text::Figure;
use tollgate_api::{App, Query};

/// A state to choose.
struct StateChoice {
    href: String,
    label: &'static str,
    is_chosen: bool,
}

/// A row of the list.
struct JobItem {
    request_id: String,
    object_id: String,
    kind: &'static str,
    provider: String,
    owner: String,
    badges: Vec<Badge>,
    hold: Figure,
    created: Moment,
    seen: Moment,
    ended: Moment,
}

impl JobItem {
    fn of((job, owner): &(Job, String), clock: &PageClock) -> Self {
        Self {
            request_id: job.request_id.to_string(),
            object_id: job.provider_object_id.clone(),
            kind: job.kind.as_str(),
            provider: job.provider.clone(),
            owner: owner.clone(),
            badges: vec![badge(job.state)],
            hold: Figure::in_column(job.hold.units().into()),
            created: clock.moment(job.created_at),
            seen: clock.moment_or(job.last_seen_at, ""),
            ended: clock.moment_or(job.ended_at, "–"),
        }
    }
}

fn badge(state: JobState) -> Badge {
    let (color, meaning) = match state {
        JobState::Running => ("plain", "The provider works on it, and its call holds money."),
        JobState::Succeeded => ("good", "It has ended, and its call is settled."),
        JobState::Failed => ("bad", "The provider reports that it failed."),
        JobState::Cancelled => ("warn", "It was cancelled."),
        JobState::Expired => ("warn", "The provider did not finish it in time."),
        JobState::Lost => ("bad", "The provider no longer knows it, or its end was never seen."),
    };
    Badge { color, label: state.as_str().into(), meaning }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    shell: Shell,
    states: Vec<StateChoice>,
    jobs: Vec<JobItem>,
    pager: Pager,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of::<JobId>(&http), visitor.merchant_id());
    let state = Query::of(&http).get("state").and_then(|word| word.parse::<JobState>().ok());
    let filter = JobFilter { state, ..JobFilter::default() };
    let read = move |conn: &mut Conn| {
        let found = jobs::list(conn, merchant_id, filter, &page)?.into_iter();
        let named = found.map(|job| {
            let owner = owner(conn, &job)?;
            Ok((job, owner))
        });
        named.collect::<Result<Vec<_>, StoreError>>()
    };
    let mut found = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |(job, _)| job.job_id.to_string());
    respond(&JobsPage {
        shell: Shell::new(&visitor, DashboardSection::Requests, "Jobs"),
        states: states(state),
        jobs: found.iter().map(|one| JobItem::of(one, &visitor.clock)).collect(),
        pager,
    })
}

/// The states to choose from.
fn states(chosen: Option<JobState>) -> Vec<StateChoice> {
    let all = StateChoice {
        href: "/dashboard/jobs".to_owned(),
        label: "all",
        is_chosen: chosen.is_none(),
    };
    let each = JobState::ALL.map(|state| StateChoice {
        href: format!("/dashboard/jobs?state={}", state.as_str()),
        label: state.as_str(),
        is_chosen: chosen == Some(state),
    });
    std::iter::once(all).chain(each).collect()
}

/// The name of the spend key of a job, else of its customer; empty for the merchant's own calls.
fn owner(conn: &mut Conn, job: &Job) -> Result<String, StoreError> {
    Ok(match (job.spend_key_id, job.connection_id) {
        (Some(id), _) => key_name(conn, job, id)?,
        (None, Some(id)) => customer_name(conn, job, id)?,
        (None, None) => String::new(),
    })
}

fn key_name(conn: &mut Conn, job: &Job, id: SpendKeyId) -> Result<String, StoreError> {
    let key = spend_keys::find(conn, job.merchant_id, id)?;
    Ok(key.map_or_else(|| format!("{id} (deleted)"), |key| key.name))
}

fn customer_name(conn: &mut Conn, job: &Job, id: ConnectionId) -> Result<String, StoreError> {
    let customer = connections::find(conn, job.merchant_id, id)?;
    Ok(customer.map_or_else(|| format!("{id} (deleted)"), |customer| name_of(&customer)))
}
