//! The list of models.

use serde_json::{Value, json};

use crate::answer::TokenCounts;
use crate::deliver::SimulatedResponse;
use crate::endpoint::SimulatedDialect;

/// The models of the list. Any other model is served as well.
const MODELS: [&str; 3] = ["simulated-large", "simulated-small", "simulated-embedding"];

/// Answers `GET /v1/models`.
pub(crate) fn list(dialect: SimulatedDialect) -> SimulatedResponse {
    let models: Vec<_> = MODELS.iter().map(|id| model(id, dialect)).collect();
    let list = match dialect {
        SimulatedDialect::OpenAi => json!({"object": "list", "data": models}),
        SimulatedDialect::Google => json!({"models": models}),
        SimulatedDialect::Anthropic => json!({
            "data": models,
            "has_more": false,
            "first_id": MODELS.first(),
            "last_id": MODELS.last(),
        }),
    };
    SimulatedResponse::json(&list, TokenCounts::default())
}

/// Answers `GET /v1/models/{id}`.
pub(crate) fn get(id: &str, dialect: SimulatedDialect) -> SimulatedResponse {
    SimulatedResponse::json(&model(id, dialect), TokenCounts::default())
}

fn model(id: &str, dialect: SimulatedDialect) -> Value {
    match dialect {
        SimulatedDialect::OpenAi => {
            json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "simulator"})
        }
        SimulatedDialect::Google => json!({"name": format!("models/{id}"), "displayName": id}),
        SimulatedDialect::Anthropic => json!({
            "type": "model",
            "id": id,
            "display_name": id,
            "created_at": "2023-11-14T22:13:20Z",
        }),
    }
}
