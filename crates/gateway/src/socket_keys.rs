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

/// The refusal of a key that may not be used now.
pub(crate) fn key_refusal(
    conn: &mut Conn,
    SocketKey { key, hash }: &SocketKey,
    now: Timestamp,
) -> Result<Option<Refusal>, StoreError> {
    match key {
        CallKey::Secret(_) => {
            let found = merchants::find_secret_key(conn, hash)?;
            Ok(found.is_none().then_some(Refusal::KeyInvalid))
        }
        CallKey::Spend(..) => Ok(match spend_keys::find_by_hash(conn, hash)? {
            Some(found) => found.rules.check_usable(now).err(),
            None => Some(Refusal::KeyInvalid),
        }),
    }
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
        let read = gateway.store.read(move |conn| {
            let mut refused = Vec::new();
            for key in keys {
                refused.extend(key_refusal(conn, &key, now)?.map(|why| (key, why)));
            }
            Ok::<_, StoreError>(refused)
        });
        match read.await {
            Ok(refused) => gateway.sockets.revoke(&refused),
            // Each response is admitted by the store, which is away.
            Err(cause) => log::debug!("the keys of sockets are not read: {cause}"),
        }
    }
}
