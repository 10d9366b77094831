//! Lists of objects with the operator's key. Its account has the objects of all callers, so the provider's own list is not
//! passed on: the objects of the caller's wallet are retrieved one by one.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate_domain::{Issue, MerchantId, ObjectKind};
use tollgate_provider::http::Method;
use tollgate_provider::http::header::HeaderMap;
use tollgate_provider::{ProviderClient, RequestBody, UpstreamRequest, request_headers};
use tollgate_store::provider_objects::{self, ListedObject, ObjectPage};
use tollgate_usage::dialect::ObjectRole;
use tollgate_usage::{Dialect, OperationReader};

use crate::batch::with_results_at;
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::objects::object_caller;
use crate::outbound::OutboundCall;

/// The most objects of a page, and their number if the caller states none.
const MOST: u32 = 100;
const USUAL: u32 = 20;
/// The longest object that is shown.
const MAX_OBJECT_BYTES: usize = 1024 * 1024;

impl OutboundCall {
    /// The objects of the caller's wallet, as the provider would list them. `None` if the call is no list, or if the
    /// caller may see all that the provider lists.
    ///
    /// # Errors
    /// The reason why the caller may not see them.
    pub async fn own_list(
        &self,
        inbound: &InboundCall,
        gateway: &Gateway,
        client: &ProviderClient,
    ) -> Result<Option<Value>, CallError> {
        if self.endpoint.format.object_role() != ObjectRole::Lists || !self.checks_owner() {
            return Ok(None);
        }
        let now = gateway.clock.now();
        inbound.owner.rules(&gateway.store).await?.check_usable(now)?;
        let page = self.page()?;
        let kind = match &*self.endpoint.format.path {
            path if path.ends_with("/files") => ObjectKind::File,
            path if path.ends_with("/videos") => ObjectKind::Video,
            _ => ObjectKind::Batch,
        };
        let caller = object_caller(inbound)?;
        let at = self.listed_at.iter().map(|endpoint| endpoint.provider.name.clone());
        let providers: Vec<String> = at.collect();
        let read =
            move |conn: &mut _| provider_objects::list(conn, &caller, &providers, kind, &page, now);
        let (listed, has_more) = gateway.store.read(read).await?;
        let merchant_id = inbound.owner.merchant_id;
        let objects = listed.iter().map(|listed| self.object(listed, merchant_id, client));
        let mut objects: Vec<Value> = join_all(objects).await.into_iter().flatten().collect();
        if let Some(purpose) = self.endpoint.format.query("purpose") {
            objects.retain(|object| object.get("purpose").is_none_or(|it| *it == purpose));
        }
        if self.endpoint.format.dialect == Dialect::Google {
            let last = listed.last().filter(|_| has_more);
            let mut list = json!({"operations": objects});
            if let (Some(last), Some(list)) = (last, list.as_object_mut()) {
                list.insert("nextPageToken".to_owned(), json!(last.object_id));
            }
            return Ok(Some(list));
        }
        let id = |object: Option<&Value>| object.and_then(|object| object.get("id")).cloned();
        Ok(Some(json!({
            "object": "list",
            "first_id": id(objects.first()),
            "last_id": id(objects.last()),
            "has_more": has_more,
            "data": objects,
        })))
    }

    /// The page that the query asks for, in the words of OpenAI, Anthropic or Google.
    fn page(&self) -> Result<ObjectPage, CallError> {
        let query = |name: &str| self.endpoint.format.query(name);
        let named = |name: &str| query(name).filter(|id| !id.is_empty());
        let limits = ["limit", "pageSize", "page_size"];
        let limit = match limits.iter().find_map(|name| Some((*name, query(name)?))) {
            None => USUAL,
            Some(("pageSize" | "page_size", text)) if text == "0" => USUAL,
            Some((name, text)) => {
                text.parse().ok().filter(|limit| (1..=10_000).contains(limit)).ok_or_else(|| {
                    let message = "must be a number from 1 to 10000";
                    CallError::ParametersInvalid(vec![Issue::at([name], message)])
                })?
            }
        };
        let afters = ["after", "after_id", "pageToken", "page_token"];
        Ok(ObjectPage {
            limit: limit.min(MOST),
            after: afters.iter().find_map(|name| named(name)),
            before: named("before_id"),
            is_ascending: query("order").is_some_and(|order| order == "asc"),
        })
    }

    /// An object as its provider shows it. `None` if it does not.
    async fn object(
        &self,
        listed: &ListedObject,
        merchant_id: MerchantId,
        client: &ProviderClient,
    ) -> Option<Value> {
        let list = self.listed_at.iter().find(|list| list.provider.name == listed.provider)?;
        let path = format!("{}/{}", list.format.path, listed.object_id);
        let endpoint = list.provider.endpoint(&Method::GET, &path, None)?;
        let headers = match list.provider.name == self.endpoint.provider.name {
            true => self.headers.clone(),
            false => {
                let none = HeaderMap::new();
                request_headers(&none, &endpoint, &self.provider_key, merchant_id, false)
            }
        };
        let request = UpstreamRequest {
            endpoint: &endpoint,
            method: Method::GET,
            headers,
            body: RequestBody::default(),
            managed: self.managed,
        };
        let mut answer = client.send(request).await.ok()?;
        let mut operation = endpoint.format.answers_operation().then(OperationReader::default);
        let mut body = Vec::new();
        while let Some(piece) = answer.next().await {
            let piece = piece.ok()?;
            match &mut operation {
                // The answers of a batch are not shown in a list.
                Some(operation) => operation.skip_answers(&piece),
                None => body.extend_from_slice(&piece),
            }
            if body.len() > MAX_OBJECT_BYTES {
                return None;
            }
        }
        if let Some(operation) = operation {
            body = operation.rest().to_vec();
        }
        if let Some(base) = &self.results_base {
            body = with_results_at(base, &body).to_vec();
        }
        serde_json::from_slice(&body).ok().filter(|_| answer.status == 200)
    }
}
