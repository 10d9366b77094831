//! Conversations: messages that the provider keeps, and that responses continue. They belong to a wallet.

use serde_json::{Value, json};
use tollgate_testkit::{ScriptedResponse, TestRequest};

use crate::jobs::{self, assert_body_issues};
use crate::support::{Gateway, TestSpendKey, each_gateway_by_the_stores_clock};

fn call(gateway: &Gateway<'_>, key: &TestSpendKey, method: &str, path: &str) -> TestRequest {
    gateway.call_without_key(method, path).bearer(&key.key)
}

fn conversation(id: &str) -> ScriptedResponse {
    ScriptedResponse::json(
        200,
        json!({"id": id, "object": "conversation", "created_at": 1_795_219_200, "metadata": {}}),
    )
}

fn continues(conversation: &Value) -> Value {
    json!({"model": "m-1", "input": "Hello", "max_output_tokens": 100, "conversation": conversation})
}

#[test]
fn a_conversation_belongs_to_its_wallet_whose_responses_continue_it() {
    each_gateway_by_the_stores_clock(async |gateway| {
        let wallet = json!({"wallet_id": gateway.connection.wallet_id.to_string()});
        let own = gateway.spend_key(&wallet).await;
        let other = gateway.spend_key(&json!({})).await;
        gateway.provider.push(conversation("conv_1"));
        let created = call(gateway, &own, "POST", "/conversations").json(&json!({}));
        assert_eq!(created.send().await.expect(200).get("id"), Some(&json!("conv_1")));

        let calls = gateway.provider.calls();
        for (method, tail) in [
            ("GET", ""),
            ("POST", ""),
            ("DELETE", ""),
            ("GET", "/items"),
            ("POST", "/items"),
            ("GET", "/items/msg_1"),
            ("DELETE", "/items/msg_1"),
        ] {
            for id in ["conv_1", "conv_2"] {
                let path = format!("/conversations/{id}{tail}");
                let refused = call(gateway, &other, method, &path).json(&json!({"items": []}));
                assert_eq!(refused.send().await.status, 404, "{method} {path}");
            }
        }
        for id in [json!("conv_1"), json!({"id": "conv_1"}), json!("conv_2")] {
            let refused = call(gateway, &other, "POST", "/responses").json(&continues(&id));
            assert_body_issues(&refused.send().await, &["conversation"]);
        }
        let strict = json!({"enforcement": "strict", "wallet_id": gateway.connection.wallet_id.to_string(),
            "spend_limit": {"amount": "1", "cycle": "total"}});
        let strict = gateway.spend_key(&strict).await;
        let refused =
            call(gateway, &strict, "POST", "/responses").json(&continues(&json!("conv_1")));
        let refused = refused.send().await;
        assert_eq!((refused.status, refused.error().as_str()), (400, "cost_bound_unknown"));
        assert_eq!(refused.issue_paths(), ["conversation"]);
        gateway.provider.assert_calls(calls);

        for id in [json!("conv_1"), json!({"id": "conv_1"})] {
            gateway.provider.push(jobs::answer("resp_1", "completed"));
            let made = call(gateway, &own, "POST", "/responses").json(&continues(&id));
            made.send().await.expect(200);
        }
        gateway.provider.push(ScriptedResponse::json(200, json!({"object": "list", "data": []})));
        call(gateway, &own, "GET", "/conversations/conv_1/items").send().await.expect(200);
        let items = json!({"items": [{"type": "message", "role": "user", "content": "Go on."}]});
        gateway.provider.push(ScriptedResponse::json(200, json!({"object": "list", "data": []})));
        let added = call(gateway, &own, "POST", "/conversations/conv_1/items").json(&items);
        added.send().await.expect(200);
        gateway
            .provider
            .push(ScriptedResponse::json(200, json!({"id": "conv_1", "deleted": true})));
        call(gateway, &own, "DELETE", "/conversations/conv_1").send().await.expect(200);
        let gone = call(gateway, &own, "POST", "/responses").json(&continues(&json!("conv_1")));
        assert_body_issues(&gone.send().await, &["conversation"]);
    });
}
