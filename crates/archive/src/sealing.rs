//! The sealing of a month: files, then the manifest, then all of it read back.

use std::collections::BTreeMap;
use std::io::{Read, Seek as _};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::archive::Archive;
use crate::column::{Column, ColumnType, Table, Value};
use crate::error::ArchiveError;
use crate::file_writer::FileWriter;
use crate::manifest::{
    ArchivedFile, MANIFESTS, Manifest, RunningSums, SCHEMA_VERSION, Sums, hex, manifest_path,
};
use crate::selection::Selection;

/// The most rows of a file.
const FILE_ROWS: u64 = 1_000_000;

/// A month that is being written.
pub struct MonthWriter<'a> {
    archive: &'a Archive,
    manifest: Manifest,
    /// The most rows of a file.
    file_rows: u64,
}

impl Archive {
    /// Begins to write a month.
    ///
    /// `database` is the id of the database that the month leaves, and `previous` the SHA-256 of the previous manifest. The
    /// same rows give the same files and the same manifest, so an attempt writes what an earlier one wrote.
    ///
    /// # Errors
    /// The errors of the location. Its folder is created for the first month only.
    pub fn begin(
        &self,
        month: &str,
        database: &str,
        previous: Option<&str>,
    ) -> Result<MonthWriter<'_>, ArchiveError> {
        if previous.is_none() {
            self.0.location.create()?;
        }
        let manifest = Manifest {
            schema_version: SCHEMA_VERSION,
            database: database.to_owned(),
            month: month.to_owned(),
            previous: previous.map(str::to_owned),
            files: Vec::new(),
            sums: BTreeMap::new(),
        };
        Ok(MonthWriter { archive: self, manifest, file_rows: FILE_ROWS })
    }
}

/// A file that is being written on this machine.
struct OpenFile {
    writer: FileWriter,
    rows: u64,
    first: [String; 2],
    last: [String; 2],
}

impl MonthWriter<'_> {
    /// Writes the rows of a table. They must be sorted.
    ///
    /// `may_write` is asked before each upload, after the rows of the file were read. It fails if another writer may have
    /// sealed the month meanwhile and deleted its rows: their file would then be replaced by a smaller one.
    ///
    /// # Errors
    /// The errors of `rows` and of `may_write`, of temporary files and of the location.
    pub fn write<T: Table, E: From<ArchiveError>>(
        &mut self,
        rows: impl Iterator<Item = Result<T::Row, E>>,
        mut may_write: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let folder = self.manifest.folder(T::NAME);
        let mut sums = RunningSums::new::<T>();
        let mut open: Option<OpenFile> = None;
        let mut number = 0_u32;
        for row in rows {
            let row = row?;
            let values: Vec<Value> =
                T::COLUMNS.iter().map(|Column { value, .. }| value(&row)).collect();
            let key = key::<T>(&values);
            let amounts = values.iter().zip(T::COLUMNS);
            let amounts = amounts.filter(|(_, column)| column.kind == ColumnType::Amount);
            sums.add(
                &key[0],
                amounts.map(|(value, _)| match value {
                    Value::Amount(amount) => *amount,
                    _ => tollgate_pricing::Amount::ZERO,
                }),
            );
            if let Some(full) = open.take_if(|open| open.rows >= self.file_rows) {
                may_write()?;
                self.upload::<T>(&folder, number, full)?;
            }
            let file = match &mut open {
                Some(file) => file,
                None => {
                    number = number.saturating_add(1);
                    open.insert(OpenFile::new::<T>(&key)?)
                }
            };
            file.writer.push(values.into_iter())?;
            file.rows = file.rows.saturating_add(1);
            file.last = key;
        }
        if let Some(last) = open {
            may_write()?;
            self.upload::<T>(&folder, number, last)?;
        }
        self.manifest.sums.insert(T::NAME.to_owned(), sums.finish());
        Ok(())
    }

    fn upload<T: Table>(
        &mut self,
        folder: &str,
        number: u32,
        open: OpenFile,
    ) -> Result<(), ArchiveError> {
        let path = format!("{folder}/{number:05}.parquet");
        let OpenFile { writer, rows, first, last } = open;
        let mut written = writer.finish()?;
        written.rewind()?;
        let (mut digest, mut bytes) = (Sha256::new(), 0_u64);
        each_part(&mut written, |part| {
            digest.update(part);
            bytes = bytes.saturating_add(u64::try_from(part.len()).unwrap_or(u64::MAX));
        })?;
        self.archive.0.metadata.forget(&path);
        written.rewind()?;
        self.archive.0.location.upload(&path, written)?;
        let table = T::NAME.to_owned();
        let sha256 = hex(&digest.finalize());
        self.manifest.files.push(ArchivedFile { path, table, rows, bytes, sha256, first, last });
        Ok(())
    }

    /// Writes the manifest. The month is sealed when it is there. Files that it does not name are deleted, and those of
    /// uploads that were killed.
    ///
    /// Returns the manifest, and the SHA-256 of its bytes. `may_write` is asked as by [`MonthWriter::write`].
    ///
    /// # Errors
    /// The errors of `may_write` and of the location.
    pub fn seal<E: From<ArchiveError>>(
        self,
        mut may_write: impl FnMut() -> Result<(), E>,
    ) -> Result<(Arc<Manifest>, String), E> {
        may_write()?;
        let digest = self.archive.write_manifest(&self.manifest)?;
        let manifest = self.manifest;
        let location = &self.archive.0.location;
        location.delete_partial(MANIFESTS)?;
        for table in manifest.sums.keys() {
            let folder = manifest.folder(table);
            location.delete_partial(&folder)?;
            for (path, _) in location.list(&folder)? {
                if manifest.files.iter().all(|file| file.path != path) {
                    location.delete(&path)?;
                }
            }
        }
        Ok((Arc::new(manifest), digest))
    }
}

