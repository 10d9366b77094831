//! Sums of calls over time and by dimension, read from the roll-ups.
//!
//! A record counts once it has ended, at the time of its admission, with the values that it shows. Each is
//! added to a few *series*, which `rollups.rs` describes. Calls that are not folded yet are added from their queue. In a
//! [snapshot](Conn::snapshot) every call is counted once.

mod periods;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use tollgate_domain::{
    BudgetId, ConnectionId, Id as _, MerchantId, MeterId, RequestStatus, SpendKeyId, TimeSpan,
    Timestamp,
};

use crate::archived::{self, RecordArchive};
use crate::codes::CodedEnum;
use crate::conn::Conn;
use crate::dialect::{BoundValue, SeriesColumn, SummedCalls, UsageQuery};
use crate::error::StoreError;
use crate::ids::Id;
use crate::refusals;
use crate::requests::{self, ArchivedCalls, RequestFilter};
use crate::rollups::{
    self, HighCardinalityKeys, QueuedCall, SET_WIDTHS, key_with, slot, widths_of,
};
use crate::rows::{time, word};

use periods::Periods;

pub use crate::rollups::RollupSums;

/// A property by which calls are grouped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// The customer, by its id.
    Connection,
    /// The spend key, by its id.
    SpendKey,
    /// The budget that the spend key names, else the customer, by its id.
    Budget,
    /// The meter, by its id.
    Meter,
    /// The provider.
    Provider,
    /// The model that served the call.
    Model,
    /// `completed` or `error`.
    Status,
    /// The value of this key of the metadata.
    Metadata(String),
}

/// The members of the dimensions of a group, in the order of the dimensions. `None` is the group of the calls that have
/// none.
pub type GroupMembers = Vec<Option<String>>;

/// The sums of each group, by the number of the period in its span. Periods without calls are absent.
pub type GroupedSums = BTreeMap<GroupMembers, BTreeMap<usize, RollupSums>>;

/// The most sums that a query returns, of all groups and periods together.
pub const MOST_SUMS: usize = 100_000;

/// The sums of a merchant's ended calls that pass the filter, by at most two dimensions, for each period of the span.
///
/// A group without calls is absent. `None` if there are more than [`MOST_SUMS`].
///
/// Call it in a snapshot.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn sums(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    group_by: &[Dimension],
    span: &TimeSpan,
) -> Result<Option<GroupedSums>, StoreError> {
    let periods = Periods::of(span);
    let reader =
        UsageReader { archive, merchant_id, filter, group_by, periods, among: None, only: &[] };
    read(conn, reader)
}

/// As [`sums`], of these groups alone.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn sums_among(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    (group_by, members): (&[Dimension], &[GroupMembers]),
    span: &TimeSpan,
) -> Result<Option<GroupedSums>, StoreError> {
    let (periods, among) = (Periods::of(span), Some(members));
    read(conn, UsageReader { archive, merchant_id, filter, group_by, periods, among, only: &[] })
}

/// As [`sums`], with the sums alone that make a margin: revenue, provider cost and service charge. It reads many groups
/// in less time.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn margins(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    group_by: &[Dimension],
    span: &TimeSpan,
) -> Result<Option<GroupedSums>, StoreError> {
    let (periods, only) = (Periods::of(span), &["provider_cost", "service_charge", "revenue"]);
    let reader = UsageReader { archive, merchant_id, filter, group_by, periods, among: None, only };
    let found = read(conn, reader)?;
    // Calls that are not folded yet have all sums.
    let margin = |sums: RollupSums| RollupSums {
        provider_cost: sums.provider_cost,
        service_charge: sums.service_charge,
        revenue: sums.revenue,
        ..RollupSums::default()
    };
    Ok(found.map(|mut found| {
        found.values_mut().flat_map(BTreeMap::values_mut).for_each(|sums| *sums = margin(*sums));
        drop_empty(&mut found);
        found
    }))
}

