//! Sums over many rows, and the query plans of the databases.

use std::fmt::Write as _;

use diesel::pg::Pg;
use diesel::prelude::*;
use diesel::query_builder::{AstPass, BoxedSqlQuery, Query, QueryFragment, QueryId, SqlQuery};
use diesel::result::Error as DieselError;
use diesel::sql_types::{BigInt, Binary, Nullable, SmallInt, Text, Untyped};
use diesel::sqlite::Sqlite;
use diesel::{QueryResult, RunQueryDsl};

use tollgate_domain::MerchantId;

use crate::conn::Conn;
use crate::ids::{AnyId, Id};
use crate::rows::{HIGH, PartSums, RollupRow};

/// A value that is bound to a statement.
#[derive(Clone, Debug)]
pub(crate) enum BoundValue {
    Id(Id<AnyId>),
    Text(String),
    Code(i16),
}

/// A column of series, or of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesColumn {
    Connection,
    SpendKey,
    /// The budget that the spend key names, else the customer.
    Budget,
    /// All budgets that the calls count against. Its condition finds a part of the text.
    Budgets,
    Meter,
    Provider,
    Model,
    Status,
    /// The value of the key of metadata.
    Value,
    /// The value of the second key. Series have none.
    SecondValue,
}

impl SeriesColumn {
    const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection_id",
            Self::SpendKey => "spend_key_id",
            Self::Budget => "budget_id",
            Self::Budgets => "budgets",
            Self::Meter => "meter_id",
            Self::Provider => "provider",
            Self::Model => "model",
            Self::Status => "status",
            Self::Value | Self::SecondValue => "value",
        }
    }

    /// The comparison of its condition.
    const fn operator(self) -> &'static str {
        match self {
            Self::Budgets => "LIKE",
            _ => "=",
        }
    }

    /// The type of its values: an id, a text or a code.
    const fn kind(self) -> &'static str {
        match self {
            Self::Connection | Self::SpendKey | Self::Budget | Self::Meter => "id",
            Self::Budgets | Self::Provider | Self::Model | Self::Value | Self::SecondValue => {
                "text"
            }
            Self::Status => "code",
        }
    }
}

/// The calls whose sums are added up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SummedCalls<'a> {
    /// Those of the series with a key.
    OfSeries(&'a str),
    /// Those of the sets of metadata.
    OfSets {
        /// The pairs that a set must have.
        pairs: &'a [(String, String)],
        /// The keys whose values are [`SeriesColumn::Value`] and [`SeriesColumn::SecondValue`].
        keys: &'a [&'a str],
    },
}

/// Rows of a width, in a range of slots. The end is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) width: i32,
    pub(crate) first: i64,
    pub(crate) past: i64,
}

/// The sums of series that pass a filter, grouped by at most two columns and by parts of equal length.
///
/// The order of the loops is forced, series before ranges before rows: the planners cannot know that there are few
/// ranges. If there is one part, SQLite adds up the rows of each series before it sorts the groups, for a sort of all
/// rows is most of the time. The rows of sets are in the order of time, so for sets the ranges come first.
#[derive(Clone, Debug)]
pub(crate) struct UsageQuery<'a> {
    pub(crate) merchant_id: Id<AnyId>,
    pub(crate) calls: SummedCalls<'a>,
    pub(crate) filters: &'a [(SeriesColumn, BoundValue)],
    pub(crate) groups: &'a [SeriesColumn],
    /// The groups to read, each with a value or none for each column. `None` for all.
    pub(crate) among: Option<&'a [Vec<Option<BoundValue>>]>,
    pub(crate) ranges: &'a [SlotRange],
    /// The slot at which the first part begins.
    pub(crate) origin: i64,
    /// The length of a part in quarter hours.
    pub(crate) step: i64,
    /// The sums to read, by their columns; the others are 0. Empty for all.
    pub(crate) only: &'a [&'a str],
    /// The most rows of the answer.
    pub(crate) limit: usize,
}

