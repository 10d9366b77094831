//! Tools that the provider runs: the charge for a call of each, and the most calls.
//!
//! Sources: the price pages and API references of OpenAI ("Built-in tools"), Anthropic ("Tool use
//! with server tools"), xAI ("Tools pricing"), Groq and Google ("Grounding").

use tollgate_pricing::Unit;

use crate::dialect::Api;

/// The charge for a call of a tool at the provider, beside the reported tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolCharge {
    /// None.
    Tokens,
    /// The price of this unit.
    Each(Unit),
    /// The tokens of an image, at the prices of the model that draws it.
    Image(&'static str),
    /// Unknown. A call that offers such a tool has no price.
    Unknown,
}

/// The charges by the type of the tool, or by its key if tools have no type (Google).
const CHARGES: [(&str, ToolCharge); 25] = [
    ("web_search", ToolCharge::Each(Unit::WebSearch)),
    ("x_search", ToolCharge::Each(Unit::WebSearch)),
    ("browser_search", ToolCharge::Each(Unit::WebSearch)),
    ("googleSearch", ToolCharge::Each(Unit::WebSearch)),
    ("google_search", ToolCharge::Each(Unit::WebSearch)),
    ("googleSearchRetrieval", ToolCharge::Each(Unit::WebSearch)),
    ("google_search_retrieval", ToolCharge::Each(Unit::WebSearch)),
    ("googleMaps", ToolCharge::Each(Unit::WebSearch)),
    ("google_maps", ToolCharge::Each(Unit::WebSearch)),
    ("file_search", ToolCharge::Each(Unit::FileSearch)),
    ("collections_search", ToolCharge::Each(Unit::FileSearch)),
    ("code_interpreter", ToolCharge::Each(Unit::CodeSession)),
    ("code_execution", ToolCharge::Each(Unit::CodeSession)),
    ("web_fetch", ToolCharge::Tokens),
    ("mcp", ToolCharge::Tokens),
    ("mcp_toolset", ToolCharge::Tokens),
    ("tool_search", ToolCharge::Tokens),
    ("tool_search_tool_bm25", ToolCharge::Tokens),
    ("tool_search_tool_regex", ToolCharge::Tokens),
    // Google bills these by the tokens they bring into the prompt.
    ("codeExecution", ToolCharge::Tokens),
    ("urlContext", ToolCharge::Tokens),
    ("url_context", ToolCharge::Tokens),
    ("fileSearch", ToolCharge::Tokens),
    ("googleFileSearch", ToolCharge::Tokens),
    ("google_file_search", ToolCharge::Tokens),
];

/// The charge for a tool that has this key (Google).
pub(super) fn charge_of_key(key: &str) -> ToolCharge {
    // Other vendors use these names as types.
    match key {
        "code_execution" | "file_search" => ToolCharge::Tokens,
        key => charge(key),
    }
}

/// The charge for a tool of this type, except `image_generation`.
pub(super) fn charge(name: &str) -> ToolCharge {
    let known = CHARGES.iter().find(|(tool, _)| is_tool(name, tool));
    known.map_or(ToolCharge::Unknown, |(_, charge)| *charge)
}

/// The most web searches in a call that states no maximum. Anthropic pauses a turn after ten
/// rounds. The other providers state no figure; the one for them is an assumption, which
/// docs/features/holds.md names.
pub(super) const fn most_searches(api: Api) -> u64 {
    match api {
        Api::Messages => 10,
        _ => 5,
    }
}

/// Whether `name` is the tool `tool`, or a version of it.
pub(super) fn is_tool(name: &str, tool: &str) -> bool {
    name.strip_prefix(tool).is_some_and(|version| {
        version.is_empty()
            || version.starts_with("_preview")
            || version
                .strip_prefix('_')
                .is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The charge for a tool of type `image_generation` with this model and number of images in a call.
pub(super) fn charge_of_images(model: Option<&str>, images: Option<u64>) -> ToolCharge {
    match images {
        None | Some(1) => ToolCharge::Image(image_model(model)),
        Some(_) => ToolCharge::Unknown,
    }
}

/// Models that draw the images of `image_generation`. Longer names come before their prefixes.
const IMAGE_MODELS: [&str; 4] = ["gpt-image-1-mini", "gpt-image-1.5", "gpt-image-2", "gpt-image-1"];

/// The model whose prices apply to the images of `image_generation`: the named one, else the most
/// expensive, which was the first.
pub(crate) fn image_model(named: Option<&str>) -> &'static str {
    let named = named.unwrap_or_default();
    IMAGE_MODELS.into_iter().find(|model| named.starts_with(model)).unwrap_or("gpt-image-1")
}
