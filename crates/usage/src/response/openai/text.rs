//! All answers except speech and images: their text, and their figures.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::value::RawValue;
use tollgate_pricing::{Amount, PerModelUsage, PerUnit};

use super::counts::{OpenAiCounts, ReasoningPlacement};
use super::tools;
use crate::dialect::Api;
use crate::number::amount;
use crate::object::{JsonObject, NestedKeys};
use crate::response::extractor::{
    ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor, sides,
};
use crate::response::json::{KeySearcher, ReportedCount};
use crate::response::reading::ObjectState;

/// The number of first events that are parsed for the model. Streams name it in their first event.
const INTRODUCTORY_EVENTS: u32 = 4;

/// The keys of objects that are parsed wherever they occur in an answer.
const LOOKED_INTO: NestedKeys = |key| {
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

const RESPONSE_ENDS: [&[u8]; 4] =
    [b"response.completed", b"response.incomplete", b"response.failed", b"response.done"];

/// The end of the types of messages with sound.
const SOUND_DELTA: &[u8] = b"audio.delta\"";

/// Gathers the usage of an answer.
pub(in crate::response) struct OpenAiExtractor {
    api: Api,
    thoughts: ReasoningPlacement,
    events: u32,
    figures: OpenAiCounts,
    /// Whether the last usage was not an object.
    malformed: bool,
    /// Whether no figures are added any more. Some providers report in every event, so only the
    /// usage at or after the end of the text is whole.
    pub(super) closed: bool,
    tools: PerUnit<u64>,
    /// The usage of images in the answer, by the model that drew them.
    images: Option<PerModelUsage>,
    pages: ReportedCount,
    seconds: Option<u64>,
    cost: Option<Amount>,
    /// The usage of each model, if several served the call.
    parts: Vec<PerModelUsage>,
    facts: ResponseFacts,
    pub(super) text_bytes: u64,
}

impl OpenAiExtractor {
    pub(in crate::response) fn new(api: Api, thoughts: ReasoningPlacement) -> Self {
        Self {
            api,
            thoughts,
            events: 0,
            figures: OpenAiCounts::default(),
            malformed: false,
            closed: false,
            tools: PerUnit::default(),
            images: None,
            pages: ReportedCount::Absent,
            seconds: None,
            cost: None,
            parts: Vec::new(),
            facts: ResponseFacts::default(),
            text_bytes: 0,
        }
    }

    fn stream_keys(&self) -> &'static KeySearcher {
        // The last events of a response repeat the text of its deltas.
        if self.api == Api::Chat { &BODY_KEYS } else { &DELTA_KEYS }
    }

    /// Takes the facts of an answer, and its usage.
    fn absorb(&mut self, answer: &JsonObject<'_>, usage: Option<StatedUsage<'_, '_>>) {
        let facts = &mut self.facts;
        answer.update_text("model", &mut facts.model);
        answer.update_text("id", &mut facts.response_id);
        answer.update_text("service_tier", &mut facts.service_tier);
        let mut created = ReportedCount::Absent;
        created.update(answer.get_any(&["created", "created_at"]));
        facts.created_unix_s =
            created.count().and_then(|s| i64::try_from(s).ok()).or(facts.created_unix_s);
        facts.provider_error |=
            answer.object("error").is_some() || answer.text("status").as_deref() == Some("failed");
        if self.api == Api::Responses {
            facts.object_state =
                answer.text("status").and_then(|word| object_state(&word)).or(facts.object_state);
        }
        if answer.get("output").is_some() {
            let items = answer.objects("output");
            self.tools = tools::most(&self.tools, &tools::calls(&items));
            self.images = tools::images(answer, &items).or(self.images.take());
        }
        if let Some(read) = answer.object("usage_info") {
            self.pages.update(read.get("pages_processed"));
        }
        if self.api == Api::Ocr
            && self.pages == ReportedCount::Absent
            && answer.get("pages").is_some()
        {
            // No usage is reported beside the pages.
            self.pages =
                ReportedCount::Count(u64::try_from(answer.objects("pages").len()).unwrap_or(0));
        }
        if let Some(usage) = usage {
            self.absorb_usage(usage);
        }
        if let Some(breakdown) = answer.object("usage_breakdown") {
            self.parts = breakdown.objects("models").iter().filter_map(part).collect();
        }
    }

    fn absorb_usage(&mut self, usage: StatedUsage<'_, '_>) {
        self.malformed = usage.is_err();
        let Ok(usage) = usage else { return };
        self.figures.update(&usage);
        self.seconds = usage
            .get_any(&["seconds", "prompt_audio_seconds"])
            .and_then(|seconds| crate::number::micros(seconds.get()))
            .or(self.seconds);
        self.cost = cost(&usage).or(self.cost);
    }

    /// The input and the output, as far as they are reported.
    fn reported(&self) -> (Option<PerUnit<u64>>, Option<PerUnit<u64>>) {
        if !self.parts.is_empty() {
            let (input, output) = sides(&self.parts);
            return (Some(input), Some(output));
        }
        let is_readable = !self.malformed && self.figures.readable();
        let input = self.figures.input(self.api).filter(|_| is_readable);
        let output = self.figures.output(self.api, self.thoughts).filter(|_| is_readable);
        match self.is_pages_only() || self.is_seconds_only() {
            true => (Some(input.unwrap_or_default()), Some(output.unwrap_or_default())),
            false => (input, output),
        }
    }

    /// Whether a response on a socket reports its time, by which it is billed.
    fn is_seconds_only(&self) -> bool {
        self.api == Api::Realtime && self.seconds.is_some()
    }

    /// Whether the answer reports only pages, by which document reading is billed.
    fn is_pages_only(&self) -> bool {
        self.api == Api::Ocr && self.pages.count().is_some()
    }
}

