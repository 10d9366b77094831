//! Parquet files that are written: rows to columns, by row groups.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};

use crate::column::{Column, ColumnType, MERCHANT, Table, Value};
use crate::error::ArchiveError;

/// The number of rows in a group. The bytes of its wanted columns are read at once.
const GROUP: usize = 8_192;
/// The most rows in a page of a column. Pages without a wanted row are passed over.
const PAGE_ROWS: usize = 1_024;
/// The bytes of values after which a page ends. A page is decompressed as a whole.
const PAGE_BYTES: usize = 64 << 10;
/// The number of rows after which the size of a page is looked at.
const BATCH: usize = 128;
/// The most bytes of a column's dictionary in a group. It is read before the first value, so long texts that seldom repeat
/// stand in the pages instead.
const DICTIONARY: usize = 64 << 10;
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
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_data_page_size_limit(PAGE_BYTES)
            .set_write_batch_size(BATCH)
            .set_dictionary_page_size_limit(DICTIONARY)
            .set_offset_index_disabled(true)
            // Statistics of all columns would be as large as the rows of small groups.
            .set_statistics_enabled(EnabledStatistics::None);
        for name in [MERCHANT, T::ID, "created_at", "connection_id", "spend_key_id", "model"] {
            properties = properties
                .set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
        }
        // Most sums and lists test a time first. It is as small without compression, and faster to read.
        let is_time = |column: &&Column<T::Row>| column.kind == ColumnType::Time;
        for column in T::COLUMNS.iter().filter(is_time) {
            properties = properties
                .set_column_encoding(ColumnPath::from(column.name), Encoding::DELTA_BINARY_PACKED)
                .set_column_dictionary_enabled(ColumnPath::from(column.name), false)
                .set_column_compression(ColumnPath::from(column.name), Compression::UNCOMPRESSED);
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