/// The sums of a part of a group.
#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct GroupSums {
    #[diesel(sql_type = Nullable<Binary>)]
    id_0: Option<Id<AnyId>>,
    #[diesel(sql_type = Nullable<Text>)]
    text_0: Option<String>,
    #[diesel(sql_type = Nullable<SmallInt>)]
    code_0: Option<i16>,
    #[diesel(sql_type = Nullable<Binary>)]
    id_1: Option<Id<AnyId>>,
    #[diesel(sql_type = Nullable<Text>)]
    text_1: Option<String>,
    #[diesel(sql_type = Nullable<SmallInt>)]
    code_1: Option<i16>,
    #[diesel(embed)]
    pub(crate) sums: PartSums,
}

impl GroupSums {
    /// The values of both columns of the group, where there are any.
    pub(crate) fn values(self) -> [Option<BoundValue>; 2] {
        let value = |id: Option<_>, text: Option<_>, code: Option<_>| {
            let id = id.map(BoundValue::Id);
            id.or(text.map(BoundValue::Text)).or(code.map(BoundValue::Code))
        };
        [value(self.id_0, self.text_0, self.code_0), value(self.id_1, self.text_1, self.code_1)]
    }
}

/// How a statement adds up a sum of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SumForm {
    /// As an integer. SQLite fails if it overflows.
    Integer,
    /// As the sum of the remainders by [`HIGH`] and the sum of the quotients, which do not overflow.
    TwoIntegers,
    /// As PostgreSQL's numeric, which does not overflow.
    Numeric,
}

impl SumForm {
    /// The two columns of a sum.
    fn columns(self, sum: &str) -> String {
        match self {
            Self::Integer => format!("sum(r.{sum}) AS {sum}, 0 AS {sum}_high"),
            Self::TwoIntegers => {
                format!("sum(r.{sum} % {HIGH}) AS {sum}, sum(r.{sum} / {HIGH}) AS {sum}_high")
            }
            Self::Numeric => format!(
                "mod(sum(r.{sum}), {HIGH})::bigint AS {sum}, div(sum(r.{sum}), {HIGH})::bigint AS {sum}_high"
            ),
        }
    }
}

