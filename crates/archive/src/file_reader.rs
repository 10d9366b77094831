//! Parquet files that are read: columns of some rows of a group.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::metadata::page_index::RowGroupPageIndex;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::properties::ReaderProperties;
use parquet::file::reader::{ChunkReader, Length, RowGroupReader as _};
use parquet::file::serialized_reader::SerializedRowGroupReader;
use parquet::file::statistics::Statistics;
use tollgate_pricing::Amount;

use crate::column::{Cells, Value};
use crate::error::ArchiveError;

/// Parts of a file that were read.
struct FileParts {
    /// Each with its start, ascending.
    parts: Vec<(u64, Bytes)>,
    length: u64,
}

impl Length for FileParts {
    fn len(&self) -> u64 {
        self.length
    }
}

impl FileParts {
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let found = self.parts.iter().rfind(|(first, _)| *first <= start);
        let rest = found.and_then(|(first, content)| {
            let skipped = usize::try_from(start.checked_sub(*first)?).ok()?;
            (skipped <= content.len()).then(|| content.slice(skipped..))
        });
        rest.ok_or_else(|| ParquetError::EOF("a column lies outside of what was read".to_owned()))
    }
}

impl ChunkReader for FileParts {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        self.from(start).map(bytes::Buf::reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let rest = self.from(start)?;
        match length <= rest.remaining() {
            true => Ok(rest.slice(..length)),
            false => Err(ParquetError::EOF("a column is longer than its group".to_owned())),
        }
    }
}

/// The footers of files that were read lately. They are small, and are needed for each group.
#[derive(Debug, Default)]
pub(crate) struct MetadataCache(Mutex<Vec<(Arc<str>, Arc<ParquetMetaData>)>>);

/// The number of footers that are kept.
const FOOTERS: usize = 32;

impl MetadataCache {
    /// The footer of a file. `read` reads a range of it.
    pub(crate) fn get(
        &self,
        path: &Arc<str>,
        length: u64,
        read: impl Fn(Range<u64>) -> Result<Bytes, ArchiveError>,
    ) -> Result<Arc<ParquetMetaData>, ArchiveError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = kept.iter().position(|(one, _)| one == path) {
            let found = kept.remove(place);
            let metadata = Arc::clone(&found.1);
            kept.push(found);
            return Ok(metadata);
        }
        drop(kept);
        let metadata = Arc::new(read_metadata(path, length, read)?);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= FOOTERS {
            kept.remove(0);
        }
        kept.push((Arc::clone(path), Arc::clone(&metadata)));
        Ok(metadata)
    }

    /// Forgets a file, because it is written again.
    pub(crate) fn forget(&self, path: &str) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(one, _)| **one != *path);
    }
}

fn read_metadata(
    path: &str,
    length: u64,
    read: impl Fn(Range<u64>) -> Result<Bytes, ArchiveError>,
) -> Result<ParquetMetaData, ArchiveError> {
    let damaged = |cause: ParquetError| ArchiveError::damaged(path, cause);
    // Most footers are smaller.
    let mut tail = length.min(256 << 10);
    loop {
        let start = length.saturating_sub(tail);
        let parts = FileParts { parts: vec![(start, read(start..length)?)], length };
        let mut reader = ParquetMetaDataReader::new();
        match reader.try_parse(&parts) {
            Ok(()) => return reader.finish().map_err(damaged),
            Err(_) if tail < length => tail = length,
            Err(cause) => return Err(damaged(cause)),
        }
    }
}

/// A Parquet file that is read.
pub(crate) struct FileReader {
    path: Arc<str>,
    length: u64,
    metadata: Arc<ParquetMetaData>,
}

