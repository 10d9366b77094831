//! The cost of a call in its answer: the record's own figure, at a place where it changes nothing else.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of tests fails by panicking"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tollgate_gateway::UnpricedPolicy;
use tollgate_testkit::random::seeds;
use tollgate_testkit::{ScriptedResponse, TestRequest, TestResponse};

use crate::support::{
    self, Gateway, assert_issues, chat_answer, chat_body, each_gateway,
    each_gateway_at_real_prices_under, settings, text, with,
};

const REPORT: &str = "x-service-report";
const COST: &str = "x-service-cost";
const WALLET_COST: &str = "x-service-wallet-cost";
const REMAINING: &str = "x-service-remaining";

/// The comment in a stream of events, and the stream without it.
fn without_comment(body: &[u8]) -> (Option<Value>, Vec<u8>) {
    let start = body.windows(12).position(|window| window == b": service {\"");
    let Some(start) = start else { return (None, body.to_vec()) };
    let (before, comment) = body.split_at(start);
    let length = comment.iter().position(|byte| *byte == b'\n').unwrap();
    let json = serde_json::from_slice(&comment[": service ".len()..length]).unwrap();
    // The blank line after it is its own if it stands between two events.
    let ends: [&[u8]; 4] = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"];
    let is_between = start == 0 || ends.iter().any(|end| before.ends_with(end));
    let after = &comment[length + if is_between { 2 } else { 1 }..];
    (Some(json), [before, after].concat())
}

/// The reported cost of an answer, wherever it is: request, wallet, remaining.
fn reported(answer: &TestResponse) -> Option<[Option<String>; 3]> {
    let names = [COST, WALLET_COST, REMAINING];
    let of = |fields: &[(String, String)], name: &str| {
        fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    let places = [&answer.headers, &answer.trailers];
    if let Some(place) = places.into_iter().find(|place| of(place, COST).is_some()) {
        return Some(names.map(|name| of(place, name)));
    }
    let (comment, _) = without_comment(&answer.body);
    let comment = comment?;
    let names = ["total_request_cost", "total_wallet_cost", "remaining"];
    Some(names.map(|name| comment[name].as_str().map(str::to_owned)))
}

fn events(usage: &Value) -> Vec<String> {
    let delta = json!({"id": "c-1", "model": "m-1", "choices": [{"delta": {"content": "Hi"}}]});
    let last = json!({"id": "c-1", "model": "m-1", "choices": [], "usage": usage});
    vec![delta.to_string(), last.to_string(), "[DONE]".to_owned()]
}

fn stream_body() -> Value {
    with(chat_body(), &json!({"stream": true, "stream_options": {"include_usage": true}}))
}

#[test]
fn the_head_of_an_answer_has_the_cost_and_the_body_is_as_it_was() {
    each_gateway(async |gateway| {
        for reply in [
            ScriptedResponse::json(200, chat_answer()),
            ScriptedResponse::json(200, chat_answer()).chunked_every(7),
            ScriptedResponse::json(429, json!({"error": {"message": "later"}})),
            ScriptedResponse::bytes(200, "application/json", Vec::new()),
        ] {
            gateway.provider.push(reply.clone());
            let plain = gateway.chat().send().await;
            assert_eq!(reported(&plain), None);
            gateway.provider.push(reply);
            let answer = gateway.chat().header(REPORT, "cost").send().await;
            assert_eq!((answer.status, &answer.body), (plain.status, &plain.body));
            assert!(answer.complete);
            let record = gateway.records().await.remove(0);
            let wallet = gateway.get(&format!("/wallets/{}", gateway.connection.wallet_id)).await;
            let wallet = wallet.expect(200);
            let expected = [
                Some(text(&record, "total_request_cost")),
                Some(text(&record, "total_wallet_cost")),
                Some(text(&wallet, "available")),
            ];
            assert_eq!(reported(&answer), Some(expected));
        }
    });
}

#[test]
fn what_is_left_is_the_least_of_all_limits() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let wallet_id = gateway.connection.wallet_id.to_string();
        for (fields, expected) in [
            // The call costs 0.002 USD. The merchant's own wallet has no limit.
            (json!({}), None),
            (json!({"spend_limit": {"amount": "1", "cycle": "daily"}}), Some("0.9980000000")),
            (
                json!({"wallet_id": wallet_id, "spend_limit": {"amount": "1", "cycle": "total"}}),
                Some("0.9980000000"),
            ),
            (
                json!({"wallet_id": wallet_id, "spend_limit": {"amount": "20", "cycle": "total"}}),
                Some("9.9960000000"),
            ),
        ] {
            let key = gateway.spend_key(&with(fields.clone(), &json!({"report": "cost"}))).await;
            let answer = gateway.call_without_key("POST", "/chat/completions").bearer(&key.key);
            let answer = answer.json(&chat_body()).send().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header(REMAINING), expected, "{fields}");
            assert_eq!(answer.header(COST), Some("0.0020000000"));
        }
    });
}

