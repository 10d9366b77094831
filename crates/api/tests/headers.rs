//! The headers of calls, byte by byte: exactly these reach the provider, exactly these are returned, none
//! of them selects the payer, and no message can be read in two ways.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_testkit::{ScriptedResponse, TestResponse};

use crate::support::{self, Gateway, chat_answer, chat_body, each_gateway};

/// The headers with names in lower case, sorted by name.
fn sorted(headers: &[(String, String)]) -> Vec<String> {
    let line = |(name, value): &(String, String)| format!("{}: {value}", name.to_ascii_lowercase());
    let mut lines: Vec<_> = headers.iter().map(line).collect();
    lines.sort();
    lines
}

impl Gateway<'_> {
    /// Sends a chat call with these headers to a path of the provider; returns the headers that arrived.
    async fn arrived(&self, path: &str, token: &str, headers: &[(&str, &str)]) -> Vec<String> {
        self.provider.push(ScriptedResponse::json(200, chat_answer()));
        let u = self.provider.url(path);
        let mut call = self.forward_to(&u).bearer(token).json(&chat_body());
        for (name, value) in headers {
            call = call.header(name, value);
        }
        call.send().await.expect(200);
        let mut lines = sorted(&self.provider.requests().last().unwrap().headers);
        // The service's HTTP client always adds the date, the host and the length.
        let length = format!("content-length: {}", chat_body().to_string().len());
        let host = format!("host: {}", self.provider.addr());
        for of_the_client in [length, host] {
            let at = lines.iter().position(|line| *line == of_the_client).unwrap();
            lines.remove(at);
        }
        lines.retain(|line| !line.starts_with("date: "));
        // The service puts a hash of the merchant before the key.
        let key = lines.iter_mut().find(|line| line.starts_with("idempotency-key: "));
        if let Some((line, (hash, key))) = key.and_then(|line| {
            line["idempotency-key: ".len()..]
                .split_once('-')
                .map(|parts| (parts.0.to_owned(), parts.1.to_owned()))
                .map(|parts| (line, parts))
        }) {
            assert!(
                hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{hash}"
            );
            *line = format!("idempotency-key: {key} of the merchant");
        }
        lines
    }
}

