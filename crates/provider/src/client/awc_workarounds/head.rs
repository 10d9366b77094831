//! The final head of an answer: how the end of its body is known.

/// The longest head that is read. A longer one is left to the parser, which refuses it.
pub(super) const MAX_HEAD_BYTES: usize = 128 * 1024;

/// The position of the digit that differs between HTTP/1.1 and HTTP/1.0.
const MINOR_VERSION: usize = "HTTP/1.".len();

/// Marks a head whose body ends only with the connection (RFC 9112, 6.3). False while the head is
/// not whole.
///
/// The codec below awc reads such a body in HTTP/1.0, but takes it for empty in HTTP/1.1. For an
/// answer without a length, on a connection that is not used again, the two versions do not differ
/// otherwise. So the version in the head is lowered.
pub(super) fn mark_if_closed_at_end(head: &mut [u8]) -> bool {
    let Some(end) = end_of_head(head) else { return false };
    if is_closed_at_end(head.get(..end).unwrap_or_default())
        && let Some(minor) = head.get_mut(MINOR_VERSION)
    {
        *minor = b'0';
    }
    true
}

/// The position of the empty line that ends a head. Lines may end in a line feed alone.
fn end_of_head(head: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', head).find(|at| {
        let rest = head.get(at.saturating_add(1)..).unwrap_or_default();
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
    })
}

fn is_closed_at_end(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| line.get("HTTP/1.1 ".len()..)?.get(..3));
    let has_body = !matches!(status, Some(b"204" | b"304"));
    let states_length = |line: &[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii_end();
        name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding")
    };
    has_body && !lines.any(states_length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(head: &str) -> Option<String> {
        let mut bytes = head.as_bytes().to_vec();
        mark_if_closed_at_end(&mut bytes).then(|| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_a_body_without_a_length_ends_with_the_connection() {
        for stays in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3",
            "HTTP/1.1 200 OK\r\nTRANSFER-ENCODING : chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\ncontent-length: 1\r\n\r\n",
        ] {
            assert_eq!(marked(stays).as_deref(), Some(stays));
        }
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\nabc", "HTTP/1.0 200 OK\r\n\r\nabc"),
            (
                "HTTP/1.1 500 \r\nx-content-length: 3\r\n\r\n",
                "HTTP/1.0 500 \r\nx-content-length: 3\r\n\r\n",
            ),
            ("HTTP/1.1 200\n\ncontent-length: 3", "HTTP/1.0 200\n\ncontent-length: 3"),
        ] {
            assert_eq!(marked(head).as_deref(), Some(expected));
        }
        for cut in ["", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nx: y\r\n\r"] {
            assert_eq!(marked(cut), None, "{cut:?}");
        }
    }
}
