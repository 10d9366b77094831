//! Measures an answer while it passes: which bytes may pass, and the usage that they report.

use std::ops::Range;
use std::sync::Arc;

use crate::headers::{Headers, text_of};
use bytes::{Bytes, BytesMut};
use tollgate_pricing::{PerModelUsage, PerUnit, Usage, UsageSource};

use super::body_buffer::{BodyBuffer, ResponseMemory};
use super::decode::Decoder;
use super::error_words::ErrorWords;
use super::estimate;
use super::events::{EventReader, EventReaderStep, MAX_EVENT_BYTES};
use super::excerpt::Excerpt;
use super::extractor::{
    ExtractedUsage, MAX_PARTS, OpaqueExtractor, ResponseFacts, StreamEventKind, UsageExtractor,
    may_end_stream,
};
use super::formats::extractor;
use super::frames::FrameReader;
use super::objects::ObjectReader;
use super::operation::OperationReader;
use super::reading::{AnswerForm, MeteredPiece, ObjectState, ResponseEnd, UsageReading};
use crate::dialect::Api;
use crate::endpoint::EndpointFormat;
use crate::request::InspectedBody;

/// Providers that state the cost of a call. At others, a field of that name has no meaning.
const STATE_COSTS: [&str; 4] = ["deepinfra", "openrouter", "perplexity", "xai"];

/// The longest name or id that is taken from an answer. It is kept with the record of every call.
const MAX_WORD_BYTES: usize = 512;

/// Measures one answer while it passes.
///
/// Call [`feed`](Self::feed) for each piece, then [`finish`](Self::finish). If you only want the usage, ignore the
/// result of `feed`. A proxy forwards `pass`, keeps `held`, and sends `held` once it has recorded the call, then
/// [`UsageReading::rest`].
pub struct ResponseMeter {
    extractor: Box<dyn UsageExtractor>,
    form: BodyReader,
    answer_form: AnswerForm,
    memory: Arc<ResponseMemory>,
    decoder: Option<Decoder>,
    /// Bytes that passed unread, because the body cannot be unpacked or is too large.
    unread_bytes: u64,
    status: u16,
    metered: bool,
    /// Whether the provider bills the cost that it states.
    states_cost: bool,
    input_bytes: u64,
    /// The most output tokens that the call can have used, if known.
    most_output: Option<u64>,
    /// Whether bytes that are not understood may be text.
    textual: bool,
    /// The fault that a test orders in a header.
    #[cfg(feature = "faults")]
    fault: Option<Vec<u8>>,
}

/// The way in which a body is read.
enum BodyReader {
    /// Not read: nothing in it is billed, or it cannot be understood.
    Unread,
    /// Read as a whole, at its end.
    Whole(BodyBuffer),
    /// Only the beginning and end, for their usage: the body is too large.
    Excerpt(Excerpt),
    /// Read event by event.
    Events(Box<EventStream>),
    /// Read object by object: a stream of JSON, whose last item is not marked.
    Objects(ObjectReader),
    /// Read as a whole without the answers of a batch: an operation of Google's.
    Operation(Box<OperationReader>),
    /// Read frame by frame: a binary stream, whose last frame is not marked.
    Frames(Box<FrameReader>),
}

#[derive(Default)]
struct EventStream {
    reader: EventReader,
    /// Whether the event that carries only usage is removed. Then only complete events pass.
    strip: bool,
    /// Undecided bytes: with `strip` an incomplete event, else a line that may end the stream.
    open: BytesMut,
    /// The offset of the first byte of `open`, or of the next piece.
    offset: u64,
    /// The ranges of events to be removed.
    removed: Vec<Range<u64>>,
    /// Whether the removed event ended in a CR: an LF that follows is removed too.
    drop_line_feed: bool,
    end: StreamEnd,
    last_event_start: u64,
}

/// The progress of the end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamEnd {
    /// Not seen yet.
    #[default]
    Open,
    /// The last event has begun.
    Begun,
    /// The last event is complete.
    Seen,
}