impl UsageQuery<'_> {
    pub(crate) fn load(&self, conn: &mut Conn) -> QueryResult<Vec<GroupSums>> {
        match conn {
            Conn::Sqlite(conn) => match self.on_sqlite("", SumForm::Integer).load(conn) {
                Err(DieselError::DatabaseError(_, cause))
                    if cause.message() == "integer overflow" =>
                {
                    self.on_sqlite("", SumForm::TwoIntegers).load(conn)
                }
                loaded => loaded,
            },
            Conn::Postgres(conn) => self.on_postgres("").load(conn),
        }
    }

    pub(crate) fn plan(&self, conn: &mut Conn) -> QueryResult<Vec<String>> {
        match conn {
            Conn::Sqlite(conn) => {
                let steps: Vec<SqlitePlanRow> =
                    self.on_sqlite(EXPLAIN_ON_SQLITE, SumForm::Integer).load(conn)?;
                Ok(steps.into_iter().map(|step| step.detail).collect())
            }
            Conn::Postgres(conn) => {
                let steps: Vec<PostgresPlanRow> =
                    self.on_postgres(EXPLAIN_ON_POSTGRES).load(conn)?;
                Ok(steps.into_iter().map(|step| step.line).collect())
            }
        }
    }

    fn on_sqlite(&self, explain: &str, form: SumForm) -> BoxedSqlQuery<'static, Sqlite, SqlQuery> {
        let from = match self.calls {
            SummedCalls::OfSeries(_) => format!(
                "FROM usage_series AS s CROSS JOIN (VALUES {}) AS g CROSS JOIN usage_rollups AS r \
                 WHERE r.series_id = s.series_id AND {IN_RANGE} AND {}",
                self.ranges(),
                self.conditions(SQLITE)
            ),
            SummedCalls::OfSets { pairs, keys } => {
                let rows = format!("metadata_rollups AS r WHERE r.merchant_id = ?1 AND {IN_RANGE}");
                self.rows_of_sets((pairs.len(), keys.len()), &rows, SQLITE, form)
            }
        };
        let is_by_series = matches!(self.calls, SummedCalls::OfSeries(_)) && self.is_one_part();
        let sql = match is_by_series && form == SumForm::Integer {
            true => {
                let groups = self.groups.iter().map(|group| format!("s.{}, ", group.name()));
                let from = format!(
                    "FROM (SELECT {}min(r.slot) AS slot, {} {from} GROUP BY s.key, s.value, s.series_id) AS r",
                    groups.collect::<String>(),
                    self.plain_sums(),
                );
                self.sql("r", SQLITE, &from, form)
            }
            false => self.sql("s", SQLITE, &from, form),
        };
        let query = diesel::sql_query(format!("{explain}{sql}")).into_boxed();
        let query = query.bind::<Binary, _>(self.merchant_id);
        self.bound().fold(query, |query, value| match value {
            BoundValue::Id(id) => query.bind::<Binary, _>(id),
            BoundValue::Text(text) => query.bind::<Text, _>(text),
            BoundValue::Code(code) => query.bind::<SmallInt, _>(code),
        })
    }

    fn on_postgres(&self, explain: &str) -> BoxedSqlQuery<'static, Pg, SqlQuery> {
        let from = match self.calls {
            SummedCalls::OfSeries(_) => format!(
                "FROM usage_series AS s CROSS JOIN (VALUES {}) AS g CROSS JOIN LATERAL \
                 (SELECT * FROM usage_rollups AS r WHERE r.series_id = s.series_id AND {IN_RANGE} OFFSET 0) AS r \
                 WHERE {}",
                self.ranges(),
                self.conditions(POSTGRES)
            ),
            SummedCalls::OfSets { pairs, keys } => {
                let rows = format!(
                    "LATERAL (SELECT * FROM metadata_rollups AS r WHERE r.merchant_id = $1 AND {IN_RANGE} OFFSET 0) \
                     AS r WHERE true"
                );
                self.rows_of_sets((pairs.len(), keys.len()), &rows, POSTGRES, SumForm::Numeric)
            }
        };
        let sql = self.sql("s", POSTGRES, &from, SumForm::Numeric);
        let query = diesel::sql_query(format!("{explain}{sql}")).into_boxed();
        let query = query.bind::<Binary, _>(self.merchant_id);
        self.bound().fold(query, |query, value| match value {
            BoundValue::Id(id) => query.bind::<Binary, _>(id),
            BoundValue::Text(text) => query.bind::<Text, _>(text),
            BoundValue::Code(code) => query.bind::<SmallInt, _>(code),
        })
    }

    /// Whether all ranges are in one part.
    fn is_one_part(&self) -> bool {
        self.ranges.iter().all(|range| {
            range.first >= self.origin && range.past <= self.origin.saturating_add(self.step)
        })
    }

    fn ranges(&self) -> String {
        let ranges = self.ranges.iter();
        let ranges =
            ranges.map(|range| format!("({}, {}, {})", range.width, range.first, range.past));
        ranges.collect::<Vec<_>>().join(", ")
    }

    /// The sums to read.
    fn sums(&self) -> impl Iterator<Item = &'static str> {
        RollupRow::SUM_NAMES.into_iter().filter(|sum| self.reads(sum))
    }

    fn reads(&self, sum: &str) -> bool {
        self.only.is_empty() || self.only.contains(&sum)
    }

    /// The values of the conditions, after the merchant.
    fn bound(&self) -> impl Iterator<Item = BoundValue> {
        let text = |text: &str| BoundValue::Text(text.to_owned());
        let of_calls: Vec<_> = match self.calls {
            SummedCalls::OfSeries(key) => vec![text(key)],
            SummedCalls::OfSets { pairs, keys } => {
                let pairs = pairs.iter().flat_map(|(key, value)| [text(key), text(value)]);
                keys.iter().map(|key| text(key)).chain(pairs).collect()
            }
        };
        let filters = self.filters.iter().map(|(_, value)| value.clone());
        let among = self.among.into_iter().flatten().flatten().flatten().cloned();
        of_calls.into_iter().chain(filters).chain(among)
    }

    /// The rows of the sets that have the pairs. The rows of a set in a part are added up before its values are computed,
    /// unless the form of the sums forbids it.
    fn rows_of_sets(
        &self,
        (pairs, keys): (usize, usize),
        rows: &str,
        database: DatabaseMarks,
        form: SumForm,
    ) -> String {
        let mark = database.mark;
        let mut from = format!("FROM (VALUES {}) AS g CROSS JOIN {rows}", self.ranges());
        if pairs > 0 {
            let pairs = (0..pairs).map(|number| {
                let key = 2 + keys + 2 * number;
                format!(" AND {} = {mark}{}", database.value_of(key), key + 1)
            });
            let pairs: String = pairs.collect();
            // PostgreSQL expects few sets and would read the rows again for each, but not for a condition with `IS TRUE`.
            let _ = write!(
                from,
                " AND (r.set_id IN (SELECT s.set_id FROM metadata_sets AS s \
                 WHERE s.merchant_id = {mark}1{pairs})) IS TRUE"
            );
        }
        if keys == 0 {
            return from;
        }
        let rows = match form {
            SumForm::Integer | SumForm::Numeric => format!(
                "SELECT r.set_id, min(r.slot) AS slot, {} {from} GROUP BY r.set_id, {}",
                self.plain_sums(),
                self.part(),
            ),
            SumForm::TwoIntegers => format!("SELECT r.* {from}"),
        };
        format!(
            "FROM ({rows}) AS r CROSS JOIN metadata_sets AS s \
             WHERE s.merchant_id = {mark}1 AND s.set_id = r.set_id AND {}",
            self.conditions(database)
        )
    }

    /// The sums to read, under their own names.
    fn plain_sums(&self) -> String {
        let sums = self.sums().map(|sum| format!("sum(r.{sum}) AS {sum}"));
        sums.collect::<Vec<_>>().join(", ")
    }

    /// The number of the part of a row.
    fn part(&self) -> String {
        format!("(r.slot - {}) / {}", self.origin, self.step)
    }

    /// A column of the series, or the value of a set.
    fn column(&self, of: &str, column: SeriesColumn, database: DatabaseMarks) -> String {
        match (self.calls, column) {
            (SummedCalls::OfSets { .. }, SeriesColumn::SecondValue) => database.value_of(3),
            (SummedCalls::OfSets { .. }, _) => database.value_of(2),
            (SummedCalls::OfSeries(_), column) => format!("{of}.{}", column.name()),
        }
    }

    /// The conditions on series or sets. A value is bound in the place of each mark.
    fn conditions(&self, database: DatabaseMarks) -> String {
        let mark = database.mark;
        let (mut all, bound) = match self.calls {
            SummedCalls::OfSeries(_) => {
                (vec![format!("s.merchant_id = {mark}1"), format!("s.key = {mark}2")], 2)
            }
            SummedCalls::OfSets { pairs, keys } => (vec![], 1 + keys.len() + 2 * pairs.len()),
        };
        let mut numbers = bound + 1..;
        let mut equal = |column: SeriesColumn| {
            let (name, operator) = (self.column("s", column, database), column.operator());
            format!("{name} {operator} {mark}{}", numbers.next().unwrap_or_default())
        };
        all.extend(self.filters.iter().map(|(column, _)| equal(*column)));
        if let Some(among) = self.among {
            let groups = among.iter().map(|values| {
                let columns = self.groups.iter().zip(values);
                let columns = columns.map(|(column, value)| match value {
                    Some(_) => equal(*column),
                    None => format!("{} IS NULL", self.column("s", *column, database)),
                });
                format!("({})", columns.collect::<Vec<_>>().join(" AND "))
            });
            all.push(format!("({})", groups.collect::<Vec<_>>().join(" OR ")));
        }
        // The planners use an index of some rows only if the statement says which ones.
        if let SummedCalls::OfSeries(key @ (":calls" | ":customers")) = self.calls {
            all.push(format!("s.key = '{key}'"));
        }
        if all.is_empty() { "true".to_owned() } else { all.join(" AND ") }
    }

    /// The statement. The columns of groups are those of `groups`.
    fn sql(&self, groups: &str, database: DatabaseMarks, from: &str, form: SumForm) -> String {
        let mut sql = "SELECT ".to_owned();
        // Absent columns are no keys of the sort, which is most of the time of a large sum.
        let mut keys = "part".to_owned();
        for number in 0..2 {
            let group = self.groups.get(number);
            for (kind, of_kind) in [("id", "bytea"), ("text", "text"), ("code", "smallint")] {
                let column = group.filter(|group| group.kind() == kind);
                let _ = match column {
                    Some(column) => {
                        let _ = write!(keys, ", {kind}_{number}");
                        let column = self.column(groups, *column, database);
                        write!(sql, "{column} AS {kind}_{number}, ")
                    }
                    None => write!(sql, "CAST(NULL AS {of_kind}) AS {kind}_{number}, "),
                };
            }
        }
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let _ = write!(sql, "{} AS part", self.part());
        for sum in RollupRow::SUM_NAMES {
            let _ = match self.reads(sum) {
                true => write!(sql, ", {}", form.columns(sum)),
                false => {
                    write!(sql, ", CAST(0 AS bigint) AS {sum}, CAST(0 AS bigint) AS {sum}_high")
                }
            };
        }
        let _ = write!(sql, " {from} GROUP BY {keys} LIMIT {limit}");
        sql
    }
}

