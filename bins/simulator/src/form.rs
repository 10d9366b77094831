//! The form of a body (`multipart/form-data`).

use std::collections::BTreeMap;

use actix_web::HttpRequest;
use memchr::memmem;

/// The fields of a form, and its file.
#[derive(Default)]
pub(crate) struct Form<'a> {
    fields: BTreeMap<String, String>,
    /// The name and the content of the field `file`.
    pub(crate) file: Option<(String, &'a [u8])>,
}

impl<'a> Form<'a> {
    /// The form of a body, as far as it is one.
    pub(crate) fn parse(http: &HttpRequest, mut body: &'a [u8]) -> Self {
        let mut form = Self::default();
        let content_type = http.headers().get("content-type").and_then(|it| it.to_str().ok());
        let Some((_, boundary)) = content_type.and_then(|text| text.split_once("boundary=")) else {
            return form;
        };
        let delimiter = format!("\r\n--{}", boundary.trim_matches('"'));
        body = body.strip_prefix(delimiter.trim_start().as_bytes()).unwrap_or_default();
        while let Some(part) = body.strip_prefix(b"\r\n") {
            let Some(end) = memmem::find(part, delimiter.as_bytes()) else { break };
            let (whole, rest) = part.split_at(end);
            body = rest.strip_prefix(delimiter.as_bytes()).unwrap_or_default();
            let Some(head_end) = memmem::find(whole, b"\r\n\r\n") else { break };
            let (head, content) = whole.split_at(head_end);
            let (head, content) = (String::from_utf8_lossy(head), content.get(4..).unwrap_or(&[]));
            let quoted = |key: &str| {
                let (_, value) = head.split_once(&format!(" {key}=\""))?;
                value.split('"').next().map(str::to_owned)
            };
            let Some(name) = quoted("name") else { continue };
            match name.as_str() {
                "file" => {
                    let file = quoted("filename").unwrap_or_else(|| "file".to_owned());
                    form.file = Some((file, content));
                }
                _ => {
                    form.fields.insert(name, String::from_utf8_lossy(content).into_owned());
                }
            }
        }
        form
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}
