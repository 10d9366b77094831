//! The form of the documentation: pages are short, tables are narrow, and only Internals names files of the source.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use super::layers::root;

/// The most words of prose on a page. Code blocks, tables and lists from the OpenAPI document do not count.
const MOST_WORDS: usize = 1_200;
/// The most columns of a row of a table.
const MOST_COLUMNS: usize = 120;

/// Every page of the site, by its path below the root of the repository.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    find(&root().join("docs"), &mut pages);
    assert!(pages.len() >= 80, "{}", pages.len());
    pages
}

fn find(folder: &Path, pages: &mut Vec<(String, String)>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            find(&path, pages);
        } else if path.extension().is_some_and(|kind| kind == "md") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            pages.push((name, fs::read_to_string(path).unwrap()));
        }
    }
}

/// The lines of a page outside its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// A page without its lists from the OpenAPI document.
fn without_lists(text: &str) -> String {
    let mut parts = text.split("<!-- openapi: ");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |page, part| page + part.split_once("<!-- /openapi -->").unwrap().1)
}

#[test]
fn pages_are_short_and_tables_are_narrow() {
    for (name, text) in pages() {
        let is_row = |line: &&str| line.starts_with('|');
        let words: usize = prose(&without_lists(&text))
            .filter(|line| !is_row(line))
            .map(|line| line.split_whitespace().count())
            .sum();
        assert!(words <= MOST_WORDS, "{name} has {words} words");
        for row in prose(&text).filter(is_row) {
            assert!(row.chars().count() <= MOST_COLUMNS, "{name}: {row}");
        }
    }
}

/// `llms.txt` is the index for language models.
#[test]
fn every_page_is_in_the_index_for_language_models() {
    let index = fs::read_to_string(root().join("docs/llms.txt")).unwrap();
    for (name, text) in pages() {
        let title = text.lines().next().unwrap().trim_start_matches("# ");
        let entry = format!("- [{title}]({})", name.trim_start_matches("docs/"));
        assert!(index.contains(&entry), "{entry}");
    }
}

#[test]
fn only_internals_name_files_of_the_source() {
    for (name, text) in pages() {
        if name.starts_with("docs/internals/") {
            continue;
        }
        for line in prose(&text).filter(|line| !line.starts_with("<!--")) {
            let mut code = line.split('`').skip(1).step_by(2);
            let path = code.find(|code| {
                code.ends_with(".rs") || code.starts_with("crates/") || code.starts_with("bins/")
            });
            assert_eq!(path, None, "{name}: {line}");
        }
    }
}
