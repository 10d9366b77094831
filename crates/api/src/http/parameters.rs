//! The query parameters of operations. Unknown ones are refused.

use std::collections::HashMap;
use std::sync::LazyLock;

use actix_web::HttpRequest;
use tollgate_domain::Issue;

use super::error::ApiError;
use super::list::Query;

/// The query parameters of each operation, by method and path. The routes mount it.
pub(crate) struct OperationParameters(HashMap<String, Vec<String>>);

impl OperationParameters {
    /// Collects operations: method and path as documents write them, and the names of parameters.
    pub(crate) fn of<'a>(
        operations: impl Iterator<Item = (&'a str, &'a str, Vec<String>)>,
    ) -> Self {
        let all = operations.map(|(method, path, names)| (key(method, path), names));
        Self(all.collect())
    }
}

fn key(method: &str, path: &str) -> String {
    format!("{} {path}", method.to_ascii_uppercase())
}

/// The parameters of the requested operation; `None` if there is no such operation.
fn known_parameters(http: &HttpRequest) -> Option<&[String]> {
    let all = http.app_data::<&'static LazyLock<OperationParameters>>()?;
    let pattern = http.match_pattern()?;
    let path = pattern.replace(":.+}", "}");
    all.0.get(&key(http.method().as_str(), &path)).map(Vec::as_slice)
}

/// Refuses parameters that the operation does not have. A misspelt filter must not widen an answer about
/// money.
pub(crate) fn refuse_unknown_parameters(http: &HttpRequest) -> Result<(), ApiError> {
    refuse_unknown_parameters_but(http, &[])
}

/// As [`refuse_unknown_parameters`], with more known parameters. The document does not list those.
pub(crate) fn refuse_unknown_parameters_but(
    http: &HttpRequest,
    also: &[&str],
) -> Result<(), ApiError> {
    if http.query_string().is_empty() {
        return Ok(());
    }
    let known = known_parameters(http).unwrap_or_default();
    let issues: Vec<_> = Query::of(http)
        .0
        .into_iter()
        .filter(|(name, _)| !known.contains(name) && !also.contains(&name.as_str()))
        .map(|(name, _)| {
            let hint = match nearest(&name, known) {
                Some(near) => format!("is not a parameter of this operation; did you mean {near}?"),
                None => "is not a parameter of this operation".to_owned(),
            };
            Issue::at([&name], hint)
        })
        .collect();
    if issues.is_empty() { Ok(()) } else { Err(ApiError::invalid(issues)) }
}

/// The known name that is most similar to an unknown one.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    // The cost of the distance is the product of both lengths, and no parameter has a long name.
    let name: String = name.chars().take(64).collect();
    known.iter().map(String::as_str).min_by_key(|other| strsim::levenshtein(&name, other))
}
