//! The memory that all bodies together may take, and the room for uploads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tollgate_domain::MerchantId;

use super::error::{ApiError, ErrorCode};

/// The semaphore of the memory of all bodies together, in KiB. A body that is read in one piece does not
/// count: it is part of its connection's buffer.
pub(crate) fn body_memory(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new((bytes / 1024).min(Semaphore::MAX_PERMITS)))
}

/// The room for the uploads of all merchants, and the part of it that each may take.
pub(crate) struct UploadRoom {
    all: Arc<Semaphore>,
    share_bytes: usize,
    shares: Mutex<HashMap<MerchantId, Weak<Semaphore>>>,
}

impl UploadRoom {
    /// The room for eight uploads of the greatest length. A merchant may take that of two.
    pub(crate) fn of(longest: usize) -> Self {
        Self {
            all: body_memory(longest.saturating_mul(8)),
            share_bytes: longest.saturating_mul(2),
            shares: Mutex::default(),
        }
    }

    /// The room of all merchants, and that of one.
    pub(crate) fn rooms(&self, merchant_id: MerchantId) -> [Arc<Semaphore>; 2] {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shares.get(&merchant_id).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| {
            // Shares without an upload are forgotten.
            shares.retain(|_, share| share.strong_count() > 0);
            let share = body_memory(self.share_bytes);
            shares.insert(merchant_id, Arc::downgrade(&share));
            share
        });
        [Arc::clone(&self.all), share]
    }
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
