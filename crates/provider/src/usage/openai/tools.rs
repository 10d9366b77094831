//! Calls of built-in tools in a response's output. They are billed each, and usage says nothing of
//! them.

use std::collections::BTreeSet;

use tollgate_pricing::{PerUnit, Unit};

use crate::object::Object;

pub(super) fn calls(items: &[Object<'_>]) -> PerUnit<u64> {
    let mut calls = PerUnit::default();
    let mut containers = BTreeSet::new();
    for item in items {
        let unit = match item.text("type").as_deref() {
            // A search that only opens or searches a page that it has found is free.
            Some("web_search_call") if !is_page_visit(item) => Unit::WebSearch,
            Some("file_search_call") => Unit::FileSearch,
            // A container is billed once, however often code runs in it.
            Some("code_interpreter_call") if containers.insert(item.text("container_id")) => {
                Unit::CodeSession
            }
            Some("image_generation_call") => Unit::ToolCall,
            _ => continue,
        };
        let count: &mut u64 = calls.get_mut(unit);
        *count = count.saturating_add(1);
    }
    calls
}

/// The larger count of each tool: an answer may be reported more than once.
pub(super) fn most(one: &PerUnit<u64>, other: &PerUnit<u64>) -> PerUnit<u64> {
    let mut most = *one;
    for &unit in Unit::ALL {
        *most.get_mut(unit) = *one.get(unit).max(other.get(unit));
    }
    most
}

fn is_page_visit(item: &Object<'_>) -> bool {
    let action = item.object("action").and_then(|action| action.text("type"));
    matches!(action.as_deref(), Some("open_page" | "find_in_page"))
}