/// The values of columns in some rows of a group.
pub(crate) type KnownValues = Vec<(&'static str, Vec<Value>)>;

/// The bytes of some columns of a group of rows.
pub(crate) struct RowGroup {
    pub(crate) number: usize,
    columns: Arc<FileParts>,
}

impl FileReader {
    pub(crate) const fn new(path: Arc<str>, length: u64, metadata: Arc<ParquetMetaData>) -> Self {
        Self { path, length, metadata }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The number of groups.
    pub(crate) fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn damaged(&self, cause: impl fmt::Display) -> ArchiveError {
        ArchiveError::damaged(&*self.path, cause)
    }

    fn metadata(&self, group: usize) -> Result<&RowGroupMetaData, ArchiveError> {
        let found = self.metadata.row_groups().get(group);
        found.ok_or_else(|| self.damaged("a group is missing"))
    }

    /// The place of a column in the file.
    fn place(&self, name: &str) -> Result<usize, ArchiveError> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let place = columns.iter().position(|column| column.name() == name);
        place.ok_or_else(|| self.damaged(format!("it has no column {name}")))
    }

    /// The least and the greatest text of a column in a group. `None` if the file does not have them.
    pub(crate) fn texts(
        &self,
        group: usize,
        name: &str,
    ) -> Result<Option<RangeInclusive<String>>, ArchiveError> {
        let text = |bytes: &ByteArray| String::from_utf8_lossy(bytes.data()).into_owned();
        Ok(match self.statistics(group, name)? {
            Some(Statistics::ByteArray(found)) => {
                let (least, greatest) = (found.min_opt(), found.max_opt());
                least.zip(greatest).map(|(least, greatest)| text(least)..=text(greatest))
            }
            _ => None,
        })
    }

    /// The least and the greatest number of a column in a group. `None` if the file does not have them.
    pub(crate) fn numbers(
        &self,
        group: usize,
        name: &str,
    ) -> Result<Option<RangeInclusive<i64>>, ArchiveError> {
        Ok(match self.statistics(group, name)? {
            Some(Statistics::Int64(found)) => {
                let (least, greatest) = (found.min_opt(), found.max_opt());
                least.zip(greatest).map(|(least, greatest)| *least..=*greatest)
            }
            _ => None,
        })
    }

    fn statistics(&self, group: usize, name: &str) -> Result<Option<&Statistics>, ArchiveError> {
        let column = self.metadata(group)?.columns().get(self.place(name)?);
        Ok(column.and_then(|column| column.statistics()))
    }

    /// Reads the bytes of some columns of a group. `read` reads ranges of the file.
    pub(crate) fn group<'a>(
        &self,
        number: usize,
        names: impl IntoIterator<Item = &'a str>,
        read: impl FnOnce(&[Range<u64>]) -> Result<Vec<Bytes>, ArchiveError>,
    ) -> Result<RowGroup, ArchiveError> {
        let columns = self.metadata(number)?.columns();
        let mut ranges = Vec::new();
        for name in names {
            let column = columns.get(self.place(name)?);
            let column = column.ok_or_else(|| self.damaged("a column is missing"))?;
            let (start, length) = column.byte_range();
            let end = start.saturating_add(length);
            if end > self.length {
                return Err(self.damaged(format!("the column {name} lies outside of the file")));
            }
            ranges.push(start..end);
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup();
        let starts = ranges.iter().map(|range| range.start);
        let parts = starts.zip(read(&ranges)?).collect();
        let columns = Arc::new(FileParts { parts, length: self.length });
        Ok(RowGroup { number, columns })
    }

    /// The places of all rows of a group.
    pub(crate) fn all_rows(&self, group: &RowGroup) -> Result<Vec<usize>, ArchiveError> {
        let rows = usize::try_from(self.metadata(group.number)?.num_rows());
        Ok((0..rows.map_err(|cause| self.damaged(cause))?).collect())
    }

    /// The values of a column in some rows of a group. The places of the rows ascend.
    pub(crate) fn values(
        &self,
        group: &RowGroup,
        name: &str,
        rows: &[usize],
    ) -> Result<Vec<Value>, ArchiveError> {
        // To open a column takes as long as to read hundreds of values.
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let damaged = |cause: ParquetError| self.damaged(cause);
        let properties = Arc::new(ReaderProperties::builder().build());
        let page_index = RowGroupPageIndex::new(group.number, None);
        let metadata = self.metadata(group.number)?;
        let columns = Arc::clone(&group.columns);
        let reader = SerializedRowGroupReader::new(columns, metadata, page_index, properties);
        let reader = reader.map_err(damaged)?;
        let mut column = reader.get_column_reader(self.place(name)?).map_err(damaged)?;
        read_column(&mut column, rows).map_err(damaged)
    }

    /// The values of several columns in some rows of a group. The places of the rows ascend. Columns of `known` are not read.
    pub(crate) fn cells(
        &self,
        group: &RowGroup,
        names: impl IntoIterator<Item = &'static str>,
        mut known: KnownValues,
        rows: &[usize],
    ) -> Result<Vec<Cells>, ArchiveError> {
        let mut places = HashMap::new();
        let mut found: Vec<Vec<Value>> = rows.iter().map(|_| Vec::new()).collect();
        for name in names {
            if places.contains_key(name) {
                continue;
            }
            places.insert(name, places.len());
            let known = known.iter_mut().find(|(one, _)| *one == name);
            let values = match known {
                Some((_, values)) => std::mem::take(values),
                None => self.values(group, name, rows)?,
            };
            found.iter_mut().zip(values).for_each(|(row, value)| row.push(value));
        }
        let places = Arc::new(places);
        let cells =
            |values| Cells { path: Arc::clone(&self.path), places: Arc::clone(&places), values };
        Ok(found.into_iter().map(cells).collect())
    }
}

/// Reads the values of a column of a group in some rows, whose places ascend.
fn read_column(column: &mut ColumnReader, rows: &[usize]) -> Result<Vec<Value>, ParquetError> {
    let mut levels = Vec::with_capacity(rows.len());
    let short = || ParquetError::EOF("a group lacks rows".to_owned());
    macro_rules! read {
        ($reader:expr, $value:expr) => {{
            let mut values = Vec::new();
            let mut next = 0;
            for run in rows.chunk_by(|row, following| row.checked_add(1) == Some(*following)) {
                let first = run.first().copied().unwrap_or_default();
                let skipped = first.saturating_sub(next);
                if $reader.skip_records(skipped)? != skipped {
                    return Err(short());
                }
                let mut rest = run.len();
                while rest > 0 {
                    let levels = Some(&mut levels);
                    match $reader.read_records(rest, levels, None, &mut values)? {
                        (0, ..) => return Err(short()),
                        (read, ..) => rest = rest.saturating_sub(read),
                    }
                }
                next = first.saturating_add(run.len());
            }
            values.into_iter().map($value).collect::<Result<Vec<_>, ParquetError>>()?
        }};
    }
    let unknown = || ParquetError::General("a column has another type".to_owned());
    let values: Vec<Value> = match column {
        ColumnReader::ByteArrayColumnReader(reader) => read!(reader, |text: ByteArray| {
            text.as_utf8().map(|text| Value::Text(text.to_owned()))
        }),
        ColumnReader::Int64ColumnReader(reader) => {
            read!(reader, |number| Ok(Value::Integer(number)))
        }
        ColumnReader::BoolColumnReader(reader) => read!(reader, |value| Ok(Value::Boolean(value))),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            read!(reader, |bytes: FixedLenByteArray| {
                let bytes: [u8; 16] = bytes.data().try_into().map_err(|_| unknown())?;
                let units = i64::try_from(i128::from_be_bytes(bytes)).map_err(|_| unknown())?;
                Ok(Value::Amount(Amount::from_units(units)))
            })
        }
        _ => return Err(unknown()),
    };
    let mut values = values.into_iter();
    let each = levels.into_iter().map(|level| match level {
        0 => Some(Value::Absent),
        _ => values.next(),
    });
    each.collect::<Option<Vec<_>>>().ok_or_else(unknown)
}
