//! Files of requests for batches: one request in each line. They are checked when they are uploaded, and again against
//! the key that creates a batch of them.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_domain::admission::Refusal;
use tollgate_domain::{BatchRequests, Issue, SpendRules};
use tollgate_provider::http::Method;
use tollgate_usage::dialect::Api;
use tollgate_usage::{InspectedBody, MISSPELT, misspelt_key};

use crate::batch::{BatchPlanner, MAX_REQUESTS, YIELD_EVERY, price_fingerprint};
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::outbound::OutboundCall;
use crate::upload::{FORM_HINT, Upload};

/// A line of a file for a batch.
#[derive(Deserialize)]
struct BatchLine<'a> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// The keys of a line.
const LINE_KEYS: [&str; 4] = ["custom_id", "method", "url", "body"];

/// The body of `POST /batches`.
#[derive(Deserialize)]
struct FileBatch {
    input_file_id: String,
    endpoint: Option<String>,
}

/// The purpose of a file for a batch.
const BATCH: &str = "batch";
/// The purposes of files that are input of calls.
const INPUT_PURPOSES: [&str; 2] = ["user_data", "vision"];

impl Upload {
    /// The model of the first request in a file for a batch.
    pub(crate) async fn first_model(&self) -> Result<Option<String>, CallError> {
        if self.form.field("purpose") != Some(BATCH) {
            return Ok(None);
        }
        let mut lines = self.lines().await?;
        let first = lines.next().await?;
        let line = first.and_then(|(_, line)| serde_json::from_slice::<BatchLine<'_>>(line).ok());
        Ok(line.and_then(|line| InspectedBody::model_of(line.body.get().as_bytes(), None)))
    }
}

/// The id of the file that the body of `POST /batches` names.
pub(crate) fn file_of_batch(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<FileBatch>(body).ok().map(|batch| batch.input_file_id)
}

impl OutboundCall {
    /// Checks the requests in an uploaded file. Does nothing for another call.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] with the issues of all lines.
    pub async fn plan_file(
        &mut self,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<(), CallError> {
        let Some(upload) = &inbound.upload else {
            return match self.endpoint.format.creates_file() {
                true => Err(CallError::ContentTypeUnsupported(FORM_HINT.to_owned())),
                false => Ok(()),
            };
        };
        if self.endpoint.format.creates_file() {
            let rules = inbound.owner.rules(&gateway.store).await?;
            if !rules.request_shape.accepts(self.endpoint.shape()) {
                return Err(Refusal::RequestShapeMismatch { accepted: rules.request_shape }.into());
            }
            match upload.form.field("purpose") {
                Some(BATCH) => {
                    let requests =
                        self.requests_of_upload(upload, inbound, &rules, gateway).await?;
                    self.file = Some(Box::new(requests));
                }
                Some(purpose) if INPUT_PURPOSES.contains(&purpose) => {}
                _ if self.managed => {
                    let message = "must be batch, user_data or vision; for other files, use your own provider key";
                    return Err(CallError::BodyInvalid(vec![Issue::at(["purpose"], message)]));
                }
                _ => {}
            }
        }
        self.body = upload.body().await?;
        self._upload_room = Some(Rc::clone(&upload.room));
        Ok(())
    }

    /// The requests in a file for a batch, each checked like the body of a call of its own.
    async fn requests_of_upload(
        &self,
        upload: &Upload,
        inbound: &InboundCall,
        rules: &SpendRules,
        gateway: &Gateway,
    ) -> Result<BatchRequests, CallError> {
        let mut planner: Option<(BatchPlanner<'_>, String)> = None;
        let mut lines = upload.lines().await?;
        let mut count = 0_usize;
        while let Some((number, line)) = lines.next().await? {
            let number = number.to_string();
            let at = |field: &str, message: String| Issue::at(["file", &number, field], message);
            count = count.saturating_add(1);
            if count > MAX_REQUESTS {
                let message = format!("must have at most {MAX_REQUESTS} lines");
                return Err(CallError::BodyInvalid(vec![Issue::at(["file"], message)]));
            }
            let parsed: Result<BatchLine<'_>, _> = serde_json::from_slice(line);
            let (planner, url) = match &mut planner {
                Some(planner) => planner,
                // The first line names the endpoint of all.
                none => {
                    let line = parsed.as_ref().map_err(|why| unreadable(&number, why));
                    let line = line.map_err(|issue| CallError::BodyInvalid(vec![issue]))?;
                    let new = self.planner(&line.url, rules, gateway).ok_or_else(|| {
                        let message =
                            "is no endpoint of this provider whose requests can be in a batch";
                        CallError::BodyInvalid(vec![at("url", message.to_owned())])
                    })?;
                    none.insert((new, line.url.clone()))
                }
            };
            match parsed {
                Err(why) => planner.refuse(unreadable(&number, &why)),
                Ok(_) if let Some(key) = misspelt_key(line, &LINE_KEYS) => {
                    planner.refuse(at(&key, MISSPELT.to_owned()));
                }
                Ok(line) if line.method != "POST" => {
                    planner.refuse(at("method", "must be POST".to_owned()));
                }
                Ok(line) if line.url != *url => {
                    planner.refuse(at("url", format!("must be that of the first line, {url}")));
                }
                Ok(line) if line.custom_id.is_empty() => {
                    planner.refuse(at("custom_id", "must not be empty".to_owned()));
                }
                Ok(line) => planner.add(line.body.get().as_bytes(), &["file", &number, "body"])?,
            }
            if planner.is_full() {
                break;
            }
            if count.is_multiple_of(YIELD_EVERY) {
                tokio::task::yield_now().await;
            }
        }
        let (planner, _) = planner.ok_or_else(|| {
            CallError::BodyInvalid(vec![Issue::at(["file"], "must have at least one line")])
        })?;
        planner.finish(inbound)
    }

    /// The planner of requests to the endpoint at a path such as `/v1/chat/completions`. `None` if they cannot be in a
    /// batch.
    fn planner<'a>(
        &self,
        url: &str,
        rules: &'a SpendRules,
        gateway: &'a Gateway,
    ) -> Option<BatchPlanner<'a>> {
        let path = below_version(url);
        let provider = &self.endpoint.provider;
        let endpoint = gateway.providers.find_below(provider, &Method::POST, path, None)?;
        let api = endpoint.format.operation.filter(|operation| operation.metered)?.api;
        let is_possible = matches!(api, Api::Chat | Api::Responses | Api::Embeddings);
        is_possible.then(|| BatchPlanner::new(gateway, endpoint, rules, self.managed))
    }

