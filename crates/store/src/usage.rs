//! Sums of calls over time and by dimension, read from the roll-ups.
//!
//! A record counts once it has ended, at the time of its admission, with the values that it shows. Each is
//! added to a few *series*, which `rollups.rs` describes. A query is answered by the sum of a series; only a
//! filter by several pairs of metadata reads records. Calls that are not folded yet are added from their queue. In a
//! [snapshot](Conn::snapshot) every call is counted once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, SpendKeyId, TimeSpan, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::requests::{self, RequestFilter};
use crate::rollups::{self, MODEL, NARROW, QueuedCall, STATUS, WIDE, series_of, slot};
use crate::schema::{connections, spend_keys, usage_pairs};

pub use crate::rollups::RollupSums;

/// The sums of a merchant's ended calls that pass the filter, for each day of the span.
///
/// Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn by_day(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Result<Vec<RollupSums>, StoreError> {
    let mut days = vec![RollupSums::default(); span.days().count()];
    let merchant = Id(merchant_id).untyped();
    let owner = match filter.connection_id {
        None => merchant,
        Some(id) if is_of(conn, merchant_id, id)? => Id(id).untyped(),
        Some(_) => return Ok(days),
    };
    let pairs: BTreeSet<_> = filter.metadata.iter().collect();
    let keys: BTreeSet<_> = pairs.iter().map(|(key, _)| key).collect();
    if keys.len() < pairs.len() {
        // No call has two values of a key.
        return Ok(days);
    }
    let (wide, narrow) = ranges(span);
    let (series_id, wide, narrow) = match Vec::from_iter(pairs)[..] {
        [] => (owner, wide, narrow),
        [(key, value)] => (series_of(owner, (key, value)), Vec::new(), vec![span.quarters()]),
        _ => return by_day_of_records(conn, merchant_id, filter, span),
    };
    for (width, ranges) in [(WIDE, wide), (NARROW, narrow)] {
        if ranges.is_empty() {
            continue;
        }
        let query = dialect::UsageByDay {
            series_id,
            width,
            ranges: &ranges,
            midnight: span.first_midnight(),
            meter_id: filter.meter_id,
        };
        for sums in query.load(conn)? {
            let day = usize::try_from(sums.part).ok().and_then(|day| days.get_mut(day));
            if let Some(day) = day {
                *day += RollupSums::from(&sums);
            }
        }
    }
    for call in rollups::queued(conn)? {
        if call.passes(merchant_id, filter)
            && let Some(day) = day_of(span, call.created_at, &mut days)
        {
            *day += call.sums;
        }
    }
    Ok(days)
}

/// The same sums, added up record by record. There are no roll-ups for several pairs at once.
fn by_day_of_records(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Result<Vec<RollupSums>, StoreError> {
    let mut days = vec![RollupSums::default(); span.days().count()];
    let (start, end) = span.quarters();
    requests::for_each_settled(conn, merchant_id, filter, start_of(start)..start_of(end), |row| {
        if let Some(day) = day_of(span, row.created_at, &mut days) {
            *day += RollupSums::of(&row.to_record(None)?);
        }
        Ok(())
    })?;
    Ok(days)
}

/// The sums of the day of an instant in microseconds, if it is in the span.
fn day_of<'a>(
    span: &TimeSpan,
    created_at: i64,
    days: &'a mut [RollupSums],
) -> Option<&'a mut RollupSums> {
    let (start, end) = span.quarters();
    let slot = slot(created_at);
    let day = usize::try_from((slot - span.first_midnight()).div_euclid(96)).ok()?;
    (start..end).contains(&slot).then_some(())?;
    days.get_mut(day)
}

impl QueuedCall {
    /// The call's member of a dimension, if it has one.
    fn member(&self, dimension: Dimension) -> Option<String> {
        let of_trait = |wanted: &str| {
            let found = self.traits.iter().find(|(key, _)| key == wanted);
            found.map(|(_, value)| value.clone())
        };
        match dimension {
            Dimension::Model => of_trait(MODEL),
            Dimension::Provider => of_trait(MODEL).map(provider_of),
            Dimension::Connection => self.connection_id.map(|id| id.to_string()),
            Dimension::SpendKey => self.spend_key_id.map(|id| id.to_string()),
            Dimension::Failure => of_trait(STATUS),
        }
    }
}

/// The provider in the name of a model.
fn provider_of(model: String) -> String {
    model.split('/').next().unwrap_or_default().to_owned()
}

/// A number of parts of equal length, up to the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrendWindow {
    /// The beginning, in quarter hours since 1970, at the edge of a wide row.
    first: i64,
    /// The length of a part in quarter hours, a multiple of a wide row's.
    step: i64,
    parts: u16,
}

impl TrendWindow {
    /// The last `parts` parts of `three_hours` times three hours each.
    ///
    /// The part of `now` is included. Parts of a day or longer begin at midnight UTC.
    pub fn ending(now: Timestamp, three_hours: u16, parts: u16) -> Self {
        let step = i64::from(WIDE) * i64::from(three_hours.max(1));
        let parts = parts.max(1);
        let align = step.min(i64::from(WIDE) * 8);
        let now = slot(now.unix_micros());
        let end = now - now.rem_euclid(align) + align;
        Self { first: end - step * i64::from(parts), step, parts }
    }

    /// The beginning of each part.
    pub fn starts(&self) -> impl Iterator<Item = Timestamp> + use<> {
        let Self { first, step, parts } = *self;
        (0..i64::from(parts)).map(move |part| start_of(first + part * step))
    }
}

fn start_of(slot: i64) -> Timestamp {
    Timestamp::from_unix_micros(slot.saturating_mul(15 * 60 * 1_000_000))
}

/// A property by which calls are grouped.
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
    /// Failed calls. The only member is `error`.
    Failure,
}