/// How a database marks a bound value, and reads a value of JSON.
#[derive(Clone, Copy)]
struct DatabaseMarks {
    mark: char,
    /// The value of the key with this mark in the metadata of a set.
    value: fn(key: &str) -> String,
}

impl DatabaseMarks {
    /// The value of the key that is bound with this number.
    fn value_of(self, number: usize) -> String {
        (self.value)(&format!("{}{number}", self.mark))
    }
}

const SQLITE: DatabaseMarks = DatabaseMarks {
    mark: '?',
    value: |key| format!("(SELECT j.value FROM json_each(s.metadata) AS j WHERE j.key = {key})"),
};

const POSTGRES: DatabaseMarks =
    DatabaseMarks { mark: '$', value: |key| format!("(s.metadata::jsonb ->> {key})") };

const IN_RANGE: &str = "r.width = g.column1 AND r.slot >= g.column2 AND r.slot < g.column3";

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

/// The numbers of refused calls by quarter hour, and by key and customer where that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusalCountsQuery {
    pub(crate) merchant_id: Id<MerchantId>,
    /// The first quarter hour, and the first after the range.
    pub(crate) quarters: (i64, i64),
    /// Only the counts of this spend key, and of this customer.
    pub(crate) of: (Option<Id<AnyId>>, Option<Id<AnyId>>),
    /// Whether to group by spend key, and by customer.
    pub(crate) by: (bool, bool),
}

