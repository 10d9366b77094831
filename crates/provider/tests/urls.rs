//! The targets of URLs: a corpus of tricks, none of which may carry a key to another place.

use awc::http::Method;
use tollgate_domain::RequestFormat;
use tollgate_provider::{Endpoint, EndpointError, ProviderSettings, ProviderTable};
use tollgate_usage::Dialect;

fn table() -> ProviderTable {
    let mut table = ProviderTable::builtin();
    let key = |key: &str| ProviderSettings { api_key: Some(key.to_owned()), ..Default::default() };
    let house = ProviderSettings {
        base_url: Some("http://127.0.0.1:9100/v1/".to_owned()),
        dialect: Some("openai".to_owned()),
        allow_private_network: Some(true),
        managed_endpoints: vec!["POST /containers".to_owned(), "GET /containers/{id}".to_owned()],
        ..key("sk-house")
    };
    let nested = ProviderSettings {
        base_url: Some("https://api.openai.com/v1/nested".to_owned()),
        dialect: Some("none".to_owned()),
        ..key("sk-nested")
    };
    for (name, settings) in [("openai", key("sk-openai")), ("house", house), ("nested", nested)] {
        let configured = table.configure(name, settings);
        assert!(configured.is_ok(), "{configured:?}");
    }
    table
}

fn resolve(method: Method, u: &str) -> Result<Endpoint, EndpointError> {
    table().resolve(&method, u)
}

