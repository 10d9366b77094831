//! Uploads: bodies that may be longer than memory. They wait in a temporary file until they were checked.

use std::any::Any;
use std::io::{self, SeekFrom};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader, Take};
use tollgate_domain::Issue;
use tollgate_provider::http::Method;
use tollgate_provider::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use tollgate_provider::{FileBody, RequestBody};
use tollgate_store::StoreError;
use tollgate_usage::{UploadForm, UploadReader};

use crate::error::{CallError, body_invalid};
use crate::request::RequestHead;

/// The longest line of a file that is read.
const MAX_LINE_BYTES: u64 = 8 * 1024 * 1024;
/// The advice for an upload that is no form.
pub(crate) const FORM_HINT: &str =
    "Send the file as multipart/form-data with one plainly written boundary.";
/// The memory of the reader of a file.
const READ_BYTES: usize = 64 * 1024;

/// An upload whose body arrives.
pub struct UploadSpool {
    file: File,
    length: u64,
    form: UploadReader,
}

impl UploadSpool {
    /// Whether a call uploads a file: its path, or that of the URL it names, ends with `/files`, and its body is a form.
    pub fn is_upload(head: &RequestHead<'_>) -> bool {
        const FORM: &[u8] = b"multipart/";
        let has_type = |kind: &HeaderValue| {
            let begins = kind.as_bytes().get(..FORM.len());
            begins.is_some_and(|begins| begins.eq_ignore_ascii_case(FORM))
        };
        let names_files = |path: &str| path.trim_end_matches('/').ends_with("/files");
        let url = head.parameter("u");
        let path = url.as_deref().map_or(head.path, |url| url.split('?').next().unwrap_or(url));
        let is_form = head.headers.get_all(CONTENT_TYPE).any(has_type);
        *head.method == Method::POST && is_form && names_files(path)
    }

    /// Begins to keep the body of an upload.
    ///
    /// # Errors
    /// [`CallError::ContentTypeUnsupported`] unless it is a form, and [`CallError::Store`] if there is no room for it.
    pub fn begin(head: &RequestHead<'_>) -> Result<Self, CallError> {
        let unsupported = |hint: &str| CallError::ContentTypeUnsupported(hint.to_owned());
        let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        if !head.headers.get_all(CONTENT_ENCODING).all(plain) {
            return Err(unsupported("Send the body as it is, without a Content-Encoding."));
        }
        let mut types = head.headers.get_all(CONTENT_TYPE);
        let content_type = types.next().and_then(|value| value.to_str().ok());
        let form = content_type.filter(|_| types.next().is_none()).and_then(UploadReader::new);
        let form = form.ok_or_else(|| unsupported(FORM_HINT))?;
        let file = tempfile::tempfile().map_err(no_room)?;
        Ok(Self { file: File::from_std(file), length: 0, form })
    }

    /// Keeps the next piece of the body.
    ///
    /// # Errors
    /// [`CallError::Store`] if there is no room for it.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), CallError> {
        self.form.feed(piece);
        self.length = self.length.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        self.file.write_all(piece).await.map_err(no_room)
    }

    /// The upload, after the last piece of its body. It keeps the reservation of its room.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] unless the body is a form, and [`CallError::Store`] if there is no room for it.
    pub async fn finish(mut self, room: Rc<dyn Any>) -> Result<Upload, CallError> {
        self.file.flush().await.map_err(no_room)?;
        let form = self.form.finish().map_err(|issue| body_invalid(vec![issue]))?;
        Ok(Upload { file: Arc::new(self.file.into_std().await), length: self.length, form, room })
    }
}

fn no_room(cause: io::Error) -> CallError {
    log::error!("an upload cannot be kept in the temporary folder: {cause}");
    CallError::Store(StoreError::Unavailable("the temporary folder has no room".to_owned()))
}

/// An upload whose body is there.
pub struct Upload {
    file: Arc<std::fs::File>,
    length: u64,
    /// Its form.
    pub(crate) form: UploadForm,
    /// The reservation of its room, given back when its last holder drops it.
    pub(crate) room: Rc<dyn Any>,
}

impl Upload {
    /// The whole body, as it came.
    pub(crate) async fn body(&self) -> Result<RequestBody, CallError> {
        let file = self.reader_at(0).await.map_err(unreadable)?;
        Ok(RequestBody::File(FileBody::new(file, self.length)))
    }

    /// The lines of the file in the form.
    pub(crate) async fn lines(&self) -> Result<UploadLines, CallError> {
        let Range { start, end } = self.form.file.clone().ok_or_else(|| {
            CallError::BodyInvalid(vec![Issue::at(["file"], "required: the file to upload")])
        })?;
        let file = self.reader_at(start).await.map_err(unreadable)?.take(end.saturating_sub(start));
        let reader = BufReader::with_capacity(READ_BYTES, file);
        Ok(UploadLines { reader, number: 0, line: Vec::new() })
    }

    /// The file from a position on. All readers share one position, so there is one at a time.
    async fn reader_at(&self, position: u64) -> io::Result<File> {
        let mut file = File::from_std(self.file.try_clone()?);
        file.seek(SeekFrom::Start(position)).await?;
        Ok(file)
    }
}

fn unreadable(cause: io::Error) -> CallError {
    log::error!("an upload cannot be read again: {cause}");
    CallError::Store(StoreError::Unavailable("the temporary folder cannot be read".to_owned()))
}

/// The lines of an uploaded file, one after the other.
pub(crate) struct UploadLines {
    reader: BufReader<Take<File>>,
    number: u64,
    line: Vec<u8>,
}

impl UploadLines {
    /// The next line that is not blank, with its number from 1 on.
    ///
    /// # Errors
    /// [`CallError::BodyInvalid`] for a line that is too long to be checked.
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, &[u8])>, CallError> {
        loop {
            self.line.clear();
            let mut bounded = (&mut self.reader).take(MAX_LINE_BYTES);
            let read = bounded.read_until(b'\n', &mut self.line).await.map_err(unreadable)?;
            if read == 0 {
                return Ok(None);
            }
            self.number = self.number.saturating_add(1);
            if bounded.limit() == 0 && !self.line.ends_with(b"\n") {
                let message = format!("is longer than {MAX_LINE_BYTES} bytes");
                let line = self.number.to_string();
                return Err(CallError::BodyInvalid(vec![Issue::at(["file", &line], message)]));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        Ok(Some((self.number, &self.line)))
    }
}
