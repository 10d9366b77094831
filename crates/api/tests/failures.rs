//! Records of failed calls say why they failed, and every record says when what happened.

use serde_json::{Value, json};
use tollgate_testkit::ScriptedResponse;

use crate::support::{
    chat_answer, each_gateway, each_gateway_by_the_stores_clock, each_gateway_with, settings,
};

fn at(record: &Value, name: &str) -> String {
    record
        .pointer(&format!("/timings/{name}"))
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_record_has_the_words_of_the_provider_and_no_credential() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let body = json!({"error": {
            "message": "Incorrect API key provided: sk-proj-1234****wxyz.",
            "type": "invalid_request_error", "code": "invalid_api_key",
        }});
        gateway
            .provider
            .push(ScriptedResponse::json(401, body).header("x-request-id", "req-of-provider"));
        gateway.chat().send().await;
        let record = gateway.record().await;
        let expected = json!({
            "source": "provider", "type": "invalid_request_error", "code": "invalid_api_key",
            "message": "Incorrect API key provided: ***",
        });
        assert_eq!(record["error"], expected);
        assert_eq!(record["provider_request_id"], "req-of-provider");
        let names = ["admitted_at", "sent_at", "first_byte_at", "last_byte_at", "settled_at"];
        let times = names.map(|name| at(&record, name));
        assert!(times.iter().all(|time| !time.is_empty()) && times.is_sorted(), "{times:?}");
    });
}

#[test]
fn messages_of_providers_are_dropped_where_the_operator_wants_it() {
    let mut settings = settings();
    settings.calls.keep_error_messages = false;
    each_gateway_with(settings, async |gateway| {
        let body = json!({"error": {"message": "Slow down", "type": "requests"}});
        gateway.provider.push(ScriptedResponse::json(429, body));
        gateway.chat().send().await;
        let record = gateway.record().await;
        assert_eq!(record["error"], json!({"source": "provider", "type": "requests"}));
    });
}

#[test]
fn a_call_without_an_answer_failed_here_and_a_completed_one_has_no_error() {
    each_gateway(async |gateway| {
        gateway.provider.push(ScriptedResponse::json(200, chat_answer()));
        gateway.chat().send().await.expect(200);
        let record = gateway.record().await;
        assert!(record.get("error").is_none(), "{record}");
        assert!(!at(&record, "last_byte_at").is_empty());
        gateway.provider.push(ScriptedResponse::hang_up());
        gateway.chat().send().await;
        let records = gateway.records().await;
        assert_eq!(records[0]["error"]["source"], "service");
        assert_eq!(records[0]["error"]["code"], "provider_unreachable");
        assert!(!at(&records[0], "sent_at").is_empty());
        assert_eq!(at(&records[0], "first_byte_at"), "");
    });
}
