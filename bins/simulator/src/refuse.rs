//! The answer of an error, in the format of its dialect.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;

use crate::answer::new_id;
use crate::deliver::to_json;
use crate::endpoint::SimulatedDialect;
use crate::error::SimulatedError;

/// The answer of an error.
pub(crate) fn refuse(fault: &SimulatedError, dialect: SimulatedDialect) -> HttpResponse {
    let request_id = new_id("req_");
    let status = StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status);
    if let Some(seconds) = fault.retry_after_s {
        response.insert_header(("retry-after", seconds.to_string()));
    }
    let body = to_json(&fault.body(dialect, &request_id));
    response.insert_header((dialect.request_id_header(), request_id));
    response.content_type("application/json").body(body)
}
