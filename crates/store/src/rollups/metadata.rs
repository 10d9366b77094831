//! The sums of calls by their whole metadata, for queries about several keys.
//!
//! A call is in the set of the calls that have the same metadata. A key whose values make too many sets, such as the
//! id of a user, is left out of later sets. So the sets have the sums by all other keys, together or alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use diesel::prelude::*;
use sha2::{Digest, Sha256};
use tollgate_domain::{Id as _, MerchantId, Metadata};

use super::known::KnownAt;
use super::queue::QueuedCall;
use super::series::id_of_name;
use super::sums::{RollupSums, slot, slot_of, to_row};
use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::{AnyId, Id};
use crate::rows::{MetadataSetRow, SetRollupRow, to_json};
use crate::schema::{high_cardinality_keys, metadata_sets};

/// The widths of the rows of a set, in quarter hours.
pub(crate) const SET_WIDTHS: [i32; 3] = [96, 4, 1];
/// The most sets of a merchant before a key is left out, and again before each further key.
const MOST_SETS: i64 = 4_000;
/// The most keys that are left out. Then there are no later sets.
const MOST_KEYS: i64 = 4;
/// Stands for all keys. No key of metadata is empty.
const ALL_KEYS: &str = "";
/// The longest metadata of a set. Calls with longer metadata are in no set.
const MOST_BYTES: usize = 1_000;

/// The keys of metadata that later sets of merchants do not have.
#[derive(Default)]
pub(crate) struct HighCardinalityKeys(HashMap<MerchantId, BTreeSet<String>>);

impl HighCardinalityKeys {
    /// Those of some merchants.
    pub(crate) fn of(
        conn: &mut Conn,
        merchants: impl IntoIterator<Item = MerchantId>,
    ) -> Result<Self, StoreError> {
        let merchants: BTreeSet<_> = merchants.into_iter().map(Id).collect();
        let of_merchants = high_cardinality_keys::merchant_id.eq_any(merchants);
        let rows = high_cardinality_keys::table.filter(of_merchants).load(conn)?;
        Ok(Self::from_rows(rows))
    }

    /// Those of all merchants.
    pub(crate) fn all(conn: &mut Conn) -> Result<Self, StoreError> {
        Ok(Self::from_rows(high_cardinality_keys::table.load(conn)?))
    }

    fn from_rows(rows: Vec<(Id<MerchantId>, String)>) -> Self {
        let mut keys = Self::default();
        for (merchant_id, key) in rows {
            keys.0.entry(merchant_id.get()).or_default().insert(key);
        }
        keys
    }

    /// Whether all sets of a merchant have these keys, if their calls have them.
    pub(crate) fn have_none_of(&self, merchant_id: MerchantId, keys: &[&String]) -> bool {
        let left_out = self.0.get(&merchant_id);
        left_out.is_none_or(|left_out| {
            !left_out.contains(ALL_KEYS) && !keys.iter().any(|key| left_out.contains(*key))
        })
    }

    /// The set of a call, if it is in one.
    pub(crate) fn set_of(
        &self,
        merchant_id: MerchantId,
        metadata: &Metadata,
    ) -> Option<MetadataSetRow> {
        let left_out = self.0.get(&merchant_id);
        if left_out.is_some_and(|left_out| left_out.contains(ALL_KEYS)) {
            return None;
        }
        let is_kept = |key: &str| left_out.is_none_or(|left_out| !left_out.contains(key));
        let pairs: BTreeMap<_, _> = metadata.iter().filter(|(key, _)| is_kept(key)).collect();
        let metadata = to_json(&pairs);
        if metadata.len() > MOST_BYTES {
            return None;
        }
        let name = Sha256::new().chain_update(merchant_id.as_bytes()).chain_update(&metadata);
        Some(MetadataSetRow { merchant_id: Id(merchant_id), set_id: id_of_name(name), metadata })
    }
}

/// The key of a row: merchant, width, slot and set.
type SetRollupKey = (Id<MerchantId>, i32, i64, Id<AnyId>);

/// Sums to be added to those of sets.
#[derive(Default)]
pub(crate) struct MetadataRollups {
    sums: BTreeMap<SetRollupKey, RollupSums>,
    /// The sets of the sums.
    sets: BTreeSet<MetadataSetRow>,
}

impl MetadataRollups {
    /// Adds up calls.
    pub(super) fn of(calls: &[QueuedCall], keys: &HighCardinalityKeys) -> Self {
        let mut rollups = Self::default();
        for call in calls {
            let Some(set) = keys.set_of(call.merchant_id, &call.metadata) else { continue };
            let quarter = slot(call.created_at);
            for width in SET_WIDTHS {
                let key = (set.merchant_id, width, slot_of(width, quarter), set.set_id);
                *rollups.sums.entry(key).or_default() += call.sums;
            }
            rollups.sets.insert(set);
        }
        rollups
    }

    /// Adds the sums to the rows of the database. If a merchant has too many sets then, leaves a key out of later ones.
    pub(super) fn write(&self, conn: &mut Conn, known: &KnownAt<'_>) -> Result<(), StoreError> {
        let unknown = known.unknown(&self.sets, |set| set.set_id);
        let with_new_sets = dialect::fold::insert_metadata_sets(conn, &unknown)?;
        let rows = self.sums.iter().map(|((merchant_id, width, slot, set_id), sums)| {
            SetRollupRow::new(*merchant_id, &to_row(&(*set_id, *width, *slot), sums))
        });
        dialect::fold::add_set_rollups(conn, &rows.collect::<Vec<_>>())?;
        with_new_sets.into_iter().try_for_each(|merchant_id| leave_key_out(conn, merchant_id))
    }

    /// The ids of the sets of the sums.
    pub(super) fn set_ids(&self) -> impl Iterator<Item = Id<AnyId>> + '_ {
        self.sets.iter().map(|set| set.set_id)
    }
}

/// Leaves the key with the most values out of later sets of a merchant, if there are too many.
fn leave_key_out(conn: &mut Conn, merchant_id: Id<MerchantId>) -> Result<(), StoreError> {
    let sets = metadata_sets::table.filter(metadata_sets::merchant_id.eq(merchant_id));
    let sets: i64 = sets.count().get_result(conn)?;
    if sets <= MOST_SETS {
        return Ok(());
    }
    let keys =
        high_cardinality_keys::table.filter(high_cardinality_keys::merchant_id.eq(merchant_id));
    let keys: i64 = keys.count().get_result(conn)?;
    if sets <= MOST_SETS.saturating_mul(keys + 1) {
        return Ok(());
    }
    let key = match keys < MOST_KEYS {
        true => dialect::fold::most_varied_key(conn, merchant_id)?,
        false => None,
    };
    let merchant = merchant_id.get();
    match &key {
        Some(key) => {
            log::info!("{merchant} has many values of {key:?}: sums by it and others read records")
        }
        None => log::info!(
            "{merchant} has too many sets of metadata: sums by several keys read records"
        ),
    }
    let key = key.unwrap_or_else(|| ALL_KEYS.to_owned());
    let row =
        (high_cardinality_keys::merchant_id.eq(merchant_id), high_cardinality_keys::key.eq(key));
    diesel::insert_into(high_cardinality_keys::table).values(row).execute(conn)?;
    Ok(())
}