/// The sums of a customer's calls by model, over a span of one period. There is no limit of their number.
pub(crate) fn of_customer_by_model(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
    span: &TimeSpan,
) -> Result<HashMap<Option<String>, RollupSums>, StoreError> {
    let filter = RequestFilter { connection_id: Some(connection_id), ..RequestFilter::default() };
    let (periods, group_by) = (Periods::of(span), &[Dimension::Model]);
    // All of them are in roll-ups.
    let archive = &RecordArchive::default();
    let (filter, among, only): (_, _, &[_]) = (&filter, None, &[]);
    let mut reader = UsageReader { archive, merchant_id, filter, group_by, periods, among, only };
    let mut found = GroupedSums::new();
    reader.read_calls(conn, usize::MAX, &mut found)?;
    let by_model = found
        .into_iter()
        .filter_map(|(mut members, sums)| Some((members.pop()?, sums.into_values().next()?)));
    Ok(by_model.collect())
}

fn read(conn: &mut Conn, mut query: UsageReader<'_>) -> Result<Option<GroupedSums>, StoreError> {
    let (filter, group_by) = (query.filter, query.group_by);
    let mut found = GroupedSums::new();
    let pairs: BTreeSet<_> = filter.metadata.iter().collect();
    let keys: BTreeSet<&String> = pairs.iter().map(|(key, _)| key).collect();
    // No call has two values of a key.
    if keys.len() == pairs.len() && query.among.is_none_or(|among| !among.is_empty()) {
        let grouped = group_by.iter().filter_map(|dimension| match dimension {
            Dimension::Metadata(key) => Some(key),
            _ => None,
        });
        let keys: BTreeSet<_> = keys.into_iter().chain(grouped).collect();
        match Vec::from_iter(keys)[..] {
            [] => query.read_calls(conn, MOST_SUMS + 1, &mut found)?,
            [key] => query.read_metadata(conn, key, &mut found)?,
            ref keys if query.sets_have(conn, keys)? => query.read_sets(conn, &mut found)?,
            _ => query.read_records(conn, &mut found)?,
        }
    }
    // A query returns at most one sum more, so this must come first.
    let count: usize = found.values().map(BTreeMap::len).sum();
    drop_empty(&mut found);
    if let Some(among) = query.among {
        found.retain(|members, _| among.contains(members));
    }
    Ok((count <= MOST_SUMS).then_some(found))
}

fn drop_empty(groups: &mut GroupedSums) {
    for sums in groups.values_mut() {
        sums.retain(|_, sums| *sums != RollupSums::default());
    }
    groups.retain(|_, sums| !sums.is_empty());
}

/// The numbers of refused calls of each group, by the number of the period in its span.
pub type GroupedCounts = BTreeMap<GroupMembers, BTreeMap<usize, i64>>;

/// The numbers of a merchant's refused calls, by the dimensions, for each period of the span. `None` for a filter or a
/// dimension that refused calls do not have: they have a customer and a spend key only.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn refused(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    group_by: &[Dimension],
    span: &TimeSpan,
) -> Result<Option<GroupedCounts>, StoreError> {
    let RequestFilter { connection_id, spend_key_id, .. } = *filter;
    let known = RequestFilter { connection_id, spend_key_id, ..RequestFilter::default() };
    let has =
        |dimension: &Dimension| matches!(dimension, Dimension::Connection | Dimension::SpendKey);
    if *filter != known || !group_by.iter().all(has) {
        return Ok(None);
    }
    let periods = Periods::of(span);
    let quarters = span.quarters();
    let mut counts = GroupedCounts::new();
    let by = |dimension: &Dimension| group_by.contains(dimension);
    let by = (by(&Dimension::SpendKey), by(&Dimension::Connection));
    let found = refusals::counts(conn, merchant_id, quarters, (spend_key_id, connection_id), by)?;
    for one in found {
        let members = group_by.iter().map(|dimension| match dimension {
            Dimension::Connection => one.connection_id.map(|id| id.to_string()),
            _ => one.spend_key_id.map(|id| id.to_string()),
        });
        let Some(period) = periods.of_slot(one.quarter) else { continue };
        let count: &mut i64 =
            counts.entry(members.collect()).or_default().entry(period).or_default();
        *count = count.saturating_add(one.count);
    }
    Ok(Some(counts))
}