/// A usage, if the value under its key is one.
type StatedUsage<'o, 'a> = Result<Cow<'o, JsonObject<'a>>, MalformedUsage>;

struct MalformedUsage;

/// The usage in its usual place, or where Groq and Moonshot put it in a stream. Moonshot puts it
/// within the last choice.
fn usage_of<'o, 'a>(answer: &'o JsonObject<'a>) -> Option<StatedUsage<'o, 'a>> {
    if answer.has("usage") {
        return Some(answer.object("usage").ok_or(MalformedUsage));
    }
    let within = |inner: &JsonObject<'a>| {
        let usage = inner.object("usage").map(|usage| Cow::Owned(usage.into_owned()));
        inner.has("usage").then(|| usage.ok_or(MalformedUsage))
    };
    let of_groq = answer.object("x_groq").and_then(|groq| within(&groq));
    of_groq.or_else(|| answer.objects("choices").iter().find_map(within))
}

/// The cost that a provider states, under each provider's names.
fn cost(usage: &JsonObject<'_>) -> Option<Amount> {
    // The unit of xAI is the smallest amount, with ten decimals.
    if let Some(ticks) = usage.get("cost_in_usd_ticks") {
        let ticks: i64 = ticks.get().trim_matches('"').parse().ok()?;
        return Some(ticks).filter(|ticks| *ticks >= 0).map(Amount::from_units);
    }
    let stated = usage.get_any(&["cost", "estimated_cost"])?;
    // Perplexity states the cost in parts.
    if let Some(parts) = JsonObject::in_value(stated) {
        return amount(parts.get("total_cost")?.get());
    }
    let own = amount(stated.get())?;
    let is_fee_only = usage.get("is_byok").is_some_and(|byok| byok.get() == "true");
    if !is_fee_only {
        return Some(own);
    }
    // OpenRouter with a key stored there: the stated cost is its fee only.
    let details = usage.object("cost_details")?;
    own.checked_add(amount(details.get("upstream_inference_cost")?.get())?).ok()
}

