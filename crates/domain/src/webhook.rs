//! Webhooks: the URL and the secrets of a receiver, and the kinds of events that it gets.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::Rng;
use serde::{Deserialize, Serialize};
use standardwebhooks::Webhook as MessageSigner;

use crate::event_kind::EventKind;
use crate::id::{MerchantId, WebhookId};
use crate::time::Timestamp;

/// A URL that receives events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// The id.
    pub webhook_id: WebhookId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// Display name.
    pub name: String,
    /// The URL that events are sent to.
    pub url: String,
    /// The kinds of events that are sent; `None` for all except events of single calls.
    pub events: Option<Vec<EventKind>>,
    /// The time of creation.
    pub created_at: Timestamp,
}

impl Webhook {
    /// Returns whether it receives events of this kind.
    pub fn wants(&self, kind: EventKind) -> bool {
        match &self.events {
            Some(events) => events.contains(&kind),
            None => !kind.is_request_event(),
        }
    }
}

/// The fields of a new webhook, as the merchant states them. The URL has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewWebhook {
    /// Display name.
    pub name: String,
    /// The URL that events are sent to.
    pub url: String,
    /// The kinds of events that are sent.
    pub events: Option<Vec<EventKind>>,
}

/// The changes of a webhook. `None` keeps a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookChanges {
    /// Display name.
    pub name: Option<String>,
    /// The URL that events are sent to.
    pub url: Option<String>,
    /// The kinds of events that are sent; `Some(None)` for all except events of single calls.
    pub events: Option<Option<Vec<EventKind>>>,
}

impl Webhook {
    /// Applies changes.
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

/// The length of a secret. The standard allows 24 to 64 bytes.
const SECRET_BYTES: usize = 32;
const SECRET_PREFIX: &str = "whsec_";

/// A key that signs messages. Only [`WebhookSecret::reveal`] shows it; its serialized form is for
/// the store alone.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Generates a random secret.
    pub fn generate() -> Self {
        Self(rand::rng().random::<[u8; SECRET_BYTES]>().to_vec())
    }

    /// The secret as text, in the form that Standard Webhooks libraries take. It is shown once.
    pub fn reveal(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// Parses a secret: `whsec_` and base64.
    pub fn parse(text: &str) -> Option<Self> {
        STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok().map(Self)
    }

    /// The signature of a message by Standard Webhooks 1.0. The timestamp is the time of the attempt, in
    /// seconds since 1970. A body that is not UTF-8 has none.
    pub fn signature(&self, message_id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
        MessageSigner::from_bytes(self.0.clone()).ok()?.sign(message_id, timestamp, body).ok()
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

/// The time for which a replaced secret still signs messages, in milliseconds.
const OLD_SECRET_MILLIS: i64 = 24 * 60 * 60 * 1_000;
/// The most replaced secrets that are kept: all signatures of a message are one header.
const MAX_OLD_SECRETS: usize = 4;

/// The secrets of a webhook: the newest, and the ones that it replaced a short time ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookSecrets {
    newest: WebhookSecret,
    /// Newest first.
    old: Vec<ReplacedSecret>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReplacedSecret {
    secret: WebhookSecret,
    until: Timestamp,
}

impl WebhookSecrets {
    /// Generates one secret.
    pub fn generate() -> Self {
        Self { newest: WebhookSecret::generate(), old: Vec::new() }
    }

    /// The newest secret, valid until it is replaced.
    pub const fn newest(&self) -> &WebhookSecret {
        &self.newest
    }

    /// Replaces the newest secret. Messages are signed with both for 24 hours.
    pub fn rotate(&mut self, now: Timestamp) {
        let secret = std::mem::replace(&mut self.newest, WebhookSecret::generate());
        let until = now.plus_millis(OLD_SECRET_MILLIS);
        self.old.retain(|old| now < old.until);
        self.old.insert(0, ReplacedSecret { secret, until });
        self.old.truncate(MAX_OLD_SECRETS);
    }

    /// The signatures of a message, one with each valid secret, as the value of the header
    /// `webhook-signature`. `timestamp` is the header's time, in seconds since 1970.
    pub fn signatures(
        &self,
        message_id: &str,
        timestamp: i64,
        body: &[u8],
        now: Timestamp,
    ) -> String {
        let old = self.old.iter().filter(|old| now < old.until).map(|old| &old.secret);
        let valid = std::iter::once(&self.newest).chain(old);
        let signatures = valid.filter_map(|secret| secret.signature(message_id, timestamp, body));
        signatures.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_standards_own_example() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.signature(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
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
            all.split(' ').any(|one| Some(one) == secret.signature("evt_1", 7, b"{}").as_deref())
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
        assert_eq!(wanted, EventKind::ALL[..17]);
        webhook.events = Some(vec![EventKind::RequestFailed]);
        let wanted: Vec<_> =
            EventKind::ALL.iter().filter(|kind| webhook.wants(**kind)).copied().collect();
        assert_eq!(wanted, [EventKind::RequestFailed]);
    }
}