/// The days on which the rows of one width have not the same sums for the sets of metadata as for all calls of a merchant, by
/// their first quarter hours. No sum is read from the sets of such a day.
pub(crate) fn days_without_sets(
    conn: &mut Conn,
    merchant_id: MerchantId,
    width: i32,
) -> Result<BTreeSet<i64>, StoreError> {
    let Some((first, last)) = rollups::first_and_last_day(conn, merchant_id)? else {
        return Ok(BTreeSet::new());
    };
    let periods = Periods::days(first, last);
    let (archive, filter) = (&RecordArchive::default(), &RequestFilter::default());
    let (group_by, among, only): (&[_], _, &[_]) = (&[], None, &[]);
    let reader = UsageReader { archive, merchant_id, filter, group_by, periods, among, only };
    let (mut of_series, mut of_sets) = (GroupedSums::new(), GroupedSums::new());
    let key = key_of(None, &[], &[]);
    let all = reader.query(SummedCalls::OfSeries(&key));
    reader.read_runs(conn, &all, &[width], &mut of_series)?;
    reader.read_set_sums(conn, &[width], &mut of_sets)?;
    let of_series = of_series.remove(&Vec::new()).unwrap_or_default();
    let of_sets = of_sets.remove(&Vec::new()).unwrap_or_default();
    let sums = |of: &BTreeMap<usize, RollupSums>, day| of.get(&day).copied().unwrap_or_default();
    let days = reader.periods.starts.iter().enumerate();
    let days = days.filter(|(day, _)| sums(&of_series, *day) != sums(&of_sets, *day));
    Ok(days.map(|(_, start)| *start).collect())
}

/// The database's query plan for sums, step by step, for diagnosis.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn plan(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Result<Vec<String>, StoreError> {
    let periods = Periods::of(span);
    let filters = filters(filter);
    let key = key_of(None, &filters, &[]);
    let Some(run) = periods.runs(widths_of(&key)).into_iter().next() else {
        return Ok(Vec::new());
    };
    let query = UsageQuery {
        merchant_id: Id(merchant_id).untyped(),
        calls: SummedCalls::OfSeries(&key),
        filters: &filters,
        groups: &[],
        among: None,
        ranges: &run.ranges,
        origin: run.origin,
        step: run.step,
        only: &[],
        limit: MOST_SUMS,
    };
    Ok(query.plan(conn)?)
}

/// A query of sums.
struct UsageReader<'a> {
    archive: &'a RecordArchive,
    merchant_id: MerchantId,
    filter: &'a RequestFilter,
    group_by: &'a [Dimension],
    periods: Periods,
    /// The groups to read. `None` for all.
    among: Option<&'a [GroupMembers]>,
    /// The sums to read, by their columns; empty for all.
    only: &'a [&'a str],
}

