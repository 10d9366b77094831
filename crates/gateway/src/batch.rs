//! Batches: many requests in one call. Each is checked and bounded like the body of a call of its own, and each answer is
//! priced on its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tollgate_domain::admission::{CostBound, Refusal};
use tollgate_domain::{
    BatchRequests, Issue, MissingPrice, PendingRecord, PricedUsage, PricingTerms, RecordLine,
    SpendRules, Timestamp, UsageSource,
};
use tollgate_pricing::{BaseCost, PerUnit, PriceMatch, PriceSource, Rate, UnitPrices, Usage};
use tollgate_provider::Endpoint;
use tollgate_provider::http::Method;
use tollgate_usage::{InspectedBody, UsageReading};

use crate::batch_body::{BodyRequests, RequestList};
use crate::error::CallError;
use crate::gateway::Gateway;
use crate::inbound::InboundCall;
use crate::metrics::ProviderMetrics;
use crate::outbound::{BatchPlan, OutboundCall};
use crate::price::{PricedCall, PricedReading, input_estimate, price_reading};

/// The most requests of a batch.
pub(crate) const MAX_REQUESTS: usize = 50_000;
/// The number of requests after which other calls have their turn.
pub(crate) const YIELD_EVERY: usize = 64;
/// The most issues that a refusal lists.
const MAX_ISSUES: usize = 100;
/// The most models and tiers of a batch that are kept apart.
const MAX_LINES: usize = 64;
/// The bytes of a digest by which the prices of a model are compared.
const FINGERPRINT_BYTES: usize = 8;
/// The price list's name of the tier.
const BATCH_TIER: &str = "batch";

impl OutboundCall {
    /// Checks the requests of a batch, and bounds its cost by the sum of theirs. Does nothing for another call.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] with the issues of all requests.
    pub async fn plan_batch(
        &mut self,
        inbound: &InboundCall,
        gateway: &Gateway,
    ) -> Result<(), CallError> {
        if !self.endpoint.format.creates_batch() {
            return Ok(());
        }
        let rules = inbound.owner.rules(&gateway.store).await?;
        if !rules.request_shape.accepts(self.endpoint.shape()) {
            return Err(Refusal::RequestShapeMismatch { accepted: rules.request_shape }.into());
        }
        let format = &self.endpoint.format;
        let requests = if format.creates_batch_of_file() {
            self.requests_of_file(inbound, &rules, gateway).await?
        } else {
            let model = self.call_body.model.as_deref();
            match BodyRequests::of(format, model, &inbound.body)? {
                BodyRequests::Listed(list) => {
                    self.requests_of_body(list, inbound, &rules, gateway).await?
                }
                BodyRequests::InFile { path } if self.managed => {
                    let message = "a file needs your own provider key";
                    return Err(CallError::BodyInvalid(vec![Issue::at(path, message)]));
                }
                BodyRequests::InFile { path } => BatchRequests::unknown(&path),
            }
        };
        self.call_body.model = requests.model().cloned().or(self.call_body.model.take());
        self.batch = Some(Box::new(BatchPlan::of(requests)?));
        Ok(())
    }

    /// Checks the requests in the body of a batch.
    async fn requests_of_body(
        &self,
        requests: RequestList<'_>,
        inbound: &InboundCall,
        rules: &SpendRules,
        gateway: &Gateway,
    ) -> Result<BatchRequests, CallError> {
        let RequestList { path, key, bodies } = requests;
        if !(1..=MAX_REQUESTS).contains(&bodies.len()) {
            let message = format!("must have 1 to {MAX_REQUESTS} items");
            return Err(CallError::BodyInvalid(vec![Issue::at(["requests"], message)]));
        }
        let provider = &self.endpoint.provider;
        let endpoint = gateway.providers.find_below(provider, &Method::POST, &path, None);
        let endpoint = endpoint.ok_or(CallError::RouteNotSupported)?;
        let mut planner = BatchPlanner::new(gateway, endpoint, rules, self.managed);
        for (index, body) in bodies.into_iter().enumerate() {
            let number = index.to_string();
            planner.add(body.get().as_bytes(), &["requests", &number, key])?;
            if index.is_multiple_of(YIELD_EVERY) {
                tokio::task::yield_now().await;
            }
        }
        planner.finish(inbound)
    }
}

