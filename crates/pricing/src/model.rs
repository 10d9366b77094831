//! Model ids: the patterns of price rows, and the forms in which one id may be listed.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A model id, exact or with `*` for any run of characters, ignoring ASCII case.
///
/// `gpt-4o` is exact, `gpt-4o*` matches every id with that beginning, `*gemini-2.0-flash` every id
/// with that end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelPattern(String);

impl ModelPattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether `model` matches.
    pub fn matches(&self, model: &str) -> bool {
        self.matches_lower(&model.to_ascii_lowercase())
    }

    /// Whether an id in lower case matches. Runs for every call, so it copies only where it must.
    fn matches_lower(&self, model: &str) -> bool {
        let pattern = lower_case(&self.0);
        let Some((start, rest)) = pattern.split_once('*') else { return pattern == model };
        let Some(mut model) = model.strip_prefix(start) else { return false };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost match of each middle part leaves the most text for the parts behind it.
        for part in middle.split('*') {
            let Some((_, behind)) = model.split_once(part) else { return false };
            model = behind;
        }
        model.ends_with(end)
    }

    /// Whether it may price `form`, one of the forms of an id. A fine-tuned model (`ft:…`) has another
    /// price than its base model, so only patterns that begin with `ft:` (or `*` alone) match it.
    pub(crate) fn prices(&self, form: &str) -> bool {
        let own =
            !form.starts_with("ft:") || self.0 == "*" || lower_case(&self.0).starts_with("ft:");
        own && self.matches_lower(form)
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number of literal characters, by which patterns are ordered.
    pub fn literal_len(&self) -> usize {
        self.0.len().saturating_sub(self.0.matches('*').count())
    }

    /// Whether it matches one id only: it has no `*`.
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }
}

/// The id in lower case, copied only if it has upper-case letters.
pub(crate) fn lower_case(id: &str) -> Cow<'_, str> {
    match id.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(id.to_ascii_lowercase()),
        false => Cow::Borrowed(id),
    }
}

/// The region prefixes in the ids of a cloud: `us.anthropic.claude-…`. A row that lists the id with
/// its region is found first.
const REGIONS: [&str; 10] = ["us", "us-gov", "eu", "apac", "jp", "au", "ca", "sa", "in", "global"];

/// The prefix in rows that cover every region except `global`.
const ANY_REGION: &str = "regional";

/// Paths that some providers report before the name of a model.
const PATHS: [&str; 3] = ["models/", "publishers/google/models/", "publishers/anthropic/models/"];

/// The ids under which `model` may be listed at `provider`, most specific first.
///
/// All are in lower case. The order: the id itself; the id without the provider's own name or a path
/// before it; with `regional` for a region other than `global`; without a region; and each of these
/// without the date of a snapshot at its end.
///
/// Nothing else is removed: text after a colon or before one may mark another price (`…:free`,
/// `ft:…`), and so may any other ending.
pub(crate) fn forms(provider: &str, model: &str) -> Vec<String> {
    let whole = model.trim().to_ascii_lowercase();
    // An ARN ends in `/` and the id, as a path of a publisher does.
    let arn = whole.starts_with("arn:").then(|| whole.rsplit('/').next()).flatten();
    let own = whole.strip_prefix(&*lower_case(provider)).and_then(|rest| rest.strip_prefix('/'));
    let path = PATHS.iter().find_map(|path| Some(whole.rsplit_once(path)?.1));
    let mut forms: Vec<&str> = vec![&whole];
    forms.extend([arn, own, path].into_iter().flatten());
    let split = forms
        .iter()
        .find_map(|form| form.split_once('.').filter(|(region, _)| REGIONS.contains(region)));
    let regional = split.filter(|(region, _)| *region != "global");
    let regional = regional.map(|(_, rest)| format!("{ANY_REGION}.{rest}"));
    forms.extend(regional.as_deref());
    forms.extend(split.map(|(_, rest)| rest));
    let undated: Vec<_> = forms.iter().filter_map(|form| without_date(form)).collect();
    forms.extend(undated);
    forms.into_iter().map(str::to_owned).collect()
}

/// An id without the date at its end: `-2025-09-29`, `-20250929` or `@20250929`.
fn without_date(model: &str) -> Option<&str> {
    let dated = |digits: &str| {
        let number = digits.parse::<u32>().ok().filter(|_| digits.len() == 8);
        number.is_some_and(|date| {
            let (year, month, day) = (date / 10_000, date / 100 % 100, date % 100);
            (2020..2100).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day)
        })
    };
    let compact = model.rsplit_once(['-', '@']).filter(|(_, date)| dated(date));
    if let Some((base, _)) = compact {
        return Some(base);
    }
    let (rest, day) = model.rsplit_once('-')?;
    let (rest, month) = rest.rsplit_once('-')?;
    let (base, year) = rest.rsplit_once('-')?;
    let parts = [year.len(), month.len(), day.len()] == [4, 2, 2];
    (parts && dated(&format!("{year}{month}{day}"))).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        let table = [
            ("gpt-4o", "gpt-4o", true),
            ("gpt-4o", "GPT-4o", true),
            ("gpt-4o", "gpt-4o-mini", false),
            ("gpt-4o*", "gpt-4o-mini", true),
            ("*flash", "models/gemini-2.0-flash", true),
            ("*flash", "gemini-2.0-flash-lite", false),
            ("*claude-sonnet-4*v1*", "eu.anthropic.claude-sonnet-4-v1:0", true),
            ("*claude-sonnet-4*v1*", "claude-sonnet-5-v1:0", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*", "", true),
            ("a**b", "ab", true),
        ];
        for (pattern, model, expected) in table {
            assert_eq!(ModelPattern::new(pattern).matches(model), expected, "{pattern} {model}");
        }
    }

    #[test]
    fn an_id_has_forms_from_the_particular_to_the_general() {
        let table: [(&str, &str, &[&str]); 10] = [
            ("openai", "GPT-4o-2024-08-06", &["gpt-4o-2024-08-06", "gpt-4o"]),
            ("openai", "openai/gpt-4o", &["openai/gpt-4o", "gpt-4o"]),
            (
                "anthropic",
                "claude-sonnet-4-5@20250929",
                &["claude-sonnet-4-5@20250929", "claude-sonnet-4-5"],
            ),
            ("google", "models/gemini-2.0-flash", &["models/gemini-2.0-flash", "gemini-2.0-flash"]),
            (
                "bedrock",
                "eu.amazon.nova-pro-v1:0",
                &[
                    "eu.amazon.nova-pro-v1:0",
                    "regional.amazon.nova-pro-v1:0",
                    "amazon.nova-pro-v1:0",
                ],
            ),
            (
                "bedrock",
                "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.x.y",
                &[
                    "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.x.y",
                    "eu.x.y",
                    "regional.x.y",
                    "x.y",
                ],
            ),
            ("bedrock", "global.x.y", &["global.x.y", "x.y"]),
            ("openrouter", "deepseek/deepseek-r1:free", &["deepseek/deepseek-r1:free"]),
            ("openai", "ft:gpt-4o:org::id", &["ft:gpt-4o:org::id"]),
            ("openai", "gpt-4-0613", &["gpt-4-0613"]),
        ];
        for (provider, model, expected) in table {
            assert_eq!(forms(provider, model), expected, "{model}");
        }
        for model in ["m-20251332", "m-2025-13-01", "m-99999999", "20250101", "-"] {
            assert_eq!(without_date(model), None, "{model}");
        }
    }
}
