//! Which database the service keeps its books in, and whose CPU that takes.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use tokio::net::UnixStream;
use url::Url;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// In the service's own process.
    Sqlite,
    /// PostgreSQL on this machine: the process whose tree it is.
    Server(u32),
    /// PostgreSQL behind an address: all processes of its name are taken for it.
    Elsewhere,
}

impl Database {
    /// The database of `--database`. One that is reached by a socket file says which process
    /// listens there.
    pub(crate) async fn find(text: &str) -> anyhow::Result<Self> {
        if text == "sqlite" {
            return Ok(Self::Sqlite);
        }
        let Some(socket) = socket(text)? else { return Ok(Self::Elsewhere) };
        let stream = UnixStream::connect(&socket).await.with_context(|| socket.clone())?;
        let process = stream.peer_cred()?.pid().context("a socket without a process")?;
        Ok(Self::Server(process.try_into()?))
    }
}

/// The socket file of libpq's `postgres:///name?host=/folder`.
fn socket(url: &str) -> anyhow::Result<Option<String>> {
    let url = Url::parse(url)?;
    let parameter = |name| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value);
    let folder = parameter("host").filter(|host| Path::new(host.as_ref()).is_absolute());
    let port = parameter("port").unwrap_or("5432".into());
    Ok(folder.map(|folder| format!("{folder}/.s.PGSQL.{port}")))
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Sqlite { "SQLite" } else { "PostgreSQL" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_as_host_has_a_socket() {
        let found = |url| socket(url).unwrap();
        let expected = Some("/tmp/pg/.s.PGSQL.5432".to_owned());
        assert_eq!(found("postgres:///bench?host=/tmp/pg&user=postgres"), expected);
        let expected = Some("/tmp/pg/.s.PGSQL.6".to_owned());
        assert_eq!(found("postgres:///bench?port=6&host=/tmp/pg"), expected);
        assert_eq!(found("postgres://postgres@localhost:5433/bench"), None);
    }
}