impl OpenFile {
    fn new<T: Table>(first: &[String; 2]) -> Result<Self, ArchiveError> {
        // It has no name, so a process that is killed leaves nothing.
        let writer = FileWriter::new::<T>(tempfile::tempfile()?)?;
        Ok(Self { writer, rows: 0, first: first.clone(), last: first.clone() })
    }
}

/// The merchant and the id of a row.
fn key<T: Table>(values: &[Value]) -> [String; 2] {
    [crate::column::MERCHANT, T::ID].map(|name| {
        let place = T::COLUMNS.iter().position(|column| column.name == name);
        match place.and_then(|place| values.get(place)) {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        }
    })
}

impl Archive {
    /// Reads a table of a sealed month and compares its files and rows with the manifest.
    ///
    /// Returns the sums of its rows. `pause` is called after each part of the work.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] or [`ArchiveError::Missing`] with the path of the first file that differs.
    pub fn verify<T: Table>(
        &self,
        manifest: &Manifest,
        mut pause: impl FnMut(),
    ) -> Result<Sums, ArchiveError> {
        for (path, length) in self.0.location.list(&manifest.folder(T::NAME))? {
            match manifest.files.iter().find(|file| file.path == path) {
                Some(file) if file.bytes == length => {}
                Some(file) => {
                    let why = format!("it has {length} bytes, and not {}", file.bytes);
                    return Err(ArchiveError::damaged(path, why));
                }
                None => return Err(ArchiveError::damaged(path, "no manifest names it")),
            }
        }
        let mut sums = RunningSums::new::<T>();
        let mut last_key: Option<[String; 2]> = None;
        for file in manifest.files.iter().filter(|file| file.table == T::NAME) {
            self.verify_digest(file, &mut pause)?;
            let ArchivedFile { path, rows, .. } = file;
            let mut read = 0_u64;
            for cells in self.all_cells::<T>(file)? {
                let mut cells = cells?;
                let key = [cells.text(crate::column::MERCHANT)?, cells.text(T::ID)?];
                if last_key.as_ref().is_some_and(|last| *last >= key) {
                    return Err(ArchiveError::damaged(path, "its rows are not sorted"));
                }
                let names = crate::manifest::amount_columns::<T>();
                let amounts =
                    names.map(|name| cells.amount(name)).collect::<Result<Vec<_>, _>>()?;
                sums.add(&key[0], amounts.into_iter());
                last_key = Some(key);
                read = read.saturating_add(1);
                if read.is_multiple_of(1_000) {
                    pause();
                }
            }
            if read != *rows {
                let why = format!("it has {read} rows, and not {rows}");
                return Err(ArchiveError::damaged(path, why));
            }
        }
        let sums = sums.finish();
        match manifest.sums.get(T::NAME) {
            Some(expected) if *expected == sums => Ok(sums),
            _ => {
                let path = manifest_path(&manifest.month);
                Err(ArchiveError::damaged(path, format!("its sums are not those of {}", T::NAME)))
            }
        }
    }

