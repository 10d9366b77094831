//! The most that a call can use, by what its body states. A limit that must never be passed is
//! kept with these figures, so each is rather too large than too small, and what has no bound is
//! named instead of guessed.

use super::CallBody;
use super::scan::Kind;
use crate::dialect::Api;
use crate::table::Endpoint;

/// Tokens that one call of a tool at the provider adds to the conversation at most: its result and
/// the model's words about it. An assumption: no provider states it. A page that was fetched or
/// the results of a search are commonly 1,000 to 20,000 tokens.
const TOKENS_PER_TOOL_CALL: u64 = 32_768;

/// What a call can use at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageBound {
    /// Tokens that go in at most.
    pub input_tokens: u64,
    /// Tokens of one answer at most.
    pub output: OutputBound,
    /// How many answers are made at most; at least 1.
    pub answers: u64,
    /// How often tools that run at the provider are called at most.
    pub tool_calls: u64,
    /// The first field that leaves the cost without a bound, its path from the outside in. The
    /// path is empty where nothing in the body can bound it: what the endpoint does is not known.
    pub unbounded: Option<Vec<String>>,
}

/// The tokens of one answer at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputBound {
    /// The endpoint answers without tokens.
    None,
    /// The body states it.
    Stated(u64),
    /// The body does not: the model's own maximum holds.
    Unstated,
}

impl CallBody {
    /// What the call can use at most, by what its body states. A field bounds only where the
    /// endpoint has it: elsewhere a provider may ignore it.
    pub fn bound(&self, endpoint: &Endpoint) -> UsageBound {
        let (tool_calls, tireless) = self.tool_calls(endpoint.api());
        let unsized_part = self.findings.first(Kind::Unsized);
        let unbounded = unsized_part.or(tireless).or(self.open_ended.as_ref()).cloned();
        let output = match (endpoint.api(), self.max_output_tokens) {
            (Api::Embeddings, _) => OutputBound::None,
            // Some servers take 0 for no maximum at all.
            (_, None | Some(0)) => OutputBound::Unstated,
            (_, Some(tokens)) => OutputBound::Stated(tokens),
        };
        UsageBound {
            input_tokens: self.input_tokens(endpoint, tool_calls),
            output,
            answers: self.choices.max(1),
            tool_calls,
            unbounded: unbounded.or_else(|| endpoint.operation.is_none().then(Vec::new)),
        }
    }

    /// No more tokens than bytes, and what is not written in the body. After each call of a tool
    /// the whole conversation goes in again.
    fn input_tokens(&self, endpoint: &Endpoint, tool_calls: u64) -> u64 {
        let hidden = endpoint.dialect.hidden_tokens();
        // One for the prompt that explains tools as such, and one for each.
        let prompts = match self.findings.tools {
            0 => 0,
            tools => tools.saturating_add(1),
        };
        [
            hidden.per_image.saturating_mul(self.findings.images),
            hidden.per_tool.saturating_mul(prompts),
            TOKENS_PER_TOOL_CALL.saturating_mul(tool_calls),
        ]
        .into_iter()
        .fold(self.input_bytes, u64::saturating_add)
        .saturating_mul(tool_calls.saturating_add(1))
    }

    /// How often tools at the provider are called at most, and the first of which nothing says.
    fn tool_calls(&self, api: Api) -> (u64, Option<&Vec<String>>) {
        let first = |kind| self.findings.first(kind);
        match (first(Kind::ServerTool), api, self.max_tool_calls) {
            (None, ..) => (0, None),
            (_, Api::Messages, _) => (self.findings.tool_uses, first(Kind::UnlimitedTool)),
            (_, Api::Responses, Some(most)) => (most, first(Kind::RemoteTool)),
            (tool, ..) => (0, tool),
        }
    }
}
