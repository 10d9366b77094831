//! Blanks the operator's key in an answer before anything else reads the answer.

use awc::http::header::{HeaderMap, HeaderValue};
use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;

/// The shortest key that is blanked. A shorter one may be a word of many answers, and the keys of
/// providers are longer.
const SHORTEST_KEY_BYTES: usize = 16;

/// Blanks a key in an answer with asterisks of its length, however the answer is cut into pieces.
///
/// It finds the exact bytes of the key. It does not find encoded forms, or the key in a compressed
/// body.
pub(super) struct KeyMask {
    key: Finder<'static>,
    /// The last bytes so far, as long as they may begin a key.
    held: BytesMut,
    /// The number of keys found.
    pub(super) found: u64,
}

impl KeyMask {
    /// A mask for this key; none for a key that is too short.
    pub(super) fn of(key: &str) -> Option<Self> {
        let long = key.len() >= SHORTEST_KEY_BYTES;
        long.then(|| Self { key: Finder::new(key).into_owned(), held: BytesMut::new(), found: 0 })
    }

    /// Blanks the key in the values of headers.
    pub(super) fn headers(&mut self, headers: &mut HeaderMap) {
        if !headers.iter().any(|(_, value)| self.key.find(value.as_bytes()).is_some()) {
            return;
        }
        for (name, value) in std::mem::take(headers) {
            let mut bytes = value.as_bytes().to_vec();
            self.blank(&mut bytes);
            headers.append(name, HeaderValue::from_bytes(&bytes).unwrap_or(value));
        }
    }

    /// Takes the next piece of the body and returns the bytes that may pass.
    pub(super) fn piece(&mut self, piece: Bytes) -> Bytes {
        let mut open = match self.held.is_empty() {
            true if self.key.find(&piece).is_none() => {
                let mut piece = piece;
                let held = piece.split_off(piece.len().saturating_sub(self.begun(&piece)));
                self.held.extend_from_slice(&held);
                return piece;
            }
            true => BytesMut::from(piece.as_ref()),
            false => {
                let mut open = self.held.split();
                open.extend_from_slice(&piece);
                open
            }
        };
        self.blank(&mut open);
        self.held = open.split_off(open.len().saturating_sub(self.begun(&open)));
        open.freeze()
    }

    /// Blanks the key in a text that is whole.
    pub(super) fn whole(&mut self, text: Bytes) -> Bytes {
        if self.key.find(&text).is_none() {
            return text;
        }
        let mut text = BytesMut::from(text.as_ref());
        self.blank(&mut text);
        text.freeze()
    }

    /// The held bytes, when the body has ended.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    fn blank(&mut self, bytes: &mut [u8]) {
        let length = self.key.needle().len();
        let mut from = 0;
        while let Some(at) = self.key.find(bytes.get(from..).unwrap_or_default()) {
            let start = from.saturating_add(at);
            from = start.saturating_add(length);
            bytes.get_mut(start..from).unwrap_or_default().fill(b'*');
            self.found = self.found.saturating_add(1);
        }
    }

    /// The number of bytes at the end that may begin a key which the next piece completes.
    fn begun(&self, bytes: &[u8]) -> usize {
        let key = self.key.needle();
        let most = bytes.len().min(key.len().saturating_sub(1));
        let ends =
            (1..=most).rev().find(|length| bytes.ends_with(key.get(..*length).unwrap_or_default()));
        ends.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "sk-sk-key-of-test";

    /// The bytes that pass of an answer in these pieces, and the number of keys found.
    fn masked(pieces: &[&[u8]]) -> (Vec<u8>, u64) {
        let mut mask = KeyMask::of(KEY).unwrap();
        let mut passed: Vec<u8> =
            pieces.iter().flat_map(|piece| mask.piece(Bytes::copy_from_slice(piece))).collect();
        passed.extend(mask.rest());
        (passed, mask.found)
    }

    #[test]
    fn what_only_begins_like_the_key_passes_and_waits_no_longer_than_it_must() {
        let mut mask = KeyMask::of(KEY).unwrap();
        assert_eq!(mask.piece(Bytes::from_static(b"data: sk-s")), "data: ");
        assert_eq!(mask.piece(Bytes::from_static(b"k-")), "");
        let blank = format!("{}!", "*".repeat(KEY.len()));
        assert_eq!(mask.piece(Bytes::from_static(b"key-of-test!")), blank);
        assert_eq!(mask.piece(Bytes::from_static(b"sk-s")), "");
        assert_eq!(mask.piece(Bytes::from_static(b"k-sk-key")), "sk-");
        assert_eq!(mask.piece(Bytes::from_static(b"!\n\n")), "sk-sk-key!\n\n");
        assert!(KeyMask::of("simulated").is_none());
    }

    proptest! {
        #[test]
        fn however_an_answer_is_cut_its_length_stays_and_no_key_passes(
            parts in proptest::collection::vec(prop_oneof![Just(KEY), Just("sk-"), Just("k"), Just("-key"), Just("-of-test"), Just("x")], 0..12),
            cuts in proptest::collection::vec(0_usize..80, 0..8),
        ) {
            let whole = parts.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> =
                cuts.windows(2).map(|cut| &whole.as_bytes()[cut[0]..cut[1]]).collect();
            let (passed, found) = masked(&pieces);
            let expected = whole.replace(KEY, &"*".repeat(KEY.len()));
            prop_assert_eq!(String::from_utf8(passed).unwrap(), expected);
            prop_assert_eq!(usize::try_from(found).unwrap(), whole.matches(KEY).count());
        }
    }
}
