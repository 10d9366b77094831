//! The queries of filtered lists, written to leave the planners of both databases no choice.
//!
//! One condition is walked through in the order of the index, newest first. The other conditions are looked up there
//! for each record, until the page is full. Based on old or unrepresentative statistics, a planner would sometimes read
//! and sort all records that meet a condition, or walk through all records of the merchant. `LIMIT 1 OFFSET 0` prevents
//! the planner from turning a look-up into a join.

use diesel::backend::Backend;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::serialize::ToSql;
use diesel::sql_types::{BigInt, Binary, HasSqlType, Text};
use diesel::sqlite::Sqlite;
use diesel::{QueryResult, RunQueryDsl};
use tollgate_domain::{MerchantId, RequestId};

use crate::ids::Id;

/// A pair that a record must have in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexCondition {
    pub(super) key: String,
    pub(super) value: String,
}

/// Selects the ids of a merchant's records that meet all conditions, newest first. The first condition is walked
/// through.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestIdsQuery<'a> {
    pub(super) merchant_id: Id<MerchantId>,
    pub(super) conditions: &'a [IndexCondition],
    pub(super) after: Option<Id<RequestId>>,
    /// The last record of the walk, inclusive.
    pub(super) until: Option<Id<RequestId>>,
    pub(super) limit: i64,
}

/// Selects the id of the record after `skip` others of a condition, newest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct NthRequestQuery<'a> {
    pub(super) merchant_id: Id<MerchantId>,
    pub(super) condition: &'a IndexCondition,
    pub(super) after: Option<Id<RequestId>>,
    pub(super) skip: i64,
}

/// A backend that supports the types of the bound values.
trait BindBackend: Backend + HasSqlType<Text> + HasSqlType<Binary> + HasSqlType<BigInt> {}

impl BindBackend for Sqlite {}
impl BindBackend for Pg {}

/// Begins with the entries of a condition, or with all records of the merchant.
fn from_condition<'b, DB: BindBackend>(
    condition: Option<&'b IndexCondition>,
    merchant_id: &'b Id<MerchantId>,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
    Id<MerchantId>: ToSql<Binary, DB>,
{
    match condition {
        Some(condition) => {
            out.push_sql(" FROM request_index AS d WHERE d.merchant_id = ");
            out.push_bind_param::<Binary, _>(merchant_id)?;
            has(condition, "d", out)
        }
        None => {
            out.push_sql(" FROM requests AS d WHERE d.merchant_id = ");
            out.push_bind_param::<Binary, _>(merchant_id)
        }
    }
}

/// Looks up a condition for the current record.
fn look_up<'b, DB: BindBackend>(
    condition: &'b IndexCondition,
    merchant_id: &'b Id<MerchantId>,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
    Id<MerchantId>: ToSql<Binary, DB>,
{
    out.push_sql(" AND EXISTS (SELECT 1 FROM request_index AS m WHERE m.merchant_id = ");
    out.push_bind_param::<Binary, _>(merchant_id)?;
    has(condition, "m", out)?;
    out.push_sql(" AND m.request_id = d.request_id LIMIT 1 OFFSET 0)");
    Ok(())
}

fn has<'b, DB: BindBackend>(
    IndexCondition { key, value }: &'b IndexCondition,
    table: &str,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    String: ToSql<Text, DB>,
{
    for (column, text) in [("key", key), ("value", value)] {
        out.push_sql(" AND ");
        out.push_sql(table);
        out.push_sql(".");
        out.push_sql(column);
        out.push_sql(" = ");
        out.push_bind_param::<Text, _>(text)?;
    }
    Ok(())
}

/// Continues after the last page.
fn after<'b, DB: BindBackend>(
    after: Option<&'b Id<RequestId>>,
    out: &mut AstPass<'_, 'b, DB>,
) -> QueryResult<()>
where
    Id<RequestId>: ToSql<Binary, DB>,
{
    if let Some(after) = after {
        out.push_sql(" AND d.request_id < ");
        out.push_bind_param::<Binary, _>(after)?;
    }
    Ok(())
}

impl<DB: BindBackend> QueryFragment<DB> for RequestIdsQuery<'_>
where
    String: ToSql<Text, DB>,
    Id<MerchantId>: ToSql<Binary, DB>,
    Id<RequestId>: ToSql<Binary, DB>,
    i64: ToSql<BigInt, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        let first = self.conditions.first();
        let others = self.conditions.iter().skip(1);
        out.push_sql("SELECT d.request_id");
        from_condition(first, &self.merchant_id, &mut out)?;
        after(self.after.as_ref(), &mut out)?;
        if let Some(until) = &self.until {
            out.push_sql(" AND d.request_id >= ");
            out.push_bind_param::<Binary, _>(until)?;
        }
        for condition in others {
            look_up(condition, &self.merchant_id, &mut out)?;
        }
        out.push_sql(" ORDER BY d.request_id DESC LIMIT ");
        out.push_bind_param::<BigInt, _>(&self.limit)
    }
}

impl<DB: BindBackend> QueryFragment<DB> for NthRequestQuery<'_>
where
    String: ToSql<Text, DB>,
    Id<MerchantId>: ToSql<Binary, DB>,
    Id<RequestId>: ToSql<Binary, DB>,
    i64: ToSql<BigInt, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        out.push_sql("SELECT d.request_id");
        from_condition(Some(self.condition), &self.merchant_id, &mut out)?;
        after(self.after.as_ref(), &mut out)?;
        out.push_sql(" ORDER BY d.request_id DESC LIMIT 1 OFFSET ");
        out.push_bind_param::<BigInt, _>(&self.skip)
    }
}

impl QueryId for RequestIdsQuery<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl QueryId for NthRequestQuery<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for RequestIdsQuery<'_> {
    type SqlType = Binary;
}

impl Query for NthRequestQuery<'_> {
    type SqlType = Binary;
}

impl<C> RunQueryDsl<C> for RequestIdsQuery<'_> {}
impl<C> RunQueryDsl<C> for NthRequestQuery<'_> {}
