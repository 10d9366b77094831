//! Price list files as text, one row a line.

use std::fmt::Write;
use tollgate_pricing::{CatalogFile, PriceRow};

/// The line of a row in a file; empty if it cannot be serialized.
pub(crate) fn line(row: &PriceRow) -> String {
    spaced(&serde_json::to_string(row).unwrap_or_default())
}

/// The JSON with a space after every comma and colon outside strings.
fn spaced(json: &str) -> String {
    let mut text = String::with_capacity(json.len().saturating_mul(5) / 4);
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        text.push(c);
        match c {
            '"' if !escaped => in_string = !in_string,
            ',' | ':' if !in_string => text.push(' '),
            _ => (),
        }
        escaped = c == '\\' && !escaped;
    }
    text
}

/// A price list file as JSON text, one row a line. Reading it returns the same file.
pub fn to_text(file: &CatalogFile) -> String {
    let mut text = String::from("{");
    let json = |value: serde_json::Result<String>| spaced(&value.unwrap_or_default());
    if let Some(released) = &file.released {
        let _ = write!(text, "\"released\": {},\n ", json(serde_json::to_string(released)));
    }
    if !file.sources.is_empty() {
        let _ = write!(text, "\"sources\": {},\n ", json(serde_json::to_string(&file.sources)));
    }
    if !file.fallbacks.is_empty() {
        let fallbacks = json(serde_json::to_string(&file.fallbacks));
        let _ = write!(text, "\"fallbacks\": {fallbacks},\n ");
    }
    text.push_str("\"rows\": [");
    for (place, row) in file.rows.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(text, "{comma}\n  {}", line(row));
    }
    text.push_str("\n]}\n");
    text
}
