//! A minimal client of PostgreSQL's protocol, to make and drop databases.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The server's only user, a superuser.
pub(super) const USER: &str = "postgres";

/// Version 3.0 of PostgreSQL's protocol.
const PROTOCOL: i32 = 196_608;

/// Runs SQL and returns the server's error, if any. It implements just enough of the protocol to make and
/// drop databases, because neither psql nor a linked libpq is sure to be installed.
pub(super) fn execute(socket: &Path, database: &str, sql: &str) -> Result<(), String> {
    let talk = || -> io::Result<Option<String>> {
        let mut server = UnixStream::connect(socket)?;
        let mut hello = PROTOCOL.to_be_bytes().to_vec();
        for text in ["user", USER, "database", database, ""] {
            hello.extend_from_slice(text.as_bytes());
            hello.push(0);
        }
        server.write_all(&framed(&[], &hello)?)?;
        if let Some(refusal) = until_ready(&mut server)? {
            return Ok(Some(refusal));
        }
        let query = [sql.as_bytes(), &[0]].concat();
        server.write_all(&framed(b"Q", &query)?)?;
        let refusal = until_ready(&mut server)?;
        server.write_all(&framed(b"X", &[])?)?;
        Ok(refusal)
    };
    match talk() {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => Err(refusal),
        Err(error) => Err(error.to_string()),
    }
}

/// A message: its kind, the length of the rest including the length itself, and the rest.
pub(super) fn framed(kind: &[u8], body: &[u8]) -> io::Result<Vec<u8>> {
    let length = i32::try_from(body.len() + 4).map_err(io::Error::other)?;
    Ok([kind, &length.to_be_bytes(), body].concat())
}

/// Reads until the server waits for the next query or closes.
///
/// Returns the text of its error, if any.
fn until_ready(server: &mut UnixStream) -> io::Result<Option<String>> {
    let mut error = None;
    loop {
        let mut head = [0; 5];
        match server.read_exact(&mut head) {
            // A refused connection is closed after its error.
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof && error.is_some() => {
                return Ok(error);
            }
            read => read?,
        }
        let [kind, length @ ..] = head;
        let length = u64::try_from(i32::from_be_bytes(length) - 4).map_err(io::Error::other)?;
        let mut body = Vec::new();
        server.take(length).read_to_end(&mut body)?;
        match kind {
            b'E' => error = Some(message(&body)),
            b'Z' => return Ok(error),
            _ => {}
        }
    }
}

/// The message among the fields of an error.
fn message(fields: &[u8]) -> String {
    let texts = fields.split(|&byte| byte == 0);
    let message = texts.filter_map(|field| field.strip_prefix(b"M")).next();
    String::from_utf8_lossy(message.unwrap_or(fields)).into_owned()
}