#[test]
fn the_spend_key_or_the_customer_can_ask_for_it_and_end_that() {
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let wallet_id = gateway.connection.wallet_id.to_string();
        let key = gateway.spend_key(&json!({"wallet_id": wallet_id})).await;
        assert_eq!(key.made["report"], Value::Null);
        let by_key = async || {
            let call = gateway.call_without_key("POST", "/chat/completions").bearer(&key.key);
            call.json(&chat_body()).send().await.header(COST).is_some()
        };
        let by_token = async || gateway.chat().send().await.header(COST).is_some();
        assert_eq!([by_key().await, by_token().await], [false, false]);
        let changed = gateway.put(&key.path, &json!({"report": "cost"})).await.expect(200);
        assert_eq!(changed["report"], "cost");
        assert_eq!([by_key().await, by_token().await], [true, false]);
        gateway.put(&key.path, &json!({"report": null})).await.expect(200);
        let customer = format!("/connections/{}", gateway.connection.connection_id);
        let changed = gateway.patch(&customer, &json!({"report": "cost"})).await.expect(200);
        assert_eq!(changed["report"], "cost");
        assert_eq!([by_key().await, by_token().await], [true, true]);
        gateway.patch(&customer, &json!({"report": null})).await.expect(200);
        assert_eq!([by_key().await, by_token().await], [false, false]);
        let made = gateway.post("/connections", &json!({"report": "cost"})).await.expect(201);
        assert_eq!(made["report"], "cost");
    });
}

#[test]
fn nothing_but_cost_is_a_report() {
    each_gateway(async |gateway| {
        for value in ["", "costs", "Cost", "cost, cost"] {
            let answer = gateway.chat().header(REPORT, value).send().await;
            assert_issues(&answer, &[REPORT]);
        }
        let twice = gateway.chat().header(REPORT, "cost").header(REPORT, "cost").send().await;
        assert_issues(&twice, &[REPORT]);
        assert_issues(&gateway.post("/connections", &json!({"report": "all"})).await, &["report"]);
        gateway.provider.assert_calls(0);
    });
}

#[test]
fn a_call_without_an_answer_has_its_cost_too() {
    each_gateway(async |gateway| {
        let call = gateway.forward_to(&gateway.nobody).bearer(&gateway.token(&json!({})));
        let answer = call.json(&chat_body()).header(REPORT, "cost").send().await;
        support::assert_refused(&answer, 502, "provider_unreachable");
        assert_eq!(answer.header(COST), Some("0.0000000000"));
        gateway.provider.push(ScriptedResponse::hang_up());
        let answer = gateway.chat().header(REPORT, "cost").send().await;
        let record = gateway.records().await.remove(0);
        assert_eq!(answer.header(COST), record["total_request_cost"].as_str());
    });
}

#[test]
fn a_comment_comes_before_the_event_that_ends_a_stream() {
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 500});
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::events(events(&usage)));
        let call = gateway.forward("/v1/chat/completions").json(&stream_body());
        let answer = call.header(REPORT, "cost").send().await;
        let record = gateway.record().await;
        let comment = json!({
            "request_id": record["request_id"],
            "total_request_cost": record["total_request_cost"],
            "total_wallet_cost": record["total_wallet_cost"],
            "remaining": gateway.wallet().await.0,
        });
        let (found, _) = without_comment(&answer.body);
        assert_eq!(found, Some(comment));
        let end = answer.text().rsplit_once(": service ").unwrap().1;
        assert!(end.ends_with("}\n\ndata: [DONE]\n\n"), "{end}");
        assert_eq!(answer.header(COST), None);
    });
}

