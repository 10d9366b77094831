//! The place of an archive: a folder or a bucket, by object_store.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig, WriteMultipart,
};
use tokio::runtime::Runtime;
use url::Url;

use crate::error::ArchiveError;

/// The longest time for one read, with its retries. A list then answers within 5 seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(4);
/// The longest time for a request of a client, which may upload a part.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of the parts of an upload. S3 accepts no smaller ones.
const PART: usize = 8 << 20;
/// The number of parts in flight at once.
const PARTS_AT_ONCE: usize = 4;

/// The time for which reads fail at once after one that failed. Those that wait then do not take their time as well.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The place of an archive. It is opened when it is needed.
pub struct Location {
    place: Place,
    name: String,
    opened: OnceLock<OpenLocation>,
    /// The time of the last read that failed.
    failed_at: Mutex<Option<Instant>>,
}

/// A parsed URL.
enum Place {
    Folder(PathBuf),
    /// The bucket, the prefix in it, and the URL of a server other than Amazon's.
    Bucket(String, Path, Option<String>),
}

struct OpenLocation {
    store: Arc<dyn ObjectStore>,
    /// Its own, because callers are threads without one. `None` while it is dropped.
    runtime: Option<Runtime>,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Location").field(&self.name).finish()
    }
}

impl Drop for OpenLocation {
    fn drop(&mut self) {
        // It may be dropped in an asynchronous task, which must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Location {
    /// The location of a URL: `file:///FOLDER` or `s3://BUCKET/PREFIX`. Nothing is opened or created.
    ///
    /// S3 has the usual variables of the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// `AWS_REGION`, … `endpoint` is the URL of another server that speaks S3. It may begin with `http`.
    ///
    /// # Errors
    /// [`ArchiveError::Location`] for another URL.
    pub fn new(url: &str, endpoint: Option<&str>) -> Result<Self, ArchiveError> {
        let wrong = |why: &str| ArchiveError::Location(why.to_owned());
        let parsed = Url::parse(url).map_err(|cause| wrong(&cause.to_string()))?;
        let has_more = parsed.query().is_some()
            || parsed.fragment().is_some()
            || !parsed.username().is_empty()
            || parsed.password().is_some();
        if has_more {
            return Err(wrong("it must have no user, no password and no parameters"));
        }
        let place = match parsed.scheme() {
            "file" if url.starts_with("file:///") && parsed.path() != "/" => {
                let folder = parsed.to_file_path();
                Place::Folder(folder.map_err(|()| wrong("it must be file:///FOLDER"))?)
            }
            "s3" => {
                let bucket = parsed.host_str().filter(|bucket| !bucket.is_empty());
                let bucket = bucket.ok_or_else(|| wrong("it names no bucket"))?;
                let prefix = Path::from_url_path(parsed.path());
                let prefix = prefix.map_err(|cause| wrong(&cause.to_string()))?;
                Place::Bucket(bucket.to_owned(), prefix, endpoint.map(str::to_owned))
            }
            _ => return Err(wrong("it must be file:///FOLDER or s3://BUCKET/PREFIX")),
        };
        let (opened, failed_at) = Default::default();
        Ok(Self { place, name: url.to_owned(), opened, failed_at })
    }

    /// Creates the folder, for the first month. Records are for the user of the process alone, as in the database.
    pub(crate) fn create(&self) -> Result<(), ArchiveError> {
        let Place::Folder(folder) = &self.place else { return Ok(()) };
        if folder.exists() && !folder.is_dir() {
            return Err(self.unreachable(&"it is not a folder"));
        }
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|cause| self.unreachable(&cause))
    }

    fn unreachable(&self, cause: &dyn fmt::Display) -> ArchiveError {
        ArchiveError::Unreachable(format!("{}: {cause}", self.name))
    }

