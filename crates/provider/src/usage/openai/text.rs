//! All answers but those of speech and images: their text, and the figures beside it.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::value::RawValue;
use tollgate_pricing::{Amount, Part, PerUnit};

use super::figures::{Figures, Thoughts};
use super::tools;
use crate::dialect::Api;
use crate::number::amount;
use crate::object::{Inner, Object};
use crate::usage::extractor::{EventKind, Extract, Facts, Found, sides};
use crate::usage::json::{Figure, Keys};

/// Streams say who they are in their first event; a few are looked at, not all.
const INTRODUCTORY_EVENTS: u32 = 4;

/// What is looked into wherever it stands in an answer.
const LOOKED_INTO: Inner = |key| {
    matches!(
        key,
        "usage"
            | "response"
            | "prompt_tokens_details"
            | "completion_tokens_details"
            | "input_tokens_details"
            | "output_tokens_details"
    )
};

const RESPONSE_ENDS: [&[u8]; 3] =
    [b"response.completed", b"response.incomplete", b"response.failed"];

/// Gathers what an answer says.
pub(in crate::usage) struct OpenAi {
    api: Api,
    thoughts: Thoughts,
    events: u32,
    figures: Figures,
    /// The last usage was there and was no object.
    malformed: bool,
    /// Nothing will be added to the figures: some providers report in every event, so that only
    /// what comes with or behind the end of the text is the whole.
    pub(super) closed: bool,
    tools: PerUnit<u64>,
    /// What images used that the answer made, by the model that drew them.
    images: Option<Part>,
    pages: Figure,
    seconds: Option<u64>,
    cost: Option<Amount>,
    /// What each model used, where several served the call.
    parts: Vec<Part>,
    facts: Facts,
    pub(super) text_bytes: u64,
}

impl OpenAi {
    pub(in crate::usage) fn new(api: Api, thoughts: Thoughts) -> Self {
        Self {
            api,
            thoughts,
            events: 0,
            figures: Figures::default(),
            malformed: false,
            closed: false,
            tools: PerUnit::default(),
            images: None,
            pages: Figure::Absent,
            seconds: None,
            cost: None,
            parts: Vec::new(),
            facts: Facts::default(),
            text_bytes: 0,
        }
    }

    fn stream_keys(&self) -> &'static Keys {
        // The events of a response repeat at its end what their deltas said.
        if self.api == Api::Chat { &BODY_KEYS } else { &DELTA_KEYS }
    }

    /// Takes what an answer says, and the usage that stands in it.
    fn absorb(&mut self, answer: &Object<'_>, usage: Option<Stated<'_, '_>>) {
        let facts = &mut self.facts;
        answer.tell("model", &mut facts.model);
        answer.tell("id", &mut facts.response_id);
        answer.tell("service_tier", &mut facts.service_tier);
        let mut created = Figure::Absent;
        created.take(answer.any(&["created", "created_at"]));
        facts.created_unix_s =
            created.count().and_then(|s| i64::try_from(s).ok()).or(facts.created_unix_s);
        facts.provider_error |=
            answer.object("error").is_some() || answer.text("status").as_deref() == Some("failed");
        if answer.get("output").is_some() {
            let items = answer.objects("output");
            self.tools = tools::most(&self.tools, &tools::calls(&items));
            self.images = tools::images(answer, &items).or(self.images.take());
        }
        if let Some(read) = answer.object("usage_info") {
            self.pages.take(read.get("pages_processed"));
        }
        if self.api == Api::Ocr && self.pages == Figure::Absent && answer.get("pages").is_some() {
            // Nothing is reported beside the pages themselves.
            self.pages = Figure::Count(u64::try_from(answer.objects("pages").len()).unwrap_or(0));
        }
        if let Some(usage) = usage {
            self.absorb_usage(usage);
        }
        if let Some(breakdown) = answer.object("usage_breakdown") {
            self.parts = breakdown.objects("models").iter().filter_map(part).collect();
        }
    }

    fn absorb_usage(&mut self, usage: Stated<'_, '_>) {
        self.malformed = usage.is_err();
        let Ok(usage) = usage else { return };
        self.figures.take(&usage);
        self.seconds = usage
            .any(&["seconds", "prompt_audio_seconds"])
            .and_then(|seconds| crate::number::micros(seconds.get()))
            .or(self.seconds);
        self.cost = cost(&usage).or(self.cost);
    }

    /// What went in and what came out, as far as it is reported.
    fn reported(&self) -> (Option<PerUnit<u64>>, Option<PerUnit<u64>>) {
        if !self.parts.is_empty() {
            let (input, output) = sides(&self.parts);
            return (Some(input), Some(output));
        }
        let is_readable = !self.malformed && self.figures.readable();
        let input = self.figures.input(self.api).filter(|_| is_readable);
        let output = self.figures.output(self.api, self.thoughts).filter(|_| is_readable);
        match self.is_pages_only() {
            true => (Some(input.unwrap_or_default()), Some(output.unwrap_or_default())),
            false => (input, output),
        }
    }

    /// Whether reading documents is all that the answer reports: it costs by the page.
    fn is_pages_only(&self) -> bool {
        self.api == Api::Ocr && self.pages.count().is_some()
    }
}

