//! Provider keys of callers, encrypted while a job runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// The length of the secret, in bytes.
const SECRET_BYTES: usize = 32;

/// Encrypts provider keys by ChaCha20-Poly1305, with a random nonce before each.
#[derive(Clone)]
pub struct KeySeal(Arc<LessSafeKey>);

/// The error of a text that is not the base64 of 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySealError;

impl FromStr for KeySeal {
    type Err = KeySealError;

    /// The seal with a secret: the base64 of 32 bytes.
    fn from_str(secret: &str) -> Result<Self, KeySealError> {
        let bytes = STANDARD.decode(secret.trim()).map_err(|_| KeySealError)?;
        if bytes.len() != SECRET_BYTES {
            return Err(KeySealError);
        }
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes).map_err(|_| KeySealError)?;
        Ok(Self(Arc::new(LessSafeKey::new(key))))
    }
}

impl KeySeal {
    /// The nonce and the encrypted key; `None` if the system has no random bytes.
    pub(crate) fn seal(&self, key: &str) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = key.as_bytes().to_vec();
        let place = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(place, Aad::empty(), &mut sealed).ok()?;
        Some([nonce.as_slice(), &sealed].concat())
    }

    /// The key in a text that this seal has encrypted; `None` for any other text.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<String> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let place = Nonce::assume_unique_for_key(*nonce);
        let key = self.0.open_in_place(place, Aad::empty(), &mut bytes).ok()?;
        String::from_utf8(key.to_vec()).ok()
    }
}

/// Never prints the secret.
impl fmt::Debug for KeySeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySeal(***)")
    }
}

impl fmt::Display for KeySealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be the base64 of 32 bytes")
    }
}

impl std::error::Error for KeySealError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_by_its_own_seal_alone() {
        let seal = |byte| STANDARD.encode([byte; SECRET_BYTES]).parse::<KeySeal>().unwrap();
        let (own, other) = (seal(1), seal(2));
        let sealed = own.seal("sk-secret").unwrap();
        assert!(!String::from_utf8_lossy(&sealed).contains("secret"));
        assert_ne!(own.seal("sk-secret").unwrap(), sealed, "each has a nonce of its own");
        assert_eq!(own.open(&sealed).as_deref(), Some("sk-secret"));
        assert_eq!(other.open(&sealed), None);
        let mut damaged = sealed.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(own.open(&damaged), None);
        assert_eq!(own.open(b"short"), None);
        for secret in ["", "abc", "c2hvcnQ=", &STANDARD.encode([1; 31]), &"A".repeat(44)] {
            assert!(secret.parse::<KeySeal>().is_err(), "{secret}");
        }
    }
}
