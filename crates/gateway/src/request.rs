//! The parts of a request that a call is made of.

use std::borrow::Cow;

use tollgate_provider::http::{HeaderMap, Method};

/// The head of a request, as the server has read it.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path of the route, as it was sent.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: &'a str,
    /// The headers.
    pub headers: &'a HeaderMap,
}

impl<'a> RequestHead<'a> {
    /// The first value of a parameter of the query, decoded.
    pub(crate) fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut pairs = url::form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value)
    }
}
