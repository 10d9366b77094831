//! What calls came to, over time and by what they are, read from roll-ups that the ledger keeps.
//!
//! A record counts once it has ended, at the time it was admitted, with what it shows. Each is added
//! to a few *series* (`ledger/rollups.rs` says to which), and any question is answered by the sum of
//! some series, so that no record is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{AddAssign, Sub};

use diesel::prelude::*;
use diesel::sql_types::BigInt;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, MerchantId, MeterId, RequestRecord, RequestStatus, Span, Timestamp,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::requests::RequestFilter;
use crate::rows::from_json;
use crate::schema::{connections, spend_keys, usage_rollups, usage_series, usage_tags};

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

/// What a tag says of calls other than their metadata, whose keys have no colon: the provider and model,
/// and whether they failed.
const MODEL: &str = ":model";
const STATUS: &str = ":status";
const FAILED: &str = "error";
/// A longer name of a model is not told apart: whoever calls chooses it, and it stands in an index.
const MODEL_BYTES: usize = 255;

/// What an ended call is added up by beside its metadata: the key and value of each tag.
pub(crate) fn traits(record: &RequestRecord) -> impl Iterator<Item = (&'static str, String)> {
    let model = record.model.as_deref().unwrap_or_default();
    let has_name = model.len() <= MODEL_BYTES && !model.contains(char::is_control);
    let model = format!("{}/{}", record.provider, if has_name { model } else { "" });
    let failed = (record.status == RequestStatus::Error).then(|| (STATUS, FAILED.to_owned()));
    [Some((MODEL, model)), failed].into_iter().flatten()
}

/// Whether a tag is one of these, and not metadata.
pub(crate) fn is_trait(key: &str) -> bool {
    key.starts_with(':')
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

/// The sums of a day of a span, or of a part of a [`Window`].
#[derive(Clone, Debug, QueryableByName)]
pub(crate) struct PartSums {
    #[diesel(sql_type = BigInt)]
    part: i64,
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
sums_of_row!(PartSums);

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
            let day = usize::try_from(sums.part).ok().and_then(|day| days.get_mut(day));
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

/// The last so many parts of equal length, the present one among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// In quarter hours since 1970, at the edge of a wide row.
    first: i64,
    /// In quarter hours, a multiple of what a wide row covers.
    step: i64,
    parts: u16,
}

impl Window {
    /// The last `parts` of so many times three hours each, up to the end of the one that `now` lies in.
    /// Parts of a day or longer begin at midnight UTC.
    pub fn ending(now: Timestamp, three_hours: u16, parts: u16) -> Self {
        let step = i64::from(WIDE) * i64::from(three_hours.max(1));
        let parts = parts.max(1);
        let align = step.min(i64::from(WIDE) * 8);
        let now = slot(now.unix_micros());
        let end = now - now.rem_euclid(align) + align;
        Self { first: end - step * i64::from(parts), step, parts }
    }

    /// When each part begins.
    pub fn starts(&self) -> impl Iterator<Item = Timestamp> + use<> {
        let Self { first, step, parts } = *self;
        (0..i64::from(parts)).map(move |part| start_of(first + part * step))
    }
}

fn start_of(slot: i64) -> Timestamp {
    Timestamp::from_unix_micros(slot.saturating_mul(15 * 60 * 1_000_000))
}

/// What calls are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// The model that served them, at its provider: `provider/model`.
    Model,
    /// The provider.
    Provider,
    /// The connection, by its id.
    Connection,
    /// The spend key, by its id.
    SpendKey,
    /// Those that failed: the only member is `error`.
    Failure,
}

/// Sums over time: of everything, and of each member of a dimension that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trend {
    /// Of all calls, for each part of the window.
    pub total: Vec<Sums>,
    /// By the name of each member.
    pub members: BTreeMap<String, Vec<Sums>>,
    /// Whether there were more members than are told apart.
    pub is_cut: bool,
}

/// How many members of a dimension are told apart: the newest connections and spend keys, and as many
/// models by their names.
const MOST_MEMBERS: i64 = 500;

/// What a merchant's ended calls came to over a window, by a dimension. It adds up wide rows only.
///
/// # Errors
/// Those of the store.
pub fn trend(
    conn: &mut Conn,
    merchant_id: MerchantId,
    dimension: Dimension,
    window: Window,
) -> Result<Trend, StoreError> {
    let merchant_id = merchant_id.to_string();
    let mut names = names(conn, &merchant_id, dimension)?;
    let most = usize::try_from(MOST_MEMBERS).unwrap_or(usize::MAX);
    let is_cut = names.len() > most;
    names.truncate(most);
    let names: HashMap<String, String> = names.into_iter().collect();
    let series: Vec<_> = names.keys().chain([&merchant_id]).cloned().collect();
    let Window { first, step, parts } = window;
    let query = dialect::UsageBySeries {
        series: &series,
        width: WIDE,
        first,
        past: first + step * i64::from(parts),
        step,
    };
    let none = vec![Sums::default(); usize::from(parts)];
    let mut trend = Trend { total: none.clone(), members: BTreeMap::new(), is_cut };
    for row in query.load(conn)? {
        let parts = match names.get(&row.series_id) {
            Some(name) => trend.members.entry(name.clone()).or_insert_with(|| none.clone()),
            None => &mut trend.total,
        };
        let part = usize::try_from(row.sums.part).ok().and_then(|part| parts.get_mut(part));
        if let Some(part) = part {
            *part += Sums::from(&row.sums);
        }
    }
    Ok(trend)
}

/// The series of a dimension, each with the name of its member.
fn names(
    conn: &mut Conn,
    merchant_id: &str,
    dimension: Dimension,
) -> Result<Vec<(String, String)>, StoreError> {
    let limit = MOST_MEMBERS + 1;
    let as_they_are = |ids: Vec<String>| ids.into_iter().map(|id| (id.clone(), id)).collect();
    let mut tags = |key: &str| -> Result<Vec<(String, String)>, StoreError> {
        Ok(usage_tags::table
            .filter(usage_tags::owner_id.eq(merchant_id))
            .filter(usage_tags::key.eq(key))
            .order((usage_tags::value, usage_tags::series_id))
            .limit(limit)
            .select((usage_tags::series_id, usage_tags::value))
            .load(conn)?)
    };
    Ok(match dimension {
        Dimension::Model => tags(MODEL)?,
        Dimension::Provider => {
            let provider = |name: String| name.split('/').next().unwrap_or_default().to_owned();
            tags(MODEL)?.into_iter().map(|(series, name)| (series, provider(name))).collect()
        }
        Dimension::Failure => tags(STATUS)?,
        Dimension::Connection => as_they_are(
            connections::table
                .filter(connections::merchant_id.eq(merchant_id))
                .order(connections::connection_id.desc())
                .limit(limit)
                .select(connections::connection_id)
                .load(conn)?,
        ),
        Dimension::SpendKey => as_they_are(
            spend_keys::table
                .filter(spend_keys::merchant_id.eq(merchant_id))
                .order(spend_keys::spend_key_id.desc())
                .limit(limit)
                .select(spend_keys::spend_key_id)
                .load(conn)?,
        ),
    })
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
