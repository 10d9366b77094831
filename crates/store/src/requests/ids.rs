//! The queries of filtered lists, written so that neither planner has a choice.
//!
//! One condition is walked through in the order of its index, newest first, and the others are
//! looked up for each of its records, each in an index of its own, until the page is full. Planners
//! would now and then rather read and sort all that meet a condition, or walk through all records of
//! the merchant, by statistics that are of another day or of another merchant. `LIMIT 1 OFFSET 0` keeps
//! a look-up a look-up, and `|| ''` keeps a column from choosing an index.

use diesel::backend::Backend;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::serialize::ToSql;
use diesel::sql_types::{BigInt, HasSqlType, Text};
use diesel::sqlite::Sqlite;
use diesel::{QueryResult, RunQueryDsl};

/// What records have to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It has failed.
    Failure,
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
    /// Where the walk ends, itself included.
    pub(super) until: Option<&'a String>,
    pub(super) limit: i64,
}

/// The id of the record that is met after so many others of a condition, newest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nth<'a> {
    pub(super) merchant_id: &'a String,
    pub(super) condition: &'a Condition,
    pub(super) after: Option<&'a String>,
    pub(super) skip: i64,
}

/// A backend that takes what the conditions bind.
trait Binds: Backend + HasSqlType<Text> + HasSqlType<BigInt> {
    /// What names the index to use, where the backend would rather look into the table.
    const INDEXED_BY: &'static str;
}

impl Binds for Sqlite {
    const INDEXED_BY: &'static str = " INDEXED BY requests_by_";
}

impl Binds for Pg {
    const INDEXED_BY: &'static str = "";
}

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
        Some(Condition::Failure) => {
            out.push_sql(" FROM requests AS d");
            indexed_by("failure", out);
            out.push_sql(" WHERE d.status = 'error' AND d.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
        }
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
        Condition::Failure => {
            out.push_sql(" AND EXISTS (SELECT 1 FROM requests AS r");
            indexed_by("failure", out);
            out.push_sql(" WHERE r.status = 'error' AND r.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
            out.push_sql(" AND r.request_id = d.request_id LIMIT 1 OFFSET 0)");
        }
        Condition::Pair(key, value) => {
            out.push_sql(" AND EXISTS (SELECT 1 FROM request_metadata AS m WHERE m.merchant_id = ");
            out.push_bind_param::<Text, _>(merchant_id)?;
            out.push_sql(" AND m.key = ");
            out.push_bind_param::<Text, _>(key)?;
            out.push_sql(" AND m.value = ");
            out.push_bind_param::<Text, _>(value)?;
            out.push_sql(" AND m.request_id = d.request_id LIMIT 1 OFFSET 0)");
        }
        Condition::Connection(id) => in_request("connection", id, walked, out)?,
        Condition::Meter(id) => in_request("meter", id, walked, out)?,
    }
    Ok(())
}

/// Looks into the index of a column, or where that of the walk has it too, there.
fn in_request<'b, DB: Binds>(
    column: &str,
    id: &'b String,
    walked: Option<&Condition>,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    if !matches!(walked, Some(Condition::Pair(..) | Condition::Failure)) {
        out.push_sql(" AND d.");
        out.push_sql(column);
        out.push_sql("_id || '' = ");
        return out.push_bind_param::<Text, _>(id);
    }
    out.push_sql(" AND EXISTS (SELECT 1 FROM requests AS r");
    indexed_by(column, out);
    out.push_sql(" WHERE r.");
    out.push_sql(column);
    out.push_sql("_id = ");
    out.push_bind_param::<Text, _>(id)?;
    out.push_sql(" AND r.request_id = d.request_id LIMIT 1 OFFSET 0)");
    Ok(())
}

/// Names the index of records by something.
fn indexed_by<DB: Binds>(what: &str, out: &mut AstPass<'_, '_, DB>) {
    if !DB::INDEXED_BY.is_empty() {
        out.push_sql(DB::INDEXED_BY);
        out.push_sql(what);
    }
}

/// Goes on where the last page ended.
fn after<'b, DB: Binds>(after: Option<&'b String>, out: &mut AstPass<'_, 'b, DB>) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    if let Some(after) = after {
        out.push_sql(" AND d.request_id < ");
        out.push_bind_param::<Text, _>(after)?;
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
        after(self.after, &mut out)?;
        if let Some(until) = self.until {
            out.push_sql(" AND d.request_id >= ");
            out.push_bind_param::<Text, _>(until)?;
        }
        for condition in others {
            look_up(condition, first, self.merchant_id, &mut out)?;
        }
        out.push_sql(" ORDER BY d.request_id DESC LIMIT ");
        out.push_bind_param::<BigInt, _>(&self.limit)
    }
}

impl<DB: Binds> QueryFragment<DB> for Nth<'_>
where
    String: ToSql<Text, DB>,
    i64: ToSql<BigInt, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        out.push_sql("SELECT d.request_id");
        from_index_of(Some(self.condition), self.merchant_id, &mut out)?;
        after(self.after, &mut out)?;
        out.push_sql(" ORDER BY d.request_id DESC LIMIT 1 OFFSET ");
        out.push_bind_param::<BigInt, _>(&self.skip)
    }
}

impl QueryId for Ids<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl QueryId for Nth<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Ids<'_> {
    type SqlType = Text;
}

impl Query for Nth<'_> {
    type SqlType = Text;
}

impl<C> RunQueryDsl<C> for Ids<'_> {}
impl<C> RunQueryDsl<C> for Nth<'_> {}
