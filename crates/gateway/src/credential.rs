//! The credential of a call: the key, the connection, the meter and the provider key.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tollgate_domain::{CellNumber, Issue, Key, KeyHash, KeyKind};
use tollgate_provider::ProviderKey;
use tollgate_provider::http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};

use crate::error::CallError;
use crate::request::RequestHead;

/// The credential of a forward: a token that names all of it, or a bare key.
#[derive(Clone)]
pub struct Credential {
    /// The key.
    pub key: Key,
    /// As it was written: the store checks whether the connection exists.
    pub(crate) connection_id: Option<String>,
    pub(crate) meter_slug: Option<String>,
    pub(crate) disable_billing: bool,
    pub(crate) provider_key: ProviderKey,
    /// The error if the key does not exist.
    unknown: fn(&str) -> CallError,
}

/// The issue of a text that is neither a token nor a key.
const NO_TOKEN: &str =
    "must be the base64 of a JSON object with secret_key, connection_id and meter_slug, or a key";

/// The usual number of fields of a token, and the number of all fields.
const USUAL_FIELDS: usize = 4;
const MOST_FIELDS: usize = 6;

/// The beginning of a subprotocol with the key: browsers set no headers of a WebSocket.
pub(crate) const SUBPROTOCOL_KEY: &str = "openai-insecure-api-key.";

/// Headers in which SDKs put their key, after `Authorization`, in the order of precedence.
const KEY_HEADERS: [&str; 3] = ["x-api-key", "x-goog-api-key", "xi-api-key"];

impl Credential {
    /// The customer that it names, which is not checked.
    pub fn connection_id(&self) -> Option<&str> {
        self.connection_id.as_deref()
    }

    /// The credential of a request. It is the first one present of `Authorization: Bearer`, the key headers,
    /// the subprotocol of a WebSocket, and the query parameter `key`.
    ///
    /// # Errors
    /// [`CallError::CredentialMissing`], [`CallError::CredentialInvalid`] for a key that cannot be one, and
    /// [`CallError::TokenInvalid`] for text that is neither a token nor a key.
    pub fn of(head: &RequestHead<'_>) -> Result<Self, CallError> {
        Self::from_head(head, |hint| CallError::TokenInvalid(vec![Issue::at([], hint)]))
    }

    /// As [`Self::of`], on routes to which SDKs send keys of other services.
    ///
    /// # Errors
    /// As [`Self::of`], but text that is neither a token nor a key is [`CallError::CredentialInvalid`].
    pub fn of_sdk(head: &RequestHead<'_>) -> Result<Self, CallError> {
        Self::from_head(head, |_| CallError::CredentialInvalid)
    }

    /// Whether the call is made with the operator's key of the provider.
    pub(crate) fn is_managed(&self) -> bool {
        self.provider_key == ProviderKey::Managed
    }

    fn from_head(
        head: &RequestHead<'_>,
        unreadable: fn(&str) -> CallError,
    ) -> Result<Self, CallError> {
        let shown = find_credential(head).ok_or(CallError::CredentialMissing)?;
        Self::read(&shown, unreadable)
    }

    /// Reads a credential; `unreadable` makes the error for text that is neither a token nor a key. A key of another
    /// service that was not imported is such a text.
    fn read(shown: &str, unreadable: fn(&str) -> CallError) -> Result<Self, CallError> {
        let is_key = [KeyKind::Secret, KeyKind::Spend].map(KeyKind::prefix);
        if is_key.iter().any(|prefix| shown.starts_with(prefix)) {
            return Self::from_key(shown);
        }
        match Key::parse(shown) {
            Ok(key) => Ok(Self { unknown: unreadable, ..Self::of_key(key) }),
            Err(_) => Self::from_token(shown, unreadable),
        }
    }

    /// The error if no merchant has the key.
    pub(crate) fn unknown(&self) -> CallError {
        (self.unknown)(NO_TOKEN)
    }

    /// A bare key. A merchant's own key pays and has no meter; a spend key has its wallet and its meter.
    fn from_key(key: &str) -> Result<Self, CallError> {
        Ok(Self::of_key(Key::parse(key).map_err(|_| CallError::CredentialInvalid)?))
    }

    fn of_key(key: Key) -> Self {
        Self {
            key,
            connection_id: None,
            meter_slug: None,
            disable_billing: false,
            provider_key: ProviderKey::Managed,
            unknown: |_| CallError::CredentialInvalid,
        }
    }

