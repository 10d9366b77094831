//! Poolers before PostgreSQL. One that gives each transaction another session cannot be used: locks, settings and prepared
//! statements belong to a session.

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::sql_types::Integer;

use crate::conn::Conn;

#[derive(QueryableByName)]
struct SessionId {
    #[diesel(sql_type = Integer)]
    pid: i32,
}

/// Whether two connections exchange their sessions.
///
/// A pooler with one session gives it to both in turn. Otherwise both are in a transaction at once, so that each has a
/// session. A pooler gives the next transaction the session that was
/// released last, or first. So after one of the two orders, it gives a connection the session of the other one.
pub(crate) fn exchange_sessions(one: &mut Conn, other: &mut Conn) -> QueryResult<bool> {
    if transaction(one)? == transaction(other)? {
        return Ok(true);
    }
    for releases_one_first in [true, false] {
        let before = (begin(one)?, begin(other)?);
        match releases_one_first {
            true => {
                commit(one)?;
                commit(other)?;
            }
            false => {
                commit(other)?;
                commit(one)?;
            }
        }
        let after = (begin(one)?, begin(other)?);
        commit(one)?;
        commit(other)?;
        if before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Begins a transaction, and returns the id of its session.
fn begin(conn: &mut Conn) -> QueryResult<i32> {
    let Conn::Postgres(conn) = conn else { return Ok(0) };
    conn.batch_execute("BEGIN")?;
    let id: SessionId = diesel::sql_query("SELECT pg_backend_pid() AS pid").get_result(conn)?;
    Ok(id.pid)
}

/// Begins and ends a transaction, and returns the id of its session.
fn transaction(conn: &mut Conn) -> QueryResult<i32> {
    let id = begin(conn)?;
    commit(conn)?;
    Ok(id)
}

fn commit(conn: &mut Conn) -> QueryResult<()> {
    let Conn::Postgres(conn) = conn else { return Ok(()) };
    conn.batch_execute("COMMIT")
}
