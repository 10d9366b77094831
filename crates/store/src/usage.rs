//! What calls came to, day by day, read from roll-ups that the ledger keeps.
//!
//! A record counts once it has ended, at the time it was admitted, with what it shows. Each is added
//! to a few *series* (`ledger/rollups.rs` says to which), and any question is answered by the sum of
//! some series, so that no record is read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{AddAssign, Sub};

use diesel::prelude::*;
use diesel::sql_types::BigInt;
use serde::Serialize;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, RequestRecord, Span};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::requests::RequestFilter;
use crate::rows::from_json;
use crate::schema::{connections, usage_rollups, usage_series, usage_tags};

/// What some calls come to. Amounts in units of 10⁻¹⁰ USD, in a range that no sum of them leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many.
    pub requests: i128,
    /// Tokens sent and received.
    pub tokens: i128,
    /// What the providers charge.
    pub usage_cost: i128,
    /// What the meters charge.
    pub fee: i128,
    /// What the operator charges.
    pub service_charge: i128,
    /// What the wallets of the requests paid.
    pub wallet_cost: i128,
    /// What the merchant paid.
    pub merchant_cost: i128,
}

impl Sums {
    /// What one ended call comes to.
    pub fn of(record: &RequestRecord) -> Self {
        let (usage, quote) = (&record.priced.usage, &record.quote);
        let units = |amount: tollgate_pricing::Amount| i128::from(amount.units());
        Self {
            requests: 1,
            tokens: i128::from(usage.input_tokens().saturating_add(usage.output_tokens())),
            usage_cost: units(quote.base.total().unwrap_or_default()),
            fee: units(quote.fee.amount().unwrap_or_default()),
            service_charge: units(quote.service_charge.amount),
            wallet_cost: units(quote.total_wallet_cost),
            merchant_cost: units(quote.total_merchant_cost),
        }
    }

    /// What the calls cost, whoever paid.
    pub const fn request_cost(&self) -> i128 {
        self.wallet_cost + self.merchant_cost
    }

    pub(crate) const fn each(self) -> [i128; 7] {
        let Self { requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost } =
            self;
        [requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost]
    }

    const fn from_each(each: [i128; 7]) -> Self {
        let [requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost] = each;
        Self { requests, tokens, usage_cost, fee, service_charge, wallet_cost, merchant_cost }
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, more: Self) {
        let mut sums = self.each();
        for (sum, more) in sums.iter_mut().zip(more.each()) {
            *sum += more;
        }
        *self = Self::from_each(sums);
    }
}

impl Sub for Sums {
    type Output = Self;

    fn sub(self, less: Self) -> Self {
        let mut sums = self.each();
        for (sum, less) in sums.iter_mut().zip(less.each()) {
            *sum -= less;
        }
        Self::from_each(sums)
    }
}

/// Quarter hours that a wide row covers: long ranges are few rows, and a day that does not begin with
/// one has at most 11 narrow ones at each end.
pub(crate) const WIDE: i32 = 12;
pub(crate) const NARROW: i32 = 1;

/// The quarter hour since 1970 that an instant in microseconds lies in.
pub(crate) const fn slot(created_at: i64) -> i64 {
    created_at.div_euclid(15 * 60 * 1_000_000)
}

/// A row of the roll-ups, or what is to be added to one.
#[derive(Clone, Debug, PartialEq, Eq, Queryable, Selectable, Insertable, Serialize)]
#[diesel(table_name = usage_rollups)]
pub(crate) struct RollupRow {
    pub(crate) series_id: String,
    pub(crate) width: i32,
    pub(crate) slot: i64,
    pub(crate) meter_id: String,
    pub(crate) shard: i32,
    pub(crate) requests: i64,
    pub(crate) tokens: i64,
    pub(crate) tokens_high: i64,
    pub(crate) usage_cost: i64,
    pub(crate) usage_cost_high: i64,
    pub(crate) fee: i64,
    pub(crate) fee_high: i64,
    pub(crate) service_charge: i64,
    pub(crate) service_charge_high: i64,
    pub(crate) wallet_cost: i64,
    pub(crate) wallet_cost_high: i64,
    pub(crate) merchant_cost: i64,
    pub(crate) merchant_cost_high: i64,
}

