//! Secrets, prompts and answers do not leak. Each secret is a word that occurs nowhere else. The real
//! program is driven through every path that fails. Then everything that it wrote is searched for those
//! words: its log at the finest level, the files of its folder, every table of its database, the journal,
//! its metrics, its answers, the output of its commands, and the messages to webhooks.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_testkit::{
    Gate, ScriptedProvider, ScriptedResponse, SocketEvent, TestRequest, TestResponse,
    broken_tls_url,
};

use crate::site::{ServiceProcess, Site, each_site};

const MANAGED_KEY: &str = "sk-CANARYmanaged1";
const OWN_KEY: &str = "sk-CANARYown2";
const OPERATOR_TOKEN: &str = "CANARYoperator3token-of-decent-length";
const DATABASE_PASSWORD: &str = "CANARYdatabase4";
const HEADER_KEY: &str = "CANARYheader5";
const QUERY_KEY: &str = "CANARYquery6";
const USER_INFO: &str = "CANARYuserinfo7";
const STRAY_FIELD: &str = "CANARYstray8";
const PROMPT: &str = "CANARYprompt9";
const ANSWER: &str = "CANARYanswer10";
const HOOK_URL: &str = "CANARYhookurl11";

/// A place where a word may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OutputKind {
    /// The program's standard error, and the output of its commands.
    Log,
    /// The files of the folder except the configuration (database, journal, locks), and the tables of
    /// PostgreSQL.
    Store,
    /// Answers of this service.
    Answer,
    /// The messages to webhooks.
    Message,
}

/// The words that must not occur, and the text that was written, by place and source.
#[derive(Default)]
struct LeakDetector {
    words: Vec<(String, Vec<OutputKind>)>,
    written: Mutex<BTreeMap<(OutputKind, String), Vec<u8>>>,
}

impl LeakDetector {
    fn new() -> Self {
        let everywhere = [
            MANAGED_KEY,
            OWN_KEY,
            OPERATOR_TOKEN,
            DATABASE_PASSWORD,
            HEADER_KEY,
            QUERY_KEY,
            USER_INFO,
            STRAY_FIELD,
            PROMPT,
            ANSWER,
        ];
        let mut watch = Self::default();
        everywhere.into_iter().for_each(|word| watch.forbid(word, &[]));
        // The merchant sets and reads it, and messages are sent there.
        watch.forbid(HOOK_URL, &[OutputKind::Store, OutputKind::Answer]);
        watch
    }

    /// Allows this word in these places only, from now on.
    fn forbid(&mut self, word: &str, allowed: &[OutputKind]) {
        self.words.push((word.to_owned(), allowed.to_vec()));
    }

    /// Forbids the part of a key of this service that is not in its preview.
    fn forbid_key(&mut self, key: &str) {
        self.forbid(&key[12..], &[]);
    }

    /// Forbids a part of a token.
    fn forbid_token(&mut self, token: &str) {
        self.forbid(&token[token.len() / 3..token.len() / 2], &[]);
    }

    fn record(&self, place: OutputKind, who: &str, what: &[u8]) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let all = written.entry((place, who.to_owned())).or_default();
        all.extend_from_slice(what);
        all.push(b'\n');
    }

    /// Notes an answer: its headers and its body.
    fn record_answer(&self, who: &str, answer: &TestResponse) {
        self.record(OutputKind::Answer, who, format!("{:?}", answer.headers).as_bytes());
        self.record(OutputKind::Answer, who, &answer.body);
    }

    /// Notes the output of a command.
    fn record_output(&self, who: &str, output: &Output) {
        self.record(OutputKind::Log, who, &output.stdout);
        self.record(OutputKind::Log, who, &output.stderr);
    }

    /// Notes every file below a folder, except the configuration and the log.
    fn record_files(&self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            match path.is_dir() {
                true => self.record_files(&path),
                false if name == "tollgate.toml" || name == "log" => {}
                // A file that is renamed meanwhile is found under its other name.
                false => {
                    self.record(OutputKind::Store, &name, &std::fs::read(&path).unwrap_or_default())
                }
            }
        }
    }

    /// The places where a forbidden word occurs.
    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for ((place, who), text) in &*self.written.lock().unwrap_or_else(PoisonError::into_inner) {
            for (word, allowed) in &self.words {
                let found = text.windows(word.len()).position(|window| window == word.as_bytes());
                if let Some(at) = found.filter(|_| !allowed.contains(place)) {
                    let around = &text[at.saturating_sub(120)..(at + 120).min(text.len())];
                    let around = String::from_utf8_lossy(around);
                    findings.push(format!("{word} in {place:?} of {who}: …{around}…"));
                }
            }
        }
        findings
    }

    fn count(&self, place: OutputKind) -> usize {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.keys().filter(|(found, _)| *found == place).count()
    }
}

