//! The requests in the body of a call that creates a batch.

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_domain::Issue;
use tollgate_usage::{EndpointFormat, InspectedBody};

use crate::error::CallError;

/// The body of `POST /messages/batches`.
#[derive(Deserialize)]
struct MessageBatch<'a> {
    #[serde(borrow)]
    requests: Vec<MessageRequest<'a>>,
}

#[derive(Deserialize)]
struct MessageRequest<'a> {
    #[serde(borrow)]
    params: &'a RawValue,
}

/// The body of Google's `:batchGenerateContent`. Each name may have either of two spellings.
#[derive(Deserialize)]
struct GoogleBatchBody<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    batch: GoogleBatch<'a>,
}

#[derive(Deserialize)]
struct GoogleBatch<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputConfig", alias = "input_config")]
    input_config: GoogleInput<'a>,
}

#[derive(Deserialize)]
struct GoogleInput<'a> {
    #[serde(rename = "fileName", alias = "file_name")]
    file_name: Option<String>,
    #[serde(borrow)]
    requests: Option<GoogleRequests<'a>>,
}

#[derive(Deserialize)]
struct GoogleRequests<'a> {
    #[serde(borrow)]
    requests: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct GoogleRequest<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    request: &'a RawValue,
}

/// The model that an object of Google's may name beside the path.
#[derive(Deserialize)]
struct NamedModel<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

/// The requests of a batch, by its body.
pub(crate) enum BodyRequests<'a> {
    /// They are in the body.
    Listed(RequestList<'a>),
    /// They are in a file that the field at this path names.
    InFile { path: [&'static str; 3] },
}

/// The requests in a body.
pub(crate) struct RequestList<'a> {
    /// The path of a request that is made alone.
    pub(crate) path: String,
    /// The key of a request in its item of the list.
    pub(crate) key: &'static str,
    /// The body of each request.
    pub(crate) bodies: Vec<&'a RawValue>,
}

impl<'a> BodyRequests<'a> {
    /// The requests of a batch that is created at an endpoint. `model` is that of the path.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] for a body that is no batch.
    pub(crate) fn of(
        format: &EndpointFormat,
        model: Option<&str>,
        body: &'a [u8],
    ) -> Result<Self, CallError> {
        match format.answers_operation() {
            true => google_requests(format.request_path(None, model.unwrap_or_default()), body),
            false => message_requests(format.request_path(None, ""), body),
        }
    }
}

/// The model of the first request of a batch of messages.
pub(crate) fn first_model(body: &[u8]) -> Option<String> {
    let batch: MessageBatch<'_> = serde_json::from_slice(body).ok()?;
    InspectedBody::model_of(batch.requests.first()?.params.get().as_bytes(), None)
}

fn message_requests(path: String, body: &[u8]) -> Result<BodyRequests<'_>, CallError> {
    let batch: MessageBatch<'_> = serde_json::from_slice(body).map_err(|_| {
        invalid(["requests"], "must be a list of objects with custom_id and params")
    })?;
    let bodies = batch.requests.iter().map(|request| request.params).collect();
    Ok(BodyRequests::Listed(RequestList { path, key: "params", bodies }))
}

