//! Google's long-running operations: batches of `generateContent`, and videos of `predictLongRunning`.

use crate::number::count;
use crate::object::JsonObject;
use crate::response::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use crate::response::reading::ObjectState;

/// The codes of errors (`google.rpc.Code`) that mean more than a failure.
const CANCELLED: &str = "1";

/// Reads an operation without the answers of a batch.
#[derive(Default)]
pub(in crate::response) struct OperationExtractor {
    facts: ResponseFacts,
}

impl OperationExtractor {
    fn absorb(&mut self, operation: &JsonObject<'_>) {
        let facts = &mut self.facts;
        let Some(name) = operation.text("name") else { return };
        facts.response_id = last_segment(&name).map(str::to_owned);
        let metadata = operation.object("metadata");
        let stated = metadata.as_ref().and_then(|metadata| metadata.text("state"));
        facts.object_state = stated.as_deref().and_then(batch_state).or(Some(state(operation)));
        let stats = metadata.as_ref().and_then(|metadata| metadata.object("batchStats"));
        facts.answered_requests =
            stats.and_then(|stats| count(stats.get("successfulRequestCount")?.get()));
        let Some(response) = operation.object("response") else { return };
        facts.result_files.extend(response.text("responsesFile").as_deref().and_then(file_id));
        let videos = response.object("generateVideoResponse");
        let samples = match &videos {
            Some(videos) => videos.objects("generatedSamples"),
            // Vertex.
            None if response.has("videos") => response.objects("videos"),
            None if response.has("raiMediaFilteredCount") => Vec::new(),
            None => return,
        };
        facts.samples = u64::try_from(samples.len()).ok();
        let files = samples.iter().filter_map(|sample| {
            let uri = sample.object("video")?.text("uri")?;
            file_id(&uri)
        });
        facts.result_files.extend(files);
    }
}

/// The state that a batch states.
fn batch_state(word: &str) -> Option<ObjectState> {
    let (_, state) = word.split_once("_STATE_")?;
    match state {
        "PENDING" | "QUEUED" | "RUNNING" | "CANCELLING" => Some(ObjectState::Running),
        "SUCCEEDED" | "PARTIALLY_SUCCEEDED" => Some(ObjectState::Succeeded),
        "FAILED" => Some(ObjectState::Failed),
        "CANCELLED" => Some(ObjectState::Cancelled),
        "EXPIRED" => Some(ObjectState::Expired),
        _ => None,
    }
}

/// The state of an operation by whether it is done.
fn state(operation: &JsonObject<'_>) -> ObjectState {
    let is_done = operation.get("done").is_some_and(|done| done.get() == "true");
    match operation.object("error") {
        _ if !is_done => ObjectState::Running,
        None => ObjectState::Succeeded,
        Some(error) if error.get("code").is_some_and(|code| code.get() == CANCELLED) => {
            ObjectState::Cancelled
        }
        Some(_) => ObjectState::Failed,
    }
}

/// The id in a name such as `batches/abc`.
fn last_segment(name: &str) -> Option<&str> {
    name.rsplit('/').next().filter(|id| !id.is_empty())
}

/// The id of a file in its name or URL, such as `https://…/files/abc:download?alt=media`.
fn file_id(name: &str) -> Option<String> {
    let (_, id) = name.rsplit_once("files/")?;
    let id = id.split([':', '?', '/']).next()?;
    (!id.is_empty()).then(|| id.to_owned())
}

impl UsageExtractor for OperationExtractor {
    fn event(&mut self, _: &[u8], _: &[u8]) -> StreamEventKind {
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let operation = JsonObject::of(body);
        if let Some(operation) = &operation {
            self.absorb(operation);
        }
        operation.is_some()
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

    fn facts(body: &str) -> ResponseFacts {
        let mut extractor = OperationExtractor::default();
        assert!(extractor.body(body.as_bytes()), "{body}");
        extractor.facts
    }

    #[test]
    fn the_state_of_an_operation_is_read() {
        let states = [
            (r#"{"name":"batches/b"}"#, ObjectState::Running),
            (r#"{"name":"batches/b","done":true,"response":{}}"#, ObjectState::Succeeded),
            (r#"{"name":"b","done":true,"error":{"code":1}}"#, ObjectState::Cancelled),
            (r#"{"name":"b","done":true,"error":{"code":3}}"#, ObjectState::Failed),
        ];
        for (body, state) in states {
            assert_eq!(facts(body).object_state, Some(state), "{body}");
        }
        let stated = [
            ("BATCH_STATE_PENDING", ObjectState::Running),
            ("BATCH_STATE_RUNNING", ObjectState::Running),
            ("BATCH_STATE_SUCCEEDED", ObjectState::Succeeded),
            ("JOB_STATE_FAILED", ObjectState::Failed),
            ("BATCH_STATE_CANCELLED", ObjectState::Cancelled),
            ("BATCH_STATE_EXPIRED", ObjectState::Expired),
        ];
        for (word, state) in stated {
            let body = format!(
                r#"{{"name":"batches/b","metadata":{{"state":"{word}","batchStats":{{"successfulRequestCount":"2"}}}}}}"#
            );
            let facts = facts(&body);
            assert_eq!(facts.object_state, Some(state), "{word}");
            assert_eq!(
                (facts.response_id.as_deref(), facts.answered_requests),
                (Some("b"), Some(2))
            );
        }
        assert_eq!(facts(r#"{"error":{"code":404}}"#).object_state, None);
    }

    #[test]
    fn delivered_videos_are_counted_and_filtered_ones_are_not() {
        let gemini = r#"{"name":"models/veo/operations/o","done":true,"response":{"generateVideoResponse":{
            "generatedSamples":[{"video":{"uri":"https://g.example/v1beta/files/a1:download?alt=media"}},
            {"video":{"uri":"files/b2"}}],"raiMediaFilteredCount":1}}}"#;
        let found = facts(gemini);
        assert_eq!((found.response_id.as_deref(), found.samples), (Some("o"), Some(2)));
        assert_eq!(found.result_files, ["a1", "b2"]);
        let of = |response: &str| {
            facts(&format!(r#"{{"name":"x/o","done":true,"response":{response}}}"#)).samples
        };
        assert_eq!(of(r#"{"videos":[{"gcsUri":"gs://b/1"}],"raiMediaFilteredCount":0}"#), Some(1));
        assert_eq!(of(r#"{"generateVideoResponse":{"raiMediaFilteredCount":2}}"#), Some(0));
        assert_eq!(of(r#"{"raiMediaFilteredCount":1}"#), Some(0));
        assert_eq!(of("{}"), None);
    }
}
