//! Calls of built-in tools in a response. They are billed beside its tokens: each, or by the tokens
//! of images.

use std::collections::BTreeSet;

use tollgate_pricing::{PerModelUsage, PerUnit, Unit};

use crate::object::JsonObject;
use crate::request::image_model;
use crate::response::json::{ReportedCount, split_detail};

/// The calls that are billed each.
pub(super) fn calls(items: &[JsonObject<'_>]) -> PerUnit<u64> {
    let mut calls = PerUnit::default();
    let mut containers = BTreeSet::new();
    for item in items {
        let unit = match item.text("type").as_deref() {
            // A search that only opens or searches a found page is free.
            Some("web_search_call") if !is_page_visit(item) => Unit::WebSearch,
            Some("file_search_call") => Unit::FileSearch,
            // A container is billed once, however often code runs in it.
            Some("code_interpreter_call") if containers.insert(item.text("container_id")) => {
                Unit::CodeSession
            }
            _ => continue,
        };
        let count: &mut u64 = calls.get_mut(unit);
        *count = count.saturating_add(1);
    }
    calls
}

/// The larger count of each tool. An answer may be reported more than once.
pub(super) fn most(one: &PerUnit<u64>, other: &PerUnit<u64>) -> PerUnit<u64> {
    let mut most = *one;
    for &unit in Unit::ALL {
        *most.get_mut(unit) = *one.get(unit).max(other.get(unit));
    }
    most
}

fn is_page_visit(item: &JsonObject<'_>) -> bool {
    let action = item.object("action").and_then(|action| action.text("type"));
    matches!(action.as_deref(), Some("open_page" | "find_in_page"))
}

/// The usage of images that a response made: the tokens of the model that drew them, as
/// `tool_usage` states them, else by their sizes and qualities. `usage` does not contain them.
pub(super) fn images(response: &JsonObject<'_>, items: &[JsonObject<'_>]) -> Option<PerModelUsage> {
    let stated = response.object("tool_usage").and_then(|usage| stated(&usage));
    let made = || {
        let tokens = items.iter().filter_map(tokens_of_image).fold(0, u64::saturating_add);
        PerUnit { output_image: tokens, ..PerUnit::default() }
    };
    let quantities = stated.unwrap_or_else(made);
    if quantities == PerUnit::default() {
        return None;
    }
    let tools = response.objects("tools");
    let tool = tools.iter().find(|tool| tool.text("type").as_deref() == Some("image_generation"));
    let model = image_model(tool.and_then(|tool| tool.text("model")).as_deref());
    Some(PerModelUsage { model: Some(model.to_owned()), quantities })
}

fn stated(tool_usage: &JsonObject<'_>) -> Option<PerUnit<u64>> {
    let usage = tool_usage.object("image_gen")?;
    let figure = |value| {
        let mut figure = ReportedCount::Absent;
        figure.update(value);
        figure
    };
    let mut input = figure(usage.get("input_tokens")).count()?;
    let mut output = figure(usage.get("output_tokens")).count()?;
    let details = usage.object("input_tokens_details");
    let of_images = details.map_or(ReportedCount::Absent, |one| figure(one.get("image_tokens")));
    let input_image = split_detail(&mut input, of_images);
    let details = usage.object("output_tokens_details");
    let of_text = details.map_or(ReportedCount::Absent, |one| figure(one.get("text_tokens")));
    let text = split_detail(&mut output, of_text);
    let quantities =
        PerUnit { input, input_image, output: text, output_image: output, ..PerUnit::default() };
    Some(quantities)
}

/// The tokens of an image by its quality and size (OpenAI, "Image generation: cost and latency").
/// An unstated value counts as the largest.
fn tokens_of_image(item: &JsonObject<'_>) -> Option<u64> {
    item.text("type").filter(|kind| kind == "image_generation_call")?;
    if item.text("status").as_deref() == Some("failed") {
        return None;
    }
    let is_square = item.text("size").as_deref() == Some("1024x1024");
    Some(match (item.text("quality").as_deref(), is_square) {
        (Some("low"), true) => 272,
        (Some("low"), false) => 408,
        (Some("medium"), true) => 1_056,
        (Some("medium"), false) => 1_584,
        (_, true) => 4_160,
        (_, false) => 6_240,
    })
}