impl BatchPlan {
    /// The plan of a batch of these requests. The whole batch is one unit, at the sum of the most that they cost.
    fn of(requests: BatchRequests) -> Result<Self, CallError> {
        let BatchRequests { at_most, input_estimate, is_priced, unbounded, .. } = requests;
        let total = at_most.base.total().ok().and_then(|total| total.to_string().parse().ok());
        let total: Rate = total.ok_or(CallError::Refused(Refusal::BoundTooLarge))?;
        let prices = UnitPrices {
            request: Some(total),
            input: Some(Rate::ZERO),
            output: Some(Rate::ZERO),
            ..UnitPrices::default()
        };
        let bound = CostBound {
            input_tokens: at_most.usage.input_tokens(),
            max_tokens: at_most.usage.output_tokens(),
            answers: 1,
            prices: is_priced.then_some(prices),
            unbounded,
            ..CostBound::default()
        };
        Ok(Self { bound, input_estimate })
    }
}

/// The objects of batches whose `results_url` leads to `base`. Every other byte stays.
pub(crate) fn with_results_at(base: &str, objects: &[u8]) -> Bytes {
    const KEY: &[u8] = b"\"results_url\"";
    const PATH: &str = "/messages/batches/";
    // The text up to the end of the next URL, with the URL replaced, and the rest.
    let step = |rest: &[u8]| {
        let key = memchr::memmem::find(rest, KEY)?;
        let text = std::str::from_utf8(rest.get(key.saturating_add(KEY.len())..)?).ok()?;
        let value = text.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        let (url, after) = value.split_once('"')?;
        let (_, tail) = url.split_once(PATH)?;
        let before = rest.get(..rest.len().saturating_sub(value.len()))?;
        let replaced = [before, base.as_bytes(), PATH.as_bytes(), tail.as_bytes(), b"\""].concat();
        Some((replaced, after.len()))
    };
    let (mut all, mut rest) = (Vec::new(), objects);
    while let Some((replaced, left)) = step(rest) {
        all.extend(replaced);
        rest = rest.get(rest.len().saturating_sub(left)..).unwrap_or_default();
    }
    all.extend_from_slice(rest);
    all.into()
}

/// Checks the requests of a batch, and adds up their bounds.
pub(crate) struct BatchPlanner<'a> {
    gateway: &'a Gateway,
    /// The endpoint of a request that is made alone.
    endpoint: Arc<Endpoint>,
    rules: &'a SpendRules,
    managed: bool,
    now: Timestamp,
    issues: Vec<Issue>,
    missing: Vec<String>,
    requests: BatchRequests,
    is_too_large: bool,
}

impl<'a> BatchPlanner<'a> {
    pub(crate) fn new(
        gateway: &'a Gateway,
        endpoint: Arc<Endpoint>,
        rules: &'a SpendRules,
        managed: bool,
    ) -> Self {
        let requests = BatchRequests {
            path: endpoint.format.path.clone(),
            models: BTreeMap::new(),
            at_most: PricedUsage::nothing(),
            input_estimate: PricedUsage::nothing(),
            is_priced: true,
            unbounded: None,
        };
        Self {
            gateway,
            endpoint,
            rules,
            managed,
            now: gateway.clock.now(),
            issues: Vec::new(),
            missing: Vec::new(),
            requests,
            is_too_large: false,
        }
    }

    /// Whether the issues are as many as a refusal lists. Then no more requests are checked.
    pub(crate) fn is_full(&self) -> bool {
        self.issues.len() >= MAX_ISSUES
    }

    /// Adds an issue of a request that cannot be read.
    pub(crate) fn refuse(&mut self, issue: Issue) {
        self.issues.push(issue);
    }

