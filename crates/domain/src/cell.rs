//! Cells: whole services, each with a database of its own, behind one router.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The number of a cell, from 0 to 9999. A service without a router is cell 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellNumber(u16);

/// The error of a number or text that is not from 0 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseCellError;

impl CellNumber {
    const MOST: u16 = 9_999;

    /// The number itself.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The base64 of a forward token, without `tgt_`, the number of a cell and `_` before it.
    pub fn strip_token(token: &str) -> &str {
        let rest = token.strip_prefix("tgt_").and_then(Self::split);
        rest.filter(|(cell, _)| *cell != Self::default()).map_or(token, |(_, base64)| base64)
    }

    /// The number and `_`, for the text of a credential. Credentials of cell 0 have no number.
    pub(crate) fn mark(self) -> String {
        match self.0 {
            0 => String::new(),
            number => format!("{number}_"),
        }
    }

    /// Splits the [mark](Self::mark) from what follows it. A text without a mark is of cell 0.
    pub(crate) fn split(text: &str) -> Option<(Self, &str)> {
        match text.split_once('_') {
            None => Some((Self::default(), text)),
            Some((digits, rest)) => {
                let number: Self = digits.parse().ok()?;
                // Each number has one form, so the same credential is not written in two ways.
                let has_mark = number != Self::default() && text.starts_with(&number.mark());
                has_mark.then_some((number, rest))
            }
        }
    }
}

impl TryFrom<u16> for CellNumber {
    type Error = ParseCellError;

    fn try_from(number: u16) -> Result<Self, ParseCellError> {
        if number <= Self::MOST { Ok(Self(number)) } else { Err(ParseCellError) }
    }
}

impl FromStr for CellNumber {
    type Err = ParseCellError;

    fn from_str(text: &str) -> Result<Self, ParseCellError> {
        let number: u16 = text.parse().map_err(|_: ParseIntError| ParseCellError)?;
        Self::try_from(number)
    }
}

impl fmt::Display for CellNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ParseCellError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a number from 0 to 9999")
    }
}

impl std::error::Error for ParseCellError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_split_from_its_text() {
        let seven: CellNumber = "7".parse().unwrap();
        assert_eq!(seven.mark(), "7_");
        assert_eq!(CellNumber::split("7_abc"), Some((seven, "abc")));
        assert_eq!(CellNumber::split("abc"), Some((CellNumber::default(), "abc")));
        for text in ["0_abc", "07_abc", "+7_abc", "10000_abc", "_abc", "x_abc"] {
            assert_eq!(CellNumber::split(text), None, "{text}");
        }
        assert_eq!(CellNumber::try_from(10_000), Err(ParseCellError));
        let tokens = ["tgt_7_eyJ_-9", "eyJ_-9", "tgt_0_eyJ", "tgt_eyJ"];
        let bare = ["eyJ_-9", "eyJ_-9", "tgt_0_eyJ", "tgt_eyJ"];
        assert_eq!(tokens.map(CellNumber::strip_token), bare);
    }
}
