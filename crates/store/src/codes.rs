//! Enums as the tables of calls have them: a small number for each value.

use std::fmt;

use diesel::backend::Backend;
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::SmallInt;
use serde::{Serialize, Serializer};
use tollgate_domain::{LedgerAccount, RequestStatus, TransactionKind};

/// A value of an enum in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, AsExpression, FromSqlRow)]
#[diesel(sql_type = SmallInt)]
pub(crate) struct Code<T>(pub(crate) T);

/// An enum whose values are numbered. A number that has been written never gets another meaning.
pub(crate) trait Coded: Copy + PartialEq + 'static {
    /// Each number with its value.
    const VALUES: &'static [(i16, Self)];
}

impl Coded for RequestStatus {
    const VALUES: &'static [(i16, Self)] =
        &[(1, Self::Pending), (2, Self::Completed), (3, Self::Error)];
}

impl Coded for LedgerAccount {
    const VALUES: &'static [(i16, Self)] =
        &[(1, Self::Balance), (2, Self::CycleCredit), (3, Self::BundleCredit)];
}

impl Coded for TransactionKind {
    const VALUES: &'static [(i16, Self)] = &[
        (1, Self::Credit),
        (2, Self::Debit),
        (3, Self::Usage),
        (4, Self::CreditGrant),
        (5, Self::CreditExpiry),
        (6, Self::Rollover),
        (7, Self::BundlePurchase),
        (8, Self::Correction),
    ];
}

impl<T: Coded> Code<T> {
    /// The number; 0 is none.
    fn number(self) -> &'static i16 {
        let found = T::VALUES.iter().find(|(_, value)| *value == self.0);
        found.map_or(&0, |(number, _)| number)
    }
}

impl<T, DB> ToSql<SmallInt, DB> for Code<T>
where
    T: Coded + fmt::Debug,
    DB: Backend,
    i16: ToSql<SmallInt, DB>,
{
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, DB>) -> serialize::Result {
        self.number().to_sql(out)
    }
}

impl<T: Coded, DB: Backend> FromSql<SmallInt, DB> for Code<T>
where
    i16: FromSql<SmallInt, DB>,
{
    fn from_sql(value: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let number = i16::from_sql(value)?;
        let found = T::VALUES.iter().find(|(known, _)| *known == number);
        found.map(|(_, value)| Self(*value)).ok_or_else(|| format!("{number} is no value").into())
    }
}

impl<T: Coded> Serialize for Code<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i16(*self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_numbered_once<T: Coded>() -> bool {
        let numbers: std::collections::BTreeSet<_> =
            T::VALUES.iter().map(|(number, _)| *number).collect();
        numbers.len() == T::VALUES.len() && !numbers.contains(&0)
    }

    #[test]
    fn every_value_has_a_number_of_its_own() {
        assert!(is_numbered_once::<RequestStatus>());
        assert!(is_numbered_once::<LedgerAccount>());
        assert!(is_numbered_once::<TransactionKind>());
    }
}
