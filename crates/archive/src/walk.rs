//! Walks through the rows of sealed months.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::archive::Archive;
use crate::column::{Cells, MERCHANT, Table, Value};
use crate::error::ArchiveError;
use crate::file_reader::{FileReader, KnownValues, RowGroup};
use crate::manifest::{ArchivedFile, Manifest, amount_columns};
use crate::selection::Selection;

impl Archive {
    fn open(&self, file: &ArchivedFile) -> Result<FileReader, ArchiveError> {
        let path: Arc<str> = Arc::from(&*file.path);
        let read = |range| self.0.location.get_range(&file.path, range);
        let metadata = self.0.metadata.get(&path, file.bytes, read)?;
        Ok(FileReader::new(path, file.bytes, metadata))
    }

    fn group<'a>(
        &self,
        file: &FileReader,
        number: usize,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<RowGroup, ArchiveError> {
        file.group(number, names, |ranges| self.0.location.get_ranges(file.path(), ranges))
    }

    /// The keys and amounts of a file, in its order.
    pub(crate) fn all_cells<'a, T: Table>(
        &'a self,
        file: &ArchivedFile,
    ) -> Result<impl Iterator<Item = Result<Cells, ArchiveError>> + 'a, ArchiveError> {
        let file = self.open(file)?;
        Ok((0..file.groups()).flat_map(move |number| {
            let names = || [MERCHANT, T::ID].into_iter().chain(amount_columns::<T>());
            let cells = self.group(&file, number, names()).and_then(|group| {
                let rows = file.all_rows(&group)?;
                file.cells(&group, names(), KnownValues::new(), &rows)
            });
            let (cells, failure) = match cells {
                Ok(cells) => (cells, None),
                Err(cause) => (Vec::new(), Some(Err(cause))),
            };
            cells.into_iter().map(Ok).chain(failure)
        }))
    }

    /// The rows of a selection, the greatest id first.
    pub fn descending<'a, T: Table>(
        &'a self,
        manifest: Arc<Manifest>,
        selection: &'a Selection<'a>,
    ) -> Descending<'a, T> {
        let files: Vec<usize> = manifest
            .files
            .iter()
            .enumerate()
            .filter(|(_, file)| file.table == T::NAME && file.may_have(selection))
            .map(|(place, _)| place)
            .collect();
        let (open, table) = (None, PhantomData);
        Descending { archive: self, manifest, selection, files, open, table }
    }

    /// The rows of a month, by merchant and id: those of one merchant, or all.
    pub fn ascending<T: Table>(
        &self,
        manifest: Arc<Manifest>,
        merchant: Option<String>,
    ) -> Ascending<'_, T> {
        let selection = merchant.map(Selection::of);
        let files = manifest.files.iter().enumerate();
        let files = files.filter(|(_, file)| file.table == T::NAME);
        let files =
            files.filter(|(_, file)| selection.as_ref().is_none_or(|rows| file.may_have(rows)));
        let files = files.map(|(place, _)| place).collect();
        Ascending { archive: self, manifest, selection, files, open: None, rows: VecDeque::new() }
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
        let selection = Selection {
            from: Some(id.to_owned()),
            // No text lies between an id and the same with a NUL.
            below: Some(format!("{id}\0")),
            ..Selection::of(merchant.to_owned())
        };
        let mut walk = self.descending::<T>(manifest, &selection);
        while let Some(mut part) = walk.next_part(1)? {
            if let Some(row) = part.rows.pop() {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// A walk through the rows of a selection, the greatest id first. Each group of rows is read when it is needed.
pub struct Descending<'a, T> {
    archive: &'a Archive,
    manifest: Arc<Manifest>,
    selection: &'a Selection<'a>,
    /// The places of the files to come. The last one is next.
    files: Vec<usize>,
    /// The current file, the number of its groups to come, and the current group.
    open: Option<(FileReader, usize, Option<OpenGroup>)>,
    table: PhantomData<T>,
}

/// A group of rows of which some are still to come.
struct OpenGroup {
    group: RowGroup,
    /// The rows of the merchant within the bounds.
    rows: Vec<usize>,
    /// The rows that meet the conditions, too.
    selected: Vec<usize>,
    /// The values of the columns of the conditions in these rows.
    tested: KnownValues,
}

/// The next rows of a walk.
#[derive(Debug)]
pub struct Part<T> {
    /// The rows that meet the conditions, the greatest id first.
    pub rows: Vec<T>,
    /// The number of rows that were looked at: those of the merchant within the bounds, in the groups that were read.
    pub passed: usize,
    /// The least id that was looked at. `None` for a table that does not read its ids.
    pub last: Option<String>,
}

impl<T: Table> Descending<'_, T> {
    /// The next rows: at most `most` of them, which is at least 1. They are of one group, so there may be none although more
    /// follow. `None` at the end.
    ///
    /// # Errors
    /// The errors of reading.
    pub fn next_part(&mut self, most: usize) -> Result<Option<Part<T>>, ArchiveError> {
        loop {
            let Some((file, rest, open)) = &mut self.open else {
                let Some(file) = self.files.pop().and_then(|place| self.manifest.files.get(place))
                else {
                    return Ok(None);
                };
                let file = self.archive.open(file)?;
                let groups = file.groups();
                self.open = Some((file, groups, None));
                continue;
            };
            if let Some(group) = open {
                let part = group.next_part(file, most, &self.selection.unread)?;
                if group.rows.is_empty() {
                    *open = None;
                }
                return Ok(Some(part));
            }
            let Some(number) = rest.checked_sub(1) else {
                self.open = None;
                continue;
            };
            *rest = number;
            if may_have::<T>(file, number, self.selection)? {
                let group = self.archive.group(file, number, self.selection.columns::<T>())?;
                let group = OpenGroup::new::<T>(file, group, self.selection)?;
                *open = Some(group).filter(|group| !group.rows.is_empty());
            }
        }
    }
}

