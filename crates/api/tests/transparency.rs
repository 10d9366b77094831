//! Bodies pass unchanged, byte for byte in both directions and in every encoding, except one token that is
//! inserted to request usage. The usage that is read from them is the usage that is paid.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::{Value, json};
use tokio::time::timeout;
use tollgate_testkit::{Gate, ScriptedResponse};

use crate::support::{
    self, Gateway, chat_answer, chat_body, each_gateway, each_gateway_at_real_prices, with,
};

const CHAT: &str = "/v1/chat/completions";

/// Status and usage source of the newest record, and the cost for wallet and merchant together.
async fn newest(gateway: &Gateway<'_>) -> [String; 3] {
    let record = gateway.records().await.remove(0);
    ["status", "usage_source", "total_request_cost"].map(|name| support::text(&record, name))
}

#[test]
fn every_byte_of_a_request_arrives() {
    let long = format!(r#"{{"model":"m-1","messages":[],"x":"{}"}}"#, "ü\\u00fc".repeat(200_000));
    let deep = format!(r#"{{"model":"m-1","messages":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let bodies = [
        r#"{"z":1,"model":"m-1","a":2,"messages":[]}"#,
        "\r\n\t {  \"model\" :\t\"m-1\" ,\n\n \"messages\":[ ] }\n  \r\n",
        r#"{"model":"m-1","temperature":1.0,"top_p":0.10000000000000000555,"x":1e300,"y":-0.0,"z":1E+2}"#,
        r#"{"model":"m-1","seed":123456789012345678901234567890,"messages":[]}"#,
        r#"{"model":"m-1","x":"\u0041\ud83d\ude00\/","y":"\/","messages":[]}"#,
        r#"{"mod\u0065l":"m-1","messages":[]}"#,
        r#"{"model":"m-1","x":1,"x":2,"x":{"x":1,"x":2},"messages":[]}"#,
        r#"{"model":"m-1","unknown_field":{"a":[null,true,false,{},[]]},"messages":null}"#,
        r#"{"model":"m-1","stream":false,"stream_options":null,"messages":[]}"#,
        r#"{"model":"m-1","stream":true,"stream_options":{"include_usage":true,"x":1.0},"messages":[]}"#,
        "{\"model\":\"m-1\",\"x\":\"\u{2028}\u{feff}\u{0}\",\"messages\":[]}",
        &long,
        &deep,
    ];
    each_gateway(async |gateway| {
        gateway.provider.push_always(ScriptedResponse::json(200, chat_answer()));
        let mut calls = 0;
        for body in bodies {
            for content_type in ["application/json", "application/json; charset=utf-8"] {
                let call = gateway.forward(CHAT).bytes(content_type, body.as_bytes());
                let answer = call.send().await;
                if body.contains('\0') {
                    // It is not JSON, and is refused before the provider gets it.
                    assert_eq!(answer.status, 400);
                    continue;
                }
                assert_eq!(answer.status, 200, "{}", answer.text());
                calls += 1;
                let arrived = gateway.provider.requests();
                assert_eq!(arrived.len(), calls);
                assert!(
                    arrived[calls - 1].body == body.as_bytes(),
                    "{}",
                    &body[..body.len().min(200)]
                );
                assert_eq!(arrived[calls - 1].header("content-type"), Some(content_type));
            }
        }
    });
}

/// Without the inserted token, the body is the one that was sent.
#[test]
fn what_is_inserted_is_one_token_and_nothing_else() {
    let inserted = [
        r#""stream_options":{"include_usage":true},"#,
        r#","stream_options":{"include_usage":true}"#,
        r#""include_usage":true,"#,
        r#","include_usage":true"#,
        r#""include_usage":true"#,
    ];
    let bodies = [
        r#"{"model":"m-1","stream":true,"messages":[]}"#,
        "{ \"model\" : \"m-1\",\n\t\"stream\" : true , \"x\": 1.0 , \"messages\": [ ] }\r\n",
        r#"{"stream":true,"stream_options":{},"model":"m-1","messages":[]}"#,
        r#"{"stream":true,"stream_options":{"x":1.0},"model":"m-1","messages":[]}"#,
        r#"{"stream":true,"stream_options": { "x" : [1,{}] } ,"model":"m-1","messages":[]}"#,
    ];
    each_gateway(async |gateway| {
        for (calls, body) in bodies.into_iter().enumerate() {
            gateway.provider.push(ScriptedResponse::events(["[DONE]"]));
            let call = gateway.forward(CHAT).bytes("application/json", body.as_bytes());
            assert_eq!(call.send().await.status, 200);
            let arrived = gateway.provider.requests()[calls].text().to_owned();
            let without: Vec<_> =
                inserted.iter().map(|token| arrived.replacen(token, "", 1)).collect();
            assert!(without.iter().any(|rest| rest == body), "{body}\nbecame {arrived}");
            let sent: Value = serde_json::from_str(&arrived).unwrap();
            assert_eq!(sent["stream_options"]["include_usage"], true);
        }
        // An option that is false is changed to true, in its place.
        let body = r#"{"stream":true,"stream_options":{"include_usage": false },"model":"m-1"}"#;
        gateway.provider.push(ScriptedResponse::events(["[DONE]"]));
        gateway.forward(CHAT).bytes("application/json", body.as_bytes()).send().await;
        let arrived = gateway.provider.requests().pop().unwrap();
        assert_eq!(arrived.text(), body.replace("false", "true"));
    });
}

#[test]
fn every_byte_of_an_answer_arrives() {
    let whole = chat_answer().to_string();
    let bodies: [(&str, Vec<u8>); 9] = [
        ("application/json", format!("\r\n  {whole}\n\n\t").into_bytes()),
        ("application/json", whole.replace(':', " : ").replace(',', "\n,").into_bytes()),
        ("application/json", b"{\"a\":1.0,\"a\":1e400,\"usage\":{}} trailing".to_vec()),
        ("application/json", vec![0xff, 0xfe, 0x00, 0x80]),
        ("text/html; charset=latin1", b"<p>\xfc\xe4</p>".to_vec()),
        ("application/octet-stream", (0..=255).cycle().take(300_000).collect()),
        ("text/event-stream", b"\xef\xbb\xbf: hi\r\rdata:x\r\ndata\n\nid: \0\n\nretry: 1".to_vec()),
        (
            "text/event-stream",
            b"data: {\"choices\":[]}\r\n\r\ndata: [DONE]\r\n\r\n\r\n: bye".to_vec(),
        ),
        ("text/event-stream", Vec::new()),
    ];
    each_gateway(async |gateway| {
        for (content_type, body) in &bodies {
            for status in [200, 201, 400, 418, 500] {
                for chunks in [None, Some(1), Some(1000)] {
                    if chunks == Some(1) && body.len() > 10_000 {
                        continue;
                    }
                    let reply = ScriptedResponse::bytes(status, content_type, body.clone())
                        .header("x-custom", "ü".escape_unicode().to_string().as_str())
                        .header("x-request-id", "r-1");
                    let reply = match chunks {
                        None => reply.content_length(),
                        Some(bytes) => reply.chunked_every(bytes),
                    };
                    gateway.provider.push(reply);
                    let answer = gateway.chat().send().await;
                    let what = format!("{content_type} {status} {chunks:?}");
                    assert!(answer.complete && answer.body == *body, "{what}");
                    assert_eq!(
                        (answer.status, answer.header("content-type")),
                        (status, Some(*content_type))
                    );
                    assert_eq!(answer.header("x-request-id"), Some("r-1"), "{what}");
                    assert_eq!(answer.header("x-custom"), Some("\\u{fc}"), "{what}");
                }
            }
        }
    });
}

fn finish<W: Write>(
    mut packer: W,
    body: &[u8],
    end: impl FnOnce(W) -> std::io::Result<Vec<u8>>,
) -> Vec<u8> {
    packer.write_all(body).unwrap();
    end(packer).unwrap()
}

fn pack(coding: &str, body: &[u8]) -> Vec<u8> {
    let level = Compression::default();
    match coding {
        "gzip" => finish(GzEncoder::new(Vec::new(), level), body, GzEncoder::finish),
        "deflate" => finish(ZlibEncoder::new(Vec::new(), level), body, ZlibEncoder::finish),
        "raw deflate" => {
            finish(DeflateEncoder::new(Vec::new(), level), body, DeflateEncoder::finish)
        }
        "zstd" => zstd::encode_all(body, 3).unwrap(),
        _ => {
            let mut packed = Vec::new();
            brotli::BrotliCompress(&mut &*body, &mut packed, &Default::default()).unwrap();
            packed
        }
    }
}

#[test]
fn a_packed_answer_passes_packed_and_is_read_all_the_same() {
    let event = |usage: Value| json!({"id": "c", "model": "m-1", "choices": [], "usage": usage});
    let stream = format!(
        "data: {}\n\ndata: [DONE]\n\n",
        event(json!({"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}))
    );
    let plain = chat_answer().to_string();
    let streamed =
        json!({"model": "m-1", "stream": true, "stream_options": {"include_usage": true}});
    each_gateway(async |gateway| {
        for codings in ["gzip", "deflate", "raw deflate", "br", "zstd", "gzip, br", "zstd, gzip"] {
            let encoding = codings.trim_start_matches("raw ");
            for (kind, body, sent) in [
                ("application/json", &plain, &chat_body()),
                ("text/event-stream", &stream, &streamed),
            ] {
                let fold = |body: Vec<u8>, coding| pack(coding, &body);
                let packed = codings.split(", ").fold(body.clone().into_bytes(), fold);
                for asks in [None, Some("gzip, br;q=0.5"), Some("identity")] {
                    let what = format!("{codings} {kind} {asks:?}");
                    let reply =
                        ScriptedResponse::bytes(200, kind, "").encoded(encoding, packed.clone());
                    gateway.provider.push(reply.chunked_every(20));
                    let call = gateway.forward(CHAT).json(sent);
                    let call = match asks {
                        Some(asks) => call.header("accept-encoding", asks),
                        None => call,
                    };
                    let answer = call.send().await;
                    assert!(answer.complete && answer.body == packed, "{what}");
                    assert_eq!(answer.header("content-encoding"), Some(encoding), "{what}");
                    let arrived = gateway.provider.requests().pop().unwrap();
                    // The client's choice is passed on, or `identity` if it makes none.
                    let asked = Some(asks.unwrap_or("identity"));
                    assert_eq!(arrived.header("accept-encoding"), asked, "{what}");
                    assert_eq!(
                        newest(gateway).await,
                        ["completed", "reported", "0.0170000000"],
                        "{what}"
                    );
                }
                // A compressed answer that is cut: the part that can be read does not count as a report.
                let cut = packed[..packed.len() / 2].to_vec();
                gateway
                    .provider
                    .push(ScriptedResponse::bytes(200, kind, "").encoded(encoding, cut.clone()));
                let answer = gateway.forward(CHAT).json(sent).send().await;
                assert!(answer.complete && answer.body == cut, "{codings}");
                let [status, source, cost] = newest(gateway).await;
                assert!(
                    ["estimated", "partial"].contains(&source.as_str()),
                    "{codings} {kind}: {status} {source}"
                );
                assert_ne!(cost, "0.0000000000", "{codings} {kind}");
            }
        }
    });
}

/// No bytes are inserted to keep a stream alive: every byte is the provider's.
#[test]
fn a_stream_that_is_silent_stays_silent() {
    let event =
        json!({"id": "c", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hi"}}]});
    each_gateway(async |gateway| {
        let gate = Gate::new();
        gateway
            .provider
            .push(ScriptedResponse::events([event.to_string(), "[DONE]".to_owned()]).gate(&gate));
        let body =
            json!({"model": "m-1", "stream": true, "stream_options": {"include_usage": true}});
        let mut open = gateway.forward(CHAT).json(&body).open().await;
        gate.pass(1);
        open.read_until("Hi").await;
        let silence = timeout(Duration::from_secs(2), open.read_some()).await;
        assert!(silence.is_err(), "something came: {:?}", String::from_utf8_lossy(open.raw()));
        gate.open();
        while open.read_some().await {}
        let answer = open.response();
        assert!(answer.complete);
        assert_eq!(answer.text(), format!("data: {event}\n\ndata: [DONE]\n\n"));
    });
}

/// The cost of usage in every notation: 19 tokens in and 10 out, where they can be read.
#[test]
fn usage_in_every_spelling_is_billed_as_it_is_told() {
    let reported = |input: u32, output: u32| {
        // 1 USD per million in, 2 out, and a fee of 10 on both.
        let units = input * 110_000 + output * 120_000;
        ["completed", "reported"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("0.{units:010}")])
            .collect::<Vec<_>>()
    };
    let with_usage = |usage: Value| with(chat_answer(), &json!({"usage": usage}));
    let mut absent = chat_answer();
    absent.as_object_mut().unwrap().remove("usage");
    let both = |input: Value, output: Value| {
        with_usage(json!({"prompt_tokens": input, "completion_tokens": output}))
    };
    // Without reported usage, the input is estimated by the bytes of the body.
    let cases: [(&str, Value, Option<Vec<String>>); 15] = [
        ("whole", both(json!(19), json!(10)), Some(reported(19, 10))),
        ("zeros", both(json!(0), json!(0)), Some(reported(0, 0))),
        ("strings", both(json!("19"), json!("10")), Some(reported(19, 10))),
        ("floats", both(json!(19.0), json!(10.0)), Some(reported(19, 10))),
        (
            "no output",
            with_usage(json!({"prompt_tokens": 19, "total_tokens": 29})),
            Some(reported(19, 10)),
        ),
        ("absent", absent, None),
        ("null", with_usage(Value::Null), None),
        ("empty", with_usage(json!({})), None),
        ("a list", with_usage(json!([19, 10])), None),
        ("a word", with_usage(json!("many")), None),
        ("nulls", both(Value::Null, Value::Null), None),
        ("below zero", both(json!(-19), json!(-10)), None),
        ("fractions", both(json!(19.5), json!(10.5)), None),
        ("beyond all numbers", both(json!(9_007_199_254_740_993_u64), json!(10)), None),
        ("words", both(json!("x"), json!("y")), None),
    ];
    each_gateway(async |gateway| {
        for (what, answer, expected) in &cases {
            gateway.provider.push(ScriptedResponse::json(200, answer));
            gateway.chat().send().await.expect(200);
            let [status, source, cost] = newest(gateway).await;
            match expected {
                Some(expected) => assert_eq!([status, source, cost].as_slice(), expected, "{what}"),
                None => {
                    assert_eq!([status.as_str(), &source], ["completed", "estimated"], "{what}");
                    assert!(
                        cost.as_str() > "0.0000000000" && cost.as_str() < "0.0100000000",
                        "{what}: {cost}"
                    );
                }
            }
        }
    });
}

/// Figures of later events replace earlier ones; they are not added, and nulls are ignored.
#[test]
fn cumulative_figures_are_not_added_up() {
    let delta = |usage: &Value, is_last: bool| {
        let reason = if is_last { json!("end_turn") } else { Value::Null };
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})
    };
    let null = Value::Null;
    let cases = [
        vec![json!({"output_tokens": 500})],
        vec![json!({"output_tokens": 100}), json!({"output_tokens": 500})],
        vec![
            json!({"output_tokens": 100}),
            json!({"output_tokens": 200, "input_tokens": 900}),
            json!({"output_tokens": 300, "input_tokens": null}),
            json!({"input_tokens": 1000}),
            json!({"output_tokens": 500}),
        ],
        vec![
            json!({"output_tokens": 500, "input_tokens": 1000}),
            json!({"output_tokens": null}),
            null,
        ],
    ];
    each_gateway(async |gateway| {
        let body = json!({"model": "m-1", "max_tokens": 10, "messages": []});
        let streamed = with(body.clone(), &json!({"stream": true}));
        let usage = json!({"input_tokens": 1000, "output_tokens": 500});
        let message =
            json!({"type": "message", "id": "m", "model": "m-1", "content": [], "usage": usage});
        gateway.provider.push(ScriptedResponse::json(200, message));
        gateway.forward("/anthropic/v1/messages").json(&body).send().await.expect(200);
        let single = newest(gateway).await;
        assert_eq!(single, ["completed", "reported", "0.0170000000"]);
        for usages in &cases {
            let start = json!({"type": "message_start", "message": {"id": "m", "model": "m-1",
                               "usage": {"input_tokens": 1000, "output_tokens": 1}}});
            let deltas = usages.iter().enumerate();
            let deltas =
                deltas.map(|(at, usage)| ("message_delta", delta(usage, at + 1 == usages.len())));
            let events = std::iter::once(("message_start", start))
                .chain(deltas)
                .chain([("message_stop", json!({"type": "message_stop"}))]);
            gateway.provider.push(ScriptedResponse::named_events(events));
            let answer = gateway.forward("/anthropic/v1/messages").json(&streamed).send().await;
            assert!(answer.complete);
            assert_eq!(newest(gateway).await, single, "{usages:?}");
        }
    });
}

/// A version that does not know the option would refuse the call. In a version that knows it, a client
/// that did not request usage does not get it.
#[test]
fn an_old_azure_is_not_asked_and_a_new_one_keeps_it_from_the_client() {
    let delta = json!({"id": "c", "model": "gpt-4o-2024-08-06", "choices": [{"index": 0, "delta": {"content": "Hi"}}]});
    let usage = json!({"id": "c", "model": "gpt-4o-2024-08-06", "choices": [],
                       "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}});
    let body = r#"{"stream":true, "messages":[]}"#;
    each_gateway_at_real_prices(async |gateway| {
        for (version, knows) in [
            ("2024-06-01", false),
            ("2024-08-01-preview", false),
            ("2024-09-01-preview", true),
            ("2024-10-21", true),
        ] {
            let events = [&delta, &usage].into_iter().take(if knows { 2 } else { 1 });
            let events = events.map(Value::to_string).chain(["[DONE]".to_owned()]);
            gateway.provider.push(ScriptedResponse::events(events));
            let path =
                format!("/azure/openai/deployments/gpt-4o/chat/completions?api-version={version}");
            let call = gateway.forward(&path).bytes("application/json", body.as_bytes());
            let answer = call.send().await;
            assert_eq!(answer.text(), format!("data: {delta}\n\ndata: [DONE]\n\n"), "{version}");
            let arrived = gateway.provider.requests().pop().unwrap();
            assert_eq!(arrived.text() == body, !knows, "{version}: {}", arrived.text());
            let [status, source, _] = newest(gateway).await;
            let expected = if knows { "reported" } else { "estimated" };
            assert_eq!([status.as_str(), &source], ["completed", expected], "{version}");
        }
    });
}
