//! The headers of an answer, whichever HTTP library has read them.

/// A look-up of response headers. It is implemented for [`http::HeaderMap`]. A program whose HTTP
/// library has another type implements it for a wrapper of that.
pub trait Headers {
    /// The value of a line with this lower-case name: of the first for 0, of the next for 1.
    /// `None` beyond the last.
    fn line(&self, name: &'static str, number: usize) -> Option<&[u8]>;
}

impl Headers for http::HeaderMap {
    fn line(&self, name: &'static str, number: usize) -> Option<&[u8]> {
        self.get_all(name).iter().nth(number).map(http::HeaderValue::as_bytes)
    }
}

/// A value as a text. `None` if it has characters that no text in a header has.
pub(crate) fn text_of(value: &[u8]) -> Option<&str> {
    let is_text = value.iter().all(|byte| *byte == b'\t' || (b' '..=b'~').contains(byte));
    str::from_utf8(value).ok().filter(|_| is_text)
}

/// A header's value as a text, if it has one line that is not empty.
pub(crate) fn header<'a>(headers: &'a dyn Headers, name: &'static str) -> Option<&'a str> {
    Some(text_of(headers.line(name, 0)?)?.trim()).filter(|text| !text.is_empty())
}
