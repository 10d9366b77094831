//! Speech in a simulation: samples that are not zero. Silence ends it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The milliseconds of a token of sound that is heard.
const MS_PER_TOKEN: u64 = 100;

/// The speech that was sent and is no input yet.
#[derive(Debug, Default)]
pub(super) struct Speech {
    /// The sound since the last input.
    pub(super) ms: u64,
    silent_ms: u64,
    is_speaking: bool,
}

/// A change in the speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpeechChange {
    Started,
    Stopped,
}

impl Speech {
    /// Takes sound in base64, of this number of bytes in a second. Silence of `silence_ms` ends the speech.
    pub(super) fn hear(
        &mut self,
        sound: &str,
        bytes_per_second: u64,
        silence_ms: u64,
    ) -> Option<SpeechChange> {
        let bytes = STANDARD.decode(sound).unwrap_or_default();
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let ms = length.saturating_mul(1_000) / bytes_per_second.max(1);
        self.ms = self.ms.saturating_add(ms);
        if bytes.iter().any(|byte| *byte != 0) {
            self.silent_ms = 0;
            let was_speaking = std::mem::replace(&mut self.is_speaking, true);
            return (!was_speaking).then_some(SpeechChange::Started);
        }
        self.silent_ms = self.silent_ms.saturating_add(ms);
        let stops = self.is_speaking && self.silent_ms >= silence_ms;
        if stops {
            self.is_speaking = false;
        }
        stops.then_some(SpeechChange::Stopped)
    }

    /// The tokens of the sound, which is input from now on.
    pub(super) fn take_tokens(&mut self) -> u64 {
        self.is_speaking = false;
        std::mem::take(&mut self.ms).div_ceil(MS_PER_TOKEN)
    }
}

/// Sound of this length, of samples of 16 bits at 24 kHz, in base64.
pub(super) fn sound(ms: usize) -> String {
    STANDARD.encode(vec![0; ms.saturating_mul(48)])
}
