//! Connections: the customers of a merchant.

use diesel::prelude::*;
use tollgate_domain::{
    Connection, ConnectionChanges, ConnectionId, ConnectionStatus, EventPayload, MerchantId,
    NewConnection, Timestamp, WalletId,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{ConnectionRow, to_json, word};
use crate::schema::connections;
pub use crate::tables::connections::find;
use crate::{budgets, events, subscriptions, wallets};

/// A new connection, or the one that already had the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedConnection {
    /// The connection.
    pub connection: Connection,
    /// Whether it is new.
    pub is_new: bool,
}

/// Makes a connection with an empty wallet.
///
/// If the merchant has one with the same reference, that one is returned. `None` if it has no such budget that a
/// connection can name. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    new: &NewConnection,
    now: Timestamp,
) -> Result<Option<CreatedConnection>, StoreError> {
    if let Some(reference_id) = &new.reference_id {
        // Two requests with the same reference at once must not both find none.
        dialect::lock_merchant(conn, merchant_id)?;
        let known = connections::table
            .filter(connections::merchant_id.eq(Id(merchant_id)))
            .filter(connections::reference_id.eq(reference_id))
            .filter(connections::deleted_at.is_null())
            .select(ConnectionRow::as_select())
            .first(conn)
            .optional()?;
        if let Some(row) = known {
            return Ok(Some(CreatedConnection { connection: row.try_into()?, is_new: false }));
        }
    }
    if let Some(budget_id) = new.budget_id {
        // The budget must not be deleted meanwhile.
        dialect::lock_merchant(conn, merchant_id)?;
        if !budgets::can_be_named(conn, merchant_id, budget_id)? {
            return Ok(None);
        }
    }
    let connection_id = ConnectionId::generate(now);
    let wallet_id = WalletId::generate(now);
    wallets::create(conn, wallet_id, merchant_id, Some(connection_id), now)?;
    let row = ConnectionRow {
        connection_id: Id(connection_id),
        merchant_id: Id(merchant_id),
        reference_id: new.reference_id.clone(),
        name: new.name.clone(),
        email: new.email.clone(),
        metadata: to_json(&new.metadata),
        wallet_id: Id(wallet_id),
        created_at: now.unix_micros(),
        deleted_at: None,
        suspended_at: None,
        report: new.report.map(|report| word(&report)),
        budget_id: new.budget_id.map(Id),
    };
    diesel::insert_into(connections::table).values(&row).execute(conn)?;
    let connection = Connection::try_from(row)?;
    let news = EventPayload::ConnectionCreated { connection: Box::new(connection.clone()) };
    events::write(conn, merchant_id, &news, now)?;
    Ok(Some(CreatedConnection { connection, is_new: true }))
}

/// A merchant's connections that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<ConnectionId>,
) -> Result<Vec<Connection>, StoreError> {
    let mut query = connections::table
        .filter(connections::merchant_id.eq(Id(merchant_id)))
        .filter(connections::deleted_at.is_null())
        .select(ConnectionRow::as_select())
        .into_boxed();
    if let Some(after) = page.after {
        query = query.filter(connections::connection_id.lt(Id(after)));
    }
    let rows = query.order(connections::connection_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(Connection::try_from).collect()
}

/// The outcome of [`update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionUpdate {
    /// The connection as it is now.
    Connection(Box<Connection>),
    /// The merchant has no such connection that is not deleted.
    NotFound,
    /// The merchant has no such budget that a connection can name.
    BudgetNotFound,
}

/// Changes a connection that is not deleted.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn update(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
    changes: &ConnectionChanges,
    now: Timestamp,
) -> Result<ConnectionUpdate, StoreError> {
    let active = || {
        connections::table
            .find(Id(connection_id))
            .filter(connections::merchant_id.eq(Id(merchant_id)))
            .filter(connections::deleted_at.is_null())
    };
    if let Some(name) = &changes.name {
        diesel::update(active()).set(connections::name.eq(name)).execute(conn)?;
    }
    if let Some(email) = &changes.email {
        diesel::update(active()).set(connections::email.eq(email)).execute(conn)?;
    }
    if let Some(metadata) = &changes.metadata {
        diesel::update(active()).set(connections::metadata.eq(to_json(metadata))).execute(conn)?;
    }
    if let Some(report) = changes.report {
        let report = report.map(|report| word(&report));
        diesel::update(active()).set(connections::report.eq(report)).execute(conn)?;
    }
    if let Some(budget_id) = changes.budget_id {
        // The budget must not be deleted meanwhile.
        dialect::lock_merchant(conn, merchant_id)?;
        if let Some(budget_id) = budget_id
            && !budgets::can_be_named(conn, merchant_id, budget_id)?
        {
            return Ok(ConnectionUpdate::BudgetNotFound);
        }
        let budget_id = budget_id.map(Id);
        diesel::update(active()).set(connections::budget_id.eq(budget_id)).execute(conn)?;
    }
    if let Some(is_suspended) = changes.is_suspended {
        let since = is_suspended.then(|| now.unix_micros());
        diesel::update(active()).set(connections::suspended_at.eq(since)).execute(conn)?;
    }
    let row = active().select(ConnectionRow::as_select()).first(conn).optional()?;
    Ok(match row.map(Connection::try_from).transpose()? {
        Some(connection) => ConnectionUpdate::Connection(Box::new(connection)),
        None => ConnectionUpdate::NotFound,
    })
}

/// Deletes a connection and ends its subscription. Returns whether there was one.
///
/// The connection stays readable and is refused in calls. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let active = find(conn, merchant_id, connection_id)?
        .filter(|found| found.status != ConnectionStatus::Deleted);
    let Some(mut connection) = active else { return Ok(false) };
    subscriptions::end_of_connection(conn, connection.wallet_id, now)?;
    let active =
        connections::table.find(Id(connection_id)).filter(connections::deleted_at.is_null());
    let deleted = connections::deleted_at.eq(Some(now.unix_micros()));
    if diesel::update(active).set(deleted).execute(conn)? == 0 {
        return Ok(false);
    }
    connection.status = ConnectionStatus::Deleted;
    let news = EventPayload::ConnectionDeleted { connection: Box::new(connection) };
    events::write(conn, merchant_id, &news, now)?;
    Ok(true)
}