/// The program with a scripted provider and a scripted receiver of webhooks.
struct CanarySite<'a> {
    site: &'a Site,
    watch: LeakDetector,
    provider: ScriptedProvider,
    /// The base URL of a host that answers a TLS greeting in plain text.
    untrusted: String,
    receiver: ScriptedProvider,
    log: PathBuf,
    key: String,
    merchant_id: String,
}

impl<'a> CanarySite<'a> {
    fn new(site: &'a Site) -> Self {
        let (provider, receiver) = (ScriptedProvider::start(), ScriptedProvider::start());
        let database_url = match &site.database {
            None => format!("sqlite:{}", site.path().join("tollgate.db").display()),
            Some(database) => format!("{}&password={DATABASE_PASSWORD}", database.url()),
        };
        let (plain, untrusted) = (provider.addr(), broken_tls_url());
        let config = format!(
            r#"
            listen = "127.0.0.1:0"
            database_url = "{database_url}"
            operator_token = "{OPERATOR_TOKEN}"
            # The message of a provider's error may quote the prompt.
            keep_error_messages = false
            standard_rate_per_minute = 0
            first_byte_timeout_ms = 1000
            forward_body_limit_bytes = 20000
            body_limit_bytes = 10000
            webhook_allow_http = true
            webhook_allow_private_network = true
            [providers.house]
            base_url = "http://{plain}/v1"
            dialect = "openai"
            allow_private_network = true
            api_key = "{MANAGED_KEY}"
            [providers.palace]
            base_url = "http://{plain}/google/v1beta"
            dialect = "google"
            allow_private_network = true
            api_key = "{MANAGED_KEY}"
            [providers.nobody]
            base_url = "http://127.0.0.1:1/v1"
            dialect = "openai"
            allow_private_network = true
            api_key = "{MANAGED_KEY}"
            [providers.untrusted]
            base_url = "{untrusted}"
            dialect = "openai"
            allow_private_network = true
            api_key = "{MANAGED_KEY}"
            [[prices]]
            provider = "house"
            model = "*"
            input = "1"
            output = "2"
            max_output_tokens = 1000
            [[prices]]
            provider = "palace"
            model = "*"
            input = "1"
            output = "2"
            max_output_tokens = 1000
            [[prices]]
            provider = "nobody"
            model = "*"
            input = "1"
            output = "2"
            [[prices]]
            provider = "untrusted"
            model = "*"
            input = "1"
            output = "2"
            "#
        );
        std::fs::write(site.path().join("tollgate.toml"), config).unwrap();
        let mut watch = LeakDetector::new();
        let made = site.run(&["merchant", "create", "Acme", "--json"]);
        let merchant: Value = serde_json::from_slice(&made.stdout).unwrap();
        let text = |name: &str| merchant[name].as_str().unwrap().to_owned();
        let (key, merchant_id) = (text("secret_key"), text("merchant_id"));
        watch.forbid_key(&key);
        watch.record(OutputKind::Log, "merchant create", &made.stderr);
        let log = site.path().join("log");
        Self { site, watch, provider, untrusted, receiver, log, key, merchant_id }
    }

    fn token(&mut self, more: &Value) -> String {
        let mut fields = json!({"secret_key": self.key});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let token = STANDARD.encode(fields.to_string());
        self.watch.forbid_token(&token);
        token
    }