impl ResponseMeter {
    /// A meter for an answer with this status and these headers.
    ///
    /// `strip_usage_chunk` removes the additional usage event. Pass [`InspectedBody::inserts_usage`] if the
    /// body of [`InspectedBody::apply_edits`] was sent, else `false`.
    pub fn new(
        endpoint: &EndpointFormat,
        status: u16,
        headers: &dyn Headers,
        request: &InspectedBody,
        strip_usage_chunk: bool,
    ) -> Self {
        #[cfg(feature = "faults")]
        panic_if(headers.line("x-fault", 0), "panic");
        let content_type = headers.line("content-type", 0).and_then(text_of);
        let content_type = content_type.map(str::to_ascii_lowercase);
        let form = BodyReader::of(content_type.as_deref(), endpoint.api(), request.stream);
        let form = match form {
            BodyReader::Whole(_) if endpoint.answers_operation() && status == 200 => {
                BodyReader::Operation(Box::default())
            }
            // An error is one object, also where a stream was requested.
            BodyReader::Objects(_) if !(200..300).contains(&status) => {
                BodyReader::Whole(BodyBuffer::default())
            }
            form => form,
        };
        let decoder = Decoder::of(headers);
        let mut meter = Self {
            extractor: extractor(endpoint, headers, request),
            answer_form: match &form {
                BodyReader::Events(_) if matches!(decoder, Ok(None)) => AnswerForm::Events,
                BodyReader::Events(_) | BodyReader::Objects(_) | BodyReader::Frames(_) => {
                    AnswerForm::Stream
                }
                BodyReader::Whole(_)
                | BodyReader::Excerpt(_)
                | BodyReader::Operation(_)
                | BodyReader::Unread => AnswerForm::Whole,
            },
            form: BodyReader::Unread,
            memory: Arc::default(),
            decoder: None,
            unread_bytes: 0,
            status,
            metered: endpoint.metered() || endpoint.answers_object(),
            states_cost: STATE_COSTS.contains(&endpoint.provider.price_list.as_str()),
            input_bytes: request.input_bytes,
            most_output: most_output(endpoint.api(), request),
            textual: content_type.is_none_or(|kind| is_textual(&kind)),
            #[cfg(feature = "faults")]
            fault: headers.line("x-fault", 0).map(<[u8]>::to_vec),
        };
        let Ok(decoder) = decoder else { return meter };
        if meter.metered {
            // A body that is packed against the request cannot be cut without packing it again.
            let strips = strip_usage_chunk && decoder.is_none();
            meter.form = form;
            if let BodyReader::Events(events) = &mut meter.form {
                events.strip = strips;
            }
            meter.decoder = decoder;
        }
        meter
    }

    /// A meter for a response on a WebSocket, whose events are messages. [`message`](Self::message) takes them.
    pub fn of_socket(endpoint: &EndpointFormat, request: &InspectedBody) -> Self {
        struct EventStreamHeaders;
        impl Headers for EventStreamHeaders {
            fn line(&self, name: &'static str, number: usize) -> Option<&[u8]> {
                (name == "content-type" && number == 0).then_some(b"text/event-stream")
            }
        }
        Self::new(endpoint, 200, &EventStreamHeaders, request, false)
    }

    /// Takes a message of the response.
    pub fn message(&mut self, data: &[u8]) {
        if let BodyReader::Events(events) = &mut self.form {
            if self.extractor.ends_stream(b"", data) {
                events.end = StreamEnd::Seen;
            }
            self.extractor.event(b"", data);
        }
    }

    /// Takes the time that a session on a WebSocket has lasted so far, in microseconds. It counts if the session reports none.
    pub fn passed(&mut self, micros: u64) {
        self.extractor.passed(micros);
    }

    /// Counts the kept bytes of the answer against the bound of all answers together.
    #[must_use]
    pub fn with_memory(mut self, memory: &Arc<ResponseMemory>) -> Self {
        self.memory = Arc::clone(memory);
        self
    }

    /// The form of the answer, by its headers.
    pub const fn answer_form(&self) -> AnswerForm {
        self.answer_form
    }

    /// The id and the state of the object that the answer is, as far as it was read.
    pub fn object(&self) -> Option<(&str, ObjectState)> {
        let facts = self.extractor.object().filter(|_| self.accepted())?;
        Some((facts.response_id.as_deref()?, facts.object_state?))
    }