impl UsageReader<'_> {
    /// Adds the sums of a query about no metadata.
    fn read_calls(
        &mut self,
        conn: &mut Conn,
        most: usize,
        found: &mut GroupedSums,
    ) -> Result<(), StoreError> {
        self.read_series(conn, None, most, found)?;
        self.read_queue(conn, found)
    }

    /// Adds the sums of a query about one key of metadata. The calls without the key are those of all calls that no
    /// value has.
    fn read_metadata(
        &mut self,
        conn: &mut Conn,
        key: &str,
        found: &mut GroupedSums,
    ) -> Result<(), StoreError> {
        self.read_series(conn, Some(key), MOST_SUMS + 1, found)?;
        if self.filter.metadata.is_empty() {
            let is_of_key = |dimension: &Dimension| matches!(dimension, Dimension::Metadata(_));
            let others: Vec<_> =
                self.group_by.iter().filter(|one| !is_of_key(one)).cloned().collect();
            let (mut all, mut with_key) = (GroupedSums::new(), GroupedSums::new());
            let periods = self.periods.clone();
            let reader = UsageReader { group_by: &others, periods, among: None, ..*self };
            reader.read_series(conn, None, MOST_SUMS + 1, &mut all)?;
            reader.read_series(conn, Some(key), MOST_SUMS + 1, &mut with_key)?;
            for (members, sums) in with_key {
                let all = all.entry(members).or_default();
                for (period, sums) in sums {
                    let rest = all.entry(period).or_default();
                    *rest = *rest - sums;
                }
            }
            // The place of the key among the dimensions.
            let places: Vec<_> = (0..self.group_by.len())
                .filter(|place| self.group_by.get(*place).is_some_and(is_of_key))
                .collect();
            for (mut members, sums) in all {
                places.iter().for_each(|place| members.insert(*place, None));
                let group = found.entry(members).or_default();
                sums.into_iter()
                    .for_each(|(period, sums)| *group.entry(period).or_default() += sums);
            }
        }
        self.read_queue(conn, found)
    }

    /// Adds the sums of the series with a key of metadata, or of those of all calls.
    fn read_series(
        &self,
        conn: &mut Conn,
        metadata: Option<&str>,
        most: usize,
        found: &mut GroupedSums,
    ) -> Result<(), StoreError> {
        let filters = filters(self.filter);
        let groups: Vec<_> = self.group_by.iter().map(Dimension::column).collect();
        let key = key_of(metadata, &filters, &groups);
        let among = self.values_among();
        if among.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let query = UsageQuery {
            filters: &filters,
            groups: &groups,
            among: among.as_deref(),
            limit: most,
            ..self.query(SummedCalls::OfSeries(&key))
        };
        self.read_runs(conn, &query, widths_of(&key), found)
    }

    /// Whether to read the sets of metadata for a query about these keys.
    ///
    /// Sets have no other dimensions, and later ones not the keys with too many values. A call may be in no set, for
    /// instance if a program counted it that keeps none. So the sums of all sets are compared with those of all calls.
    fn sets_have(&self, conn: &mut Conn, keys: &[&String]) -> Result<bool, StoreError> {
        let of_metadata =
            RequestFilter { metadata: self.filter.metadata.clone(), ..RequestFilter::default() };
        let is_of_key = |dimension: &Dimension| matches!(dimension, Dimension::Metadata(_));
        if *self.filter != of_metadata || !self.group_by.iter().all(is_of_key) {
            return Ok(false);
        }
        let left_out = HighCardinalityKeys::of(conn, [self.merchant_id])?;
        let span = start_of(self.periods.start)..start_of(self.periods.end);
        if !left_out.have_none_of(self.merchant_id, keys)
            || requests::are_few(conn, self.merchant_id, self.filter, span)?
        {
            return Ok(false);
        }
        let (filter, periods) = (&RequestFilter::default(), self.periods.clone());
        let all = UsageReader { filter, group_by: &[], periods, among: None, ..*self };
        let (mut of_series, mut of_sets) = (GroupedSums::new(), GroupedSums::new());
        all.read_series(conn, None, MOST_SUMS + 1, &mut of_series)?;
        all.read_set_sums(conn, &SET_WIDTHS, &mut of_sets)?;
        drop_empty(&mut of_series);
        drop_empty(&mut of_sets);
        Ok(of_series == of_sets)
    }

    /// Adds the sums of a query about several keys of metadata that the sets have.
    fn read_sets(&self, conn: &mut Conn, found: &mut GroupedSums) -> Result<(), StoreError> {
        self.read_set_sums(conn, &SET_WIDTHS, found)?;
        self.read_queue(conn, found)
    }

    /// Adds the sums of sets from rows of these widths.
    fn read_set_sums(
        &self,
        conn: &mut Conn,
        widths: &[i32],
        found: &mut GroupedSums,
    ) -> Result<(), StoreError> {
        let keys = self.group_by.iter().filter_map(|dimension| match dimension {
            Dimension::Metadata(key) => Some(key.as_str()),
            _ => None,
        });
        let keys: Vec<_> = keys.collect();
        let columns = [SeriesColumn::Value, SeriesColumn::SecondValue];
        let groups = columns.get(..keys.len()).unwrap_or_default();
        let among = self.values_among();
        if among.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let calls = SummedCalls::OfSets { pairs: &self.filter.metadata, keys: &keys };
        let query = UsageQuery { groups, among: among.as_deref(), ..self.query(calls) };
        self.read_runs(conn, &query, widths, found)
    }

    /// The values of the groups to read. `None` for all.
    fn values_among(&self) -> Option<Vec<Vec<Option<BoundValue>>>> {
        let among = self.among.filter(|_| !self.group_by.is_empty())?;
        Some(among.iter().filter_map(|one| self.values(one)).collect())
    }

    /// The sum of these calls, over no time yet.
    fn query<'q>(&'q self, calls: SummedCalls<'q>) -> UsageQuery<'q> {
        UsageQuery {
            merchant_id: Id(self.merchant_id).untyped(),
            calls,
            filters: &[],
            groups: &[],
            among: None,
            ranges: &[],
            origin: 0,
            step: 1,
            only: self.only,
            limit: MOST_SUMS + 1,
        }
    }

    /// Adds the sums of a query in each run of the periods, from rows of these widths.
    fn read_runs(
        &self,
        conn: &mut Conn,
        query: &UsageQuery<'_>,
        widths: &[i32],
        found: &mut GroupedSums,
    ) -> Result<(), StoreError> {
        for run in self.periods.runs(widths) {
            let (origin, step) = (run.origin, run.step);
            let query = UsageQuery { ranges: &run.ranges, origin, step, ..query.clone() };
            for row in query.load(conn)? {
                let sums = RollupSums::from(&row.sums);
                let period = usize::try_from(row.sums.part).ok().map(|part| run.first + part);
                let members = self.group_by.iter().zip(row.values());
                let members = members.map(|(dimension, value)| dimension.member(value?)).collect();
                self.add(found, members, period, sums);
            }
        }
        Ok(())
    }

    /// The values of a group in the columns of series. `None` if there can be no such group.
    fn values(&self, members: &GroupMembers) -> Option<Vec<Option<BoundValue>>> {
        let members = self.group_by.iter().zip(members);
        let values = members.map(|(dimension, member)| match member {
            Some(member) => dimension.value(member).map(Some),
            None => Some(None),
        });
        values.collect()
    }

    /// Adds the calls that are not folded yet.
    fn read_queue(&self, conn: &mut Conn, found: &mut GroupedSums) -> Result<(), StoreError> {
        for call in rollups::queued(conn)? {
            if call.passes(self.merchant_id, self.filter) {
                self.add_call(found, &call);
            }
        }
        Ok(())
    }

    /// Adds the sums of a query about several keys of metadata, record by record.
    fn read_records(&self, conn: &mut Conn, found: &mut GroupedSums) -> Result<(), StoreError> {
        let (merchant_id, filter) = (self.merchant_id, self.filter);
        let span = start_of(self.periods.start)..start_of(self.periods.end);
        let mut add = |call: &QueuedCall| self.add_call(found, call);
        let (times, unread) = (self.archived_times(conn)?, self.unread_columns());
        let archived = ArchivedCalls { merchant_id, filter, span: &span, times: &times, unread };
        archived.each(conn, self.archive, &mut add)?;
        requests::each_settled(conn, merchant_id, filter, &span, &mut add)
    }

    /// The columns of archived records that neither the filter nor a group needs. Revenue needs the customer.
    fn unread_columns(&self) -> Vec<&'static str> {
        let RequestFilter { spend_key_id, budget_id, meter_id, .. } = self.filter;
        let needed = |is_filtered: bool, dimension: Dimension| {
            is_filtered || self.group_by.contains(&dimension)
        };
        let by_meter = needed(meter_id.is_some(), Dimension::Meter);
        let columns = [
            ("spend_key_id", needed(spend_key_id.is_some(), Dimension::SpendKey)),
            ("budgets", needed(budget_id.is_some(), Dimension::Budget)),
            ("meter_id", by_meter),
            ("meter_version", by_meter),
        ];
        columns.into_iter().filter(|(_, is_needed)| !is_needed).map(|(name, _)| name).collect()
    }

    /// The times at which the archived records of the filter were made: the quarter hours that have calls with the rarest of its
    /// pairs that meet the other conditions.
    fn archived_times(&self, conn: &mut Conn) -> Result<Vec<Range<Timestamp>>, StoreError> {
        let Some(until) = archived::until(conn)? else { return Ok(Vec::new()) };
        let Some(span) = self.periods.before(slot(until.at.unix_micros())) else {
            return Ok(Vec::new());
        };
        let (mut rarest, mut least) = (self.filter.clone(), i128::MAX);
        for pair in &self.filter.metadata {
            let filter = RequestFilter { metadata: vec![pair.clone()], ..self.filter.clone() };
            let calls = self.calls_of(conn, &filter, span.clone())?;
            let calls = calls.into_values().map(|sums| sums.requests).sum();
            if calls < least {
                (rarest, least) = (filter, calls);
            }
        }
        let quarters = span.quarters();
        let found = self.calls_of(conn, &rarest, quarters.clone())?;
        let found = found.into_keys().filter_map(|period| quarters.starts.get(period).copied());
        let found: Vec<i64> = found.collect();
        let runs = found.chunk_by(|one, next| one + 1 == *next);
        let times = runs.filter_map(|run| Some(start_of(*run.first()?)..start_of(run.last()? + 1)));
        Ok(times.collect())
    }

    /// The numbers of folded calls that pass a filter with one pair of metadata at most, by the number of the period.
    fn calls_of(
        &self,
        conn: &mut Conn,
        filter: &RequestFilter,
        periods: Periods,
    ) -> Result<BTreeMap<usize, RollupSums>, StoreError> {
        let only = &["requests"];
        let reader = UsageReader { filter, group_by: &[], periods, among: None, only, ..*self };
        let key = filter.metadata.first().map(|(key, _)| key.as_str());
        let mut found = GroupedSums::new();
        reader.read_series(conn, key, MOST_SUMS + 1, &mut found)?;
        Ok(found.into_values().next().unwrap_or_default())
    }

    fn add_call(&self, found: &mut GroupedSums, call: &QueuedCall) {
        let members = self.group_by.iter().map(|dimension| call.member(dimension)).collect();
        self.add(found, members, self.periods.of_slot(slot(call.created_at)), call.sums);
    }

    fn add(
        &self,
        found: &mut GroupedSums,
        members: GroupMembers,
        period: Option<usize>,
        more: RollupSums,
    ) {
        if let Some(period) = period.filter(|period| *period < self.periods.starts.len()) {
            *found.entry(members).or_default().entry(period).or_default() += more;
        }
    }
}

