//! The run that a call names, in headers or in its metadata.

use tollgate_domain::{CallRun, Issue, Metadata, RUN_ID_CHARS, RunId};
use tollgate_pricing::Amount;
use tollgate_provider::http::header::HeaderName;

use crate::error::CallError;
use crate::request::RequestHead;

const RUN: HeaderName = HeaderName::from_static("x-service-run");
const RUN_LIMIT: HeaderName = HeaderName::from_static("x-service-run-limit");
/// The pair of metadata that names a run, for clients that cannot set headers.
const PAIR: &str = "run";

/// Reads the run of a call. The header takes precedence over the metadata.
pub(crate) fn call_run(
    head: &RequestHead<'_>,
    metadata: &Metadata,
) -> Result<Option<CallRun>, CallError> {
    let mut issues = Vec::new();
    let in_header = one_value(head, &RUN, &mut issues);
    let named = match in_header {
        Some(text) => Some((vec![RUN.as_str().to_owned()], text)),
        None => {
            let path = || vec!["metadata".to_owned(), PAIR.to_owned()];
            metadata.get(PAIR).map(|text| (path(), text.as_str()))
        }
    };
    let is_named = named.is_some();
    let run_id = named.and_then(|(path, text)| {
        let id = text.parse::<RunId>().ok();
        if id.is_none() {
            let message = format!("must be 1 to {RUN_ID_CHARS} letters, digits, or . _ : -");
            issues.push(Issue { path, message });
        }
        id
    });
    let limit = one_value(head, &RUN_LIMIT, &mut issues).and_then(|text| {
        let limit = text.parse::<Amount>().ok().filter(|limit| limit.is_positive());
        if limit.is_none() {
            let message = "must be an amount of US dollars above 0, such as 2.50";
            issues.push(Issue::at([RUN_LIMIT.as_str()], message));
        } else if !is_named {
            let message = "needs a run: name it in x-service-run";
            issues.push(Issue::at([RUN_LIMIT.as_str()], message));
        }
        limit
    });
    match issues.is_empty() {
        true => Ok(run_id.map(|run_id| CallRun { run_id, limit })),
        false => Err(CallError::ParametersInvalid(issues)),
    }
}

/// The value of a header that may stand once. A value that is not ASCII reads as an empty one.
fn one_value<'a>(
    head: &RequestHead<'a>,
    name: &HeaderName,
    issues: &mut Vec<Issue>,
) -> Option<&'a str> {
    let mut values = head.headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        issues.push(Issue::at([name.as_str()], "must stand only once"));
    }
    Some(value.to_str().unwrap_or_default())
}
