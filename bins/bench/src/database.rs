//! The databases of the service, and the processes whose CPU time they take.

use std::cell::Cell;
use std::fmt;
use std::path::Path;

use anyhow::{Context, bail};
use tokio::net::UnixStream;
use tollgate_testkit::postgres::{self, TestDatabase, TestServer};
use url::Url;

/// The source of databases.
pub(crate) enum DatabaseSource {
    /// SQLite files in the folder of the stand.
    Sqlite,
    /// A PostgreSQL server that was started for this run. It waits for its disk.
    Own(Box<TestServer>),
    /// One existing database, which can be taken once.
    Elsewhere(Cell<Option<String>>),
}

/// A database to serve on. A database of a server that was started here is dropped with this value.
pub(crate) struct BenchDatabase {
    pub(crate) url: String,
    pub(crate) host: DatabaseHost,
    _own: Option<TestDatabase>,
}

/// The processes whose CPU time a database takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseHost {
    /// The service itself.
    Sqlite,
    /// The process tree of PostgreSQL on this machine.
    Server(u32),
    /// PostgreSQL behind an address: all processes of its name are counted.
    Elsewhere,
}

impl DatabaseSource {
    /// Takes `sqlite`, `postgres`, or the URL of an empty database.
    pub(crate) fn start(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "sqlite" => Self::Sqlite,
            "postgres" => {
                let server = postgres::durable_server().context("PostgreSQL is not installed")?;
                Self::Own(Box::new(server))
            }
            url => Self::Elsewhere(Cell::new(Some(url.to_owned()))),
        })
    }

    /// An empty database; a file gets this name in `folder`.
    pub(crate) async fn database(
        &self,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<BenchDatabase> {
        match self {
            Self::Sqlite => {
                BenchDatabase::at(format!("sqlite:{}", folder.join(name).display())).await
            }
            Self::Own(server) => {
                let own = server.database();
                let database = BenchDatabase::at(own.url().to_owned()).await?;
                Ok(BenchDatabase { _own: Some(own), ..database })
            }
            Self::Elsewhere(url) => match url.take() {
                Some(url) => BenchDatabase::at(url).await,
                None => bail!("this needs several databases: take `--database postgres`"),
            },
        }
    }
}

impl BenchDatabase {
    /// The database at a URL. For a server behind a socket file, the socket reports its process.
    pub(crate) async fn at(url: String) -> anyhow::Result<Self> {
        let host = if url.starts_with("sqlite:") {
            DatabaseHost::Sqlite
        } else if let Some(socket) = socket(&url)? {
            let stream = UnixStream::connect(&socket).await.with_context(|| socket.clone())?;
            let process = stream.peer_cred()?.pid().context("a socket without a process")?;
            DatabaseHost::Server(process.try_into()?)
        } else {
            DatabaseHost::Elsewhere
        };
        Ok(Self { url, host, _own: None })
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

impl fmt::Display for DatabaseHost {
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