    /// Takes the next piece of the body.
    pub fn feed(&mut self, piece: Bytes) -> MeteredPiece {
        #[cfg(feature = "faults")]
        panic_if(self.fault.as_deref(), "panic while reading");
        let Some(decoder) = &mut self.decoder else { return self.feed_plain(piece) };
        match decoder.decode(&piece) {
            Ok(plain) => self.feed_packed(piece, &plain),
            // All that counts was read.
            Err(_) if self.done() => MeteredPiece { pass: piece, held: None },
            // Bytes after held ones must not overtake them.
            Err(_) if self.ending() => MeteredPiece { pass: Bytes::new(), held: Some(piece) },
            Err(_) => {
                self.stop_reading(piece.len());
                MeteredPiece { pass: piece, held: None }
            }
        }
    }

    /// Whether the whole last event of the stream was seen: the call is settled, then the held
    /// bytes are sent.
    pub fn done(&self) -> bool {
        matches!(&self.form, BodyReader::Events(events) if events.end == StreamEnd::Seen)
    }

    /// Whether something is held.
    fn ending(&self) -> bool {
        matches!(&self.form, BodyReader::Events(events) if events.end == StreamEnd::Begun)
    }

    /// The reading, at the end of the body.
    pub fn finish(mut self, how: ResponseEnd) -> UsageReading {
        #[cfg(feature = "faults")]
        panic_if(self.fault.as_deref(), "panic at the end");
        let mut rest = Bytes::new();
        let mut complete = how == ResponseEnd::Complete;
        match &mut self.form {
            BodyReader::Unread => {}
            BodyReader::Objects(_) => {}
            BodyReader::Frames(frames) => complete &= !frames.broken(),
            // Not JSON, nor similar: all of it may be text.
            BodyReader::Whole(body) if !self.extractor.body(&body.bytes) => {
                self.unread_bytes = length(&body.bytes);
            }
            BodyReader::Whole(_) => {}
            BodyReader::Operation(operation) => {
                self.extractor.body(operation.rest());
            }
            BodyReader::Excerpt(excerpt) => {
                if let Some(usage) = excerpt.object(self.extractor.usage_key()) {
                    // All bytes are counted already, in case this is no usage.
                    self.extractor.body(usage.as_bytes());
                }
            }
            BodyReader::Events(events) => {
                events.finish(how, self.extractor.as_mut());
                rest = events.open.split().freeze();
                complete = events.end == StreamEnd::Seen
                    || (complete && self.extractor.end_markers().is_empty());
            }
        }
        let found = std::mem::replace(&mut self.extractor, Box::new(OpaqueExtractor)).found();
        let object_state = found.facts.object_state.filter(|_| self.accepted());
        let has_failed = !self.accepted() || object_state == Some(ObjectState::Failed);
        let error = match &self.form {
            BodyReader::Whole(body) if has_failed => ErrorWords::of(&body.bytes),
            BodyReader::Operation(operation) if has_failed => ErrorWords::of(operation.rest()),
            _ => None,
        };
        // A stream may end without its last event and still have reported all that counts.
        complete |= how == ResponseEnd::Complete && found.is_final;
        let unread = if self.textual { self.unread_bytes } else { 0 };
        let text_bytes = found.text_bytes.saturating_add(unread);
        let text_tokens = estimate::tokens(text_bytes).min(self.most_output.unwrap_or(u64::MAX));
        let (usage, source) = self.usage(&found, complete, text_tokens);
        UsageReading {
            usage,
            source,
            tiers: tiers(&found.facts),
            model: found.facts.model.map(truncate_word),
            response_id: found.facts.response_id.map(truncate_word),
            created_unix_s: found.facts.created_unix_s,
            parts: limit_parts(found.parts),
            total_differs: found.total_differs && source == UsageSource::Reported,
            provider_error: found.facts.provider_error && self.accepted(),
            object_state,
            expires_at: found.facts.expires_at,
            request_path: found.facts.request_path,
            result_files: found.facts.result_files,
            answered_requests: found.facts.answered_requests,
            samples: found.facts.samples,
            error,
            complete,
            rest,
        }
    }

