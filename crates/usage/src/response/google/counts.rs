//! The token counts of Google's answers, split by kind.

use tollgate_pricing::PerUnit;

use crate::object::JsonObject;
use crate::response::json::{ReportedCount, split_detail};

/// The latest figures.
#[derive(Default)]
pub(super) struct GoogleCounts {
    prompt: ReportedCount,
    tools: ReportedCount,
    cached: ReportedCount,
    candidates: ReportedCount,
    thoughts: ReportedCount,
    total: ReportedCount,
    prompt_kinds: ModalityCounts,
    tool_kinds: ModalityCounts,
    cached_kinds: ModalityCounts,
    output_kinds: ModalityCounts,
}

/// The counts of kinds other than text.
#[derive(Clone, Copy, Default)]
struct ModalityCounts {
    audio: u64,
    image: u64,
    video: u64,
    unreadable: bool,
}

impl GoogleCounts {
    pub(super) fn take(&mut self, usage: &JsonObject<'_>) {
        self.prompt.update(usage.get("promptTokenCount"));
        self.tools.update(usage.get("toolUsePromptTokenCount"));
        self.cached.update(usage.get("cachedContentTokenCount"));
        // The second is the name in live answers.
        self.candidates.update(usage.get_any(&["candidatesTokenCount", "responseTokenCount"]));
        self.thoughts.update(usage.get("thoughtsTokenCount"));
        self.total.update(usage.get("totalTokenCount"));
        self.prompt_kinds.take(usage, &["promptTokensDetails", "promptTokenDetails"]);
        self.tool_kinds.take(usage, &["toolUsePromptTokensDetails"]);
        self.cached_kinds.take(usage, &["cacheTokensDetails"]);
        self.output_kinds.take(usage, &["candidatesTokensDetails", "responseTokensDetails"]);
    }

    pub(super) fn readable(&self) -> bool {
        let all =
            [self.prompt, self.tools, self.cached, self.candidates, self.thoughts, self.total];
        let kinds = [self.prompt_kinds, self.tool_kinds, self.cached_kinds, self.output_kinds];
        !all.contains(&ReportedCount::Unreadable) && !kinds.iter().any(|kinds| kinds.unreadable)
    }

    pub(super) fn input(&self) -> Option<PerUnit<u64>> {
        let mut rest = self.prompt.count()?;
        let mut cached = split_detail(&mut rest, self.cached);
        let cached_input_audio =
            split_detail(&mut cached, ReportedCount::Count(self.cached_kinds.audio));
        // Cached tokens of a kind are subtracted from that kind.
        let uncached = |all: u64, cached: u64| ReportedCount::Count(all.saturating_sub(cached));
        let (all, kept) = (self.prompt_kinds, self.cached_kinds);
        let prompt = PerUnit {
            cached_input: cached,
            cached_input_audio,
            input_audio: split_detail(&mut rest, uncached(all.audio, cached_input_audio)),
            input_image: split_detail(&mut rest, uncached(all.image, kept.image)),
            input_video: split_detail(&mut rest, uncached(all.video, kept.video)),
            input: rest,
            ..PerUnit::default()
        };
        let mut rest = self.tools.or_zero();
        let tools = PerUnit {
            input_audio: split_detail(&mut rest, ReportedCount::Count(self.tool_kinds.audio)),
            input_image: split_detail(&mut rest, ReportedCount::Count(self.tool_kinds.image)),
            input_video: split_detail(&mut rest, ReportedCount::Count(self.tool_kinds.video)),
            input: rest,
            ..PerUnit::default()
        };
        Some(PerUnit::sum(&prompt, &tools))
    }