    /// A chat call with a word in every place where a client can put one.
    fn chat(
        &self,
        node: &ServiceProcess,
        base: &str,
        credential: &str,
        stream: bool,
    ) -> TestRequest {
        let body = json!({
            "model": "m", "stream": stream, "user": PROMPT,
            "messages": [{"role": "user", "content": PROMPT}],
        });
        let u = format!("{base}/chat/completions%3Fapi_key%3D{QUERY_KEY}%26key={QUERY_KEY}");
        node.call("POST", &format!("/v1/forward?u={u}&key={QUERY_KEY}"), credential)
            .header("x-api-key", HEADER_KEY)
            .header("api-key", HEADER_KEY)
            .header("x-goog-api-key", HEADER_KEY)
            .header("cookie", HEADER_KEY)
            .header("traceparent", HEADER_KEY)
            .header("tracestate", &format!("{}={HEADER_KEY}", HEADER_KEY.to_lowercase()))
            .header("user-agent", HEADER_KEY)
            .header("proxy-authorization", HEADER_KEY)
            .json(&body)
    }

    /// Sends a call that the service refuses with this code.
    async fn assert_refused(&self, call: TestRequest, code: &str) {
        let answer = call.send().await;
        assert_eq!(answer.error(), code, "{}", answer.text());
        self.watch.record_answer(code, &answer);
    }

    /// Runs a command that may fail.
    fn run(&self, arguments: &[&str], environment: &[(&str, &str)]) {
        let mut command = self.site.command(arguments);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        self.watch.record_output(&format!("tollgate {}", arguments[0]), &output);
    }
}

fn answer() -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    })
}