/// The sums of a day of a span.
#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct DaySums {
    #[diesel(sql_type = BigInt)]
    day: i64,
    #[diesel(sql_type = BigInt)]
    requests: i64,
    #[diesel(sql_type = BigInt)]
    tokens: i64,
    #[diesel(sql_type = BigInt)]
    tokens_high: i64,
    #[diesel(sql_type = BigInt)]
    usage_cost: i64,
    #[diesel(sql_type = BigInt)]
    usage_cost_high: i64,
    #[diesel(sql_type = BigInt)]
    fee: i64,
    #[diesel(sql_type = BigInt)]
    fee_high: i64,
    #[diesel(sql_type = BigInt)]
    service_charge: i64,
    #[diesel(sql_type = BigInt)]
    service_charge_high: i64,
    #[diesel(sql_type = BigInt)]
    wallet_cost: i64,
    #[diesel(sql_type = BigInt)]
    wallet_cost_high: i64,
    #[diesel(sql_type = BigInt)]
    merchant_cost: i64,
    #[diesel(sql_type = BigInt)]
    merchant_cost_high: i64,
}

/// A sum in two columns, neither of which any number of additions takes out of its range.
const HIGH: i128 = 10_000_000_000;

fn joined(low: i64, high: i64) -> i128 {
    i128::from(low) + i128::from(high) * HIGH
}

fn split(sum: i128) -> (i64, i64) {
    let part = |part: i128| i64::try_from(part).unwrap_or(i64::MAX);
    (part(sum % HIGH), part(sum / HIGH))
}

macro_rules! sums_of_row {
    ($Row:ident) => {
        impl From<&$Row> for Sums {
            fn from(row: &$Row) -> Self {
                Self {
                    requests: i128::from(row.requests),
                    tokens: joined(row.tokens, row.tokens_high),
                    usage_cost: joined(row.usage_cost, row.usage_cost_high),
                    fee: joined(row.fee, row.fee_high),
                    service_charge: joined(row.service_charge, row.service_charge_high),
                    wallet_cost: joined(row.wallet_cost, row.wallet_cost_high),
                    merchant_cost: joined(row.merchant_cost, row.merchant_cost_high),
                }
            }
        }
    };
}

sums_of_row!(RollupRow);
sums_of_row!(DaySums);

/// Which row of the roll-ups, but for the shard.
pub(crate) type RollupKey = (String, i32, i64, String);

impl RollupRow {
    pub(crate) fn new(
        (series_id, width, slot, meter_id): RollupKey,
        shard: i32,
        sums: &Sums,
    ) -> Self {
        let (tokens, tokens_high) = split(sums.tokens);
        let (usage_cost, usage_cost_high) = split(sums.usage_cost);
        let (fee, fee_high) = split(sums.fee);
        let (service_charge, service_charge_high) = split(sums.service_charge);
        let (wallet_cost, wallet_cost_high) = split(sums.wallet_cost);
        let (merchant_cost, merchant_cost_high) = split(sums.merchant_cost);
        Self {
            series_id,
            width,
            slot,
            meter_id,
            shard,
            requests: i64::try_from(sums.requests).unwrap_or(i64::MAX),
            tokens,
            tokens_high,
            usage_cost,
            usage_cost_high,
            fee,
            fee_high,
            service_charge,
            service_charge_high,
            wallet_cost,
            wallet_cost_high,
            merchant_cost,
            merchant_cost_high,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable)]
#[diesel(table_name = usage_series, treat_none_as_default_value = false)]
pub(crate) struct SeriesRow {
    pub(crate) series_id: String,
    pub(crate) connection_id: Option<String>,
    /// A JSON object.
    pub(crate) metadata: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Queryable, Selectable, Insertable)]
#[diesel(table_name = usage_tags)]
pub(crate) struct TagRow {
    pub(crate) owner_id: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) series_id: String,
}

