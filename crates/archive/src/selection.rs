//! The choice of rows of a month.

use std::ops::RangeBounds;

use crate::column::Value;

/// A condition on the value of a column.
pub struct Condition<'a> {
    /// The name of the column.
    pub column: &'static str,
    /// Whether a value meets it.
    pub is_met: Box<dyn Fn(&Value) -> bool + 'a>,
}

impl<'a> Condition<'a> {
    /// The value is this text.
    pub fn text(column: &'static str, wanted: String) -> Self {
        let is_met = move |value: &Value| matches!(value, Value::Text(text) if *text == wanted);
        Self { column, is_met: Box::new(is_met) }
    }

    /// The value is a number, or an instant, of a range.
    pub fn integer(column: &'static str, wanted: impl RangeBounds<i64> + 'a) -> Self {
        let is_met =
            move |value: &Value| matches!(value, Value::Integer(number) if wanted.contains(number));
        Self { column, is_met: Box::new(is_met) }
    }

    /// The value is this one, or absent. A row whose value is missing is then read, which is an error.
    pub fn boolean(column: &'static str, wanted: bool) -> Self {
        Self { column, is_met: Box::new(move |value| *value != Value::Boolean(!wanted)) }
    }
}

/// Rows of a merchant.
pub struct Selection<'a> {
    /// The merchant.
    pub merchant: String,
    /// The least id.
    pub from: Option<String>,
    /// The end of the ids, which is excluded.
    pub below: Option<String>,
    /// The conditions. All must be met. Columns of later ones are decoded only for rows that meet the earlier ones.
    pub conditions: Vec<Condition<'a>>,
}

impl Selection<'_> {
    /// All rows of a merchant.
    pub const fn of(merchant: String) -> Self {
        Self { merchant, from: None, below: None, conditions: Vec::new() }
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.may_be_between(Some(id), Some(id))
    }

    /// Whether an id of the selection may lie between these two. `None` is the least and the greatest one.
    pub(crate) fn may_be_between(&self, least: Option<&str>, greatest: Option<&str>) -> bool {
        let begins_below = least.zip(self.below.as_deref()).is_none_or(|(id, below)| id < below);
        begins_below && greatest.zip(self.from.as_deref()).is_none_or(|(id, from)| id >= from)
    }
}