fn event() -> Value {
    json!({"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "delta": {"content": ANSWER}}]})
}

/// An error of a provider that repeats the whole request.
fn echoing_error(status: u16) -> ScriptedResponse {
    let message =
        format!("Incorrect API key provided: {MANAGED_KEY}, {OWN_KEY}; you said {PROMPT}");
    ScriptedResponse::json(
        status,
        json!({"error": {"message": message, "type": "x", "code": MANAGED_KEY}}),
    )
}

/// Waits until `done`, and fails after a time limit.
async fn wait_until(what: &str, done: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Drives every behaviour of a provider, with the operator's key and the caller's own.
async fn call_the_provider(scene: &CanarySite<'_>, node: &ServiceProcess, tokens: &[String]) {
    let base = scene.provider.url("/v1");
    for token in tokens {
        for reply in [
            ScriptedResponse::json(200, answer()),
            echoing_error(400),
            echoing_error(401),
            echoing_error(429),
            echoing_error(500),
        ] {
            scene.provider.push(reply);
            // The provider's answer is passed on unchanged, with any content.
            assert_ne!(scene.chat(node, &base, token, false).send().await.status, 502);
        }
        let whole = ScriptedResponse::events([event().to_string(), "[DONE]".to_owned()]);
        let error = ScriptedResponse::events([
            event().to_string(),
            json!({"error": {"message": PROMPT}}).to_string(),
        ]);
        let unreadable = ScriptedResponse::events([format!("{{{ANSWER}"), "[DONE]".to_owned()]);
        for reply in [whole.clone(), whole.cut(), error, unreadable] {
            scene.provider.push(reply);
            scene.chat(node, &base, token, true).send().await;
        }
        scene.provider.push(ScriptedResponse::json(200, answer()).cut_at(60));
        assert!(!scene.chat(node, &base, token, false).send().await.complete);
        scene.provider.push(ScriptedResponse::hang_up());
        scene.assert_refused(scene.chat(node, &base, token, false), "provider_unreachable").await;
        scene.provider.push(ScriptedResponse::silence());
        scene.assert_refused(scene.chat(node, &base, token, false), "provider_timeout").await;
        let nobody = scene.chat(node, "http://127.0.0.1:1/v1", token, false);
        scene.assert_refused(nobody, "provider_unreachable").await;
        let untrusted = scene.chat(node, &scene.untrusted, token, true);
        scene.assert_refused(untrusted, "provider_unreachable").await;
    }
    let asked = scene.provider.requests().into_iter();
    let asked: String = asked.map(|one| format!("{:?} {}", one.headers, one.text())).collect();
    assert!(asked.contains(MANAGED_KEY) && asked.contains(OWN_KEY) && asked.contains(PROMPT));
}

/// Opens a conversation of OpenAI's and one of Google's, whose providers repeat all that they have, with the operator's
/// key and the caller's own.
async fn converse_over_sockets(scene: &CanarySite<'_>, node: &ServiceProcess, tokens: &[String]) {
    let said = format!("{ANSWER} {PROMPT} {MANAGED_KEY} {OWN_KEY}");
    let realtime = (
        "/v1/realtime%3Fmodel%3Dm",
        vec![json!({"type": "response.create", "response": {"instructions": PROMPT}})],
        vec![
            json!({"type": "session.created", "session": {"model": "m", "instructions": said}}),
            json!({"type": "response.created", "response": {"id": "resp_1"}}),
            json!({"type": "error", "error": {"message": said, "code": MANAGED_KEY}}),
            json!({"type": "response.done", "response": {"id": "resp_1", "status": "failed",
                "status_details": {"error": {"code": said}}}}),
        ],
        json!({"type": "session.update", "session": {"model": PROMPT}}),
    );
    let live = (
        "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent",
        vec![
            json!({"setup": {"model": "models/m", "systemInstruction": {"parts": [{"text": PROMPT}]}}}),
            json!({"clientContent": {"turns": [{"parts": [{"text": PROMPT}]}], "turnComplete": true}}),
        ],
        vec![
            json!({"setupComplete": {"sessionId": said}}),
            json!({"serverContent": {"modelTurn": {"parts": [{"text": said}]}}}),
            json!({"serverContent": {"turnComplete": true}, "usageMetadata": {"promptTokenCount": 9}}),
        ],
        json!({"setup": {"model": PROMPT}}),
    );
    for (number, token) in tokens.iter().enumerate() {
        for (path, asked, answers, refused) in [&realtime, &live] {
            // The first one is with the operator's key. A key that is not sent is not blanked.
            let assert_blank =
                |text: &str| assert!(number > 0 || !text.contains(MANAGED_KEY), "{text}");
            let url = scene.provider.url(path).replace("http", "ws");
            let call = node.call("GET", &format!("/v1/forward?u={url}"), token);
            let (mut client, head) = call.open_socket().await.unwrap();
            scene.watch.record_answer("the upgrade", &head);
            let mut provider = scene.provider.socket().await;
            for message in asked {
                client.send(message).await;
                provider.text().await;
            }
            for message in answers {
                provider.send(message).await;
                assert_blank(&client.text().await);
            }
            client.send(refused).await;
            match client.next().await {
                SocketEvent::Text(text) => {
                    scene.watch.record(OutputKind::Answer, "a refusal", text.as_bytes());
                    provider.close(4000, &said).await;
                    assert_blank(&client.closed().await.1);
                }
                // Google's protocol has no message of an error. The socket closes.
                SocketEvent::Closed(Some((_, reason))) => {
                    scene.watch.record(OutputKind::Answer, "a refusal", reason.as_bytes());
                }
                other => unreachable!("{path}: {other:?}"),
            }
        }
    }
}

/// Opens WebSockets whose provider repeats all that it has, with the operator's key and the caller's own.
async fn call_over_sockets(scene: &CanarySite<'_>, node: &ServiceProcess, tokens: &[String]) {
    converse_over_sockets(scene, node, tokens).await;
    let base = scene.provider.url("/v1/responses").replace("http", "ws");
    let create =
        json!({"type": "response.create", "model": "m", "input": PROMPT, "max_output_tokens": 9});
    for (number, token) in tokens.iter().enumerate() {
        // The first one is with the operator's key. A key that is not sent is not blanked.
        let assert_blank =
            |text: &str| assert!(number > 0 || !text.contains(MANAGED_KEY), "{text}");
        let path = format!("/v1/forward?u={base}%3Fapi_key%3D{QUERY_KEY}&key={QUERY_KEY}");
        let protocols = format!("v1, openai-insecure-api-key.{HEADER_KEY}");
        let call = node
            .call("GET", &path, token)
            .header("x-api-key", HEADER_KEY)
            .header("cookie", HEADER_KEY)
            .header("sec-websocket-protocol", &protocols);
        let (mut client, head) = call.open_socket().await.unwrap();
        scene.watch.record_answer("the upgrade", &head);
        let mut provider = scene.provider.socket().await;
        // What is refused is answered by this service.
        for refused in [PROMPT.to_owned(), json!({"type": PROMPT, "input": PROMPT}).to_string()] {
            client.send_text(&refused).await;
            scene.watch.record(OutputKind::Answer, "a refusal", client.text().await.as_bytes());
        }
        client.send(&create).await;
        provider.text().await;
        let said = format!("{ANSWER} {PROMPT} {MANAGED_KEY} {OWN_KEY}");
        for message in [
            json!({"type": "response.created", "response": {"id": "resp_1", "model": "m"}}),
            json!({"type": "response.output_text.delta", "delta": said}),
            json!({"type": "error", "error": {"message": said, "code": MANAGED_KEY}}),
        ] {
            provider.send(&message).await;
            assert_blank(&client.text().await);
        }
        // An error in place of a response, one that is cut, and bytes that are no frames.
        client.send(&create).await;
        provider.text().await;
        provider
            .send(&json!({"type": "error", "status": 401, "error": {"message": said, "code": "x"}}))
            .await;
        assert_blank(&client.text().await);
        client.send(&create).await;
        provider.text().await;
        provider.close(4000, &said).await;
        assert_blank(&client.closed().await.1);
    }
}

/// Makes every error that a client can make.
async fn provoke_errors(scene: &mut CanarySite<'_>, node: &ServiceProcess, token: &str) {
    let house = scene.provider.url("/v1");
    let u = format!("{house}/chat/completions");
    let forward = |u: &str| {
        let path = format!("/v1/forward?u={u}");
        node.call("POST", &path, token).json(&json!({"model": "m", "messages": [], "user": PROMPT}))
    };
    let stray = scene.token(&json!({"a": STRAY_FIELD, "provider_key": format!("{OWN_KEY} x")}));
    let scene = &*scene;
    let chat = |credential: &str| scene.chat(node, &house, credential, false);
    scene.assert_refused(chat(&stray), "forward_token_json_invalid").await;
    let no_json = STANDARD.encode(format!("{{\"secret_key\": \"{}\", {STRAY_FIELD}", scene.key));
    scene.assert_refused(chat(&no_json), "forward_token_json_invalid").await;
    scene.assert_refused(chat(&format!("tgs_{STRAY_FIELD}")), "auth_invalid").await;
    scene.assert_refused(chat(&format!("tgk_{STRAY_FIELD}")), "auth_invalid").await;
    let hidden = format!("https://{USER_INFO}:{USER_INFO}@api.openai.com/v1/chat/completions");
    let unlisted = format!("{house}/uploads?token={QUERY_KEY}");
    let elsewhere = format!("https://evil.example/{QUERY_KEY}/x?access_token={QUERY_KEY}");
    for u in [hidden, unlisted, elsewhere, format!("{house}/chat/completions%23{QUERY_KEY}")] {
        scene
            .assert_refused(forward(&u.replace('&', "%26")), "forward_endpoint_not_supported")
            .await;
    }
    scene.assert_refused(forward(&format!("{u}&api_key={QUERY_KEY}")), "validation_failed").await;
    let metadata =
        forward(&u).header("x-service-metadata", &format!("{{\"a-b\": \"{STRAY_FIELD}\""));
    scene.assert_refused(metadata, "metadata_invalid").await;
    let large = PROMPT.repeat(3_000);
    scene
        .assert_refused(forward(&u).json(&json!({"model": "m", "x": large})), "body_too_large")
        .await;
    let broken = format!("{{\"model\": \"m\", \"messages\": \"{PROMPT}");
    let broken = forward(&u).bytes("application/json", broken.as_bytes());
    scene.assert_refused(broken, "forward_token_json_invalid").await;
    let twice = format!("{{\"model\": \"m\", \"user\": \"{PROMPT}\", \"model\": \"{PROMPT}\"}}");
    let twice = forward(&u).bytes("application/json", twice.as_bytes());
    scene.assert_refused(twice, "forward_token_json_invalid").await;
    let missing = format!("tgs_{}", "0".repeat(38));
    let own = |method: &str, path: &str, key: &str| node.call(method, path, key);
    scene.assert_refused(own("GET", "/v1/wallet", &missing), "auth_invalid").await;
    scene.assert_refused(own("GET", "/v1/wallet", OPERATOR_TOKEN), "auth_invalid").await;
    scene.assert_refused(own("GET", "/v1/operator/merchants", &scene.key), "auth_invalid").await;
    let body = |text: String| {
        own("POST", "/v1/spend_keys", &scene.key).bytes("application/json", text.as_bytes())
    };
    scene.assert_refused(body(format!("{{\"name\": \"{STRAY_FIELD}")), "json_invalid").await;
    scene
        .assert_refused(
            body(format!("{{\"name\": 5, \"key\": \"{STRAY_FIELD}\"}}")),
            "validation_failed",
        )
        .await;
    scene.assert_refused(body(STRAY_FIELD.repeat(2_000)), "body_too_large").await;
    let nowhere = own("GET", &format!("/v1/wallet?key={QUERY_KEY}"), "");
    scene.assert_refused(nowhere, "auth_header_missing").await;
    let route = own("GET", &format!("/v1/nothing?key={QUERY_KEY}"), &scene.key);
    scene.assert_refused(route, "route_not_found").await;
}

/// Creates one of each resource that has a secret, twice with its idempotency key, and forbids the
/// secrets. Returns forward tokens and the path of a webhook.
async fn create_secrets(
    scene: &mut CanarySite<'_>,
    node: &ServiceProcess,
) -> (Vec<String>, String) {
    let key = scene.key.clone();
    let hook = scene.receiver.url(&format!("/hooks?token={HOOK_URL}"));
    let events = json!(["request.completed", "request.failed", "connection.created"]);
    let connection = node.call("POST", "/v1/connections", &key).json(&json!({}));
    let connection = connection.send().await.expect(201);
    let meter = json!({"name": "Plan", "rate_type": "fixed", "tier_type": "requests", "tiers": [{"start": "0", "rate": "0"}]});
    let meter = node.call("POST", "/v1/meters", &key).json(&meter).send().await.expect(201);
    let credits = format!("/v1/wallets/{}/credits", connection["wallet_id"].as_str().unwrap());
    node.call("POST", &credits, &key).json(&json!({"amount": "10"})).send().await.expect(201);
    let operator = OPERATOR_TOKEN;
    let mut made = Vec::new();
    for (path, credential, body, secret) in [
        ("/v1/spend_keys", key.as_str(), json!({"name": "Key"}), "key"),
        ("/v1/secret_keys", &key, json!({"name": "Key"}), "secret_key"),
        (
            "/v1/webhooks",
            &key,
            json!({"name": "Hook", "url": hook, "events": events}),
            "webhook_secret",
        ),
        ("/v1/operator/merchants", operator, json!({"name": "Other"}), "secret_key"),
    ] {
        let call = node.call("POST", path, credential).header("idempotency-key", path).json(&body);
        let first = call.send().await.expect(201);
        let secret = first[secret].as_str().unwrap().to_owned();
        match secret.strip_prefix("whsec_") {
            // The store needs it to sign messages.
            Some(secret) => scene.watch.forbid(secret, &[OutputKind::Store]),
            None => scene.watch.forbid_key(&secret),
        }
        scene.watch.record_answer("again", &call.send().await);
        made.push((first, secret));
    }
    let (spend_key, old) = &made[0];
    let rotate = format!("/v1/spend_keys/{}/rotate", spend_key["spend_key_id"].as_str().unwrap());
    let rotated = node.call("POST", &rotate, &key).json(&json!({})).send().await.expect(200);
    let new = rotated["key"].as_str().unwrap().to_owned();
    assert_ne!(&new, old);
    scene.watch.forbid_key(&new);
    let whose =
        json!({"connection_id": connection["connection_id"], "meter_slug": meter["meter_slug"]});
    let managed = scene.token(&whose);
    let own = scene.token(&json!({"provider_key": OWN_KEY}));
    let webhook = format!("/v1/webhooks/{}", made[2].0["webhook_id"].as_str().unwrap());
    (vec![managed, own, new], webhook)
}

/// Makes the store fail before a call is admitted, and before one is settled, whose settlement then
/// waits in the journal.
async fn lose_the_store(scene: &CanarySite<'_>, node: &ServiceProcess, token: &str) {
    let Some(database) = &scene.site.database else { return };
    let base = scene.provider.url("/v1");
    let gate = Gate::new();
    scene.provider.push(ScriptedResponse::json(200, answer()).gate(&gate));
    let call = scene.chat(node, &base, token, false);
    let call = tokio::spawn(async move { call.send().await });
    gate.wait_for_arrivals(1).await;
    database.execute("ALTER TABLE requests RENAME TO away");
    gate.open();
    call.await.unwrap();
    let journal = scene.site.path().join("tollgate-journal");
    let entries = || std::fs::read_dir(&journal).map_or(0, Iterator::count);
    wait_until("the settlement is in the journal", async || entries() > 0).await;
    scene.watch.record_files(&journal);
    scene.assert_refused(scene.chat(node, &base, token, false), "internal_error").await;
    scene.assert_refused(node.call("GET", "/v1/requests", &scene.key), "internal_error").await;
    database.execute("ALTER TABLE away RENAME TO requests");
    wait_until("the journal is booked", async || entries() == 0).await;
}

/// Fails if a word occurs in any row of any table. Byte strings are also searched as hexadecimal digits.
fn search_tables(site: &Site, words: &[(String, Vec<OutputKind>)]) {
    let Some(database) = &site.database else { return };
    for (word, allowed) in words.iter().filter(|(_, allowed)| !allowed.contains(&OutputKind::Store))
    {
        assert!(allowed.is_empty() && word.chars().all(|c| c != '\''));
        database.execute(&format!(
            "DO $$ DECLARE found RECORD; hits BIGINT; BEGIN
               FOR found IN SELECT table_name AS name FROM information_schema.tables
                            WHERE table_schema = 'public' LOOP
                 EXECUTE format('SELECT count(*) FROM %I AS one WHERE position($1 IN one::text) > 0
                                 OR position($2 IN one::text) > 0', found.name)
                   INTO hits USING '{word}', encode('{word}', 'hex');
                 ASSERT hits = 0, format('{word} stands in %s', found.name);
               END LOOP;
             END $$"
        ));
    }
    // Checks the search itself, with a word that does occur.
    database.execute(
        "DO $$ DECLARE hits BIGINT; BEGIN
           SELECT count(*) INTO hits FROM webhooks AS one WHERE position('CANARYhookurl11' IN one::text) > 0;
           ASSERT hits = 1, 'the webhook is found';
         END $$",
    );
}

#[test]
fn no_secret_prompt_or_answer_is_found_in_what_the_program_writes() {
    each_site(async |site| {
        let mut scene = CanarySite::new(site);
        let log_format = if site.database.is_some() { "json" } else { "text" };
        let logging = [("TOLLGATE_LOG_FORMAT", log_format), ("TOLLGATE_ACCESS_LOG", "true")];
        let mut node = site.serve_logging_to(&scene.log, &logging);
        scene.receiver.push(ScriptedResponse::hang_up());
        scene.receiver.push(ScriptedResponse::bytes(500, "text/plain", "not today"));
        scene.receiver.push_always(ScriptedResponse::json(200, "{}"));

        let (tokens, webhook) = create_secrets(&mut scene, &node).await;
        call_the_provider(&scene, &node, &tokens[..2]).await;
        call_over_sockets(&scene, &node, &tokens[..2]).await;
        provoke_errors(&mut scene, &node, &tokens[0]).await;
        lose_the_store(&scene, &node, &tokens[0]).await;
        // A key may also be in another header, or in the query.
        scene.provider.push_always(ScriptedResponse::json(200, answer()));
        let u = scene.provider.url("/v1/chat/completions");
        let body = json!({"model": "house/m", "messages": [{"role": "user", "content": PROMPT}]});
        for (header, credential) in
            ["x-api-key", "x-goog-api-key", "xi-api-key"].iter().zip(&tokens)
        {
            let call = TestRequest::new(node.address, "POST", &format!("/v1/forward?u={u}"));
            call.header(header, credential).json(&body).send().await.expect(200);
        }
        let in_query = format!("/v1/forward?u={u}&key={}", tokens[2]);
        TestRequest::new(node.address, "POST", &in_query).json(&body).send().await.expect(200);
        node.call("POST", "/v1/chat/completions", &tokens[2]).json(&body).send().await.expect(200);

        for path in [
            "/metrics",
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/v1/requests?limit=100",
            "/v1/spend_keys",
            "/v1/secret_keys",
            "/v1/webhooks",
            "/v1/connections",
            "/v1/meters",
            "/v1/usage",
            "/v1/wallet",
            "/v1/prices",
            "/v1/models",
            &format!("{webhook}/deliveries?limit=100"),
        ] {
            let answer = node.call("GET", path, &scene.key).send().await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            scene.watch.record_answer(path, &answer);
        }
        let records = node.call("GET", "/v1/requests?limit=100", &scene.key).send().await;
        let count = records.expect(200)["data"].as_array().unwrap().len();
        assert!(count >= 25, "{count}");
        // Not all messages: two attempts have failed, and the deliveries after them wait for a long time.
        wait_until("webhooks were told of calls", async || scene.receiver.calls() >= 10).await;
        for message in scene.receiver.requests() {
            scene.watch.record(
                OutputKind::Message,
                "receiver",
                format!("{:?}", message.headers).as_bytes(),
            );
            scene.watch.record(OutputKind::Message, "receiver", &message.body);
        }

        let body_file = site.path().join("tollgate.toml").with_file_name("body.json");
        let quoted =
            json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        std::fs::write(&body_file, quoted.to_string()).unwrap();
        let dead = format!(
            "postgres://{USER_INFO}:{DATABASE_PASSWORD}@127.0.0.1:1/db?sslpassword={DATABASE_PASSWORD}"
        );
        let odd = format!("postgres://{USER_INFO}:a?{DATABASE_PASSWORD}@127.0.0.1:1/db");
        let slashed = format!("postgres://{USER_INFO}:a/{DATABASE_PASSWORD}@127.0.0.1:1/db");
        let unknown = format!("mysql://{USER_INFO}:{DATABASE_PASSWORD}@127.0.0.1/db");
        for url in [dead, odd, slashed, unknown] {
            for command in [&["config", "check"][..], &["audit"], &["serve"], &["migrate"]] {
                scene.run(command, &[("TOLLGATE_DATABASE_URL", &url)]);
            }
        }
        scene.run(&["config", "check"], &[("TOLLGATE_OPERATOR_TOKEN", OPERATOR_TOKEN)]);
        scene.run(
            &["config", "check"],
            &[("TOLLGATE_PROVIDERS__HOUSE__API_KEY", &format!("{MANAGED_KEY} x"))],
        );
        scene.run(
            &["config", "check"],
            &[("TOLLGATE_PROVIDERS__HOUSE__BASE_URL", &format!("https://{USER_INFO}@x.example/"))],
        );
        let url = format!("{u}?api_key={QUERY_KEY}");
        scene.run(&["quote", "--url", &url, "--body", body_file.to_str().unwrap()], &[]);
        scene.run(&["audit", "--json"], &[]);
        scene.run(&["prices", "list"], &[]);
        scene.run(&["key", "list", "--merchant", &scene.merchant_id], &[]);
        let config = site.path().join("tollgate.toml");
        let good = std::fs::read_to_string(&config).unwrap();
        // A missing quote is an error that may show the key.
        std::fs::write(&config, good.replace(&format!("{MANAGED_KEY}\""), MANAGED_KEY)).unwrap();
        scene.run(&["config", "check"], &[]);
        std::fs::write(&config, good.replace("api_key = \"", "api_key = ")).unwrap();
        scene.run(&["serve"], &[]);
        std::fs::write(&config, good).unwrap();

        scene.watch.record_files(site.path());
        node.signal("-TERM");
        assert_eq!(node.exit_code(), Some(0));
        scene.watch.record_files(site.path());
        let log = std::fs::read(&scene.log).unwrap();
        assert!(log.len() > 10_000, "everybody logs what there is to log");
        let lines = String::from_utf8_lossy(&log).matches("tollgate::access").count();
        assert!(lines > 50, "each request has its line: {lines}");
        scene.watch.record(OutputKind::Log, "serve", &log);
        let findings = scene.watch.findings();
        assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
        search_tables(site, &scene.watch.words);
        assert!(
            scene.watch.count(OutputKind::Answer) > 20 && scene.watch.count(OutputKind::Log) > 6
        );
    });
}
