use serde::{Deserialize, Serialize};

/// One thing that is wrong with an input: where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// Field names and array positions from the outside in; empty for the input as a whole.
    pub path: Vec<String>,
    /// What is wrong and what would be right, for a person to read.
    pub message: String,
}

impl Issue {
    /// An issue with the field that `path` leads to.
    pub fn at<const N: usize>(path: [&str; N], message: impl Into<String>) -> Self {
        Self { path: path.map(str::to_owned).to_vec(), message: message.into() }
    }
}
