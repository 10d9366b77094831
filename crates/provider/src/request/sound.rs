//! How long a sound is, by its own header where that says it, else by its size.

/// The length of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) micros: u64,
    /// Whether it is said and not guessed.
    pub(super) is_exact: bool,
}

/// What is taken for a second of a packed sound: 32 kbit/s, the low end of what speech is sent at.
const PACKED_BYTES_PER_SECOND: u64 = 4_000;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The length of a sound in a file: said by the header of a WAV file, which is not packed, guessed
/// by its size for all else.
pub(super) fn length(file: &[u8]) -> Length {
    match wav(file) {
        Some(micros) => Length { micros, is_exact: true },
        None => {
            let bytes = u64::try_from(file.len()).unwrap_or(u64::MAX);
            let micros = micros(bytes, PACKED_BYTES_PER_SECOND).unwrap_or(u64::MAX);
            Length { micros, is_exact: false }
        }
    }
}

fn micros(bytes: u64, bytes_per_second: u64) -> Option<u64> {
    let exact = u128::from(bytes).checked_mul(u128::from(MICROS_PER_SECOND))?;
    let per_second = u128::from(bytes_per_second);
    u64::try_from(exact.checked_add(per_second.checked_sub(1)?)?.checked_div(per_second)?).ok()
}

/// The length of the data chunk by the byte rate of the format chunk. The data that is there counts,
/// not what the header says of it: streamed files say what they like.
fn wav(file: &[u8]) -> Option<u64> {
    let mut rest = file.strip_prefix(b"RIFF")?.get(4..)?.strip_prefix(b"WAVE")?;
    let mut bytes_per_second = None;
    loop {
        let (id, after) = rest.split_at_checked(4)?;
        let (size, after) = after.split_at_checked(4)?;
        let size = usize::try_from(u32::from_le_bytes(size.try_into().ok()?)).ok()?;
        match id {
            b"data" => {
                let present = u64::try_from(after.len()).ok()?;
                return micros(present, bytes_per_second.filter(|rate| *rate > 0)?);
            }
            b"fmt " => {
                let rate = after.get(8..)?.first_chunk::<4>()?;
                bytes_per_second = Some(u64::from(u32::from_le_bytes(*rate)));
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

    #[test]
    fn a_wav_file_says_how_long_it_is_and_all_else_is_guessed() {
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0\x01\0".to_vec();
        file.extend_from_slice(&8_000_u32.to_le_bytes());
        file.extend_from_slice(&16_000_u32.to_le_bytes());
        file.extend_from_slice(b"\x02\0\x10\0data\xff\xff\xff\xff");
        file.extend_from_slice(&vec![0; 24_000]);
        assert_eq!(length(&file), Length { micros: 1_500_000, is_exact: true });
        for cut in 0..56 {
            assert!(!length(&file[..cut]).is_exact, "cut at {cut}");
        }
        assert_eq!(length(&vec![0; 4_001]), Length { micros: 1_000_250, is_exact: false });
        let still =
            b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\0\0\0\0\0\0\0\0\x02\0\x10\0data\0\0\0\0";
        assert!(!length(still).is_exact, "no rate is no length");
    }
}
