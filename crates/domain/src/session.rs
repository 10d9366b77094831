//! Sessions of people who have signed in with a secret key.

use std::fmt;

use rand::Rng;
use rand::distr::Alphanumeric;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::cell::CellNumber;
use crate::id::SecretKeyId;
use crate::merchant::Merchant;
use crate::span::TimeZone;
use crate::time::Timestamp;

/// The browser's part of a session: random letters and digits. Before them, `tgc_`, the number of the cell and `_`, if that
/// is not cell 0. Only [`SessionToken::reveal`] shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken(String);

/// The stored form of a token: the SHA-256 of its text, 32 bytes.
pub type SessionHash = [u8; 32];

/// The number of random letters and digits, as in a key: 190 bits.
const CHARS: usize = 32;
/// The beginning of a token with the number of a cell.
const PREFIX: &str = "tgc_";

impl SessionToken {
    /// Generates a random token of a cell.
    pub fn generate(cell: CellNumber) -> Self {
        let mark = cell.mark();
        let prefix = if mark.is_empty() { "" } else { PREFIX };
        Self(format!("{prefix}{mark}{}", random()))
    }

    /// Parses a token by its shape alone. Only the store knows whether it opens a session.
    pub fn parse(text: &str) -> Option<Self> {
        let random = match text.strip_prefix(PREFIX) {
            None => text,
            Some(rest) => CellNumber::split(rest).filter(|(cell, _)| cell.get() > 0)?.1,
        };
        let has_shape = random.len() == CHARS && random.bytes().all(|b| b.is_ascii_alphanumeric());
        has_shape.then(|| Self(text.to_owned()))
    }

    /// The SHA-256 by which the session is stored and found.
    pub fn hash(&self) -> SessionHash {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// A token for the forms of one page of this session. No other page can send them, and a page
    /// can send them only once. It follows from the session's token and a random part. The
    /// session's token follows neither from it nor from the stored hash.
    pub fn form_token(&self) -> String {
        let random = random();
        let seal = self.seal(&random);
        format!("{random}{seal}")
    }

    /// The random part of a form's token; `None` unless a page of this session has it.
    pub fn opened(&self, form_token: &str) -> Option<String> {
        let (random, shown) = form_token.split_at_checked(CHARS)?;
        let is_ours = bool::from(shown.as_bytes().ct_eq(self.seal(random).as_bytes()));
        is_ours.then(|| random.to_owned())
    }

    fn seal(&self, random: &str) -> String {
        let digest = Sha256::new()
            .chain_update("form:")
            .chain_update(&self.0)
            .chain_update(random)
            .finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The token itself, for the cookie.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

fn random() -> String {
    rand::rng().sample_iter(Alphanumeric).take(CHARS).map(char::from).collect()
}

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(…)")
    }
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The merchant whose data it shows.
    pub merchant: Merchant,
    /// The zone in which the merchant's days and times are shown.
    pub time_zone: TimeZone,
    /// The key that opened it. The session ends with the key.
    pub secret_key_id: SecretKeyId,
    /// The first characters of that key.
    pub key_preview: String,
    /// The end of the session.
    pub expires_at: Timestamp,
}

impl Session {
    /// The duration of a session, in milliseconds: 12 hours.
    pub const LASTS_MILLIS: i64 = 12 * 60 * 60 * 1_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_neither_debug_nor_its_forms_tell_it() {
        let token = SessionToken::generate(CellNumber::default());
        assert_eq!(SessionToken::parse(token.reveal()), Some(token.clone()));
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert!(!token.form_token().contains(token.reveal()));
        let form = token.form_token();
        assert_ne!(form, token.form_token(), "each page has its own");
        assert_eq!(token.opened(&form).as_deref(), Some(&form[..CHARS]));
        assert_eq!(SessionToken::generate(CellNumber::default()).opened(&form), None);
        for wrong in ["", "short", &form[1..], &"é".repeat(40), &form.to_uppercase()] {
            assert_eq!(token.opened(wrong), None, "{wrong}");
        }
        let of_cell = SessionToken::generate(CellNumber::try_from(7).unwrap());
        assert!(of_cell.reveal().starts_with("tgc_7_"));
        assert_eq!(SessionToken::parse(of_cell.reveal()), Some(of_cell));
        let [unmarked, of_0] = ["tgc_", "tgc_0_"].map(|mark| format!("{mark}{}", "x".repeat(32)));
        for wrong in ["", "short", &"é".repeat(16), &"x".repeat(33), &unmarked, &of_0] {
            assert_eq!(SessionToken::parse(wrong), None);
        }
    }
}
