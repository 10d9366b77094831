//! Parquet files: rows to columns and back, by row groups.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes};
use parquet::basic::{
    Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::page_index::RowGroupPageIndex;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, ReaderProperties, WriterProperties};
use parquet::file::reader::{ChunkReader, Length, RowGroupReader as _};
use parquet::file::serialized_reader::SerializedRowGroupReader;
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};
use tollgate_pricing::Amount;

use crate::column::{Cells, ColumnType, MERCHANT, Table, Value};
use crate::error::ArchiveError;

/// The number of rows in a group. A group is read at once.
pub(crate) const GROUP: usize = 8_192;
/// The bytes of an amount: 38 decimal digits need 16.
const AMOUNT_BYTES: i32 = 16;

/// The values of a column of a group.
struct ColumnBuffer {
    kind: ColumnType,
    /// 1 for each value that is there, else 0.
    levels: Vec<i16>,
    texts: Vec<ByteArray>,
    integers: Vec<i64>,
    booleans: Vec<bool>,
    amounts: Vec<FixedLenByteArray>,
}

impl ColumnBuffer {
    fn new(kind: ColumnType) -> Self {
        let (texts, integers, booleans, amounts) = Default::default();
        Self { kind, levels: Vec::new(), texts, integers, booleans, amounts }
    }

    /// Adds a value. One of another type counts as absent.
    fn push(&mut self, value: Value) {
        let is_there = match (self.kind, value) {
            (ColumnType::Text, Value::Text(text)) => {
                self.texts.push(text.into_bytes().into());
                true
            }
            (ColumnType::Integer | ColumnType::Time, Value::Integer(number)) => {
                self.integers.push(number);
                true
            }
            (ColumnType::Boolean, Value::Boolean(value)) => {
                self.booleans.push(value);
                true
            }
            (ColumnType::Amount, Value::Amount(amount)) => {
                let bytes = i128::from(amount.units()).to_be_bytes();
                self.amounts.push(ByteArray::from(bytes.to_vec()).into());
                true
            }
            (kind, value) => {
                debug_assert_eq!(value, Value::Absent, "a column of {kind:?}");
                false
            }
        };
        self.levels.push(i16::from(is_there));
    }

    fn clear(&mut self) {
        self.levels.clear();
        self.texts.clear();
        self.integers.clear();
        self.booleans.clear();
        self.amounts.clear();
    }
}

/// A Parquet file that is being written.
pub(crate) struct FileWriter {
    writer: SerializedFileWriter<File>,
    columns: Vec<ColumnBuffer>,
}

impl FileWriter {
    pub(crate) fn new<T: Table>(file: File) -> Result<Self, ArchiveError> {
        let fields = T::COLUMNS.iter().map(|column| field(column.name, column.kind).map(Arc::new));
        let fields = fields.collect::<Result<Vec<_>, _>>().map_err(io)?;
        let schema = Type::group_type_builder(T::NAME).with_fields(fields).build().map_err(io)?;
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("tollgate ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_offset_index_disabled(true)
            // Statistics of all columns would be as large as the rows of small groups.
            .set_statistics_enabled(EnabledStatistics::None);
        for name in [MERCHANT, T::ID, "created_at", "connection_id", "spend_key_id", "model"] {
            properties = properties
                .set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
        }
        let properties = Arc::new(properties.build());
        let writer = SerializedFileWriter::new(file, Arc::new(schema), properties).map_err(io)?;
        let columns = T::COLUMNS.iter().map(|column| ColumnBuffer::new(column.kind)).collect();
        Ok(Self { writer, columns })
    }

    pub(crate) fn push(&mut self, row: impl Iterator<Item = Value>) -> Result<(), ArchiveError> {
        self.columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        match self.rows_in_group() < GROUP {
            true => Ok(()),
            false => self.write_group(),
        }
    }

    fn rows_in_group(&self) -> usize {
        self.columns.first().map_or(0, |column| column.levels.len())
    }

    fn write_group(&mut self) -> Result<(), ArchiveError> {
        let mut group = self.writer.next_row_group().map_err(io)?;
        for buffer in &mut self.columns {
            let Some(mut column) = group.next_column().map_err(io)? else { break };
            let levels = Some(&*buffer.levels);
            let written = match buffer.kind {
                ColumnType::Text => {
                    column.typed::<ByteArrayType>().write_batch(&buffer.texts, levels, None)
                }
                ColumnType::Integer | ColumnType::Time => {
                    column.typed::<Int64Type>().write_batch(&buffer.integers, levels, None)
                }
                ColumnType::Boolean => {
                    column.typed::<BoolType>().write_batch(&buffer.booleans, levels, None)
                }
                ColumnType::Amount => column.typed::<FixedLenByteArrayType>().write_batch(
                    &buffer.amounts,
                    levels,
                    None,
                ),
            };
            written.map_err(io)?;
            column.close().map_err(io)?;
            buffer.clear();
        }
        group.close().map(drop).map_err(io)
    }

    /// Writes the rest, and returns the file.
    pub(crate) fn finish(mut self) -> Result<File, ArchiveError> {
        if self.rows_in_group() > 0 {
            self.write_group()?;
        }
        self.writer.into_inner().map_err(io)
    }
}

/// The error for a file that cannot be written.
fn io(cause: ParquetError) -> ArchiveError {
    ArchiveError::Io(std::io::Error::other(cause))
}

/// The type of a column.
fn field(name: &str, kind: ColumnType) -> Result<Type, ParquetError> {
    let (physical, logical) = match kind {
        ColumnType::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnType::Integer => (PhysicalType::INT64, None),
        ColumnType::Boolean => (PhysicalType::BOOLEAN, None),
        ColumnType::Time => {
            let time = LogicalType::timestamp(true, TimeUnit::MICROS);
            (PhysicalType::INT64, Some(time))
        }
        ColumnType::Amount => {
            (PhysicalType::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::decimal(10, 38)))
        }
    };
    let field = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    match kind {
        ColumnType::Amount => {
            field.with_length(AMOUNT_BYTES).with_precision(38).with_scale(10).build()
        }
        _ => field.build(),
    }
}