impl Dimension {
    const fn column(&self) -> SeriesColumn {
        match self {
            Self::Connection => SeriesColumn::Connection,
            Self::SpendKey => SeriesColumn::SpendKey,
            Self::Budget => SeriesColumn::Budget,
            Self::Meter => SeriesColumn::Meter,
            Self::Provider => SeriesColumn::Provider,
            Self::Model => SeriesColumn::Model,
            Self::Status => SeriesColumn::Status,
            Self::Metadata(_) => SeriesColumn::Value,
        }
    }

    /// The value of a member in the column.
    fn value(&self, member: &str) -> Option<BoundValue> {
        match self {
            Self::Connection => member.parse::<ConnectionId>().ok().map(bound_id),
            Self::SpendKey => member.parse::<SpendKeyId>().ok().map(bound_id),
            Self::Budget => member.parse::<BudgetId>().ok().map(bound_id),
            Self::Meter => member.parse::<MeterId>().ok().map(bound_id),
            Self::Status => [RequestStatus::Completed, RequestStatus::Error]
                .into_iter()
                .find(|status| word(status) == member)
                .map(|status| BoundValue::Code(*status.number())),
            Self::Provider | Self::Model | Self::Metadata(_) => {
                Some(BoundValue::Text(member.to_owned()))
            }
        }
    }

