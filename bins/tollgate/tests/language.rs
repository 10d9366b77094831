//! The language of the code: comments use plain words, and the terms of `docs/get-started/glossary.md`.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::layers::{packages, root};

/// Words and phrases that comments do not use, with plain ones for each.
const PHRASES: [(&str, &str); 23] = [
    ("whoever", "the caller, a client, a process"),
    ("anew", "again"),
    ("is told", "is notified, is reported"),
    ("are told", "are notified, are reported"),
    ("on its way", "in flight"),
    ("on their way", "in flight"),
    ("of ours", "of this service"),
    ("dearer", "more expensive"),
    ("dearest", "most expensive, highest"),
    ("besides", "also, in addition"),
    ("nobody", "no, with a noun"),
    ("somebody", "another, with a noun"),
    ("anybody", "any, with a noun"),
    ("mistake", "error"),
    ("mistakes", "errors"),
    ("so many", "a number of"),
    ("so much", "an amount of"),
    ("those of the store", "the error and when it comes"),
    ("the same of", "the noun itself"),
    ("as it stands", "as it is"),
    ("as they stand", "as they are"),
    ("stands beside", "is beside"),
    ("stand beside", "are beside"),
];

/// Words that a doc comment does not begin with: its subject is a noun.
const BEGINNINGS: [&str; 4] = ["What ", "Who ", "Whose ", "The same,"];

/// Rust files of every package, with their sources.
fn files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    packages().iter().for_each(|folder| find(&root().join(folder), &mut files));
    assert!(files.len() > 300, "{} files", files.len());
    files
}

fn find(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            files.push((path.strip_prefix(root()).unwrap().to_owned(), source));
        }
    }
}

/// Comments of a source, each without its marks: neighbouring lines are one comment.
fn comments(source: &str) -> Vec<String> {
    let mut comments: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in source.lines() {
        let text = line.trim_start().strip_prefix("//");
        match text.map(|text| text.trim_start_matches(['/', '!']).trim()) {
            Some(text) if is_open && !text.is_empty() => {
                let comment = comments.last_mut().unwrap();
                comment.push(' ');
                comment.push_str(text);
            }
            Some(text) => comments.push(text.to_owned()),
            None => {}
        }
        is_open = text.is_some();
    }
    comments
}

/// Doc comments of a source, each a text that begins with its first sentence.
fn doc_comments(source: &str) -> Vec<String> {
    let lines: Vec<_> = source.lines().map(str::trim_start).collect();
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let begins = |at: usize| at == 0 || !is_doc(lines.get(at.wrapping_sub(1)).unwrap_or(&""));
    let docs = lines.iter().enumerate().filter(|(at, line)| is_doc(line) && begins(*at));
    docs.map(|(_, line)| line.trim_start_matches(['/', '!']).trim().to_owned()).collect()
}

/// Phrases of [`PHRASES`] in a text, with what to write.
fn phrases(text: &str) -> Vec<String> {
    let words = text.to_lowercase().replace(|c: char| !c.is_alphanumeric() && c != '\'', " ");
    let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
    let found = PHRASES.iter().filter(|(phrase, _)| words.contains(&format!(" {phrase} ")));
    found.map(|(phrase, better)| format!("{phrase:?} ({better}): {text}")).collect()
}

#[test]
fn comments_use_plain_words() {
    // This file names what it refuses.
    let others = files().into_iter().filter(|(path, _)| !path.ends_with("tests/language.rs"));
    let mut found = Vec::new();
    for (path, source) in others {
        let texts = comments(&source);
        let here = texts.iter().flat_map(|text| phrases(text));
        found.extend(here.map(|phrase| format!("{}: {phrase}", path.display())));
    }
    assert!(found.is_empty(), "{} phrases:\n{}", found.len(), found.join("\n"));
}

