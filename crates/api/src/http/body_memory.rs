//! The memory that all bodies together may take, and the room for uploads.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, ErrorCode};

/// The semaphore of the memory of all bodies together, in KiB. A body that is read in one piece does not
/// count: it is part of its connection's buffer.
pub(crate) fn body_memory(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((bytes / 1024).min(Semaphore::MAX_PERMITS)))
}

/// The memory of one body, given back when it is dropped.
pub(crate) struct BodyReservation {
    all: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl BodyReservation {
    pub(super) fn of(all: &Arc<Semaphore>) -> Self {
        Self { all: Arc::clone(all), taken: None }
    }

    /// Takes the memory that a body of `bytes` needs beyond what it has.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), ApiError> {
        let has = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let needs = bytes.div_ceil(1024);
        if needs <= has {
            return Ok(());
        }
        // A buffer that grows doubles.
        let more = u32::try_from(needs.max(has * 2) - has).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.all).try_acquire_many_owned(more).map_err(|_| {
            let message = "The bodies of other calls take all the room that bodies may. Try again.";
            ApiError::new(ErrorCode::Overloaded, message).retry_after(1_000_000)
        })?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}
