//! The length of a sound, by its header if that is exact, else by its size.

/// A sound, by its length in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AudioLength {
    pub(crate) micros: u64,
    /// Whether the length is stated, not guessed.
    pub(crate) is_exact: bool,
}

impl AudioLength {
    /// The length for an answer that states only the end of the last word. An exact length counts
    /// if it is longer, because silence may follow.
    pub(crate) fn with_reported(self, told: Option<u64>) -> u64 {
        match told {
            Some(told) if self.is_exact => told.max(self.micros),
            Some(told) => told,
            None => self.micros,
        }
    }
}

/// The assumed bytes of a second of packed sound: 32 kbit/s, the low end for speech.
const PACKED_BYTES_PER_SECOND: u64 = 4_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The length of a sound in a file: by the header of a WAV file that is not packed, else by the
/// size.
pub(super) fn length(file: &[u8]) -> AudioLength {
    match wav(file) {
        Some(micros) => AudioLength { micros, is_exact: true },
        None => {
            let bytes = u64::try_from(file.len()).unwrap_or(u64::MAX);
            let micros = micros(bytes, PACKED_BYTES_PER_SECOND).unwrap_or(u64::MAX);
            AudioLength { micros, is_exact: false }
        }
    }
}

fn micros(bytes: u64, bytes_per_second: u64) -> Option<u64> {
    let exact = u128::from(bytes).checked_mul(u128::from(MICROS_PER_SECOND))?;
    let per_second = u128::from(bytes_per_second);
    u64::try_from(exact.checked_add(per_second.checked_sub(1)?)?.checked_div(per_second)?).ok()
}

/// The length of the data chunk by the format chunk, if the sound is not packed (PCM). The bytes of
/// a second follow from rate, channels and sample width, and the stated byte rate must equal them.
/// The present data counts, not the size in its header, which is wrong in streamed files.
fn wav(file: &[u8]) -> Option<u64> {
    const PCM: u16 = 1;
    let mut rest = file.strip_prefix(b"RIFF")?.get(4..)?.strip_prefix(b"WAVE")?;
    let mut bytes_per_second = None;
    loop {
        let (id, after) = rest.split_at_checked(4)?;
        let (size, after) = after.split_at_checked(4)?;
        let size = usize::try_from(u32::from_le_bytes(size.try_into().ok()?)).ok()?;
        match id {
            b"data" => {
                let present = u64::try_from(after.len()).ok()?;
                return micros(present, bytes_per_second?);
            }
            // Readers may take either of two format chunks.
            b"fmt " if bytes_per_second.is_some() => return None,
            b"fmt " => {
                let short = |at: usize| Some(u16::from_le_bytes(*after.get(at..)?.first_chunk()?));
                let long = |at: usize| Some(u32::from_le_bytes(*after.get(at..)?.first_chunk()?));
                let (channels, rate, bits) = (short(2)?, long(4)?, short(14)?);
                let computed = u64::from(rate)
                    .checked_mul(u64::from(channels))?
                    .checked_mul(u64::from(bits.div_ceil(8)))?;
                let is_plausible = (1..=8).contains(&channels)
                    && (4_000..=192_000).contains(&rate)
                    && (8..=32).contains(&bits);
                let agrees = u64::from(long(8)?) == computed;
                bytes_per_second =
                    Some(computed).filter(|_| short(0) == Some(PCM) && is_plausible && agrees);
                bytes_per_second?;
            }
            _ => {}
        }
        // Chunks are padded to an even length.
        rest = after.get(size.checked_add(size % 2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of 8,000 samples of 16 bits a second, with this format and byte rate.
    fn file(format: u16, bytes_per_second: u32, samples: &[u8]) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        file.extend_from_slice(&format.to_le_bytes());
        file.extend_from_slice(&1_u16.to_le_bytes());
        file.extend_from_slice(&8_000_u32.to_le_bytes());
        file.extend_from_slice(&bytes_per_second.to_le_bytes());
        file.extend_from_slice(b"\x02\0\x10\0data\xff\xff\xff\xff");
        file.extend_from_slice(samples);
        file
    }

    #[test]
    fn a_wav_file_says_how_long_it_is_and_all_else_is_guessed() {
        let plain = file(1, 16_000, &[0; 24_000]);
        assert_eq!(length(&plain), AudioLength { micros: 1_500_000, is_exact: true });
        for cut in 0..56 {
            assert!(!length(&plain[..cut]).is_exact, "cut at {cut}");
        }
        assert_eq!(length(&[0; 4_001]), AudioLength { micros: 1_000_250, is_exact: false });
    }

    #[test]
    fn a_header_that_lies_or_names_a_packed_format_says_nothing() {
        for (format, bytes_per_second) in
            [(1, u32::MAX), (1, 0), (1, 15_999), (0x11, 16_000), (0x55, 16_000), (0xfffe, 16_000)]
        {
            let file = file(format, bytes_per_second, &[0; 24_000]);
            assert!(!length(&file).is_exact, "{format} at {bytes_per_second}");
        }
        let mut twice = file(1, 16_000, b"");
        twice.truncate(twice.len() - 8);
        let format = twice[24..].to_vec();
        twice.extend_from_slice(&format);
        twice.extend_from_slice(b"data\0\0\0\0");
        assert!(!length(&twice).is_exact, "two formats");
    }

    #[test]
    fn silence_behind_the_last_word_counts_where_the_length_is_known() {
        let sound = |is_exact| AudioLength { micros: 600, is_exact };
        assert_eq!(sound(true).with_reported(Some(2)), 600);
        assert_eq!(sound(true).with_reported(Some(601)), 601);
        assert_eq!(sound(false).with_reported(Some(2)), 2, "a guess gives way");
        assert_eq!((sound(true).with_reported(None), sound(false).with_reported(None)), (600, 600));
    }
}