#[test]
fn no_trick_leads_anywhere() {
    use EndpointError::*;
    let tricks: &[(&str, EndpointError)] = &[
        // Another host that looks like a provider's.
        ("https://evil.com/v1/chat/completions", UnknownProvider),
        ("https://api.openai.com.evil.com/v1/chat/completions", UnknownProvider),
        ("https://evil.com/api.openai.com/v1/chat/completions", UnknownProvider),
        ("https://evilapi.openai.com/v1/chat/completions", UnknownProvider),
        ("https://openai.com/v1/chat/completions", UnknownProvider),
        ("https://api-openai.com/v1/chat/completions", UnknownProvider),
        ("https://xn--pi-7kc.openai.com/v1/chat/completions", UnknownProvider),
        ("https://\u{430}pi.openai.com/v1/chat/completions", Characters),
        ("https://api\u{3002}openai\u{3002}com/v1/chat/completions", Characters),
        ("https://api.openai.co\u{217f}/v1/chat/completions", Characters),
        // User info, so that the host is the part after it.
        ("https://api.openai.com@evil.com/v1/chat/completions", UserInfo),
        ("https://api.openai.com:443@evil.com/v1/chat/completions", UserInfo),
        ("https://evil.com@api.openai.com/v1/chat/completions", UserInfo),
        ("https://user:pass@api.openai.com/v1/chat/completions", UserInfo),
        ("https://@api.openai.com/v1/chat/completions", UserInfo),
        ("https://:@api.openai.com/v1/chat/completions", UserInfo),
        ("https://evil.com%40api.openai.com/v1/chat/completions", NotAUrl),
        // Characters that parsers read in different ways.
        ("https://api.openai.com\\@evil.com/v1/chat/completions", Characters),
        ("https://evil.com\\.api.openai.com/v1/chat/completions", Characters),
        ("https:\\\\api.openai.com/v1/chat/completions", Characters),
        ("https://api.openai.com/v1\\chat\\completions", Characters),
        ("https://api.openai.com/v1/chat/completions\r\nHost: evil.com", Characters),
        ("https://api.openai.com/v1/chat/completions\n", Characters),
        (" https://api.openai.com/v1/chat/completions", Characters),
        ("https://api.openai.com/v1/chat/comple tions", Characters),
        ("https://api.openai\t.com/v1/chat/completions", Characters),
        ("https://api.openai.com/v1/chat/completions\0", Characters),
        ("https://api.openai.com/v1/chat/compl\u{e9}tions", Characters),
        ("https://evil.com#@api.openai.com/v1/chat/completions", Fragment),
        ("https://evil.com?@api.openai.com/v1/chat/completions", NotNormal),
        ("https://api.openai.com/v1/chat/completions#", Fragment),
        ("https://api.openai.com/v1/chat/completions#x", Fragment),
        ("https://api.openai.com/v1/\"chat\"/completions", NotNormal),
        ("https://api.openai.com/v1/<chat>/completions", NotNormal),
        // Schemes.
        ("http://api.openai.com/v1/chat/completions", UnknownProvider),
        ("ftp://api.openai.com/v1/chat/completions", NotAUrl),
        ("file:///etc/passwd", NotAUrl),
        ("javascript:alert(1)", NotAUrl),
        ("data:text/plain,x", NotAUrl),
        ("wss://api.openai.com/v1/chat/completions", NotAUrl),
        ("//api.openai.com/v1/chat/completions", NotAUrl),
        ("api.openai.com/v1/chat/completions", NotAUrl),
        ("https:api.openai.com/v1/chat/completions", UserInfo),
        ("https:/api.openai.com/v1/chat/completions", UserInfo),
        ("https:///api.openai.com/v1/chat/completions", NotNormal),
        ("HTTPS://api.openai.com/v1/chat/completions", NotNormal),
        // Other spellings of the host and port.
        ("https://API.OpenAI.com/v1/chat/completions", NotNormal),
        ("https://api.openai.com./v1/chat/completions", NotNormal),
        ("https://api.openai.com:443/v1/chat/completions", NotNormal),
        ("https://api.openai.com:/v1/chat/completions", NotNormal),
        ("https://api.openai.com:0443/v1/chat/completions", NotNormal),
        ("https://api.openai.com:8443/v1/chat/completions", UnknownProvider),
        ("https://api.openai.com:99999/v1/chat/completions", NotAUrl),
        ("https://api%2eopenai.com/v1/chat/completions", NotNormal),
        ("https://api%2Fopenai.com/v1/chat/completions", NotAUrl),
        ("https:///v1/chat/completions", NotNormal),
        ("https://", NotAUrl),
        ("", NotAUrl),
        // Paths that leave the prefix, or do so for another parser.
        ("https://api.openai.com/v1/../dashboard", NotNormal),
        ("https://api.openai.com/v1/./chat/completions", NotNormal),
        ("https://api.openai.com/v1/%2e%2e/dashboard", NotNormal),
        ("https://api.openai.com/v1/.%2E/dashboard", NotNormal),
        ("https://api.openai.com/v1/..%2fdashboard", AmbiguousPath),
        ("https://api.openai.com/v1/chat%2Fcompletions", AmbiguousPath),
        ("https://api.openai.com/v1/chat%5ccompletions", AmbiguousPath),
        ("https://api.openai.com/v1/models/a%2eb", AmbiguousPath),
        ("https://api.openai.com/v1/%252e%252e/dashboard", AmbiguousPath),
        ("https://api.openai.com/v1/models/%00", AmbiguousPath),
        ("https://api.openai.com/v1/models/%0d%0aHost:evil", AmbiguousPath),
        ("https://api.openai.com/v1/models/%zz", AmbiguousPath),
        ("https://api.openai.com/v1/models/%2", AmbiguousPath),
        ("https://api.openai.com//v1/chat/completions", AmbiguousPath),
        ("https://api.openai.com/v1//chat/completions", AmbiguousPath),
        ("https://api.openai.com/v10/chat/completions", UnknownProvider),
        ("https://api.openai.com/v1x", UnknownProvider),
        ("https://api.openai.com/V1/chat/completions", UnknownProvider),
        ("https://api.openai.com/", UnknownProvider),
        ("https://api.openai.com", NotNormal),
        // Addresses in other spellings.
        ("http://127.1:9100/v1/models", NotNormal),
        ("http://2130706433:9100/v1/models", NotNormal),
        ("http://0x7f000001:9100/v1/models", NotNormal),
        ("http://0177.0.0.1:9100/v1/models", NotNormal),
        ("http://[::ffff:127.0.0.1]:9100/v1/models", NotNormal),
        ("http://[::ffff:7f00:1]:9100/v1/models", UnknownProvider),
        ("http://localhost:9100/v1/models", UnknownProvider),
        ("http://127.0.0.1/v1/models", UnknownProvider),
        ("http://127.0.0.1:9101/v1/models", UnknownProvider),
        ("https://127.0.0.1:9100/v1/models", UnknownProvider),
        ("http://169.254.169.254/latest/meta-data", UnknownProvider),
    ];
    assert!(tricks.len() >= 50);
    for (u, expected) in tricks {
        let error = resolve(Method::POST, u).map(|endpoint| endpoint.url).unwrap_err();
        // The refusal protects the key; the reason only helps the caller.
        let _ = expected;
        let message = error.to_string();
        assert!(!message.contains("sk-") && !message.contains("evil"), "{u:?}: {message}");
        assert_eq!(error, *expected, "{u:?}");
    }
    let long = format!("https://api.openai.com/v1/models/{}", "x".repeat(9000));
    assert_eq!(resolve(Method::GET, &long).unwrap_err(), TooLong);
}

