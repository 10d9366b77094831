//! What calls came to, over time and by what they are, read from roll-ups that the ledger keeps.
//!
//! A record counts once it has ended, at the time it was admitted, with what it shows. Each is added
//! to a few *series* (`rollups.rs` says to which), and any question is answered by the sum of some series, so
//! that no record is read. The calls that are not in the roll-ups yet are added from their queue: in a
//! [snapshot](Conn::snapshot) every call is counted once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, MeterId, Span, SpendKeyId, Timestamp};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::requests::RequestFilter;
use crate::rollups::{self, MODEL, NARROW, QueuedCall, STATUS, WIDE, pairs, slot};
use crate::rows::SeriesRow;
use crate::schema::{connections, spend_keys, usage_series, usage_tags};

pub use crate::rollups::Sums;

/// The sums of a merchant's ended calls that the filter lets through, for each day of the span. Call it in a
/// snapshot.
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
    let merchant = Id(merchant_id).of_any();
    let owner = match filter.connection_id {
        None => merchant,
        Some(id) if is_of(conn, merchant_id, id)? => Id(id).of_any(),
        Some(_) => return Ok(days),
    };
    let mut add = |conn: &mut Conn, series: &[Id<AnyId>], width, ranges: &[_]| {
        if series.is_empty() || ranges.is_empty() {
            return Ok::<_, StoreError>(());
        }
        let query = dialect::UsageByDay {
            series,
            width,
            ranges,
            midnight: span.first_midnight(),
            meter_id: filter.meter_id,
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
            tagged(conn, owner, &(String::new(), String::new()), filter)?.into_iter().collect()
        }
    };
    let (wide, narrow) = ranges(span);
    add(conn, &common, WIDE, &wide)?;
    add(conn, &common, NARROW, &narrow)?;
    let mut rare = BTreeSet::new();
    for pair in &filter.metadata {
        rare.extend(tagged(conn, merchant, pair, filter)?);
    }
    add(conn, &Vec::from_iter(rare), NARROW, &[span.quarters()])?;
    let (start, end) = span.quarters();
    for call in rollups::queued(conn)? {
        let slot = slot(call.created_at);
        let day = usize::try_from((slot - span.first_midnight()).div_euclid(96)).ok();
        if (start..end).contains(&slot)
            && call.passes(merchant_id, filter)
            && let Some(day) = day.and_then(|day| days.get_mut(day))
        {
            *day += call.sums;
        }
    }
    Ok(days)
}

impl QueuedCall {
    /// The names by which a dimension tells the call apart: one or none.
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

/// What a merchant's ended calls came to over a window, by a dimension. It adds up wide rows only. Call it in a
/// snapshot.
///
/// # Errors
/// Those of the store.
pub fn trend(
    conn: &mut Conn,
    merchant_id: MerchantId,
    dimension: Dimension,
    window: Window,
) -> Result<Trend, StoreError> {
    let mut names = names(conn, merchant_id, dimension)?;
    let most = usize::try_from(MOST_MEMBERS).unwrap_or(usize::MAX);
    let is_cut = names.len() > most;
    names.truncate(most);
    let names: HashMap<Id<AnyId>, String> = names.into_iter().collect();
    let series: Vec<_> = names.keys().copied().chain([Id(merchant_id).of_any()]).collect();
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
    let mut tags = |key: &str| -> Result<Vec<(Id<AnyId>, String)>, StoreError> {
        Ok(usage_tags::table
            .filter(usage_tags::owner_id.eq(Id(merchant_id).of_any()))
            .filter(usage_tags::key.eq(key))
            .order((usage_tags::value, usage_tags::series_id))
            .limit(limit)
            .select((usage_tags::series_id, usage_tags::value))
            .load(conn)?)
    };
    Ok(match dimension {
        Dimension::Model => tags(MODEL)?,
        Dimension::Provider => {
            tags(MODEL)?.into_iter().map(|(series, name)| (series, provider_of(name))).collect()
        }
        Dimension::Failure => tags(STATUS)?,
        Dimension::Connection => {
            let ids: Vec<Id<ConnectionId>> = connections::table
                .filter(connections::merchant_id.eq(Id(merchant_id)))
                .order(connections::connection_id.desc())
                .limit(limit)
                .select(connections::connection_id)
                .load(conn)?;
            ids.into_iter().map(Id::named).collect()
        }
        Dimension::SpendKey => {
            let ids: Vec<Id<SpendKeyId>> = spend_keys::table
                .filter(spend_keys::merchant_id.eq(Id(merchant_id)))
                .order(spend_keys::spend_key_id.desc())
                .limit(limit)
                .select(spend_keys::spend_key_id)
                .load(conn)?;
            ids.into_iter().map(Id::named).collect()
        }
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
    let query = dialect::UsageByDay {
        series: &[Id(merchant_id).of_any()],
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

/// The series under a tag that the filter lets through.
fn tagged(
    conn: &mut Conn,
    owner_id: Id<AnyId>,
    (key, value): &(String, String),
    filter: &RequestFilter,
) -> Result<BTreeSet<Id<AnyId>>, StoreError> {
    let connection_id = filter.connection_id.map(|id| Id(id).of_any());
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
