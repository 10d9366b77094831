//! The load: connections that each send the next call when the last one is answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use memchr::memmem;
use tokio::task::JoinSet;

use crate::http::HttpConnection;

/// The calls to send, their targets, and the number of connections.
#[derive(Clone)]
pub(crate) struct Load {
    /// The addresses; connections go to them in turn.
    pub(crate) addresses: Arc<[SocketAddr]>,
    /// The requests, sent in turn by the connection that is free next.
    pub(crate) requests: Arc<[Vec<u8>]>,
    /// The status that each answer must have.
    pub(crate) status: u16,
    pub(crate) concurrency: usize,
    /// The time between the starts of two connections. Callers that start together and wait equally long
    /// return together, too.
    pub(crate) apart: Duration,
    /// Whether the answer is a stream, which must be complete.
    pub(crate) streams: bool,
}

/// The condition to stop sending.
#[derive(Clone, Copy)]
pub(crate) enum StopCondition {
    /// After this time. Calls in flight end, and each connection makes at least one call.
    After(Duration),
    /// When every connection has got `402 Payment Required`.
    Refused,
}

/// The results of a load.
#[derive(Default)]
pub(crate) struct LoadResult {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    /// The bytes sent and received.
    pub(crate) bytes: u64,
    /// The latencies of calls, sorted.
    pub(crate) latencies_ns: Vec<u64>,
    /// The latencies of events that have their time of sending, sorted.
    pub(crate) events_ns: Vec<u64>,
    pub(crate) elapsed: Duration,
}

/// The time within which calls must be refused, for any amount of money.
const REFUSED_WITHIN: Duration = Duration::from_secs(120);

/// Drives a target. A call with an unexpected answer is an error.
pub(crate) async fn drive(load: &Load, until: StopCondition) -> anyhow::Result<LoadResult> {
    let mut connections = Vec::with_capacity(load.concurrency);
    for address in load.addresses.iter().cycle().take(load.concurrency) {
        let opened = HttpConnection::open(*address).await;
        connections.push(opened.with_context(|| format!("{address} cannot be reached"))?);
    }
    let turn = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    let mut begin = Duration::ZERO;
    for connection in connections {
        let calls = call_on(connection, load.clone(), Arc::clone(&turn), until, start);
        tasks.spawn(async move {
            tokio::time::sleep_until((start + begin).into()).await;
            calls.await
        });
        begin += load.apart;
    }
    let mut driven = LoadResult::default();
    while let Some(done) = tasks.join_next().await {
        let part = done??;
        driven.answered += part.answered;
        driven.refused += part.refused;
        driven.bytes += part.bytes;
        driven.latencies_ns.extend(part.latencies_ns);
        driven.events_ns.extend(part.events_ns);
    }
    driven.elapsed = start.elapsed();
    driven.latencies_ns.sort_unstable();
    driven.events_ns.sort_unstable();
    Ok(driven)
}

async fn call_on(
    mut connection: HttpConnection,
    load: Load,
    turn: Arc<AtomicUsize>,
    until: StopCondition,
    start: Instant,
) -> anyhow::Result<LoadResult> {
    let mut driven = LoadResult::default();
    let mut sent = Instant::now();
    loop {
        match until {
            StopCondition::After(time)
                if driven.answered > 0 && sent.duration_since(start) >= time =>
            {
                break;
            }
            StopCondition::Refused if sent.duration_since(start) >= REFUSED_WITHIN => {
                bail!("no call was refused, however many were sent")
            }
            StopCondition::After(_) | StopCondition::Refused => {}
        }
        let place = turn.fetch_add(1, Ordering::Relaxed).checked_rem(load.requests.len());
        let request = place.and_then(|place| load.requests.get(place)).context("no request")?;
        let status = connection.call(request, load.streams).await?;
        let answered = Instant::now();
        match (status, until) {
            (status, _) if status == load.status => {
                driven.answered += 1;
                driven.bytes += u64::try_from(request.len() + connection.received().len())?;
                let latency = answered.duration_since(sent).as_nanos();
                driven.latencies_ns.push(latency.try_into()?);
            }
            (402, StopCondition::Refused) => {
                driven.refused += 1;
                break;
            }
            _ => bail!("answered {}", String::from_utf8_lossy(connection.received())),
        }
        if load.streams {
            let done = memmem::rfind(connection.received(), b"data: [DONE]\n\n");
            ensure!(done.is_some(), "a stream without its end");
        }
        sent = answered;
    }
    driven.events_ns = connection.into_events_ns();
    Ok(driven)
}

/// The time that `share` of the sorted times do not exceed.
pub(crate) fn percentile_us(sorted_ns: &[u64], share: f64) -> f64 {
    let last = sorted_ns.len().saturating_sub(1);
    let place = (last as f64 * share).round() as usize;
    sorted_ns.get(place).copied().unwrap_or(0) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<_> = (0..=100).map(|n| n * 1000).collect();
        assert_eq!(percentile_us(&times, 0.5), 50.0);
        assert_eq!(percentile_us(&times, 0.99), 99.0);
        assert_eq!(percentile_us(&[], 0.5), 0.0);
    }
}
