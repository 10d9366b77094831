//! Manifests: the files of a sealed month, their digests and their sums.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tollgate_pricing::Amount;

use crate::column::{ColumnType, Table};
use crate::selection::Selection;

/// The folder of the manifests.
pub(crate) const MANIFESTS: &str = "manifests";
/// The version of the columns and of the manifest.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The manifest of a sealed month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the files' columns and of this document.
    pub schema_version: u32,
    /// The id of the database that the month left.
    pub database: String,
    /// The month, such as `2026-01`.
    pub month: String,
    /// The SHA-256 of the bytes of the previous manifest, in hex. `null` in the first.
    pub previous: Option<String>,
    /// The files.
    pub files: Vec<ArchivedFile>,
    /// The sums of each merchant's rows, by table and merchant.
    pub sums: BTreeMap<String, Sums>,
}

impl Manifest {
    /// The folder of the month's files of a table. Engines read the month from its name.
    pub(crate) fn folder(&self, table: &str) -> String {
        format!("{table}/month={}", self.month)
    }
}

/// The sums of the rows of a table, by merchant.
pub type Sums = BTreeMap<String, MerchantSums>;

/// The sums of a merchant's rows of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MerchantSums {
    /// The number of rows.
    pub rows: u64,
    /// The sum of each column of amounts, in USD.
    #[serde(flatten)]
    pub amounts: BTreeMap<String, String>,
}

/// A file of a sealed month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// The path in the archive.
    pub path: String,
    /// The table.
    pub table: String,
    /// The number of rows.
    pub rows: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The SHA-256 of the file, in hex.
    pub sha256: String,
    /// The merchant and the id of the first row.
    pub first: [String; 2],
    /// The merchant and the id of the last row.
    pub last: [String; 2],
}

impl ArchivedFile {
    /// Whether it may have rows of a selection.
    pub(crate) fn may_have(&self, rows: &Selection<'_>) -> bool {
        let [[first, least], [last, greatest]] =
            [&self.first, &self.last].map(|key| key.each_ref().map(String::as_str));
        let of_merchant = |merchant: &str, id| (merchant == rows.merchant).then_some(id);
        (first..=last).contains(&&*rows.merchant)
            && rows.may_be_between(of_merchant(first, least), of_merchant(last, greatest))
    }
}

/// An amount of any size in USD, with ten decimals.
pub fn decimal(units: i128) -> String {
    const ONE: u128 = 10_000_000_000;
    let sign = if units < 0 { "-" } else { "" };
    let units = units.unsigned_abs();
    format!("{sign}{}.{:010}", units / ONE, units % ONE)
}

/// The sums of a table while its rows are read or written.
pub(crate) struct RunningSums {
    names: Vec<&'static str>,
    merchants: BTreeMap<String, (u64, Vec<i128>)>,
}

impl RunningSums {
    pub(crate) fn new<T: Table>() -> Self {
        Self { names: amount_columns::<T>().collect(), merchants: BTreeMap::new() }
    }

    /// Adds a row with the amounts of its columns.
    pub(crate) fn add(&mut self, merchant: &str, amounts: impl Iterator<Item = Amount>) {
        if !self.merchants.contains_key(merchant) {
            self.merchants.insert(merchant.to_owned(), (0, vec![0; self.names.len()]));
        }
        if let Some((rows, sums)) = self.merchants.get_mut(merchant) {
            *rows = rows.saturating_add(1);
            sums.iter_mut().zip(amounts).for_each(|(sum, amount)| {
                *sum = sum.saturating_add(i128::from(amount.units()));
            });
        }
    }

    pub(crate) fn finish(self) -> Sums {
        let of_merchant = |(merchant, (rows, sums)): (String, (u64, Vec<i128>))| {
            let names = self.names.iter().map(|name| (*name).to_owned());
            let amounts = names.zip(sums.into_iter().map(decimal)).collect();
            (merchant, MerchantSums { rows, amounts })
        };
        self.merchants.into_iter().map(of_merchant).collect()
    }
}

/// The names of the columns of amounts.
pub(crate) fn amount_columns<T: Table>() -> impl Iterator<Item = &'static str> {
    let columns = T::COLUMNS.iter().filter(|column| column.kind == ColumnType::Amount);
    columns.map(|column| column.name)
}

/// The SHA-256 of bytes, in hex.
pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The path of the manifest of a month.
pub(crate) fn manifest_path(month: &str) -> String {
    format!("{MANIFESTS}/{month}.json")
}
