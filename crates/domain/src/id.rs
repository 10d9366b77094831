//! Ids: a prefix that names the kind and a ULID that grows with time.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use ulid::{Generator, Ulid};

use crate::time::Timestamp;

/// The text is not an id of the kind that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id of this kind")
    }
}

impl std::error::Error for ParseIdError {}

/// Lists are ordered by id, so the ids of one process must grow even within a millisecond.
static GENERATOR: Mutex<Option<Generator>> = Mutex::new(None);

fn next_ulid(now: Timestamp) -> Ulid {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis(now));
    let mut generator = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let generator = generator.get_or_insert_with(Generator::new);
    // It fails only when 2⁸⁰ ids were made in one millisecond; a fresh random one is as good then.
    generator.generate_from_datetime(at).unwrap_or_else(|_| Ulid::new())
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.unix_micros().div_euclid(1_000)).unwrap_or(0)
}

/// A prefix of four letters and a ULID.
const LENGTH: usize = 4 + ulid::ULID_LEN;

/// The text of an id, in one piece: ids are written and compared for every call.
fn text<'a>(prefix: &str, id: &[u8; 16], buffer: &'a mut [u8; LENGTH]) -> &'a str {
    let (ulid, mut letters) = (Ulid::from_bytes(*id), [0; ulid::ULID_LEN]);
    let text = prefix.bytes().chain(ulid.array_to_str(&mut letters).bytes());
    buffer.iter_mut().zip(text).for_each(|(place, byte)| *place = byte);
    str::from_utf8(buffer).unwrap_or_default()
}

/// What every id is, of whatever kind: 16 bytes, whose order is that of the ids.
pub trait Id: Copy + Ord + fmt::Display {
    /// The bytes, of which the first six are the milliseconds since 1970 when the id was made.
    fn as_bytes(&self) -> &[u8; 16];

    /// The id with these bytes. Any are an id: what is none was never stored.
    fn from_bytes(bytes: [u8; 16]) -> Self;
}

macro_rules! ids {
    ($( $(#[$doc:meta])* $Id:ident = $prefix:literal; )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Id([u8; 16]);

        const _: () = assert!($prefix.len() + ulid::ULID_LEN == LENGTH, "a prefix has four letters");

        impl $Id {
            /// A new id, greater than every id this process made before.
            pub fn generate(now: Timestamp) -> Self {
                Self(next_ulid(now).to_bytes())
            }

            /// The least id that can be made at this instant: all that are made then or later are
            /// not less.
            pub fn least(at: Timestamp) -> Self {
                Self(Ulid::from_parts(millis(at), 0).to_bytes())
            }
        }

        impl Id for $Id {
            fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $Id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(text($prefix, &self.0, &mut [0; LENGTH]))
            }
        }

        impl fmt::Debug for $Id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $Id {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let ulid = text.strip_prefix($prefix).ok_or(ParseIdError)?;
                let id = Ulid::from_string(ulid).map_err(|_| ParseIdError)?;
                // One id has one spelling: lower case and look-alike letters are other texts.
                let spelled = id.array_to_str(&mut [0; ulid::ULID_LEN]) == ulid;
                spelled.then_some(Self(id.to_bytes())).ok_or(ParseIdError)
            }
        }

        impl serde::Serialize for $Id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(text($prefix, &self.0, &mut [0; LENGTH]))
            }
        }

        impl<'de> serde::Deserialize<'de> for $Id {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )* };
}

ids! {
    /// A merchant.
    MerchantId = "mch_";
    /// A merchant's customer.
    ConnectionId = "con_";
    /// An account that money is taken from.
    WalletId = "wal_";
    /// A fee model.
    MeterId = "mtr_";
    /// One forwarded call.
    RequestId = "req_";
    /// A restricted key.
    SpendKeyId = "spk_";
    /// A merchant's API key.
    SecretKeyId = "sec_";
    /// A movement of money.
    TransactionId = "txn_";
    /// What a merchant offers for a price per cycle.
    SubscriptionConfigId = "sbc_";
    /// A connection's subscription.
    SubscriptionId = "sub_";
    /// Credit that subscribers can buy.
    CreditBundleId = "cbn_";
    /// Something that happened and is told.
    EventId = "evt_";
    /// A place that events are sent to.
    WebhookId = "whk_";
    /// An event on its way to a webhook.
    DeliveryId = "dlv_";
    /// One life of a serving process: it owns the records it has not settled yet.
    NodeId = "nod_";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_within_a_millisecond_and_read_back() {
        let now = Timestamp::from_unix_micros(1_700_000_000_000_000);
        let ids: Vec<_> = (0..1_000).map(|_| RequestId::generate(now)).collect();
        assert!(ids.is_sorted_by(|one, next| one < next && one.to_string() < next.to_string()));
        assert_eq!(ids[0].to_string().parse(), Ok(ids[0]));
        assert_eq!(RequestId::from_bytes(*ids[0].as_bytes()), ids[0]);
        assert!(ids.is_sorted_by(|one, next| one.as_bytes() < next.as_bytes()));
        assert!(RequestId::least(now) <= ids[0]);
        assert!(RequestId::least(now.plus_millis(-1)) < RequestId::least(now));
    }

    #[test]
    fn another_kind_or_spelling_is_not_an_id() {
        let now = Timestamp::from_unix_micros(1_700_000_000_000_000);
        let id = MeterId::generate(now).to_string();
        assert_eq!(id.parse::<ConnectionId>(), Err(ParseIdError));
        assert_eq!(id.to_lowercase().parse::<MeterId>(), Err(ParseIdError));
        assert_eq!("mtr_".parse::<MeterId>(), Err(ParseIdError));
    }
}
