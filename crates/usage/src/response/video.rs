//! The object of a video.

use tollgate_pricing::PerUnit;

use super::extractor::{ExtractedUsage, ResponseFacts, StreamEventKind, UsageExtractor};
use super::reading::ObjectState;
use crate::number::micros;
use crate::object::JsonObject;

/// Reads the object of a video, in OpenAI's format. Its seconds are used when it is complete.
#[derive(Default)]
pub(super) struct VideoExtractor {
    facts: ResponseFacts,
    micros: Option<u64>,
}

impl UsageExtractor for VideoExtractor {
    fn event(&mut self, _: &[u8], _: &[u8]) -> StreamEventKind {
        StreamEventKind::Content
    }

    fn body(&mut self, body: &[u8]) -> bool {
        let Some(video) = JsonObject::of(body) else { return false };
        let facts = &mut self.facts;
        video.update_text("id", &mut facts.response_id);
        video.update_text("model", &mut facts.model);
        // Prices by size are tiers of a price row.
        video.update_text("size", &mut facts.service_tier);
        facts.object_state = video.text("status").and_then(|word| match &*word {
            "queued" | "in_progress" => Some(ObjectState::Running),
            "completed" => Some(ObjectState::Succeeded),
            "failed" => Some(ObjectState::Failed),
            "cancelled" => Some(ObjectState::Cancelled),
            "expired" => Some(ObjectState::Expired),
            _ => None,
        });
        self.micros = video.get("seconds").and_then(|seconds| micros(seconds.get()));
        true
    }

    fn object(&self) -> Option<&ResponseFacts> {
        Some(&self.facts)
    }

    fn found(self: Box<Self>) -> ExtractedUsage {
        let is_complete = self.facts.object_state == Some(ObjectState::Succeeded);
        let output_second = self.micros.filter(|_| is_complete);
        ExtractedUsage {
            input: Some(PerUnit::default()),
            output: Some(PerUnit::default()),
            others: PerUnit { output_second: output_second.unwrap_or(0), ..PerUnit::default() },
            is_final: output_second.is_some(),
            facts: self.facts,
            ..ExtractedUsage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seconds_of_a_video_count_when_it_is_complete() {
        let found = |body: &str| {
            let mut extractor = Box::new(VideoExtractor::default());
            assert!(extractor.body(body.as_bytes()));
            extractor.found()
        };
        for seconds in ["\"8\"", "8", "8.0"] {
            let body = |status: &str| {
                format!(
                    r#"{{"id":"video_1","status":"{status}","model":"sora-2","size":"1280x720","seconds":{seconds}}}"#
                )
            };
            let complete = found(&body("completed"));
            assert_eq!((complete.others.output_second, complete.is_final), (8_000_000, true));
            assert_eq!(complete.facts.service_tier.as_deref(), Some("1280x720"));
            let queued = found(&body("queued"));
            assert_eq!((queued.others.output_second, queued.is_final), (0, false));
            assert_eq!(queued.facts.object_state, Some(ObjectState::Running));
            assert_eq!(found(&body("failed")).others.output_second, 0);
        }
        let silent = found(r#"{"id":"video_1","status":"completed"}"#);
        assert_eq!((silent.others.output_second, silent.is_final), (0, false));
    }
}