    fn from_token(token: &str, unreadable: fn(&str) -> CallError) -> Result<Self, CallError> {
        let json = decode_base64(CellNumber::strip_token(token));
        let fields = json.as_deref().and_then(|json| serde_json::from_slice(json).ok());
        let fields = fields.ok_or_else(|| unreadable(NO_TOKEN))?;
        let mut token = TokenFields { fields, issues: Vec::new() };
        let secret_key = token.text("secret_key");
        match &secret_key {
            None if token.issues.is_empty() => {
                token.issues.push(Issue::at(["secret_key"], "is required"));
            }
            // A spend key has its own wallet and meter, which the caller cannot choose.
            Some(key) if key.starts_with(KeyKind::Spend.prefix()) => {
                let issue = "must be a secret key; a spend key is sent as it is, without a token";
                token.issues.push(Issue::at(["secret_key"], issue));
            }
            _ => {}
        }
        let customer_id = token.text("customer_id");
        let connection_id = token.text("connection_id");
        if let (Some(one), Some(other)) = (&connection_id, &customer_id)
            && one != other
        {
            token.issues.push(Issue::at(["customer_id"], Issue::differs_from("connection_id")));
        }
        let connection_id = connection_id.or(customer_id);
        let meter_slug = token.text("meter_slug");
        let provider_key = token.text("provider_key");
        let disable_billing = token.flag("disable_billing");
        if connection_id.is_some() && meter_slug.is_none() {
            let issue = "is required with connection_id: a connection is billed under a meter";
            token.issues.push(Issue::at(["meter_slug"], issue));
        }
        if disable_billing && connection_id.is_none() {
            let issue = "needs connection_id and meter_slug: without them no wallet is billed";
            token.issues.push(Issue::at(["disable_billing"], issue));
        }
        let provider_key = match provider_key.map(ProviderKey::own) {
            None => ProviderKey::Managed,
            Some(Ok(key)) => key,
            Some(Err(issue)) => {
                token.issues.push(Issue::at(["provider_key"], issue.message));
                ProviderKey::Managed
            }
        };
        let issues = token.finish();
        match secret_key.filter(|_| issues.is_empty()) {
            None => Err(CallError::TokenInvalid(issues)),
            Some(secret_key) => Ok(Self {
                key: Key::parse(&secret_key)
                    .ok()
                    .filter(|key| key.kind() == KeyKind::Secret)
                    .ok_or(CallError::CredentialInvalid)?,
                unknown: |_| CallError::CredentialInvalid,
                connection_id,
                meter_slug,
                disable_billing,
                provider_key,
            }),
        }
    }
}

/// The hash by which the key of a credential is found, if its form is valid: for benchmarks.
#[doc(hidden)]
pub fn credential_hash(shown: &str) -> Option<KeyHash> {
    Credential::read(shown, |_| CallError::CredentialInvalid)
        .ok()
        .map(|credential| credential.key.hash())
}

fn find_credential<'a>(head: &RequestHead<'a>) -> Option<Cow<'a, str>> {
    // As `to_str`, which checks byte by byte; tokens are long.
    fn text(value: &HeaderValue) -> Option<&str> {
        let text = std::str::from_utf8(value.as_bytes()).ok().filter(|text| text.is_ascii());
        text.map(str::trim)
    }
    let bearer = head.headers.get(AUTHORIZATION).and_then(text).and_then(|header| {
        let (scheme, credential) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim())
    });
    let header = || KEY_HEADERS.iter().find_map(|name| head.headers.get(*name).and_then(text));
    let subprotocol = || {
        let offered = head.headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(text)?;
        offered.split(',').find_map(|offer| offer.trim().strip_prefix(SUBPROTOCOL_KEY))
    };
    let query = || head.parameter("key");
    bearer
        .or_else(header)
        .or_else(subprotocol)
        .map(Cow::Borrowed)
        .or_else(query)
        .filter(|credential| !credential.is_empty())
}

const ANY_PADDING: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
static BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, ANY_PADDING);
static BASE64_URL_SAFE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, ANY_PADDING);

/// Decodes base64 of either alphabet, padded or not.
fn decode_base64(token: &str) -> Option<Vec<u8>> {
    BASE64.decode(token).or_else(|_| BASE64_URL_SAFE.decode(token)).ok()
}

/// The fields of an object in their order; of two with one name the last counts. There are only a few, so a
/// map would not be faster.
struct JsonFields<'a>(Vec<(FieldName<'a>, Value)>);

/// The name of a field, borrowed from the text where possible.
#[derive(PartialEq, Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonFieldsVisitor;
        impl<'de> Visitor<'de> for JsonFieldsVisitor {
            type Value = JsonFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonFields<'de>, A::Error> {
                let mut fields: Vec<(FieldName<'de>, Value)> = Vec::with_capacity(USUAL_FIELDS);
                while let Some((name, value)) = map.next_entry::<FieldName<'de>, Value>()? {
                    // An object with more fields is invalid anyway, so the search is bounded.
                    let mut first = fields.iter_mut().take(MOST_FIELDS);
                    match first.find(|(known, _)| *known == name) {
                        Some((_, known)) => *known = value,
                        None => fields.push((name, value)),
                    }
                }
                Ok(JsonFields(fields))
            }
        }
        deserializer.deserialize_map(JsonFieldsVisitor)
    }
}

impl JsonFields<'_> {
    fn remove(&mut self, name: &str) -> Option<Value> {
        let place = self.0.iter().position(|(known, _)| known.0 == name)?;
        Some(self.0.swap_remove(place).1)
    }
}

/// The fields of a token. Absent and null mean the same.
struct TokenFields<'a> {
    fields: JsonFields<'a>,
    issues: Vec<Issue>,
}

impl TokenFields<'_> {
    fn text(&mut self, name: &str) -> Option<String> {
        match self.fields.remove(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if !text.is_empty() && !text.contains('\0') => Some(text),
            Some(_) => {
                self.issues.push(Issue::at([name], "must be a string that is not empty, or null"));
                None
            }
        }
    }

    fn flag(&mut self, name: &str) -> bool {
        match self.fields.remove(name) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => flag,
            Some(_) => {
                self.issues.push(Issue::at([name], "must be true or false"));
                false
            }
        }
    }

    /// An unknown field is nearly always a typing error, and can cost money.
    fn finish(mut self) -> Vec<Issue> {
        let unknown = self.fields.0.iter();
        self.issues.extend(
            unknown.map(|(name, _)| Issue::at([&*name.0], "is not a field of a forward token")),
        );
        self.issues
    }
}
