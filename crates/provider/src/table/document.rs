//! The table as pages for readers. A test checks that `docs/features/providers/` has these pages.

use std::fmt::{self, Write};

use super::builtin::{BUILTIN, BuiltinProvider};
use super::provider::Mount;
use tollgate_usage::dialect::{Api, ModelLocation, ObjectRole};
use tollgate_usage::{Dialect, Operation};

use crate::key_header::{KeyHeader, key_header};

/// The pages of the built-in providers: the name of each file, and its Markdown.
pub fn provider_pages() -> Vec<(String, String)> {
    let providers = BUILTIN.iter().map(|row| (format!("{}.md", row.name), page(row)));
    std::iter::once(("index.md".to_owned(), index())).chain(providers).collect()
}

fn index() -> String {
    let mut text = INTRODUCTION.to_owned();
    // Writing to a string cannot fail.
    let _ = write_index(&mut text);
    text
}

fn page(row: &BuiltinProvider) -> String {
    let mut text = String::new();
    let _ = write_provider(&mut text, row);
    text
}

fn write_index(f: &mut String) -> fmt::Result {
    f.write_str(
        "| provider | base URL | usage requested in streams | `max_completion_tokens` |\n\
         |---|---|---|---|\n",
    )?;
    for row in &BUILTIN {
        let requested = if row.stream_options { "yes" } else { "no" };
        let bounds = if row.max_completion_tokens { "bounds" } else { "ignored" };
        writeln!(f, "| [{0}]({0}.md) | `{1}` | {requested} | {bounds} |", row.name, row.base_url)?;
    }
    f.write_str(NOTES)?;
    for dialect in Dialect::ALL {
        let key = key_words(key_header(dialect));
        writeln!(f, "| `{dialect}` | {key} | {} |", dialect_words(dialect))?;
    }
    Ok(())
}

fn write_provider(f: &mut String, row: &BuiltinProvider) -> fmt::Result {
    writeln!(f, "# {}\n\n{WRITTEN}\n", row.name)?;
    writeln!(f, "The base URL is `{}`. These endpoints take the operator's key.", row.base_url)?;
    if let Some((_, note)) = PROVIDER_NOTES.iter().find(|(name, _)| *name == row.name) {
        writeln!(f, "\n{note}")?;
    }
    // Parts with the same endpoints, such as versions, are listed together.
    let mut parts: Vec<(&Mount, Vec<&str>)> = Vec::new();
    for mount in row.mounts {
        let is_same = |one: &Mount| one.dialect == mount.dialect && one.rows == mount.rows;
        match parts.iter_mut().find(|(one, _)| is_same(one)) {
            Some((_, paths)) => paths.push(mount.path),
            None => parts.push((mount, vec![mount.path])),
        }
    }
    for (mount, paths) in parts {
        let key = key_words(key_header(mount.dialect));
        writeln!(f, "\n## Endpoints in the format `{}`{}\n", mount.dialect, below(&paths))?;
        writeln!(f, "The key is in {key}.\n")?;
        for operation in mount.operations() {
            let (method, path) = (method_word(operation), operation.path);
            let model = match model_words(operation.model) {
                words if words.is_empty() => words,
                words => format!(" The model is {words}."),
            };
            writeln!(f, "- `{method} {path}`\\\n  Usage: {}.{model}", usage_words(operation))?;
        }
    }
    Ok(())
}

/// The method of an endpoint, as documents write it.
fn method_word(operation: &Operation) -> &str {
    match operation.method {
        http::Method::CONNECT => "WebSocket",
        ref method => method.as_str(),
    }
}

/// The part of a heading that tells two parts of a provider apart.
fn below(paths: &[&str]) -> String {
    let named = paths.iter().map(|path| match *path {
        "" => "the base URL".to_owned(),
        path => format!("`{path}`"),
    });
    let named: Vec<_> = named.collect();
    match named.as_slice() {
        _ if paths == [""] => String::new(),
        [rest @ .., last] if !rest.is_empty() => format!(" below {} and {last}", rest.join(", ")),
        all => format!(" below {}", all.concat()),
    }
}

impl Mount {
    /// The endpoints as `METHOD path`, for documentation and tests.
    pub fn endpoints(&self) -> impl Iterator<Item = String> + use<> {
        self.operations().map(|operation| {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = write!(text, "{} {}", method_word(operation), operation.path);
            text
        })
    }
}

fn key_words(key: KeyHeader) -> String {
    match key {
        KeyHeader::Bearer => "`Authorization: Bearer`".to_owned(),
        KeyHeader::Token => "`Authorization: Token`".to_owned(),
        KeyHeader::Named(name) => format!("`{name}`"),
    }
}

fn model_words(model: ModelLocation) -> String {
    match model {
        ModelLocation::Body(key) => format!("`{key}` in the body"),
        ModelLocation::MaybeBody(key) => format!("`{key}` in the body, if there"),
        ModelLocation::Path => "in the path".to_owned(),
        ModelLocation::Query(name) => format!("`{name}` in the query"),
        ModelLocation::Nowhere => String::new(),
    }
}

