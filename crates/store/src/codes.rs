//! Enums as the tables of calls store them: a small number for each value.

use std::fmt;

use diesel::backend::Backend;
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::expression::AsExpression;
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types::SmallInt;
use serde::{Serialize, Serializer};
use tollgate_domain::{
    JobKind, JobObserver, JobState, LedgerAccount, ObjectKind, RequestStatus, TransactionKind,
};

/// A value of an enum in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, AsExpression, FromSqlRow)]
#[diesel(sql_type = SmallInt)]
pub(crate) struct EnumCode<T>(pub(crate) T);

/// An enum whose values are numbered. A number that has been written must keep its meaning.
pub(crate) trait CodedEnum: Copy + 'static {
    /// Returns the number of a value.
    fn number(&self) -> &'static i16;

    /// Returns the value of a number.
    fn of(number: i16) -> Option<Self>;
}

macro_rules! coded {
    ($( $Enum:ident { $( $Value:ident = $number:literal, )* } )*) => { $(
        impl CodedEnum for $Enum {
            fn number(&self) -> &'static i16 {
                match self {
                    $( Self::$Value => &$number, )*
                }
            }

            fn of(number: i16) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$Value), )*
                    _ => None,
                }
            }
        }
    )* };
}

coded! {
    RequestStatus {
        Pending = 1,
        Completed = 2,
        Error = 3,
    }
    LedgerAccount {
        Balance = 1,
        CycleCredit = 2,
        BundleCredit = 3,
    }
    TransactionKind {
        Credit = 1,
        Debit = 2,
        Usage = 3,
        CreditGrant = 4,
        CreditExpiry = 5,
        Rollover = 6,
        BundlePurchase = 7,
        Correction = 8,
    }
    ObjectKind {
        Response = 1,
        Batch = 2,
        File = 3,
        Video = 4,
        Conversation = 5,
    }
    JobKind {
        Response = 1,
        Batch = 2,
        Video = 3,
    }
    JobState {
        Running = 1,
        Succeeded = 2,
        Failed = 3,
        Cancelled = 4,
        Expired = 5,
        Lost = 6,
    }
    JobObserver {
        Client = 1,
        Webhook = 2,
        Poll = 3,
    }
}

impl<T, DB> ToSql<SmallInt, DB> for EnumCode<T>
where
    T: CodedEnum + fmt::Debug,
    DB: Backend,
    i16: ToSql<SmallInt, DB>,
{
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, DB>) -> serialize::Result {
        self.0.number().to_sql(out)
    }
}

impl<T: CodedEnum, DB: Backend> FromSql<SmallInt, DB> for EnumCode<T>
where
    i16: FromSql<SmallInt, DB>,
{
    fn from_sql(value: DB::RawValue<'_>) -> deserialize::Result<Self> {
        let number = i16::from_sql(value)?;
        T::of(number).map(Self).ok_or_else(|| format!("{number} is no value").into())
    }
}

impl<T: CodedEnum> Serialize for EnumCode<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i16(*self.0.number())
    }
}
