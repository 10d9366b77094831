//! The sums of calls over time, by the members of a dimension. They are read from the roll-ups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use tollgate_domain::{MerchantId, TimeSpan};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{self, Dimension, GroupMembers, RollupSums};
use tollgate_store::{Conn, RecordArchive, StoreError, budgets, connections, meters, spend_keys};

use crate::chart::{COLORS, GREY, Layer};
use crate::clock::PageClock;
use crate::page::name_of;
use crate::time_range::MONTH;

/// A model is one of its provider.
pub(crate) const BY_MODEL: &[Dimension] = &[Dimension::Provider, Dimension::Model];

/// The figure that a chart shows of sums.
pub(crate) type Measure = fn(&RollupSums) -> i128;

/// The sums of a merchant over a span.
pub(crate) struct Trend {
    /// The sums of all calls in each column.
    pub(crate) total: Vec<RollupSums>,
    /// The sums of each member of a dimension in all columns.
    pub(crate) members: BTreeMap<GroupMembers, RollupSums>,
    measure: Measure,
    /// The members with the largest measure, the largest first, with their sums in each column.
    layers: Vec<(GroupMembers, Vec<RollupSums>)>,
    /// The names of customers, spend keys and markups, by their ids.
    names: HashMap<String, String>,
}

/// The name of the calls that have no member. A member of this name is in quotes.
const NONE: &str = "None";

impl Trend {
    pub(crate) fn read(
        conn: &mut Conn,
        archive: &RecordArchive,
        merchant_id: MerchantId,
        filter: &RequestFilter,
        (by, measure): (&[Dimension], Measure),
        span: &TimeSpan,
    ) -> Result<Self, StoreError> {
        let total = total(conn, archive, merchant_id, filter, span)?;
        // If there are too many members, the total is shown.
        let members = usage::sums(conn, archive, merchant_id, filter, by, &span.whole())?;
        let members = members.unwrap_or_default().into_iter();
        let members = members.map(|(members, sums)| (members, sum_up(sums.values()))).collect();
        let mut trend = Self { total, members, measure, layers: Vec::new(), names: HashMap::new() };
        trend.read_layers(conn, archive, merchant_id, filter, by, span)?;
        Ok(trend)
    }

    /// Reads the columns of the members that the chart shows. If it shows all, the first has what the others leave of the
    /// total.
    fn read_layers(
        &mut self,
        conn: &mut Conn,
        archive: &RecordArchive,
        merchant_id: MerchantId,
        filter: &RequestFilter,
        by: &[Dimension],
        span: &TimeSpan,
    ) -> Result<(), StoreError> {
        let mut largest = self.largest(self.measure);
        let first = largest.first().filter(|_| largest.len() <= COLORS.len()).cloned();
        largest.truncate(COLORS.len());
        let read = largest.get(usize::from(first.is_some())..).unwrap_or_default();
        let shown = usage::sums_among(conn, archive, merchant_id, filter, (by, read), span)?;
        let mut shown = shown.unwrap_or_default();
        let layers = read.iter().map(|members| {
            let sums = shown.remove(members).unwrap_or_default();
            (members.clone(), in_columns(&sums, self.total.len()))
        });
        self.layers = layers.collect();
        if let Some(first) = first {
            let rest = self.total.iter().enumerate().map(|(column, total)| {
                let others = self.layers.iter().filter_map(|(_, sums)| sums.get(column));
                *total - sum_up(others)
            });
            self.layers.insert(0, (first, rest.collect()));
        }
        Ok(())
    }