/// A number of refused calls.
#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct RefusalCountSum {
    #[diesel(sql_type = BigInt)]
    pub(crate) slot: i64,
    #[diesel(sql_type = Nullable<Binary>)]
    pub(crate) spend_key_id: Option<Id<AnyId>>,
    #[diesel(sql_type = Nullable<Binary>)]
    pub(crate) connection_id: Option<Id<AnyId>>,
    #[diesel(sql_type = BigInt)]
    pub(crate) count: i64,
}

impl RefusalCountsQuery {
    pub(crate) fn load(&self, conn: &mut Conn) -> QueryResult<Vec<RefusalCountSum>> {
        match conn {
            Conn::Sqlite(conn) => diesel::sql_query(self.sql('?', ""))
                .bind::<Binary, _>(self.merchant_id)
                .bind::<Nullable<Binary>, _>(self.of.0)
                .bind::<Nullable<Binary>, _>(self.of.1)
                .load(conn),
            Conn::Postgres(conn) => diesel::sql_query(self.sql('$', "::bigint"))
                .bind::<Binary, _>(self.merchant_id)
                .bind::<Nullable<Binary>, _>(self.of.0)
                .bind::<Nullable<Binary>, _>(self.of.1)
                .load(conn),
        }
    }

    fn sql(&self, mark: char, cast: &str) -> String {
        let column = |is_grouped: bool, name: &str| match is_grouped {
            true => name.to_owned(),
            false => format!("CAST(NULL AS bytea) AS {name}"),
        };
        let key = column(self.by.0, "spend_key_id");
        let connection = column(self.by.1, "connection_id");
        let (first, past) = self.quarters;
        format!(
            "SELECT slot, {key}, {connection}, sum(count){cast} AS count FROM refusal_counts \
             WHERE merchant_id = {mark}1 AND slot >= {first} AND slot < {past} \
             AND ({mark}2 IS NULL OR spend_key_id = {mark}2) \
             AND ({mark}3 IS NULL OR connection_id = {mark}3) GROUP BY 1, 2, 3"
        )
    }
}
