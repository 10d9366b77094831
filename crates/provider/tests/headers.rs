//! The headers that pass.

use awc::http::Method;
use awc::http::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate_domain::MerchantId;
use tollgate_provider::{
    Endpoint, ProviderKey, ProviderSettings, ProviderTable, request_headers, response_headers,
};

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
}

fn merchant() -> MerchantId {
    "mch_01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap_or_else(|_| unreachable!())
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?")))
        .collect();
    lines.sort();
    lines
}

fn endpoint(provider: &str, path: &str) -> Endpoint {
    let mut table = ProviderTable::builtin();
    let settings =
        ProviderSettings { api_key: Some("sk-operator".to_owned()), ..Default::default() };
    let configured = table.configure(provider, settings);
    assert_eq!(configured, Ok(()));
    let url = format!("https://api.{provider}.com/v1{path}");
    let resolved = table.resolve(&Method::POST, &url);
    resolved.unwrap_or_else(|error| unreachable!("{url}: {error}"))
}

#[test]
fn what_is_the_callers_own_or_of_the_connection_stays() {
    let incoming = headers(&[
        ("host", "tollgate.example"),
        ("content-length", "5"),
        ("content-type", "application/json"),
        ("user-agent", "sdk/1"),
        ("authorization", "Bearer canary"),
        ("x-api-key", "canary"),
        ("api-key", "canary"),
        ("x-goog-api-key", "canary"),
        ("xi-api-key", "canary"),
        ("cookie", "canary"),
        ("x-service-metadata", "{}"),
        ("connection", "keep-alive, X-Mine"),
        ("connection", "x-also-mine"),
        ("x-mine", "canary"),
        ("x-also-mine", "canary"),
        ("keep-alive", "5"),
        ("te", "trailers"),
        ("trailer", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("expect", "100-continue"),
        ("proxy-authorization", "canary"),
        ("forwarded", "for=10.0.0.1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "10.0.0.1"),
        ("openai-organization", "org-canary"),
        ("openai-project", "proj-canary"),
        ("openai-beta", "assistants=v2"),
        ("idempotency-key", "i-1"),
        ("x-stainless-lang", "python"),
        ("x-stainless-lang", "again"),
    ]);
    let openai = endpoint("openai", "/chat/completions");
    let common = [
        "accept-encoding: identity",
        "content-type: application/json",
        "idempotency-key: f8c04dcfff08b6f3-i-1",
        "openai-beta: assistants=v2",
        "user-agent: sdk/1",
        "x-stainless-lang: again",
        "x-stainless-lang: python",
    ];
    let managed = request_headers(&incoming, &openai, &ProviderKey::Managed, merchant(), false);
    let mut expected = common.to_vec();
    expected.insert(1, "authorization: Bearer sk-operator");
    assert_eq!(lines(&managed), expected);

    let own = request_headers(
        &incoming,
        &openai,
        &ProviderKey::Own("sk-own".to_owned()),
        merchant(),
        false,
    );
    let mut expected = [
        &common[..],
        &[
            "authorization: Bearer sk-own",
            "openai-organization: org-canary",
            "openai-project: proj-canary",
        ],
    ]
    .concat();
    expected.sort_unstable();
    assert_eq!(lines(&own), expected);
}

#[test]
fn anthropic_takes_its_key_and_version_in_its_own_headers() {
    let anthropic = endpoint("anthropic", "/messages");
    let sent = request_headers(&headers(&[]), &anthropic, &ProviderKey::Managed, merchant(), false);
    assert_eq!(
        lines(&sent),
        ["accept-encoding: identity", "anthropic-version: 2023-06-01", "x-api-key: sk-operator"]
    );
    let incoming = headers(&[("anthropic-version", "2099-01-01"), ("x-api-key", "tgk_canary")]);
    let sent = request_headers(
        &incoming,
        &anthropic,
        &ProviderKey::Own("sk-own".to_owned()),
        merchant(),
        false,
    );
    assert_eq!(
        lines(&sent),
        ["accept-encoding: identity", "anthropic-version: 2099-01-01", "x-api-key: sk-own"]
    );
}

#[test]
fn compression_is_the_clients_choice_unless_an_event_is_to_be_removed() {
    let openai = endpoint("openai", "/chat/completions");
    let accept = |incoming: &HeaderMap, identity: bool| {
        let sent = request_headers(incoming, &openai, &ProviderKey::Managed, merchant(), identity);
        sent.get("accept-encoding").and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let asks = headers(&[("accept-encoding", "gzip, br")]);
    assert_eq!(accept(&asks, false).as_deref(), Some("gzip, br"));
    assert_eq!(accept(&asks, true).as_deref(), Some("identity"));
    assert_eq!(accept(&headers(&[]), false).as_deref(), Some("identity"));
}

#[test]
fn a_key_that_cannot_be_sent_is_refused_and_none_is_printed() {
    for key in ["", "two words", "line\nbreak", "käy"] {
        assert!(ProviderKey::own(key.to_owned()).is_err(), "{key:?}");
    }
    let key = ProviderKey::own("sk-canary".to_owned()).unwrap();
    assert!(!format!("{key:?}").contains("canary"));
    let openai = endpoint("openai", "/responses");
    let sent = request_headers(&headers(&[]), &openai, &key, merchant(), false);
    assert!(!format!("{sent:?}").contains("canary"), "marked as sensitive");
}

#[test]
fn answers_come_back_without_what_binds_to_the_providers_origin() {
    let incoming = headers(&[
        ("content-type", "text/event-stream"),
        ("content-length", "10"),
        ("content-digest", "x"),
        ("content-encoding", "gzip"),
        ("x-request-id", "r-1"),
        ("x-ratelimit-remaining-tokens", "9"),
        ("set-cookie", "a=b"),
        ("set-cookie", "c=d"),
        ("alt-svc", "h3=\":443\""),
        ("strict-transport-security", "max-age=1"),
        ("transfer-encoding", "chunked"),
        ("connection", "close, x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "5"),
        ("proxy-authenticate", "x"),
        ("service-worker-allowed", "/"),
        ("nel", "{}"),
        ("report-to", "{}"),
        ("reporting-endpoints", "x"),
        ("refresh", "0; url=/dashboard"),
        ("clear-site-data", "*"),
        ("www-authenticate", "Basic"),
        ("public-key-pins", "x"),
        ("content-security-policy", "default-src *"),
        ("x-content-type-options", "sniff"),
        ("x-service-cost", "99"),
        ("x-service-anything", "x"),
    ]);
    let kept = [
        "content-encoding: gzip",
        "content-security-policy: sandbox; default-src 'none'",
        "content-type: text/event-stream",
        "x-content-type-options: nosniff",
        "x-ratelimit-remaining-tokens: 9",
        "x-request-id: r-1",
    ];
    assert_eq!(lines(&response_headers(incoming.clone(), true)), kept);
    let whole = ["content-digest: x", "content-encoding: gzip", "content-length: 10"];
    assert_eq!(lines(&response_headers(incoming, false)), [&whole[..], &kept[1..]].concat());
}

#[test]
fn only_encodings_that_can_be_read_are_asked_for() {
    let openai = endpoint("openai", "/chat/completions");
    let accepts = |asked: &'static str| {
        let asked = headers(&[("accept-encoding", asked)]);
        let sent = request_headers(&asked, &openai, &ProviderKey::Managed, merchant(), false);
        lines(&sent)
            .into_iter()
            .find_map(|line| line.strip_prefix("accept-encoding: ").map(str::to_owned))
    };
    for (asked, expected) in [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("xz, compress, gzip;q=0.5", "gzip;q=0.5"),
        ("xz", "identity"),
        ("*", "identity"),
        ("", "identity"),
        ("GZIP , snappy", "GZIP"),
    ] {
        assert_eq!(accepts(asked).as_deref(), Some(expected), "{asked}");
    }
}

#[test]
fn names_with_underscores_stay_with_the_managed_key() {
    let openai = endpoint("openai", "/chat/completions");
    let incoming = headers(&[("openai_organization", "org-canary"), ("x_mine", "1")]);
    let sent = |key: &ProviderKey| {
        lines(&request_headers(&incoming, &openai, key, merchant(), false)).join(" ")
    };
    assert!(!sent(&ProviderKey::Managed).contains('_'));
    assert!(sent(&ProviderKey::Own("sk-own".to_owned())).contains("x_mine: 1"));
}

#[test]
fn merchants_never_share_an_idempotency_key() {
    let openai = endpoint("openai", "/chat/completions");
    let long = "k".repeat(300);
    let key_of = |merchant: MerchantId, key: &str| {
        let mut incoming = HeaderMap::new();
        let value = HeaderValue::from_str(key).unwrap();
        incoming.insert(HeaderName::from_static("idempotency-key"), value);
        let sent = request_headers(&incoming, &openai, &ProviderKey::Managed, merchant, false);
        sent.get("idempotency-key").unwrap().to_str().unwrap().to_owned()
    };
    let other = "mch_01ARZ3NDEKTSV4RRFFQ69G5FAW".parse().unwrap();
    let (mine, again) = (key_of(merchant(), "k-1"), key_of(merchant(), "k-1"));
    assert!(mine == again && mine.ends_with("-k-1"), "{mine}");
    assert_ne!(mine, key_of(other, "k-1"));
    assert_eq!(key_of(merchant(), &long).len(), 255);
}
