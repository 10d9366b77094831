//! Forms (`multipart/form-data`, RFC 7578): speech and images are sent so, with the model in a field
//! of its own beside the file.

use tollgate_domain::Issue;

use super::CallBody;
use super::sound;
use crate::dialect::ModelIn;
use crate::number::count;
use crate::table::Endpoint;

/// No form that a provider takes has more.
const MAX_PARTS: usize = 256;

/// A part of a form.
struct Part<'a> {
    name: String,
    is_file: bool,
    content: &'a [u8],
}

/// The boundary in a content type, if that is one of a form.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut parameters = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"))?;
    let value = value.trim().trim_matches('"');
    (1..=70).contains(&value.len()).then(|| value.to_owned())
}

/// Reads a form. The same fields decide about money as in a JSON body, and each may stand only once.
pub(super) fn inspect(
    body: &[u8],
    boundary: &str,
    endpoint: &Endpoint,
    managed: bool,
) -> Result<CallBody, Vec<Issue>> {
    let Some(parts) = parts(body, boundary) else {
        return Err(vec![Issue::at([], "the body is not a form with the boundary of its header")]);
    };
    let mut call = CallBody::empty();
    let mut issues = Vec::new();
    let model_field = match endpoint.operation.map(|operation| operation.model) {
        Some(ModelIn::Body(name) | ModelIn::MaybeBody(name)) => name,
        _ => "model",
    };
    let once = [model_field, "stream", "n", "response_format"];
    for name in once {
        if parts.iter().filter(|part| part.name == name).count() > 1 {
            issues.push(Issue::at([name], "must not occur more than once"));
        }
    }
    let text = |name: &str| {
        let part = parts.iter().find(|part| part.name == name && !part.is_file)?;
        Some(std::str::from_utf8(part.content).ok()?.trim().to_owned())
    };
    call.model = endpoint.named_model().or_else(|| text(model_field));
    call.model = call.model.take().filter(|model| !model.is_empty());
    let required =
        endpoint.operation.is_some_and(|operation| matches!(operation.model, ModelIn::Body(_)));
    if required && call.model.is_none() {
        issues.push(Issue::at([model_field], "required: the model as a field of the form"));
    }
    match text("stream").as_deref() {
        Some("true" | "True" | "1") => call.stream = true,
        None | Some("" | "false" | "False" | "0") => {}
        Some(_) => issues.push(Issue::at(["stream"], "must be true or false")),
    }
    if let Some(number) = text("n") {
        match count(&number) {
            Some(number) => call.choices = number.max(1),
            None => issues.push(Issue::at(["n"], "must be a whole number that is not negative")),
        }
    }
    // What is fetched from elsewhere, or sent there, cannot be measured here.
    for name in ["file_id", "file_url", "cloud_storage_url", "source_url", "webhook", "url"] {
        if parts.iter().any(|part| part.name == name) {
            match managed && matches!(name, "file_id" | "webhook") {
                true => issues.push(Issue::at([name], super::inspect::STORED_STATE)),
                false => drop(call.open_ended.get_or_insert_with(|| vec![name.to_owned()])),
            }
        }
    }
    let files = || parts.iter().filter(|part| part.is_file);
    call.findings.images = u64::try_from(files().count()).unwrap_or(u64::MAX);
    let sounds: Vec<_> = files().map(|file| sound::length(file.content)).collect();
    call.audio_micros = sounds.iter().fold(0, |sum, sound| sum.saturating_add(sound.micros));
    call.audio_is_exact = sounds.iter().all(|sound| sound.is_exact);
    // Files are counted in other units; what is written beside them goes in as text.
    let written: usize =
        parts.iter().filter(|part| !part.is_file).map(|part| part.content.len()).sum();
    call.input_bytes = u64::try_from(written).unwrap_or(u64::MAX);
    if issues.is_empty() { Ok(call) } else { Err(issues) }
}

/// The parts of a form that is whole; none if it is not.
fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<Part<'a>>> {
    let delimiter = format!("--{boundary}");
    let between = format!("\r\n{delimiter}");
    let mut rest = body.strip_prefix(delimiter.as_bytes()).or_else(|| {
        let at = memchr::memmem::find(body, between.as_bytes())?;
        body.get(at..)?.strip_prefix(between.as_bytes())
    })?;
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        let start = memchr::memchr(b'\n', rest)?.checked_add(1)?;
        let part = rest.get(start..)?;
        let end = memchr::memmem::find(part, between.as_bytes())?;
        parts.push(read_part(part.get(..end)?)?);
        rest = part.get(end..)?.strip_prefix(between.as_bytes())?;
        if parts.len() > MAX_PARTS {
            return None;
        }
    }
    Some(parts)
}

fn read_part(part: &[u8]) -> Option<Part<'_>> {
    let (head, content) = match part.strip_prefix(b"\r\n") {
        Some(content) => (&b""[..], content),
        None => {
            let end = memchr::memmem::find(part, b"\r\n\r\n")?;
            (part.get(..end)?, part.get(end..)?.strip_prefix(b"\r\n\r\n")?)
        }
    };
    let head = std::str::from_utf8(head).ok()?;
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let parameter = |wanted: &str| {
        let mut parameters =
            disposition.split(';').filter_map(|parameter| parameter.split_once('='));
        let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case(wanted))?;
        Some(value.trim().trim_matches('"').to_owned())
    };
    let is_file = parameter("filename").is_some() || disposition.contains("filename*=");
    Some(Part { name: parameter("name")?, is_file, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_is_found_in_any_spelling() {
        let table = [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"", Some("a b")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("application/json; boundary=abc", None),
        ];
        for (content_type, expected) in table {
            assert_eq!(boundary(content_type).as_deref(), expected, "{content_type}");
        }
    }

    #[test]
    fn parts_are_told_apart_whatever_they_hold() {
        let body = b"preamble\r\n--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\
            whisper-1\r\n--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a;b\"\r\n\
            Content-Type: audio/wav\r\n\r\n\r\n--y\r\n\0\xff\r\n--x--\r\n";
        let parts = parts(body, "x").unwrap();
        let read: Vec<_> =
            parts.iter().map(|part| (part.name.as_str(), part.is_file, part.content)).collect();
        assert_eq!(
            read,
            [("model", false, &b"whisper-1"[..]), ("file", true, &b"\r\n--y\r\n\0\xff"[..])]
        );
        for cut in 0..body.len() - 4 {
            assert!(super::parts(&body[..cut], "x").is_none(), "cut at {cut}");
        }
        assert!(super::parts(b"", "x").is_none() && super::parts(b"--x", "x").is_none());
    }
}
