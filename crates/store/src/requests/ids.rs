//! The queries of filtered lists, written so that neither planner has a choice.
//!
//! One condition is walked through in the order of its index, newest first, and the others are
//! looked up for each of its records, until the page is full. Planners would now and then rather read
//! and sort all that meet a condition, or walk through all records of the merchant, by statistics that
//! are of another day or of another merchant. `LIMIT 1 OFFSET 0` keeps a look-up a look-up, and
//! `|| ''` keeps a column from choosing an index.

use diesel::backend::Backend;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::serialize::ToSql;
use diesel::sql_types::{BigInt, HasSqlType, Text};
use diesel::{QueryResult, RunQueryDsl};

/// What records have to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Pair(String, String),
    Connection(String),
    Meter(String),
}

/// The ids of a merchant's records that meet all conditions, newest first; the first condition is
/// walked through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids<'a> {
    pub(super) merchant_id: &'a String,
    pub(super) conditions: &'a [Condition],
    pub(super) after: Option<&'a String>,
    pub(super) limit: i64,
}

/// How many records meet a condition, counted up to a bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count<'a> {
    pub(super) merchant_id: &'a String,
    pub(super) condition: &'a Condition,
    pub(super) bound: i64,
}

/// A backend that takes what the conditions bind.
trait Binds: Backend + HasSqlType<Text> + HasSqlType<BigInt> {}
impl<DB: Backend + HasSqlType<Text> + HasSqlType<BigInt>> Binds for DB {}

/// Begins with the index of a condition. Connections and meters are one merchant's: whose they are
/// is asked when the records of the page are read.
fn from_index_of<'b, DB: Binds>(
    condition: Option<&'b Condition>,
    merchant_id: &'b String,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    match condition {
        Some(Condition::Pair(key, value)) => {
            out.push_sql(" FROM request_metadata AS d WHERE d.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
            out.push_sql(" AND d.key = ");
            out.push_bind_param::<Text, _>(key)?;
            out.push_sql(" AND d.value = ");
            out.push_bind_param::<Text, _>(value)?;
        }
        Some(Condition::Connection(id)) => {
            out.push_sql(" FROM requests AS d WHERE d.connection_id = ");
            out.push_bind_param::<Text, _>(id)?;
        }
        Some(Condition::Meter(id)) => {
            out.push_sql(" FROM requests AS d WHERE d.meter_id = ");
            out.push_bind_param::<Text, _>(id)?;
        }
        None => {
            out.push_sql(" FROM requests AS d WHERE d.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
        }
    }
    Ok(())
}

/// Looks a condition up for the record at hand.
fn look_up<'b, DB: Binds>(
    condition: &'b Condition,
    walked: Option<&Condition>,
    merchant_id: &'b String,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    match condition {
        Condition::Pair(key, value) => {
            out.push_sql(" AND EXISTS (SELECT 1 FROM request_metadata AS m WHERE m.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
            out.push_sql(" AND m.key = ");
            out.push_bind_param::<Text, _>(key)?;
            out.push_sql(" AND m.value = ");
            out.push_bind_param::<Text, _>(value)?;
            out.push_sql(" AND m.request_id = d.request_id LIMIT 1 OFFSET 0)");
        }
        Condition::Connection(id) => in_request("connection_id", id, walked, out)?,
        Condition::Meter(id) => in_request("meter_id", id, walked, out)?,
    }
    Ok(())
}

/// Looks into the record, or only into the index where that has both.
fn in_request<'b, DB: Binds>(
    column: &str,
    id: &'b String,
    walked: Option<&Condition>,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    let look = matches!(walked, Some(Condition::Pair(..)));
    out.push_sql(if look {
        " AND EXISTS (SELECT 1 FROM requests AS r WHERE r.request_id = d.request_id AND r."
    } else {
        " AND d."
    });
    out.push_sql(column);
    out.push_sql(" || '' = ");
    out.push_bind_param::<Text, _>(id)?;
    if look {
        out.push_sql(" LIMIT 1 OFFSET 0)");
    }
    Ok(())
}

impl<DB: Binds> QueryFragment<DB> for Ids<'_>
where
    String: ToSql<Text, DB>,
    i64: ToSql<BigInt, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        let first = self.conditions.first();
        let others = self.conditions.iter().skip(1);
        out.push_sql("SELECT d.request_id");
        from_index_of(first, self.merchant_id, &mut out)?;
        if let Some(after) = self.after {
            out.push_sql(" AND d.request_id < ");
            out.push_bind_param::<Text, _>(after)?;
        }
        for condition in others {
            look_up(condition, first, self.merchant_id, &mut out)?;
        }
        out.push_sql(" ORDER BY d.request_id DESC LIMIT ");
        out.push_bind_param::<BigInt, _>(&self.limit)
    }
}

impl<DB: Binds> QueryFragment<DB> for Count<'_>
where
    String: ToSql<Text, DB>,
    i64: ToSql<BigInt, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        out.push_sql("SELECT count(*) FROM (SELECT 1");
        from_index_of(Some(self.condition), self.merchant_id, &mut out)?;
        out.push_sql(" LIMIT ");
        out.push_bind_param::<BigInt, _>(&self.bound)?;
        out.push_sql(") AS counted");
        Ok(())
    }
}

impl QueryId for Ids<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl QueryId for Count<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Ids<'_> {
    type SqlType = Text;
}

impl Query for Count<'_> {
    type SqlType = BigInt;
}

impl<C> RunQueryDsl<C> for Ids<'_> {}
impl<C> RunQueryDsl<C> for Count<'_> {}
