//! The operator's settings for a provider, and the provider that they make.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use awc::http::Method;
use awc::http::header::HeaderValue;
use tollgate_domain::{Issue, WebhookSecret};
use url::{Host, Url};

use super::builtin;
use super::endpoint::ambiguous_path;
use super::provider::{Mount, Provider};
use crate::address::is_public;
use tollgate_usage::{Dialect, ProviderTraits};

/// The operator's settings for a provider; for a built-in one, only the differences.
#[derive(Clone, Default)]
pub struct ProviderSettings {
    /// Origin and path prefix, such as `https://api.openai.com/v1`.
    pub base_url: Option<String>,
    /// The Azure resource, if the URL of a built-in provider has one.
    pub resource: Option<String>,
    /// The region, if the URL has one.
    pub region: Option<String>,
    /// The word of a [`Dialect`].
    pub dialect: Option<String>,
    /// Another provider, whose prices apply to this one.
    pub price_list: Option<String>,
    /// The key for calls without a provider key of their own.
    pub api_key: Option<String>,
    /// Whether plain `http` and private addresses are accepted.
    pub allow_private_network: Option<bool>,
    /// Whether the managed key may be used with handles to stored things.
    pub managed_endpoints: Vec<String>,
    /// Whether the managed key may be used with what the provider stores.
    pub allow_stored_state: bool,
    /// Whether `stream_options` may be inserted.
    pub stream_options: Option<bool>,
    /// Whether chat honours `max_completion_tokens`.
    pub max_completion_tokens: Option<bool>,
    /// The secret by which its events are signed (Standard Webhooks).
    pub webhook_secret: Option<String>,
}

/// Never prints the key.
impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("base_url", &self.base_url)
            .field("resource", &self.resource)
            .field("region", &self.region)
            .field("dialect", &self.dialect)
            .field("price_list", &self.price_list)
            .field("has_api_key", &self.api_key.is_some())
            .field("allow_private_network", &self.allow_private_network)
            .field("managed_endpoints", &self.managed_endpoints)
            .field("allow_stored_state", &self.allow_stored_state)
            .field("stream_options", &self.stream_options)
            .field("max_completion_tokens", &self.max_completion_tokens)
            .field("has_webhook_secret", &self.webhook_secret.is_some())
            .finish()
    }
}

impl ProviderSettings {
    /// The provider that these settings make of `present`, or a new one.
    pub(super) fn apply(
        self,
        name: &str,
        present: Option<&Provider>,
    ) -> Result<Provider, Vec<Issue>> {
        let mut issues = Vec::new();
        if !is_name(name) {
            issues.push(Issue::at(
                [],
                "a provider's name is 1 to 64 of a-z, 0-9, '-' and '_', and starts with a letter",
            ));
        }
        let allow_private_network = self
            .allow_private_network
            .unwrap_or_else(|| present.is_some_and(|p| p.allow_private_network));
        let base_url = self.base_url(name, present, &mut issues);
        let problem = base_url.as_ref().and_then(|url| not_public(url, allow_private_network));
        issues.extend(problem.map(|problem| Issue::at(["base_url"], problem)));
        let row = builtin::row(name);
        let mounts = match &self.dialect {
            Some(word) => {
                let parsed = word.parse::<Dialect>().map_err(|error| error.to_string());
                let dialect = collect(&mut issues, ["dialect"], parsed);
                dialect.map(|dialect| vec![Mount::whole(dialect)])
            }
            None => present.map(|p| p.mounts.clone()).or(row.map(|row| row.mounts.to_vec())),
        };
        if present.is_none() && row.is_none() {
            let missing =
                [("base_url", self.base_url.is_none()), ("dialect", self.dialect.is_none())];
            for (field, _) in missing.into_iter().filter(|(_, missing)| *missing) {
                issues.push(Issue::at([field], "required for a provider that is not built in"));
            }
        }
        if self.api_key.as_deref().is_some_and(|key| !is_header_value(key)) {
            issues.push(Issue::at(["api_key"], "must be visible ASCII characters without spaces"));
        }
        let webhook_secret = self.webhook_secret.as_deref().map(WebhookSecret::parse);
        if webhook_secret == Some(None) {
            let message = "must be whsec_ and base64, as the provider shows it";
            issues.push(Issue::at(["webhook_secret"], message));
        }
        let managed_endpoints = parse_managed_endpoints(&self.managed_endpoints, &mut issues);
        let (Some(mounts), Some(base_url), true) = (mounts, base_url, issues.is_empty()) else {
            return Err(issues);
        };
        let speaks_openai = || mounts.iter().any(|mount| mount.dialect == Dialect::OpenAi);
        let known = present.map(|p| &*p.traits);
        let stream_options = known.map(|p| p.stream_options).or(row.map(|r| r.stream_options));
        let max_completion_tokens =
            known.map(|p| p.max_completion_tokens).or(row.map(|r| r.max_completion_tokens));
        let traits = ProviderTraits {
            price_list: self.price_list.unwrap_or_else(|| name.to_owned()),
            dialects: mounts.iter().map(|mount| mount.dialect).collect(),
            allow_stored_state: self.allow_stored_state,
            stream_options: self.stream_options.or(stream_options).unwrap_or_else(speaks_openai),
            max_completion_tokens: self
                .max_completion_tokens
                .or(max_completion_tokens)
                .unwrap_or_default(),
        };
        Ok(Provider {
            name: name.to_owned(),
            traits: Arc::new(traits),
            mounts,
            base_url,
            allow_private_network,
            managed_endpoints,
            webhook_secret: webhook_secret
                .flatten()
                .or_else(|| present.and_then(|p| p.webhook_secret.clone())),
            api_key: self.api_key.or_else(|| present.and_then(|p| p.api_key.clone())),
        })
    }

