//! OpenAI's answers, and those that are shaped like them.
//!
//! Chat, completions and embeddings say `prompt_tokens` and `completion_tokens`, responses and the
//! rest say `input_tokens` and `output_tokens`; both contain their details, so what is cached,
//! audio or reasoning is taken out of the total before the rest is called text. Other providers
//! speak the same format with fields of their own; each is read wherever it stands, for no two mean
//! different things by one name.

mod figures;
mod media;
mod tools;

use serde_json::value::RawValue;
use tollgate_pricing::{Amount, Part, PerUnit};

use self::figures::Figures;
pub(super) use self::figures::Thoughts;
pub(super) use self::media::Media;
use super::extractor::Extract;
use super::json::{Figure, look, mentions, text_bytes};
use super::{EventKind, Facts, Found, sides};
use crate::dialect::Api;
use crate::number::amount;
use crate::object::Object;

/// Streams say who they are in their first event; a few are looked at, not all.
const INTRODUCTORY_EVENTS: u32 = 4;

const RESPONSE_ENDS: [&[u8]; 3] =
    [b"response.completed", b"response.incomplete", b"response.failed"];

/// Gathers what an answer says.
pub(super) struct OpenAi {
    api: Api,
    thoughts: Thoughts,
    events: u32,
    figures: Figures,
    /// The last usage was there and was no object.
    malformed: bool,
    /// Nothing will be added to the figures: some providers report in every event, so that only
    /// what comes with or behind the end of the text is the whole.
    closed: bool,
    tools: PerUnit<u64>,
    pages: Figure,
    seconds: Option<u64>,
    cost: Option<Amount>,
    /// What each model used, where several served the call.
    parts: Vec<Part>,
    facts: Facts,
    text_bytes: u64,
}

impl OpenAi {
    pub(super) fn new(api: Api, thoughts: Thoughts) -> Self {
        Self {
            api,
            thoughts,
            events: 0,
            figures: Figures::default(),
            malformed: false,
            closed: false,
            tools: PerUnit::default(),
            pages: Figure::Absent,
            seconds: None,
            cost: None,
            parts: Vec::new(),
            facts: Facts::default(),
            text_bytes: 0,
        }
    }

    fn stream_keys(&self) -> &'static [&'static [u8]] {
        // The events of a response repeat at its end what their deltas said.
        if self.api == Api::Chat { BODY_KEYS } else { &[b"delta"] }
    }

    fn absorb(&mut self, answer: &Object<'_>) {
        let facts = &mut self.facts;
        facts.model = answer.text("model").or(facts.model.take());
        facts.response_id = answer.text("id").or(facts.response_id.take());
        facts.service_tier = answer.text("service_tier").or(facts.service_tier.take());
        let mut created = Figure::Absent;
        created.take(answer.any(&["created", "created_at"]));
        facts.created_unix_s =
            created.count().and_then(|s| i64::try_from(s).ok()).or(facts.created_unix_s);
        facts.provider_error |=
            answer.object("error").is_some() || answer.text("status").as_deref() == Some("failed");
        if answer.get("output").is_some() {
            let seen = tools::calls(&answer.objects("output"));
            self.tools = tools::most(&self.tools, &seen);
        }
        if let Some(read) = answer.object("usage_info") {
            self.pages.take(read.get("pages_processed"));
        }
        if self.api == Api::Ocr && self.pages == Figure::Absent && answer.get("pages").is_some() {
            // Nothing is reported beside the pages themselves.
            self.pages = Figure::Count(u64::try_from(answer.objects("pages").len()).unwrap_or(0));
        }
        if let Some(usage) = usage_of(answer) {
            self.absorb_usage(usage);
        }
        if let Some(breakdown) = answer.object("usage_breakdown") {
            self.parts = breakdown.objects("models").iter().filter_map(part).collect();
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        let Some(usage) = Object::in_value(usage) else {
            self.malformed = true;
            return;
        };
        self.malformed = false;
        self.figures.take(&usage);
        self.seconds = usage
            .any(&["seconds", "prompt_audio_seconds"])
            .and_then(|seconds| crate::number::micros(seconds.get()))
            .or(self.seconds);
        self.cost = cost(&usage).or(self.cost);
    }

    /// Whether reading documents is all that the answer reports: it costs by the page.
    fn is_pages_only(&self) -> bool {
        self.api == Api::Ocr && self.pages.count().is_some()
    }
}

/// Where usage stands: beside the choices, as Groq has it in a stream, or as Moonshot has it, within
/// the choice that ends.
fn usage_of<'a>(answer: &Object<'a>) -> Option<&'a RawValue> {
    let within = |key: &str| answer.object(key).and_then(|inner| inner.get("usage"));
    let in_choice = || answer.objects("choices").iter().find_map(|choice| choice.get("usage"));
    answer.get("usage").or_else(|| within("x_groq")).or_else(in_choice)
}

