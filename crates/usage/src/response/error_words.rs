//! The words of a provider about an error, from the body of its answer.

use serde_json::Value;

/// The words of a provider about an error. What looks like a credential is replaced by `***`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorWords {
    /// The type of the error: `insufficient_quota`, `overloaded_error`, `RESOURCE_EXHAUSTED`.
    pub kind: Option<String>,
    /// The code of the error.
    pub code: Option<String>,
    /// The first 500 characters of the message.
    pub message: Option<String>,
}

/// The most characters of a message.
const MESSAGE_CHARS: usize = 500;
/// The most characters of a type or a code.
const WORD_CHARS: usize = 100;

impl ErrorWords {
    /// Reads the words of a JSON body: `{"error": {"type", "code", "message"}}`, and the forms in which providers
    /// depart from it.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        // Google answers a stream with a list.
        let body = match &body {
            Value::Array(items) => items.first()?,
            body => body,
        };
        let error = body.get("error").or_else(|| body.get("detail")).unwrap_or(body);
        // FastAPI lists what is wrong with a request.
        let error = error.as_array().and_then(|all| all.first()).unwrap_or(error);
        let word = |names: &[&str]| {
            let mut found = names.iter().filter_map(|name| error.get(name));
            let found = found.find_map(as_word)?;
            Some(first_chars(&without_credentials(&found), WORD_CHARS))
        };
        let message = match error {
            Value::String(message) => Some(message.clone()),
            error => {
                let named = ["message", "msg", "detail"].iter().filter_map(|name| error.get(name));
                let mut texts = named.filter_map(Value::as_str);
                texts.next().map(str::to_owned)
            }
        };
        let words = Self {
            kind: word(&["type", "status"]),
            code: word(&["code", "err_code"]),
            message: message
                .map(|message| without_credentials(&first_chars(&message, MESSAGE_CHARS))),
        };
        (words != Self::default()).then_some(words)
    }
}

fn as_word(value: &Value) -> Option<String> {
    match value {
        Value::String(word) if !word.is_empty() => Some(word.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn first_chars(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The beginnings of the keys of providers and of this service.
const KEY_PREFIXES: [&str; 16] = [
    "sk-", "sk_", "pk-", "pk_", "rk_", "AIza", "xai-", "gsk_", "hf_", "r8_", "AKIA", "ASIA",
    "ya29.", "tgs_", "tgk_", "eyJ",
];
/// The shortest run of letters and digits that counts as a credential.
const LONG_RUN: usize = 24;

/// Replaces the words of a text that look like credentials.
fn without_credentials(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let mut word = String::new();
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || "_-.*+/=".contains(letter);
    for letter in text.chars().chain([' ']) {
        if is_of_word(letter) {
            word.push(letter);
            continue;
        }
        cleaned.push_str(if is_credential(&word) { "***" } else { &word });
        word.clear();
        cleaned.push(letter);
    }
    // The space at the end was added above.
    cleaned.pop();
    cleaned
}

/// Whether a word, or a part of a URL or of an assignment in it, looks like a credential.
fn is_credential(word: &str) -> bool {
    word.split(['=', '/']).any(|part| {
        let has_prefix = KEY_PREFIXES.iter().any(|prefix| part.starts_with(prefix));
        (has_prefix && part.len() > 8) || is_uuid(part) || part.split(['-', '.']).any(is_long_run)
    })
}

fn is_long_run(run: &str) -> bool {
    run.len() >= LONG_RUN
        && run.bytes().any(|byte| byte.is_ascii_digit())
        && run.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Whether a text has the form of a UUID, as some providers' keys do.
fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.trim_end_matches('.').split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12]
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-' || byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_each_provider_are_read() {
        let cases = [
            (
                r#"{"error":{"message":"Slow down","type":"requests","code":"rate_limit_exceeded"}}"#,
                (Some("requests"), Some("rate_limit_exceeded"), Some("Slow down")),
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                (Some("overloaded_error"), None, Some("Overloaded")),
            ),
            (
                r#"[{"error":{"code":429,"message":"Quota","status":"RESOURCE_EXHAUSTED"}}]"#,
                (Some("RESOURCE_EXHAUSTED"), Some("429"), Some("Quota")),
            ),
            (r#"{"message":"invalid api token"}"#, (None, None, Some("invalid api token"))),
            (r#"{"error":"Model not found"}"#, (None, None, Some("Model not found"))),
            (r#"{"detail":"Not Found"}"#, (None, None, Some("Not Found"))),
            (
                r#"{"detail":[{"type":"missing","msg":"Field required"}]}"#,
                (Some("missing"), None, Some("Field required")),
            ),
            (r#"{"err_code":"INVALID_AUTH","err_msg":"x"}"#, (None, Some("INVALID_AUTH"), None)),
        ];
        for (body, (kind, code, message)) in cases {
            let words = ErrorWords::of(body.as_bytes()).unwrap();
            let found = (words.kind.as_deref(), words.code.as_deref(), words.message.as_deref());
            assert_eq!(found, (kind, code, message), "{body}");
        }
        for body in ["", "<html>", "{}", "[]", "3", r#"{"error":{}}"#] {
            assert_eq!(ErrorWords::of(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn credentials_are_cut_out_and_names_of_models_are_not() {
        for (text, expected) in [
            (
                "Incorrect API key provided: sk-proj-abc***wxyz. See docs",
                "Incorrect API key provided: *** See docs",
            ),
            ("key AIzaSyD3adBeef99 is bad", "key *** is bad"),
            ("token a1b2c3d4e5f6a7b8c9d0e1f2a3 expired", "token *** expired"),
            ("no model claude-3-5-sonnet-20241022", "no model claude-3-5-sonnet-20241022"),
            ("deployment gpt-4o-mini-2024-07-18?", "deployment gpt-4o-mini-2024-07-18?"),
            ("ünïcode stays", "ünïcode stays"),
            ("api_key=sk-abcd1234efgh is bad", "*** is bad"),
            ("at https://x.example/y?key=AIzaSyD3adBeef99 now", "at https://x.example/y?*** now"),
            ("key 123e4567-e89b-12d3-a456-426614174000.", "key ***"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
        let long = format!(r#"{{"error":"{}"}}"#, "ä".repeat(900));
        let message = ErrorWords::of(long.as_bytes()).unwrap().message.unwrap();
        assert_eq!(message.chars().count(), 500);
    }
}