    /// Checks and adds a request. `place` is the path to its body.
    pub(crate) fn add(&mut self, body: &[u8], place: &[&str]) -> Result<(), CallError> {
        if self.is_full() {
            return Ok(());
        }
        let within = |path: Vec<String>| {
            place.iter().map(|step| (*step).to_owned()).chain(path).collect::<Vec<_>>()
        };
        let request = match InspectedBody::inspect(body, &self.endpoint.format, self.managed) {
            Ok(request) => request,
            Err(issues) => {
                let issues = issues.into_iter();
                self.issues.extend(
                    issues.map(|one| Issue { path: within(one.path), message: one.message }),
                );
                return Ok(());
            }
        };
        let model = request.model.clone().unwrap_or_default();
        let issue =
            |field: &str, message: String| Issue { path: within(vec![field.to_owned()]), message };
        if !self.rules.allows_model(&model) {
            let message = format!("{model:?} is not in the allowed_models of the spend key");
            self.issues.push(issue("model", message));
        }
        for (field, is_set) in [("stream", request.stream), ("background", request.background)] {
            if is_set {
                self.issues.push(issue(field, "must not be true in a batch".to_owned()));
            }
        }
        let impossible = "is not possible in a batch with the managed key";
        let continued = [
            ("previous_response_id", &request.previous_response_id),
            ("conversation", &request.conversation),
        ];
        for (field, id) in continued {
            if id.is_some() {
                self.issues.push(issue(field, impossible.to_owned()));
            }
        }
        let files = request.files.iter().map(|file| within(file.path.clone()));
        self.issues.extend(files.map(|path| Issue { path, message: impossible.to_owned() }));
        let tariff = self.gateway.tariff(self.now);
        let provider = &self.endpoint.provider.name;
        let listed = tariff.find(provider, Some(&model));
        let bound = match tariff.batch_bound(&self.endpoint, &request, self.managed, listed) {
            Ok(bound) => bound,
            Err(CallError::PriceUnknown(found)) => {
                if found.path == ["model"] && !self.missing.contains(&model) {
                    self.missing.push(model);
                }
                self.issues.push(Issue { path: within(found.path), message: found.message });
                return Ok(());
            }
            // A request without a bound must not go out.
            Err(refused) => return Err(refused),
        };
        let models = &mut self.requests.models;
        models.entry(model).or_insert_with(|| price_fingerprint(listed));
        if let Some(path) = bound.unbounded.clone() {
            self.requests.unbounded.get_or_insert_with(|| within(path));
        }
        self.requests.is_priced &= bound.prices.is_some();
        self.sum(&bound, &input_estimate(&request, listed));
        Ok(())
    }

    fn sum(&mut self, bound: &CostBound, estimate: &PricedUsage) {
        let terms = PricingTerms {
            meter: None,
            counter: 0,
            service_charge_rate: Rate::ZERO,
            wallet_pays: true,
            base_due: true,
            fee_due: false,
        };
        let most =
            bound.hold(&terms).map(|most| (bound.max_usage(PriceSource::Catalog), most.base));
        let added = most.ok().and_then(|(most, base)| {
            let most = PricedUsage { base, ..most };
            let BatchRequests { at_most, input_estimate, .. } = &mut self.requests;
            for (all, one) in [(at_most, &most), (input_estimate, estimate)] {
                *all = all.checked_add(one).ok()?;
                all.usage_source = UsageSource::Estimated;
            }
            Some(())
        });
        self.is_too_large |= added.is_none();
    }

    /// The requests together.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] with the issues of all requests.
    pub(crate) fn finish(mut self, inbound: &InboundCall) -> Result<BatchRequests, CallError> {
        for model in &self.missing {
            let missing = MissingPrice::of_model(&self.endpoint.provider.name, model);
            self.gateway.store.report_missing_price(inbound.owner.merchant_id, missing);
        }
        if !self.issues.is_empty() {
            self.issues.truncate(MAX_ISSUES);
            return Err(CallError::BodyInvalid(self.issues));
        }
        match self.is_too_large {
            true => Err(CallError::Refused(Refusal::BoundTooLarge)),
            false => Ok(self.requests),
        }
    }
}

/// A short text that differs if the prices of a model differ. Empty for a model without a price.
pub(crate) fn price_fingerprint(listed: Option<PriceMatch<'_>>) -> String {
    let row = listed.and_then(|listed| serde_json::to_vec(listed.row).ok());
    let digest = row.map(Sha256::digest);
    let digits = digest.iter().flat_map(|digest| digest.iter().take(FINGERPRINT_BYTES));
    digits.map(|byte| format!("{byte:02x}")).collect()
}

