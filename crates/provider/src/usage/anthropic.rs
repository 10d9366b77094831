//! Anthropic's messages.
//!
//! `input_tokens` leaves out what was read from and written to a cache: the prompt is the sum of
//! the three. A stream reports the prompt in `message_start` and the answer in `message_delta`,
//! whose figures are cumulative and supersede what came before, one by one.

use serde::Deserialize;
use serde_json::value::RawValue;
use tollgate_pricing::PerUnit;

use super::json::{Figure, is_object, mentions, text, text_bytes};
use super::{EventKind, Facts, Found};

/// An answer, an event, or the message within one.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UsageJson<'a> {
    #[serde(borrow, default)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_creation_input_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    cache_creation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    server_tool_use: Option<&'a RawValue>,
    #[serde(borrow, default)]
    service_tier: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CacheCreationJson<'a> {
    #[serde(borrow, default)]
    ephemeral_5m_input_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ephemeral_1h_input_tokens: Option<&'a RawValue>,
}

/// Fetching pages (`web_fetch_requests`) costs nothing beyond the tokens, so it is not read.
#[derive(Deserialize)]
struct ServerToolsJson<'a> {
    #[serde(borrow, default)]
    web_search_requests: Option<&'a RawValue>,
}

/// Gathers what an answer says.
pub(super) struct Anthropic {
    /// Whether the request asked for cache entries that live an hour.
    hour_cache: bool,
    input: Figure,
    output: Figure,
    cache_read: Figure,
    cache_write: Figure,
    cache_write_5m: Figure,
    cache_write_1h: Figure,
    searches: Figure,
    malformed: bool,
    /// The answer has said why it stopped: no more will be added.
    stopped: bool,
    facts: Facts,
    text_bytes: u64,
}

impl Anthropic {
    pub(super) fn new(hour_cache: bool) -> Self {
        Self {
            hour_cache,
            input: Figure::Absent,
            output: Figure::Absent,
            cache_read: Figure::Absent,
            cache_write: Figure::Absent,
            cache_write_5m: Figure::Absent,
            cache_write_1h: Figure::Absent,
            searches: Figure::Absent,
            malformed: false,
            stopped: false,
            facts: Facts::default(),
            text_bytes: 0,
        }
    }

    /// Whether the event is the last one, judged by its first field that shows it.
    pub(super) fn ends_stream(name: &[u8], data: &[u8]) -> bool {
        let unnamed_end =
            name.is_empty() && memchr::memmem::find(data, b"\"message_stop\"").is_some();
        name == b"message_stop"
            || (unnamed_end
                && serde_json::from_slice::<Envelope<'_>>(data)
                    .is_ok_and(|event| text(event.kind).as_deref() == Some("message_stop")))
    }

    pub(super) fn event(&mut self, name: &[u8], data: &[u8]) -> EventKind {
        self.text_bytes = self.text_bytes.saturating_add(text_bytes(data, TEXT_KEYS));
        let telling = name == b"error"
            || mentions(data, b"\"usage\"")
            || mentions(data, b"\"error\"")
            || mentions(data, b"\"stop_reason\"");
        if telling && let Ok(event) = serde_json::from_slice::<Envelope<'_>>(data) {
            self.absorb(&event);
            for inner in [event.message, event.delta].into_iter().flatten() {
                if let Ok(inner) = serde_json::from_str(inner.get()) {
                    self.absorb(&inner);
                }
            }
        }
        EventKind::Content
    }

    /// Reads a whole body; false if nothing in it could be understood.
    pub(super) fn body(&mut self, body: &[u8]) -> bool {
        self.text_bytes = text_bytes(body, TEXT_KEYS);
        let Ok(answer) = serde_json::from_slice::<Envelope<'_>>(body) else {
            return self.text_bytes > 0;
        };
        self.absorb(&answer);
        // A body is whole, whatever it says of the reason.
        self.stopped = true;
        true
    }

    fn absorb(&mut self, answer: &Envelope<'_>) {
        let facts = &mut self.facts;
        let named = |value| text(value).filter(|text| !text.is_empty());
        facts.model = named(answer.model).or(facts.model.take());
        facts.response_id = named(answer.id).or(facts.response_id.take());
        facts.provider_error |=
            is_object(answer.error) || text(answer.kind).as_deref() == Some("error");
        self.stopped |= answer.stop_reason.is_some();
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
        self.input.take(usage.input_tokens);
        self.output.take(usage.output_tokens);
        self.cache_read.take(usage.cache_read_input_tokens);
        self.cache_write.take(usage.cache_creation_input_tokens);
        if let Some(creation) = usage.cache_creation
            && let Ok(split) = serde_json::from_str::<CacheCreationJson<'_>>(creation.get())
        {
            self.cache_write_5m.take(split.ephemeral_5m_input_tokens);
            self.cache_write_1h.take(split.ephemeral_1h_input_tokens);
        }
        if let Some(tools) = usage.server_tool_use
            && let Ok(tools) = serde_json::from_str::<ServerToolsJson<'_>>(tools.get())
        {
            self.searches.take(tools.web_search_requests);
        }
        let tier = text(usage.service_tier);
        self.facts.service_tier = tier.or(self.facts.service_tier.take());
    }

    pub(super) fn found(self) -> Found {
        let readable = !self.malformed && self.readable();
        let (five_minutes, hour) = self.cache_writes();
        let input = self.input.count().filter(|_| readable).map(|input| PerUnit {
            input,
            cached_input: self.cache_read.or_zero(),
            cache_write: five_minutes,
            cache_write_1h: hour,
            ..PerUnit::default()
        });
        let output = self.output.count().filter(|_| readable);
        Found {
            is_final: self.stopped && input.is_some() && output.is_some(),
            input,
            output: output.map(|output| PerUnit { output, ..PerUnit::default() }),
            tool_calls: self.searches.or_zero(),
            facts: self.facts,
            text_bytes: self.text_bytes,
        }
    }

    fn readable(&self) -> bool {
        let all = [
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            self.cache_write_5m,
            self.cache_write_1h,
            self.searches,
        ];
        !all.contains(&Figure::Unreadable)
    }

    /// What was written to the cache for five minutes, and for an hour.
    ///
    /// A later event may raise the total (the server's tools write too) and never says how it is
    /// split. What the known split does not cover goes to five minutes, the provider's default,
    /// unless an hour was asked for or has been seen: then to the dearer hour.
    fn cache_writes(&self) -> (u64, u64) {
        let (five_minutes, hour) = (self.cache_write_5m.or_zero(), self.cache_write_1h.or_zero());
        let split = five_minutes.saturating_add(hour);
        let rest = self.cache_write.or_zero().saturating_sub(split);
        if hour > 0 || self.hour_cache {
            (five_minutes, hour.saturating_add(rest))
        } else {
            (five_minutes.saturating_add(rest), hour)
        }
    }
}

const TEXT_KEYS: &[&[u8]] = &[b"\"text\"", b"\"thinking\"", b"\"partial_json\""];
