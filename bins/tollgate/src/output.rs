//! Standard output. A reader that closes it early, such as `head`, is not an error; a full disk is one.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::{Context, anyhow};
use serde_json::Value;
use tollgate_api::ApiError;
use tollgate_domain::Issue;

/// Prints a line.
pub(crate) fn print_line(line: impl Display) -> anyhow::Result<()> {
    ignore_broken_pipe(writeln!(std::io::stdout(), "{line}"))
}

/// Prints lines.
pub(crate) fn print_lines(lines: &[String]) -> anyhow::Result<()> {
    lines.iter().try_for_each(print_line)
}

/// Prints a part of CSV, whose header is printed with the first part only.
pub(crate) fn print_csv(text: &[u8], is_first: bool) -> anyhow::Result<()> {
    let skipped = match is_first {
        true => 0,
        false => text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1),
    };
    print_bytes(text.get(skipped..).unwrap_or_default())
}

/// Aligns columns: the first `texts` to the left, and the figures after them to the right.
pub(crate) fn table(rows: &[Vec<String>], texts: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            match column < texts {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Prints a list: JSON lines, or on a terminal columns below a header. Without a terminal there is no header, so that
/// each line is an item.
pub(crate) fn print_list<const N: usize>(
    json: bool,
    header: [&str; N],
    items: Vec<(Value, [String; N])>,
) -> anyhow::Result<()> {
    if json {
        return items.iter().try_for_each(|(value, _)| print_line(value));
    }
    let rows = items.into_iter().map(|(_, row)| row.to_vec());
    let header = header.map(str::to_owned).to_vec();
    let header = std::io::stdout().is_terminal().then_some(header);
    let rows: Vec<_> = header.into_iter().chain(rows).collect();
    print_lines(&table(&rows, N))
}

/// Prints `value` as JSON, or `text` for people.
pub(crate) fn print(json: bool, value: &Value, text: &str) -> anyhow::Result<()> {
    if json { print_line(value) } else { print_line(text) }
}

/// Prints a secret that is shown only once. Here a closed standard output is an error, because the secret is
/// lost. The message names `made`, so that the operator can undo it.
pub(crate) fn print_secret(
    json: bool,
    value: &Value,
    text: &str,
    made: &str,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let printed = if json { writeln!(out, "{value}") } else { writeln!(out, "{text}") };
    printed.and_then(|()| out.flush()).with_context(|| {
        format!(
            "{made} is made, and its key could not be printed: `tollgate key create` makes another"
        )
    })
}

/// Prints text that has its own line ends.
pub(crate) fn print_bytes(text: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    ignore_broken_pipe(out.write_all(text).and_then(|()| out.flush()))
}

fn ignore_broken_pipe(printed: std::io::Result<()>) -> anyhow::Result<()> {
    match printed {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            Err(cause).context("it is done, but not everything could be printed")
        }
        _ => Ok(()),
    }
}

/// A text that others chose, for a terminal: its control characters are escaped, so that the terminal does not run
/// them.
pub(crate) fn printable(text: &str) -> String {
    match text.contains(char::is_control) {
        true => text.escape_debug().collect(),
        false => text.to_owned(),
    }
}

/// An error with each of its issues on its own line.
pub(crate) fn with_issues(error: impl Into<ApiError>) -> anyhow::Error {
    with_named_issues(error, str::to_owned)
}

/// As [`with_issues`], with other names of the fields.
pub(crate) fn with_named_issues(
    error: impl Into<ApiError>,
    name: impl Fn(&str) -> String,
) -> anyhow::Error {
    let error = error.into();
    let line = |issue: &Issue| format!("\n  {}: {}", name(&issue.path.join(".")), issue.message);
    let lines: Vec<_> = error.issues().iter().map(line).collect();
    anyhow!("{error}{}", lines.concat())
}