/// The answers to the requests of a batch, priced one by one.
#[derive(Default)]
pub(crate) struct BatchTotals {
    lines: BTreeMap<(String, String), RecordLine>,
    usage: Usage,
    base: BaseCost,
    answers: u64,
    is_estimated: bool,
    price_source: Option<PriceSource>,
    missing: Option<MissingPrice>,
    overflows: bool,
}

impl BatchTotals {
    /// Adds the answer to a request.
    pub(crate) fn add(
        &mut self,
        mut reading: UsageReading,
        call: &PendingRecord,
        gateway: &Gateway,
        metrics: &ProviderMetrics,
    ) {
        if !reading.tiers.iter().any(|tier| tier == BATCH_TIER) {
            reading.tiers.push(BATCH_TIER.to_owned());
        }
        let call = PricedCall {
            provider: &call.forwarded.provider,
            // The model of all requests, if they have one.
            requested: call.forwarded.model.as_deref(),
            answers: 1,
            came_in: call.created_at,
        };
        let PricedReading { priced, missing, .. } =
            price_reading(&reading, &call, gateway, metrics);
        let model = reading.model.unwrap_or_default();
        let mut key = (model, reading.tiers.join("+"));
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&key) {
            key = ("other models".to_owned(), BATCH_TIER.to_owned());
        }
        let line = self.lines.entry(key.clone()).or_insert_with(|| RecordLine {
            model: key.0,
            tier: key.1,
            requests: 0,
            usage: Usage::default(),
            base: BaseCost::default(),
        });
        line.requests = line.requests.saturating_add(1);
        line.usage.quantities = PerUnit::sum(&line.usage.quantities, &priced.usage.quantities);
        self.usage.quantities = PerUnit::sum(&self.usage.quantities, &priced.usage.quantities);
        match (line.base.checked_add(priced.base), self.base.checked_add(priced.base)) {
            (Ok(of_line), Ok(of_all)) => (line.base, self.base) = (of_line, of_all),
            _ => self.overflows = true,
        }
        self.answers = self.answers.saturating_add(1);
        self.is_estimated |= priced.usage_source == UsageSource::Estimated;
        // A price that is not known stands for the whole.
        let source = match (self.price_source, priced.price_source) {
            (Some(PriceSource::Unpriced), _) | (_, PriceSource::Unpriced) => PriceSource::Unpriced,
            (_, source) => source,
        };
        self.price_source = Some(source);
        self.missing = self.missing.take().or(missing);
    }

    /// The number of answers.
    pub(crate) const fn answers(&self) -> u64 {
        self.answers
    }

    /// The usage and cost of all answers, by model and tier.
    pub(crate) fn finish(self) -> (PricedReading, Vec<RecordLine>) {
        if self.overflows {
            log::error!("a batch costs more than an amount can say");
        }
        let base = if self.overflows { BaseCost::default() } else { self.base };
        let mut usage = self.usage;
        // The call is one request, whatever its answers count.
        usage.quantities.request = 1;
        let priced = PricedUsage {
            usage,
            usage_source: match self.is_estimated {
                true => UsageSource::Estimated,
                false => UsageSource::Reported,
            },
            base,
            price_source: match self.price_source {
                Some(_) if self.overflows => PriceSource::Unpriced,
                source => source.unwrap_or(PriceSource::Catalog),
            },
        };
        let priced = if self.answers > 0 { priced } else { PricedUsage::nothing() };
        let reading = PricedReading { priced, applied: Vec::new(), missing: self.missing };
        (reading, self.lines.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_results_leads_here_and_every_other_byte_stays() {
        let replaced = |object: &str| {
            let bytes = with_results_at("http://here/v1", object.as_bytes());
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        assert_eq!(
            replaced(
                r#"{"id":"b","results_url" : "https://api.anthropic.com/v1/messages/batches/b/results","x":1}"#
            ),
            r#"{"id":"b","results_url" : "http://here/v1/messages/batches/b/results","x":1}"#
        );
        let list = |base: &str| {
            format!(
                r#"[{{"results_url":"{base}/messages/batches/a"}},{{"results_url":"{base}/messages/batches/b"}}]"#
            )
        };
        assert_eq!(replaced(&list("https://x.example/v1")), list("http://here/v1"));
        for same in
            ["{}", r#"{"results_url":null}"#, r#"{"results_url":"https://elsewhere/b"}"#, "no"]
        {
            assert_eq!(replaced(same), same);
        }
    }
}