#[test]
fn the_endpoints_of_a_dialect_are_known_as_metered_or_free() {
    let rows = [
        (Method::POST, "https://api.openai.com/v1/chat/completions", Some(true)),
        (Method::POST, "https://api.openai.com/v1/responses", Some(true)),
        (Method::POST, "https://api.openai.com/v1/embeddings", Some(true)),
        (Method::POST, "https://api.openai.com/v1/completions", Some(true)),
        (Method::POST, "https://api.openai.com/v1/moderations", Some(false)),
        (Method::GET, "https://api.openai.com/v1/models", Some(false)),
        (Method::GET, "https://api.openai.com/v1/models/ft%3Agpt-4o?x=1", Some(false)),
        (Method::POST, "https://api.anthropic.com/v1/messages", Some(true)),
        (Method::POST, "https://api.anthropic.com/v1/messages?beta=true", Some(true)),
        (Method::POST, "https://api.anthropic.com/v1/messages/count_tokens", Some(false)),
        (Method::GET, "https://api.anthropic.com/v1/models/claude", Some(false)),
        (Method::POST, "http://127.0.0.1:9100/v1/chat/completions", Some(true)),
        // Objects of the caller.
        (Method::GET, "https://api.openai.com/v1/responses/resp_1?stream=true", Some(false)),
        (Method::DELETE, "https://api.openai.com/v1/responses/resp_1", Some(false)),
        (Method::POST, "https://api.openai.com/v1/responses/resp_1/cancel", Some(false)),
        (Method::GET, "https://api.openai.com/v1/responses/resp_1/input_items", Some(false)),
        (Method::POST, "https://api.openai.com/v1/responses/resp_1", None),
        (Method::POST, "https://api.openai.com/v1/files", Some(false)),
        (Method::GET, "https://api.openai.com/v1/files/file-1/content", Some(false)),
        (Method::POST, "https://api.openai.com/v1/batches", Some(true)),
        (Method::GET, "https://api.openai.com/v1/batches?limit=2", Some(false)),
        (Method::POST, "https://api.openai.com/v1/batches/b/cancel", Some(false)),
        (Method::DELETE, "https://api.openai.com/v1/batches/b", None),
        (Method::POST, "https://api.anthropic.com/v1/messages/batches", Some(true)),
        (Method::GET, "https://api.anthropic.com/v1/messages/batches?limit=2", Some(false)),
        (Method::GET, "https://api.anthropic.com/v1/messages/batches/b/results", Some(false)),
        (Method::POST, "https://api.anthropic.com/v1/messages/batches/b/results", None),
        // Everything else needs the caller's own key.
        (Method::GET, "https://api.openai.com/v1/chat/completions", None),
        (Method::GET, "https://api.openai.com/v1/chat/completions/chatcmpl-1", None),
        (Method::POST, "https://api.openai.com/v1/responses/", None),
        (Method::POST, "https://api.openai.com/v1/vector_stores", None),
        (Method::POST, "https://api.openai.com/v1/fine_tuning/jobs", None),
        (Method::POST, "https://api.openai.com/v1/organization/admin_api_keys", None),
        (Method::DELETE, "https://api.openai.com/v1/models/ft%3Agpt-4o", None),
    ];
    for (method, u, metered) in rows {
        let endpoint = resolve(method.clone(), u).unwrap();
        assert_eq!(endpoint.format.operation.map(|row| row.metered), metered, "{method} {u}");
        assert_eq!(endpoint.allows_managed_key(), metered.is_some(), "{method} {u}");
        let expected = metered.unwrap_or(method == Method::POST);
        assert_eq!(
            endpoint.format.metered(),
            expected,
            "what is not known to be free is metered: {u}"
        );
    }
}

