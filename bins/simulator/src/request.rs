//! Requests in any dialect, as far as the simulator reads them.

use serde::Deserialize;
use serde_json::Value;

use crate::error::SimulatedError;
use crate::prompt::Prompt;

/// The fields that the simulator reads, of a request in any dialect; their names do not clash.
#[derive(Debug, Deserialize)]
pub(crate) struct SimulatedRequest {
    pub(crate) model: String,
    stream: Option<bool>,
    background: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// The number of answers to return.
    n: Option<usize>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    messages: Option<Prompt>,
    prompt: Option<Prompt>,
    input: Option<Prompt>,
    system: Option<Prompt>,
    instructions: Option<Prompt>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    pub(crate) dimensions: Option<usize>,
    pub(crate) encoding_format: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A tool that the caller offers.
pub(crate) struct Tool<'a> {
    pub(crate) name: &'a str,
    schema: Option<&'a Value>,
}

/// The most answers to one call; no provider gives more.
const MAX_CHOICES: usize = 128;

impl SimulatedRequest {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, SimulatedError> {
        serde_json::from_slice(body).map_err(|error| {
            SimulatedError::new(400, format!("the request cannot be read: {error}"))
        })
    }

    pub(crate) fn stream(&self) -> bool {
        self.stream.unwrap_or_default()
    }

    /// The request, for an answer in events.
    pub(crate) fn streamed(self) -> Self {
        Self { stream: Some(true), ..self }
    }

    pub(crate) fn background(&self) -> bool {
        self.background.unwrap_or_default()
    }

    pub(crate) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or_default()
    }

    pub(crate) fn choices(&self) -> usize {
        self.n.unwrap_or(1).clamp(1, MAX_CHOICES)
    }

    pub(crate) fn max_tokens(&self) -> u64 {
        let limits = [self.max_tokens, self.max_completion_tokens, self.max_output_tokens];
        limits.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// The prompt, from the field where the dialect has it.
    fn main_prompt(&self) -> Option<&Prompt> {
        self.messages.as_ref().or(self.prompt.as_ref()).or(self.input.as_ref())
    }

    pub(crate) fn words(&self) -> u64 {
        let prompts = [self.main_prompt(), self.system.as_ref(), self.instructions.as_ref()];
        prompts.into_iter().flatten().map(|prompt| prompt.words).sum()
    }

    pub(crate) fn tail(&self) -> &str {
        self.main_prompt().map_or("", |prompt| &prompt.tail)
    }

    pub(crate) fn inputs(&self) -> usize {
        self.main_prompt().map_or(1, |prompt| prompt.inputs)
    }

    /// The tool to call: the first that is a function of the caller.
    pub(crate) fn tool(&self) -> Option<Tool<'_>> {
        let choice = self.tool_choice.as_ref();
        let choice = choice.and_then(|choice| choice.get("type").unwrap_or(choice).as_str());
        if choice == Some("none")
            || self.main_prompt().is_some_and(|asked| asked.ends_in_tool_result)
        {
            return None;
        }
        self.tools.iter().flatten().find_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?;
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            Some(Tool { name, schema })
        })
    }
}

impl Tool<'_> {
    /// Arguments that satisfy the common part of the tool's schema.
    pub(crate) fn arguments(&self) -> Value {
        self.schema.map_or_else(|| Value::Object(serde_json::Map::new()), sample_value)
    }
}

/// A value for a JSON schema: the required fields, by their types.
fn sample_value(schema: &Value) -> Value {
    if let Some(first) = schema.get("enum").and_then(|values| values.get(0)) {
        return first.clone();
    }
    let kind = schema.get("type").map(|kind| kind.get(0).unwrap_or(kind));
    match kind.and_then(Value::as_str) {
        Some("string") => "simulated".into(),
        Some("integer" | "number") => 1.into(),
        Some("boolean") => true.into(),
        Some("array") => Value::Array(Vec::new()),
        Some("null") => Value::Null,
        _ => {
            let required = schema.get("required").and_then(Value::as_array);
            let names = required.into_iter().flatten().filter_map(Value::as_str);
            let properties = schema.get("properties");
            let field = |name: &str| {
                let value =
                    properties.and_then(|all| all.get(name)).map_or(Value::Null, sample_value);
                (name.to_owned(), value)
            };
            names.map(field).collect()
        }
    }
}
