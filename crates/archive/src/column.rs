//! Tables of the archive as typed columns.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_pricing::Amount;

use crate::error::ArchiveError;

/// The type of a column. Every column may have absent values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// UTF-8 text.
    Text,
    /// A 64-bit integer.
    Integer,
    /// True or false.
    Boolean,
    /// An instant: microseconds since 1970, UTC.
    Time,
    /// An amount in USD: `DECIMAL(38, 10)`.
    Amount,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Absent,
    /// A value of [`ColumnType::Text`].
    Text(String),
    /// A value of [`ColumnType::Integer`] or [`ColumnType::Time`].
    Integer(i64),
    /// A value of [`ColumnType::Boolean`].
    Boolean(bool),
    /// A value of [`ColumnType::Amount`].
    Amount(Amount),
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Into::into)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u64> for Value {
    /// A number beyond the range of the column is its greatest one.
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<Amount> for Value {
    fn from(amount: Amount) -> Self {
        Self::Amount(amount)
    }
}

/// A column of rows of type `R`.
pub struct Column<R: ?Sized> {
    /// The name.
    pub name: &'static str,
    /// The type.
    pub kind: ColumnType,
    /// The value of a row.
    pub value: fn(&R) -> Value,
}

/// A table of the archive. Its rows are sorted by the texts of their merchant and their id.
pub trait Table: Sized {
    /// A row as it is written.
    type Row: 'static;
    /// The name of the table, which is also a folder.
    const NAME: &'static str;
    /// The name of the column of ids. The column of merchants is `merchant_id`.
    const ID: &'static str;
    /// The columns.
    const COLUMNS: &'static [Column<Self::Row>];
    /// The names of the columns that [`Table::read`] needs.
    const READ: &'static [&'static str];

    /// Reads a row.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] when a value is missing or cannot be read.
    fn read(cells: &mut Cells) -> Result<Self, ArchiveError>;
}

/// The name of the column of merchants.
pub(crate) const MERCHANT: &str = "merchant_id";

/// The values of a row that is read, by the names of their columns.
#[derive(Debug)]
pub struct Cells {
    pub(crate) path: Arc<str>,
    pub(crate) places: Arc<HashMap<&'static str, usize>>,
    pub(crate) values: Vec<Value>,
}

impl Cells {
    /// The error for a value of this row.
    pub fn damaged(&self, name: &str) -> ArchiveError {
        ArchiveError::damaged(&*self.path, format!("the value of {name} cannot be read"))
    }

    fn take(&mut self, name: &'static str) -> Result<Value, ArchiveError> {
        let place = self.places.get(name).copied();
        let value = place.and_then(|place| self.values.get_mut(place));
        let value = value.map(|value| std::mem::replace(value, Value::Absent));
        value.ok_or_else(|| self.damaged(name))
    }

    /// The text of a column. `None` if there is none.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] for a value of another type.
    pub fn optional_text(&mut self, name: &'static str) -> Result<Option<String>, ArchiveError> {
        match self.take(name)? {
            Value::Absent => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            _ => Err(self.damaged(name)),
        }
    }

    /// The text of a column.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it is absent or has another type.
    pub fn text(&mut self, name: &'static str) -> Result<String, ArchiveError> {
        self.optional_text(name)?.ok_or_else(|| self.damaged(name))
    }

    /// The number of a column. `None` if there is none.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] for a value of another type.
    pub fn optional_integer(&mut self, name: &'static str) -> Result<Option<i64>, ArchiveError> {
        match self.take(name)? {
            Value::Absent => Ok(None),
            Value::Integer(number) => Ok(Some(number)),
            _ => Err(self.damaged(name)),
        }
    }

    /// The number of a column.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it is absent or has another type.
    pub fn integer(&mut self, name: &'static str) -> Result<i64, ArchiveError> {
        self.optional_integer(name)?.ok_or_else(|| self.damaged(name))
    }

    /// The value of a column that is true or false.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it is absent or has another type.
    pub fn boolean(&mut self, name: &'static str) -> Result<bool, ArchiveError> {
        match self.take(name)? {
            Value::Boolean(value) => Ok(value),
            _ => Err(self.damaged(name)),
        }
    }

    /// The amount of a column.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it is absent or has another type.
    pub fn amount(&mut self, name: &'static str) -> Result<Amount, ArchiveError> {
        match self.take(name)? {
            Value::Amount(amount) => Ok(amount),
            _ => Err(self.damaged(name)),
        }
    }
}
