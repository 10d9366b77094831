//! The keys of open sockets: those that may not be used any more, on whichever node they were changed.

use std::sync::Arc;
use std::time::Duration;

use tollgate_domain::Timestamp;
use tollgate_domain::admission::{CallKey, Refusal};
use tollgate_store::{Conn, StoreError, merchants, spend_keys};

use crate::gateway::Gateway;
use crate::open_sockets::SocketKey;

/// How often the keys of open sockets are read. A key that is paused on any node closes its sockets within twice this
/// time.
const LOOK_EVERY: Duration = Duration::from_millis(900);

/// Those of the keys that may not be used now, and why.
pub(crate) fn refused_keys(
    conn: &mut Conn,
    keys: &[SocketKey],
    now: Timestamp,
) -> Result<Vec<(SocketKey, Refusal)>, StoreError> {
    let is_spend_key = |key: &&SocketKey| matches!(key.key, CallKey::Spend(..));
    let hashes: Vec<_> = keys.iter().filter(is_spend_key).map(|key| key.hash).collect();
    let rules = spend_keys::rules_by_hash(conn, &hashes)?;
    let mut refused = Vec::new();
    for key in keys {
        let why = match key.key {
            CallKey::Spend(..) => match rules.get(&key.hash) {
                Some(rules) => rules.check_usable(now).err(),
                None => Some(Refusal::KeyInvalid),
            },
            // A merchant has few of them.
            CallKey::Secret(_) => merchants::find_secret_key(conn, &key.hash)?
                .is_none()
                .then_some(Refusal::KeyInvalid),
        };
        refused.extend(why.map(|why| (*key, why)));
    }
    Ok(refused)
}

/// Closes the sockets of keys that may not be used any more. Never returns.
pub async fn watch_socket_keys(gateway: Arc<Gateway>) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let keys = gateway.sockets.keys();
        if keys.is_empty() {
            continue;
        }
        let now = gateway.clock.now();
        match gateway.store.read(move |conn| refused_keys(conn, &keys, now)).await {
            Ok(refused) => gateway.sockets.revoke(&refused),
            // Each response is admitted by the store, which is away.
            Err(cause) => log::debug!("the keys of sockets are not read: {cause}"),
        }
    }
}