    /// The member that a column says.
    fn member(&self, value: BoundValue) -> Option<String> {
        match (self, value) {
            (Self::Connection, BoundValue::Id(id)) => {
                Some(ConnectionId::from_bytes(*id.get().as_bytes()).to_string())
            }
            (Self::SpendKey, BoundValue::Id(id)) => {
                Some(SpendKeyId::from_bytes(*id.get().as_bytes()).to_string())
            }
            (Self::Budget, BoundValue::Id(id)) => {
                Some(BudgetId::from_bytes(*id.get().as_bytes()).to_string())
            }
            (Self::Meter, BoundValue::Id(id)) => {
                Some(MeterId::from_bytes(*id.get().as_bytes()).to_string())
            }
            (Self::Status, BoundValue::Code(code)) => {
                RequestStatus::of(code).map(|status| word(&status))
            }
            (_, BoundValue::Text(text)) => Some(text),
            _ => None,
        }
    }
}

impl QueuedCall {
    /// The call's member of a dimension, if it has one.
    fn member(&self, dimension: &Dimension) -> Option<String> {
        match dimension {
            Dimension::Connection => self.connection_id.map(|id| id.to_string()),
            Dimension::SpendKey => self.spend_key_id.map(|id| id.to_string()),
            Dimension::Budget => self.budgets.own.map(|id| id.to_string()),
            Dimension::Meter => self.meter_id.map(|id| id.to_string()),
            Dimension::Provider => Some(self.provider.clone()),
            Dimension::Model => self.model.clone(),
            Dimension::Status => Some(word(&self.status())),
            Dimension::Metadata(key) => self.metadata.get(key).cloned(),
        }
    }
}