    fn accepted(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The usage to be priced: reported figures, and estimates for a side without a report.
    fn usage(
        &self,
        found: &ExtractedUsage,
        complete: bool,
        text_tokens: u64,
    ) -> (Usage, UsageSource) {
        if !self.metered || (!self.accepted() && !found.is_final) {
            return (Usage::default(), UsageSource::None);
        }
        let input = found.input.unwrap_or_else(|| PerUnit {
            input: estimate::tokens(self.input_bytes),
            ..PerUnit::default()
        });
        let mut output =
            found.output.unwrap_or_else(|| PerUnit { output: text_tokens, ..PerUnit::default() });
        if !found.is_final && found.output.is_some() {
            // An interim figure; more text may have passed since.
            output.output = output.output.max(text_tokens);
        }
        let mut quantities = PerUnit::sum(&PerUnit::sum(&input, &output), &found.others);
        quantities.request = u64::from(self.accepted());
        let source = match (found.is_final, complete && !found.facts.provider_error) {
            (true, _) => UsageSource::Reported,
            (false, true) => UsageSource::Estimated,
            (false, false) => UsageSource::Partial,
        };
        (Usage { quantities, provider_cost: found.cost.filter(|_| self.states_cost) }, source)
    }

    /// Takes a piece that is not packed.
    fn feed_plain(&mut self, piece: Bytes) -> MeteredPiece {
        match &mut self.form {
            BodyReader::Events(events) => {
                if !self.extractor.tells_text() {
                    self.unread_bytes = self.unread_bytes.saturating_add(length(&piece));
                }
                events.feed(piece, self.extractor.as_mut())
            }
            _ => {
                self.keep(&piece);
                MeteredPiece { pass: piece, held: None }
            }
        }
    }

    /// Takes a packed piece and its unpacked bytes. It passes whole or not at all.
    fn feed_packed(&mut self, piece: Bytes, plain: &[u8]) -> MeteredPiece {
        match &mut self.form {
            BodyReader::Events(events) => {
                if !self.extractor.tells_text() {
                    self.unread_bytes = self.unread_bytes.saturating_add(length(plain));
                }
                let before = events.end;
                events.read(plain, self.extractor.as_mut());
                match before != StreamEnd::Seen && events.end != StreamEnd::Open {
                    true => MeteredPiece { pass: Bytes::new(), held: Some(piece) },
                    false => MeteredPiece { pass: piece, held: None },
                }
            }
            _ => {
                self.keep(plain);
                MeteredPiece { pass: piece, held: None }
            }
        }
    }

    /// Takes a piece of a body of which nothing is held: an item of it, or a part of a whole.
    fn keep(&mut self, mut plain: &[u8]) {
        let tells_text = self.extractor.tells_text();
        match &mut self.form {
            BodyReader::Objects(objects) if tells_text => {
                while objects.step(&mut plain) {
                    match objects.long_item() {
                        Some(long) => self.extractor.excerpt(b"", long),
                        None => drop(self.extractor.event(b"", objects.item())),
                    }
                }
            }
            BodyReader::Frames(frames) if tells_text => {
                while frames.step(&mut plain) {
                    self.extractor.event(frames.name(), frames.payload());
                }
            }
            BodyReader::Whole(body) if tells_text => {
                if !body.push(plain, &self.memory) {
                    let mut excerpt = Excerpt::of(&body.bytes);
                    excerpt.push(plain);
                    self.unread_bytes = length(&body.bytes).saturating_add(length(plain));
                    self.form = BodyReader::Excerpt(excerpt);
                }
            }
            BodyReader::Operation(operation) => operation.skip_answers(plain),
            BodyReader::Excerpt(excerpt) => {
                excerpt.push(plain);
                self.unread_bytes = self.unread_bytes.saturating_add(length(plain));
            }
            _ => self.stop_reading(plain.len()),
        }
    }

    /// Stops reading the body. Figures that were read before still count.
    fn stop_reading(&mut self, passed_bytes: usize) {
        let mut passed = u64::try_from(passed_bytes).unwrap_or(u64::MAX);
        if let BodyReader::Whole(body) = &self.form {
            passed = passed.saturating_add(length(&body.bytes));
        }
        self.form = BodyReader::Unread;
        self.decoder = None;
        self.unread_bytes = self.unread_bytes.saturating_add(passed);
    }

    /// The memory that the meter holds, in bytes.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        match &self.form {
            BodyReader::Unread => 0,
            BodyReader::Whole(body) => body.bytes.capacity(),
            BodyReader::Excerpt(excerpt) => excerpt.capacity(),
            BodyReader::Operation(operation) => operation.capacity(),
            BodyReader::Events(events) => events.reader.capacity() + events.open.capacity(),
            BodyReader::Objects(objects) => objects.capacity(),
            BodyReader::Frames(frames) => frames.capacity(),
        }
    }
}

