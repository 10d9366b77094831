//! The series of a call: the sets of calls that it is added to.

use sha2::{Digest, Sha256};
use tollgate_domain::Id as _;

use super::queue::QueuedCall;
use crate::codes::CodedEnum;
use crate::ids::{AnyId, Id};
use crate::rows::SeriesRow;

/// The key of the series of all calls of a merchant.
pub(crate) const ALL: &str = ":all";
/// The key of series of calls that are alike in every dimension but metadata.
pub(crate) const CALLS: &str = ":calls";

/// The series of a call: all calls of its merchant, those that are like it, and those of them with each pair of its
/// metadata.
pub(crate) fn series_of(call: &QueuedCall) -> Vec<SeriesRow> {
    let merchant_id = Id(call.merchant_id);
    let with_id = |row: SeriesRow| SeriesRow { series_id: id_of(&row), ..row };
    let all = with_id(SeriesRow {
        merchant_id,
        key: ALL.to_owned(),
        value: String::new(),
        series_id: Id::default(),
        connection_id: None,
        spend_key_id: None,
        meter_id: None,
        provider: None,
        model: None,
        status: None,
    });
    let like_it = |key: &str, value: &str| {
        with_id(SeriesRow {
            merchant_id,
            key: key.to_owned(),
            value: value.to_owned(),
            series_id: Id::default(),
            connection_id: call.connection_id.map(Id),
            spend_key_id: call.spend_key_id.map(Id),
            meter_id: call.meter_id.map(Id),
            provider: Some(call.provider.clone()),
            model: call.model.clone(),
            status: Some(*call.status().number()),
        })
    };
    let pairs = call.metadata.iter().map(|(key, value)| like_it(key, value));
    [all, like_it(CALLS, "")].into_iter().chain(pairs).collect()
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
    let id =
        name.finalize().iter().take(16).fold(0_u128, |all, byte| (all << 8) | u128::from(*byte));
    Id(AnyId::from_bytes(id.to_be_bytes()))
}
