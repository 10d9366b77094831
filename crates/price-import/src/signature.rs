//! Signatures of price lists, by Ed25519 (RFC 8032).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, UnparsedPublicKey};

/// The beginning of a public key of Ed25519 in DER (RFC 8410), before its 32 bytes.
const DER: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The public key by which the signatures of price lists are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningPublicKey([u8; 32]);

/// A text is no public key of Ed25519.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseSigningKeyError;

impl fmt::Display for ParseSigningKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a public key of Ed25519, as `openssl pkey -pubout` prints it")
    }
}

impl std::error::Error for ParseSigningKeyError {}

impl FromStr for SigningPublicKey {
    type Err = ParseSigningKeyError;

    /// Reads the base64 of the key, in DER or its 32 bytes alone. The lines around it in PEM may be there.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
        let bytes = STANDARD.decode(lines.collect::<String>()).map_err(|_| ParseSigningKeyError)?;
        let key = bytes.strip_prefix(&DER).unwrap_or(&bytes);
        key.try_into().map(Self).map_err(|_| ParseSigningKeyError)
    }
}

impl SigningPublicKey {
    /// Whether `signature`, in base64, is one of `list` by the key.
    pub fn has_signed(&self, list: &[u8], signature: &str) -> bool {
        let compact: String = signature.split_ascii_whitespace().collect();
        let signature = STANDARD.decode(compact).unwrap_or_default();
        UnparsedPublicKey::new(&ED25519, self.0).verify(list, &signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key and a signature by OpenSSL 3.
    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAOj3Wj3sfBvvyVDJrCML50lEYW9Y7kTv2LnMjE5vysL4=\n-----END PUBLIC KEY-----\n";
    const SIGNATURE: &str =
        "ibcC3U8x5TUly19v7kP+WY3bOOukewrqJwWhBVQXttHg5ZCDr9v+8XfY8KozUrZ0YwXufTId9sospdUMjdqCDA==";

    #[test]
    fn a_signature_by_openssl_is_one_of_its_text_alone() {
        let key: SigningPublicKey = KEY.parse().unwrap();
        assert!(key.has_signed(b"{\"rows\": []}\n", SIGNATURE));
        assert!(key.has_signed(b"{\"rows\": []}\n", &format!("{SIGNATURE}\n")));
        assert!(!key.has_signed(b"{\"rows\": [] }\n", SIGNATURE));
        assert!(!key.has_signed(b"{\"rows\": []}\n", ""));
        assert!(!key.has_signed(b"{\"rows\": []}\n", &SIGNATURE.replace('A', "B")));
        let bare = STANDARD.encode(key.0);
        assert_eq!(bare.parse(), Ok(key));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["", "x", "AAAA", &STANDARD.encode([0; 33])] {
            assert_eq!(text.parse::<SigningPublicKey>(), Err(ParseSigningKeyError), "{text}");
        }
    }
}