    fn opened(&self) -> Result<&OpenLocation, ArchiveError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let store: Arc<dyn ObjectStore> = match &self.place {
            Place::Folder(folder) => {
                let folder = LocalFileSystem::new_with_prefix(folder);
                Arc::new(folder.map_err(|cause| self.unreachable(&cause))?.with_fsync(true))
            }
            Place::Bucket(bucket, prefix, endpoint) => {
                let store = s3(bucket, prefix.clone(), endpoint.as_deref());
                store.map_err(|cause| self.unreachable(&cause))?
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("archive")
            .enable_all()
            .build()?;
        Ok(self.opened.get_or_init(|| OpenLocation { store, runtime: Some(runtime) }))
    }

    /// The store. A folder that is gone, such as one that is not mounted, is not made again.
    fn store(&self) -> Result<&Arc<dyn ObjectStore>, ArchiveError> {
        if let Place::Folder(folder) = &self.place
            && !folder.is_dir()
        {
            return Err(self.unreachable(&"there is no such folder"));
        }
        self.opened().map(|opened| &opened.store)
    }

    /// As [`Self::run`], for a read. After one that failed, reads fail at once for a moment.
    fn read<T>(
        &self,
        path: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ArchiveError> {
        let failed_at = || self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if failed_at().is_some_and(|at| at.elapsed() < PAUSE_AFTER_FAILURE) {
            return Err(self.unreachable(&"the last read failed"));
        }
        let read = self.run(path, request, READ_TIMEOUT);
        let failed = matches!(read, Err(ArchiveError::Unreachable(_)));
        *failed_at() = failed.then(Instant::now);
        read
    }

    /// Runs a request to its end.
    fn run<T>(
        &self,
        path: &str,
        request: impl Future<Output = object_store::Result<T>>,
        timeout: Duration,
    ) -> Result<T, ArchiveError> {
        let runtime = self.opened()?.runtime.as_ref();
        let runtime = runtime.ok_or_else(|| self.unreachable(&"this process ends"))?;
        let done = runtime.block_on(async { tokio::time::timeout(timeout, request).await });
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(object_store::Error::NotFound { .. })) => {
                Err(ArchiveError::Missing(path.to_owned()))
            }
            Ok(Err(cause)) => Err(self.unreachable(&cause)),
            Err(_) => Err(self.unreachable(&format!("{path} takes too long"))),
        }
    }

    /// The whole content of a small file.
    pub(crate) fn get(&self, path: &str) -> Result<Bytes, ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        self.read(path, async { store.get(&at).await?.bytes().await })
    }

    /// A part of a file.
    pub(crate) fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes, ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        self.read(path, async { store.get_range(&at, range).await })
    }

    /// Parts of a file. S3 is asked once for those that are close together.
    pub(crate) fn get_ranges(
        &self,
        path: &str,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        self.read(path, async { store.get_ranges(&at, ranges).await })
    }

    /// Writes a small file at once, and replaces one that is there.
    pub(crate) fn put(&self, path: &str, content: Bytes) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        let put = async { store.put(&at, PutPayload::from_bytes(content)).await };
        self.run(path, put, REQUEST_TIMEOUT).map(drop)
    }

    /// Uploads a file of this machine. It appears as a whole.
    pub(crate) fn upload(&self, path: &str, mut file: impl Read) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        let upload = self.run(path, store.put_multipart(&at), REQUEST_TIMEOUT)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART);
        let mut part = vec![0; PART];
        loop {
            let length = file.read(&mut part)?;
            let Some(content) = part.get(..length).filter(|part| !part.is_empty()) else { break };
            let written = async {
                upload.wait_for_capacity(PARTS_AT_ONCE).await?;
                upload.write(content);
                Ok(())
            };
            if let Err(cause) = self.run(path, written, REQUEST_TIMEOUT) {
                // What was uploaded is not a file yet.
                drop(self.run(path, upload.abort(), READ_TIMEOUT));
                return Err(cause);
            }
        }
        self.run(path, upload.finish(), REQUEST_TIMEOUT * 10).map(drop)
    }

    /// The paths and lengths of all files in a folder.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, ArchiveError> {
        let (at, store) = (Path::from(folder), self.store()?);
        let list = store.list(Some(&at));
        let list = list.map_ok(|found| (found.location.to_string(), found.size)).try_collect();
        self.run(folder, list, REQUEST_TIMEOUT)
    }

    /// Deletes what uploads have left that were killed. On S3, a lifecycle rule of the bucket does so.
    pub(crate) fn delete_partial(&self, folder: &str) -> Result<(), ArchiveError> {
        let Place::Folder(root) = &self.place else { return Ok(()) };
        let failed = |cause| self.unreachable(&format!("{folder}: {cause}"));
        let files = match std::fs::read_dir(root.join(folder)) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
            files => files.map_err(failed)?,
        };
        for file in files {
            let file = file.map_err(failed)?;
            let name = file.file_name();
            // object_store writes to the name with `#1`, or a higher number, and then renames the file.
            let number = name.to_str().and_then(|name| name.rsplit_once('#'));
            if number.is_some_and(|(_, number)| number.parse::<u32>().is_ok()) {
                match std::fs::remove_file(file.path()) {
                    Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(failed(cause)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Deletes a file.
    pub(crate) fn delete(&self, path: &str) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), self.store()?);
        self.run(path, async { store.delete(&at).await }, REQUEST_TIMEOUT)
    }
}

/// The prefix of a bucket.
fn s3(
    bucket: &str,
    prefix: Path,
    endpoint: Option<&str>,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The client of S3 uses the default of the process. It may have been installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = ClientOptions::new()
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(Duration::from_secs(2))
        .with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")));
    let retries = RetryConfig { max_retries: 3, retry_timeout: READ_TIMEOUT, ..Default::default() };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client)
        .with_retry(retries);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(Arc::new(PrefixStore::new(builder.build()?, prefix)))
}