impl OpenGroup {
    fn new<T: Table>(
        file: &FileReader,
        group: RowGroup,
        selection: &Selection<'_>,
    ) -> Result<Self, ArchiveError> {
        let mut rows = rows_of(file, &group, &selection.merchant)?;
        let ids = file.texts(group.number, T::ID)?;
        if !ids.is_some_and(|ids| selection.has_id(ids.start()) && selection.has_id(ids.end())) {
            let ids = keys(file, &group, T::ID, &rows)?;
            keep(&mut rows, ids.iter().map(|id| selection.has_id(id)));
        }
        let (mut selected, mut tested) = (rows.clone(), KnownValues::new());
        for condition in &selection.conditions {
            let values = file.values(&group, condition.column, &selected)?;
            let are_met: Vec<bool> = values.iter().map(|value| condition.is_met(value)).collect();
            tested.push((condition.column, values));
            keep(&mut selected, are_met.iter().copied());
            tested.iter_mut().for_each(|(_, values)| keep(values, are_met.iter().copied()));
        }
        Ok(Self { group, rows, selected, tested })
    }

    fn next_part<T: Table>(
        &mut self,
        file: &FileReader,
        most: usize,
        unread: &[&'static str],
    ) -> Result<Part<T>, ArchiveError> {
        let rest = self.selected.len().saturating_sub(most.max(1));
        let read = self.selected.split_off(rest);
        let tested = self.tested.iter_mut().map(|(name, values)| (*name, values.split_off(rest)));
        let absent = unread.iter().map(|name| (*name, vec![Value::Absent; read.len()]));
        let known = tested.chain(absent).collect();
        // The walk stands at the last row that is read, or at the end of the group if no further one is selected.
        let stands_at = read.first().filter(|_| !self.selected.is_empty());
        let passed = match stands_at {
            Some(first) => self.rows.split_off(self.rows.partition_point(|row| row < first)),
            None => std::mem::take(&mut self.rows),
        };
        let first = passed.get(..1).filter(|_| T::READ.contains(&T::ID)).unwrap_or_default();
        let last = keys(file, &self.group, T::ID, first)?.pop();
        let cells = file.cells(&self.group, T::READ.iter().copied(), known, &read)?;
        let rows = cells.into_iter().rev().map(|mut cells| T::read(&mut cells));
        Ok(Part { rows: rows.collect::<Result<_, _>>()?, passed: passed.len(), last })
    }
}

/// Whether a group may have rows of a selection.
fn may_have<T: Table>(
    file: &FileReader,
    group: usize,
    selection: &Selection<'_>,
) -> Result<bool, ArchiveError> {
    let (merchants, ids) = (file.texts(group, MERCHANT)?, file.texts(group, T::ID)?);
    if merchants.is_some_and(|merchants| !merchants.contains(&selection.merchant))
        || ids.is_some_and(|ids| !selection.may_be_between(Some(ids.start()), Some(ids.end())))
    {
        return Ok(false);
    }
    for condition in &selection.conditions {
        let Some(wanted) = condition.numbers() else { continue };
        let numbers = file.numbers(group, condition.column)?;
        if numbers.is_some_and(|numbers| !wanted.overlap(&numbers)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The rows of a group that are of a merchant.
fn rows_of(
    file: &FileReader,
    group: &RowGroup,
    merchant: &str,
) -> Result<Vec<usize>, ArchiveError> {
    let mut rows = file.all_rows(group)?;
    let merchants = file.texts(group.number, MERCHANT)?;
    if merchants.is_some_and(|range| range.start() == merchant && range.end() == merchant) {
        return Ok(rows);
    }
    let merchants = keys(file, group, MERCHANT, &rows)?;
    keep(&mut rows, merchants.iter().map(|one| one == merchant));
    Ok(rows)
}

/// The texts of a column of keys in some rows of a group. Every row has one.
fn keys(
    file: &FileReader,
    group: &RowGroup,
    name: &str,
    rows: &[usize],
) -> Result<Vec<String>, ArchiveError> {
    let values = file.values(group, name, rows)?.into_iter();
    let texts = values.map(|value| match value {
        Value::Text(text) => Ok(text),
        _ => Err(ArchiveError::damaged(file.path(), format!("a row has no {name}"))),
    });
    texts.collect()
}

/// Keeps some of the items.
fn keep<T>(items: &mut Vec<T>, mut are_kept: impl Iterator<Item = bool>) {
    items.retain(|_| are_kept.next().unwrap_or_default());
}

/// A walk through the rows of a month.
pub struct Ascending<'a, T> {
    archive: &'a Archive,
    manifest: Arc<Manifest>,
    /// The rows of one merchant. `None` for all.
    selection: Option<Selection<'static>>,
    files: VecDeque<usize>,
    /// The current file, and the number of its next group.
    open: Option<(FileReader, usize)>,
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
            let Some((file, next)) = &mut self.open else {
                let place = self.files.pop_front();
                let Some(file) = place.and_then(|place| self.manifest.files.get(place)) else {
                    return Ok(None);
                };
                self.open = Some((self.archive.open(file)?, 0));
                continue;
            };
            if *next >= file.groups() {
                self.open = None;
                continue;
            }
            let number = *next;
            *next += 1;
            let columns = || T::READ.iter().copied().chain([MERCHANT]);
            let group = match &self.selection {
                Some(selection) if !may_have::<T>(file, number, selection)? => continue,
                _ => self.archive.group(file, number, columns())?,
            };
            let rows = match &self.selection {
                Some(selection) => rows_of(file, &group, &selection.merchant)?,
                None => file.all_rows(&group)?,
            };
            for mut cells in
                file.cells(&group, T::READ.iter().copied(), KnownValues::new(), &rows)?
            {
                self.rows.push_back(T::read(&mut cells)?);
            }
        }
    }
}
