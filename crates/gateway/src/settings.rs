//! The operator's choices about calls.

use std::time::Duration;

use tollgate_provider::Timeouts;

use crate::key_seal::KeySeal;

/// The handling of a call whose client leaves before its answer has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// Read on, within bounds, to learn the real usage of the call.
    #[default]
    Drain,
    /// Stop, and charge what has passed.
    Cancel,
}

/// The handling of a call without a known price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnpricedPolicy {
    /// Refuse it with the operator's key, allow it with the caller's.
    #[default]
    RefuseManaged,
    /// Refuse it.
    Refuse,
    /// Allow it, marked as unpriced.
    Allow,
}

/// The bounds on sockets.
#[derive(Clone, Copy, Debug)]
pub struct SocketLimits {
    /// The longest time for which one is open.
    pub max: Duration,
    /// The longest time without a message on one. Pings and pongs are no messages.
    pub idle: Duration,
    /// The most bytes of a message.
    pub message_bytes: usize,
    /// The most sockets that are open at once in this process.
    pub most: usize,
}

impl Default for SocketLimits {
    fn default() -> Self {
        Self {
            max: Duration::from_secs(3_600),
            idle: Duration::from_secs(600),
            message_bytes: 16 * 1024 * 1024,
            most: 5_000,
        }
    }
}

/// The settings of calls.
#[derive(Clone, Debug)]
pub struct CallSettings {
    /// The handling of calls whose client leaves.
    pub on_disconnect: OnDisconnect,
    /// The handling of calls without a price.
    pub unpriced: UnpricedPolicy,
    /// The longest time for which a call is read on after its client has left.
    pub disconnect_drain_max: Duration,
    /// The most bytes that are read in that time.
    pub disconnect_drain_max_bytes: u64,
    /// The most memory for all answers that are kept to be read. Beyond it only their beginning and end are
    /// kept. All answers that wait for their cost may take as much again; beyond it they do not wait.
    pub answer_memory_bytes: usize,
    /// The bounds on waits for providers.
    pub timeouts: Timeouts,
    /// Whether records keep the messages of providers' errors.
    pub keep_error_messages: bool,
    /// The bounds on sockets.
    pub sockets: SocketLimits,
    /// The encryption of callers' provider keys while their jobs run. Without it, only their own retrieval settles their
    /// jobs.
    pub job_keys: Option<KeySeal>,
}

impl Default for CallSettings {
    fn default() -> Self {
        Self {
            on_disconnect: OnDisconnect::default(),
            unpriced: UnpricedPolicy::default(),
            disconnect_drain_max: Duration::from_secs(900),
            disconnect_drain_max_bytes: 64 * 1024 * 1024,
            answer_memory_bytes: 128 * 1024 * 1024,
            timeouts: Timeouts::default(),
            keep_error_messages: true,
            sockets: SocketLimits::default(),
            job_keys: None,
        }
    }
}
