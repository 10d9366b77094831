//! The object of a batch, and that of an uploaded file.

use serde_json::value::RawValue;

use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use super::reading::ObjectState;
use crate::object::JsonObject;

/// Reads the object of a batch or of a file, in OpenAI's or Anthropic's format.
#[derive(Default)]
pub(super) struct BatchExtractor {
    facts: ResponseFacts,
}

impl BatchExtractor {
    fn absorb(&mut self, batch: &JsonObject<'_>) {
        let facts = &mut self.facts;
        batch.update_text("id", &mut facts.response_id);
        let state = batch.text("processing_status").or_else(|| batch.text("status"));
        facts.object_state = state.and_then(|word| match &*word {
            "validating" | "in_progress" | "finalizing" | "cancelling" | "canceling" => {
                Some(ObjectState::Running)
            }
            "completed" => Some(ObjectState::Succeeded),
            "failed" => Some(ObjectState::Failed),
            "expired" => Some(ObjectState::Expired),
            "cancelled" => Some(ObjectState::Cancelled),
            "ended" => Some(ended_state(batch)),
            _ => None,
        });
        batch.update_text("endpoint", &mut facts.request_path);
        facts.expires_at = batch.get("expires_at").and_then(scalar);
        let files = ["output_file_id", "error_file_id"].iter();
        let counts = batch.object("request_counts");
        let answered = counts.as_ref().and_then(|counts| counts.get("succeeded"));
        facts.answered_requests = answered.and_then(|count| count.get().parse().ok());
        facts.result_files = files.filter_map(|key| batch.text(key)).collect();
    }
}

/// The state of a batch of Anthropic's that has ended. It was cancelled, or has expired, if some of its requests were.
fn ended_state(batch: &JsonObject<'_>) -> ObjectState {
    let counts = batch.object("request_counts");
    let some = |key: &str| {
        let count = counts.as_ref().and_then(|counts| counts.get(key));
        count.is_some_and(|count| count.get() != "0")
    };
    match (some("canceled"), some("expired")) {
        (true, _) => ObjectState::Cancelled,
        (false, true) => ObjectState::Expired,
        (false, false) => ObjectState::Succeeded,
    }
}

/// A number or a text, as a text.
fn scalar(value: &RawValue) -> Option<String> {
    let text = value.get();
    match serde_json::from_str::<String>(text) {
        Ok(text) => Some(text),
        Err(_) => text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.to_owned()),
    }
}

impl UsageExtractor for BatchExtractor {
    fn event(&mut self, _: &[u8], _: &[u8]) -> StreamEventKind {
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let batch = JsonObject::of(body);
        if let Some(batch) = &batch {
            self.absorb(batch);
        }
        batch.is_some()
    }

    fn object(&self) -> Option<&ResponseFacts> {
        Some(&self.facts)
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        ExtractedUsage { facts: self.facts, ..ExtractedUsage::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_batch_is_read_in_both_formats() {
        let states = [
            (r#"{"processing_status":"in_progress"}"#, Some(ObjectState::Running)),
            (r#"{"processing_status":"canceling"}"#, Some(ObjectState::Running)),
            (
                r#"{"processing_status":"ended","request_counts":{"succeeded":2}}"#,
                Some(ObjectState::Succeeded),
            ),
            (
                r#"{"processing_status":"ended","request_counts":{"canceled":1,"expired":0}}"#,
                Some(ObjectState::Cancelled),
            ),
            (
                r#"{"processing_status":"ended","request_counts":{"canceled":0,"expired":1}}"#,
                Some(ObjectState::Expired),
            ),
            (r#"{"status":"validating"}"#, Some(ObjectState::Running)),
            (r#"{"status":"cancelling"}"#, Some(ObjectState::Running)),
            (r#"{"status":"completed"}"#, Some(ObjectState::Succeeded)),
            (r#"{"status":"failed"}"#, Some(ObjectState::Failed)),
            (r#"{"status":"odd"}"#, None),
        ];
        for (body, state) in states {
            let mut extractor = BatchExtractor::default();
            assert!(extractor.body(body.as_bytes()));
            assert_eq!(extractor.facts.object_state, state, "{body}");
        }
        let mut extractor = BatchExtractor::default();
        let body = br#"{"id":"b","expires_at":17,"endpoint":"/v1/responses","output_file_id":"file-1","error_file_id":null}"#;
        extractor.body(body);
        let facts = extractor.facts;
        assert_eq!(
            (facts.expires_at.as_deref(), facts.request_path.as_deref(), facts.result_files),
            (Some("17"), Some("/v1/responses"), vec!["file-1".to_owned()])
        );
    }
}