/// The headers that a client sends beside its credential: first those that must not reach the provider,
/// then those that must.
const SENT: [(&str, &str); 52] = [
    ("x-api-key", "canary"),
    ("api-key", "canary"),
    ("x-goog-api-key", "canary"),
    ("xi-api-key", "canary"),
    ("cookie", "canary=1"),
    ("cookie2", "canary"),
    ("x-service-metadata", "{\"user\":\"canary\"}"),
    ("connection", "X-Listed, keep-alive, content-type2"),
    ("connection", "x-listed-too"),
    ("x-listed", "canary"),
    ("X-Listed-Too", "canary"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "keep-alive"),
    ("proxy-authorization", "Basic canary"),
    ("proxy-authenticate", "canary"),
    ("proxy-anything", "canary"),
    ("te", "trailers"),
    ("trailer", "x-after"),
    ("upgrade", "h2c"),
    ("http2-settings", "AAMAAABkAARAAAAAAAIAAAAA"),
    ("forwarded", "for=10.0.0.1"),
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-host", "canary"),
    ("x-forwarded-anything", "canary"),
    ("x-real-ip", "10.0.0.1"),
    ("x-client-ip", "10.0.0.1"),
    ("true-client-ip", "10.0.0.1"),
    ("cf-connecting-ip", "10.0.0.1"),
    ("via", "1.1 canary"),
    ("openai-organization", "org-1"),
    ("openai-project", "proj-1"),
    ("x-http-method-override", "DELETE"),
    ("x-goog-user-project", "proj-2"),
    ("x-original-url", "/v1/responses"),
    ("range", "bytes=0-9"),
    ("open_ai", "canary"),
    ("x-service-anything", "canary"),
    ("idempotency-key", "i-1"),
    ("accept", "application/json"),
    ("accept-encoding", "gzip"),
    ("user-agent", "sdk/1"),
    ("x-request-id", "r-1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "congo=t61rcWkgMzE"),
    ("x-stainless-lang", "python"),
    ("x-stainless-lang", "again"),
    ("openai-beta", "assistants=v2"),
    ("anthropic-version", "2023-06-01"),
    ("referer", "https://app.example/"),
    ("origin", "https://app.example"),
    ("dnt", "1"),
    ("x-custom", "kept, as it is"),
];

/// The headers of them that reach a provider with any key.
const ARRIVE: [&str; 16] = [
    "accept-encoding: gzip",
    "accept: application/json",
    "anthropic-version: 2023-06-01",
    "content-type: application/json",
    "dnt: 1",
    "idempotency-key: i-1 of the merchant",
    "openai-beta: assistants=v2",
    "origin: https://app.example",
    "referer: https://app.example/",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate: congo=t61rcWkgMzE",
    "user-agent: sdk/1",
    "x-custom: kept, as it is",
    "x-request-id: r-1",
    "x-stainless-lang: again",
    "x-stainless-lang: python",
];

#[test]
fn exactly_these_headers_reach_the_provider() {
    each_gateway(async |gateway| {
        let managed = gateway.token(&json!({}));
        let own = gateway.token(&json!({"provider_key": "sk-own"}));
        let of_the_account = [
            "openai-organization: org-1",
            "openai-project: proj-1",
            "x-goog-user-project: proj-2",
            "x-http-method-override: DELETE",
            "x-original-url: /v1/responses",
            "range: bytes=0-9",
            "open_ai: canary",
        ];
        let (openai, anthropic) = ("/v1/chat/completions", "/anthropic/v1/messages");
        for (path, token, more) in [
            (openai, &managed, vec!["authorization: Bearer managed-provider-key"]),
            (anthropic, &managed, vec!["x-api-key: managed-provider-key"]),
            (openai, &own, [&["authorization: Bearer sk-own"][..], &of_the_account].concat()),
            (anthropic, &own, [&["x-api-key: sk-own"][..], &of_the_account].concat()),
        ] {
            let mut expected = [&ARRIVE[..], &more].concat();
            expected.sort_unstable();
            assert_eq!(gateway.arrived(path, token, &SENT).await, expected, "{path}");
        }
        // Few headers arrive when the client sends none.
        let bare = gateway.arrived(openai, &managed, &[]).await;
        let expected = [
            "accept-encoding: identity",
            "authorization: Bearer managed-provider-key",
            "content-type: application/json",
        ];
        assert_eq!(bare, expected);
    });
}

#[test]
fn a_trace_that_is_not_valid_does_not_go_on() {
    each_gateway(async |gateway| {
        let token = gateway.token(&json!({}));
        let parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let state = ("tracestate", "congo=t61rcWkgMzE");
        let broken = ("traceparent", "00-1-2-01");
        for (sent, expected) in [
            (vec![broken, state], vec![]),
            (vec![state], vec![]),
            (vec![parent, parent, state], vec![]),
            (vec![parent, ("tracestate", "novalue")], vec![parent]),
            (vec![parent, state], vec![parent, state]),
        ] {
            let mut arrived = gateway.arrived("/v1/chat/completions", &token, &sent).await;
            arrived.retain(|line| line.starts_with("trace"));
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            assert_eq!(arrived, expected, "{sent:?}");
        }
    });
}

#[test]
fn exactly_these_headers_come_back() {
    each_gateway(async |gateway| {
        let sent = [
            ("set-cookie", "canary=1; Domain=example.com"),
            ("set-cookie", "canary=2"),
            ("set-cookie2", "canary"),
            ("alt-svc", "h3=\":443\""),
            ("service-worker-allowed", "/"),
            ("nel", "{}"),
            ("report-to", "{}"),
            ("reporting-endpoints", "x=\"/\""),
            ("refresh", "0"),
            ("www-authenticate", "Basic"),
            ("public-key-pins", "canary"),
            ("content-security-policy", "default-src *"),
            ("content-security-policy-report-only", "default-src *"),
            ("strict-transport-security", "max-age=1"),
            ("clear-site-data", "\"*\""),
            ("connection", "keep-alive, X-Listed"),
            ("x-listed", "canary"),
            ("keep-alive", "timeout=5"),
            ("proxy-authenticate", "canary"),
            ("proxy-authentication-info", "canary"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("trailer", "x-after"),
            // The id of a record is set by this service only.
            ("x-service-request-id", "req_canary"),
            ("x-request-id", "r-1"),
            ("x-ratelimit-remaining-tokens", "9"),
            ("openai-processing-ms", "5"),
            ("cache-control", "no-store"),
            ("x-twice", "1"),
            ("x-twice", "2"),
            ("location", "https://elsewhere.example/"),
            ("date", "Sat, 21 Nov 2026 00:00:00 GMT"),
            ("server", "provider"),
        ];
        let reply = sent
            .into_iter()
            .fold(ScriptedResponse::json(200, chat_answer()), |reply, (name, value)| {
                reply.header(name, value)
            });
        gateway.provider.push(reply);
        let answer = gateway.chat().send().await;
        answer.expect(200);
        let record = gateway.record().await;
        let request_id =
            format!("x-service-request-id: {}", record["request_id"].as_str().unwrap());
        let length = format!("content-length: {}", chat_answer().to_string().len());
        let mut expected = vec![
            "cache-control: no-store",
            "connection: close",
            length.as_str(),
            "content-security-policy: sandbox; default-src 'none'",
            "content-type: application/json",
            "date: Sat, 21 Nov 2026 00:00:00 GMT",
            "location: https://elsewhere.example/",
            "openai-processing-ms: 5",
            "server: provider",
            "x-content-type-options: nosniff",
            "x-ratelimit-remaining-tokens: 9",
            "x-request-id: r-1",
            request_id.as_str(),
            "x-twice: 1",
            "x-twice: 2",
        ];
        expected.sort_unstable();
        assert_eq!(sorted(&answer.headers), expected);
    });
}

#[test]
fn who_pays_is_the_credentials_to_say_and_nobody_elses() {
    each_gateway(async |gateway| {
        let other = gateway.store.connection(gateway.merchant.merchant.merchant_id, "10").await;
        let claims = json!({
            "connection_id": other.connection_id.to_string(), "wallet_id": other.wallet_id.to_string(),
            "customer_id": other.connection_id.to_string(), "disable_billing": "true", "payer": "merchant",
            "meter_slug": "none", "secret_key": "none", "merchant_id": "none",
        });
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let call = gateway
            .chat()
            .header("x-service-metadata", &claims.to_string())
            .header("x-service-connection-id", &other.connection_id.to_string())
            .header("x-service-request-id", "req_chosen")
            .header("x-tollgate-wallet-id", &other.wallet_id.to_string())
            .header("x-forwarded-user", &other.connection_id.to_string())
            .header("x-original-url", "/v1/operator/merchants")
            .header("x-rewrite-url", "/v1/operator/merchants");
        let answer = call.send().await;
        answer.expect(200);
        assert_ne!(answer.header("x-service-request-id"), Some("req_chosen"));
        let record = gateway.record().await;
        assert_eq!(record["connection_id"], gateway.connection.connection_id.to_string());
        assert_eq!(record["metadata"], claims, "it is kept, and nothing more");
        assert_eq!(record["total_wallet_cost"], "0.0170000000");
        assert_eq!(gateway.wallet().await.0, "9.9830000000");
        let others = gateway.get(&format!("/wallets/{}", other.wallet_id)).await.expect(200);
        assert_eq!(others["balance"], "10.0000000000");
        // The query cannot select the payer either.
        for name in ["connection_id", "customer_id", "wallet_id", "disable_billing", "payer"] {
            let u = gateway.provider.url("/v1/chat/completions");
            let path = format!("/forward?u={u}&{name}={}", other.connection_id);
            let call = gateway.call_without_key("POST", &path).bearer(&gateway.token(&json!({})));
            let answer = call.json(&chat_body()).send().await;
            support::assert_refused(&answer, 400, "validation_failed");
        }
    });
}

/// Writes raw bytes and reads until the service closes; returns the statuses of its answers, and their text.
async fn raw(gateway: &Gateway<'_>, bytes: &[u8]) -> (Vec<u16>, String) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    // The service may answer and close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut read = Vec::new();
    let all = async { while stream.read_buf(&mut read).await.is_ok_and(|count| count > 0) {} };
    let closed = tokio::time::timeout(Duration::from_secs(10), all).await;
    let text = String::from_utf8_lossy(&read).into_owned();
    assert!(closed.is_ok(), "left open: {text}");
    let statuses = text.split("HTTP/1.1 ").skip(1);
    (statuses.map(|status| status[..3].parse().unwrap()).collect(), text)
}

/// A whole call, to be hidden behind a message with an unclear end.
fn hidden(gateway: &Gateway<'_>) -> String {
    let body = chat_body().to_string();
    format!(
        "POST /v1/forward?u={} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        gateway.provider.url("/v1/chat/completions?smuggled=1"),
        gateway.key(),
        body.len()
    )
}

#[test]
fn a_message_that_can_be_read_in_two_ways_is_400_and_ends_the_connection() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let (body, hidden) = (chat_body().to_string(), hidden(gateway));
        let (length, all) = (body.len(), body.len() + hidden.len());
        let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
        let head = |framing: &str| {
            format!(
                "POST /v1/forward?u={} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\n\
                 content-type: application/json\r\n{framing}\r\n\r\n",
                gateway.provider.url("/v1/chat/completions"),
                gateway.key()
            )
        };
        let framings = [
            // A length and chunks together.
            (format!("content-length: {length}\r\ntransfer-encoding: chunked"), &chunked),
            (format!("transfer-encoding: chunked\r\ncontent-length: {length}"), &chunked),
            (format!("content-length: {all}\r\ntransfer-encoding: chunked"), &chunked),
            ("Content-Length: 0\r\nTransfer-Encoding: chunked".to_owned(), &chunked),
            (format!("content-length: {length}\r\ntransfer-encoding: identity"), &body),
            // Two lengths, or an invalid one.
            (format!("content-length: {length}\r\ncontent-length: {all}"), &body),
            (format!("content-length: {length}\r\ncontent-length: {length}"), &body),
            (format!("content-length: {length}, {all}"), &body),
            (format!("content-length: {length}, {length}"), &body),
            (format!("content-length: +{length}"), &body),
            (format!("content-length: -{length}"), &body),
            (format!("content-length: 0x{length:x}"), &body),
            (format!("content-length: {length}.0"), &body),
            (format!("content-length: {length}e0"), &body),
            (format!("content-length: {length} {all}"), &body),
            ("content-length:".to_owned(), &body),
            ("content-length: 99999999999999999999999".to_owned(), &body),
            (format!("content-length : {length}"), &body),
            (format!("content-length\t: {length}"), &body),
            (format!("content-length\0: {length}"), &body),
            (format!("content-length: {length}\0"), &body),
            (format!(" content-length: {length}"), &body),
            (format!("x: y\r\n content-length: {length}"), &body),
            // Codings that another server may not recognize, or may recognize.
            ("transfer-encoding: chunked, chunked".to_owned(), &chunked),
            ("transfer-encoding: chunked, identity".to_owned(), &chunked),
            ("transfer-encoding: identity, chunked".to_owned(), &chunked),
            ("transfer-encoding: gzip, chunked".to_owned(), &chunked),
            ("transfer-encoding: xchunked".to_owned(), &chunked),
            ("transfer-encoding: \"chunked\"".to_owned(), &chunked),
            ("transfer-encoding: chunked;x=y".to_owned(), &chunked),
            ("transfer-encoding: \u{b}chunked".to_owned(), &chunked),
            ("transfer-encoding: chunked\u{b}".to_owned(), &chunked),
            ("transfer-encoding : chunked".to_owned(), &chunked),
            ("transfer-encoding:\r\n chunked".to_owned(), &chunked),
            ("transfer-encoding: x\r\ntransfer-encoding: chunked".to_owned(), &chunked),
            ("transfer-encoding: chunked\r\ntransfer-encoding: x".to_owned(), &chunked),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked".to_owned(), &chunked),
            ("transfer-encoding: ".to_owned(), &chunked),
            // Two hosts, or no host.
            (format!("host: other\r\ncontent-length: {length}"), &body),
        ];
        let mut cases: Vec<(String, String)> = framings
            .iter()
            .map(|(framing, body)| (framing.clone(), format!("{}{body}", head(framing))))
            .collect();
        let good = head(&format!("content-length: {length}"));
        let mut alter = |what: &str, from: &str, to: &str| {
            assert!(good.contains(from));
            cases.push((what.to_owned(), format!("{}{body}", good.replacen(from, to, 1))));
        };
        alter("no host", "host: test\r\n", "");
        alter("a header without a name", "host:", ": x\r\nhost:");
        alter("a line that is no header", "host:", "nonsense\r\nhost:");
        alter("a return alone", "content-type:", "x: y\rz: w\r\ncontent-type:");
        alter("a NUL in a value", "content-type:", "x: y\0z\r\ncontent-type:");
        alter("a space before the target", "POST /", "POST  /");
        alter(
            "an older version with chunks",
            "HTTP/1.1\r\n",
            "HTTP/1.0\r\ntransfer-encoding: chunked\r\n",
        );
        alter("a version that there is not", "HTTP/1.1", "HTTP/1.2");
        alter("a version without its minor number", "HTTP/1.1", "HTTP/2");
        alter("no version", " HTTP/1.1", "");
        let mut broken = Vec::new();
        for (what, sizes) in [
            ("a size with a prefix", format!("0x{length:x}")),
            ("a size with a sign", format!("+{length:x}")),
            ("a negative size", format!("-{length:x}")),
            ("a size beyond what is counted", format!("1{:016x}", length)),
            ("no size", String::new()),
            ("a size with a bare line feed", format!("{length:x}\n{body}\n0\n\n")),
            ("a size with another digit", format!("{length:x}g")),
            ("a size that is too small", format!("{:x}", length - 1)),
            ("an extension with a bare line feed", format!("{length:x};a\nb")),
        ] {
            let text =
                format!("{}{sizes}\r\n{body}\r\n0\r\n\r\n", head("transfer-encoding: chunked"));
            broken.push((what, text));
        }
        for (what, text) in &cases {
            let (statuses, answer) = raw(gateway, format!("{text}{hidden}").as_bytes()).await;
            assert_eq!(statuses, [400], "{what}: {answer}");
        }
        // In the middle of a body the server may also close without an answer.
        for (what, text) in &broken {
            let (statuses, answer) = raw(gateway, format!("{text}{hidden}").as_bytes()).await;
            assert!(matches!(statuses[..], [] | [400]), "{what}: {answer}");
        }
        gateway.provider.assert_calls(0);
        // A message that can be read in one way only is one call, and the next call is read, too.
        for (framing, body) in [
            (format!("content-length: {length}"), &body),
            ("transfer-encoding: chunked".to_owned(), &chunked),
        ] {
            let before = gateway.provider.calls();
            let (statuses, answer) =
                raw(gateway, format!("{}{body}{hidden}", head(&framing)).as_bytes()).await;
            assert_eq!(statuses, [200, 200], "{answer}");
            assert_eq!(gateway.provider.calls(), before + 2);
            let seen = gateway.provider.requests();
            let [.., first, second] = seen.as_slice() else { unreachable!() };
            for (seen, target) in
                [(first, "/v1/chat/completions"), (second, "/v1/chat/completions?smuggled=1")]
            {
                assert_eq!(
                    (seen.target.as_str(), seen.text()),
                    (target, chat_body().to_string().as_str())
                );
                let lengths: Vec<_> = seen
                    .headers
                    .iter()
                    .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                    .collect();
                assert_eq!(lengths.len(), 1, "what is sent is framed anew");
                assert_eq!(seen.header("transfer-encoding"), None);
            }
        }
    });
}

