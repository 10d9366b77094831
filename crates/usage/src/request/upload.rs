//! The form of an upload, read while it passes: its file may be longer than memory.

use std::ops::Range;

use super::form::{boundary, read_head};
use crate::issue::Issue;

/// The most parts of a form, the longest head of one, and the longest field that is no file.
const MAX_PARTS: usize = 64;
const MAX_HEAD_BYTES: usize = 8 * 1024;
const MAX_FIELD_BYTES: usize = 64 * 1024;

/// The form of an upload that has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadForm {
    fields: Vec<(String, String)>,
    /// The position of the file in the body.
    pub file: Option<Range<u64>>,
}

impl UploadForm {
    /// The value of a field that is no file.
    pub fn field(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(field, _)| field == name)?;
        Some(value.trim())
    }
}

/// The part of the form that comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A boundary, and what follows it.
    Boundary,
    Head,
    /// The content of a field that is no file.
    Field(String, Vec<u8>),
    /// The content of a file, which begins at this position.
    File(String, u64),
    /// Only line ends may follow.
    End,
}

/// Reads the form of an upload piece by piece.
///
/// It accepts the same forms as the reader of whole bodies: those that every server reads in one way.
pub struct UploadReader {
    /// A line end and the boundary.
    delimiter: Vec<u8>,
    place: Place,
    /// The bytes that are not read yet, and the position after them.
    rest: Vec<u8>,
    length: u64,
    form: UploadForm,
    parts: usize,
    issue: Option<Issue>,
}

impl UploadReader {
    /// A reader of the form that this content type announces. `None` if it announces none.
    pub fn new(content_type: &str) -> Option<Self> {
        let (essence, parameters) = content_type.split_once(';')?;
        let is_form = essence.trim().eq_ignore_ascii_case("multipart/form-data");
        let boundary = boundary(Some(parameters).filter(|_| is_form))?;
        Some(Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            place: Place::Boundary,
            // The first boundary has no line end before it.
            rest: b"\r\n".to_vec(),
            length: 0,
            form: UploadForm::default(),
            parts: 0,
            issue: None,
        })
    }

    /// Takes the next piece of the body.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.issue.is_some() {
            return;
        }
        self.length = self.length.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        self.rest.extend_from_slice(piece);
        loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(issue) => {
                    self.issue = Some(issue);
                    return;
                }
            }
        }
    }

    /// The form, after the last piece.
    ///
    /// # Errors
    /// The reason why it is none that every server reads in one way.
    pub fn finish(self) -> Result<UploadForm, Issue> {
        match (self.issue, self.place) {
            (Some(issue), _) => Err(issue),
            (None, Place::End) => Ok(self.form),
            (None, _) => Err(not_a_form()),
        }
    }

    /// Reads the next part of the form. Returns whether more can be read of what is there.
    fn step(&mut self) -> Result<bool, Issue> {
        match std::mem::replace(&mut self.place, Place::End) {
            Place::Boundary => {
                let most = self.delimiter.len().saturating_add(2);
                let Some(bytes) = self.rest.get(..most) else {
                    self.place = Place::Boundary;
                    return Ok(false);
                };
                self.place = match bytes.strip_prefix(self.delimiter.as_slice()) {
                    Some(b"--") => Place::End,
                    Some(b"\r\n") => Place::Head,
                    _ => return Err(not_a_form()),
                };
                self.rest.drain(..most);
            }
            Place::Head => {
                let Some(end) = memchr::memmem::find(&self.rest, b"\r\n\r\n") else {
                    self.place = Place::Head;
                    return match self.rest.len() > MAX_HEAD_BYTES {
                        true => Err(not_a_form()),
                        false => Ok(false),
                    };
                };
                self.place = self.begin_part(end)?;
                self.rest.drain(..end.saturating_add(4));
            }
            Place::Field(name, mut text) => {
                let (content, has_ended) = self.content();
                text.extend(content);
                if text.len() > MAX_FIELD_BYTES {
                    return Err(Issue::at([&name], "is too long"));
                }
                if !has_ended {
                    self.place = Place::Field(name, text);
                    return Ok(false);
                }
                let text = String::from_utf8(text);
                let text = text.map_err(|_| Issue::at([&name], "must be UTF-8"))?;
                self.form.fields.push((name, text));
                self.place = Place::Boundary;
            }
            Place::File(name, start) => {
                let (_, has_ended) = self.content();
                if !has_ended {
                    self.place = Place::File(name, start);
                    return Ok(false);
                }
                self.form.file = Some(start..self.position());
                self.place = Place::Boundary;
            }
            Place::End => {
                let is_blank = self.rest.trim_ascii().is_empty();
                self.rest.clear();
                return if is_blank { Ok(false) } else { Err(not_a_form()) };
            }
        }
        Ok(true)
    }

    /// The content of a part whose head has this length.
    fn begin_part(&mut self, head: usize) -> Result<Place, Issue> {
        self.parts = self.parts.saturating_add(1);
        let text = self.rest.get(..head).and_then(|head| std::str::from_utf8(head).ok());
        let read = text.and_then(read_head).filter(|_| self.parts <= MAX_PARTS);
        let (name, is_file) = read.ok_or_else(not_a_form)?;
        let is_repeated = match is_file {
            true => self.form.file.is_some(),
            false => self.form.fields.iter().any(|(field, _)| *field == name),
        };
        if is_repeated {
            return Err(Issue::at([&name], "must not occur more than once"));
        }
        let content = u64::try_from(head.saturating_add(4)).unwrap_or(u64::MAX);
        Ok(match is_file {
            true => Place::File(name, self.position().saturating_add(content)),
            false => Place::Field(name, Vec::new()),
        })
    }

    /// Takes the content of a part that is there, and returns whether the next boundary follows it.
    fn content(&mut self) -> (Vec<u8>, bool) {
        let end = memchr::memmem::find(&self.rest, &self.delimiter);
        // The last bytes may begin a boundary.
        let open = self.rest.len().saturating_sub(self.delimiter.len().saturating_sub(1));
        let content = self.rest.drain(..end.unwrap_or(open)).collect();
        (content, end.is_some())
    }

    /// The position in the body of the first byte that is not read yet.
    fn position(&self) -> u64 {
        self.length.saturating_sub(u64::try_from(self.rest.len()).unwrap_or(u64::MAX))
    }
}

