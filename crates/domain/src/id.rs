//! Ids: a prefix that names the kind, and a ULID that grows with time.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use ulid::{Generator, Ulid};

use crate::time::Timestamp;

/// The error of a text that is not an id of the requested kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id of this kind")
    }
}

impl std::error::Error for ParseIdError {}

/// The generators of all ids, by the hour of the ids. Lists are ordered by id, so the ids of one
/// process grow even within a millisecond. With one for each hour, an id is at most an hour ahead of
/// its time when a clock was set back.
static GENERATORS: Mutex<BTreeMap<u64, Generator>> = Mutex::new(BTreeMap::new());
/// The number of generators that are kept: those of a year.
const KEPT_GENERATORS: usize = 366 * 24;

fn next_ulid(now: Timestamp) -> Ulid {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis(now));
    let hour = millis(now) / 3_600_000;
    let mut generators = GENERATORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if generators.len() > KEPT_GENERATORS {
        generators.retain(|kept, _| *kept == hour);
    }
    let generator = generators.entry(hour).or_default();
    // It fails only after 2⁸⁰ ids in one millisecond. A fresh random id serves then.
    generator.generate_from_datetime(at).unwrap_or_else(|_| Ulid::new())
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.unix_micros().div_euclid(1_000)).unwrap_or(0)
}

/// The length of an id's text: a prefix of four characters and a ULID.
const LENGTH: usize = 4 + ulid::ULID_LEN;

/// The text of an id, built in `buffer` without an allocation: ids are written and compared for
/// every call.
fn text<'a>(prefix: &str, id: &[u8; 16], buffer: &'a mut [u8; LENGTH]) -> &'a str {
    let (ulid, mut letters) = (Ulid::from_bytes(*id), [0; ulid::ULID_LEN]);
    let text = prefix.bytes().chain(ulid.array_to_str(&mut letters).bytes());
    buffer.iter_mut().zip(text).for_each(|(place, byte)| *place = byte);
    str::from_utf8(buffer).unwrap_or_default()
}

/// The common part of all kinds of ids: 16 bytes, in the order of the ids.
pub trait Id: Copy + Ord + fmt::Display {
    /// The 16 bytes. The first six are the milliseconds from 1970 to the creation of the id.
    fn as_bytes(&self) -> &[u8; 16];

    /// Returns the id with these bytes. Any bytes are accepted, because only bytes of ids are
    /// stored.
    fn from_bytes(bytes: [u8; 16]) -> Self;
}

macro_rules! ids {
    ($( $(#[$doc:meta])* $Id:ident = $prefix:literal; )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Id([u8; 16]);

        const _: () = assert!($prefix.len() + ulid::ULID_LEN == LENGTH, "a prefix has four letters");

        impl $Id {
            /// Generates an id, greater than all earlier ids of this process.
            pub fn generate(now: Timestamp) -> Self {
                Self(next_ulid(now).to_bytes())
            }

            /// The least id of this instant. Ids that are made at `at` or later are not less.
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
                // An id has one spelling: lower case and look-alike letters are refused.
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
    /// A customer of a merchant.
    ConnectionId = "con_";
    /// The prepaid account of a customer, or of the merchant itself.
    WalletId = "wal_";
    /// The markup of a merchant.
    MeterId = "mtr_";
    /// A call.
    RequestId = "req_";
    /// A spend key.
    SpendKeyId = "spk_";
    /// A budget.
    BudgetId = "bud_";
    /// The account of a run. Its bytes are a hash, and do not begin with a time.
    RunAccountId = "run_";
    /// A merchant's secret key.
    SecretKeyId = "sec_";
    /// A ledger line.
    TransactionId = "txn_";
    /// A plan: the terms of a subscription.
    SubscriptionConfigId = "sbc_";
    /// A customer's subscription.
    SubscriptionId = "sub_";
    /// Credit that subscribers can buy.
    CreditBundleId = "cbn_";
    /// An event that a merchant can subscribe to.
    EventId = "evt_";
    /// A webhook: a URL that receives events.
    WebhookId = "whk_";
    /// The delivery of one event to one webhook.
    DeliveryId = "dlv_";
    /// A job: a call that its provider answers later.
    JobId = "job_";
    /// A WebSocket whose responses are calls.
    SocketId = "skt_";
    /// A refused call, or several that were alike.
    RefusalId = "rfs_";
    /// A node: one run of a serving process, which owns the calls that it has not settled yet.
    NodeId = "nod_";
}

impl RequestId {
    /// The time at which the id was made, in whole milliseconds.
    pub fn created_at(self) -> Timestamp {
        let millis = Ulid::from_bytes(self.0).timestamp_ms();
        Timestamp::from_unix_micros(i64::try_from(millis).unwrap_or(i64::MAX).saturating_mul(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_time_at_which_it_was_made_also_after_a_clock_was_set_back() {
        let later = Timestamp::from_unix_micros(1_795_219_200_000_000);
        let earlier = later.plus_millis(-86_400_000);
        let ids = [later, earlier, later, earlier].map(RequestId::generate);
        assert!(ids[0] < ids[2] && ids[1] < ids[3], "ids of an hour grow");
        for id in [ids[1], ids[3]] {
            assert!(RequestId::least(earlier) < id && id < RequestId::least(later), "{id}");
            assert_eq!(
                id.created_at().unix_micros() / 3_600_000_000,
                earlier.unix_micros() / 3_600_000_000
            );
        }
    }

    #[test]
    fn an_id_is_greater_than_the_last_of_its_instant_whatever_other_clocks_say_in_between() {
        let now = Timestamp::from_unix_micros(1_600_000_000_000_000);
        let ids = [(); 20].map(|()| {
            (1..100).for_each(|hours| {
                RequestId::generate(now.plus_millis(hours * 3_600_000));
            });
            RequestId::generate(now)
        });
        assert!(ids.is_sorted());
    }

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
