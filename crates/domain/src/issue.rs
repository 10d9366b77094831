//! Issues: the errors of an input, as they are reported to a client.

use serde::{Deserialize, Serialize};

/// One error of an input, with its place and the rule for a valid value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// Field names and array positions, outermost first. Empty for the input as a whole.
    pub path: Vec<String>,
    /// A message for people: the error, and the rule for a valid value.
    pub message: String,
}

impl Issue {
    /// Creates an issue of the field at `path`.
    pub fn at<const N: usize>(path: [&str; N], message: impl Into<String>) -> Self {
        Self { path: path.map(str::to_owned).to_vec(), message: message.into() }
    }

    /// The message for a field that came under two names with different values.
    pub fn differs_from(name: &str) -> String {
        format!("is another name of {name}, which has another value")
    }
}