fn usage_words(operation: &Operation) -> &'static str {
    match operation.object {
        ObjectRole::Retrieves => {
            return "free, for objects of the caller's wallet; it settles a job whose end it shows";
        }
        ObjectRole::Uses => return "free, for objects of the caller's wallet",
        ObjectRole::Deletes => {
            return "free, for objects of the caller's wallet whose job has ended";
        }
        ObjectRole::Lists => return "free; it lists objects of the caller's wallet",
        ObjectRole::Creates | ObjectRole::None if !operation.metered => return "free",
        ObjectRole::Creates | ObjectRole::None => {}
    }
    match operation.api {
        Api::Chat => "`usage`: `prompt_tokens`, `completion_tokens` and their details",
        Api::Responses => "`usage` of the response; tools by the items of `output`",
        Api::Realtime => {
            "`usage` of each `response.done`; transcriptions of input by theirs, at the price of their model"
        }
        Api::GptLive => {
            "`usage.seconds` of the session, which are cumulative; responses that it delegates to by theirs, at the price of their model"
        }
        Api::Live => "the last `usageMetadata` of each turn. The path is below the origin",
        Api::Embeddings => "`usage.prompt_tokens`, else `total_tokens`",
        Api::Transcription => {
            "`usage` (tokens or seconds), `duration`, the last timestamp; else the length of the sound"
        }
        Api::Speech => {
            "`usage` in a stream's last event; else the characters of `input`, estimated"
        }
        Api::Images => "`usage`; else the images in `data`",
        Api::Ocr => "`usage_info.pages_processed`",
        Api::Rerank => "`usage.total_tokens`",
        Api::Messages => "`usage`: input, cache and output, and `iterations` each by its model",
        Api::GenerateContent => "`usageMetadata`, thoughts and tool prompts beside the rest",
        Api::EmbedContent => "`usageMetadata`, or `billableCharacterCount`",
        Api::Predict => "the images in `predictions`",
        Api::Cohere => "`billed_units`",
        Api::Converse => "`usage`; in streams the `metadata` frame",
        Api::Invoke => "the vendor's own fields, `amazon-bedrock-invocationMetrics`, or headers",
        Api::ElevenLabs => {
            "header `character-cost`; else the characters, or the length of the sound"
        }
        Api::Deepgram => "`metadata.duration` × channels; header `dg-char-count`",
        Api::Batch => "`usage` of each result, at the prices of the tier `batch`",
        Api::Video if operation.path.ends_with(":predictLongRunning") => {
            "the delivered videos, each with the length in the request"
        }
        Api::Video => "`seconds` of the video that is complete",
        Api::File | Api::Conversation | Api::Opaque => "estimated",
    }
}

fn dialect_words(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi => "chat completions, responses, embeddings, audio and images",
        Dialect::Azure => "the same below `/deployments/{deployment}`",
        Dialect::Anthropic => "messages",
        Dialect::Google => "`generateContent` and its siblings, of Gemini and of Vertex",
        Dialect::Cohere => "chat, embeddings, reranking",
        Dialect::Bedrock => "`converse` and `invoke`, with binary streams",
        Dialect::ElevenLabs => "speech",
        Dialect::Deepgram => "speech",
        Dialect::None => "nothing is known: calls pass and usage is estimated",
    }
}

const WRITTEN: &str =
    "<!-- Made by `cargo run -p tollgate-provider --example providers`; a test compares. -->";

const INTRODUCTION: &str = "\
# Providers

<!-- Made by `cargo run -p tollgate-provider --example providers`; a test compares. -->

Tollgate knows these providers. A provider needs a key in the configuration, and its models need a price in
[the price list](../price-catalogue.md) or of your own:

```toml
[providers.mistral]
api_key = \"…\"
```

Tollgate forwards to a URL when scheme, host, port and path prefix are those of a provider in this table or in
the configuration. The operator's key is used on the endpoints that the page of a provider lists, and nowhere
else. Every other path of a provider (files, stored answers, batches, fine-tuning, assistants, administration)
needs the caller's own key, or a line in `managed_endpoints`.

";

const NOTES: &str = "
\"Usage requested in streams\": when a streamed chat does not request usage, Tollgate adds
`stream_options.include_usage` to the body and removes the extra event from the answer. The other providers
report usage without a request, or do not know the option.

`max_tokens` bounds a chat at every provider. \"bounds\" in the last column means that `max_completion_tokens`
does, too. Where it is \"ignored\", the provider may answer with more tokens, so a call that states no other
maximum has no bound. `max_completion_tokens = true` below `[providers.…]` changes that.

Models that search the web without a request, such as those of **perplexity**, have no bound on their cost. Strict
spend keys refuse them.

## Dialects

The values of `dialect` for a provider of your own:

| dialect | key | endpoints |
|---|---|---|
";

/// Notes for the pages of providers.
const PROVIDER_NOTES: [(&str, &str); 4] = [
    (
        "azure",
        "\
The configuration names the resource: `[providers.azure]` with `resource = \"my-resource\"`. Below
`/openai/deployments/…` the path names the deployment, not the model. The price follows the model that the answer
names. Before the call, a deployment with the name of its model has the price of that model.

Usage is requested from `api-version` `2024-09-01-preview` and `2024-10-21` on. Older versions refuse the
option. A second resource is another provider, with `dialect = \"azure\"`,
`base_url = \"https://other.openai.azure.com/openai\"` and `price_list = \"azure\"`.",
    ),
    (
        "bedrock",
        "\
The configuration names the region: `region = \"eu-central-1\"`. The key is a Bedrock API key, sent as a bearer
token. Requests signed with SigV4 are not supported, because the signature covers the request that Tollgate changes.

The price list has ids with a region (`eu.anthropic.…`) and without. An inference profile whose ARN has a slash
cannot be used.",
    ),
    (
        "elevenlabs",
        "\
This provider bills credits, and the price of a credit depends on your plan. Set `input_characters` in `[[prices]]`.",
    ),
    (
        "google",
        "\
Calls use Google's own format (`/v1beta/models/{model}:generateContent`) or OpenAI's (`/v1beta/openai`). For
Vertex, configure a provider with `base_url = \"https://europe-west1-aiplatform.googleapis.com/v1\"`,
`dialect = \"google\"` and `price_list = \"google\"`.",
    ),
];
