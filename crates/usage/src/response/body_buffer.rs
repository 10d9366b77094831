//! Answers that are kept to be read as a whole, and the bound of their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest answer that is kept. Of a larger one, only the beginning and end are.
const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// The bytes of an answer that do not count, because beginning and end take the same.
const FREE_BYTES: usize = 128 * 1024;

/// The memory of all kept answers together, and its bound.
#[derive(Debug)]
pub struct ResponseMemory {
    most: usize,
    taken: AtomicUsize,
}

/// Without a bound.
impl Default for ResponseMemory {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl ResponseMemory {
    /// A bound in bytes. The first 128 KiB of each answer do not count.
    pub fn new(most: usize) -> Self {
        Self { most, taken: AtomicUsize::new(0) }
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// An answer that is kept.
#[derive(Default)]
pub(super) struct BodyBuffer {
    pub(super) bytes: Vec<u8>,
    /// The share of the common memory that it has taken.
    room: Option<MemoryReservation>,
}

/// A share of the memory of all kept answers. It is given back when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    memory: Arc<ResponseMemory>,
    bytes: usize,
}

impl MemoryReservation {
    /// An empty share of a memory.
    pub fn new(memory: &Arc<ResponseMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: 0 }
    }

    /// Takes some bytes more. Returns `false`, and takes nothing, if the memory does not have them, or if the share
    /// would be larger than the largest answer that is kept, 8 MiB.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let grown = self.bytes.saturating_add(bytes);
        let is_taken = grown <= MAX_BODY_BYTES && self.memory.take(bytes);
        if is_taken {
            self.bytes = grown;
        }
        is_taken
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.memory.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl BodyBuffer {
    /// Keeps a piece; false if there is no room for it.
    pub(super) fn push(&mut self, piece: &[u8], memory: &Arc<ResponseMemory>) -> bool {
        let length = self.bytes.len().saturating_add(piece.len());
        if length > MAX_BODY_BYTES {
            return false;
        }
        if length > self.bytes.capacity() && length > FREE_BYTES {
            // A buffer that grows at least doubles.
            let capacity = length.max(self.bytes.capacity().saturating_mul(2));
            let room = self.room.get_or_insert_with(|| MemoryReservation::new(memory));
            let more = capacity.saturating_sub(room.bytes);
            if !room.memory.take(more) {
                return false;
            }
            room.bytes = capacity;
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(piece);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_keep_is_bounded_and_comes_back_when_one_is_dropped() {
        static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
        let memory = Arc::new(ResponseMemory::new(4 * 1024 * 1024));
        let fill = || {
            let mut kept = BodyBuffer::default();
            while kept.push(&PIECE, &memory) {}
            kept
        };
        let first = fill();
        assert!(first.bytes.len() >= 2 * 1024 * 1024, "{}", first.bytes.len());
        assert!(first.bytes.capacity() <= 4 * 1024 * 1024);
        let second = fill();
        let left = 4 * 1024 * 1024 - first.bytes.capacity();
        assert!(second.bytes.capacity() <= left.max(FREE_BYTES), "{}", second.bytes.capacity());
        drop((first, second));
        assert_eq!(memory.taken.load(Ordering::Relaxed), 0);
        let unbounded = Arc::default();
        let mut kept = BodyBuffer::default();
        while kept.push(&PIECE, &unbounded) {}
        assert_eq!(kept.bytes.len(), MAX_BODY_BYTES);
    }
}
