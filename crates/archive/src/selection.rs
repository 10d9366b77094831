//! The choice of rows of a month.

use std::ops::{Range, RangeInclusive};

use crate::column::{MERCHANT, Table, Value};

/// A condition on the value of a column.
pub struct Condition<'a> {
    /// The name of the column.
    pub(crate) column: &'static str,
    test: Test<'a>,
}

enum Test<'a> {
    Any(Box<dyn Fn(&Value) -> bool + 'a>),
    /// The value is a number of one of these ranges.
    Integer(Ranges),
}

/// Ranges of numbers, which ascend and do not overlap.
pub(crate) struct Ranges(Vec<Range<i64>>);

impl<'a> Condition<'a> {
    /// The value passes a test.
    pub fn new(column: &'static str, is_met: impl Fn(&Value) -> bool + 'a) -> Self {
        Self { column, test: Test::Any(Box::new(is_met)) }
    }

    /// The value is this text.
    pub fn text(column: &'static str, wanted: String) -> Self {
        Self::new(column, move |value| matches!(value, Value::Text(text) if *text == wanted))
    }

    /// The value is a number, or an instant, of a range. A group of rows is not read if the file has statistics of the column, and
    /// they say that the group has no such value.
    pub fn integer(column: &'static str, wanted: Range<i64>) -> Self {
        Self::integers(column, std::iter::once(wanted).collect())
    }

    /// As [`Self::integer`], of one of these ranges. They ascend and do not overlap.
    pub const fn integers(column: &'static str, wanted: Vec<Range<i64>>) -> Self {
        Self { column, test: Test::Integer(Ranges(wanted)) }
    }

    /// The value is this one, or absent.
    pub fn boolean(column: &'static str, wanted: bool) -> Self {
        Self::new(column, move |value| *value != Value::Boolean(!wanted))
    }

    pub(crate) fn is_met(&self, value: &Value) -> bool {
        match (&self.test, value) {
            (Test::Any(is_met), value) => is_met(value),
            (Test::Integer(wanted), Value::Integer(number)) => wanted.overlap(&(*number..=*number)),
            (Test::Integer(_), _) => false,
        }
    }

    /// The numbers that meet the condition. `None` if it is not about numbers.
    pub(crate) const fn numbers(&self) -> Option<&Ranges> {
        match &self.test {
            Test::Integer(wanted) => Some(wanted),
            Test::Any(_) => None,
        }
    }
}

impl Ranges {
    /// Whether one of them has a number of the other range.
    pub(crate) fn overlap(&self, other: &RangeInclusive<i64>) -> bool {
        let first = self.0.partition_point(|range| range.end <= *other.start());
        self.0.get(first).is_some_and(|range| range.start <= *other.end())
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
    /// The columns that are not read. Their values are absent.
    pub unread: Vec<&'static str>,
}

impl Selection<'_> {
    /// All rows of a merchant.
    pub const fn of(merchant: String) -> Self {
        Self { merchant, from: None, below: None, conditions: Vec::new(), unread: Vec::new() }
    }

    /// The columns that a walk needs.
    pub(crate) fn columns<T: Table>(&self) -> impl Iterator<Item = &'static str> {
        let read = T::READ.iter().filter(|name| !self.unread.contains(*name)).copied();
        let conditions = self.conditions.iter().map(|condition| condition.column);
        read.chain(conditions).chain([MERCHANT, T::ID])
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