impl BodyReader {
    /// The way to read a body of this type. `streams` is whether a stream was requested, for
    /// answers without a type.
    fn of(content_type: Option<&str>, api: Api, streams: bool) -> Self {
        let events = || Self::Events(Box::default());
        let kind = content_type.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        match kind {
            Some("text/event-stream") => events(),
            Some("application/vnd.amazon.eventstream") => Self::Frames(Box::default()),
            Some("application/stream+json" | "application/x-ndjson" | "application/jsonl") => {
                Self::Objects(ObjectReader::default())
            }
            // Google's streams are one array in pieces, unless events are requested.
            Some("application/json") if streams && api == Api::GenerateContent => {
                Self::Objects(ObjectReader::default())
            }
            None if streams => events(),
            _ => Self::Whole(BodyBuffer::default()),
        }
    }
}

impl EventStream {
    /// Takes a piece that is not packed. The bytes before the last event pass, except a line that
    /// may begin it, and the event that is to be removed.
    fn feed(&mut self, piece: Bytes, extractor: &mut dyn UsageExtractor) -> MeteredPiece {
        match self.end {
            StreamEnd::Seen => return MeteredPiece { pass: piece, held: None },
            StreamEnd::Begun => {
                self.read(&piece, extractor);
                return MeteredPiece { pass: Bytes::new(), held: Some(piece) };
            }
            StreamEnd::Open => {}
        }
        let piece_start = self.reader.position();
        if std::mem::take(&mut self.drop_line_feed) && piece.first() == Some(&b'\n') {
            self.removed.push(piece_start..piece_start.saturating_add(1));
        }
        self.read(&piece, extractor);
        let piece_end = piece_start.saturating_add(length(&piece));
        let until = match self.end {
            StreamEnd::Open if self.strip => self.reader.event_start(),
            StreamEnd::Open if may_end_stream(extractor, self.reader.open_line()) => {
                piece_end.saturating_sub(length(self.reader.open_line()))
            }
            StreamEnd::Open => piece_end,
            StreamEnd::Begun | StreamEnd::Seen => self.last_event_start.max(self.offset),
        };
        let pass = self.pass_until(piece, until);
        if self.end == StreamEnd::Open {
            if self.open.len() > MAX_EVENT_BYTES {
                // No event is that long. The bytes pass, and the client decides about them.
                self.strip = false;
            }
            return MeteredPiece { pass, held: None };
        }
        MeteredPiece { pass, held: Some(self.open.split().freeze()) }
    }

    /// Reads on, and notes the start of the last event and the events to be removed.
    fn read(&mut self, mut bytes: &[u8], extractor: &mut dyn UsageExtractor) {
        while self.end != StreamEnd::Seen
            && let Some(step) = self.reader.step(&mut bytes)
        {
            match step {
                EventReaderStep::Field => self.read_field(extractor),
                EventReaderStep::Event => self.read_event(extractor),
            }
        }
    }

    fn read_field(&mut self, extractor: &dyn UsageExtractor) {
        if self.end == StreamEnd::Open
            && extractor.ends_stream(self.reader.name(), self.reader.data())
        {
            self.end = StreamEnd::Begun;
            self.last_event_start = self.reader.event_start();
        }
    }

    fn read_event(&mut self, extractor: &mut dyn UsageExtractor) {
        let kind = match self.reader.long_field() {
            Some(long) => {
                extractor.excerpt(self.reader.name(), long);
                StreamEventKind::Content
            }
            None => extractor.event(self.reader.name(), self.reader.data()),
        };
        let start = self.reader.event_start();
        self.reader.next_event();
        if self.strip && kind == StreamEventKind::UsageOnly {
            self.removed.push(start..self.reader.event_start());
            self.drop_line_feed = self.reader.after_cr();
        } else {
            self.drop_line_feed = false;
        }
        if self.end == StreamEnd::Begun {
            self.end = StreamEnd::Seen;
        }
    }