#[test]
fn an_operator_may_widen_the_managed_key() {
    let files = resolve(Method::POST, "http://127.0.0.1:9100/v1/containers").unwrap();
    assert!(
        files.allows_managed_key() && files.format.metered() && files.format.operation.is_none()
    );
    let file = resolve(Method::GET, "http://127.0.0.1:9100/v1/containers/f_1").unwrap();
    assert!(file.allows_managed_key() && !file.format.metered());
    for other in ["/v1/containers/f_1/content", "/v1/containers/", "/v1/containersystem"] {
        let u = format!("http://127.0.0.1:9100{other}");
        assert!(!resolve(Method::GET, &u).unwrap().allows_managed_key(), "{u}");
    }
}

#[test]
fn of_two_providers_on_a_host_the_longer_prefix_is_meant() {
    let nested = resolve(Method::POST, "https://api.openai.com/v1/nested/x").unwrap();
    assert_eq!(nested.provider.name, "nested");
    let outer = resolve(Method::POST, "https://api.openai.com/v1/nestedx").unwrap();
    assert_eq!(outer.provider.name, "openai");
}

#[test]
fn a_recorded_url_has_no_secret() {
    let recorded = |query: &str| {
        let u = format!("https://api.openai.com/v1/models{query}");
        resolve(Method::GET, &u).unwrap().recorded_url().to_owned()
    };
    let secret = [
        "key",
        "api_key",
        "apikey",
        "API-KEY",
        "access_token",
        "token",
        "auth",
        "signature",
        "sig",
        "x-goog-api-key",
        "X-Amz-Signature",
        "X-Amz-Credential",
        "client_secret",
        "k%65y",
    ];
    for name in secret {
        let clean = recorded(&format!("?a=1&{name}=canary&b=%20x"));
        assert_eq!(clean, "https://api.openai.com/v1/models?a=1&b=%20x", "{name}");
        assert_eq!(recorded(&format!("?{name}=canary")), "https://api.openai.com/v1/models");
    }
    assert_eq!(recorded("?limit=5&after=m"), "https://api.openai.com/v1/models?limit=5&after=m");
    assert_eq!(recorded(""), "https://api.openai.com/v1/models");
}

#[test]
fn keys_are_never_printed() {
    let table = table();
    let endpoint = resolve(Method::POST, "https://api.openai.com/v1/responses").unwrap();
    let printed = format!("{table:?} {endpoint:?} {:?}", table.get("openai"));
    assert!(!printed.contains("sk-"), "{printed}");
    let settings =
        ProviderSettings { api_key: Some("sk-canary".to_owned()), ..ProviderSettings::default() };
    assert!(!format!("{settings:?}").contains("sk-canary"));
}

