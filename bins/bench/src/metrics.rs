//! The metrics of a node.

use std::net::SocketAddr;

use anyhow::Context;

use crate::http::{self, HttpConnection};

/// A page of metrics in Prometheus' text format.
pub(crate) struct MetricsPage(String);

impl MetricsPage {
    /// Reads the page of the node at `address`.
    pub(crate) async fn of(address: SocketAddr, credential: &str) -> anyhow::Result<Self> {
        let request = http::request("GET", "/metrics", &address.to_string(), credential, &[], "");
        let mut connection = HttpConnection::open(address).await?;
        connection.call(&request, false).await?;
        Ok(Self(String::from_utf8_lossy(connection.received()).into_owned()))
    }

    /// The value of a metric without labels.
    pub(crate) fn value(&self, name: &str) -> anyhow::Result<f64> {
        let mut values =
            self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = values.next().with_context(|| format!("there is no metric {name}"))?;
        Ok(value.trim().parse()?)
    }

    /// The buckets of a histogram without labels: each bound, and the number of values up to it.
    pub(crate) fn buckets(&self, name: &str) -> Vec<(f64, u64)> {
        let bucket = |line: &str| -> Option<(f64, u64)> {
            let rest = line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.trim().parse().ok()?))
        };
        self.0.lines().filter_map(bucket).collect()
    }
}
