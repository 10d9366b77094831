//! The table as a document for its readers. A test checks that `docs/PROVIDERS.md` is this text.

use std::fmt::{self, Write};

use super::builtin::{BUILTIN, BuiltinProvider};
use super::provider::Mount;
use tollgate_usage::dialect::{Api, ModelLocation};
use tollgate_usage::{Dialect, Operation};

use crate::key_header::{KeyHeader, key_header};

/// The documentation of the built-in providers, in Markdown.
#[derive(Clone, Copy, Debug)]
pub struct ProvidersDocument;

impl fmt::Display for ProvidersDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(INTRODUCTION)?;
        f.write_str(
            "| provider | base URL | usage asked for in streams | `max_completion_tokens` |\n\
             |---|---|---|---|\n",
        )?;
        for row in &BUILTIN {
            let asked = if row.stream_options { "yes" } else { "no" };
            let bounds = if row.max_completion_tokens { "bounds" } else { "ignored" };
            writeln!(f, "| [{0}](#{0}) | `{1}` | {asked} | {bounds} |", row.name, row.base_url)?;
        }
        f.write_str(NOTES)?;
        for row in &BUILTIN {
            write_provider(f, row)?;
        }
        f.write_str(DIALECTS)?;
        for dialect in Dialect::ALL {
            let key = key_words(key_header(dialect));
            writeln!(f, "| `{dialect}` | {key} | {} |", dialect_words(dialect))?;
        }
        Ok(())
    }
}

fn write_provider(f: &mut fmt::Formatter<'_>, row: &BuiltinProvider) -> fmt::Result {
    writeln!(f, "\n### {}\n", row.name)?;
    f.write_str(
        "| part | dialect | key | endpoint | model | usage |\n|---|---|---|---|---|---|\n",
    )?;
    for mount in row.mounts {
        let mut part = match mount.path {
            "" => "(all)".to_owned(),
            path => format!("`{path}`"),
        };
        let mut dialect = format!("`{}`", mount.dialect);
        let mut key = key_words(key_header(mount.dialect));
        for operation in mount.operations() {
            let Operation { method, path, .. } = operation;
            let (model, usage) = (model_words(operation.model), usage_words(operation));
            writeln!(f, "| {part} | {dialect} | {key} | `{method} {path}` | {model} | {usage} |")?;
            // Shown once for each part.
            for cell in [&mut part, &mut dialect, &mut key] {
                cell.clear();
            }
        }
    }
    Ok(())
}

impl Mount {
    /// The endpoints as `METHOD path`, for documentation and tests.
    pub fn endpoints(&self) -> impl Iterator<Item = String> + use<> {
        self.operations().map(|operation| {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = write!(text, "{} {}", operation.method, operation.path);
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
    if !operation.metered {
        return "free";
    }
    match operation.api {
        Api::Chat => "`usage`: `prompt_tokens`, `completion_tokens` and their details",
        Api::Responses => "`usage` of the response; tools by the items of `output`",
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
        Api::Opaque => "estimated",
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

const INTRODUCTION: &str = "\
# Providers

<!-- Written by `cargo run -p tollgate-provider --example providers`; a test compares. -->

What Tollgate knows of the providers it forwards to. Each needs a key in the configuration, and models that
[the price list](PRICING.md) knows, or a price of your own:

```toml
[providers.mistral]
api_key = \"…\"
```

A URL is forwarded to if it has the scheme, host, port and path prefix of one of these, or of a
provider that the configuration adds. The operator's key is used on the endpoints that are listed
here and nowhere else; every other path of a provider (files, stored answers, batches, fine-tuning,
assistants, administration) needs the caller's own key, or a line in `managed_endpoints`.

";

const NOTES: &str = "
\"Usage asked for\" means that a streamed chat body that does not ask for usage is given
`stream_options.include_usage`; the extra event that it brings is removed again. The other providers
report usage unasked, or do not know the option.

`max_tokens` bounds chat at every provider. \"bounds\" in the last column means that
`max_completion_tokens` does, too. Where it is \"ignored\" the provider may answer with more tokens, so a
call that states no other maximum has none: `max_completion_tokens = true` below `[providers.…]` says
otherwise.

- **azure** is called by the name of its resource: `[providers.azure]` with `resource = \"my-resource\"`.
  Below `/openai/deployments/…` the path names the deployment, not the model: prices follow the model
  that the answer names, and before the call a deployment that is called like its model finds its
  price. Usage is asked for from `api-version` `2024-09-01-preview` and `2024-10-21` on; older versions
  refuse the question. A second resource is a provider of its own, with `dialect = \"azure\"`,
  `base_url = \"https://other.openai.azure.com/openai\"` and `price_list = \"azure\"`.
- **bedrock** is called in a region: `region = \"eu-central-1\"`, with a Bedrock API key, which is sent
  as a bearer token. Requests signed with SigV4 are not supported: the signature would have to cover
  what Tollgate sends. Ids with a region (`eu.anthropic.…`) and without are found in the price list; an
  inference profile whose ARN has a slash cannot be put into a path that is read in one way only.
- **google** is called natively (`/v1beta/models/{model}:generateContent`) and in OpenAI's format
  (`/v1beta/openai`). For Vertex configure a provider with `base_url =
  \"https://europe-west1-aiplatform.googleapis.com/v1\"`, `dialect = \"google\"` and
  `price_list = \"google\"`.
- **elevenlabs** bills credits, and what a credit costs depends on the account: set
  `input_characters` in `[[prices]]` for your plan.
- **perplexity**, and models elsewhere that search the web unasked, have no bound on what a call can
  cost: strict spend keys refuse them.
";

const DIALECTS: &str = "
## Dialects

What `dialect` in the configuration may say of a provider of one's own:

| dialect | key | what it has |
|---|---|---|
";
