//! Webhooks: where a merchant wants to be told of events, of which, and how it knows that it is us.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use rand::Rng;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::event_kind::EventKind;
use crate::id::{MerchantId, WebhookId};
use crate::time::Timestamp;

/// A place that events are sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// Its id.
    pub webhook_id: WebhookId,
    /// Whose it is.
    pub merchant_id: MerchantId,
    /// What people call it.
    pub name: String,
    /// Where events are sent.
    pub url: String,
    /// The events that are sent; `None` for all but those of single calls.
    pub events: Option<Vec<EventKind>>,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Webhook {
    /// Whether it is told of events of this kind.
    pub fn wants(&self, kind: EventKind) -> bool {
        match &self.events {
            Some(events) => events.contains(&kind),
            None => !kind.is_of_a_request(),
        }
    }
}

/// What a merchant says of a new webhook. The URL has been judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWebhook {
    /// What people call it.
    pub name: String,
    /// Where events are sent.
    pub url: String,
    /// The events that are sent.
    pub events: Option<Vec<EventKind>>,
}

/// What changes of a webhook; `None` keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookChanges {
    /// Its name.
    pub name: Option<String>,
    /// Where events are sent.
    pub url: Option<String>,
    /// The events that are sent; `Some(None)` for all but those of single calls.
    pub events: Option<Option<Vec<EventKind>>>,
}

impl Webhook {
    /// Makes changes.
    pub fn change(&mut self, changes: WebhookChanges) {
        let WebhookChanges { name, url, events } = changes;
        if let Some(name) = name {
            self.name = name;
        }
        if let Some(url) = url {
            self.url = url;
        }
        if let Some(events) = events {
            self.events = events;
        }
    }
}

/// Between the 24 and 64 that the standard allows.
const SECRET_BYTES: usize = 32;
const SECRET_PREFIX: &str = "whsec_";

/// A key that messages are signed with. It is never printed but by [`WebhookSecret::reveal`]; serde
/// is for the store alone.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// A new random secret.
    pub fn generate() -> Self {
        Self(rand::rng().random::<[u8; SECRET_BYTES]>().to_vec())
    }

    /// The secret itself, as a merchant gives it to a Standard Webhooks library: shown once.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// A secret from its text.
    fn parse(text: &str) -> Option<Self> {
        STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok().map(Self)
    }

    /// The signature of a message, as Standard Webhooks 1.0 has it: HMAC-SHA256 over
    /// `id.timestamp.body`, where the timestamp is that of the attempt, in seconds since 1970.
    fn sign(&self, message_id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(format!("{message_id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("whsec_****")
    }
}

impl Serialize for WebhookSecret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.reveal())
    }
}

impl<'de> Deserialize<'de> for WebhookSecret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a secret of a webhook"))
    }
}

/// For how long messages are signed with a secret beside the one that has replaced it.
const OLD_SECRET_MILLIS: i64 = 24 * 60 * 60 * 1_000;
/// How many old secrets are kept at most; the signatures of a message are one header.
const MAX_OLD_SECRETS: usize = 4;

/// The secrets of a webhook: the newest, and those that it has replaced a short time ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSecrets {
    newest: WebhookSecret,
    /// Newest first.
    old: Vec<OldSecret>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OldSecret {
    secret: WebhookSecret,
    until: Timestamp,
}

impl WebhookSecrets {
    /// One new secret.
    pub fn generate() -> Self {
        Self { newest: WebhookSecret::generate(), old: Vec::new() }
    }

    /// The secret that is valid until it is replaced.
    pub const fn newest(&self) -> &WebhookSecret {
        &self.newest
    }

    /// Replaces the newest secret; messages are signed with both for 24 hours.
    pub fn rotate(&mut self, now: Timestamp) {
        let secret = std::mem::replace(&mut self.newest, WebhookSecret::generate());
        let until = now.plus_millis(OLD_SECRET_MILLIS);
        self.old.retain(|old| now < old.until);
        self.old.insert(0, OldSecret { secret, until });
        self.old.truncate(MAX_OLD_SECRETS);
    }

    /// The signatures of a message, one with each secret that is valid, as the header
    /// `webhook-signature` has them. `timestamp` is that of the header, in seconds since 1970.
    pub fn signatures(
        &self,
        message_id: &str,
        timestamp: i64,
        body: &[u8],
        now: Timestamp,
    ) -> String {
        let old = self.old.iter().filter(|old| now < old.until).map(|old| &old.secret);
        let valid = std::iter::once(&self.newest).chain(old);
        let signatures = valid.filter_map(|secret| secret.sign(message_id, timestamp, body));
        signatures.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_standards_own_example() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_reads_back_and_stays_out_of_debug() {
        let secrets = WebhookSecrets::generate();
        let stored = serde_json::to_string(&secrets).unwrap();
        assert_eq!(serde_json::from_str::<WebhookSecrets>(&stored).unwrap(), secrets);
        let revealed = secrets.newest().reveal();
        assert_eq!(revealed.len(), "whsec_".len() + 44);
        assert!(!format!("{secrets:?}").contains(&revealed["whsec_".len()..]));
    }

    #[test]
    fn an_old_secret_signs_for_a_day_however_often_it_is_replaced() {
        let start = Timestamp::from_unix_micros(1_700_000_000_000_000);
        let mut secrets = WebhookSecrets::generate();
        let signed_by = |secrets: &WebhookSecrets, secret: &WebhookSecret, hours: i64| {
            let now = start.plus_millis(hours * 60 * 60 * 1_000);
            let all = secrets.signatures("evt_1", 7, b"{}", now);
            all.split(' ').any(|one| Some(one) == secret.sign("evt_1", 7, b"{}").as_deref())
        };
        let first = secrets.newest().clone();
        secrets.rotate(start);
        let second = secrets.newest().clone();
        assert!(signed_by(&secrets, &first, 0) && signed_by(&secrets, &second, 0));
        secrets.rotate(start.plus_millis(12 * 60 * 60 * 1_000));
        assert!(signed_by(&secrets, &first, 23) && signed_by(&secrets, &second, 23));
        assert!(!signed_by(&secrets, &first, 24) && signed_by(&secrets, &second, 35));
        assert!(!signed_by(&secrets, &second, 36) && signed_by(&secrets, secrets.newest(), 36));
    }

    #[test]
    fn without_a_list_a_webhook_gets_all_but_single_calls() {
        let mut webhook = Webhook {
            webhook_id: WebhookId::generate(Timestamp::from_unix_micros(1)),
            merchant_id: MerchantId::generate(Timestamp::from_unix_micros(1)),
            name: "n".to_owned(),
            url: "https://example.com".to_owned(),
            events: None,
            created_at: Timestamp::from_unix_micros(1),
        };
        let wanted: Vec<_> =
            EventKind::ALL.iter().filter(|kind| webhook.wants(**kind)).copied().collect();
        assert_eq!(wanted, EventKind::ALL[..12]);
        webhook.events = Some(vec![EventKind::RequestFailed]);
        let wanted: Vec<_> =
            EventKind::ALL.iter().filter(|kind| webhook.wants(**kind)).copied().collect();
        assert_eq!(wanted, [EventKind::RequestFailed]);
    }
}
