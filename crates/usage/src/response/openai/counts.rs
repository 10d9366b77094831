//! The token counts of OpenAI's format, with the variants of other hosts.

use tollgate_pricing::PerUnit;

use crate::dialect::Api;
use crate::object::JsonObject;
use crate::response::json::{ReportedCount, split_detail};

/// The latest figures of an answer. There are two families of names, and some providers report
/// under both.
#[derive(Default)]
pub(super) struct OpenAiCounts {
    prompt: ReportedCount,
    completion: ReportedCount,
    total: ReportedCount,
    cached: ReportedCount,
    cached_audio: ReportedCount,
    cache_write: ReportedCount,
    input_audio: ReportedCount,
    input_image: ReportedCount,
    input_video: ReportedCount,
    reasoning: ReportedCount,
    output_audio: ReportedCount,
    output_image: ReportedCount,
}

/// The place of a host's reasoning tokens, if the total does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::response) enum ReasoningPlacement {
    /// Within the answer.
    Within,
    /// Sometimes within it, sometimes beside it.
    Either,
    /// In the total alone.
    Unsaid,
}

impl ReasoningPlacement {
    /// The place at the host of a price list.
    pub(in crate::response) fn of(price_list: &str) -> Self {
        match price_list {
            "google" => Self::Unsaid,
            "xai" => Self::Either,
            _ => Self::Within,
        }
    }
}

/// The names of the cached tokens of the prompt at providers without details. Mistral's
/// `num_cached_tokens` is not one of them: it counts the tokens that its servers had cached, at the
/// full price. Its tokens at a lower price are in the details.
const CACHED: [&str; 3] = ["cached_tokens", "prompt_cache_hit_tokens", "cached_prompt_text_tokens"];

impl OpenAiCounts {
    pub(super) fn update(&mut self, usage: &JsonObject<'_>) {
        self.prompt.update(usage.get_any(&["prompt_tokens", "input_tokens"]));
        self.completion.update(usage.get_any(&["completion_tokens", "output_tokens"]));
        self.total.update(usage.get("total_tokens"));
        self.cached.update(usage.get_any(&CACHED));
        self.reasoning.update(usage.get("reasoning_tokens"));
        let input = ["prompt_tokens_details", "input_tokens_details", "input_token_details"];
        if let Some(input) = input.iter().find_map(|key| usage.object(key)) {
            self.cached.update(input.get("cached_tokens"));
            self.cache_write.update(input.get("cache_write_tokens"));
            self.input_audio.update(input.get("audio_tokens"));
            self.input_image.update(input.get("image_tokens"));
            self.input_video.update(input.get("video_tokens"));
            if let Some(cached) = input.object("cached_tokens_details") {
                self.cached_audio.update(cached.get("audio_tokens"));
            }
        }
        let output = ["completion_tokens_details", "output_tokens_details", "output_token_details"];
        if let Some(output) = output.iter().find_map(|key| usage.object(key)) {
            self.reasoning.update(output.get("reasoning_tokens"));
            self.output_audio.update(output.get("audio_tokens"));
            self.output_image.update(output.get("image_tokens"));
        }
    }

    pub(super) fn readable(&self) -> bool {
        let all = [
            self.prompt,
            self.completion,
            self.total,
            self.cached,
            self.cached_audio,
            self.cache_write,
            self.input_audio,
            self.input_image,
            self.input_video,
            self.reasoning,
            self.output_audio,
            self.output_image,
        ];
        !all.contains(&ReportedCount::Unreadable)
    }

    pub(super) fn input(&self, api: Api) -> Option<PerUnit<u64>> {
        let total = self.prompt.count().or_else(|| {
            // Some embedding endpoints state only the total, which is the input there.
            let total = self.total.count()?;
            match only_takes(api) {
                true => Some(total),
                false => total.checked_sub(self.completion.count()?),
            }
        })?;
        let mut rest = total;
        let mut cached = split_detail(&mut rest, self.cached);
        let cached_input_audio = split_detail(&mut cached, self.cached_audio);
        let mut input_audio = self.input_audio.or_zero();
        input_audio = input_audio.saturating_sub(cached_input_audio);
        Some(PerUnit {
            cached_input: cached,
            cached_input_audio,
            cache_write: split_detail(&mut rest, self.cache_write),
            input_audio: split_detail(&mut rest, ReportedCount::Count(input_audio)),
            input_image: split_detail(&mut rest, self.input_image),
            input_video: split_detail(&mut rest, self.input_video),
            input: rest,
            ..PerUnit::default()
        })
    }

    pub(super) fn output(&self, api: Api, thoughts: ReasoningPlacement) -> Option<PerUnit<u64>> {
        if only_takes(api) {
            return self.input(api).map(|_| PerUnit::default());
        }
        let stated = self
            .completion
            .count()
            .or_else(|| self.total.count()?.checked_sub(self.prompt.count()?))?;
        let beside = self.reasoning_beside(stated, thoughts);
        let mut rest = stated.saturating_add(beside);
        let reasoning = ReportedCount::Count(self.reasoning.or_zero().max(beside));
        let mut output = PerUnit {
            reasoning: split_detail(&mut rest, reasoning),
            output_audio: split_detail(&mut rest, self.output_audio),
            output_image: split_detail(&mut rest, self.output_image),
            ..PerUnit::default()
        };
        match api {
            // These bill only the images or the sound, unless the answer reports them apart.
            Api::Images if self.output_image == ReportedCount::Absent => output.output_image = rest,
            Api::Speech if self.output_audio == ReportedCount::Absent => output.output_audio = rest,
            _ => output.output = rest,
        }
        Some(output)
    }

    /// The reasoning tokens beyond the `completion` tokens. Most providers count them within, a few
    /// beside, and some either way: then the total decides.
    fn reasoning_beside(&self, completion: u64, thoughts: ReasoningPlacement) -> u64 {
        let reasoning = self.reasoning.or_zero();
        // A count above the whole answer cannot be a part of it.
        let beyond = match thoughts {
            ReasoningPlacement::Either if reasoning > completion => reasoning,
            _ => 0,
        };
        let (Some(prompt), Some(total)) = (self.prompt.count(), self.total.count()) else {
            return beyond;
        };
        let unexplained = total.saturating_sub(prompt.saturating_add(completion));
        let is_reasoning = unexplained > 0 && self.reasoning.count() == Some(unexplained);
        let is_unsaid = thoughts == ReasoningPlacement::Unsaid && reasoning == 0;
        match is_reasoning || is_unsaid {
            true => unexplained,
            false if unexplained == 0 => 0,
            false => beyond,
        }
    }

    /// Whether the sum of the parts differs from the stated total, if there is one.
    pub(super) fn total_differs(&self, api: Api, thoughts: ReasoningPlacement) -> bool {
        let Some(total) = self.total.count() else { return false };
        let (input, output) = (self.input(api), self.output(api, thoughts));
        let (Some(input), Some(output)) = (input, output) else { return false };
        let usage = tollgate_pricing::Usage {
            quantities: PerUnit::sum(&input, &output),
            provider_cost: None,
        };
        usage.input_tokens().saturating_add(usage.output_tokens()) != total
    }
}

/// Whether the endpoint has only input tokens.
fn only_takes(api: Api) -> bool {
    matches!(api, Api::Embeddings | Api::Rerank)
}
