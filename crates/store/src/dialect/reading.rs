//! Sums over many rows, and the query plans of the databases.

use diesel::pg::Pg;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, BoxedSqlQuery, Query, QueryFragment, QueryId, SqlQuery};
use diesel::sql_types::{Array, BigInt, Binary, Integer, Nullable, Text, Untyped};
use diesel::sqlite::Sqlite;
use diesel::{QueryResult, RunQueryDsl};

use tollgate_domain::MeterId;

use crate::conn::Conn;
use crate::ids::{AnyId, Id};
use crate::rows::{PartSums, to_json};

/// The sums of the rows of a series and a width, by day. A day begins at the slot of a midnight. Only rows
/// within these ranges and within one day count, of one meter or all.
///
/// The order of the loops is forced: the planners cannot know that there are few ranges.
pub(crate) struct UsageByDay<'a> {
    pub(crate) series_id: Id<AnyId>,
    pub(crate) width: i32,
    pub(crate) ranges: &'a [(i64, i64)],
    pub(crate) midnight: i64,
    pub(crate) meter_id: Option<MeterId>,
}

impl UsageByDay<'_> {
    pub(crate) fn load(&self, conn: &mut Conn) -> QueryResult<Vec<PartSums>> {
        match conn {
            Conn::Sqlite(conn) => self.on_sqlite(SQLITE_USAGE_BY_DAY).load(conn),
            Conn::Postgres(conn) => self.on_postgres(POSTGRES_USAGE_BY_DAY).load(conn),
        }
    }

    pub(crate) fn plan(&self, conn: &mut Conn) -> QueryResult<Vec<String>> {
        match conn {
            Conn::Sqlite(conn) => {
                let sql = format!("{EXPLAIN_ON_SQLITE}{SQLITE_USAGE_BY_DAY}");
                let steps: Vec<SqlitePlanRow> = self.on_sqlite(&sql).load(conn)?;
                Ok(steps.into_iter().map(|step| step.detail).collect())
            }
            Conn::Postgres(conn) => {
                let sql = format!("{EXPLAIN_ON_POSTGRES}{POSTGRES_USAGE_BY_DAY}");
                let steps: Vec<PostgresPlanRow> = self.on_postgres(&sql).load(conn)?;
                Ok(steps.into_iter().map(|step| step.line).collect())
            }
        }
    }

    fn on_sqlite(&self, sql: &str) -> BoxedSqlQuery<'static, Sqlite, SqlQuery> {
        diesel::sql_query(sql)
            .into_boxed()
            .bind::<BigInt, _>(self.midnight)
            .bind::<Binary, _>(self.series_id)
            .bind::<Text, _>(to_json(&self.ranges))
            .bind::<Integer, _>(self.width)
            .bind::<Nullable<Binary>, _>(self.meter_id.map(Id))
    }

    fn on_postgres(&self, sql: &str) -> BoxedSqlQuery<'static, Pg, SqlQuery> {
        let (first, past): (Vec<_>, Vec<_>) = self.ranges.iter().copied().unzip();
        diesel::sql_query(sql)
            .into_boxed()
            .bind::<BigInt, _>(self.midnight)
            .bind::<Binary, _>(self.series_id)
            .bind::<Array<BigInt>, _>(first)
            .bind::<Array<BigInt>, _>(past)
            .bind::<Integer, _>(self.width)
            .bind::<Nullable<Binary>, _>(self.meter_id.map(Id))
    }
}

const EXPLAIN_ON_SQLITE: &str = "EXPLAIN QUERY PLAN ";
const EXPLAIN_ON_POSTGRES: &str = "EXPLAIN ";

#[derive(QueryableByName)]
struct SqlitePlanRow {
    #[diesel(sql_type = Text)]
    detail: String,
}

#[derive(QueryableByName)]
struct PostgresPlanRow {
    #[diesel(sql_type = Text, column_name = "QUERY PLAN")]
    line: String,
}

/// The query plan of the database, step by step.
pub(crate) fn plan<Q>(conn: &mut Conn, query: Q) -> QueryResult<Vec<String>>
where
    Q: QueryFragment<Sqlite> + QueryFragment<Pg>,
{
    match conn {
        Conn::Sqlite(conn) => {
            let steps: Vec<SqlitePlanRow> = ExplainQuery(EXPLAIN_ON_SQLITE, query).load(conn)?;
            Ok(steps.into_iter().map(|step| step.detail).collect())
        }
        Conn::Postgres(conn) => {
            let steps: Vec<PostgresPlanRow> =
                ExplainQuery(EXPLAIN_ON_POSTGRES, query).load(conn)?;
            Ok(steps.into_iter().map(|step| step.line).collect())
        }
    }
}