#[test]
fn a_stream_that_is_compressed_has_trailers_for_a_client_that_takes_them() {
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 500});
    let plain: String = events(&usage).iter().map(|data| format!("data: {data}\n\n")).collect();
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(plain.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    each_gateway(async |gateway| {
        for takes_trailers in [true, false] {
            let reply = ScriptedResponse::bytes(200, "text/event-stream", Vec::new());
            gateway.provider.push(reply.encoded("gzip", packed.clone()).chunked_every(5));
            let call = gateway.forward("/v1/chat/completions").json(&stream_body());
            let call = call.header("accept-encoding", "gzip").header(REPORT, "cost");
            let call = if takes_trailers { call.header("te", "trailers") } else { call };
            let answer = call.send().await;
            assert!(answer.complete && answer.body == packed);
            let record = gateway.records().await.remove(0);
            let cost = takes_trailers.then(|| text(&record, "total_request_cost"));
            assert_eq!(reported(&answer).and_then(|[cost, ..]| cost), cost);
            assert_eq!(answer.header("trailer").is_some(), takes_trailers);
        }
    });
}

#[test]
fn the_answer_decides_on_the_place_and_not_the_request() {
    let usage = json!({"prompt_tokens": 1000, "completion_tokens": 500});
    let open_end = events(&usage).into_iter().map(|data| format!("data: {data}\n\n"));
    let open_end = open_end.collect::<String>().trim_end().to_owned();
    let sse = "text/event-stream";
    each_gateway(async |gateway| {
        let error = json!({"error": {"message": "later", "type": "rate_limit"}});
        for (reply, place) in [
            (ScriptedResponse::json(429, &error), "headers"),
            (ScriptedResponse::json(200, chat_answer()), "headers"),
            (
                ScriptedResponse::events(events(&usage)).header("content-encoding", "identity"),
                "comment",
            ),
            // The last line has no end.
            (ScriptedResponse::bytes(200, sse, open_end.as_bytes()), "comment"),
        ] {
            gateway.provider.push(reply);
            let call = gateway.forward("/v1/chat/completions").json(&stream_body());
            let answer = call.header(REPORT, "cost").header("te", "trailers").send().await;
            let record = gateway.records().await.remove(0);
            let cost = reported(&answer).and_then(|[cost, ..]| cost);
            assert_eq!(cost.as_deref(), record["total_request_cost"].as_str(), "{place}");
            let found = match without_comment(&answer.body).0 {
                Some(_) => "comment",
                None if answer.header(COST).is_some() => "headers",
                None => "trailers",
            };
            assert_eq!(found, place);
        }
    });
}

#[test]
fn a_provider_cannot_name_the_cost() {
    each_gateway(async |gateway| {
        let claims = |reply: ScriptedResponse| reply.header(COST, "99").header(REMAINING, "77");
        for report in [false, true] {
            gateway.provider.push(claims(ScriptedResponse::json(200, chat_answer())));
            let call = gateway.call("POST", "/chat/completions").json(&chat_body());
            let call = if report { call.header(REPORT, "cost") } else { call };
            let answer = call.send().await;
            assert_eq!(answer.header(COST), report.then_some("0.0020000000"));
            assert_eq!(answer.header(REMAINING), None);
        }
    });
}

#[test]
fn an_answer_in_many_small_pieces_does_not_wait_for_ever() {
    let answer = with(chat_answer(), &json!({"padding": "x".repeat(200_000)})).to_string();
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, &answer).chunked_every(1));
        let found = gateway.chat().header(REPORT, "cost").send().await;
        assert!(found.complete && found.body == answer.as_bytes());
        assert_eq!(reported(&found), None);
        assert_eq!(gateway.record().await["status"], "completed");
    });
}

#[test]
fn an_answer_that_is_too_large_to_wait_passes_without_its_cost() {
    let answer = with(chat_answer(), &json!({"padding": "x".repeat(9 * 1024 * 1024)})).to_string();
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, &answer));
        let found = gateway.chat().header(REPORT, "cost").send().await;
        assert!(found.complete && found.body == answer.as_bytes());
        assert_eq!(reported(&found), None);
        assert_eq!(gateway.record().await["total_request_cost"], "0.0170000000");
    });
}

