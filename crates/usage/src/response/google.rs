//! Google's own answers: `generateContent`, embeddings, and `predict`, which makes images.
//!
//! `promptTokenCount` contains the cached tokens. The tokens of tools are beside it, as thoughts
//! are beside the candidates. A stream repeats its cumulative figures in every chunk, and has no
//! last event: it is whole once a reason to finish came with figures.
//!
//! Grounding with a search is no token. Up to Gemini 2.5 a prompt that searched costs once, however
//! often it searched; from Gemini 3 on each query costs. A model with an unknown number is counted
//! by the newer rule.

mod counts;
mod operation;

use std::sync::LazyLock;

use crate::headers::{Headers, header};
use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use self::counts::GoogleCounts;
pub(super) use self::operation::OperationExtractor;
use super::excerpt::Excerpt;
use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use super::json::{KeySearcher, ReportedCount, unix_seconds};
use crate::dialect::Api;
use crate::object::JsonObject;

/// The first version of Gemini that bills each search.
const EACH_SEARCH_COSTS_FROM: u32 = 3;

/// Gathers the usage of an answer.
pub(super) struct GoogleExtractor {
    api: Api,
    /// The requested model, for answers that do not name the one that served.
    asked: Option<String>,
    /// The number of requested images, for answers that are too large for a count.
    asked_images: u64,
    /// The tier that served the call, from a header. It may be lower than the requested one.
    served_tier: Option<String>,
    figures: GoogleCounts,
    malformed: bool,
    /// Whether nothing will be added.
    closed: bool,
    characters: ReportedCount,
    images: Option<u64>,
    /// The most queries that one report names.
    searches: u64,
    facts: ResponseFacts,
    text_bytes: u64,
}

impl GoogleExtractor {
    pub(super) fn new(
        api: Api,
        headers: &dyn Headers,
        asked: Option<String>,
        asked_images: u64,
    ) -> Self {
        let served_tier = header(headers, "x-gemini-service-tier");
        Self {
            api,
            asked,
            asked_images,
            served_tier: served_tier.map(|word| tier(word.to_owned())),
            figures: GoogleCounts::default(),
            malformed: false,
            closed: false,
            characters: ReportedCount::Absent,
            images: None,
            searches: 0,
            facts: ResponseFacts::default(),
            text_bytes: 0,
        }
    }

    fn absorb(&mut self, answer: &JsonObject<'_>) {
        let facts = &mut self.facts;
        answer.update_text("modelVersion", &mut facts.model);
        answer.update_text("responseId", &mut facts.response_id);
        let created = answer.text("createTime").and_then(|text| unix_seconds(&text));
        facts.created_unix_s = created.or(facts.created_unix_s);
        facts.provider_error |= answer.object("error").is_some();
        let mut searches = 0_u64;
        for candidate in answer.objects("candidates") {
            self.closed |= candidate.get("finishReason").is_some();
            if let Some(grounding) = candidate.object("groundingMetadata") {
                searches = searches.saturating_add(queries(&grounding));
            }
        }
        // A refused prompt has no candidates.
        self.closed |=
            answer.object("promptFeedback").is_some_and(|said| said.get("blockReason").is_some());
        if let Some(usage) = answer.get("usageMetadata") {
            self.absorb_usage(usage);
            // The message that ends a turn may have its usage, or come before it.
            self.closed |= self.api == Api::Live;
        }
        if let Some(content) = answer.object("serverContent")
            && let Some(grounding) = content.object("groundingMetadata")
        {
            searches = searches.saturating_add(queries(&grounding));
        }
        self.searches = self.searches.max(searches);
        if let Some(metadata) = answer.object("metadata") {
            self.characters.update(metadata.get("billableCharacterCount"));
        }
        if self.api == Api::Predict && answer.get("predictions").is_some() {
            let predictions = answer.objects("predictions");
            // A filtered image is reported in the place of an image, and costs nothing.
            let made = predictions.iter().filter(|image| image.get("raiFilteredReason").is_none());
            self.images = u64::try_from(made.count()).ok();
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        let Some(usage) = JsonObject::in_value(usage) else {
            self.malformed = true;
            return;
        };
        self.malformed = false;
        self.figures.take(&usage);
        let tier = usage.text("trafficType").or_else(|| usage.text("serviceTier")).map(tier);
        self.facts.service_tier = tier.or(self.facts.service_tier.take());
    }

    fn billed_searches(&self) -> u64 {
        let model = self.facts.model.as_ref().or(self.asked.as_ref());
        let number = model.and_then(|model| generation(model));
        if number.is_some_and(|number| number < EACH_SEARCH_COSTS_FROM) {
            self.searches.min(1)
        } else {
            self.searches
        }
    }

    fn input(&self) -> Option<PerUnit<u64>> {
        match self.api {
            Api::Predict => Some(PerUnit::default()),
            Api::EmbedContent => {
                self.figures.input().or_else(|| self.characters.count().map(|_| PerUnit::default()))
            }
            _ => self.figures.input(),
        }
    }

    /// The number of made images.
    fn image(&self) -> u64 {
        match self.api {
            Api::Predict => self.images.unwrap_or(self.asked_images.max(1)),
            _ => 0,
        }
    }

    fn output(&self) -> Option<PerUnit<u64>> {
        match self.api {
            // The output is not counted in tokens.
            Api::Predict | Api::EmbedContent => Some(PerUnit::default()),
            _ => self.figures.output(self.text_bytes > 0),
        }
    }
}

impl UsageExtractor for GoogleExtractor {
    fn usage_key(&self) -> &'static str {
        "usageMetadata"
    }

