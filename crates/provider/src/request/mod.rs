//! What must be known of a request body before it is sent. The body itself is never parsed and
//! written again: it reaches the provider byte for byte, or with one token inserted.

mod edit;
mod inspect;
mod scan;

use bytes::Bytes;
use tollgate_domain::Issue;

use self::edit::Edit;
use crate::table::Endpoint;

/// The few facts of a request body that decide about money, and how to ask for usage.
#[derive(Clone, Debug, Default)]
pub struct CallBody {
    /// The model that is asked for.
    pub model: Option<String>,
    /// Whether the answer is to be an event stream.
    pub stream: bool,
    /// The largest of the maximum-token fields, which bounds each choice.
    pub max_output_tokens: Option<u64>,
    /// How many answers are made at most (`n`, `best_of`); at least 1.
    pub choices: u64,
    /// Whether the body itself asks for usage in the stream.
    pub asks_usage: bool,
    /// The length of the body. A tokenizer that works on bytes makes at most as many tokens.
    pub input_bytes: u64,
    /// The first field that makes the cost unbounded by what the body states: a remote image or
    /// file, or a tool of the provider's without a maximum of uses.
    pub unbounded: Option<Vec<String>>,
    /// Whether one-hour cache entries are asked for anywhere in the body.
    pub(crate) hour_cache: bool,
    edit: Option<Edit>,
}

impl CallBody {
    /// The body of a call that has none.
    pub fn empty() -> Self {
        Self { choices: 1, ..Self::default() }
    }

    /// Reads a JSON body. `managed` says that the operator's key will be used, with which handles
    /// to what the provider stores are refused unless the provider allows them.
    ///
    /// # Errors
    /// Everything that is wrong with the body.
    pub fn inspect(body: &[u8], endpoint: &Endpoint, managed: bool) -> Result<Self, Vec<Issue>> {
        inspect::inspect(body, endpoint, managed)
    }

    /// The body with `"include_usage": true` in its `stream_options`, when it is a streamed chat
    /// body that does not ask for usage, on a provider that has the option; every other byte is
    /// as it was. `None` when the body is to be sent as it is.
    ///
    /// `body` must be the one that was inspected.
    pub fn include_usage(&self, body: &Bytes) -> Option<Bytes> {
        self.edit.as_ref()?.apply(body)
    }
}
