//! Conversations: `POST /v1/conversations`, and what can be done with one later.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};

use crate::answer::{new_id, unix_seconds};
use crate::deliver::to_json;
use crate::endpoint::SimulatedDialect;
use crate::jobs::not_found;
use crate::refuse::refuse;

/// A conversation.
struct Conversation {
    created_at: u64,
    metadata: Value,
    items: Vec<Value>,
}

impl Conversation {
    fn object(&self, id: &str) -> Value {
        json!({"id": id, "object": "conversation", "created_at": self.created_at, "metadata": self.metadata})
    }

    /// Adds the items of a body, and answers them.
    fn add(&mut self, body: &Value) -> Value {
        let items = body.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        let added: Vec<_> = items.into_iter().map(with_id).collect();
        self.items.extend(added.iter().cloned());
        list(&added)
    }
}

fn with_id(mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        fields.entry("id").or_insert_with(|| json!(new_id("msg_")));
        fields.entry("type").or_insert_with(|| json!("message"));
    }
    item
}

fn list(items: &[Value]) -> Value {
    let id = |item: Option<&Value>| item.and_then(|item| item.get("id")).cloned();
    json!({
        "object": "list", "data": items, "has_more": false,
        "first_id": id(items.first()), "last_id": id(items.last()),
    })
}

/// The conversations by their ids, in memory until they are deleted.
#[derive(Default)]
pub(crate) struct Conversations(Mutex<BTreeMap<String, Conversation>>);

impl Conversations {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Conversation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a conversation, and answers the result.
    fn with(&self, id: &str, act: impl FnOnce(&mut Conversation) -> Option<Value>) -> HttpResponse {
        match self.all().get_mut(id).and_then(act) {
            Some(object) => answer(&object),
            None => refuse(&not_found("Conversation", id), SimulatedDialect::OpenAi),
        }
    }
}

/// The routes of conversations.
pub(crate) fn routes(config: &mut web::ServiceConfig) {
    config
        .route("/v1/conversations", web::post().to(create))
        .service(
            web::resource("/v1/conversations/{id}")
                .route(web::get().to(retrieve))
                .route(web::post().to(update))
                .route(web::delete().to(delete)),
        )
        .service(
            web::resource("/v1/conversations/{id}/items")
                .route(web::get().to(items))
                .route(web::post().to(add)),
        )
        .service(
            web::resource("/v1/conversations/{id}/items/{item}")
                .route(web::get().to(item))
                .route(web::delete().to(delete_item)),
        );
}

fn answer(object: &Value) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(to_json(object))
}

fn body_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

async fn create(all: web::Data<Conversations>, body: web::Bytes) -> HttpResponse {
    let (id, body) = (new_id("conv_"), body_of(&body));
    let metadata = body.get("metadata").cloned().unwrap_or_else(|| json!({}));
    let mut made = Conversation { created_at: unix_seconds(), metadata, items: Vec::new() };
    made.add(&body);
    let object = made.object(&id);
    all.all().insert(id, made);
    answer(&object)
}

async fn retrieve(all: web::Data<Conversations>, id: web::Path<String>) -> HttpResponse {
    all.with(&id, |found| Some(found.object(&id)))
}

async fn update(
    all: web::Data<Conversations>,
    id: web::Path<String>,
    body: web::Bytes,
) -> HttpResponse {
    all.with(&id, |found| {
        found.metadata = body_of(&body).get("metadata").cloned().unwrap_or_else(|| json!({}));
        Some(found.object(&id))
    })
}

async fn delete(all: web::Data<Conversations>, id: web::Path<String>) -> HttpResponse {
    let deleted = all.all().remove(id.as_str());
    match deleted {
        Some(_) => answer(&json!({"id": *id, "object": "conversation.deleted", "deleted": true})),
        None => refuse(&not_found("Conversation", &id), SimulatedDialect::OpenAi),
    }
}

async fn items(all: web::Data<Conversations>, id: web::Path<String>) -> HttpResponse {
    all.with(&id, |found| Some(list(&found.items)))
}

async fn add(
    all: web::Data<Conversations>,
    id: web::Path<String>,
    body: web::Bytes,
) -> HttpResponse {
    all.with(&id, |found| Some(found.add(&body_of(&body))))
}

async fn item(all: web::Data<Conversations>, path: web::Path<(String, String)>) -> HttpResponse {
    let (id, item) = path.into_inner();
    all.with(&id, |found| found.items.iter().find(|one| has_id(one, &item)).cloned())
}

async fn delete_item(
    all: web::Data<Conversations>,
    path: web::Path<(String, String)>,
) -> HttpResponse {
    let (id, item) = path.into_inner();
    all.with(&id, |found| {
        found.items.retain(|one| !has_id(one, &item));
        Some(found.object(&id))
    })
}

fn has_id(item: &Value, id: &str) -> bool {
    item.get("id").is_some_and(|found| found == id)
}
