//! Settings of the environment, which override the file.

use std::collections::BTreeMap;

use tollgate_domain::Issue;
use toml::{Table, Value};

/// Sets `a.b` to `x` for `TOLLGATE_A__B=x`. Returns each key that was set and each table that was added, with its
/// variable. `TOLLGATE_CONFIG` names the file and is no setting.
pub(super) fn overlay(
    table: &mut Table,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    // The order of providers has a meaning, but the order of environment variables is random.
    let environment: BTreeMap<_, _> = environment.into_iter().collect();
    for (name, value) in environment {
        let Some(path) = name.strip_prefix("TOLLGATE_").filter(|path| *path != "CONFIG") else {
            continue;
        };
        let path = path.to_lowercase();
        let keys: Vec<_> = path.split("__").collect();
        let Some((last, tables)) = keys.split_last() else { continue };
        let mut place = &mut *table;
        for (depth, key) in tables.iter().enumerate() {
            let below = place.entry(*key).or_insert_with(|| {
                let path = keys.iter().take(depth.saturating_add(1)).copied().collect::<Vec<_>>();
                variables.push((path.join("."), name.clone()));
                Value::Table(Table::new())
            });
            if !below.is_table() {
                *below = Value::Table(Table::new());
            }
            let Value::Table(below) = below else { return variables };
            place = below;
        }
        place.insert((*last).to_owned(), Value::String(value));
        variables.push((keys.join("."), name));
    }
    variables
}

/// The line of an issue: its place, the variable that set its key or its table, if one did, and the message.
pub(super) fn line(issue: &Issue, variables: &[(String, String)]) -> String {
    let place = place(&issue.path);
    let table = place.rsplit_once('.').map(|(table, _)| table);
    let of_key = variables.iter().find(|(key, _)| *key == place);
    let variable = of_key.or_else(|| variables.iter().find(|(key, _)| Some(&**key) == table));
    let variable = variable.map(|(_, name)| format!(" ({name})")).unwrap_or_default();
    format!("{place}{variable}: {}", issue.message)
}

/// A path as people write it: `prices[0].model`.
fn place(path: &[String]) -> String {
    path.iter().fold(String::new(), |place, key| match (place.as_str(), key.parse::<usize>()) {
        ("", _) => key.clone(),
        (before, Ok(number)) => format!("{before}[{number}]"),
        (before, Err(_)) => format!("{before}.{key}"),
    })
}
