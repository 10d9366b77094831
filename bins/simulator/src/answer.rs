//! The answer to a call, before a dialect gives it its format: text or a tool call, token counts, ids.

use std::collections::hash_map::RandomState;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::iter;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::behavior::{Behavior, UsageReport};
use crate::request::SimulatedRequest;

/// The words that follow the repeated prompt in an answer.
const CANNED: &str = "I am a simulated model, so this answer costs nothing to make, \
    means nothing in particular, and goes on for as many words as were asked for.";

/// The placeholder for the time at which a word is sent, in ns since 1970; it has the length of that number.
pub(crate) const STAMP: &str = "0000000000000000000";

/// The tokens that a call used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCounts {
    /// The whole prompt, cached tokens included.
    pub(crate) input: u64,
    pub(crate) cached: u64,
    /// The whole answer, reasoning included.
    pub(crate) output: u64,
    pub(crate) reasoning: u64,
}

impl TokenCounts {
    pub(crate) fn new(input: u64, output: u64, behavior: &Behavior) -> Self {
        let (cached, reasoning) = (behavior.cached_tokens, behavior.reasoning_tokens);
        Self {
            input: behavior.input_tokens.unwrap_or(input).max(cached),
            cached,
            output: behavior.output_tokens.unwrap_or(output).max(reasoning),
            reasoning,
        }
    }

    /// The sum of both.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cached: self.cached.saturating_add(other.cached),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }

    /// The tokens that the provider books: none if it reports an explicit zero, else those used.
    pub(crate) fn booked(self, report: UsageReport) -> Self {
        match report {
            UsageReport::Zero => Self::default(),
            UsageReport::Reported | UsageReport::Missing | UsageReport::Null => self,
        }
    }

    /// The usage as a field of JSON: absent, `null` or a value.
    pub(crate) fn usage_field<U: From<Self>>(self, report: UsageReport) -> Option<Option<U>> {
        match report {
            UsageReport::Missing => None,
            UsageReport::Null => Some(None),
            UsageReport::Reported | UsageReport::Zero => Some(Some(self.booked(report).into())),
        }
    }
}

/// The content of an answer: text or a tool call.
pub(crate) enum AnswerContent {
    Text(String),
    Call { tool: String, arguments: String },
}

/// The reason why the model stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinishReason {
    Stop,
    Length,
    Tool,
}

/// One answer, independent of the dialect.
pub(crate) struct GeneratedAnswer {
    pub(crate) speech: AnswerContent,
    pub(crate) finish: FinishReason,
    pub(crate) tokens: TokenCounts,
    /// The model that the answer names.
    pub(crate) model: String,
    pub(crate) created: u64,
}

impl GeneratedAnswer {
    pub(crate) fn new(request: &SimulatedRequest, behavior: &Behavior) -> Self {
        let (speech, finish, output) = match request.tool() {
            Some(tool) => {
                let arguments = tool.arguments().to_string();
                let speech = AnswerContent::Call { tool: tool.name.to_owned(), arguments };
                let output = pieces(&speech).count() + 1;
                (speech, FinishReason::Tool, u64::try_from(output).unwrap_or(u64::MAX))
            }
            None => {
                let wanted = u64::from(behavior.words);
                let words = wanted.min(request.max_tokens());
                let finish = if words < wanted { FinishReason::Length } else { FinishReason::Stop };
                let text = match behavior.stamps {
                    true => join_words(iter::repeat(STAMP), words),
                    false => join_words(answer_words(request.tail()), words),
                };
                (AnswerContent::Text(text), finish, words)
            }
        };
        let choices = u64::try_from(request.choices()).unwrap_or(u64::MAX);
        let tokens = TokenCounts::new(request.words(), output.saturating_mul(choices), behavior);
        Self {
            speech,
            finish,
            tokens,
            model: answer_model(request, behavior),
            created: unix_seconds(),
        }
    }

    /// The parts of the answer in a stream.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &str> {
        pieces(&self.speech)
    }
}

/// The words of a text, or a tool call's arguments in parts that end where its fields do.
fn pieces(speech: &AnswerContent) -> impl Iterator<Item = &str> {
    let (text, end) = match speech {
        AnswerContent::Text(text) => (text, ' '),
        AnswerContent::Call { arguments, .. } => (arguments, ','),
    };
    text.split_inclusive(end)
}

/// The words of an answer on a socket: at most `most`.
pub(crate) fn spoken_words(tail: &str, behavior: &Behavior, most: u64) -> Vec<String> {
    let words = u64::from(behavior.words).min(most);
    let words = usize::try_from(words).unwrap_or(usize::MAX);
    match behavior.stamps {
        true => vec![STAMP.to_owned(); words],
        false => answer_words(tail).take(words).map(str::to_owned).collect(),
    }
}

/// The words of an answer that repeats the end of the prompt.
fn answer_words(tail: &str) -> impl Iterator<Item = &str> {
    let opening = ["You", "said:"].into_iter().chain(tail.split_whitespace());
    opening.chain(CANNED.split_whitespace().cycle())
}

fn join_words<'a>(all: impl Iterator<Item = &'a str>, words: u64) -> String {
    let words = usize::try_from(words).unwrap_or(usize::MAX);
    let mut text = String::with_capacity(words.saturating_mul(8));
    for word in all.take(words) {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

/// The model that the answer names: the requested one, with the suffix of the behaviour.
pub(crate) fn answer_model(request: &SimulatedRequest, behavior: &Behavior) -> String {
    match &behavior.snapshot {
        Some(snapshot) => format!("{}-{snapshot}", request.model),
        None => request.model.clone(),
    }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// Returns a new id, unique within this process and, in practice, across processes.
pub(crate) fn new_id(prefix: &str) -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut id = String::with_capacity(prefix.len() + 24);
    id.push_str(prefix);
    let serial = NEXT.fetch_add(1, Ordering::Relaxed);
    // Writing to a string cannot fail.
    let _ = write!(id, "{:016x}{serial:08x}", *PROCESS);
    id
}
