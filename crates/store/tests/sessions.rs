//! Tests of dashboard sessions, on both databases.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use tollgate_domain::{Session, SessionToken};
use tollgate_store::merchants::SecretKeyDeletion;
use tollgate_store::{Conn, Store, merchants, sessions};
use tollgate_testkit::store::{TestStore, each_store};

async fn open(store: &TestStore, key: &tollgate_domain::Key) -> Option<SessionToken> {
    let (key, now) = (key.hash(), store.clock.now());
    store.store.write(move |conn| sessions::open(conn, &key, now)).await.unwrap()
}

async fn find(store: &TestStore, on: &Store, token: &SessionToken) -> Option<Session> {
    let (token, now) = (token.hash(), store.clock.now());
    on.read(move |conn: &mut Conn| sessions::find(conn, &token, now)).await.unwrap()
}

#[test]
fn a_session_is_open_on_every_node_until_it_expires() {
    each_store(async |store| {
        let new = store.merchant().await;
        let token = open(store, &new.key).await.unwrap();
        let session = find(store, &store.store, &token).await.unwrap();
        assert_eq!(session.merchant, new.merchant);
        assert_eq!(session.key_preview, new.key.preview());
        store.clock.advance_millis(Session::LASTS_MILLIS - 1);
        assert_eq!(find(store, &store.store, &token).await, Some(session));
        store.clock.advance_millis(1);
        assert_eq!(find(store, &store.store, &token).await, None);
        let now = store.clock.now();
        let forget = move |conn: &mut Conn| sessions::forget_expired(conn, now);
        assert_eq!(store.store.write(forget).await.unwrap(), 1);
    });
}

#[test]
fn a_session_ends_when_it_is_ended_and_with_its_key_and_no_other_does() {
    each_store(async |store| {
        let new = store.merchant().await;
        let (merchant_id, now) = (new.merchant.merchant_id, store.clock.now());
        let make = move |conn: &mut Conn| merchants::create_secret_key(conn, merchant_id, "b", now);
        let (second, second_key) = store.store.write(make).await.unwrap();
        let first = open(store, &new.key).await.unwrap();
        let (ended, kept) =
            (open(store, &new.key).await.unwrap(), open(store, &second_key).await.unwrap());
        let hash = ended.hash();
        store.store.write(move |conn| sessions::end(conn, &hash)).await.unwrap();
        assert!(find(store, &store.store, &ended).await.is_none());
        assert!(find(store, &store.store, &first).await.is_some());
        let id = second.secret_key_id;
        let delete =
            move |conn: &mut Conn| merchants::delete_secret_key(conn, merchant_id, id, now);
        assert_eq!(store.store.write(delete).await.unwrap(), SecretKeyDeletion::Deleted);
        assert!(find(store, &store.store, &kept).await.is_none());
        assert!(find(store, &store.store, &first).await.is_some());
        assert!(open(store, &second_key).await.is_none(), "a deleted key opens nothing");
    });
}
