//! The place of an archive: a folder or a bucket, by object_store.

use std::fmt;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

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

/// The place of an archive.
pub struct Location {
    store: Arc<dyn ObjectStore>,
    /// Its own, because callers are threads without one. `None` while it is dropped.
    runtime: Option<Runtime>,
    name: String,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Location").field(&self.name).finish()
    }
}

impl Drop for Location {
    fn drop(&mut self) {
        // It may be dropped in an asynchronous task, which must not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Location {
    /// The location of a URL: `file:///FOLDER` or `s3://BUCKET/PREFIX`. A folder is created.
    ///
    /// S3 has the usual variables of the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// `AWS_REGION`, … `endpoint` is the URL of another server that speaks S3. It may begin with `http`.
    ///
    /// # Errors
    /// [`ArchiveError::Location`] for another URL.
    pub fn open(url: &str, endpoint: Option<&str>) -> Result<Self, ArchiveError> {
        let wrong = |why: &dyn fmt::Display| ArchiveError::Location(why.to_string());
        let parsed = Url::parse(url).map_err(|cause| wrong(&cause))?;
        let store: Arc<dyn ObjectStore> = match parsed.scheme() {
            "file" if url.starts_with("file:///") => {
                let folder = parsed.to_file_path();
                let folder = folder.map_err(|()| wrong(&"it must be file:///FOLDER"))?;
                // Records are for the user of the process alone, as in the database.
                let private =
                    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
                private.map_err(|cause| wrong(&cause))?;
                let folder = LocalFileSystem::new_with_prefix(&folder);
                Arc::new(folder.map_err(|cause| wrong(&cause))?.with_fsync(true))
            }
            "s3" => s3(&parsed, endpoint).map_err(|cause| wrong(&cause))?,
            _ => return Err(wrong(&"it must be file:///FOLDER or s3://BUCKET/PREFIX")),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("archive")
            .enable_all()
            .build()?;
        Ok(Self { store, runtime: Some(runtime), name: url.to_owned() })
    }

    /// Runs a request to its end. `None` while the location is dropped.
    fn run<T>(
        &self,
        path: &str,
        request: impl Future<Output = object_store::Result<T>>,
        timeout: Duration,
    ) -> Result<T, ArchiveError> {
        let gone = || ArchiveError::Unreachable("this process ends".to_owned());
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        let done = runtime.block_on(async { tokio::time::timeout(timeout, request).await });
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(object_store::Error::NotFound { .. })) => {
                Err(ArchiveError::Missing(path.to_owned()))
            }
            Ok(Err(cause)) => Err(ArchiveError::Unreachable(cause.to_string())),
            Err(_) => Err(ArchiveError::Unreachable(format!("{path} takes too long"))),
        }
    }

    /// The whole content of a small file.
    pub(crate) fn get(&self, path: &str) -> Result<Bytes, ArchiveError> {
        let (at, store) = (Path::from(path), &self.store);
        self.run(path, async { store.get(&at).await?.bytes().await }, READ_TIMEOUT)
    }

    /// A part of a file.
    pub(crate) fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes, ArchiveError> {
        let (at, store) = (Path::from(path), &self.store);
        self.run(path, async { store.get_range(&at, range).await }, READ_TIMEOUT)
    }

    /// Writes a small file at once, and replaces one that is there.
    pub(crate) fn put(&self, path: &str, content: Bytes) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), &self.store);
        let put = async { store.put(&at, PutPayload::from_bytes(content)).await };
        self.run(path, put, REQUEST_TIMEOUT).map(drop)
    }

    /// Uploads a file of this machine. It appears as a whole.
    pub(crate) fn upload(&self, path: &str, file: &FilePath) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), &self.store);
        let mut file = std::fs::File::open(file)?;
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

    /// The paths of all files in a folder.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<String>, ArchiveError> {
        let (at, store) = (Path::from(folder), &self.store);
        let list = store.list(Some(&at)).map_ok(|found| found.location.to_string()).try_collect();
        self.run(folder, list, REQUEST_TIMEOUT)
    }

    /// Deletes a file.
    pub(crate) fn delete(&self, path: &str) -> Result<(), ArchiveError> {
        let (at, store) = (Path::from(path), &self.store);
        self.run(path, async { store.delete(&at).await }, REQUEST_TIMEOUT)
    }
}

/// The prefix of a bucket.
fn s3(url: &Url, endpoint: Option<&str>) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The client of S3 uses the default of the process. It may have been installed already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = ClientOptions::new()
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(Duration::from_secs(2))
        .with_allow_http(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")));
    let retries = RetryConfig { max_retries: 3, retry_timeout: READ_TIMEOUT, ..Default::default() };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(url.host_str().unwrap_or_default())
        .with_client_options(client)
        .with_retry(retries);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let prefix = Path::from_url_path(url.path())?;
    Ok(Arc::new(PrefixStore::new(builder.build()?, prefix)))
}
