//! The body of a call to a provider: bytes in memory, or a file.

use bytes::Bytes;
use tokio::fs::File;
use tokio_util::io::ReaderStream;

/// The size of a piece. awc copies each piece into its write buffer; this keeps the buffer small.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// The body of a call.
pub enum RequestBody {
    /// Bytes in memory; empty for no body.
    Bytes(Bytes),
    /// A file, which is read while it is sent.
    File(FileBody),
}

impl RequestBody {
    /// The number of its bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Self::File(file) => file.length,
        }
    }
}

impl Default for RequestBody {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// A file that is the body of a call.
pub struct FileBody {
    length: u64,
    pub(super) pieces: ReaderStream<File>,
}

impl FileBody {
    /// The bytes of a file from its current position on, of which there are `length`.
    pub fn new(file: File, length: u64) -> Self {
        Self { length, pieces: ReaderStream::with_capacity(file, PIECE_BYTES) }
    }
}