    /// The requests of a batch by the file that its body names. The file was checked when it was uploaded; the key and
    /// the prices may have changed since.
    pub(crate) async fn requests_of_file(
        &self,
        inbound: &InboundCall,
        rules: &SpendRules,
        gateway: &Gateway,
    ) -> Result<BatchRequests, CallError> {
        let refuse = |message: String| {
            Err(CallError::BodyInvalid(vec![Issue::at(["input_file_id"], message)]))
        };
        if let Some(key) = misspelt_key(&inbound.body, &["input_file_id", "endpoint"]) {
            return Err(CallError::BodyInvalid(vec![Issue::at([&key], MISSPELT)]));
        }
        let batch = serde_json::from_slice::<FileBatch>(&inbound.body).ok();
        let owned = match &batch {
            Some(batch) => self.owned(&batch.input_file_id, inbound, gateway).await?,
            None => None,
        };
        let Some(requests) = owned.and_then(|file| file.requests) else {
            return match self.checks_owner() || rules.allowed_models.is_some() {
                true => refuse(
                    "is not the id of a file for a batch that belongs to this wallet".to_owned(),
                ),
                false => Ok(BatchRequests::unknown(&["input_file_id"])),
            };
        };
        let endpoint = batch.and_then(|batch| batch.endpoint);
        if endpoint.is_some_and(|endpoint| below_version(&endpoint) != requests.path) {
            let message = format!("must be that of the lines of the file, {}", requests.path);
            return Err(CallError::BodyInvalid(vec![Issue::at(["endpoint"], message)]));
        }
        let tariff = gateway.tariff(gateway.clock.now());
        for (model, fingerprint) in &requests.models {
            if !rules.allows_model(model) {
                return refuse(format!(
                    "has requests to {model:?}, which is not in the allowed_models of the spend key"
                ));
            }
            let listed = tariff.find(&self.endpoint.provider.name, Some(model));
            if price_fingerprint(listed) != *fingerprint {
                return refuse(format!(
                    "was uploaded when {model:?} had other prices; upload the file again"
                ));
            }
        }
        let unbounded = requests.unbounded.as_ref().map(|_| vec!["input_file_id".to_owned()]);
        Ok(BatchRequests { unbounded, ..requests })
    }
}

/// The path of a request below the version of the API.
pub(crate) fn below_version(path: &str) -> &str {
    path.strip_prefix("/v1").unwrap_or(path)
}

fn unreadable(number: &str, why: &serde_json::Error) -> Issue {
    let message = match why.is_data() {
        true => "must be an object with custom_id, method, url and body, each once".to_owned(),
        false => format!("is not JSON: column {}", why.column()),
    };
    Issue::at(["file", number], message)
}