#[test]
fn all_mistakes_of_a_configuration_are_told_at_once() {
    let paths = |name: &str, settings: ProviderSettings| {
        let issues = ProviderTable::builtin().configure(name, settings).unwrap_err();
        issues.into_iter().map(|issue| issue.path.join(".")).collect::<Vec<_>>()
    };
    assert_eq!(paths("house", ProviderSettings::default()), ["base_url", "dialect"]);
    let all_wrong = ProviderSettings {
        base_url: Some("not a url".to_owned()),
        dialect: Some("Google".to_owned()),
        api_key: Some("two words".to_owned()),
        managed_endpoints: vec![
            "POST /files".to_owned(),
            "DELETE /files".to_owned(),
            "x".to_owned(),
        ],
        ..ProviderSettings::default()
    };
    let expected =
        ["", "base_url", "dialect", "api_key", "managed_endpoints.1", "managed_endpoints.2"];
    assert_eq!(paths("House!", all_wrong), expected);
    for base_url in [
        "http://example.com/v1",
        "https://127.0.0.1/v1",
        "https://10.0.0.1",
        "https://[::1]/",
        "https://localhost/v1",
        "https://a.localhost",
        "https://169.254.169.254",
        "ftp://a.com",
        "https://user@a.com",
        "https://a.com/?x=1",
        "https://a.com/#x",
        "https://a.com./v1",
        "https://a.com/x%2fy",
        "https://2130706433/",
    ] {
        let settings = ProviderSettings {
            base_url: Some(base_url.to_owned()),
            dialect: Some("none".to_owned()),
            ..ProviderSettings::default()
        };
        assert_eq!(paths("house", settings), ["base_url"], "{base_url}");
    }
}

#[test]
fn an_override_keeps_what_it_does_not_name() {
    let mut table = table();
    let settings = ProviderSettings {
        base_url: Some("https://eu.api.openai.com/v1".to_owned()),
        ..Default::default()
    };
    table.configure("openai", settings).unwrap();
    let openai = table.get("openai").unwrap();
    assert!(openai.has_api_key() && openai.traits.stream_options);
    assert!(table.resolve(&Method::POST, "https://api.openai.com/v1/responses").is_err());
    assert!(table.resolve(&Method::POST, "https://eu.api.openai.com/v1/responses").is_ok());
}

#[test]
fn a_route_leads_below_the_base_url_and_nowhere_else() {
    let table = table();
    let at = |name: &str, method: Method, path: &str, query: Option<&str>| {
        let endpoint = table.get(name)?.endpoint(&method, path, query)?;
        assert_eq!(endpoint.method, method);
        let resolved = table.resolve(&method, endpoint.url.as_str()).unwrap();
        assert_eq!(resolved.format.operation, endpoint.format.operation);
        assert_eq!(resolved.provider.name, name);
        Some(endpoint.url.to_string())
    };
    let chat = "/chat/completions";
    let plain = Some("https://api.openai.com/v1/chat/completions");
    assert_eq!(at("openai", Method::POST, chat, None).as_deref(), plain);
    assert_eq!(at("openai", Method::POST, chat, Some("")).as_deref(), plain);
    assert_eq!(
        at("anthropic", Method::POST, "/messages", Some("beta=true&x=%20")).as_deref(),
        Some("https://api.anthropic.com/v1/messages?beta=true&x=%20")
    );
    assert_eq!(
        at("house", Method::GET, "/models/m", Some("a=/../b?c@evil.com")).as_deref(),
        Some("http://127.0.0.1:9100/v1/models/m?a=/../b?c@evil.com")
    );
    for query in ["a b", "a#b", "#", "a\nb", "a\\b", "a\"b", "<", "\u{e9}", "a\0", "'"] {
        assert_eq!(at("openai", Method::POST, chat, Some(query)), None, "{query:?}");
    }
    assert_eq!(at("openai", Method::POST, chat, Some(&"x".repeat(9_000))), None);
    for path in [
        "",
        "/",
        "chat/completions",
        "/chat/completions/",
        "/messages",
        "/models",
        "@evil.com/chat/completions",
        ".evil.com/chat/completions",
    ] {
        assert_eq!(at("house", Method::POST, path, None), None, "{path}");
    }
    for model in ["..", ".", "%2e%2e", "a%2fb", "a?b", "a#b", "a b", "", "a\\b", "a/b"] {
        assert_eq!(at("openai", Method::GET, &format!("/models/{model}"), None), None, "{model}");
    }
    assert_eq!(at("nested", Method::POST, chat, None), None, "its dialect has no rows");
    assert_eq!(at("openai", Method::GET, chat, None), None);
}

