//! Removes interim heads (`100 Continue`, `103 Early Hints`) from the start of an answer.

use std::io;

/// The most bytes of all interim heads of one answer, so that many short ones are bounded too.
const MAX_INTERIM_BYTES: usize = 64 * 1024;

/// The start of the status line of an interim head; `#` stands for any digit.
const INTERIM: &[u8; 12] = b"HTTP/1.# 1##";

/// Finds the final head of an answer behind interim ones (`100 Continue`, `103 Early Hints`).
///
/// awc takes the first head for the answer. After an interim head it would return the connection to
/// the pool, and the answer itself would go to the next call on that connection.
#[derive(Debug, Default)]
pub(super) struct InterimHeadFilter {
    phase: HeadPhase,
    /// The bytes of a status line that is cut and not decided yet.
    held: Vec<u8>,
    /// The number of bytes of interim heads that were dropped.
    dropped: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeadPhase {
    /// The final head has begun, or no request was written yet.
    #[default]
    Passing,
    /// The first `matched` bytes of the status line match an interim head. `switching` is whether
    /// they also match a switch of protocols.
    StatusLine { matched: usize, switching: bool },
    /// An interim head.
    Interim { line_empty: bool },
}

impl HeadPhase {
    const START: Self = Self::StatusLine { matched: 0, switching: true };
}

impl InterimHeadFilter {
    /// Notes that a part of a request was written: an answer is expected.
    pub(super) fn expect(&mut self) {
        if self.phase == HeadPhase::Passing {
            *self = Self { phase: HeadPhase::START, ..Self::default() };
        }
    }

    /// Whether all bytes pass.
    pub(super) fn is_passing(&self) -> bool {
        self.phase == HeadPhase::Passing
    }

    /// Reads on. Returns `None` until the final head begins, then the position in `bytes` where it
    /// continues, behind the bytes of [`InterimHeadFilter::take_held`].
    ///
    /// # Errors
    /// The interim heads are too long, or one of them switches protocols, which was not requested.
    pub(super) fn find(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut start = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let next = at.saturating_add(1);
            match self.phase {
                HeadPhase::Passing => return Ok(Some(start)),
                // Parsers skip empty lines before a status line.
                HeadPhase::StatusLine { matched: 0, .. } if matches!(byte, b'\r' | b'\n') => {
                    self.drop_byte()?;
                    start = next;
                }
                HeadPhase::StatusLine { matched, switching } => {
                    let fits = INTERIM.get(matched).is_some_and(|&expected| match expected {
                        b'#' => byte.is_ascii_digit(),
                        expected => byte == expected,
                    });
                    if !fits {
                        self.phase = HeadPhase::Passing;
                        return Ok(Some(start));
                    }
                    self.drop_byte()?;
                    let switching = switching
                        && match matched {
                            10 => byte == b'0',
                            11 => byte == b'1',
                            _ => true,
                        };
                    let matched = matched.saturating_add(1);
                    self.phase = HeadPhase::StatusLine { matched, switching };
                    if matched == INTERIM.len() {
                        if switching {
                            return Err(invalid("a switch of protocols that was not asked for"));
                        }
                        self.held = Vec::new();
                        self.phase = HeadPhase::Interim { line_empty: false };
                    }
                }
                HeadPhase::Interim { line_empty } => {
                    self.drop_byte()?;
                    self.phase = match byte {
                        b'\n' if line_empty => {
                            start = next;
                            HeadPhase::START
                        }
                        b'\n' => HeadPhase::Interim { line_empty: true },
                        b'\r' => HeadPhase::Interim { line_empty },
                        _ => HeadPhase::Interim { line_empty: false },
                    };
                }
            }
        }
        if matches!(self.phase, HeadPhase::StatusLine { .. }) {
            self.held.extend_from_slice(bytes.get(start..).unwrap_or_default());
        }
        Ok(None)
    }

    /// The bytes of the final head that came in earlier pieces.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    fn drop_byte(&mut self) -> io::Result<()> {
        self.dropped = self.dropped.saturating_add(1);
        if self.dropped > MAX_INTERIM_BYTES {
            return Err(invalid("interim heads without an end"));
        }
        Ok(())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
    const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nx: HTTP/1.1 200\r\n\r\n";
    const FINAL: &str =
        "HTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\nHTTP/1.1 103 in a body\r\n\r\nx";

    /// The bytes of an answer in these pieces that pass.
    fn pass(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
        let mut start = InterimHeadFilter::default();
        start.expect();
        let mut passed = Vec::new();
        for piece in pieces {
            if start.is_passing() {
                passed.extend_from_slice(piece);
            } else if let Some(at) = start.find(piece)? {
                assert!(start.is_passing());
                passed.extend(start.take_held());
                passed.extend_from_slice(&piece[at..]);
            }
        }
        Ok(passed)
    }

    #[test]
    fn interim_heads_are_dropped_wherever_they_are_cut() {
        let many = CONTINUE.repeat(3);
        for interim in ["", CONTINUE, HINTS, &format!("{CONTINUE}{HINTS}"), &many, "\r\n\n"] {
            let answer = format!("{interim}{FINAL}").into_bytes();
            for first in 0..=answer.len() {
                for second in first..=answer.len() {
                    let (head, rest) = answer.split_at(first);
                    let (middle, tail) = rest.split_at(second - first);
                    let passed = pass(&[head, middle, tail]).unwrap();
                    assert_eq!(passed, FINAL.as_bytes(), "{interim:?} at {first} and {second}");
                }
            }
            let bytes: Vec<_> = answer.chunks(1).collect();
            assert_eq!(pass(&bytes).unwrap(), FINAL.as_bytes(), "{interim:?} byte by byte");
        }
    }

    #[test]
    fn what_is_no_interim_head_passes_untouched() {
        for answer in ["nonsense", "HTTP/1.0 200 OK\r\n\r\nabc", "HTTP/2 103 x\r\n\r\n", FINAL] {
            let bytes: Vec<_> = answer.as_bytes().chunks(1).collect();
            assert_eq!(pass(&bytes).unwrap(), answer.as_bytes());
            assert_eq!(pass(&[answer.as_bytes()]).unwrap(), answer.as_bytes());
        }
        let mut idle = InterimHeadFilter::default();
        assert!(idle.is_passing(), "before anything is asked");
        idle.expect();
        assert!(!idle.is_passing());
        assert_eq!(idle.find(b"HTTP/1.1 2").unwrap(), Some(0));
        idle.expect();
        assert_eq!(idle.find(HINTS.as_bytes()).unwrap(), None, "the next answer on it");
    }

    #[test]
    fn a_switch_of_protocols_and_endless_heads_are_errors() {
        let switch = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
        for answer in [switch.to_owned(), format!("{CONTINUE}{switch}")] {
            let bytes: Vec<_> = answer.as_bytes().chunks(1).collect();
            assert_eq!(pass(&bytes).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        for answer in ["HTTP/1.1 110 a", "HTTP/1.1 111 a", "HTTP/1.1 199 a"] {
            assert_eq!(pass(&[answer.as_bytes()]).unwrap(), b"", "{answer}");
        }
        let long = format!("HTTP/1.1 103 Early Hints\r\nx: {}", "x".repeat(70_000));
        for endless in [long, CONTINUE.repeat(3000), "\r\n".repeat(40_000)] {
            let pieces: Vec<_> = endless.as_bytes().chunks(1000).collect();
            assert_eq!(pass(&pieces).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
