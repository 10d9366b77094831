//! The list of models.

use serde_json::{Value, json};

use crate::answer::Tokens;
use crate::deliver::Reply;
use crate::endpoint::Dialect;

/// The models of the list. Any other model is served as well.
const MODELS: [&str; 3] = ["simulated-large", "simulated-small", "simulated-embedding"];

/// Answers `GET /v1/models`.
pub(crate) fn list(dialect: Dialect) -> Reply {
    let models: Vec<_> = MODELS.iter().map(|id| model(id, dialect)).collect();
    let list = match dialect {
        Dialect::OpenAi => json!({"object": "list", "data": models}),
        Dialect::Anthropic => json!({
            "data": models,
            "has_more": false,
            "first_id": MODELS.first(),
            "last_id": MODELS.last(),
        }),
    };
    Reply::json(&list, Tokens::default())
}

/// Answers `GET /v1/models/{id}`.
pub(crate) fn one(id: &str, dialect: Dialect) -> Reply {
    Reply::json(&model(id, dialect), Tokens::default())
}

fn model(id: &str, dialect: Dialect) -> Value {
    match dialect {
        Dialect::OpenAi => {
            json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": "simulator"})
        }
        Dialect::Anthropic => json!({
            "type": "model",
            "id": id,
            "display_name": id,
            "created_at": "2023-11-14T22:13:20Z",
        }),
    }
}
