//! Remarks on an imported price list.

use std::fmt;

use serde::Serialize;

/// A remark on one model of a price list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ImportNote {
    /// The provider: its name in this crate, or the list's name if it is not known here.
    pub provider: String,
    /// The model as the list names it; empty for all models of the provider.
    pub model: String,
    /// The text of the remark.
    pub text: String,
    /// Whether the model is left out because a part of it cannot be read. It then has no new price.
    pub left_out: bool,
}

impl ImportNote {
    /// A remark.
    pub(crate) fn new(provider: &str, model: &str, text: impl Into<String>) -> Self {
        let (provider, model) = (provider.to_owned(), model.to_owned());
        Self { provider, model, text: text.into(), left_out: false }
    }

    /// A remark that a model is left out, and which part of it cannot be read.
    pub(crate) fn unreadable(provider: &str, model: &str, what: impl fmt::Display) -> Self {
        Self {
            left_out: true,
            ..Self::new(provider, model, format!("is left out, since it cannot be read: {what}"))
        }
    }
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.model.is_empty() { "" } else { " " };
        write!(f, "{}{gap}{}: {}", self.provider, self.model, self.text)
    }
}
