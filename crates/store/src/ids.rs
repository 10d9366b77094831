//! Ids as the tables store them: 16 bytes each.

use std::fmt;

use diesel::backend::Backend;
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::Binary;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An id in a row. In the JSON of rows to and from PostgreSQL it is `\x` and 32 digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, AsExpression, FromSqlRow)]
#[diesel(sql_type = Binary)]
pub(crate) struct Id<T>(pub(crate) T);

impl<T> Id<T> {
    /// Returns the id of the domain.
    pub(crate) fn get(self) -> T {
        self.0
    }
}

impl<T: tollgate_domain::Id> Id<T> {
    /// Returns the id without its kind.
    pub(crate) fn untyped(self) -> Id<AnyId> {
        Id(AnyId(*self.0.as_bytes()))
    }

    /// Returns the id without its kind, and its text.
    pub(crate) fn with_text(self) -> (Id<AnyId>, String) {
        (self.untyped(), self.to_string())
    }
}

impl<T: fmt::Display> fmt::Display for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Display> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An id whose kind the table does not store: the owner of a counter or of a series.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AnyId([u8; 16]);

impl tollgate_domain::Id for AnyId {
    fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for AnyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", HexDigits(self.0))
    }
}

/// The digits of an id, as from `encode(id, 'hex')` on PostgreSQL.
struct HexDigits([u8; 16]);

impl fmt::Display for HexDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl<T, DB> ToSql<Binary, DB> for Id<T>
where
    T: tollgate_domain::Id,
    DB: Backend,
    [u8]: ToSql<Binary, DB>,
{
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, DB>) -> serialize::Result {
        self.0.as_bytes().as_slice().to_sql(out)
    }
}

impl<T: tollgate_domain::Id, DB: Backend> FromSql<Binary, DB> for Id<T>
where
    Vec<u8>: FromSql<Binary, DB>,
{
    fn from_sql(value: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let bytes: [u8; 16] = Vec::from_sql(value)?.try_into().map_err(|_| "an id has 16 bytes")?;
        Ok(Self(T::from_bytes(bytes)))
    }
}

impl<T: tollgate_domain::Id> Serialize for Id<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("\\x{}", HexDigits(*self.0.as_bytes())))
    }
}

impl<'de, T: tollgate_domain::Id> Deserialize<'de> for Id<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let digits = text.strip_prefix("\\x").filter(|digits| digits.len() == 32);
        let bytes = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("not an id"))?;
        Ok(Self(T::from_bytes(bytes.to_be_bytes())))
    }
}
