//! The model conditions of `genai-prices`, as patterns of price rows.

use serde::Deserialize;
use tollgate_pricing::ModelPattern;

/// A condition on a model id.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelCondition {
    Equals(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Regex(String),
    Or(Vec<ModelCondition>),
    And(Vec<ModelCondition>),
}

/// The regular expression for all ids except speech models, which are listed separately.
const NOT_SPEECH: &str = "^(?!.*-[tT][tT][sS](?:$|-))";
/// The dates at the end of the regular expressions for snapshots. The lookup finds a snapshot by its id
/// without the date.
const DATES: [&str; 3] = [r"-\d{8}$", r"[-@]\d{8}$", r"-\d{4}-\d{2}-\d{2}$"];
/// The region prefixes in Bedrock's ids. Prices that are equal everywhere but in `global` are listed as
/// `regional`.
const BEDROCK_REGIONS: [&str; 9] =
    ["us-gov.", "us.", "eu.", "apac.", "jp.", "au.", "ca.", "sa.", "in."];

impl ModelCondition {
    /// The patterns that match the same ids, and the parts without a pattern.
    pub(crate) fn patterns(&self, provider: &str) -> (Vec<ModelPattern>, Vec<String>) {
        let (mut patterns, mut left_out) = (Vec::new(), Vec::new());
        self.collect(&mut patterns, &mut left_out);
        if provider == "bedrock" {
            patterns = patterns.iter().map(|pattern| without_region(pattern)).collect();
        }
        // Exact ids first, as in the lookup.
        patterns.sort_by_key(|pattern| pattern.contains('*'));
        let mut kept: Vec<ModelPattern> = Vec::new();
        for pattern in patterns.into_iter().map(ModelPattern::new) {
            if !kept.contains(&pattern) {
                kept.push(pattern);
            }
        }
        (kept, left_out)
    }

    fn collect(&self, patterns: &mut Vec<String>, left_out: &mut Vec<String>) {
        match self {
            Self::Equals(id) => patterns.push(id.clone()),
            Self::StartsWith(text) => patterns.push(format!("{text}*")),
            Self::EndsWith(text) => patterns.push(format!("*{text}")),
            Self::Contains(text) => patterns.push(format!("*{text}*")),
            Self::Or(any) => any.iter().for_each(|one| one.collect(patterns, left_out)),
            Self::Regex(regex) => match expand(regex) {
                Some(expanded) => patterns.extend(expanded),
                None => left_out.push(format!("the ids of the regular expression {regex}")),
            },
            Self::And(all) => match all.as_slice() {
                // A prefix that excludes speech: the forms that ids of such a family have.
                [Self::StartsWith(text), Self::Regex(regex)] if regex == NOT_SPEECH => {
                    patterns.push(text.clone());
                    for ending in ["-latest", "-exp*", "-preview", "-preview-0*", "-0*"] {
                        patterns.push(format!("{text}{ending}"));
                    }
                }
                _ => left_out.push(format!("the ids of the condition {all:?}")),
            },
        }
    }
}

/// The patterns of a regular expression with literal text and a known ending.
fn expand(regex: &str) -> Option<Vec<String>> {
    let regex = regex.strip_prefix('^')?;
    let literal = |text: &str| {
        let text = text.replace(r"\.", ".").replace(r"\-", "-");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-./_:".contains(c);
        text.chars().all(plain).then_some(text)
    };
    if let Some(id) = DATES.iter().find_map(|date| regex.strip_suffix(date)) {
        return Some(vec![literal(id)?]);
    }
    if let Some(start) = regex.strip_suffix(r"\d") {
        let start = literal(start)?;
        return Some((0..10).map(|digit| format!("{start}{digit}*")).collect());
    }
    Some(vec![literal(regex.strip_suffix('$')?)?])
}

/// The pattern `*us.anthropic.claude-x*` and the like as `regional.anthropic.claude-x*`. The lookup finds
/// ids of Bedrock without ARN and with `regional` in place of their region.
fn without_region(pattern: &str) -> String {
    let bare = pattern.strip_prefix('*').unwrap_or(pattern);
    let bare = bare.strip_prefix('/').unwrap_or(bare);
    if let Some(rest) = BEDROCK_REGIONS.iter().find_map(|region| bare.strip_prefix(region)) {
        return format!("regional.{rest}");
    }
    match bare.starts_with("global.") {
        true => bare.to_owned(),
        false => pattern.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(provider: &str, json: &str) -> (Vec<String>, usize) {
        let clause: ModelCondition = serde_json::from_str(json).unwrap();
        let (patterns, left_out) = clause.patterns(provider);
        (patterns.iter().map(|one| one.as_str().to_owned()).collect(), left_out.len())
    }

    #[test]
    fn conditions_become_patterns() {
        let table: [(&str, &str, &[&str], usize); 8] = [
            ("openai", r#"{"equals": "m"}"#, &["m"], 0),
            (
                "openai",
                r#"{"or": [{"starts_with": "m-"}, {"ends_with": "-n"}, {"contains": "o"}]}"#,
                &["m-*", "*-n", "*o*"],
                0,
            ),
            // The lookup removes the date of a snapshot.
            (
                "openai",
                r#"{"or": [{"equals": "m-5.6"}, {"regex": "^m-5\\.6-\\d{4}-\\d{2}-\\d{2}$"}]}"#,
                &["m-5.6"],
                0,
            ),
            ("anthropic", r#"{"regex": "^m[-@]\\d{8}$"}"#, &["m"], 0),
            ("openai", r#"{"regex": "^m(a|b)$"}"#, &[], 1),
            ("openai", r#"{"and": [{"contains": "a"}, {"contains": "b"}]}"#, &[], 1),
            (
                "google",
                r#"{"and": [{"starts_with": "m"}, {"regex": "^(?!.*-[tT][tT][sS](?:$|-))"}]}"#,
                &["m", "m-preview", "m-latest", "m-exp*", "m-preview-0*", "m-0*"],
                0,
            ),
            (
                "bedrock",
                r#"{"or": [{"contains": "us.v.m"}, {"contains": "eu.v.m"}, {"starts_with": "v.m"},
                    {"contains": "global.v.m"}, {"ends_with": "/in.v.n"}]}"#,
                &["regional.v.n", "regional.v.m*", "v.m*", "global.v.m*"],
                0,
            ),
        ];
        for (provider, json, expected, left_out) in table {
            let (mut read, not_read) = patterns(provider, json);
            let mut expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
            read.sort();
            expected.sort();
            assert_eq!((read, not_read), (expected, left_out), "{json}");
        }
    }
}
