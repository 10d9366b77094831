//! The earlier shape of the interface, compared to the current one.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use serde_json::json;
use tollgate_api::{InterfaceShape, Settings};

use crate::support::{
    Gateway, assert_issues, assert_refused, each_gateway, each_gateway_with, names, settings,
};

fn earlier() -> Settings {
    Settings { shape: InterfaceShape::Earlier, ..settings() }
}

async fn meter_id(gateway: &Gateway<'_>) -> String {
    let meter = json!({"name": "Plan", "rate_type": "fixed", "tier_type": "tokens_1m",
        "tiers": [{"start": "0", "rate": "1"}]});
    let meter = gateway.post("/meters", &meter).await.expect(201);
    meter["meter_id"].as_str().unwrap().to_owned()
}

#[test]
fn customers_are_connections_under_their_earlier_names() {
    each_gateway_with(earlier(), async |gateway| {
        let body = json!({"reference_id": "c-1", "metadata": {"connection_id": "mine"}});
        let made = gateway.post("/customers", &body).await.expect(201);
        let id = made["customer_id"].as_str().unwrap();
        assert_eq!(made.get("connection_id"), None);
        assert_eq!(made["metadata"], json!({"connection_id": "mine"}), "the merchant's own names");

        let found = gateway.get(&format!("/customers/{id}")).await.expect(200);
        assert_eq!(found, made);
        let changed = gateway.patch(&format!("/customers/{id}"), &json!({"name": "Ada"})).await;
        assert_eq!(changed.expect(200)["name"], "Ada");
        let listed = gateway.get("/customers?limit=1").await.expect(200);
        assert_eq!(listed["data"][0]["customer_id"], id);
        // Both shapes show the same resource.
        let connection = gateway.get(&format!("/connections/{id}")).await.expect(200);
        assert_eq!(connection["connection_id"], id);
        let none = gateway.get(&format!("/customers/{id}/subscription")).await.expect(200);
        assert_eq!(none, json!({"subscription": null}));

        gateway.delete(&format!("/customers/{id}")).await.expect(200);
        let gone = gateway.get("/customers/none").await;
        assert_refused(&gone, 404, "connection_not_found");
    });
}

#[test]
fn plans_are_subscription_configurations_under_their_earlier_names() {
    each_gateway_with(earlier(), async |gateway| {
        let meter_id = meter_id(gateway).await;
        let body = json!({"name": "Pro", "period_amount": "20", "billing_interval": "month",
            "meter_ids": [meter_id], "credit_bundles": [{"name": "B", "cost": "1", "credit_amount": "2"}]});
        let plan = gateway.post("/plans", &body).await.expect(201);
        let plan_id = plan["plan_id"].as_str().unwrap();
        assert_eq!(plan["meter_ids"], json!([meter_id]));
        for absent in ["subscription_config_id", "linked_meters", "product_ids"] {
            assert_eq!(plan.get(absent), None, "{absent}");
        }
        let config = gateway.get(&format!("/subscription_configs/{plan_id}")).await.expect(200);
        assert_eq!(config["subscription_config_id"], plan_id);
        assert_eq!(names(&config).len(), names(&plan).len());

        let wrong = gateway.patch(&format!("/plans/{plan_id}"), &json!({"meter_ids": ["x"]})).await;
        assert_issues(&wrong, &["meter_ids.0"]);
        let unknown = json!({"meter_ids": ["mtr_01M7YS5040NCSYBM5NZVE98902"]});
        let wrong = gateway.patch(&format!("/plans/{plan_id}"), &unknown).await;
        assert_issues(&wrong, &["meter_ids.0"]);
        let none = json!({"meter_ids": [], "plan_id": plan_id});
        let changed = gateway.patch(&format!("/plans/{plan_id}"), &none).await.expect(200);
        assert_eq!(changed["meter_ids"], json!([]));

        let bundles = gateway.get(&format!("/credit_bundles?plan_id={plan_id}")).await.expect(200);
        assert_eq!(bundles["data"][0]["plan_id"], plan_id);
        assert_eq!(bundles["data"][0]["subscription_config_id"], plan_id);
        gateway.delete(&format!("/plans/{plan_id}")).await.expect(200);
    });
}

/// Subscriptions have the same path in both shapes, so an answer has the fields of both.
#[test]
fn a_customer_subscribes_to_a_plan_and_reads_it_under_both_names() {
    each_gateway_with(earlier(), async |gateway| {
        let plan = json!({"name": "Pro", "period_amount": "20", "billing_interval": "month"});
        let plan = gateway.post("/plans", &plan).await.expect(201);
        let customer_id = gateway.connection.connection_id.to_string();
        let body = json!({"customer_id": customer_id, "plan_id": plan["plan_id"]});
        let made = gateway.post("/subscriptions", &body).await.expect(201);
        let subscription = &made["subscription"];
        for name in ["connection_id", "customer_id"] {
            assert_eq!(subscription[name], *customer_id, "{name}");
        }
        for name in ["subscription_config_id", "plan_id"] {
            assert_eq!(subscription[name], plan["plan_id"], "{name}");
        }
        let of_customer = gateway.get(&format!("/customers/{customer_id}/subscription")).await;
        assert_eq!(of_customer.expect(200)["subscription"]["plan_id"], plan["plan_id"]);
        let listed = gateway.get(&format!("/subscriptions?customer_id={customer_id}")).await;
        assert_eq!(listed.expect(200)["data"][0]["plan_id"], plan["plan_id"]);
    });
}

#[test]
fn of_the_shape_of_today_only_the_names_that_come_in_have_two() {
    each_gateway(async |gateway| {
        for path in ["/customers", "/plans"] {
            let missing = gateway.get(path).await;
            assert_refused(&missing, 404, "route_not_found");
        }
        let meter_id = meter_id(gateway).await;
        let body = json!({"name": "Pro", "period_amount": "20", "billing_interval": "month",
            "meter_ids": [meter_id]});
        let made = gateway.post("/subscription_configs", &body).await.expect(201);
        assert_eq!(made["linked_meters"][0]["meter_id"], *meter_id);
        let both = json!({"name": "Pro", "period_amount": "20", "billing_interval": "month",
            "product_ids": [], "meter_ids": [meter_id]});
        let refused = gateway.post("/subscription_configs", &both).await;
        assert_issues(&refused, &["meter_ids"]);
    });
}

#[test]
fn methods_that_an_earlier_path_does_not_have_are_told_like_those_of_today() {
    each_gateway_with(earlier(), async |gateway| {
        let refused = gateway.delete("/plans").await;
        assert_refused(&refused, 405, "method_not_allowed");
        let today = gateway.delete("/subscription_configs").await;
        assert_eq!(refused.header("allow"), today.header("allow"));
        assert!(refused.header("allow").is_some());
        assert!(
            refused.text().contains("DELETE is not a method of /v1/plans."),
            "{}",
            refused.text()
        );
    });
}
