//! Walks through the rows of sealed months.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::archive::Archive;
use crate::column::{Cells, MERCHANT, Table};
use crate::error::ArchiveError;
use crate::manifest::{ArchivedFile, Manifest, amount_columns};
use crate::parquet_file::FileReader;

impl Archive {
    fn open<T: Table>(
        &self,
        file: &ArchivedFile,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Result<FileReader, ArchiveError> {
        let path: Arc<str> = Arc::from(&*file.path);
        let read = |range| self.0.location.get_range(&file.path, range);
        let metadata = self.0.metadata.get(&path, file.bytes, read)?;
        FileReader::new::<T>(path, file.bytes, metadata, names)
    }

    /// The keys and amounts of a file, in its order.
    pub(crate) fn all_cells<'a, T: Table>(
        &'a self,
        file: &'a ArchivedFile,
    ) -> Result<impl Iterator<Item = Result<Cells, ArchiveError>> + 'a, ArchiveError> {
        let names = [MERCHANT, T::ID].into_iter().chain(amount_columns::<T>());
        let reader = self.open::<T>(file, names)?;
        Ok((0..reader.groups()).flat_map(move |group| {
            let rows = reader.rows(group, |range| self.0.location.get_range(&file.path, range));
            let (rows, failure) = match rows {
                Ok(rows) => (rows, None),
                Err(cause) => (Vec::new(), Some(Err(cause))),
            };
            rows.into_iter().map(Ok).chain(failure)
        }))
    }

    /// The rows of a merchant with ids below a bound, the greatest first.
    pub fn descending<T: Table>(
        &self,
        manifest: Arc<Manifest>,
        merchant: String,
        below: Option<String>,
    ) -> Descending<'_, T> {
        let files: Vec<usize> = manifest
            .files
            .iter()
            .enumerate()
            .filter(|(_, file)| file.table == T::NAME)
            .filter(|(_, file)| file.may_have(&merchant, below.as_deref()))
            .map(|(place, _)| place)
            .collect();
        Descending {
            archive: self,
            manifest,
            merchant,
            below,
            files,
            groups: None,
            rows: Vec::new(),
        }
    }

    /// The rows of a month, by merchant and id: those of one merchant, or all.
    pub fn ascending<T: Table>(
        &self,
        manifest: Arc<Manifest>,
        merchant: Option<String>,
    ) -> Ascending<'_, T> {
        let files = manifest.files.iter().enumerate();
        let files = files.filter(|(_, file)| file.table == T::NAME);
        let files = files.filter(|(_, file)| {
            merchant.as_deref().is_none_or(|merchant| file.may_have(merchant, None))
        });
        let files = files.map(|(place, _)| place).collect();
        Ascending { archive: self, manifest, merchant, files, groups: None, rows: VecDeque::new() }
    }

    /// A merchant's row of a month. `None` if there is none.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn find<T: Table>(
        &self,
        manifest: Arc<Manifest>,
        merchant: &str,
        id: &str,
    ) -> Result<Option<T>, ArchiveError> {
        // No text lies between an id and the same with a NUL.
        let below = Some(format!("{id}\0"));
        let mut rows = self.descending::<T>(manifest, merchant.to_owned(), below);
        match rows.next_row()? {
            Some((found, row)) if found == id => Ok(Some(row)),
            _ => Ok(None),
        }
    }
}

/// A walk through the rows of a merchant, the greatest id first. Each group of rows is read when it is needed.
pub struct Descending<'a, T> {
    archive: &'a Archive,
    manifest: Arc<Manifest>,
    merchant: String,
    below: Option<String>,
    /// The places of the files to come. The last one is next.
    files: Vec<usize>,
    /// The current file, and the number of its groups to come.
    groups: Option<(FileReader, usize)>,
    /// The rows to come of the current group. The last one is next.
    rows: Vec<(String, T)>,
}

impl<T: Table> Descending<'_, T> {
    /// The next row and its id. `None` at the end.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn next_row(&mut self) -> Result<Option<(String, T)>, ArchiveError> {
        loop {
            if let Some(row) = self.rows.pop() {
                return Ok(Some(row));
            }
            let Some((reader, rest)) = &mut self.groups else {
                let Some(file) = self.files.pop().and_then(|place| self.manifest.files.get(place))
                else {
                    return Ok(None);
                };
                let names = [MERCHANT, T::ID].into_iter().chain(T::READ.iter().copied());
                let reader = self.archive.open::<T>(file, names)?;
                let groups = reader.groups();
                self.groups = Some((reader, groups));
                continue;
            };
            let Some(group) = rest.checked_sub(1) else {
                self.groups = None;
                continue;
            };
            *rest = group;
            if !reader.may_have(group, &self.merchant, self.below.as_deref()) {
                continue;
            }
            let read = |range| self.archive.0.location.get_range(reader.path(), range);
            for mut cells in reader.rows(group, read)? {
                let (merchant, id) = (cells.peek_text(MERCHANT)?, cells.peek_text(T::ID)?);
                let is_below = self.below.as_deref().is_none_or(|below| id < below);
                if merchant == self.merchant && is_below {
                    let id = id.to_owned();
                    self.rows.push((id, T::read(&mut cells)?));
                }
            }
        }
    }
}

/// A walk through the rows of a month.
pub struct Ascending<'a, T> {
    archive: &'a Archive,
    manifest: Arc<Manifest>,
    merchant: Option<String>,
    files: VecDeque<usize>,
    groups: Option<(FileReader, usize)>,
    rows: VecDeque<T>,
}

impl<T: Table> Ascending<'_, T> {
    /// The next row. `None` at the end.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn next_row(&mut self) -> Result<Option<T>, ArchiveError> {
        loop {
            if let Some(row) = self.rows.pop_front() {
                return Ok(Some(row));
            }
            let Some((reader, next)) = &mut self.groups else {
                let place = self.files.pop_front();
                let Some(file) = place.and_then(|place| self.manifest.files.get(place)) else {
                    return Ok(None);
                };
                let names = [MERCHANT].into_iter().chain(T::READ.iter().copied());
                let reader = self.archive.open::<T>(file, names)?;
                self.groups = Some((reader, 0));
                continue;
            };
            if *next >= reader.groups() {
                self.groups = None;
                continue;
            }
            let group = *next;
            *next += 1;
            let merchant = self.merchant.as_deref();
            if merchant.is_some_and(|merchant| !reader.may_have(group, merchant, None)) {
                continue;
            }
            let read = |range| self.archive.0.location.get_range(reader.path(), range);
            for mut cells in reader.rows(group, read)? {
                let of_row = cells.peek_text(MERCHANT)?;
                if merchant.is_none_or(|merchant| of_row == merchant) {
                    self.rows.push_back(T::read(&mut cells)?);
                }
            }
        }
    }
}