    /// Verifies the SHA-256 of the files of a table that may have rows of a merchant.
    ///
    /// # Errors
    /// As [`Archive::verify`].
    pub fn verify_files_of<T: Table>(
        &self,
        manifest: &Manifest,
        merchant: &str,
    ) -> Result<(), ArchiveError> {
        let selection = Selection::of(merchant.to_owned());
        let mut files = manifest.files.iter().filter(|file| file.table == T::NAME);
        files.try_for_each(|file| match file.may_have(&selection) {
            true => self.verify_digest(file, || {}),
            false => Ok(()),
        })
    }

    fn verify_digest(
        &self,
        file: &ArchivedFile,
        mut pause: impl FnMut(),
    ) -> Result<(), ArchiveError> {
        let ArchivedFile { path, bytes, sha256, .. } = file;
        let (mut digest, mut at) = (Sha256::new(), 0);
        while at < *bytes {
            let next = bytes.min(&at.saturating_add(PART)).to_owned();
            digest.update(&self.0.location.get_range(path, at..next)?);
            at = next;
            pause();
        }
        let found = hex(&digest.finalize());
        match found == *sha256 {
            true => Ok(()),
            false => {
                let why = format!("its SHA-256 is {found}, and not {sha256}");
                Err(ArchiveError::damaged(path, why))
            }
        }
    }

    /// Verifies that a manifest names the previous one.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it names another.
    pub fn verify_chain(
        &self,
        manifest: &Manifest,
        previous: Option<&str>,
    ) -> Result<(), ArchiveError> {
        match manifest.previous.as_deref() == previous {
            true => Ok(()),
            false => Err(ArchiveError::damaged(
                manifest_path(&manifest.month),
                "it does not name the previous manifest",
            )),
        }
    }
}

/// Reads all of a file of this machine. For the digest of what is uploaded.
pub(crate) fn each_part(
    mut file: impl Read,
    mut each: impl FnMut(&[u8]),
) -> Result<(), ArchiveError> {
    let mut part = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut part)?;
        match part.get(..length).filter(|part| !part.is_empty()) {
            Some(part) => each(part),
            None => return Ok(()),
        }
    }
}

/// The part of a file that is read at once for its digest.
const PART: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{Cells, ColumnType};
    use crate::location::Location;

    struct Row(u32);

    impl Table for Row {
        type Row = Self;
        const NAME: &'static str = "rows";
        const ID: &'static str = "row_id";
        const COLUMNS: &'static [Column<Self>] = &[
            Column { name: "merchant_id", kind: ColumnType::Text, value: |_| "mch_A".into() },
            Column {
                name: "row_id",
                kind: ColumnType::Text,
                value: |row| format!("row_{:04}", row.0).into(),
            },
        ];
        const READ: &'static [&'static str] = &["row_id"];

        fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
            let id = cells.text("row_id")?;
            id[4..].parse().map(Self).map_err(|_| cells.damaged("row_id"))
        }
    }

    #[test]
    fn a_large_month_has_several_files() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", folder.path().display());
        let archive = Archive::new(Location::new(&url, None).unwrap());
        let mut writer = archive.begin("2026-01", "database", None).unwrap();
        writer.file_rows = 100;
        let rows = (0..250).map(|number| Ok(Row(number)));
        writer.write::<Row, ArchiveError>(rows, || Ok(())).unwrap();
        let (manifest, _) = writer.seal::<ArchiveError>(|| Ok(())).unwrap();
        let rows: Vec<_> = manifest.files.iter().map(|file| file.rows).collect();
        assert_eq!(rows, [100, 100, 50]);
        archive.verify::<Row>(&manifest, || {}).unwrap();
        let below = Some("row_0150".to_owned());
        let selection = Selection { below, ..Selection::of("mch_A".to_owned()) };
        let mut walk = archive.descending::<Row>(manifest, &selection);
        let mut numbers = Vec::new();
        while let Some(part) = walk.next_part(60).unwrap() {
            assert_eq!(part.passed, part.rows.len());
            numbers.extend(part.rows.iter().map(|row| row.0));
        }
        assert!(numbers.into_iter().eq((0..150).rev()));
    }
}