/// The sums of a merchant's ended calls that the filter lets through, for each day of the span.
///
/// # Errors
/// Those of the store.
pub fn by_day(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &Span,
) -> Result<Vec<Sums>, StoreError> {
    let mut days = vec![Sums::default(); span.days().count()];
    let merchant = merchant_id.to_string();
    let owner = match filter.connection_id {
        None => merchant.clone(),
        Some(id) if is_of(conn, &merchant, id)? => id.to_string(),
        Some(_) => return Ok(days),
    };
    let mut add = |conn: &mut Conn, series: &[String], width, ranges: &[_]| {
        if series.is_empty() || ranges.is_empty() {
            return Ok::<_, StoreError>(());
        }
        let meter_id = filter.meter_id.as_ref().map(MeterId::to_string);
        let query = dialect::UsageByDay {
            series,
            width,
            ranges,
            midnight: span.first_midnight(),
            meter_id: meter_id.as_deref(),
        };
        for sums in query.load(conn)? {
            let day = usize::try_from(sums.day).ok().and_then(|day| days.get_mut(day));
            if let Some(day) = day {
                *day += Sums::from(&sums);
            }
        }
        Ok(())
    };
    let common = match filter.metadata.is_empty() {
        true => vec![owner],
        false => {
            tagged(conn, &owner, &(String::new(), String::new()), filter)?.into_iter().collect()
        }
    };
    let (wide, narrow) = ranges(span);
    add(conn, &common, WIDE, &wide)?;
    add(conn, &common, NARROW, &narrow)?;
    let mut rare = BTreeSet::new();
    for pair in &filter.metadata {
        rare.extend(tagged(conn, &merchant, pair, filter)?);
    }
    add(conn, &Vec::from_iter(rare), NARROW, &[span.quarters()])?;
    Ok(days)
}

/// How the database goes about the sums of a series, step by step: for whoever wonders why it takes
/// long.
///
/// # Errors
/// Those of the store.
pub fn plan(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: Option<MeterId>,
    span: &Span,
) -> Result<Vec<String>, StoreError> {
    let meter_id = meter_id.map(|id| id.to_string());
    let query = dialect::UsageByDay {
        series: &[merchant_id.to_string()],
        width: NARROW,
        ranges: &[span.quarters()],
        midnight: span.first_midnight(),
        meter_id: meter_id.as_deref(),
    };
    Ok(query.plan(conn)?)
}

/// Adds up all records anew. Call it in a write transaction, while nothing is settled.
///
/// # Errors
/// Those of the store.
pub fn rebuild(conn: &mut Conn) -> Result<(), StoreError> {
    crate::ledger::rebuild_rollups(conn)
}

fn is_of(
    conn: &mut Conn,
    merchant_id: &str,
    connection_id: ConnectionId,
) -> Result<bool, StoreError> {
    let found: Option<String> = connections::table
        .find(connection_id.to_string())
        .filter(connections::merchant_id.eq(merchant_id))
        .select(connections::connection_id)
        .get_result(conn)
        .optional()?;
    Ok(found.is_some())
}

/// The series under a tag that the filter lets through.
fn tagged(
    conn: &mut Conn,
    owner_id: &str,
    (key, value): &(String, String),
    filter: &RequestFilter,
) -> Result<BTreeSet<String>, StoreError> {
    let connection_id = filter.connection_id.map(|id| id.to_string());
    let rows: Vec<SeriesRow> = usage_tags::table
        .inner_join(usage_series::table.on(usage_series::series_id.eq(usage_tags::series_id)))
        .filter(usage_tags::owner_id.eq(owner_id))
        .filter(usage_tags::key.eq(key))
        .filter(usage_tags::value.eq(value))
        .select(SeriesRow::as_select())
        .load(conn)?;
    let mut found = BTreeSet::new();
    for row in rows {
        let metadata = pairs(&row)?;
        let all = filter.metadata.iter().all(|(key, value)| metadata.get(key) == Some(value));
        if all && (connection_id.is_none() || row.connection_id == connection_id) {
            found.insert(row.series_id);
        }
    }
    Ok(found)
}

/// The metadata of a series.
pub(crate) fn pairs(row: &SeriesRow) -> Result<BTreeMap<String, String>, StoreError> {
    from_json("usage_series.metadata", &row.metadata)
}

/// From a slot to before another.
type Range = (i64, i64);

/// The slots of a span: those of wide rows, in which rows that reach over a midnight are to be passed
/// over, and those of narrow rows that stand for them and for what the ends of the span cut.
fn ranges(span: &Span) -> (Vec<Range>, Vec<Range>) {
    let width = i64::from(WIDE);
    let (start, end) = span.quarters();
    let before = |slot: i64| slot.div_euclid(width) * width;
    let (first, past) = (before(start + width - 1), before(end));
    let cuts = [start, end].into_iter().chain(span.midnights());
    let cut: BTreeSet<i64> = cuts.filter(|cut| cut.rem_euclid(width) != 0).map(before).collect();
    let narrow = cut.into_iter().map(|from| (from.max(start), (from + width).min(end)));
    let wide = if first < past { vec![(first, past)] } else { Vec::new() };
    (wide, narrow.collect())
}
