//! The archive: a location, and what was read from it lately.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::error::ArchiveError;
use crate::file_reader::MetadataCache;
use crate::location::Location;
use crate::manifest::{Manifest, SCHEMA_VERSION, hex_digest, manifest_path};

/// An archive. Clones share it.
#[derive(Clone, Debug)]
pub struct Archive(pub(crate) Arc<SharedArchive>);

#[derive(Debug)]
pub(crate) struct SharedArchive {
    pub(crate) location: Location,
    /// The manifests that were read, by their digests.
    manifests: Mutex<HashMap<String, Arc<Manifest>>>,
    /// The footers of files that were read lately.
    pub(crate) metadata: MetadataCache,
}

impl Archive {
    /// The archive at a location. Nothing is read before it is needed.
    pub fn new(location: Location) -> Self {
        let (manifests, metadata) = Default::default();
        Self(Arc::new(SharedArchive { location, manifests, metadata }))
    }

    /// The manifest of a month with this SHA-256.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it has another digest, and the errors of reading.
    pub fn manifest(&self, month: &str, sha256: &str) -> Result<Arc<Manifest>, ArchiveError> {
        let known = self.0.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = known.get(sha256) {
            return Ok(Arc::clone(manifest));
        }
        drop(known);
        let (manifest, found) = self.read_manifest(month)?;
        if found != sha256 {
            let why = format!("its SHA-256 is {found}, and not {sha256}");
            return Err(ArchiveError::damaged(manifest_path(month), why));
        }
        let manifest = Arc::new(manifest);
        let mut known = self.0.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(found, Arc::clone(&manifest));
        Ok(manifest)
    }

    /// The manifest that is there for a month, sealed or not. `None` without one.
    ///
    /// # Errors
    /// [`ArchiveError::Foreign`] if another database wrote it, and the errors of reading.
    pub fn earlier_manifest(
        &self,
        month: &str,
        database: &str,
    ) -> Result<Option<Manifest>, ArchiveError> {
        match self.read_manifest(month) {
            Ok((found, _)) if found.database != database => {
                Err(ArchiveError::Foreign(manifest_path(month)))
            }
            Ok((found, _)) => Ok(Some(found)),
            Err(ArchiveError::Missing(_)) => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Verifies that the manifest of a month is there and has this SHA-256. It is read again.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] if it has another one, and the errors of reading.
    pub fn verify_manifest(&self, month: &str, sha256: &str) -> Result<(), ArchiveError> {
        match self.read_manifest(month)? {
            (_, found) if found == sha256 => Ok(()),
            (_, found) => {
                let why = format!("its SHA-256 is {found}, and not {sha256}");
                Err(ArchiveError::damaged(manifest_path(month), why))
            }
        }
    }

    /// The manifest of a month, with the SHA-256 of its bytes.
    pub(crate) fn read_manifest(&self, month: &str) -> Result<(Manifest, String), ArchiveError> {
        let path = manifest_path(month);
        let bytes = self.0.location.get(&path)?;
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|cause| ArchiveError::damaged(&path, cause))?;
        if manifest.schema_version != SCHEMA_VERSION {
            let why = format!("this version does not know its schema {}", manifest.schema_version);
            return Err(ArchiveError::damaged(path, why));
        }
        Ok((manifest, hex_digest(&bytes)))
    }

    /// Writes a manifest, and returns the SHA-256 of its bytes.
    pub(crate) fn write_manifest(&self, manifest: &Manifest) -> Result<String, ArchiveError> {
        let mut bytes = serde_json::to_vec_pretty(manifest).map_err(std::io::Error::from)?;
        bytes.push(b'\n');
        let digest = hex_digest(&bytes);
        self.0.location.put(&manifest_path(&manifest.month), Bytes::from(bytes))?;
        Ok(digest)
    }
}
