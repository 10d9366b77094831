//! The memory that bodies take, all together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, ErrorCode};

/// What all bodies together may take of memory, in KiB. What is read in one piece does not count: it
/// is part of its connection's buffer.
pub(crate) fn room_for_bodies(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((bytes / 1024).min(Semaphore::MAX_PERMITS)))
}

/// The room that one body takes, given back when it is dropped.
pub(super) struct Room {
    all: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Room {
    pub(super) fn of(all: &Arc<Semaphore>) -> Self {
        Self { all: Arc::clone(all), taken: None }
    }

    /// Takes as much more as so many bytes need.
    pub(super) fn make_for(&mut self, bytes: usize) -> Result<(), ApiError> {
        let has = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let needs = bytes.div_ceil(1024);
        if needs <= has {
            return Ok(());
        }
        // A buffer that has to grow doubles.
        let more = u32::try_from(needs.max(has * 2) - has).unwrap_or(u32::MAX);
        let more = Arc::clone(&self.all).try_acquire_many_owned(more).map_err(|_| {
            let message = "The bodies of other calls take all memory that bodies may. Try again.";
            ApiError::new(ErrorCode::Overloaded, message).retry_after(1_000_000)
        })?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}