fn google_requests(path: String, body: &[u8]) -> Result<BodyRequests<'_>, CallError> {
    let GoogleBatchBody { model, batch } = serde_json::from_slice(body).map_err(|_| {
        let message =
            "must have inputConfig with requests, each once: a list of objects with request";
        invalid(["batch"], message)
    })?;
    let of_path = path.strip_prefix("/models/").and_then(|path| path.split(':').next());
    let is_other = |model: &RawValue| {
        let model = serde_json::from_str::<String>(model.get()).ok();
        model.as_deref().map(|model| model.strip_prefix("models/").unwrap_or(model)) != of_path
    };
    let differs = "must be the model of the path";
    if model.is_some_and(is_other) {
        return Err(invalid(["model"], differs));
    }
    if batch.model.is_some_and(is_other) {
        return Err(invalid(["batch", "model"], differs));
    }
    let GoogleInput { file_name, requests } = batch.input_config;
    let file = ["batch", "inputConfig", "fileName"];
    let requests = match (file_name, requests) {
        (None, Some(requests)) => requests.requests,
        (Some(_), None) => return Ok(BodyRequests::InFile { path: file }),
        (Some(_), Some(_)) => return Err(invalid(file, "must not be set together with requests")),
        (None, None) => {
            return Err(invalid(["batch", "inputConfig", "requests"], "required: the requests"));
        }
    };
    let mut bodies = Vec::with_capacity(requests.len());
    for (number, item) in requests.into_iter().enumerate() {
        let number = number.to_string();
        let GoogleRequest { model, request } = serde_json::from_str(item.get())
            .map_err(|_| invalid(["requests", &number], "must be an object with request, once"))?;
        let inner = serde_json::from_str::<NamedModel<'_>>(request.get()).ok();
        if inner.and_then(|inner| inner.model).is_some_and(is_other) {
            return Err(invalid(["requests", &number, "request", "model"], differs));
        }
        if model.is_some_and(is_other) {
            return Err(invalid(["requests", &number, "model"], differs));
        }
        bodies.push(request);
    }
    Ok(BodyRequests::Listed(RequestList { path, key: "request", bodies }))
}

fn invalid<const N: usize>(path: [&str; N], message: &str) -> CallError {
    CallError::BodyInvalid(vec![Issue::at(path, message)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn google(body: &str) -> Result<usize, Vec<String>> {
        match google_requests("/models/gemini:generateContent".to_owned(), body.as_bytes()) {
            Ok(BodyRequests::Listed(list)) => Ok(list.bodies.len()),
            Ok(BodyRequests::InFile { path }) => Err(path.map(str::to_owned).to_vec()),
            Err(CallError::BodyInvalid(issues)) => {
                Err(issues.into_iter().flat_map(|issue| issue.path).collect())
            }
            Err(_) => Err(Vec::new()),
        }
    }

    #[test]
    fn the_requests_of_google_are_found_in_both_spellings_and_their_model_is_that_of_the_path() {
        let of = |input: &str| format!(r#"{{"batch":{{{input}}}}}"#);
        let list =
            |request: &str| format!(r#"{{"requests":{{"requests":[{{"request":{request}}}]}}}}"#);
        for key in ["inputConfig", "input_config"] {
            let body = of(&format!(r#""{key}":{}"#, list(r#"{"model":"models/gemini"}"#)));
            assert_eq!(google(&body), Ok(1), "{body}");
        }
        let refused: [(String, &[&str]); 11] = [
            (
                of(&format!(r#""inputConfig":{}"#, list(r#"{"model":1}"#))),
                &["requests", "0", "request", "model"],
            ),
            (
                of(r#""inputConfig":{"requests":{"requests":[{"model":"other","request":{}}]}}"#),
                &["requests", "0", "model"],
            ),
            (
                of(r#""inputConfig":{"requests":{"requests":[{"request":{}},null]}}"#),
                &["requests", "1"],
            ),
            (
                of(r#""inputConfig":{"requests":{"requests":[{"request":{},"request":{}}]}}"#),
                &["requests", "0"],
            ),
            (
                format!(r#"{{"model":"other","batch":{{"inputConfig":{}}}}}"#, list("{}")),
                &["model"],
            ),
            (
                of(&format!(r#""inputConfig":{}"#, list(r#"{"model":"models/other"}"#))),
                &["requests", "0", "request", "model"],
            ),
            (of(&format!(r#""model":"other","inputConfig":{}"#, list("{}"))), &["batch", "model"]),
            (
                of(&format!(r#""inputConfig":{},"input_config":{}"#, list("{}"), list("{}"))),
                &["batch"],
            ),
            (of(r#""inputConfig":{"file_name":"files/f"}"#), &["batch", "inputConfig", "fileName"]),
            (of(r#""inputConfig":{}"#), &["batch", "inputConfig", "requests"]),
            ("{}".to_owned(), &["batch"]),
        ];
        for (body, path) in refused {
            assert_eq!(
                google(&body),
                Err(path.iter().map(|one| (*one).to_owned()).collect()),
                "{body}"
            );
        }
    }
}