    fn excerpt(&mut self, name: &[u8], excerpt: &Excerpt) {
        if let Some(usage) = excerpt.object(self.usage_key()) {
            self.event(name, usage.as_bytes());
        }
        self.closed |= excerpt.mentions(b"\"finishReason\"");
    }

    fn event(&mut self, _: &[u8], data: &[u8]) -> StreamEventKind {
        let seen = KEYS.look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        if seen.tells
            && let Some(event) = JsonObject::of(data)
        {
            self.absorb(&event);
        }
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = KEYS.text_bytes(body);
        // A stream without a known content type is a list of answers.
        if body.trim_ascii_start().starts_with(b"[") {
            let Ok(answers) = serde_json::from_slice::<Vec<&RawValue>>(body) else {
                return self.text_bytes > 0;
            };
            answers
                .into_iter()
                .filter_map(JsonObject::in_value)
                .for_each(|each| self.absorb(&each));
            return true;
        }
        let Some(answer) = JsonObject::of(body) else { return self.text_bytes > 0 };
        self.absorb(&answer);
        self.closed = true;
        true
    }

    fn found(mut self: Box<Self>) -> ExtractedUsage {
        self.facts.service_tier = self.served_tier.take().or(self.facts.service_tier.take());
        let readable = !self.malformed
            && self.figures.readable()
            && self.characters != ReportedCount::Unreadable;
        let input = self.input().filter(|_| readable);
        let output = self.output().filter(|_| readable);
        let counted = self.api != Api::Predict || self.images.is_some();
        ExtractedUsage {
            is_final: self.closed && counted && input.is_some() && output.is_some(),
            total_differs: self.figures.total_differs(),
            input,
            output,
            others: PerUnit {
                web_search: self.billed_searches(),
                // The characters are the same text, so they do not count if tokens are stated.
                input_characters: match self.figures.input() {
                    Some(_) => 0,
                    None => self.characters.or_zero(),
                },
                image: self.image(),
                ..PerUnit::default()
            },
            facts: self.facts,
            text_bytes: self.text_bytes,
            ..ExtractedUsage::default()
        }
    }
}

/// The number of searches in a report, without empty queries.
fn queries(grounding: &JsonObject<'_>) -> u64 {
    let queries = grounding.get("webSearchQueries");
    let queries = queries.and_then(|list| serde_json::from_str::<Vec<String>>(list.get()).ok());
    let queries = queries.unwrap_or_default();
    u64::try_from(queries.iter().filter(|query| !query.trim().is_empty()).count()).unwrap_or(0)
}

/// The number after `gemini-` in the name of a model.
fn generation(model: &str) -> Option<u32> {
    let (_, version) = model.split_once("gemini-")?;
    version.split(['.', '-']).next()?.parse().ok()
}

/// The price lists' word for Google's. Vertex states how the traffic was paid for, and adds the
/// tier.
fn tier(word: String) -> String {
    let upper = word.to_ascii_uppercase();
    let upper = upper.strip_prefix("SERVICE_TIER_").unwrap_or(&upper);
    match upper {
        "PROVISIONED_THROUGHPUT" => "provisioned".to_owned(),
        "UNSPECIFIED" | "TRAFFIC_TYPE_UNSPECIFIED" => "standard".to_owned(),
        _ if upper.ends_with("PRIORITY") => "priority".to_owned(),
        _ if upper.ends_with("FLEX") => "flex".to_owned(),
        _ => word,
    }
}

static KEYS: LazyLock<KeySearcher> = LazyLock::new(|| {
    let telling = ["usageMetadata", "finishReason", "blockReason", "groundingMetadata", "error"];
    KeySearcher::new(&["text"], &telling)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_costs_by_the_model_that_made_it() {
        let searches = |model: Option<&str>, asked: Option<&str>| {
            let asked = asked.map(str::to_owned);
            let mut google =
                GoogleExtractor::new(Api::GenerateContent, &http::HeaderMap::new(), asked, 1);
            google.facts.model = model.map(str::to_owned);
            google.searches = 3;
            google.billed_searches()
        };
        assert_eq!(searches(Some("gemini-2.5-pro"), Some("gemini-3-pro")), 1);
        assert_eq!(searches(Some("gemini-3-pro-preview"), None), 3);
        assert_eq!(searches(Some("models/gemini-1.5-flash"), None), 1);
        assert_eq!(searches(None, Some("gemini-2.0-flash")), 1);
        assert_eq!(searches(None, Some("gemini-flash-latest")), 3, "by the newer rule");
        assert_eq!(searches(None, None), 3);
    }

    #[test]
    fn tiers_have_the_words_of_the_price_lists() {
        let table = [
            ("ON_DEMAND", "ON_DEMAND"),
            ("ON_DEMAND_PRIORITY", "priority"),
            ("ON_DEMAND_FLEX", "flex"),
            ("PROVISIONED_THROUGHPUT", "provisioned"),
            ("TRAFFIC_TYPE_UNSPECIFIED", "standard"),
            ("SERVICE_TIER_FLEX", "flex"),
            ("standard", "standard"),
            ("priority", "priority"),
        ];
        for (word, expected) in table {
            assert_eq!(tier(word.to_owned()), expected, "{word}");
        }
    }
}