    /// Reads the names of these members.
    pub(crate) fn read_names<'a>(
        &mut self,
        conn: &mut Conn,
        merchant_id: MerchantId,
        members: impl IntoIterator<Item = &'a GroupMembers>,
    ) -> Result<(), StoreError> {
        for id in members.into_iter().flatten().flatten() {
            let name = if let Ok(id) = id.parse() {
                connections::find(conn, merchant_id, id)?.as_ref().map(name_of)
            } else if let Ok(id) = id.parse() {
                spend_keys::find(conn, merchant_id, id)?.map(|one| one.name)
            } else if let Ok(id) = id.parse() {
                meters::find(conn, merchant_id, id)?.map(|one| one.name)
            } else if let Ok(id) = id.parse() {
                budgets::find(conn, merchant_id, id)?.map(|one| one.name)
            } else {
                None
            };
            self.names.extend(name.map(|name| (id.clone(), name)));
        }
        Ok(())
    }

    /// The name of a member for people. The calls without one are a member, too.
    pub(crate) fn name(&self, members: &GroupMembers) -> String {
        let names = members.iter().map(|member| match member {
            Some(id) if id == NONE => format!("“{id}”"),
            Some(id) => self.names.get(id).unwrap_or(id).clone(),
            None => NONE.to_owned(),
        });
        names.collect::<Vec<_>>().join("/")
    }

    /// The members in the order of a measure, the largest first.
    pub(crate) fn largest(&self, measure: Measure) -> Vec<GroupMembers> {
        let mut members: Vec<_> = self.members.iter().collect();
        members.sort_by_key(|(members, sums)| (Reverse(measure(sums).saturating_abs()), *members));
        members.into_iter().map(|(members, _)| members.clone()).collect()
    }

    /// The largest members as layers, and all others as one. `href` is the page of the calls of a member.
    pub(crate) fn layers(&self, href: impl Fn(&GroupMembers) -> String) -> Vec<Layer> {
        let values = |sums: &[RollupSums]| sums.iter().map(self.measure).collect::<Vec<_>>();
        let mut rest = values(&self.total);
        let mut layers = Vec::new();
        for (color, (members, sums)) in COLORS.into_iter().zip(&self.layers) {
            let of_member = values(sums);
            rest.iter_mut().zip(&of_member).for_each(|(rest, value)| *rest -= value);
            let (name, href) = (self.name(members), href(members));
            layers.push(Layer { name, color, href, values: of_member });
        }
        if rest.iter().any(|rest| *rest != 0) {
            layers.push(Layer::new(&others(self.members.len(), layers.len()), GREY, rest));
        }
        layers
    }
}

/// The name of all members but those that are shown.
pub(crate) fn others(members: usize, shown: usize) -> String {
    match members.saturating_sub(shown) {
        0 => "All".to_owned(),
        others => format!("Other ({others})"),
    }
}

/// The sums of all calls that pass a filter, for each column.
pub(crate) fn total(
    conn: &mut Conn,
    archive: &RecordArchive,
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Result<Vec<RollupSums>, StoreError> {
    let sums = usage::sums(conn, archive, merchant_id, filter, &[], span)?;
    let sums = sums.and_then(|sums| sums.into_values().next()).unwrap_or_default();
    Ok(in_columns(&sums, span.periods().len()))
}

/// The sums of each column, also of those without calls.
fn in_columns(sums: &BTreeMap<usize, RollupSums>, columns: usize) -> Vec<RollupSums> {
    (0..columns).map(|column| sums.get(&column).copied().unwrap_or_default()).collect()
}

pub(crate) fn sum_up<'a>(parts: impl IntoIterator<Item = &'a RollupSums>) -> RollupSums {
    let mut sums = RollupSums::default();
    parts.into_iter().for_each(|part| sums += *part);
    sums
}

/// The sums of 30 days that make the margin of each customer, by its id.
pub(crate) fn margins_by_customer(
    conn: &mut Conn,
    merchant_id: MerchantId,
    clock: &PageClock,
) -> Result<HashMap<String, RollupSums>, StoreError> {
    let all = RequestFilter::default();
    let by = [Dimension::Connection];
    let groups = usage::margins(
        conn,
        &RecordArchive::left_out(),
        merchant_id,
        &all,
        &by,
        &MONTH.whole(clock),
    )?;
    let groups = groups.unwrap_or_default();
    let of_customers = groups
        .into_iter()
        .filter_map(|(mut members, periods)| Some((members.pop()??, sum_up(periods.values()))));
    Ok(of_customers.collect())
}