/// A recorded answer of a provider.
struct RecordedAnswer {
    file: PathBuf,
    expected: Value,
    content_type: String,
    body: Vec<u8>,
}

impl RecordedAnswer {
    /// Every recorded answer.
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../provider/tests/golden");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|path| !path.to_string_lossy().ends_with(".expected.json")).collect();
        files.sort();
        let read = |file: PathBuf| {
            let expected = fs::read(file.with_extension("expected.json")).unwrap();
            let expected: Value = serde_json::from_slice(&expected).unwrap();
            let by_ending = match file.extension().unwrap().to_str().unwrap() {
                "sse" => "text/event-stream; charset=utf-8",
                "frames" => "application/vnd.amazon.eventstream",
                _ => "application/json",
            };
            let content_type = expected["content_type"].as_str().unwrap_or(by_ending).to_owned();
            Self { content_type, body: fs::read(&file).unwrap(), file, expected }
        };
        files.into_iter().map(read).collect()
    }

    fn name(&self) -> &str {
        self.file.file_stem().unwrap().to_str().unwrap()
    }

    /// A call whose answer it is, by the provider's name.
    fn call(&self, gateway: &Gateway<'_>) -> TestRequest {
        let provider = self.name().split('_').next().unwrap();
        let path = match self.expected["url"].as_str() {
            Some(url) => url::Url::parse(url).unwrap().path().to_owned(),
            None => self.expected["path"].as_str().unwrap_or_default().to_owned(),
        };
        let request = &self.expected["request"];
        let model = request["model"].as_str().or(self.expected["model"].as_str());
        let body = json!({
            "model": model.unwrap_or("m"), "max_tokens": 100, "input": "x", "text": "x",
            "stream_options": {"include_usage": true},
            "stream": request["stream"].as_bool().unwrap_or(self.content_type.contains("event")),
        });
        gateway.call("POST", &format!("/providers/{provider}{path}")).json(&body)
    }

    fn reply(&self, piece: usize) -> ScriptedResponse {
        let status = self.expected["status"].as_u64().unwrap_or(200).try_into().unwrap();
        let reply = ScriptedResponse::bytes(status, &self.content_type, self.body.clone());
        let headers = self.expected["response_headers"].as_object();
        let headers = headers.into_iter().flatten();
        let reply =
            headers.fold(reply, |reply, (name, value)| reply.header(name, value.as_str().unwrap()));
        reply.chunked_every(piece)
    }
}

/// `RACE_SEEDS=310` has 10⁵ answers.
#[test]
fn every_recorded_answer_is_reported_at_the_cost_of_its_record() {
    let mut settings = settings();
    settings.calls.unpriced = UnpricedPolicy::Allow;
    settings.standard_rate_per_minute = 0;
    let all = RecordedAnswer::all();
    each_gateway_at_real_prices_under(settings, async |gateway| {
        let rounds = seeds(1);
        // In headers, in a comment, in trailers.
        let mut places = [0; 3];
        for round in 0..rounds {
            for case in &all {
                let name = case.name();
                let piece = 1 + usize::try_from(round * 31 + 16).unwrap() % 997;
                gateway.provider.push_always(case.reply(piece));
                let call = case.call(gateway).header("te", "trailers");
                let answer = call.header(REPORT, "cost").send().await;
                // The request of some answers is a form, or has no model.
                let Some(id) = answer.header("x-service-request-id") else { continue };
                assert!(answer.complete, "{name}");
                let record = gateway.get(&format!("/requests/{id}")).await.expect(200);
                let expected = [
                    record["total_request_cost"].as_str(),
                    record["total_wallet_cost"].as_str(),
                    None,
                ];
                let expected = expected.map(|cost| cost.map(str::to_owned));
                assert_eq!(reported(&answer), Some(expected), "{name}");
                let (comment, body) = without_comment(&answer.body);
                assert!(body == case.body, "{name}");
                let place = [answer.header(COST).is_some(), comment.is_some()];
                let place = place.iter().position(|is| *is).unwrap_or(2);
                places[place] += 1;
            }
        }
        let least = [110, 35, 12].map(|count| count * rounds);
        assert!(places.iter().zip(least).all(|(count, least)| *count >= least), "{places:?}");
    });
}