#[test]
fn the_format_of_a_request_follows_from_the_dialect() {
    let shape = |method, u| resolve(method, u).unwrap().shape();
    use RequestFormat::*;
    assert_eq!(shape(Method::POST, "http://127.0.0.1:9100/v1/embeddings"), Some(ShapeA));
    assert_eq!(shape(Method::POST, "https://api.anthropic.com/v1/messages"), Some(ShapeB));
    assert_eq!(shape(Method::POST, "https://api.openai.com/v1/nested/x"), None);
    assert_eq!(shape(Method::GET, "https://api.openai.com/v1/models"), None);
}

#[test]
fn a_provider_without_a_key_takes_managed_calls_only_in_a_private_network() {
    let mut table = table();
    let takes = |table: &ProviderTable, name| table.get(name).unwrap().takes_managed_calls();
    assert!(takes(&table, "openai"));
    assert!(!takes(&table, "anthropic"));
    let private = |base_url: &str| ProviderSettings {
        base_url: Some(base_url.to_owned()),
        dialect: Some("openai".to_owned()),
        allow_private_network: Some(true),
        ..ProviderSettings::default()
    };
    table.configure("local", private("http://127.0.0.1:8000")).unwrap();
    assert!(takes(&table, "local"));
}

#[test]
fn providers_stand_in_the_order_in_which_they_were_configured() {
    const SHOWN: [&str; 4] = ["anthropic", "openai", "zulu", "alpha"];
    let names = |table: &ProviderTable| {
        let names = table.iter().map(|provider| provider.name.clone());
        names.filter(|name| SHOWN.contains(&name.as_str())).collect::<Vec<_>>().join(" ")
    };
    let mut table = ProviderTable::builtin();
    assert_eq!(names(&table), "anthropic openai");
    let zulu = || ProviderSettings {
        base_url: Some("https://api.openai.com/v1".to_owned()),
        dialect: Some("none".to_owned()),
        ..ProviderSettings::default()
    };
    table.configure("zulu", zulu()).unwrap();
    assert_eq!(names(&table), "zulu anthropic openai");
    table.configure("openai", ProviderSettings::default()).unwrap();
    assert_eq!(names(&table), "zulu openai anthropic");
    // Of equal prefixes, the first wins.
    let u = "https://api.openai.com/v1/chat/completions";
    assert_eq!(table.resolve(&Method::POST, u).unwrap().provider.name, "zulu");
    // A second configuration keeps the place, and a refused one changes nothing.
    table.configure("zulu", ProviderSettings { stream_options: Some(true), ..zulu() }).unwrap();
    table.configure("alpha", ProviderSettings::default()).unwrap_err();
    assert_eq!(names(&table), "zulu openai anthropic");
    assert!(table.get("zulu").unwrap().traits.stream_options && table.get("alpha").is_none());
    table.configure("alpha", zulu()).unwrap();
    table.configure("anthropic", ProviderSettings::default()).unwrap();
    assert_eq!(names(&table), "zulu openai alpha anthropic");
}

#[test]
fn of_two_parts_at_one_place_the_one_that_lists_the_endpoint_is_meant() {
    let table = ProviderTable::builtin();
    let dialect = |path: &str| {
        let url = format!("https://api.anthropic.com/v1{path}");
        let endpoint = table.resolve(&Method::POST, &url).unwrap();
        (endpoint.format.dialect, endpoint.format.operation.is_some(), endpoint.format.metered())
    };
    assert_eq!(dialect("/messages"), (Dialect::Anthropic, true, true));
    assert_eq!(dialect("/chat/completions"), (Dialect::OpenAi, true, true));
    assert_eq!(dialect("/files"), (Dialect::Anthropic, false, true));
}
