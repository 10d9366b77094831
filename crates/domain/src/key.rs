//! Keys, as credentials: a prefix, the number of the cell, 32 random characters, and a checksum over all of it. Keys of cell
//! 0 have no number. Spend keys may also be keys that another service made, and that were imported by their hashes.

use std::fmt;

use rand::Rng;
use rand::distr::Alphanumeric;
use sha2::{Digest, Sha256};

use crate::cell::CellNumber;

/// The kind of a key, by the access that it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A merchant's secret key, for the whole API.
    Secret,
    /// A spend key, for calls alone.
    Spend,
}

impl KeyKind {
    const ALL: [Self; 2] = [Self::Secret, Self::Spend];

    /// The prefix of keys of this kind.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Secret => "tgs_",
            Self::Spend => "tgk_",
        }
    }
}

/// A key whose checksum is right, or one that another service made. Only [`Key::reveal`] returns its text in full.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    kind: KeyKind,
    /// Of keys of another service it is 0.
    cell: CellNumber,
    text: String,
}

/// The stored form of a key: the SHA-256 of its text, 32 bytes.
pub type KeyHash = [u8; 32];

/// The error of a text that is not a key: wrong prefix, length, characters or checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseKeyError;

const RANDOM_CHARS: usize = 32;
const CHECKSUM_CHARS: usize = 6;
const PREVIEW_CHARS: usize = 8;
/// The prefix of keys that other services make, and the longest of them that is looked up.
const FOREIGN: &str = "sk-";
const FOREIGN_CHARS: usize = 255;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl Key {
    /// Generates a random key of a cell.
    pub fn generate(kind: KeyKind, cell: CellNumber) -> Self {
        let random = rand::rng().sample_iter(Alphanumeric).take(RANDOM_CHARS).map(char::from);
        let mut text = format!("{}{}", kind.prefix(), cell.mark());
        text.extend(random);
        text.push_str(&checksum(&text));
        Self { kind, cell, text }
    }

    /// Parses a key by its shape and checksum alone. Only the store knows whether the key exists. A key that begins with
    /// `sk-` is a spend key that may have been imported.
    ///
    /// # Errors
    /// [`ParseKeyError`] when this service can have neither issued nor imported it.
    pub fn parse(text: &str) -> Result<Self, ParseKeyError> {
        if text.starts_with(FOREIGN) {
            let is_clean =
                text.len() <= FOREIGN_CHARS && text.bytes().all(|b| b.is_ascii_graphic());
            let kind = KeyKind::Spend;
            let key =
                is_clean.then(|| Self { kind, cell: CellNumber::default(), text: text.to_owned() });
            return key.ok_or(ParseKeyError);
        }
        let found = KeyKind::ALL
            .into_iter()
            .find_map(|kind| Some((kind, text.strip_prefix(kind.prefix())?)));
        let (kind, rest) = found.ok_or(ParseKeyError)?;
        let (cell, body) = CellNumber::split(rest).ok_or(ParseKeyError)?;
        let body_is_clean = body.bytes().all(|b| b.is_ascii_alphanumeric());
        if body.len() != RANDOM_CHARS + CHECKSUM_CHARS || !body_is_clean {
            return Err(ParseKeyError);
        }
        let (signed, sum) = text.split_at(text.len() - CHECKSUM_CHARS);
        if checksum(signed) != sum {
            return Err(ParseKeyError);
        }
        Ok(Self { kind, cell, text: text.to_owned() })
    }

    /// The cell of a key by its beginning. `None` for a key of another service.
    pub fn cell_of_start(start: &str) -> Option<CellNumber> {
        let rest = KeyKind::ALL.into_iter().find_map(|kind| start.strip_prefix(kind.prefix()))?;
        CellNumber::split(rest).map(|(cell, _)| cell)
    }

    /// Whether another service made the key.
    pub fn is_foreign(&self) -> bool {
        self.text.starts_with(FOREIGN)
    }

    /// The kind of the key.
    pub const fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The cell that made the key.
    pub const fn cell(&self) -> CellNumber {
        self.cell
    }

    /// The SHA-256 by which the key is stored and found.
    pub fn hash(&self) -> KeyHash {
        Sha256::digest(self.text.as_bytes()).into()
    }

    /// The prefix, the number of the cell and the next 8 characters, by which people tell keys apart, and `****`.
    pub fn preview(&self) -> String {
        let fixed = self.kind.prefix().len() + self.cell.mark().len();
        let shown = self.text.chars().take(fixed + PREVIEW_CHARS);
        shown.chain("****".chars()).collect()
    }

    /// The key itself. It is shown once, at its creation.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.preview())
    }
}

impl fmt::Display for ParseKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a key")
    }
}

impl std::error::Error for ParseKeyError {}

/// CRC-32 in six base-62 digits. It catches typing errors and lets scanners recognise a leaked key.
/// It protects no secret.
fn checksum(text: &str) -> String {
    let mut rest = u64::from(crc32fast::hash(text.as_bytes()));
    let mut digits = [b'0'; CHECKSUM_CHARS];
    for digit in digits.iter_mut().rev() {
        let value = usize::try_from(rest % 62).unwrap_or(0);
        *digit = BASE62.get(value).copied().unwrap_or(b'0');
        rest /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_keeps_its_secret_from_debug() {
        for kind in KeyKind::ALL {
            for (cell, mark) in [(0, ""), (7, "7_"), (9_999, "9999_")] {
                let cell = CellNumber::try_from(cell).unwrap();
                let key = Key::generate(kind, cell);
                assert_eq!(key.reveal().len(), 4 + mark.len() + 32 + 6);
                assert!(key.reveal()[4..].starts_with(mark));
                assert_eq!((Key::parse(key.reveal()), key.cell()), (Ok(key.clone()), cell));
                let shown = &key.reveal()[..12 + mark.len()];
                assert_eq!(format!("{key:?}"), format!("{shown}****"));
            }
        }
    }

    #[test]
    fn one_changed_character_is_refused() {
        let key = Key::generate(KeyKind::Secret, CellNumber::default());
        let moved = key.reveal().replacen("tgs_", "tgs_7_", 1);
        assert_eq!(
            Key::parse(&moved),
            Err(ParseKeyError),
            "the checksum is over the number as well"
        );
        for place in 4..key.reveal().len() {
            let mut text = key.reveal().to_owned();
            let other = if &text[place..=place] == "a" { "b" } else { "a" };
            text.replace_range(place..=place, other);
            assert_eq!(Key::parse(&text), Err(ParseKeyError), "{text}");
        }
        let foreign = Key::parse("sk-1234_abcd-xyz").unwrap();
        assert!(foreign.is_foreign() && foreign.kind() == KeyKind::Spend);
        for text in ["sk-é", "sk-a b", &format!("sk-{}", "a".repeat(300)), "pk-1"] {
            assert_eq!(Key::parse(text), Err(ParseKeyError), "{text}");
        }
        assert_eq!(Key::parse(""), Err(ParseKeyError));
        assert_eq!(Key::parse("tgs_é"), Err(ParseKeyError));
    }
}
