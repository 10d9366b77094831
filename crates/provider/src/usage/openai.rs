//! OpenAI's answers, and those that are shaped like them.
//!
//! Chat, completions and embeddings say `prompt_tokens` and `completion_tokens`, responses and the
//! rest say `input_tokens` and `output_tokens`; both contain their details, so what is cached,
//! audio or reasoning is taken out of the total before the rest is called text.

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use super::json::{Figure, is_object, mentions, text, text_bytes};
use super::{EventKind, Facts, Found};
use crate::dialect::Api;

/// Streams say who they are in their first event; a few are looked at, not all.
const INTRODUCTORY_EVENTS: u32 = 4;

const RESPONSE_ENDS: [&[u8]; 3] =
    [b"response.completed", b"response.incomplete", b"response.failed"];

/// What an answer, an event, or the response within an event may say of itself.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    created: Option<&'a RawValue>,
    #[serde(borrow, default)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow, default)]
    service_tier: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

/// Both families of names stand beside each other: some providers report under both.
#[derive(Deserialize)]
struct UsageJson<'a> {
    #[serde(borrow, default)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    total_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_token_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    completion_tokens_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_tokens_details: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct DetailsJson<'a> {
    #[serde(borrow, default)]
    cached_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_write_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    audio_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    image_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_tokens: Option<&'a RawValue>,
}

/// An item of a response's output, as far as it may be billed by the call.
#[derive(Deserialize)]
struct OutputItem<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    action: Option<&'a RawValue>,
}

/// The figures as they stand, newest first.
#[derive(Default)]
struct Figures {
    prompt: Figure,
    completion: Figure,
    total: Figure,
    cached: Figure,
    cache_write: Figure,
    input_audio: Figure,
    input_image: Figure,
    reasoning: Figure,
    output_audio: Figure,
    output_image: Figure,
}

/// Gathers what an answer says.
pub(super) struct OpenAi {
    api: Api,
    events: u32,
    figures: Figures,
    /// The last usage was there and was no object.
    malformed: bool,
    /// Nothing will be added to the figures: some providers report in every event, so that only
    /// what comes with or behind the end of the text is the whole.
    closed: bool,
    tool_calls: u64,
    facts: Facts,
    text_bytes: u64,
}

impl OpenAi {
    pub(super) fn new(api: Api) -> Self {
        Self {
            api,
            events: 0,
            figures: Figures::default(),
            malformed: false,
            closed: false,
            tool_calls: 0,
            facts: Facts::default(),
            text_bytes: 0,
        }
    }

    /// Whether the event is the last one, judged by its first field that shows it.
    pub(super) fn ends_stream(&self, name: &[u8], data: &[u8]) -> bool {
        if data.trim_ascii() == b"[DONE]" || RESPONSE_ENDS.contains(&name) {
            return true;
        }
        let unnamed_end = self.api != Api::Chat
            && name.is_empty()
            && RESPONSE_ENDS.iter().any(|end| memchr::memmem::find(data, end).is_some());
        unnamed_end
            && serde_json::from_slice::<Envelope<'_>>(data).is_ok_and(|event| is_end(&event))
    }

    pub(super) fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        if data.trim_ascii() == b"[DONE]" {
            self.closed = true;
            return EventKind::Content;
        }
        self.events = self.events.saturating_add(1);
        self.text_bytes = self.text_bytes.saturating_add(text_bytes(data, self.stream_keys()));
        let introduced = self.facts.model.is_some() || self.events > INTRODUCTORY_EVENTS;
        let telling =
            name == b"error" || mentions(data, b"\"usage\"") || mentions(data, b"\"error\"");
        if introduced && !telling {
            return EventKind::Content;
        }
        let Ok(event) = serde_json::from_slice::<Envelope<'_>>(data) else {
            return EventKind::Content;
        };
        if event.usage.is_some() {
            let goes_on = event.choices.is_some_and(|choices| !is_empty_list(choices));
            self.closed = !goes_on || mentions(data, b"\"finish_reason\"");
        }
        let usage_only = event.usage.is_some() && event.choices.is_some_and(is_empty_list);
        self.facts.provider_error |=
            name == b"error" || text(event.kind).as_deref() == Some("error");
        match event.response.filter(|response| is_object(Some(response))) {
            Some(response) => {
                if let Ok(response) = serde_json::from_str(response.get()) {
                    self.closed |= is_end(&event);
                    self.absorb(&response);
                }
            }
            None => self.absorb(&event),
        }
        if usage_only { EventKind::UsageOnly } else { EventKind::Content }
    }

    /// Reads a whole body; false if nothing in it could be understood.
    pub(super) fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = text_bytes(body, BODY_KEYS);
        let Ok(answer) = serde_json::from_slice(body) else { return self.text_bytes > 0 };
        self.closed = true;
        self.absorb(&answer);
        true
    }

    fn stream_keys(&self) -> &'static [&'static [u8]] {
        // The events of a response repeat at its end what their deltas said.
        if self.api == Api::Chat { BODY_KEYS } else { &[b"\"delta\""] }
    }

    fn absorb(&mut self, answer: &Envelope<'_>) {
        let facts = &mut self.facts;
        let named = |value| text(value).filter(|text| !text.is_empty());
        facts.model = named(answer.model).or(facts.model.take());
        facts.response_id = named(answer.id).or(facts.response_id.take());
        facts.service_tier = named(answer.service_tier).or(facts.service_tier.take());
        let mut created = Figure::Absent;
        created.take(answer.created.or(answer.created_at));
        facts.created_unix_s =
            created.count().and_then(|s| i64::try_from(s).ok()).or(facts.created_unix_s);
        facts.provider_error |=
            is_object(answer.error) || text(answer.status).as_deref() == Some("failed");
        if let Some(output) = answer.output {
            self.tool_calls = tool_calls(output).max(self.tool_calls);
        }
        if let Some(usage) = answer.usage {
            self.absorb_usage(usage);
        }
    }

    fn absorb_usage(&mut self, usage: &RawValue) {
        let Ok(usage) = serde_json::from_str::<UsageJson<'_>>(usage.get()) else {
            self.malformed = true;
            return;
        };
        self.malformed = false;
        let figures = &mut self.figures;
        figures.prompt.take(usage.prompt_tokens.or(usage.input_tokens));
        figures.completion.take(usage.completion_tokens.or(usage.output_tokens));
        figures.total.take(usage.total_tokens);
        let input = usage.prompt_tokens_details.or(usage.input_tokens_details);
        if let Some(input) = details(input.or(usage.input_token_details)) {
            figures.cached.take(input.cached_tokens);
            figures.cache_write.take(input.cache_write_tokens);
            figures.input_audio.take(input.audio_tokens);
            figures.input_image.take(input.image_tokens);
        }
        let output = usage.completion_tokens_details.or(usage.output_tokens_details);
        if let Some(output) = details(output) {
            figures.reasoning.take(output.reasoning_tokens);
            figures.output_audio.take(output.audio_tokens);
            figures.output_image.take(output.image_tokens);
        }
    }

    pub(super) fn found(self) -> Found {
        let readable = !self.malformed && self.figures.readable();
        let input = self.figures.input(self.api).filter(|_| readable);
        let output = self.figures.output(self.api).filter(|_| readable);
        Found {
            is_final: self.closed && input.is_some() && output.is_some(),
            input,
            output,
            tool_calls: self.tool_calls,
            facts: self.facts,
            text_bytes: self.text_bytes,
        }
    }
}

