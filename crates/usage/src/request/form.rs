//! Forms (`multipart/form-data`, RFC 7578): the format of speech and images, with the model in a
//! field beside the file.

use crate::issue::Issue;

use super::audio;
use super::body::{InspectedBody, OPENAI_VIDEO};
use super::edit::range_within;
use super::scan::{STORED_STATE, folded};
use crate::dialect::ModelLocation;
use crate::endpoint::EndpointFormat;
use crate::number::count;

/// The most parts of a form. No form that a provider takes has more.
const MAX_PARTS: usize = 256;

/// A part of a form.
struct FormPart<'a> {
    name: String,
    is_file: bool,
    content: &'a [u8],
}

/// The boundary in the parameters of `multipart/form-data`. Servers read quotes, escapes and
/// repeated parameters in different ways, and the boundary decides which part is the model. So it
/// is accepted only if there is one way to read it.
pub(super) fn boundary(parameters: Option<&str>) -> Option<String> {
    let (name, value) = parameters?.trim().split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("boundary") {
        return None;
    }
    let value = value.trim();
    let plain = |text: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&b);
        (1..=70).contains(&text.len()) && text.bytes().all(allowed) && !text.ends_with(' ')
    };
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let token = || {
        Some(value).filter(|value| !value.contains([' ', '"', '=', ',', '?', ':', '/', '(', ')']))
    };
    quoted.or_else(token).filter(|value| plain(value)).map(str::to_owned)
}

/// Reads a form. The same fields decide about money as in a JSON body, and each may occur once.
pub(super) fn inspect(
    body: &[u8],
    boundary: &str,
    endpoint: &EndpointFormat,
    managed: bool,
) -> Result<InspectedBody, Vec<Issue>> {
    let Some(parts) = parts(body, boundary) else {
        let message = "the body is not a form with the boundary of its header, written plainly";
        return Err(vec![Issue::at([], message)]);
    };
    let mut call = InspectedBody::empty();
    let mut issues = Vec::new();
    let model_field = match endpoint.operation.map(|operation| operation.model) {
        Some(ModelLocation::Body(name) | ModelLocation::MaybeBody(name)) => name,
        _ => "model",
    };
    let once = [model_field, "stream", "n", "response_format", "seconds", "size"];
    for name in once {
        if parts.iter().filter(|part| part.name == name).count() > 1 {
            issues.push(Issue::at([name], "must not occur more than once"));
        }
    }
    // Some servers fold letters, and read a list as its last item.
    for part in &parts {
        let seen = folded(&part.name).unwrap_or_else(|| part.name.clone());
        let seen = seen.trim_end_matches("[]");
        if (once.contains(&seen) && part.name != seen) || seen == "_charset_" {
            issues.push(Issue::at([&part.name], "must be written as the provider documents it"));
        }
    }
    let text = |name: &str| {
        let part = parts.iter().find(|part| part.name == name && !part.is_file)?;
        Some(std::str::from_utf8(part.content).ok()?.trim().to_owned())
    };
    let written = parts.iter().find(|part| part.name == model_field && !part.is_file);
    call.model_range = written.and_then(|part| range_within(body, part.content));
    call.is_form = true;
    call.model = endpoint.named_model().or_else(|| text(model_field));
    call.model = call.model.take().filter(|model| !model.is_empty());
    let required = endpoint
        .operation
        .is_some_and(|operation| matches!(operation.model, ModelLocation::Body(_)));
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
    if endpoint.creates_video() {
        call.set_video(&OPENAI_VIDEO, text("seconds").as_deref(), text("size").as_deref());
    }
    // Content that the provider fetches elsewhere, or sends elsewhere, cannot be measured here.
    for name in ["file_id", "file_url", "cloud_storage_url", "source_url", "webhook", "url"] {
        if parts.iter().any(|part| part.name == name) {
            match managed && matches!(name, "file_id" | "webhook") {
                true => issues.push(Issue::at([name], STORED_STATE)),
                false => drop(call.open_ended.get_or_insert_with(|| vec![name.to_owned()])),
            }
        }
    }
    let files = || parts.iter().filter(|part| part.is_file);
    call.findings.images = u64::try_from(files().count()).unwrap_or(u64::MAX);
    let sounds: Vec<_> = files().map(|file| audio::length(file.content)).collect();
    call.audio_micros = sounds.iter().fold(0, |sum, sound| sum.saturating_add(sound.micros));
    call.audio_is_exact = sounds.iter().all(|sound| sound.is_exact);
    // Files are counted in other units. The other parts count as text.
    let written: usize =
        parts.iter().filter(|part| !part.is_file).map(|part| part.content.len()).sum();
    call.input_bytes = u64::try_from(written).unwrap_or(u64::MAX);
    if issues.is_empty() { Ok(call) } else { Err(issues) }
}

/// The model that a form names.
pub(super) fn model(body: &[u8], boundary: &str) -> Option<String> {
    let parts = parts(body, boundary)?;
    let part = parts.iter().find(|part| part.name == "model" && !part.is_file)?;
    let model = std::str::from_utf8(part.content).ok()?.trim();
    Some(model.to_owned()).filter(|model| !model.is_empty())
}

