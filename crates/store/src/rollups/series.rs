//! The series of a call: the sets of calls that it is added to.

use sha2::{Digest, Sha256};
use tollgate_domain::Id as _;

use super::queue::QueuedCall;
use crate::codes::CodedEnum;
use crate::dialect::SeriesColumn;
use crate::ids::{AnyId, Id};
use crate::rows::SeriesRow;

/// The key of the series of all calls of a merchant.
const ALL: &str = ":all";
/// The key of series of calls that are alike in customer, spend key and budgets.
const CUSTOMERS: &str = ":customers";
/// The key of series of calls that are alike in meter, provider, model and status.
const MODELS: &str = ":models";
/// The key of series of calls that are alike in every dimension but metadata.
pub(crate) const CALLS: &str = ":calls";
/// Begins the key of series of all calls with a pair of metadata. No key of metadata has a colon.
const PAIR: &str = ":pair.";

/// The dimensions of the series with a key.
fn dimensions_of(key: &str) -> &'static [SeriesColumn] {
    use SeriesColumn::{Budget, Budgets, Connection, Meter, Model, Provider, SpendKey, Status};
    match key {
        ALL => &[],
        CUSTOMERS => &[Connection, SpendKey, Budget, Budgets],
        MODELS => &[Meter, Provider, Model, Status],
        key if key.starts_with(PAIR) => &[],
        _ => &[Connection, SpendKey, Budget, Budgets, Meter, Provider, Model, Status],
    }
}

/// The quarter hours that a row of the series with a key covers. A day in UTC is one row. Where most hours have many
/// calls, so is an hour.
pub(crate) fn widths_of(key: &str) -> &'static [i32] {
    match key {
        ALL | MODELS => &[96, 4, 1],
        _ => &[96, 1],
    }
}

/// The key of the fewest series that have these dimensions, for calls with a key of metadata or for all calls.
pub(crate) fn key_with(metadata: Option<&str>, dimensions: &[SeriesColumn]) -> String {
    let keys = match metadata {
        None => [ALL, CUSTOMERS, MODELS, CALLS].map(str::to_owned).to_vec(),
        Some(key) => vec![format!("{PAIR}{key}"), key.to_owned()],
    };
    let has_all = |key: &&String| {
        let of_key = dimensions_of(key);
        dimensions.iter().all(|dimension| of_key.contains(dimension))
    };
    keys.iter().find(has_all).or(keys.last()).cloned().unwrap_or_default()
}

/// The series of a call: all calls of its merchant, those that are like it in some dimensions, and those with each
/// pair of its metadata.
pub(crate) fn series_of(call: &QueuedCall) -> Vec<SeriesRow> {
    let like_it = |key: &str, value: &str| SeriesRow {
        merchant_id: Id(call.merchant_id),
        key: key.to_owned(),
        value: value.to_owned(),
        series_id: Id::default(),
        connection_id: call.connection_id.map(Id),
        spend_key_id: call.spend_key_id.map(Id),
        budget_id: call.budgets.own.map(Id),
        budgets: budgets(call),
        meter_id: call.meter_id.map(Id),
        provider: Some(call.provider.clone()),
        model: call.model.clone(),
        status: Some(*call.status().number()),
    };
    let calls = like_it(CALLS, "");
    let mut series = vec![with_key(&calls, ALL.to_owned()), with_key(&calls, CALLS.to_owned())];
    series.extend(wider(&calls));
    for (key, value) in call.metadata.iter() {
        let calls = like_it(key, value);
        series.push(with_key(&calls, key.clone()));
        series.extend(wider(&calls));
    }
    series
}

/// The budgets of a call as a text that conditions search.
fn budgets(call: &QueuedCall) -> Option<String> {
    let ids: Vec<_> = call.budgets.ids.iter().map(ToString::to_string).collect();
    (!ids.is_empty()).then(|| ids.join(","))
}

/// The series of fewer dimensions that have all calls of a series that is like its calls.
pub(crate) fn wider(calls: &SeriesRow) -> Vec<SeriesRow> {
    let keys = match calls.key.as_str() {
        CALLS => vec![CUSTOMERS.to_owned(), MODELS.to_owned()],
        key => vec![format!("{PAIR}{key}")],
    };
    keys.into_iter().map(|key| with_key(calls, key)).collect()
}

/// The series with this key that has the calls.
fn with_key(calls: &SeriesRow, key: String) -> SeriesRow {
    let dimensions = dimensions_of(&key);
    let has = |dimension| dimensions.contains(&dimension);
    let row = SeriesRow {
        merchant_id: calls.merchant_id,
        key,
        value: calls.value.clone(),
        series_id: Id::default(),
        connection_id: calls.connection_id.filter(|_| has(SeriesColumn::Connection)),
        spend_key_id: calls.spend_key_id.filter(|_| has(SeriesColumn::SpendKey)),
        budget_id: calls.budget_id.filter(|_| has(SeriesColumn::Budget)),
        budgets: calls.budgets.clone().filter(|_| has(SeriesColumn::Budgets)),
        meter_id: calls.meter_id.filter(|_| has(SeriesColumn::Meter)),
        provider: calls.provider.clone().filter(|_| has(SeriesColumn::Provider)),
        model: calls.model.clone().filter(|_| has(SeriesColumn::Model)),
        status: calls.status.filter(|_| has(SeriesColumn::Status)),
    };
    SeriesRow { series_id: id_of(&row), ..row }
}

/// The id of a series. It is computed, so that nothing has to be read to find the rows.
fn id_of(row: &SeriesRow) -> Id<AnyId> {
    let SeriesRow {
        merchant_id,
        key,
        value,
        series_id: _,
        connection_id,
        spend_key_id,
        budget_id,
        budgets,
        meter_id,
        provider,
        model,
        status,
    } = row;
    let mut name = Sha256::new();
    name.update(merchant_id.get().as_bytes());
    let ids =
        [connection_id.map(Id::untyped), spend_key_id.map(Id::untyped), meter_id.map(Id::untyped)];
    for id in ids {
        name.update(id.unwrap_or_default().get().as_bytes());
    }
    name.update(status.unwrap_or_default().to_be_bytes());
    // An absent text is not an empty one.
    let texts = [Some(key), Some(value), provider.as_ref(), model.as_ref()];
    for text in texts {
        let length = text.map_or(u64::MAX, |text| u64::try_from(text.len()).unwrap_or_default());
        name.update(length.to_be_bytes());
        name.update(text.map_or("", String::as_str));
    }
    // A series of no budget has the id that it had before there were budgets.
    if let Some(budgets) = budgets {
        name.update(budget_id.map(Id::untyped).unwrap_or_default().get().as_bytes());
        name.update(budgets);
    }
    id_of_name(name)
}

/// The id that is computed from a name.
pub(super) fn id_of_name(name: Sha256) -> Id<AnyId> {
    let id =
        name.finalize().iter().take(16).fold(0_u128, |all, byte| (all << 8) | u128::from(*byte));
    Id(AnyId::from_bytes(id.to_be_bytes()))
}