fn bound_id<T: tollgate_domain::Id>(id: T) -> BoundValue {
    BoundValue::Id(Id(id).untyped())
}

/// The conditions of a filter on the columns of series. Several pairs of metadata are not among them.
fn filters(filter: &RequestFilter) -> Vec<(SeriesColumn, BoundValue)> {
    let RequestFilter {
        connection_id,
        spend_key_id,
        budget_id,
        meter_id,
        provider,
        model,
        metadata,
    } = filter;
    let connection = connection_id.map(bound_id);
    let spend_key = spend_key_id.map(bound_id);
    let meter = meter_id.map(bound_id);
    let text = |text: &Option<String>| text.clone().map(BoundValue::Text);
    let value = metadata.first().map(|(_, value)| BoundValue::Text(value.clone()));
    // No id is a part of another.
    let budget = budget_id.map(|id| BoundValue::Text(format!("%{id}%")));
    let all = [
        (SeriesColumn::Value, value),
        (SeriesColumn::Budgets, budget),
        (SeriesColumn::Connection, connection),
        (SeriesColumn::SpendKey, spend_key),
        (SeriesColumn::Meter, meter),
        (SeriesColumn::Provider, text(provider)),
        (SeriesColumn::Model, text(model)),
    ];
    all.into_iter().filter_map(|(column, value)| Some((column, value?))).collect()
}

/// The key of the series that have the columns of the filters and of the groups. The value of a key of metadata is a
/// column of all series with the key.
fn key_of(
    metadata: Option<&str>,
    filters: &[(SeriesColumn, BoundValue)],
    groups: &[SeriesColumn],
) -> String {
    let columns = filters.iter().map(|(column, _)| *column).chain(groups.iter().copied());
    let columns: Vec<_> = columns.filter(|column| *column != SeriesColumn::Value).collect();
    key_with(metadata, &columns)
}

fn start_of(slot: i64) -> Timestamp {
    time(slot.saturating_mul(15 * 60 * 1_000_000))
}
