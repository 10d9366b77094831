//! The messages of webhooks: an entry for each kind of event.

use std::fmt;

use serde_json::{Map, Value, json};
use tollgate_domain::EventKind;
use utoipa::openapi::{RefOr, Schema};

use crate::delivery::{message, samples};

fn kinds() -> impl Iterator<Item = EventKind> {
    EventKind::ALL.iter().copied().chain([EventKind::WebhookTest])
}

/// The occasion of an event.
const fn when(kind: EventKind) -> &'static str {
    match kind {
        EventKind::ConnectionCreated => "A connection was made.",
        EventKind::ConnectionDeleted => "A connection was deleted.",
        EventKind::WalletBalanceLow => {
            "The balance of a wallet has fallen below its `low_balance_threshold`. Told when it \
             falls, not while it is low."
        }
        EventKind::WalletBalanceDepleted => {
            "Nothing is left of the balance of a wallet and its overdraft. Told when that comes to \
             be so, not while it is so; never of a wallet without an overdraft limit."
        }
        EventKind::SpendKeyThresholdReached => {
            "80% or 95% of the spend limit of a key are used up: once each per cycle of the limit."
        }
        EventKind::SpendKeyLimitReached => {
            "The spend limit of a key is used up: once per cycle of the limit."
        }
        EventKind::BudgetThresholdReached => {
            "A share of the spend limit of a budget is used up, one of its `alerts`: once each per cycle \
             of the limit."
        }
        EventKind::BudgetLimitReached => {
            "The spend limit of a budget is used up: once per cycle of the limit."
        }
        EventKind::SubscriptionCreated => {
            "A subscription has begun. `amount_due` is what you have to collect for its first cycle."
        }
        EventKind::SubscriptionRenewed => {
            "A cycle of a subscription has ended and the next one begun. `amount_due` is what you \
             have to collect for it."
        }
        EventKind::SubscriptionChanged => {
            "A subscription goes on under another configuration, in a new cycle. `amount_due` is \
             what you have to collect for it."
        }
        EventKind::SubscriptionCancelled => {
            "A subscription has ended: its cycle after the cancellation is over, or its connection \
             was deleted."
        }
        EventKind::CreditBundlePurchased => {
            "Credit was bought for a subscription. `amount_due` is what you have to collect for it."
        }
        EventKind::PriceMissing => {
            "A call needed a price that no list has: once a day (UTC) for each provider and model. \
             `unit` is absent where the model has no price at all."
        }
        EventKind::RequestCompleted => {
            "A call was answered and is booked, or usage was reported. Only for webhooks that ask for \
             it by name."
        }
        EventKind::RequestFailed => {
            "A call failed and is booked. Only for webhooks that ask for it by name."
        }
        EventKind::RequestSuspicious => {
            "The provider claimed more than a hundred times of what a call could use. Its record has \
             the flag `suspicious_usage`. Only for webhooks that ask for it by name."
        }
        EventKind::JobSucceeded => "A job has succeeded, and its call is settled.",
        EventKind::JobFailed => {
            "A job has failed, was cancelled or has expired, and its call is settled. Its `state` says \
             which."
        }
        EventKind::JobLost => {
            "A job is lost: its provider no longer knows it, or its end was never seen. Its call is \
             settled at its hold under a strict spend key, else at the last known usage."
        }
        EventKind::WebhookTest => {
            "You asked for a test. It goes to that webhook only, whatever events it asks for."
        }
    }
}

/// The `webhooks` of the document, and the schemas that they refer to.
pub(super) fn webhooks(referred: &mut Vec<(String, RefOr<Schema>)>) -> Value {
    let entry = |kind: EventKind| (kind.as_str().to_owned(), json!({"post": post(kind, referred)}));
    kinds().map(entry).collect::<Map<_, _>>().into()
}

fn post(kind: EventKind, referred: &mut Vec<(String, RefOr<Schema>)>) -> Value {
    let header = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name,
            "in": "header",
            "required": true,
            "description": description,
            "schema": schema,
        })
    };
    json!({
        "operationId": operation_id(kind),
        "tags": ["webhooks"],
        "summary": kind.as_str(),
        "description": when(kind),
        "parameters": [
            header(
                "webhook-id",
                "The id of the event, the same at every attempt: what you have seen is a repetition.",
                json!({"$ref": "#/components/schemas/EventId"}),
            ),
            header(
                "webhook-timestamp",
                "When this attempt was made, in seconds since 1970.",
                json!({"type": "string", "pattern": "^[0-9]+$"}),
            ),
            header(
                "webhook-signature",
                "`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body` with your secret; \
                 after a rotation one for each valid secret, separated by spaces.",
                json!({"type": "string", "pattern": "^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)*$"}),
            ),
        ],
        "requestBody": {
            "required": true,
            "content": {"application/json": {
                "schema": schema(kind, referred),
                "example": samples::message(kind),
            }},
        },
        "responses": {"2XX": {
            "description": "You took it. Whatever else you answer, and no answer within 10 s, \
                            makes it come again.",
        }},
        "security": [],
    })
}

/// The name of a message for generators of code, such as `onWalletBalanceLow`.
fn operation_id(kind: EventKind) -> String {
    let words = kind.as_str().split(['.', '_']);
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    };
    std::iter::once("on".to_owned()).chain(words.map(capital)).collect()
}

fn schema(kind: EventKind, referred: &mut Vec<(String, RefOr<Schema>)>) -> Value {
    json!({
        "type": "object",
        "required": ["type", "timestamp", "sequence", "data"],
        "properties": {
            "type": {"const": kind.as_str()},
            "timestamp": {
                "$ref": "#/components/schemas/Timestamp",
                "description": "When it happened.",
            },
            "sequence": {
                "type": "integer",
                "format": "int64",
                "minimum": 1,
                "description": "Its number among the messages of the webhook, without gaps.",
            },
            "data": message::schema_of_data(kind, referred),
        },
    })
}

/// The page `docs/features/webhook-messages.md`, with the message of each kind.
#[derive(Clone, Copy, Debug)]
pub struct WebhookMessagesDoc;

impl fmt::Display for WebhookMessagesDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Webhook messages")?;
        for kind in kinds() {
            writeln!(f, "\n## `{}`\n\n{}\n\n```json", kind.as_str(), when(kind))?;
            writeln!(f, "{:#}\n```", samples::message(kind))?;
        }
        Ok(())
    }
}