fn not_a_form() -> Issue {
    Issue::at([], "the body is not a form with the boundary of its header, written plainly")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "multipart/form-data; boundary=x";
    const BODY: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
        --x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n\
        Content-Type: application/jsonl\r\n\r\n{\"a\":1}\r\n--y\r\n{}\r\n--x--\r\n";

    fn read(body: &[u8], cuts: &[usize]) -> Result<UploadForm, Issue> {
        let mut reader = UploadReader::new(FORM).unwrap();
        let mut from = 0;
        for cut in cuts.iter().copied().chain([body.len()]) {
            reader.feed(&body[from..cut]);
            from = cut;
        }
        reader.finish()
    }

    #[test]
    fn a_form_is_read_at_every_cut() {
        for first in 0..=BODY.len() {
            for second in [first, BODY.len()] {
                let form = read(BODY, &[first, second]).unwrap();
                assert_eq!(form.field("purpose"), Some("batch"));
                let file = form.file.unwrap();
                let range =
                    usize::try_from(file.start).unwrap()..usize::try_from(file.end).unwrap();
                assert_eq!(&BODY[range], b"{\"a\":1}\r\n--y\r\n{}");
            }
        }
        let each: Vec<_> = (0..BODY.len()).collect();
        assert_eq!(read(BODY, &each), read(BODY, &[]));
    }

    #[test]
    fn what_servers_may_read_in_different_ways_is_no_form() {
        for end in 0..BODY.len() - 4 {
            assert!(read(&BODY[..end], &[]).is_err(), "cut at {end}");
        }
        let text = std::str::from_utf8(BODY).unwrap();
        for (what, changed) in [
            ("a preamble", format!("hello\r\n{text}")),
            ("an epilogue", format!("{text}hello")),
            ("two files", text.replace("\"purpose\"", "\"file\"")),
            ("an encoded part", text.replace("Content-Type", "Content-Transfer-Encoding")),
            ("an escaped name", text.replace("\"purpose\"", "\"pur\\pose\"")),
            ("a longer boundary", text.replace("--x\r\nContent", "--xy\r\nContent")),
        ] {
            assert!(read(changed.as_bytes(), &[]).is_err(), "{what}");
        }
        let twice = text.replacen(
            "--x\r\n",
            "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine\r\n--x\r\n",
            1,
        );
        let issue = read(twice.as_bytes(), &[]).unwrap_err();
        assert_eq!(issue.path, ["purpose"]);
        assert!(UploadReader::new("application/json").is_none());
        assert!(UploadReader::new("multipart/form-data").is_none());
    }
}
