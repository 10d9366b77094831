//! W3C trace context: which of it is valid, so that a trace passes and nothing else under its name.
//!
//! Tollgate makes no spans. It passes a valid context on unchanged, which the standard calls
//! forwarding. An invalid one is dropped whole, as the standard demands.

use awc::http::header::HeaderMap;

pub(crate) const PARENT: &str = "traceparent";
pub(crate) const STATE: &str = "tracestate";

/// The positions in `00-<trace id>-<parent id>-<flags>`.
const TRACE_ID: std::ops::Range<usize> = 3..35;
const PARENT_ID: std::ops::Range<usize> = 36..52;
const FLAGS: std::ops::Range<usize> = 53..55;
const LENGTH: usize = 55;

/// The length that the standard requires every system to pass on, and the most that passes here.
const MAX_STATE_BYTES: usize = 512;
const MAX_STATE_MEMBERS: usize = 32;

/// The trace id of a request, 32 hexadecimal digits, if a valid context names one.
pub fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let mut parents = headers.get_all(PARENT);
    let parent = parents.next()?.to_str().ok()?;
    // Of two, it is not known which one is meant.
    if parents.next().is_some() {
        return None;
    }
    parse(parent)
}

fn parse(parent: &str) -> Option<&str> {
    let version = parent.get(..2).filter(|version| is_hex(version) && *version != "ff")?;
    let dashes = [2, TRACE_ID.end, PARENT_ID.end];
    let may_go_on = match version {
        "00" => parent.len() == LENGTH,
        // A later version may have more fields.
        _ => parent.get(LENGTH..).is_some_and(|rest| rest.is_empty() || rest.starts_with('-')),
    };
    let is_id = |id: &&str| is_hex(id) && id.bytes().any(|digit| digit != b'0');
    let trace_id = parent.get(TRACE_ID).filter(is_id)?;
    parent.get(PARENT_ID).filter(is_id)?;
    parent.get(FLAGS).filter(|flags| is_hex(flags))?;
    let is_divided = dashes.iter().all(|at| parent.as_bytes().get(*at) == Some(&b'-'));
    (may_go_on && is_divided).then_some(trace_id)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the vendors' trace state can be passed on, beside a valid context.
pub(crate) fn is_valid_state(headers: &HeaderMap) -> bool {
    let (mut members, mut bytes) = (0_usize, 0_usize);
    for value in headers.get_all(STATE) {
        let Ok(value) = value.to_str() else { return false };
        bytes = bytes.saturating_add(value.len());
        for member in value.split(',').map(|member| member.trim_matches([' ', '\t'])) {
            // An empty member is allowed, and has no meaning.
            if !member.is_empty() {
                members = members.saturating_add(1);
                if !is_member(member) {
                    return false;
                }
            }
        }
    }
    members <= MAX_STATE_MEMBERS && bytes <= MAX_STATE_BYTES
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let of_key =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_key = key.bytes().all(of_key) && (1..=256).contains(&key.len());
    let is_value = value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=');
    is_key && is_value && (1..=256).contains(&value.len())
}

#[cfg(test)]
mod tests {
    use awc::http::header::{HeaderName, HeaderValue};

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_trace_is_known_by_a_valid_context_alone() {
        let good = format!("00-{TRACE}-b7ad6b7169203331-01");
        assert_eq!(trace_id(&headers(&[(PARENT, &good)])), Some(TRACE));
        let later = format!("cc-{TRACE}-b7ad6b7169203331-01");
        assert_eq!(parse(&later), Some(TRACE));
        assert_eq!(parse(&format!("{later}-what-the-future-brings")), Some(TRACE));
        for bad in [
            String::new(),
            "00-1-2-01".to_owned(),
            format!("{good}-more"),
            format!("{later}more"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            good.to_uppercase(),
            good.replace(TRACE, &"0".repeat(32)),
            good.replace("b7ad6b7169203331", &"0".repeat(16)),
            good.replace('-', "_"),
            format!("00-{TRACE}-b7ad6b7169203331-0x"),
            format!("00-{TRACE}-b7ad6b716920333é-1"),
            format!(" {good}"),
        ] {
            assert_eq!(parse(&bad), None, "{bad}");
        }
        assert_eq!(trace_id(&headers(&[(PARENT, &good), (PARENT, &good)])), None);
        assert_eq!(trace_id(&headers(&[])), None);
    }

    #[test]
    fn what_vendors_say_passes_as_long_as_it_is_a_short_list() {
        for good in ["congo=t61rcWkgMzE", "a=1, b@c=2,,\trojo=00f067aa0ba902b7", ""] {
            assert!(is_valid_state(&headers(&[(STATE, good)])), "{good}");
        }
        let many: Vec<_> = (0..33).map(|number| format!("k{number}=1")).collect();
        let long = format!("a={}", "x".repeat(257));
        let longest = ["a", "b", "c"].map(|key| format!("{key}={}", "x".repeat(200))).join(",");
        for bad in ["novalue", "A=1", "a=1=2", "=1", "a=", &many.join(","), &long, &longest] {
            assert!(!is_valid_state(&headers(&[(STATE, bad)])), "{bad}");
        }
        assert!(is_valid_state(&headers(&[(STATE, "a=1"), (STATE, "b=2")])));
        assert!(!is_valid_state(&headers(&[(STATE, "a=1"), (STATE, "novalue")])));
    }
}