/// A part of a file that was read.
struct FilePart {
    start: u64,
    content: Bytes,
    length: u64,
}

impl Length for FilePart {
    fn len(&self) -> u64 {
        self.length
    }
}

impl FilePart {
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let skipped =
            start.checked_sub(self.start).and_then(|skipped| usize::try_from(skipped).ok());
        let skipped = skipped.filter(|skipped| *skipped <= self.content.len());
        let outside = || ParquetError::EOF("a column lies outside of its group".to_owned());
        Ok(self.content.slice(skipped.ok_or_else(outside)?..))
    }
}

impl ChunkReader for FilePart {
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
        let part = FilePart { start, content: read(start..length)?, length };
        let mut reader = ParquetMetaDataReader::new();
        match reader.try_parse(&part) {
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
    /// The columns that are read: their places in the file.
    columns: Vec<usize>,
    /// The places of the columns among those that are read.
    places: Arc<HashMap<&'static str, usize>>,
    keys: [usize; 2],
}

impl FileReader {
    pub(crate) fn new<T: Table>(
        path: Arc<str>,
        length: u64,
        metadata: Arc<ParquetMetaData>,
        names: impl IntoIterator<Item = &'static str>,
    ) -> Result<Self, ArchiveError> {
        let schema = metadata.file_metadata().schema_descr();
        let place = |name: &str| {
            let found = schema.columns().iter().position(|column| column.name() == name);
            found.ok_or_else(|| ArchiveError::damaged(&*path, format!("it has no column {name}")))
        };
        let (mut columns, mut places) = (Vec::new(), HashMap::new());
        for name in names {
            if let Entry::Vacant(unknown) = places.entry(name) {
                unknown.insert(columns.len());
                columns.push(place(name)?);
            }
        }
        let keys = [place(MERCHANT)?, place(T::ID)?];
        Ok(Self { path, length, metadata, columns, places: Arc::new(places), keys })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Whether a group may have rows of a merchant with an id below a bound.
    pub(crate) fn may_have(&self, group: usize, merchant: &str, below: Option<&str>) -> bool {
        let Some(group) = self.metadata.row_groups().get(group) else { return false };
        let range = |column: usize| match group.columns().get(column)?.statistics()? {
            Statistics::ByteArray(found) => {
                let text = |bytes: &ByteArray| String::from_utf8_lossy(bytes.data()).into_owned();
                Some((text(found.min_opt()?), text(found.max_opt()?)))
            }
            _ => None,
        };
        let [merchants, ids] = self.keys.map(range);
        let Some((first, last)) = merchants else { return true };
        if merchant < &*first || &*last < merchant {
            return false;
        }
        match (ids, below) {
            // The ids of a group of one merchant ascend.
            (Some((least, _)), Some(below)) if first == last => &*least < below,
            _ => true,
        }
    }

    /// Reads the rows of a group. `read` reads a range of the file.
    pub(crate) fn rows(
        &self,
        group: usize,
        read: impl FnOnce(Range<u64>) -> Result<Bytes, ArchiveError>,
    ) -> Result<Vec<Cells>, ArchiveError> {
        let damaged = |cause: ParquetError| ArchiveError::damaged(&*self.path, cause);
        let missing = || ArchiveError::damaged(&*self.path, "a group is missing");
        let metadata = self.metadata.row_groups().get(group).ok_or_else(missing)?;
        let rows = usize::try_from(metadata.num_rows()).map_err(|_| missing())?;
        let chunks = || metadata.columns().iter().map(|column| column.byte_range());
        let start = chunks().map(|(start, _)| start).min().unwrap_or_default();
        let end = chunks().map(|(start, length)| start.saturating_add(length)).max();
        let content = read(start..end.unwrap_or_default().min(self.length))?;
        let part = Arc::new(FilePart { start, content, length: self.length });
        let properties = Arc::new(ReaderProperties::builder().build());
        let page_index = RowGroupPageIndex::new(group, None);
        let reader = SerializedRowGroupReader::new(part, metadata, page_index, properties);
        let reader = reader.map_err(damaged)?;
        let mut found: Vec<Vec<Value>> =
            (0..rows).map(|_| Vec::with_capacity(self.columns.len())).collect();
        for column in &self.columns {
            let mut column = reader.get_column_reader(*column).map_err(damaged)?;
            let values = read_column(&mut column, rows).map_err(damaged)?;
            if values.len() != rows {
                return Err(missing());
            }
            found.iter_mut().zip(values).for_each(|(row, value)| row.push(value));
        }
        let cells = |values| Cells {
            path: Arc::clone(&self.path),
            places: Arc::clone(&self.places),
            values,
        };
        Ok(found.into_iter().map(cells).collect())
    }
}

/// Reads the values of a column of a group.
fn read_column(column: &mut ColumnReader, rows: usize) -> Result<Vec<Value>, ParquetError> {
    let mut levels = Vec::with_capacity(rows);
    macro_rules! read {
        ($reader:expr, $value:expr) => {{
            let mut values = Vec::new();
            while levels.len() < rows {
                let rest = rows - levels.len();
                let (read, ..) =
                    $reader.read_records(rest, Some(&mut levels), None, &mut values)?;
                if read == 0 {
                    break;
                }
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