/// A usage, if what stands under its name is one.
type Stated<'o, 'a> = Result<Cow<'o, Object<'a>>, Malformed>;

struct Malformed;

/// Where usage stands: beside the choices, as Groq has it in a stream, or as Moonshot has it, within
/// the choice that ends.
fn usage_of<'o, 'a>(answer: &'o Object<'a>) -> Option<Stated<'o, 'a>> {
    if answer.has("usage") {
        return Some(answer.object("usage").ok_or(Malformed));
    }
    let within = |inner: &Object<'a>| {
        let usage = inner.object("usage").map(|usage| Cow::Owned(usage.into_owned()));
        inner.has("usage").then(|| usage.ok_or(Malformed))
    };
    let of_groq = answer.object("x_groq").and_then(|groq| within(&groq));
    of_groq.or_else(|| answer.objects("choices").iter().find_map(within))
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
    figures.take(entry.object("usage")?.as_ref());
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
        let seen = self.stream_keys().look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        let introduced = self.facts.model.is_some() || self.events > INTRODUCTORY_EVENTS;
        let telling = name == b"error" || seen.tells;
        if introduced && !telling {
            return EventKind::Content;
        }
        let event = Object::with_inner(data, LOOKED_INTO);
        let Some(event) = event else { return EventKind::Content };
        let is_empty = event.get("choices").map(is_empty_list);
        // Without a value under that name anywhere there is none to be sought.
        let usage = seen.tells.then(|| usage_of(&event)).flatten();
        if usage.is_some() {
            self.closed = is_empty != Some(false) || FINISH.look(data).tells;
        }
        self.facts.provider_error |=
            name == b"error" || event.text("type").as_deref() == Some("error");
        match event.object("response") {
            Some(response) => {
                self.closed |= is_end(&event);
                let usage = seen.tells.then(|| usage_of(&response)).flatten();
                self.absorb(&response, usage);
            }
            None => self.absorb(&event, usage),
        }
        match event.has("usage") && is_empty == Some(true) {
            true => EventKind::UsageOnly,
            false => EventKind::Content,
        }
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let body = without_comments(body);
        let answer = Object::with_inner(body, LOOKED_INTO);
        if let Some(answer) = &answer {
            self.closed = true;
            self.absorb(answer, usage_of(answer));
        }
        // What is reported in full is never estimated.
        if !matches!(self.reported(), (Some(_), Some(_))) {
            self.text_bytes = BODY_KEYS.text_bytes(body);
        }
        answer.is_some() || self.text_bytes > 0
    }

    fn found(mut self: Box<Self>) -> Found {
        let (mut input, mut output) = self.reported();
        if let Some(images) = self.images.take() {
            let add = |side: PerUnit<u64>, more| PerUnit::sum(&side, &more);
            input = input.map(|input| add(input, images.quantities.inputs()));
            output = output.map(|output| add(output, images.quantities.outputs()));
            self.parts.push(images);
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

static BODY_KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let texts = ["content", "reasoning_content", "reasoning", "arguments", "refusal", "text"];
    Keys::new(&texts, TELLING)
});
pub(super) static DELTA_KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(&["delta"], TELLING));
static FINISH: LazyLock<Keys> = LazyLock::new(|| Keys::new(&[], &["finish_reason"]));
const TELLING: &[&str] = &["usage", "error"];

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
