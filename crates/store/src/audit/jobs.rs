//! Jobs: the call of a running job is open, and that of an ended job is settled.

use diesel::prelude::*;
use tollgate_domain::{JobId, JobState, RequestId};

use super::findings::Audit;
use crate::codes::EnumCode;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::schema::{jobs, open_calls, requests};

/// Compares the state of each job with that of its call.
pub(super) fn check(conn: &mut Conn, audit: &mut Audit) -> Result<(), StoreError> {
    let open: Vec<(Id<JobId>, Id<RequestId>)> = jobs::table
        .inner_join(open_calls::table.on(open_calls::request_id.eq(jobs::request_id)))
        .filter(jobs::state.ne(EnumCode(JobState::Running)))
        .select((jobs::job_id, jobs::request_id))
        .load(conn)?;
    for (job_id, request_id) in open {
        audit.compare(format!("open call {request_id} of the ended job {job_id}"), 1, 0);
    }
    // A call that was swept before its job was written is corrected when the job ends.
    let settled: Vec<(Id<JobId>, Id<RequestId>)> = jobs::table
        .inner_join(
            requests::table.on(requests::merchant_id
                .eq(jobs::merchant_id)
                .and(requests::request_id.eq(jobs::request_id))),
        )
        .filter(jobs::state.eq(EnumCode(JobState::Running)))
        .filter(requests::swept.eq(false))
        .select((jobs::job_id, jobs::request_id))
        .load(conn)?;
    for (job_id, request_id) in settled {
        audit.compare(format!("settled call {request_id} of the running job {job_id}"), 1, 0);
    }
    Ok(())
}