const BODY_KEYS: &[&[u8]] = &[
    b"\"content\"",
    b"\"reasoning_content\"",
    b"\"reasoning\"",
    b"\"arguments\"",
    b"\"refusal\"",
    b"\"text\"",
];

impl Figures {
    fn readable(&self) -> bool {
        let all = [
            self.prompt,
            self.completion,
            self.total,
            self.cached,
            self.cache_write,
            self.input_audio,
            self.input_image,
            self.reasoning,
            self.output_audio,
            self.output_image,
        ];
        !all.contains(&Figure::Unreadable)
    }

    fn input(&self, api: Api) -> Option<PerUnit<u64>> {
        let total = self.prompt.count().or_else(|| {
            // Some embedding endpoints state only the total, which is the input there.
            let total = self.total.count()?;
            if api == Api::Embeddings {
                Some(total)
            } else {
                total.checked_sub(self.completion.count()?)
            }
        })?;
        let mut rest = total;
        Some(PerUnit {
            cached_input: part_of(&mut rest, self.cached),
            cache_write: part_of(&mut rest, self.cache_write),
            input_audio: part_of(&mut rest, self.input_audio),
            input_image: part_of(&mut rest, self.input_image),
            input: rest,
            ..PerUnit::default()
        })
    }

    fn output(&self, api: Api) -> Option<PerUnit<u64>> {
        if api == Api::Embeddings {
            return self.input(api).map(|_| PerUnit::default());
        }
        let total = self
            .completion
            .count()
            .or_else(|| self.total.count()?.checked_sub(self.prompt.count()?))?;
        let mut rest = total;
        Some(PerUnit {
            reasoning: part_of(&mut rest, self.reasoning),
            output_audio: part_of(&mut rest, self.output_audio),
            output_image: part_of(&mut rest, self.output_image),
            output: rest,
            ..PerUnit::default()
        })
    }
}

/// Takes a detail out of what remains of its total; a detail that is larger is cut, so the parts
/// never come to more than the total that the provider bills.
fn part_of(rest: &mut u64, detail: Figure) -> u64 {
    let part = detail.or_zero().min(*rest);
    *rest = rest.saturating_sub(part);
    part
}

fn is_end(event: &Envelope<'_>) -> bool {
    text(event.kind).is_some_and(|kind| RESPONSE_ENDS.contains(&kind.as_bytes()))
}

fn is_empty_list(value: &RawValue) -> bool {
    let inner = value.get().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim().is_empty())
}

fn details(value: Option<&RawValue>) -> Option<DetailsJson<'_>> {
    serde_json::from_str(value?.get()).ok()
}

/// The calls of built-in tools in a response's output. They are billed each, and usage says
/// nothing of them. A web search that only opens or searches a page it has found is free.
fn tool_calls(output: &RawValue) -> u64 {
    let items = serde_json::from_str::<Vec<OutputItem<'_>>>(output.get()).unwrap_or_default();
    let billed = items.iter().filter(|item| match text(item.kind).as_deref() {
        Some("file_search_call" | "code_interpreter_call" | "image_generation_call") => true,
        Some("web_search_call") => !is_page_visit(item.action),
        _ => false,
    });
    u64::try_from(billed.count()).unwrap_or(u64::MAX)
}

fn is_page_visit(action: Option<&RawValue>) -> bool {
    #[derive(Deserialize)]
    struct Action<'a> {
        #[serde(borrow, default, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    let action = action.and_then(|action| serde_json::from_str::<Action<'_>>(action.get()).ok());
    let kind = action.and_then(|action| text(action.kind));
    matches!(kind.as_deref(), Some("open_page" | "find_in_page"))
}
