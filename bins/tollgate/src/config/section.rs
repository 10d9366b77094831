//! A table of the configuration, read key by key, so that all errors are reported at once.
//!
//! A derived reader returns a value or the errors of its keys. The checks across keys, such as those of a provider,
//! would have to wait until every key is right.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use tollgate_domain::Issue;
use toml::{Table, Value};

/// A table from which known keys are taken out; the keys that remain are errors.
pub(super) struct Section<'a> {
    path: Vec<String>,
    table: Table,
    /// The keys that were requested, whether the table has them or not.
    known: Vec<String>,
    issues: &'a mut Vec<Issue>,
}

impl<'a> Section<'a> {
    /// The root of a configuration.
    pub(super) fn root(table: Table, issues: &'a mut Vec<Issue>) -> Self {
        Self { path: Vec::new(), table, known: Vec::new(), issues }
    }

    /// Takes a key out.
    fn remove(&mut self, key: &str) -> Option<Value> {
        self.known.push(key.to_owned());
        self.table.remove(key)
    }

    /// The keys that were requested so far.
    #[cfg(test)]
    pub(super) fn known(&self) -> &[String] {
        &self.known
    }

    /// Whether the table has this key, and it is not taken yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Takes a scalar. Environment variables are text, so a number or a flag in quotes is accepted.
    pub(super) fn take<T>(&mut self, key: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let text = match self.remove(key)? {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::Datetime(date) => date.to_string(),
            Value::Float(_) => {
                self.add_error(key, "put it in quotes, so that it is exact");
                return None;
            }
            Value::Array(_) | Value::Table(_) => {
                self.add_error(key, "expected one value");
                return None;
            }
        };
        text.parse()
            .map_err(|why: T::Err| self.add_error(key, plain_message(&why.to_string())))
            .ok()
    }

    /// Takes a scalar that may stand in a file of its own, which `{key}_file` names. A relative path starts at `folder`. The end
    /// of the line in the file is no part of it.
    pub(super) fn take_secret<T>(&mut self, key: &str, folder: &Path) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let file_key = format!("{key}_file");
        // Containers pass on variables without a value.
        let file = self.take::<String>(&file_key).filter(|file| !file.is_empty());
        let Some(file) = file else { return self.take(key) };
        if self.remove(key).is_some_and(|value| value.as_str() != Some("")) {
            self.add_error(&file_key, &format!("must not be there with {key}"));
            return None;
        }
        let text = match std::fs::read_to_string(folder.join(&file)) {
            Ok(text) => text,
            Err(cause) => {
                self.add_error(&file_key, &format!("{file}: {cause}"));
                return None;
            }
        };
        let parsed = text.trim_end_matches(['\r', '\n']).parse();
        // The message of a parser may show a part of the secret.
        parsed.map_err(|_| self.add_error(&file_key, &format!("{file}: it has no {key}"))).ok()
    }

    /// Takes a whole number that must not be 0.
    pub(super) fn take_positive<T>(&mut self, key: &str) -> Option<T>
    where
        T: FromStr + Default + PartialEq,
        T::Err: Display,
    {
        let number = self.take(key)?;
        if number == T::default() {
            self.add_error(key, "must be at least 1");
            return None;
        }
        Some(number)
    }

    /// Takes a scalar that is one of a few words.
    pub(super) fn take_word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text: String = self.take(key)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.add_error(key, &format!("expected {}", words.join(" or ")));
        }
        found
    }

    /// Takes a list of texts.
    pub(super) fn take_texts(&mut self, key: &str) -> Vec<String> {
        let Some(value) = self.remove(key) else { return Vec::new() };
        match value.try_into() {
            Ok(texts) => texts,
            Err(_) => {
                self.add_error(key, "expected an array of strings");
                Vec::new()
            }
        }
    }

    /// Takes a table of tables, in the order of the file.
    pub(super) fn take_tables(&mut self, key: &str) -> Vec<(String, Table)> {
        let Some(value) = self.remove(key) else { return Vec::new() };
        let Value::Table(tables) = value else {
            self.add_error(key, "expected tables, such as [providers.openai]");
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, value) in tables {
            match value {
                Value::Table(table) => found.push((name, table)),
                _ => self.add_issue([key, &name], "expected a table"),
            }
        }
        found
    }

    /// Takes a table.
    pub(super) fn take_table(&mut self, key: &str) -> Option<Table> {
        match self.remove(key)? {
            Value::Table(table) => Some(table),
            _ => {
                self.add_error(key, "expected a table");
                None
            }
        }
    }

    /// Takes an array of tables.
    pub(super) fn take_rows(&mut self, key: &str) -> Vec<Table> {
        let Some(value) = self.remove(key) else { return Vec::new() };
        match value.try_into() {
            Ok(rows) => rows,
            Err(_) => {
                self.add_error(key, "expected tables, such as [[prices]]");
                Vec::new()
            }
        }
    }

    /// Notes an error of a key.
    pub(super) fn add_error(&mut self, key: &str, what: &str) {
        self.add_issue([key], what);
    }

    /// Notes an error at a path below this table. Without keys, it is of the whole table.
    pub(super) fn add_issue<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>, what: &str) {
        let below = keys.into_iter().map(str::to_owned);
        let path = self.path.iter().cloned().chain(below).collect();
        self.issues.push(Issue { path, message: what.to_owned() });
    }

    /// A table below this one, with the same list of issues.
    pub(super) fn subsection<'k>(
        &mut self,
        keys: impl IntoIterator<Item = &'k str>,
        table: Table,
    ) -> Section<'_> {
        let path = self.path.iter().cloned().chain(keys.into_iter().map(str::to_owned)).collect();
        Section { path, table, known: Vec::new(), issues: self.issues }
    }

    /// Reports every key that is not taken as unknown.
    pub(super) fn finish(mut self) {
        let unknown: Vec<_> = self.table.keys().cloned().collect();
        for key in unknown {
            let what = match self.known.iter().find(|known| is_near(known, &key)) {
                Some(near) => format!("is not a key of the configuration; do you mean {near}?"),
                None => "is not a key of the configuration".to_owned(),
            };
            self.add_error(&key, &what);
        }
    }
}

/// Whether two keys differ by at most two letters that are missing, added or replaced.
pub(super) fn is_near(known: &str, typed: &str) -> bool {
    strsim::levenshtein(known, typed) <= 2
}

/// The standard library's message about a number or a flag, in plain words.
fn plain_message(why: &str) -> &str {
    match why {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "must be a whole number, not negative"
        }
        "number too large to fit in target type" => "is too large",
        "provided string was not `true` or `false`" => "must be true or false",
        why => why,
    }
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        for (known, typed, near) in [
            ("listen", "listn", true),
            ("listen", "lsiten", true),
            ("api_key", "apikey", true),
            ("listen", "listener", true),
            ("listen", "colour", false),
            ("catalog", "", false),
        ] {
            assert_eq!(is_near(known, typed), near, "{known} {typed}");
        }
    }
}
