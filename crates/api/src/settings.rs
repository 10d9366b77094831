//! The settings of the interface.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use tollgate_gateway::CallSettings;
use tollgate_provider::{Resolver, WebhookUrlPolicy};

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
    /// The settings of calls.
    pub calls: CallSettings,
    /// Opens the operator's routes; they are off without one.
    pub operator_token: Option<String>,
    /// The shape of responses.
    pub shape: InterfaceShape,
    /// The most bytes of a forwarded body.
    pub forward_body_limit_bytes: usize,
    /// The most bytes of the body of an operation that is not forwarded.
    pub body_limit_bytes: usize,
    /// The most memory for all bodies in flight together.
    pub body_memory_bytes: usize,
    /// The most bytes of an uploaded file for a batch.
    pub job_file_limit_bytes: usize,
    /// The operations other than forwards that a key may call in a minute; 0 is no limit.
    pub standard_rate_per_minute: u32,
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
            calls: CallSettings::default(),
            operator_token: None,
            shape: InterfaceShape::default(),
            forward_body_limit_bytes: 32 * 1024 * 1024,
            body_limit_bytes: 1024 * 1024,
            body_memory_bytes: 512 * 1024 * 1024,
            job_file_limit_bytes: 200 * 1024 * 1024,
            standard_rate_per_minute: 1_000,
            clients: ClientLimits::default(),
            workers: one_less_than_cores(),
            webhooks: WebhookUrlPolicy::default(),
            resolver: Resolver::System,
            access_log: None,
            commit: "unknown",
        }
    }
}