/// String literals of a source, up to its tests.
fn strings(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut strings = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, found) = rest.split_at(at);
        rest = if let Some(comment) = found.strip_prefix("//") {
            comment.split_once('\n').map_or("", |(_, rest)| rest)
        } else if let Some(rest) = found.strip_prefix("'\"'").or(found.strip_prefix("'\\\"'")) {
            rest
        } else if let Some(text) = found.strip_prefix('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before.trim_end_matches('#').ends_with('r');
            let end = match is_raw {
                true => text.find(&format!("\"{}", "#".repeat(hashes))),
                false => end_of_string(text),
            };
            let (string, rest) = text.split_at(end.unwrap_or(text.len()));
            strings.push(string.to_owned());
            rest.strip_prefix('"').unwrap_or_default()
        } else {
            &found[1..]
        };
    }
    strings
}

/// The position of the quote that ends a string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

#[test]
fn messages_use_plain_words() {
    let mut found = Vec::new();
    // Messages of helpers of tests are for developers.
    let sources = files().into_iter().filter(|(path, _)| {
        path.iter().any(|part| part == "src") && !path.starts_with("crates/testkit")
    });
    for (path, source) in sources {
        let here = strings(&source).into_iter().flat_map(|text| phrases(&text));
        found.extend(here.map(|phrase| format!("{}: {phrase}", path.display())));
    }
    assert!(found.is_empty(), "{} phrases:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_string_is_found_whatever_it_contains_and_a_comment_is_none() {
    let source = r##"
        let a = "one \" two"; // "no"
        let b = ('"', '\'', "three", r#"four " five"#);
        #[cfg(test)]
mod tests { "no" }"##;
    assert_eq!(strings(source), ["one \\\" two", "three", "four \" five"]);
}

#[test]
fn doc_comments_begin_with_a_noun() {
    let mut found = Vec::new();
    for (path, source) in files() {
        let here = doc_comments(&source).into_iter();
        let here = here.filter(|doc| BEGINNINGS.iter().any(|word| doc.starts_with(word)));
        found.extend(here.map(|doc| format!("{}: {doc}", path.display())));
    }
    assert!(found.is_empty(), "{} doc comments:\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    // The front page of a crate may be its README.
    let says = |source: &str| {
        let mut lines = source.lines();
        lines.any(|line| line.starts_with("//!") || line.starts_with("#![doc = include_str!"))
    };
    let silent: Vec<_> =
        files().into_iter().filter(|(_, source)| !says(source)).map(|(path, _)| path).collect();
    assert!(silent.is_empty(), "{silent:#?}");
}

/// The types that the sources of all packages define, each with its files.
fn type_definitions() -> BTreeMap<String, Vec<PathBuf>> {
    let mut types: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (path, source) in files() {
        for line in source.lines() {
            if let Some(name) = defined_type(line) {
                types.entry(name.to_owned()).or_default().push(path.clone());
            }
        }
    }
    types
}

/// The type that a line defines. An alias within an `impl` or a trait is none.
fn defined_type(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => item,
    };
    let (kind, rest) = item.split_once(' ')?;
    let is_type = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.get(..end).filter(|name| is_type && name.starts_with(char::is_uppercase))
}

#[test]
fn a_type_name_has_at_most_two_definitions() {
    let shared: BTreeMap<_, _> =
        type_definitions().into_iter().filter(|(_, files)| files.len() > 2).collect();
    assert!(shared.is_empty(), "{shared:#?}");
}

#[test]
fn a_definition_is_found_whatever_its_visibility_and_an_associated_type_is_none() {
    for (line, name) in [
        ("struct Purse;", Some("Purse")),
        ("    pub(in crate::a) enum Kind<T> {", Some("Kind")),
        ("pub type Rows = Vec<Row>;", Some("Rows")),
        ("    type Item = u8;", None),
        ("// struct Purse;", None),
        ("structure Purse", None),
    ] {
        assert_eq!(defined_type(line), name, "{line}");
    }
}

#[test]
fn a_phrase_is_found_across_lines_and_as_a_whole_word_only() {
    let found = |source: &str| comments(source).iter().flat_map(|text| phrases(text)).count();
    assert_eq!(found("/// The call is\n/// told of.\nfn a() {} // Plain.\n// Nobody's."), 1);
    assert_eq!(found("//! An anewness.\n//!\n//! Mistaken."), 0);
    assert_eq!(found("    // Mistake\n"), 1);
    assert_eq!(doc_comments("/// What it is.\n/// Who?\nfn a() {}\n/// B"), ["What it is.", "B"]);
}