    /// The output tokens. `answered` is whether text came back.
    pub(super) fn output(&self, answered: bool) -> Option<PerUnit<u64>> {
        // Absent if there were only thoughts, and if the prompt was refused.
        let mut rest = match self.candidates.count() {
            Some(candidates) => candidates,
            // Without text, a prompt alone or thoughts alone are the whole usage.
            None if self.total.count().is_none() => {
                let thought = self.thoughts.count().is_some();
                (thought || (self.prompt.count().is_some() && !answered)).then_some(0)?
            }
            None => self.total.count()?.checked_sub(self.stated_without_candidates())?,
        };
        Some(PerUnit {
            reasoning: self.thoughts.or_zero(),
            output_audio: split_detail(&mut rest, ReportedCount::Count(self.output_kinds.audio)),
            output_image: split_detail(&mut rest, ReportedCount::Count(self.output_kinds.image)),
            output: rest,
            ..PerUnit::default()
        })
    }

    fn stated_without_candidates(&self) -> u64 {
        let stated = [self.prompt, self.tools, self.thoughts];
        stated.iter().fold(0, |sum: u64, figure| sum.saturating_add(figure.or_zero()))
    }

    /// Whether the sum of the parts differs from the stated total, if there is one.
    pub(super) fn total_differs(&self) -> bool {
        let sum = self.stated_without_candidates().saturating_add(self.candidates.or_zero());
        self.total.count().is_some_and(|total| total != sum)
            && (self.prompt.count().is_some() && self.candidates.count().is_some())
    }
}

impl ModalityCounts {
    /// Takes the first of several lists that is present.
    fn take(&mut self, usage: &JsonObject<'_>, keys: &[&str]) {
        let Some(key) = keys.iter().find(|key| usage.get(key).is_some()) else { return };
        *self = Self::default();
        for entry in usage.objects(key) {
            let mut count = ReportedCount::Absent;
            count.update(entry.get("tokenCount"));
            self.unreadable |= count == ReportedCount::Unreadable;
            let kind = match entry.text("modality").as_deref() {
                Some("AUDIO") => &mut self.audio,
                // A document is read page by page, as images.
                Some("IMAGE" | "DOCUMENT") => &mut self.image,
                Some("VIDEO") => &mut self.video,
                _ => continue,
            };
            *kind = kind.saturating_add(count.or_zero());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_come_to_the_whole_whatever_the_details_say(
            [prompt, tools, cached, candidates, thoughts] in any::<[u16; 5]>(),
            details in prop::collection::vec((0_usize..4, 0_usize..5, any::<u16>()), 0..12),
        ) {
            let keys = ["promptTokensDetails", "toolUsePromptTokensDetails",
                "cacheTokensDetails", "candidatesTokensDetails"];
            let kinds = ["TEXT", "AUDIO", "IMAGE", "VIDEO", "DOCUMENT"];
            let list = |wanted: usize| {
                let of_key = details.iter().filter(|(key, ..)| *key == wanted);
                let entries = of_key.map(|(_, kind, count)| {
                    format!(r#"{{"modality":"{}","tokenCount":{count}}}"#, kinds[*kind])
                });
                format!(r#""{}":[{}]"#, keys[wanted], entries.collect::<Vec<_>>().join(","))
            };
            let lists = (0..4).map(list).collect::<Vec<_>>().join(",");
            let usage = format!(
                r#"{{"promptTokenCount":{prompt},"toolUsePromptTokenCount":{tools},
                "cachedContentTokenCount":{cached},"candidatesTokenCount":{candidates},
                "thoughtsTokenCount":{thoughts},{lists}}}"#
            );
            let mut figures = GoogleCounts::default();
            figures.take(&JsonObject::of(usage.as_bytes()).unwrap());
            let quantities =
                PerUnit::sum(&figures.input().unwrap(), &figures.output(true).unwrap());
            let usage = tollgate_pricing::Usage { quantities, provider_cost: None };
            prop_assert_eq!(usage.input_tokens(), u64::from(prompt) + u64::from(tools));
            prop_assert_eq!(usage.output_tokens(), u64::from(candidates) + u64::from(thoughts));
            prop_assert_eq!(usage.cached_input_tokens(), u64::from(cached.min(prompt)));
        }
    }
}
