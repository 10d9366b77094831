//! Estimates, for answers without readable usage.
//!
//! A token of the common tokenizers is about three and a half bytes of English text or JSON, so
//! tokens are bytes × 2 ÷ 7, rounded up:
//! - **Input**: all bytes of the request body. Images and audio within it count by their encoded
//!   bytes too, which is more than they cost.
//! - **Output**: the bytes of the text that passed: the strings in which the dialect writes its
//!   text, reasoning and tool arguments. If these are not known (unknown dialect, unknown or broken
//!   compression, a body beyond the bound without usage at its end), all bytes of a textual body
//!   count. Other content (audio, images, embeddings) counts as nothing. No estimate is more than
//!   the maximum that the call names.

use tollgate_pricing::Usage;

use crate::request::InspectedBody;

/// The tokens in a number of bytes of text.
pub(super) fn tokens(bytes: u64) -> u64 {
    // In two steps, so that no product overflows.
    let (sevens, rest) = (bytes.div_euclid(7), bytes.rem_euclid(7));
    sevens.saturating_mul(2).saturating_add((rest.saturating_mul(2)).div_ceil(7))
}

/// The usage of a call that was sent and got no answer: its input, as an estimate. It is not known
/// whether the provider accepted it, so it does not count as a request.
pub fn estimate_input(request: &InspectedBody) -> Usage {
    Usage::tokens(tokens(request.input_bytes), 0)
}

impl InspectedBody {
    /// A body with these characters to be read aloud and microseconds of sound. For answers that
    /// report less than the request.
    pub fn of_media(characters: u64, audio_micros: u64) -> Self {
        let mut body = Self::empty();
        (body.characters, body.audio_micros) = (characters, audio_micros);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::tokens;

    #[test]
    fn seven_bytes_are_two_tokens_and_what_is_begun_counts() {
        let table = [(0, 0), (1, 1), (3, 1), (4, 2), (7, 2), (8, 3), (14, 4), (700, 200)];
        for (bytes, expected) in table {
            assert_eq!(tokens(bytes), expected, "{bytes}");
        }
        assert!(tokens(u64::MAX) > u64::MAX / 4);
    }
}
