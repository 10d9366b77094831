//! Queries of the table of subscriptions.

use diesel::prelude::*;

use crate::conn::Conn;
use crate::error::StoreError;
use crate::rows::SubscriptionRow;
use crate::schema::subscriptions;

/// Writes subscriptions, changed or new.
pub(crate) fn save(conn: &mut Conn, rows: &[SubscriptionRow]) -> Result<(), StoreError> {
    for row in rows {
        let known = subscriptions::table.find(row.subscription_id);
        if diesel::update(known).set(row).execute(conn)? == 0 {
            diesel::insert_into(subscriptions::table).values(row).execute(conn)?;
        }
    }
    Ok(())
}
