//! The sums of calls over time, by the members of a dimension. They are read from the roll-ups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use tollgate_domain::{MerchantId, TimeSpan};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{self, Dimension, GroupMembers, RollupSums};
use tollgate_store::{Conn, StoreError, connections, meters, spend_keys};

use crate::chart::{COLORS, GREY, Layer};
use crate::clock::PageClock;
use crate::page::name_of;
use crate::time_range::MONTH;

/// A model is one of its provider.
pub(crate) const BY_MODEL: &[Dimension] = &[Dimension::Provider, Dimension::Model];

/// The figure that a chart shows of sums.
pub(crate) type Measure = fn(&RollupSums) -> i128;

/// The sums of a merchant over a span: of all calls, and of each member of a dimension.
pub(crate) struct Trend {
    pub(crate) total: Vec<RollupSums>,
    pub(crate) members: BTreeMap<GroupMembers, Vec<RollupSums>>,
    /// The names of customers, spend keys and markups, by their ids.
    names: HashMap<String, String>,
}

/// The name of the calls that have no member. A member of this name is in quotes.
const NONE: &str = "None";

impl Trend {
    pub(crate) fn read(
        conn: &mut Conn,
        merchant_id: MerchantId,
        filter: &RequestFilter,
        by: &[Dimension],
        span: &TimeSpan,
    ) -> Result<Self, StoreError> {
        let columns = span.periods().len();
        let Some(groups) = usage::sums(conn, merchant_id, filter, by, span)? else {
            // There are too many members, so the total is shown.
            let total = total(conn, merchant_id, filter, span)?;
            return Ok(Self { total, members: BTreeMap::new(), names: HashMap::new() });
        };
        let mut total = vec![RollupSums::default(); columns];
        let mut by_member = BTreeMap::new();
        // Each call has one member, so the members add up to the total.
        for (members, sums) in groups {
            for (column, sums) in &sums {
                total.get_mut(*column).into_iter().for_each(|total| *total += *sums);
            }
            by_member.insert(members, in_columns(&sums, columns));
        }
        Ok(Self { total, members: by_member, names: HashMap::new() })
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
        members.sort_by_key(|(members, sums)| {
            (Reverse(measure(&sum_up(*sums)).saturating_abs()), *members)
        });
        members.into_iter().map(|(members, _)| members.clone()).collect()
    }

    /// The largest members as layers, and all others as one. `href` is the page of the calls of a member.
    pub(crate) fn layers(
        &self,
        measure: Measure,
        href: impl Fn(&GroupMembers) -> String,
    ) -> Vec<Layer> {
        let values = |sums: &[RollupSums]| sums.iter().map(measure).collect::<Vec<_>>();
        let mut rest = values(&self.total);
        let largest = self.largest(measure);
        let shown = COLORS.into_iter().zip(&largest);
        let mut layers = Vec::new();
        for (color, members) in shown {
            let of_member = self.members.get(members).map(|sums| values(sums)).unwrap_or_default();
            rest.iter_mut().zip(&of_member).for_each(|(rest, value)| *rest -= value);
            let (name, href) = (self.name(members), href(members));
            layers.push(Layer { name, color, href, values: of_member });
        }
        if rest.iter().any(|rest| *rest != 0) {
            layers.push(Layer::new(&others(largest.len(), layers.len()), GREY, rest));
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
    merchant_id: MerchantId,
    filter: &RequestFilter,
    span: &TimeSpan,
) -> Result<Vec<RollupSums>, StoreError> {
    let sums = usage::sums(conn, merchant_id, filter, &[], span)?;
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
    let groups = usage::margins(conn, merchant_id, &all, &by, &MONTH.whole(clock))?;
    let groups = groups.unwrap_or_default();
    let of_customers = groups
        .into_iter()
        .filter_map(|(mut members, periods)| Some((members.pop()??, sum_up(periods.values()))));
    Ok(of_customers.collect())
}