/// Sums over time: of all calls, and of each member of a dimension that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trend {
    /// The sums of all calls, for each part of the window.
    pub total: Vec<RollupSums>,
    /// The sums of each member, by its name.
    pub members: BTreeMap<String, Vec<RollupSums>>,
    /// Whether there are more members than are returned.
    pub is_cut: bool,
}

/// The most members of a dimension: the newest connections and spend keys, the first models by name.
const MOST_MEMBERS: i64 = 500;

/// The sums of a merchant's ended calls over a window, by a dimension.
///
/// It adds up wide rows only. Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn trend(
    conn: &mut Conn,
    merchant_id: MerchantId,
    dimension: Dimension,
    window: TrendWindow,
) -> Result<Trend, StoreError> {
    let mut names = names(conn, merchant_id, dimension)?;
    let most = usize::try_from(MOST_MEMBERS).unwrap_or(usize::MAX);
    let is_cut = names.len() > most;
    names.truncate(most);
    let names: HashMap<Id<AnyId>, String> = names.into_iter().collect();
    let series: Vec<_> = names.keys().copied().chain([Id(merchant_id).untyped()]).collect();
    let TrendWindow { first, step, parts } = window;
    let query = dialect::UsageBySeries {
        series: &series,
        width: WIDE,
        first,
        past: first + step * i64::from(parts),
        step,
    };
    let none = vec![RollupSums::default(); usize::from(parts)];
    let mut trend = Trend { total: none.clone(), members: BTreeMap::new(), is_cut };
    for row in query.load(conn)? {
        let parts = match names.get(&row.series_id) {
            Some(name) => trend.members.entry(name.clone()).or_insert_with(|| none.clone()),
            None => &mut trend.total,
        };
        let part = usize::try_from(row.sums.part).ok().and_then(|part| parts.get_mut(part));
        if let Some(part) = part {
            *part += RollupSums::from(&row.sums);
        }
    }
    let members: HashSet<&String> = names.values().collect();
    for call in rollups::queued(conn)? {
        let part = usize::try_from((slot(call.created_at) - first).div_euclid(step)).ok();
        let Some(part) = part.filter(|part| *part < none.len()) else { continue };
        if call.merchant_id != merchant_id {
            continue;
        }
        let member = call.member(dimension).filter(|name| !is_cut || members.contains(name));
        let of_member =
            member.map(|name| trend.members.entry(name).or_insert_with(|| none.clone()));
        for parts in of_member.into_iter().chain([&mut trend.total]) {
            if let Some(sums) = parts.get_mut(part) {
                *sums += call.sums;
            }
        }
    }
    Ok(trend)
}

/// The series of a dimension, each with the name of its member.
fn names(
    conn: &mut Conn,
    merchant_id: MerchantId,
    dimension: Dimension,
) -> Result<Vec<(Id<AnyId>, String)>, StoreError> {
    let limit = MOST_MEMBERS + 1;
    let mut of_pairs = |key: &str| -> Result<Vec<(Id<AnyId>, String)>, StoreError> {
        let values: Vec<String> = usage_pairs::table
            .filter(usage_pairs::merchant_id.eq(Id(merchant_id)))
            .filter(usage_pairs::key.eq(key))
            .order(usage_pairs::value)
            .limit(limit)
            .select(usage_pairs::value)
            .load(conn)?;
        let owner = Id(merchant_id).untyped();
        let series_of = |value| (series_of(owner, (&key.to_owned(), &value)), value);
        Ok(values.into_iter().map(series_of).collect())
    };
    Ok(match dimension {
        Dimension::Model => of_pairs(MODEL)?,
        Dimension::Provider => {
            of_pairs(MODEL)?.into_iter().map(|(series, name)| (series, provider_of(name))).collect()
        }
        Dimension::Failure => of_pairs(STATUS)?,
        Dimension::Connection => {
            let ids: Vec<Id<ConnectionId>> = connections::table
                .filter(connections::merchant_id.eq(Id(merchant_id)))
                .order(connections::connection_id.desc())
                .limit(limit)
                .select(connections::connection_id)
                .load(conn)?;
            ids.into_iter().map(Id::with_text).collect()
        }
        Dimension::SpendKey => {
            let ids: Vec<Id<SpendKeyId>> = spend_keys::table
                .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
                .order(spend_keys::spend_key_id.desc())
                .limit(limit)
                .select(spend_keys::spend_key_id)
                .load(conn)?;
            ids.into_iter().map(Id::with_text).collect()
        }
    })
}

/// The database's query plan for the sums of a series, step by step, for diagnosis.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn plan(
    conn: &mut Conn,
    merchant_id: MerchantId,
    meter_id: Option<MeterId>,
    span: &TimeSpan,
) -> Result<Vec<String>, StoreError> {
    let query = dialect::UsageByDay {
        series_id: Id(merchant_id).untyped(),
        width: NARROW,
        ranges: &[span.quarters()],
        midnight: span.first_midnight(),
        meter_id,
    };
    Ok(query.plan(conn)?)
}

fn is_of(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
) -> Result<bool, StoreError> {
    let found: Option<Id<ConnectionId>> = connections::table
        .find(Id(connection_id))
        .filter(connections::merchant_id.eq(Id(merchant_id)))
        .select(connections::connection_id)
        .get_result(conn)
        .optional()?;
    Ok(found.is_some())
}

/// A range of slots. The end is excluded.
type SlotRange = (i64, i64);

/// The slots of a span: ranges of wide rows and ranges of narrow rows.
///
/// Wide rows that reach over a midnight are to be skipped. Narrow rows replace them, and cover the parts
/// that the ends of the span cut.
fn ranges(span: &TimeSpan) -> (Vec<SlotRange>, Vec<SlotRange>) {
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
