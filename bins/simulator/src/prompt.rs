//! Reads a prompt in any dialect while it is deserialized.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most words of the prompt that the answer repeats.
const TAIL_WORDS: usize = 8;

/// The properties of a prompt that the simulator uses. The prompt may be a string, messages, parts,
/// items or tokens; of its text only the last words are kept.
#[derive(Debug, Default)]
pub(crate) struct Prompt {
    /// The number of words of all its texts; a number is a token and counts as a word.
    pub(crate) words: u64,
    /// The last words of its last text.
    pub(crate) tail: String,
    /// The number of inputs, for an embedding.
    pub(crate) inputs: usize,
    /// Whether the last text is a tool's result, so that no tool is called again.
    pub(crate) ends_in_tool_result: bool,
}

impl Prompt {
    fn add_text(&mut self, text: &str) {
        let mut tail_start = text.len();
        for word in text.split_whitespace().rev().take(TAIL_WORDS) {
            // `rfind` finds this word: it is the last one before `tail_start`.
            tail_start = text.get(..tail_start).and_then(|t| t.rfind(word)).unwrap_or(tail_start);
        }
        self.tail.clear();
        self.tail.push_str(text.get(tail_start..).unwrap_or_default().trim_end());
        self.words += u64::try_from(text.split_whitespace().count()).unwrap_or(u64::MAX);
        self.ends_in_tool_result = false;
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut prompt = Self::default();
        prompt.inputs = match (PromptReader { prompt: &mut prompt }).deserialize(deserializer)? {
            PromptShape::List { texts_or_lists } => texts_or_lists.max(1),
            PromptShape::Number | PromptShape::Other => 1,
        };
        Ok(prompt)
    }
}

enum PromptShape {
    Number,
    List { texts_or_lists: usize },
    Other,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum PromptField {
    Content,
    Text,
    Output,
    Role,
    Type,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum PromptRole {
    Tool,
    ToolResult,
    FunctionCallOutput,
    #[serde(other)]
    Other,
}

struct PromptReader<'p> {
    prompt: &'p mut Prompt,
}

impl<'de> DeserializeSeed<'de> for PromptReader<'_> {
    type Value = PromptShape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<PromptShape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PromptReader<'_> {
    type Value = PromptShape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<PromptShape, E> {
        self.prompt.add_text(text);
        Ok(PromptShape::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<PromptShape, E> {
        self.prompt.words += 1;
        Ok(PromptShape::Number)
    }

    fn visit_i64<E>(self, _: i64) -> Result<PromptShape, E> {
        Ok(PromptShape::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<PromptShape, E> {
        Ok(PromptShape::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<PromptShape, E> {
        Ok(PromptShape::Other)
    }

    fn visit_unit<E>(self) -> Result<PromptShape, E> {
        Ok(PromptShape::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PromptShape, A::Error> {
        let mut texts_or_lists = 0;
        while let Some(kind) = list.next_element_seed(PromptReader { prompt: self.prompt })? {
            texts_or_lists += usize::from(!matches!(kind, PromptShape::Number));
        }
        Ok(PromptShape::List { texts_or_lists })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PromptShape, A::Error> {
        let mut is_tool_result = false;
        while let Some(key) = map.next_key()? {
            match key {
                PromptField::Content | PromptField::Text | PromptField::Output => {
                    map.next_value_seed(PromptReader { prompt: self.prompt })?;
                }
                PromptField::Role | PromptField::Type => {
                    is_tool_result |= !matches!(map.next_value()?, PromptRole::Other)
                }
                PromptField::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // After the fields, because reading the result's text resets the flag.
        self.prompt.ends_in_tool_result |= is_tool_result;
        Ok(PromptShape::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> Prompt {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn words_are_counted_in_every_shape() {
        for (json, words) in [
            (r#""say  hello to me""#, 4),
            (r#"[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}]"#, 3),
            (
                r#"[{"role":"user","content":[{"type":"text","text":"what is"},{"type":"image_url","image_url":{"url":"a b c"}}]}]"#,
                2,
            ),
            (r#"[{"type":"function_call_output","call_id":"c","output":"it rains"}]"#, 2),
            ("[[1,2,3],[4]]", 4),
            ("null", 0),
        ] {
            assert_eq!(prompt(json).words, words, "{json}");
        }
    }

    #[test]
    fn inputs_are_texts_or_lists_of_tokens() {
        for (json, inputs) in
            [(r#""a b""#, 1), (r#"["a","b"]"#, 2), ("[1,2,3]", 1), ("[[1,2],[3]]", 2)]
        {
            assert_eq!(prompt(json).inputs, inputs, "{json}");
        }
    }

    #[test]
    fn the_tail_is_the_last_words_of_the_last_text() {
        assert_eq!(prompt(r#"["x","a b c d e f g h i j "]"#).tail, "c d e f g h i j");
        assert_eq!(prompt(r#""hi""#).tail, "hi");
        assert_eq!(prompt(r#""""#).tail, "");
    }

    #[test]
    fn a_tool_that_has_answered_is_seen_in_each_dialect() {
        for (json, ends) in [
            (r#"[{"role":"tool","tool_call_id":"c","content":"rain"}]"#, true),
            (r#"[{"content":"rain","role":"tool"},{"role":"user","content":"and now?"}]"#, false),
            (r#"[{"role":"user","content":[{"type":"tool_result","content":"rain"}]}]"#, true),
            (r#"[{"type":"function_call_output","output":"rain"}]"#, true),
            (r#"[{"role":"user","content":"rain?"}]"#, false),
        ] {
            assert_eq!(prompt(json).ends_in_tool_result, ends, "{json}");
        }
    }
}
