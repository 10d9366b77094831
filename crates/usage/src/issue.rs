//! Issues: the errors of a request body.

/// One error of a request body, with its place and the rule for a valid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Field names and array positions, outermost first. Empty for the body as a whole.
    pub path: Vec<String>,
    /// A message for people: the error, and the rule for a valid value.
    pub message: String,
}

impl Issue {
    /// Creates an issue of the field at `path`.
    pub fn at<const N: usize>(path: [&str; N], message: impl Into<String>) -> Self {
        Self { path: path.map(str::to_owned).to_vec(), message: message.into() }
    }
}