struct ExplainQuery<Q>(&'static str, Q);

impl<Q> QueryId for ExplainQuery<Q> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Q: QueryFragment<Sqlite>> QueryFragment<Sqlite> for ExplainQuery<Q> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Sqlite>) -> QueryResult<()> {
        out.push_sql(self.0);
        self.1.walk_ast(out.reborrow())
    }
}

impl<Q: QueryFragment<Pg>> QueryFragment<Pg> for ExplainQuery<Q> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(self.0);
        self.1.walk_ast(out.reborrow())
    }
}

impl<Q> Query for ExplainQuery<Q> {
    type SqlType = Untyped;
}

impl<Q, C> RunQueryDsl<C> for ExplainQuery<Q> {}

/// The sums of the parts of a period, for each series, in rows of one width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageBySeries<'a> {
    pub(crate) series: &'a [Id<AnyId>],
    pub(crate) width: i32,
    pub(crate) first: i64,
    pub(crate) past: i64,
    pub(crate) step: i64,
}

#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct SeriesSums {
    #[diesel(sql_type = Binary)]
    pub(crate) series_id: Id<AnyId>,
    #[diesel(embed)]
    pub(crate) sums: PartSums,
}

impl UsageBySeries<'_> {
    pub(crate) fn load(&self, conn: &mut Conn) -> QueryResult<Vec<SeriesSums>> {
        match conn {
            Conn::Sqlite(conn) => diesel::sql_query(SQLITE_USAGE_BY_SERIES)
                .bind::<BigInt, _>(self.first)
                .bind::<BigInt, _>(self.past)
                .bind::<BigInt, _>(self.step)
                .bind::<Integer, _>(self.width)
                .bind::<Text, _>(to_json(&self.series))
                .load(conn),
            Conn::Postgres(conn) => diesel::sql_query(POSTGRES_USAGE_BY_SERIES)
                .bind::<BigInt, _>(self.first)
                .bind::<BigInt, _>(self.past)
                .bind::<BigInt, _>(self.step)
                .bind::<Integer, _>(self.width)
                .bind::<Array<Binary>, _>(self.series)
                .load(conn),
        }
    }
}

/// Selects each sum of the rows `r` as [two numbers](PartSums), so that no number of rows overflows. On PostgreSQL a
/// sum of bigints is a numeric, until it is cast.
macro_rules! sums {
    ($cast:literal) => {
        sums!(
            $cast, "tokens", "usage_cost", "fee", "service_charge", "wallet_cost", "merchant_cost"
        )
    };
    ($cast:literal, $($sum:literal),*) => {
        concat!(
            "sum(r.requests)", $cast, " AS requests",
            $(
                ", sum(r.", $sum, " % 10000000000)", $cast, " AS ", $sum,
                ", sum(r.", $sum, " / 10000000000)", $cast, " AS ", $sum, "_high",
            )*
            " "
        )
    };
}

const SQLITE_USAGE_BY_DAY: &str = concat!(
    "SELECT (r.slot - ?1) / 96 AS part, ",
    sums!(""),
    "FROM json_each(?3) AS g CROSS JOIN usage_rollups AS r \
     WHERE r.series_id = ?2 AND r.width = ?4 \
     AND r.slot >= json_extract(g.value, '$[0]') AND r.slot < json_extract(g.value, '$[1]') \
     AND (r.slot - ?1) % 96 + ?4 <= 96 AND (?5 IS NULL OR r.meter_id = ?5) GROUP BY 1"
);

const POSTGRES_USAGE_BY_DAY: &str = concat!(
    "SELECT (r.slot - $1) / 96 AS part, ",
    sums!("::bigint"),
    "FROM unnest($3, $4) AS g (first, past) CROSS JOIN LATERAL \
     (SELECT * FROM usage_rollups AS r WHERE r.series_id = $2 AND r.width = $5 \
     AND r.slot >= g.first AND r.slot < g.past \
     AND (r.slot - $1) % 96 + $5 <= 96 AND ($6 IS NULL OR r.meter_id = $6) OFFSET 0) AS r GROUP BY 1"
);

const SQLITE_USAGE_BY_SERIES: &str = concat!(
    "SELECT r.series_id AS series_id, (r.slot - ?1) / ?3 AS part, ",
    sums!(""),
    "FROM json_each(?5) AS s CROSS JOIN usage_rollups AS r \
     WHERE r.series_id = unhex(substr(s.value, 3)) AND r.width = ?4 AND r.slot >= ?1 AND r.slot < ?2 GROUP BY 1, 2"
);

const POSTGRES_USAGE_BY_SERIES: &str = concat!(
    "SELECT r.series_id AS series_id, (r.slot - $1) / $3 AS part, ",
    sums!("::bigint"),
    "FROM unnest($5) AS s (id) CROSS JOIN LATERAL \
     (SELECT * FROM usage_rollups AS r WHERE r.series_id = s.id AND r.width = $4 \
     AND r.slot >= $1 AND r.slot < $2 OFFSET 0) AS r GROUP BY 1, 2"
);
