//! The owners of keys, remembered.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use tollgate_domain::admission::CallKey;
use tollgate_domain::{Key, KeyHash, KeyKind, MerchantId, SpendRules};
use tollgate_store::{Store, merchants, spend_keys};

use crate::error::CallError;

/// The merchant of a key, and the key itself.
#[derive(Clone, Copy, Debug)]
pub struct KeyOwner {
    /// The merchant.
    pub merchant_id: MerchantId,
    /// The key, by its id.
    pub key: CallKey,
}

impl KeyOwner {
    /// The current rules of a spend key; a merchant's own key has none.
    pub(crate) async fn rules(&self, store: &Store) -> Result<SpendRules, CallError> {
        let CallKey::Spend(_, hash) = self.key else { return Ok(SpendRules::default()) };
        let key = store.read(move |conn| spend_keys::find_by_hash(conn, &hash)).await?;
        Ok(key.ok_or(CallError::CredentialInvalid)?.rules)
    }
}

/// The keys that were found before. Only valid keys are remembered, so only merchants can fill the map.
#[derive(Debug, Default)]
pub(crate) struct KnownKeys(RwLock<HashMap<KeyHash, KeyOwner>>);

/// The number of remembered keys at which all are forgotten.
const MOST_KNOWN: usize = 10_000;

impl KnownKeys {
    fn get(&self, hash: &KeyHash) -> Option<KeyOwner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(hash).copied()
    }

    fn insert(&self, hash: KeyHash, owner: KeyOwner) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(hash, owner);
    }

    /// The owner of a key, from the store if it is not known. `None` for a key that does not exist.
    pub(crate) async fn owner_of(
        &self,
        store: &Store,
        key: &Key,
    ) -> Result<Option<KeyOwner>, CallError> {
        let hash = key.hash();
        if let Some(owner) = self.get(&hash) {
            return Ok(Some(owner));
        }
        let owner = match key.kind() {
            KeyKind::Secret => {
                let find = move |conn: &mut _| merchants::find_secret_key(conn, &hash);
                store.read(find).await?.map(|found| KeyOwner {
                    merchant_id: found.merchant_id,
                    key: CallKey::Secret(found.secret_key_id),
                })
            }
            KeyKind::Spend => {
                let find = move |conn: &mut _| spend_keys::find_by_hash(conn, &hash);
                store.read(find).await?.map(|found| KeyOwner {
                    merchant_id: found.merchant_id,
                    key: CallKey::Spend(found.spend_key_id, hash),
                })
            }
        };
        if let Some(owner) = owner {
            self.insert(hash, owner);
        }
        Ok(owner)
    }

    pub(crate) fn forget(&self, key: CallKey) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, owner| owner.key != key);
    }
}
