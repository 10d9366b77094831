//! The settings of the interface.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use tollgate_provider::{Resolver, Timeouts, WebhookUrlPolicy};

use crate::access::AccessLog;

/// The shape of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterfaceShape {
    /// With `connection_id`, fees, service charges and totals.
    #[default]
    Current,
    /// With `customer_id`, cost and charge.
    Earlier,
}

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

/// The bounds on clients: times to wait, and the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// For the head of a connection's first request.
    pub head_timeout: Duration,
    /// For the next piece of a body, and for the whole of a body that comes slowly.
    pub body_timeout: Duration,
    /// For the next request of a connection.
    pub keep_alive: Duration,
    /// The most connections that are open at once; more of them wait.
    pub max_connections: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Longer than the minute for which load balancers keep their connections: the side that sends
            // requests must close first.
            keep_alive: Duration::from_secs(75),
            max_connections: 25_000,
        }
    }
}

/// The default number of workers. The ledger's threads, which all calls pass, keep the last core busy. With a
/// worker for that core, too, they take turns on it and wake each other more often than they work.
fn one_less_than_cores() -> NonZeroUsize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.saturating_sub(1)).unwrap_or(NonZeroUsize::MIN)
}

/// The settings that an operator can choose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Opens the operator's routes; they are off without one.
    pub operator_token: Option<String>,
    /// The shape of responses.
    pub shape: InterfaceShape,
    /// The handling of calls whose client leaves.
    pub on_disconnect: OnDisconnect,
    /// The handling of calls without a price.
    pub unpriced: UnpricedPolicy,
    /// The longest time for which a call is read on after its client has left.
    pub disconnect_drain_max: Duration,
    /// The most bytes that are read in that time.
    pub disconnect_drain_max_bytes: u64,
    /// The most bytes of a forwarded body.
    pub forward_body_limit_bytes: usize,
    /// The most bytes of the body of an operation that is not forwarded.
    pub body_limit_bytes: usize,
    /// The most memory for all bodies in flight together.
    pub body_memory_bytes: usize,
    /// The most memory for all answers that are kept to be read. Beyond it only their beginning and end are
    /// kept.
    pub answer_memory_bytes: usize,
    /// The operations other than forwards that a key may call in a minute; 0 is no limit.
    pub standard_rate_per_minute: u32,
    /// The bounds on waits for providers.
    pub timeouts: Timeouts,
    /// The bounds on waits for clients.
    pub clients: ClientLimits,
    /// The number of threads that forward calls. Each has its own event loop and connections.
    pub workers: NonZeroUsize,
    /// The URLs that webhooks may have.
    pub webhooks: WebhookUrlPolicy,
    /// The resolver of the names of providers and webhooks.
    pub resolver: Resolver,
    /// The function that writes a line for each request, if any.
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
            unpriced: UnpricedPolicy::default(),
            disconnect_drain_max: Duration::from_secs(900),
            disconnect_drain_max_bytes: 64 * 1024 * 1024,
            forward_body_limit_bytes: 32 * 1024 * 1024,
            body_limit_bytes: 1024 * 1024,
            body_memory_bytes: 512 * 1024 * 1024,
            answer_memory_bytes: 128 * 1024 * 1024,
            standard_rate_per_minute: 1_000,
            timeouts: Timeouts::default(),
            clients: ClientLimits::default(),
            workers: one_less_than_cores(),
            webhooks: WebhookUrlPolicy::default(),
            resolver: Resolver::System,
            access_log: None,
            commit: "unknown",
        }
    }
}