    /// Ends a stream that may have left its last event open. That event ends the stream only if the
    /// provider ended the body.
    fn finish(&mut self, how: ResponseEnd, extractor: &mut dyn UsageExtractor) {
        if self.end == StreamEnd::Seen || self.reader.end().is_none() {
            return;
        }
        self.read_field(extractor);
        let before = self.end;
        self.read_event(extractor);
        if how != ResponseEnd::Complete {
            self.end = before;
        }
    }

    /// Takes the bytes before the offset `until` out of `open` and `piece`, without the removed
    /// ones. The rest stays in `open`. Bytes are only copied if some stay or are removed.
    fn pass_until(&mut self, mut piece: Bytes, until: u64) -> Bytes {
        let count = usize::try_from(until.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let front = if self.open.is_empty() {
            let back = piece.split_off(count.min(piece.len()));
            self.open.extend_from_slice(&back);
            piece
        } else {
            self.open.extend_from_slice(&piece);
            self.open.split_to(count.min(self.open.len())).freeze()
        };
        let start = std::mem::replace(&mut self.offset, until);
        without(front, start, &std::mem::take(&mut self.removed))
    }
}

/// `bytes`, the first of which is at the offset `start`, without the ranges `removed`.
fn without(bytes: Bytes, start: u64, removed: &[Range<u64>]) -> Bytes {
    if removed.is_empty() {
        return bytes;
    }
    let mut kept = BytesMut::with_capacity(bytes.len());
    let at = |offset: u64| {
        usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len())
    };
    let mut from = start;
    for range in removed {
        kept.extend_from_slice(bytes.get(at(from)..at(range.start)).unwrap_or_default());
        from = range.end;
    }
    kept.extend_from_slice(bytes.get(at(from)..).unwrap_or_default());
    kept.freeze()
}

/// Panics, as an error in the meter would. Tests of crates above order it by `x-fault`.
#[cfg(feature = "faults")]
#[expect(clippy::panic, reason = "what becomes of a call whose meter panics is what is tested")]
fn panic_if(fault: Option<&[u8]>, ordered: &str) {
    if fault.is_some_and(|fault| fault == ordered.as_bytes()) {
        panic!("ordered by x-fault");
    }
}

/// The most output tokens of a call, if known. Estimates are limited to it, so that other content
/// is not billed as text.
fn most_output(api: Api, request: &InspectedBody) -> Option<u64> {
    let makes_no_text = matches!(
        api,
        Api::Embeddings
            | Api::EmbedContent
            | Api::Rerank
            | Api::Speech
            | Api::Images
            | Api::Predict
            | Api::ElevenLabs
            | Api::Deepgram
    );
    if makes_no_text {
        return Some(0);
    }
    Some(request.max_output_tokens?.saturating_mul(request.choices.max(1)))
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// The price lists' names of how a call was served, without the providers' names for their
/// standard.
fn tiers(facts: &ResponseFacts) -> Vec<String> {
    const STANDARD: [&str; 6] =
        ["default", "standard", "standard_only", "on_demand", "auto", "global"];
    let words = facts.service_tier.iter().chain(&facts.modes);
    let words = words.map(|word| word.to_ascii_lowercase());
    let words = words.filter(|word| !word.is_empty() && !STANDARD.contains(&word.as_str()));
    words.map(truncate_word).collect()
}

/// The parts, at most the number that a record keeps. Others count as the call's own model.
fn limit_parts(mut parts: Vec<PerModelUsage>) -> Vec<PerModelUsage> {
    parts.truncate(MAX_PARTS);
    for part in &mut parts {
        part.model = part.model.take().map(truncate_word);
    }
    parts
}

/// A provider's word, cut to the length that a record keeps.
fn truncate_word(mut word: String) -> String {
    if word.len() > MAX_WORD_BYTES {
        let mut ends = (0..=MAX_WORD_BYTES).rev();
        word.truncate(ends.find(|end| word.is_char_boundary(*end)).unwrap_or(0));
    }
    word
}

/// Whether a body of this type is text, so that its bytes give an estimate of its tokens.
fn is_textual(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/") || kind.contains("json") || kind.contains("xml")
}

#[cfg(test)]
mod tests;
