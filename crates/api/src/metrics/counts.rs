//! The figures of the server, beside those of calls.
//!
//! Labels are words that this service defines, so clients cannot make them grow.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Semaphore;
use tollgate_domain::{Attempt, DeliveryFault};

use crate::http::error::{ApiError, ErrorCode};

/// The counters, histograms and gauges.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Calls that were not admitted, by code.
    pub(super) refused: Vec<(ErrorCode, Counter)>,
    /// The attempts of deliveries, by outcome.
    pub(super) attempts: Vec<(&'static str, Counter)>,
    /// The open connections of clients.
    pub(crate) connections: Gauge<u64, AtomicU64>,
    pub(super) commit: &'static str,
    /// Held by the request that reads the database for the page: one at a time.
    pub(super) reading: Arc<Semaphore>,
}

impl Metrics {
    pub(crate) fn new(commit: &'static str) -> Self {
        let codes = ErrorCode::ALL.iter();
        Self {
            refused: codes.map(|code| (*code, Counter::default())).collect(),
            attempts: ATTEMPTS.into_iter().map(|outcome| (outcome, Counter::default())).collect(),
            connections: Gauge::default(),
            commit,
            reading: Arc::new(Semaphore::new(1)),
        }
    }

    /// Counts a call that is answered with an error of this service, unless it was admitted before.
    pub(crate) fn refused(&self, error: &ApiError) {
        let code = error.code();
        if matches!(code, ErrorCode::ProviderUnreachable | ErrorCode::ProviderTimeout) {
            return;
        }
        let found = self.refused.iter().find(|(refused, _)| *refused == code);
        if let Some((_, count)) = found {
            count.inc();
        }
    }

    /// Counts an attempt of a delivery.
    pub(crate) fn attempted(&self, attempt: &Attempt) {
        let outcome = outcome(attempt);
        let found = self.attempts.iter().find(|(word, _)| *word == outcome);
        if let Some((_, count)) = found {
            count.inc();
        }
    }
}

/// The outcomes of an attempt of a delivery.
const ATTEMPTS: [&str; 10] = [
    "delivered",
    "rejected",
    "url_refused",
    "name_not_found",
    "address_private",
    "unreachable",
    "tls_failed",
    "timed_out",
    "no_answer",
    "event_lost",
];

fn outcome(attempt: &Attempt) -> &'static str {
    match attempt.fault {
        _ if attempt.has_arrived() => "delivered",
        None => "rejected",
        Some(DeliveryFault::UrlRefused) => "url_refused",
        Some(DeliveryFault::NameNotFound) => "name_not_found",
        Some(DeliveryFault::AddressPrivate) => "address_private",
        Some(DeliveryFault::Unreachable) => "unreachable",
        Some(DeliveryFault::TlsFailed) => "tls_failed",
        Some(DeliveryFault::TimedOut) => "timed_out",
        Some(DeliveryFault::NoAnswer) => "no_answer",
        Some(DeliveryFault::EventLost) => "event_lost",
    }
}