    /// The base URL: as configured, as before, or the built-in one with its names filled in.
    fn base_url(
        &self,
        name: &str,
        present: Option<&Provider>,
        issues: &mut Vec<Issue>,
    ) -> Option<Url> {
        let row = builtin::row(name);
        let mut written = row.map(|row| row.base_url.to_owned()).unwrap_or_default();
        for (key, value) in [("resource", &self.resource), ("region", &self.region)] {
            let place = format!("{{{key}}}");
            let has_place = written.contains(&place);
            match value {
                Some(_) if !has_place => {
                    issues.push(Issue::at([key], "is not part of this provider's URL"));
                }
                Some(value) if !is_label(value) => {
                    issues.push(Issue::at([key], "must be a name of a-z, 0-9 and '-'"));
                }
                Some(value) => written = written.replace(&place, value),
                None if has_place && self.base_url.is_none() && present.is_none() => {
                    issues.push(Issue::at([key], "is required: it is part of the provider's URL"));
                }
                None => {}
            }
        }
        match (&self.base_url, present) {
            (Some(text), _) => collect(issues, ["base_url"], parse_base_url(text)),
            (None, Some(present)) => Some(present.base_url.clone()),
            (None, None) => parse_base_url(&written).ok(),
        }
    }
}

/// Whether a text is one label of a host's name.
fn is_label(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-')
}

fn collect<T, E: Into<String>>(
    issues: &mut Vec<Issue>,
    path: [&str; 1],
    result: Result<T, E>,
) -> Option<T> {
    result.map_err(|message| issues.push(Issue::at(path, message))).ok()
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    name.len() <= 64
        && name.bytes().all(allowed)
        && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
}

/// Whether a key can be sent as a header.
pub(crate) fn is_header_value(key: &str) -> bool {
    !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_graphic())
        && HeaderValue::from_str(key).is_ok()
}

/// Parses a base URL. Any spelling that the parser reads is accepted; the normal form, without the
/// slash at the end, is kept.
fn parse_base_url(text: &str) -> Result<Url, &'static str> {
    let mut url = Url::parse(text).map_err(|_| "must be a URL such as https://host/v1")?;
    if !matches!(url.scheme(), "https" | "http") {
        return Err("must be https (or http in a private network)");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a user name or password; use api_key");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("must not have a query or fragment");
    }
    let path = url.path().trim_end_matches('/').to_owned();
    if ambiguous_path(&path) {
        return Err("must have a plain path, without '//' or encoded characters");
    }
    url.set_path(&path);
    match url.host_str() {
        Some(host) if !host.is_empty() && !host.ends_with('.') => Ok(url),
        _ => Err("must have a host, without a dot at the end"),
    }
}

fn not_public(url: &Url, allow_private_network: bool) -> Option<&'static str> {
    if allow_private_network {
        return None;
    }
    let private = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => !is_public(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => !is_public(IpAddr::V6(address)),
        None => true,
    };
    if private {
        return Some("is a private address; set allow_private_network = true to accept it");
    }
    (url.scheme() != "https").then_some("must be https, unless allow_private_network = true")
}

fn parse_managed_endpoints(lines: &[String], issues: &mut Vec<Issue>) -> Vec<(Method, String)> {
    let mut endpoints = Vec::with_capacity(lines.len());
    for (position, line) in lines.iter().enumerate() {
        match parse_managed_endpoint(line) {
            Some(endpoint) => endpoints.push(endpoint),
            None => issues.push(Issue::at(
                ["managed_endpoints", &position.to_string()],
                "expected a method and a path below base_url, such as \"POST /files\"",
            )),
        }
    }
    endpoints
}

fn parse_managed_endpoint(line: &str) -> Option<(Method, String)> {
    let (method, path) = line.split_once(' ')?;
    let method = match method {
        "GET" => Method::GET,
        "POST" => Method::POST,
        _ => return None,
    };
    let path = path.trim();
    let plain = path.starts_with('/') && !path.contains([' ', '?', '#']) && !ambiguous_path(path);
    plain.then(|| (method, path.to_owned()))
}