/// The usage of one model of several, as Groq's compound systems report it.
fn part(entry: &JsonObject<'_>) -> Option<PerModelUsage> {
    let mut figures = OpenAiCounts::default();
    figures.update(entry.object("usage")?.as_ref());
    let quantities = PerUnit::sum(
        &figures.input(Api::Chat)?,
        &figures.output(Api::Chat, ReasoningPlacement::Within)?,
    );
    Some(PerModelUsage { model: entry.text("model"), quantities })
}

impl UsageExtractor for OpenAiExtractor {
    fn end_markers(&self) -> &'static [&'static [u8]] {
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

    /// Decides by the first field that shows the end.
    fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        if data.trim_ascii() == b"[DONE]" || RESPONSE_ENDS.contains(&name) {
            return true;
        }
        let unnamed_end = self.api != Api::Chat
            && name.is_empty()
            && RESPONSE_ENDS.iter().any(|end| memchr::memmem::find(data, end).is_some());
        unnamed_end && JsonObject::of(data).is_some_and(|event| is_end(&event))
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> StreamEventKind {
        if data.trim_ascii() == b"[DONE]" {
            self.closed = true;
            return StreamEventKind::Content;
        }
        if self.api == Api::Realtime && memchr::memmem::find(data, SOUND_DELTA).is_some() {
            // Sound counts as nothing in an estimate.
            return StreamEventKind::Content;
        }
        self.events = self.events.saturating_add(1);
        let seen = self.stream_keys().look(data);
        self.text_bytes = self.text_bytes.saturating_add(seen.text_bytes);
        let introduced = self.facts.model.is_some() || self.events > INTRODUCTORY_EVENTS;
        let telling = name == b"error" || seen.tells;
        if introduced && !telling {
            return StreamEventKind::Content;
        }
        let event = JsonObject::with_inner(data, LOOKED_INTO);
        let Some(event) = event else { return StreamEventKind::Content };
        let is_empty = event.get("choices").map(is_empty_list);
        // Without a telling key, there is no usage to search for.
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
            true => StreamEventKind::UsageOnly,
            false => StreamEventKind::Content,
        }
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let body = without_comments(body);
        let answer = JsonObject::with_inner(body, LOOKED_INTO);
        if let Some(answer) = &answer {
            self.closed = true;
            self.absorb(answer, usage_of(answer));
        }
        // A full report needs no estimate.
        if !matches!(self.reported(), (Some(_), Some(_))) {
            self.text_bytes = BODY_KEYS.text_bytes(body);
        }
        answer.is_some() || self.text_bytes > 0
    }

    fn object(&self) -> Option<&ResponseFacts> {
        Some(&self.facts)
    }

    fn found(mut self: Box<Self>) -> ExtractedUsage {
        let (mut input, mut output) = self.reported();
        if let Some(images) = self.images.take() {
            let add = |side: PerUnit<u64>, more| PerUnit::sum(&side, &more);
            input = input.map(|input| add(input, images.quantities.inputs()));
            output = output.map(|output| add(output, images.quantities.outputs()));
            self.parts.push(images);
        }
        ExtractedUsage {
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

static BODY_KEYS: LazyLock<KeySearcher> = LazyLock::new(|| {
    let texts = ["content", "reasoning_content", "reasoning", "arguments", "refusal", "text"];
    KeySearcher::new(&texts, TELLING)
});
pub(super) static DELTA_KEYS: LazyLock<KeySearcher> =
    LazyLock::new(|| KeySearcher::new(&["delta"], TELLING));
static FINISH: LazyLock<KeySearcher> = LazyLock::new(|| KeySearcher::new(&[], &["finish_reason"]));
const TELLING: &[&str] = &["usage", "error"];

/// The state that the word of a response names.
fn object_state(word: &str) -> Option<ObjectState> {
    match word {
        "queued" | "in_progress" => Some(ObjectState::Running),
        "completed" | "incomplete" => Some(ObjectState::Succeeded),
        "failed" => Some(ObjectState::Failed),
        "cancelled" => Some(ObjectState::Cancelled),
        _ => None,
    }
}

fn is_end(event: &JsonObject<'_>) -> bool {
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
