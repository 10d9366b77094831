//! The addresses of a host name: from the system, or from a function.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::error::NotSentReason;

/// Returns the addresses of a name; none if it has none.
pub type NameServer = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// The source of the addresses of a name. Clones share it.
#[derive(Clone, Default)]
pub enum Resolver {
    /// The system.
    #[default]
    System,
    /// A function in its place. It allows tests of names that change their addresses between two
    /// look-ups, or that have a private address among public ones.
    Names(Arc<NameServer>),
}

impl Resolver {
    /// The addresses of a host: itself, or the addresses of its name.
    pub(super) async fn addresses(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, NotSentReason> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        match self {
            Self::System => {
                let found = tokio::net::lookup_host((host, port)).await;
                Ok(found.map_err(|_| NotSentReason::Dns)?.collect())
            }
            Self::Names(names) => {
                Ok(names(host).into_iter().map(|address| SocketAddr::new(address, port)).collect())
            }
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Names(_) => "Names(…)",
        })
    }
}