/// The cost that a provider states itself: its own words for it, each with what it means.
fn cost(usage: &Object<'_>) -> Option<Amount> {
    // Ten decimals: a tick of xAI's is the smallest amount.
    if let Some(ticks) = usage.get("cost_in_usd_ticks") {
        let ticks: i64 = ticks.get().trim_matches('"').parse().ok()?;
        return Some(ticks).filter(|ticks| *ticks >= 0).map(Amount::from_units);
    }
    let stated = usage.any(&["cost", "estimated_cost"])?;
    // Perplexity's tells its parts apart.
    if let Some(parts) = Object::in_value(stated) {
        return amount(parts.get("total_cost")?.get());
    }
    let own = amount(stated.get())?;
    let is_fee_only = usage.get("is_byok").is_some_and(|byok| byok.get() == "true");
    if !is_fee_only {
        return Some(own);
    }
    // OpenRouter called with a key stored there: what it states is its fee.
    let details = usage.object("cost_details")?;
    own.checked_add(amount(details.get("upstream_inference_cost")?.get())?).ok()
}

/// One model of several, as Groq's compound systems report them.
fn part(entry: &Object<'_>) -> Option<Part> {
    let mut figures = Figures::default();
    figures.take(&entry.object("usage")?);
    let quantities =
        PerUnit::sum(&figures.input(Api::Chat)?, &figures.output(Api::Chat, Thoughts::Within)?);
    Some(Part { model: entry.text("model"), quantities })
}

impl Extract for OpenAi {
    fn ends(&self) -> &'static [&'static [u8]] {
        &[
            b"data: [DONE]",
            b"data:[DONE]",
            b"event: response.completed",
            b"event: response.incomplete",
            b"event: response.failed",
            b"event:response.completed",
            b"event:response.incomplete",
            b"event:response.failed",
            b"data: {\"type\":\"response.completed\"",
            b"data: {\"type\":\"response.incomplete\"",
            b"data: {\"type\":\"response.failed\"",
        ]
    }

    /// Judged by the first field that shows it.
    fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        if data.trim_ascii() == b"[DONE]" || RESPONSE_ENDS.contains(&name) {
            return true;
        }
        let unnamed_end = self.api != Api::Chat
            && name.is_empty()
            && RESPONSE_ENDS.iter().any(|end| memchr::memmem::find(data, end).is_some());
        unnamed_end && Object::of(data).is_some_and(|event| is_end(&event))
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        if data.trim_ascii() == b"[DONE]" {
            self.closed = true;
            return EventKind::Content;
        }
        self.events = self.events.saturating_add(1);
        let seen = look(data, self.stream_keys(), &[b"usage", b"error"]);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        let introduced = self.facts.model.is_some() || self.events > INTRODUCTORY_EVENTS;
        let telling = name == b"error" || seen.tells;
        if introduced && !telling {
            return EventKind::Content;
        }
        let Some(event) = Object::of(data) else { return EventKind::Content };
        let is_empty = event.get("choices").map(is_empty_list);
        if usage_of(&event).is_some() {
            self.closed = is_empty != Some(false) || mentions(data, b"finish_reason");
        }
        self.facts.provider_error |=
            name == b"error" || event.text("type").as_deref() == Some("error");
        match event.object("response") {
            Some(response) => {
                self.closed |= is_end(&event);
                self.absorb(&response);
            }
            None => self.absorb(&event),
        }
        match event.get("usage").is_some() && is_empty == Some(true) {
            true => EventKind::UsageOnly,
            false => EventKind::Content,
        }
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let body = without_comments(body);
        self.text_bytes = text_bytes(body, BODY_KEYS);
        let Some(answer) = Object::of(body) else { return self.text_bytes > 0 };
        self.closed = true;
        self.absorb(&answer);
        true
    }

    fn found(self: Box<Self>) -> Found {
        let readable = !self.malformed && self.figures.readable();
        let mut input = self.figures.input(self.api).filter(|_| readable);
        let mut output = self.figures.output(self.api, self.thoughts).filter(|_| readable);
        if self.is_pages_only() {
            input = Some(input.unwrap_or_default());
            output = Some(output.unwrap_or_default());
        }
        if !self.parts.is_empty() {
            let (all_input, all_output) = sides(&self.parts);
            (input, output) = (Some(all_input), Some(all_output));
        }
        Found {
            is_final: self.closed && input.is_some() && output.is_some(),
            total_differs: self.figures.total_differs(self.api, self.thoughts),
            input,
            output,
            others: PerUnit {
                page: self.pages.or_zero(),
                input_second: self.seconds.unwrap_or(0),
                ..self.tools
            },
            parts: self.parts,
            cost: self.cost,
            facts: self.facts,
            text_bytes: self.text_bytes,
        }
    }
}

const BODY_KEYS: &[&[u8]] =
    &[b"content", b"reasoning_content", b"reasoning", b"arguments", b"refusal", b"text"];

fn is_end(event: &Object<'_>) -> bool {
    event.text("type").is_some_and(|kind| RESPONSE_ENDS.contains(&kind.as_bytes()))
}

fn is_empty_list(value: &RawValue) -> bool {
    let inner = value.get().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim().is_empty())
}

/// A body without the comment lines that some providers send before it while a call waits.
fn without_comments(body: &[u8]) -> &[u8] {
    let mut rest = body.trim_ascii_start();
    while rest.starts_with(b":") {
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        rest = rest.get(end..).unwrap_or_default().trim_ascii_start();
    }
    rest
}
