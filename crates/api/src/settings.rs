//! What an operator can choose of the interface.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use tollgate_provider::{Reach, Resolver, Timeouts};

use crate::access::AccessLog;

/// Which of the two shapes of the interface responses have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterfaceShape {
    /// With `connection_id`, fees, service charges and totals.
    #[default]
    Current,
    /// With `customer_id`, cost and charge.
    Earlier,
}

/// What to do when a client leaves before its answer has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDisconnect {
    /// Read on, within bounds, to learn what the call really used.
    #[default]
    Drain,
    /// Stop, and charge what has passed.
    Cancel,
}

/// What to do with a call whose price is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unpriced {
    /// Refuse it with the operator's key, allow it with the caller's.
    #[default]
    RefuseManaged,
    /// Refuse it.
    Refuse,
    /// Allow it, marked as unpriced.
    Allow,
}

/// How long to wait for clients, and for how many.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// For the head of a connection's first request.
    pub head_timeout: Duration,
    /// For the next piece of a body; and for the whole of one that only trickles.
    pub body_timeout: Duration,
    /// For the next request of a connection.
    pub keep_alive: Duration,
    /// How many connections are open at once; more of them wait.
    pub max_connections: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Longer than the minute for which load balancers keep theirs: who closes first must be
            // the one that sends.
            keep_alive: Duration::from_secs(75),
            max_connections: 25_000,
        }
    }
}

/// The ledger's threads, which all calls pass, keep the last core busy: with a worker for that core, too, they
/// take turns on it and wake each other more often than they work.
fn one_less_than_cores() -> NonZeroUsize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.saturating_sub(1)).unwrap_or(NonZeroUsize::MIN)
}

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Opens the operator's routes; they are off without one.
    pub operator_token: Option<String>,
    /// The shape of responses.
    pub shape: InterfaceShape,
    /// What to do when a client leaves.
    pub on_disconnect: OnDisconnect,
    /// What to do without a price.
    pub unpriced: Unpriced,
    /// How long a call whose client has left is read on at most.
    pub disconnect_drain_max: Duration,
    /// How many bytes more are read then at most.
    pub disconnect_drain_max_bytes: u64,
    /// How large a forwarded body may be.
    pub forward_body_limit_bytes: usize,
    /// How large a body of our own operations may be.
    pub body_limit_bytes: usize,
    /// How much memory bodies that are on their way may take, all together.
    pub body_memory_bytes: usize,
    /// How much memory answers that are kept to be read may take, all together. Beyond it only their
    /// beginning and end are kept.
    pub answer_memory_bytes: usize,
    /// How many of our own operations a key may ask for in a minute; 0 is without limit.
    pub standard_rate_per_minute: u32,
    /// How long to wait for providers.
    pub timeouts: Timeouts,
    /// How long to wait for clients.
    pub clients: Clients,
    /// How many threads forward calls and answer, each with an event loop and connections of its own.
    pub workers: NonZeroUsize,
    /// Which URLs webhooks may have.
    pub webhooks: Reach,
    /// Who says which addresses the names of providers and webhooks have.
    pub resolver: Resolver,
    /// Who writes a line for each request, if anybody does.
    pub access_log: Option<AccessLog>,
    /// The commit that the program was built from, for the metrics.
    pub commit: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operator_token: None,
            shape: InterfaceShape::default(),
            on_disconnect: OnDisconnect::default(),
            unpriced: Unpriced::default(),
            disconnect_drain_max: Duration::from_secs(900),
            disconnect_drain_max_bytes: 64 * 1024 * 1024,
            forward_body_limit_bytes: 32 * 1024 * 1024,
            body_limit_bytes: 1024 * 1024,
            body_memory_bytes: 512 * 1024 * 1024,
            answer_memory_bytes: 128 * 1024 * 1024,
            standard_rate_per_minute: 1_000,
            timeouts: Timeouts::default(),
            clients: Clients::default(),
            workers: one_less_than_cores(),
            webhooks: Reach::default(),
            resolver: Resolver::System,
            access_log: None,
            commit: "unknown",
        }
    }
}
