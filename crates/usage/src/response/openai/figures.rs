//! The token counts of OpenAI's format, with the variants of other hosts.

use tollgate_pricing::PerUnit;

use crate::dialect::Api;
use crate::object::Object;
use crate::response::json::{Figure, part_of};

/// The latest figures of an answer. There are two families of names, and some providers report
/// under both.
#[derive(Default)]
pub(super) struct Figures {
    prompt: Figure,
    completion: Figure,
    total: Figure,
    cached: Figure,
    cached_audio: Figure,
    cache_write: Figure,
    input_audio: Figure,
    input_image: Figure,
    input_video: Figure,
    reasoning: Figure,
    output_audio: Figure,
    output_image: Figure,
}

/// The place of a host's reasoning tokens, if the total does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::response) enum Thoughts {
    /// Within the answer.
    Within,
    /// Sometimes within it, sometimes beside it.
    Either,
    /// In the total alone.
    Unsaid,
}

impl Thoughts {
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

impl Figures {
    pub(super) fn take(&mut self, usage: &Object<'_>) {
        self.prompt.take(usage.any(&["prompt_tokens", "input_tokens"]));
        self.completion.take(usage.any(&["completion_tokens", "output_tokens"]));
        self.total.take(usage.get("total_tokens"));
        self.cached.take(usage.any(&CACHED));
        self.reasoning.take(usage.get("reasoning_tokens"));
        let input = ["prompt_tokens_details", "input_tokens_details", "input_token_details"];
        if let Some(input) = input.iter().find_map(|key| usage.object(key)) {
            self.cached.take(input.get("cached_tokens"));
            self.cache_write.take(input.get("cache_write_tokens"));
            self.input_audio.take(input.get("audio_tokens"));
            self.input_image.take(input.get("image_tokens"));
            self.input_video.take(input.get("video_tokens"));
            if let Some(cached) = input.object("cached_tokens_details") {
                self.cached_audio.take(cached.get("audio_tokens"));
            }
        }
        let output = ["completion_tokens_details", "output_tokens_details", "output_token_details"];
        if let Some(output) = output.iter().find_map(|key| usage.object(key)) {
            self.reasoning.take(output.get("reasoning_tokens"));
            self.output_audio.take(output.get("audio_tokens"));
            self.output_image.take(output.get("image_tokens"));
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
        !all.contains(&Figure::Unreadable)
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
        let mut cached = part_of(&mut rest, self.cached);
        let cached_input_audio = part_of(&mut cached, self.cached_audio);
        let mut input_audio = self.input_audio.or_zero();
        input_audio = input_audio.saturating_sub(cached_input_audio);
        Some(PerUnit {
            cached_input: cached,
            cached_input_audio,
            cache_write: part_of(&mut rest, self.cache_write),
            input_audio: part_of(&mut rest, Figure::Count(input_audio)),
            input_image: part_of(&mut rest, self.input_image),
            input_video: part_of(&mut rest, self.input_video),
            input: rest,
            ..PerUnit::default()
        })
    }

    pub(super) fn output(&self, api: Api, thoughts: Thoughts) -> Option<PerUnit<u64>> {
        if only_takes(api) {
            return self.input(api).map(|_| PerUnit::default());
        }
        let stated = self
            .completion
            .count()
            .or_else(|| self.total.count()?.checked_sub(self.prompt.count()?))?;
        let beside = self.reasoning_beside(stated, thoughts);
        let mut rest = stated.saturating_add(beside);
        let reasoning = Figure::Count(self.reasoning.or_zero().max(beside));
        let mut output = PerUnit {
            reasoning: part_of(&mut rest, reasoning),
            output_audio: part_of(&mut rest, self.output_audio),
            output_image: part_of(&mut rest, self.output_image),
            ..PerUnit::default()
        };
        match api {
            // These bill only the images or the sound, unless the answer reports them apart.
            Api::Images if self.output_image == Figure::Absent => output.output_image = rest,
            Api::Speech if self.output_audio == Figure::Absent => output.output_audio = rest,
            _ => output.output = rest,
        }
        Some(output)
    }

    /// The reasoning tokens beyond the `completion` tokens. Most providers count them within, a few
    /// beside, and some either way: then the total decides.
    fn reasoning_beside(&self, completion: u64, thoughts: Thoughts) -> u64 {
        let reasoning = self.reasoning.or_zero();
        // A count above the whole answer cannot be a part of it.
        let beyond = match thoughts {
            Thoughts::Either if reasoning > completion => reasoning,
            _ => 0,
        };
        let (Some(prompt), Some(total)) = (self.prompt.count(), self.total.count()) else {
            return beyond;
        };
        let unexplained = total.saturating_sub(prompt.saturating_add(completion));
        let is_reasoning = unexplained > 0 && self.reasoning.count() == Some(unexplained);
        let is_unsaid = thoughts == Thoughts::Unsaid && reasoning == 0;
        match is_reasoning || is_unsaid {
            true => unexplained,
            false if unexplained == 0 => 0,
            false => beyond,
        }
    }

    /// Whether the sum of the parts differs from the stated total, if there is one.
    pub(super) fn total_differs(&self, api: Api, thoughts: Thoughts) -> bool {
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