#[test]
fn nothing_makes_a_connection_anything_but_http() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let (body, hidden) = (chat_body().to_string(), hidden(gateway));
        let u = gateway.provider.url("/v1/chat/completions");
        let evil = |method: &str, target: &str, more: &str| {
            format!(
                "{method} {target} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\n{more}\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                gateway.key(),
                body.len()
            )
        };
        let forward = format!("/v1/forward?u={u}");
        let upgrade = |to: &str| {
            format!(
                "connection: upgrade\r\nupgrade: {to}\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            )
        };
        // An upgrade to an unknown protocol is ignored: the request is a normal call.
        let (statuses, answer) = raw(
            gateway,
            evil("POST", &forward, &(upgrade("h2c") + "connection: close\r\n")).as_bytes(),
        )
        .await;
        assert_eq!(statuses, [200], "{answer}");
        assert_eq!(gateway.provider.calls(), 1);
        let seen = gateway.provider.request();
        assert_eq!((seen.header("upgrade"), seen.header("connection")), (None, None));
        // An upgrade that would make the body endless is refused, and the bytes after it are no call.
        for method in ["POST", "GET", "PUT"] {
            let text = evil(method, &forward, &upgrade("websocket")) + &hidden;
            let (statuses, answer) = raw(gateway, text.as_bytes()).await;
            assert!(matches!(statuses[..], [400 | 405 | 426]), "{method}: {answer}");
        }
        for (method, target) in [
            ("CONNECT", "127.0.0.1:1"),
            ("CONNECT", forward.as_str()),
            ("TRACE", forward.as_str()),
            ("OPTIONS", "*"),
            ("PRI", "*"),
            ("POST", "/v1//forward"),
            ("POST", "//v1/forward"),
            ("POST", "/v1/./forward"),
            ("POST", "/v1/%66orward%2F"),
            ("POST", "/v1/forward/"),
        ] {
            let call = tollgate_testkit::TestRequest::new(gateway.address, method, target);
            let answer: TestResponse = call.bearer(gateway.key()).json(&chat_body()).send().await;
            assert!(
                [400, 404, 405].contains(&answer.status),
                "{method} {target}: {}",
                answer.text()
            );
        }
        assert_eq!(gateway.provider.calls(), 1);
    });
}