/// The parts of a whole form that begins with its first part; else `None`.
fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<FormPart<'a>>> {
    let delimiter = format!("--{boundary}");
    let between = format!("\r\n{delimiter}");
    let mut rest = body.strip_prefix(delimiter.as_bytes())?;
    let mut parts = Vec::new();
    while !rest.starts_with(b"--") {
        let part = rest.strip_prefix(b"\r\n")?;
        let end = memchr::memmem::find(part, between.as_bytes())?;
        parts.push(read_part(part.get(..end)?)?);
        rest = part.get(end..)?.strip_prefix(between.as_bytes())?;
        if parts.len() > MAX_PARTS {
            return None;
        }
    }
    // Nothing may follow the last boundary.
    rest.strip_prefix(b"--").filter(|rest| rest.trim_ascii().is_empty())?;
    Some(parts)
}

fn read_part(part: &[u8]) -> Option<FormPart<'_>> {
    let end = memchr::memmem::find(part, b"\r\n\r\n")?;
    let (head, content) = (part.get(..end)?, part.get(end..)?.strip_prefix(b"\r\n\r\n")?);
    let (name, is_file) = read_head(std::str::from_utf8(head).ok()?)?;
    Some(FormPart { name, is_file, content })
}

/// The name of a part, and whether it is a file, by its head.
pub(super) fn read_head(head: &str) -> Option<(String, bool)> {
    let (mut disposition, mut content_type) = (None, "");
    for line in head.split("\r\n") {
        let (name, value) = line.split_once(':')?;
        // A line that continues in the next one, or contains a line end.
        if name.is_empty() || name.contains([' ', '\t', '\n', '\r']) || value.contains(['\n', '\r'])
        {
            return None;
        }
        // The header says that the content differs from its bytes.
        if ["content-transfer-encoding", "content-encoding"]
            .iter()
            .any(|encoding| name.eq_ignore_ascii_case(encoding))
        {
            return None;
        }
        if name.eq_ignore_ascii_case("content-type") {
            content_type = value;
        }
        if name.eq_ignore_ascii_case("content-disposition")
            && disposition.replace(value.trim()).is_some()
        {
            return None;
        }
    }
    let (name, is_file) = read_disposition(disposition?)?;
    // A part is also a file by its field name, if it has no file name.
    let is_file = is_file || FILE_FIELDS.contains(&name.trim_end_matches("[]"));
    let charset = content_type.split_once(';').map(|(_, parameters)| parameters.trim());
    if !is_file && charset.is_some_and(|charset| !charset.eq_ignore_ascii_case("charset=utf-8")) {
        return None;
    }
    Some((name, is_file))
}

/// Fields that are files in every form of a provider.
const FILE_FIELDS: [&str; 4] = ["file", "image", "mask", "audio"];

/// The name in `form-data; name="…"`, and whether a `filename` follows. Other parameters are
/// refused, and characters that some servers take for an escape.
fn read_disposition(disposition: &str) -> Option<(String, bool)> {
    let rest = disposition.strip_prefix("form-data;")?.trim_start();
    let (name, rest) = rest.strip_prefix("name=\"")?.split_once('"')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-[].".contains(&b);
    if name.is_empty() || !name.bytes().all(plain) {
        return None;
    }
    if rest.is_empty() {
        return Some((name.to_owned(), false));
    }
    let (file, rest) =
        rest.strip_prefix(';')?.trim_start().strip_prefix("filename=\"")?.split_once('"')?;
    let rest = rest.trim_start();
    // The same file name, in a second encoding (RFC 5987).
    let is_encoded = || {
        let encoded = rest.strip_prefix(';').map(str::trim_start);
        encoded
            .and_then(|rest| rest.strip_prefix("filename*="))
            .is_some_and(|rest| !rest.contains(';'))
    };
    let is_plain = !file.contains(['\\', ';']) || !file.contains('=');
    (is_plain && (rest.is_empty() || is_encoded())).then(|| (name.to_owned(), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_is_what_every_server_takes_for_it() {
        let table = [
            ("boundary=abc", Some("abc")),
            ("Boundary=\"a b'c\"", Some("a b'c")),
            ("", None),
            ("boundary=", None),
            ("boundary=\"a;b\"", None),
            ("boundary=a; boundary=b", None),
            ("boundary=a; charset=utf-8", None),
            ("charset=utf-8; boundary=a", None),
            ("x=\"; boundary=a\"; boundary=b", None),
            ("boundary=\"a\\\"b\"", None),
        ];
        for (parameters, expected) in table {
            assert_eq!(boundary(Some(parameters)).as_deref(), expected, "{parameters}");
        }
    }

    #[test]
    fn parts_are_told_apart_whatever_they_hold() {
        let body = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\
            whisper-1\r\n--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a b\"\r\n\
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
        assert!(super::parts(&[&b"preamble\r\n"[..], body].concat(), "x").is_none());
        assert!(super::parts(&[&body[..], b"--x\r\n"].concat(), "x").is_none());
    }

    #[test]
    fn a_disposition_that_may_be_read_in_two_ways_is_none() {
        for plain in [
            r#"form-data; name="model""#,
            r#"form-data; name="image[]"; filename="a.png""#,
            r#"form-data; name="file"; filename="a.wav"; filename*=UTF-8''a.wav"#,
        ] {
            assert!(read_disposition(plain).is_some(), "{plain}");
        }
        for doubtful in [
            r#"form-data; x="; name=model"; name="other""#,
            r#"form-data; name="mo\del""#,
            r#"form-data; name=model"#,
            r#"form-data; name="other"; name="model""#,
            r#"form-data; name="x"; name*=utf-8''model"#,
            r#"form-data; filename="a"; name="model""#,
            r#"form-data; name="x"; filename="a\"; name=\"model""#,
            r#"attachment; name="model""#,
            r#"form-data; name="""#,
        ] {
            assert_eq!(read_disposition(doubtful), None, "{doubtful}");
        }
    }
}
