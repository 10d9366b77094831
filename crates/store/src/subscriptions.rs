//! Subscriptions. Their credit is in a wallet.
//!
//! A change of a subscription or of its credit locks that wallet and renews the subscription first.

use diesel::prelude::*;
use tollgate_domain::{
    ChangePreview, ConnectionId, ConnectionStatus, CreditBundleId, Credits, MerchantId, MeterId,
    PendingChange, PendingKind, Subscriber, Subscription, SubscriptionConfig, SubscriptionConfigId,
    SubscriptionId, SubscriptionState, SubscriptionStatus, SubscriptionTransition, Timestamp,
    UpgradeRule, WalletId,
};

use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::page::Page;
use crate::rows::{SubscriptionRow, WalletRow, from_word, time, word};
use crate::schema::{subscriptions, transaction_keys, transactions, wallets};
use crate::subscription_configs;
use crate::tables::connections;
use crate::tables::merchants::moved_merchants;
use crate::write_set::{LedgerWallet, LedgerWallets, WriteSet, lock_wallets};

/// Subscriptions with their configurations, in the order of their rows.
pub(crate) fn with_configs(
    conn: &mut Conn,
    rows: Vec<SubscriptionRow>,
) -> Result<Vec<Subscription>, StoreError> {
    let named = rows.iter().flat_map(|row| {
        let present = Some(row.subscription_config_id);
        present.into_iter().chain(row.pending_config_id)
    });
    let configs = subscription_configs::load(conn, named.collect::<Vec<_>>())?;
    let config = |id: Id<SubscriptionConfigId>| {
        configs.get(&id).cloned().ok_or_else(|| StoreError::Corrupt {
            what: "subscriptions.subscription_config_id",
            value: id.to_string(),
        })
    };
    let subscriptions = rows.into_iter().map(|row| {
        let kind = row.pending_change.as_deref();
        let kind = kind.map(|kind| from_word("subscriptions.pending_change", kind)).transpose()?;
        let pending_change = match (kind, row.pending_config_id) {
            (Some(PendingKind::Downgrade), Some(id)) => {
                Some(PendingChange::Downgrade(Box::new(config(id)?)))
            }
            (Some(PendingKind::Cancellation), _) => Some(PendingChange::Cancellation),
            _ => None,
        };
        Ok(Subscription {
            subscription_id: row.subscription_id.get(),
            merchant_id: row.merchant_id.get(),
            connection_id: row.connection_id.get(),
            wallet_id: row.wallet_id.get(),
            config: config(row.subscription_config_id)?,
            status: from_word("subscriptions.status", &row.status)?,
            started_at: time(row.started_at),
            cancelled_at: row.cancelled_at.map(time),
            anchor_at: time(row.anchor_at),
            cycle: row.cycle,
            cycle_start_at: time(row.cycle_start_at),
            cycle_end_at: time(row.cycle_end_at),
            pending_change,
        })
    });
    subscriptions.collect()
}

/// Renews a subscription and the wallet of its credit up to `now`. Returns whether they changed.
pub(crate) fn renew_until(
    now: Timestamp,
    subscription: &mut Subscription,
    locked: &mut LedgerWallet,
    changes: &mut WriteSet,
) -> Result<bool, StoreError> {
    if !subscription.is_due(now) {
        return Ok(false);
    }
    changes.track_wallet(locked);
    let steps = subscription.renew_until(now, &mut locked.wallet.credits);
    link_wallet(locked, subscription);
    changes.add_transitions(locked, steps)?;
    changes.save_subscription(subscription);
    Ok(true)
}

/// Notes in a wallet whether the subscription fills its credits.
fn link_wallet(locked: &mut LedgerWallet, subscription: &Subscription) {
    locked.subscription_id = match subscription.status {
        SubscriptionStatus::Active => Some(subscription.subscription_id),
        SubscriptionStatus::Cancelled => None,
    };
}

/// A locked wallet and its active subscription, both renewed up to now.
struct LockedSubscription {
    wallet: LedgerWallet,
    subscription: Option<Subscription>,
    changes: WriteSet,
    now: Timestamp,
}

impl LockedSubscription {
    fn lock(conn: &mut Conn, wallet_id: WalletId, now: Timestamp) -> Result<Self, StoreError> {
        let Some(wallet) = lock_wallets(conn, [wallet_id])?.remove(&wallet_id) else {
            return Err(StoreError::missing("wallet", wallet_id));
        };
        let subscription = active_on(conn, &wallet)?;
        let changes = WriteSet::new(now);
        let mut locked = Self { wallet, subscription, changes, now };
        if let Some(subscription) = &mut locked.subscription {
            renew_until(now, subscription, &mut locked.wallet, &mut locked.changes)?;
            if subscription.status == SubscriptionStatus::Cancelled {
                locked.subscription = None;
            }
        }
        Ok(locked)
    }

    /// Applies `work` to the subscription and its credits.
    fn apply_transition(
        &mut self,
        work: impl FnOnce(&mut Subscription, &mut Credits, Timestamp) -> Option<SubscriptionTransition>,
    ) -> Result<Option<SubscriptionState>, StoreError> {
        let Some(subscription) = &mut self.subscription else { return Ok(None) };
        self.changes.track_wallet(&self.wallet);
        let credits = &mut self.wallet.wallet.credits;
        let step = work(subscription, credits, self.now);
        let state = subscription.state(credits);
        link_wallet(&mut self.wallet, subscription);
        self.changes.add_transitions(&mut self.wallet, step)?;
        Ok(Some(state))
    }

    fn save(self, conn: &mut Conn) -> Result<(), StoreError> {
        let Self { wallet, subscription, mut changes, .. } = self;
        subscription.iter().for_each(|one| changes.save_subscription(one));
        changes.commit_wallets(conn, &LedgerWallets::from([(wallet.wallet.wallet_id, wallet)]))
    }
}

/// The outcome of [`create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscribeOutcome {
    /// It has begun.
    Subscription(Box<SubscriptionState>),
    /// The merchant has no such connection.
    ConnectionNotFound,
    /// The connection was deleted.
    ConnectionDisabled,
    /// The merchant offers no such configuration.
    ConfigNotFound,
    /// The connection has an active subscription.
    Exists,
}

/// Subscribes a connection. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn create(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
    config_id: SubscriptionConfigId,
    now: Timestamp,
) -> Result<SubscribeOutcome, StoreError> {
    let Some(connection) = connections::find(conn, merchant_id, connection_id)? else {
        return Ok(SubscribeOutcome::ConnectionNotFound);
    };
    let wallet_id = connection.wallet_id;
    let mut locked = LockedSubscription::lock(conn, wallet_id, now)?;
    // Missing resources are reported before conflicts of state.
    let Some(config) = subscription_configs::find(conn, merchant_id, config_id)? else {
        return Ok(SubscribeOutcome::ConfigNotFound);
    };
    // The deletion of a connection locks its wallet, too. It may have happened during the wait.
    let connection = connections::find(conn, merchant_id, connection_id)?;
    if connection.is_none_or(|found| found.status == ConnectionStatus::Deleted) {
        return Ok(SubscribeOutcome::ConnectionDisabled);
    }
    if locked.subscription.is_some() {
        return Ok(SubscribeOutcome::Exists);
    }
    let subscriber = Subscriber { merchant_id, connection_id, wallet_id };
    locked.changes.track_wallet(&locked.wallet);
    let credits = &mut locked.wallet.wallet.credits;
    let (subscription, step) = Subscription::start(subscriber, config.config, credits, now);
    let state = subscription.state(credits);
    link_wallet(&mut locked.wallet, &subscription);
    locked.changes.add_transitions(&mut locked.wallet, [step])?;
    locked.subscription = Some(subscription);
    locked.save(conn)?;
    Ok(SubscribeOutcome::Subscription(Box::new(state)))
}

/// The wallet of the credit of a merchant's subscription.
fn wallet_of(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
) -> Result<Option<WalletId>, StoreError> {
    let wallet_id: Option<Id<WalletId>> = subscriptions::table
        .find(Id(id))
        .filter(subscriptions::merchant_id.eq(Id(merchant_id)))
        .select(subscriptions::wallet_id)
        .first(conn)
        .optional()?;
    Ok(wallet_id.map(Id::get))
}

/// The outcome of [`cancel`], [`change`] or [`buy_bundle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// It is done.
    Subscription(Box<SubscriptionState>),
    /// The merchant has no such subscription.
    NotFound,
    /// The subscription has ended.
    Ended(Box<SubscriptionState>),
    /// The configuration or bundle of the order is not offered to it.
    NotOffered,
    /// The credit would leave the range of an amount.
    OutOfRange,
}

/// Locks a merchant's subscription, if it is active.
fn lock(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    now: Timestamp,
) -> Result<Result<LockedSubscription, ChangeOutcome>, StoreError> {
    let Some(wallet_id) = wallet_of(conn, merchant_id, id)? else {
        return Ok(Err(ChangeOutcome::NotFound));
    };
    let locked = LockedSubscription::lock(conn, wallet_id, now)?;
    if locked.subscription.as_ref().is_some_and(|found| found.subscription_id == id) {
        return Ok(Ok(locked));
    }
    // The renewal may have ended it.
    locked.save(conn)?;
    let ended = find(conn, merchant_id, id)?.ok_or(ChangeOutcome::NotFound);
    Ok(Err(ended.map_or_else(|missing| missing, |state| ChangeOutcome::Ended(Box::new(state)))))
}

/// Ends a subscription when its cycle ends. One that has ended stays as it is.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn cancel(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    now: Timestamp,
) -> Result<ChangeOutcome, StoreError> {
    order(conn, merchant_id, id, now, |subscription, _, _| {
        subscription.cancel();
        None
    })
}

/// An order to change a subscription to another configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanChange {
    /// The configuration.
    pub config_id: SubscriptionConfigId,
    /// The rule for a more expensive one.
    pub on_upgrade: UpgradeRule,
}

impl PlanChange {
    /// The configuration, if the merchant offers it. A subscription may go back to its own, even if that is not
    /// offered any more.
    fn target(
        self,
        conn: &mut Conn,
        subscription: &Subscription,
    ) -> Result<Option<SubscriptionConfig>, StoreError> {
        if subscription.config.subscription_config_id == self.config_id {
            return Ok(Some(subscription.config.clone()));
        }
        let offered = subscription_configs::find(conn, subscription.merchant_id, self.config_id)?;
        Ok(offered.map(|full| full.config))
    }
}

/// Changes a subscription. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn change(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    change: PlanChange,
    now: Timestamp,
) -> Result<ChangeOutcome, StoreError> {
    let mut locked = match lock(conn, merchant_id, id, now)? {
        Ok(locked) => locked,
        Err(outcome) => return Ok(outcome),
    };
    let target = match &locked.subscription {
        Some(subscription) => change.target(conn, subscription)?,
        None => None,
    };
    let state = match target {
        Some(config) => locked.apply_transition(|subscription, credits, now| {
            subscription.change(config, change.on_upgrade, credits, now)
        })?,
        None => None,
    };
    locked.save(conn)?;
    Ok(state
        .map_or(ChangeOutcome::NotOffered, |state| ChangeOutcome::Subscription(Box::new(state))))
}

/// The effect that [`change`] would have, or the outcome that stands against it. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn preview_change(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    change: PlanChange,
    now: Timestamp,
) -> Result<Result<Box<ChangePreview>, ChangeOutcome>, StoreError> {
    let locked = match lock(conn, merchant_id, id, now)? {
        Ok(locked) => locked,
        Err(outcome) => return Ok(Err(outcome)),
    };
    let Some(subscription) = &locked.subscription else { return Ok(Err(ChangeOutcome::NotFound)) };
    let Some(config) = change.target(conn, subscription)? else {
        return Ok(Err(ChangeOutcome::NotOffered));
    };
    let credits = &locked.wallet.wallet.credits;
    Ok(Ok(Box::new(subscription.preview_change(config, change.on_upgrade, credits, now))))
}

/// Buys a bundle that the subscription's configuration offers. Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn buy_bundle(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    bundle_id: CreditBundleId,
    now: Timestamp,
) -> Result<ChangeOutcome, StoreError> {
    let bundle = subscription_configs::find_bundle(conn, merchant_id, bundle_id)?;
    let mut refused = None;
    let changed = order(conn, merchant_id, id, now, |subscription, credits, now| {
        let config_id = subscription.config.subscription_config_id;
        let Some(bundle) = bundle.filter(|one| one.subscription_config_id == config_id) else {
            refused = Some(ChangeOutcome::NotOffered);
            return None;
        };
        let step = subscription.buy_bundle(&bundle, credits, now);
        step.map_err(|_| refused = Some(ChangeOutcome::OutOfRange)).ok()
    })?;
    Ok(refused.unwrap_or(changed))
}

fn order(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
    now: Timestamp,
    work: impl FnOnce(&mut Subscription, &mut Credits, Timestamp) -> Option<SubscriptionTransition>,
) -> Result<ChangeOutcome, StoreError> {
    let mut locked = match lock(conn, merchant_id, id, now)? {
        Ok(locked) => locked,
        Err(outcome) => return Ok(outcome),
    };
    let state = locked.apply_transition(work)?;
    locked.save(conn)?;
    Ok(state.map_or(ChangeOutcome::NotFound, |state| ChangeOutcome::Subscription(Box::new(state))))
}

/// Whether calls under a meter may draw on the credit of a wallet. Reads without a lock.
pub(crate) fn allows_draw(
    conn: &mut Conn,
    wallet_id: WalletId,
    meter_id: MeterId,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let found = dialect::wallets(conn, &[Id(wallet_id)], RowLock::No)?;
    let Some(row) = found.first() else { return Ok(false) };
    let mut wallet = LedgerWallet::try_from(row)?;
    let Some(mut subscription) = active_on(conn, &wallet)? else { return Ok(false) };
    renew_until(now, &mut subscription, &mut wallet, &mut WriteSet::new(now))?;
    Ok(subscription.allows_draw(meter_id))
}

/// The active subscription of a wallet.
fn active_on(conn: &mut Conn, wallet: &LedgerWallet) -> Result<Option<Subscription>, StoreError> {
    let Some(id) = wallet.subscription_id else { return Ok(None) };
    let rows = dialect::subscriptions(conn, &[Id(id)])?;
    Ok(with_configs(conn, rows)?.into_iter().next())
}

/// Ends the subscription of a connection that is being deleted. Locks its wallet.
pub(crate) fn end_of_connection(
    conn: &mut Conn,
    wallet_id: WalletId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut locked = LockedSubscription::lock(conn, wallet_id, now)?;
    locked.apply_transition(|subscription, credits, now| Some(subscription.end(credits, now)))?;
    locked.save(conn)
}

/// The filter of a list of subscriptions. All given fields must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionFilter {
    /// The connection.
    pub connection_id: Option<ConnectionId>,
    /// The status.
    pub status: Option<SubscriptionStatus>,
}

/// A merchant's subscription as it is stored: see [`Store::renew`](crate::Store::renew).
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: SubscriptionId,
) -> Result<Option<SubscriptionState>, StoreError> {
    let row = subscriptions::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(subscriptions::wallet_id)))
        .filter(subscriptions::subscription_id.eq(Id(id)))
        .filter(subscriptions::merchant_id.eq(Id(merchant_id)))
        .select((SubscriptionRow::as_select(), WalletRow::as_select()))
        .load(conn)?;
    Ok(states(conn, row)?.into_iter().next())
}

/// The credit at the start of a subscription's present cycle: included and rolled over.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn cycle_credit_at_start(
    conn: &mut Conn,
    state: &SubscriptionState,
) -> Result<Amount, StoreError> {
    let wallet: Option<(Id<WalletId>, i64)> = subscriptions::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(subscriptions::wallet_id)))
        .filter(subscriptions::subscription_id.eq(Id(state.subscription_id)))
        .select((wallets::wallet_id, wallets::cycles))
        .first(conn)
        .optional()?;
    let Some((wallet_id, cycles)) = wallet else { return Ok(state.plan.included_credit) };
    let is_line = transactions::wallet_id
        .eq(transaction_keys::wallet_id)
        .and(transactions::number.eq(transaction_keys::number));
    let granted: Option<i64> = transaction_keys::table
        .find((wallet_id, format!("credit_grant:{cycles}")))
        .inner_join(transactions::table.on(is_line))
        .select(transactions::balance_after)
        .first(conn)
        .optional()?;
    Ok(granted.map_or(state.plan.included_credit, Amount::from_units))
}

/// The active subscription of a merchant's connection, as it is stored.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find_active(
    conn: &mut Conn,
    merchant_id: MerchantId,
    connection_id: ConnectionId,
) -> Result<Option<SubscriptionState>, StoreError> {
    let status = Some(SubscriptionStatus::Active);
    let filter = SubscriptionFilter { connection_id: Some(connection_id), status };
    let found = list(conn, merchant_id, &filter, &Page { after: None, limit: 1 })?;
    Ok(found.into_iter().next())
}

/// A merchant's subscriptions as they are stored, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    filter: &SubscriptionFilter,
    page: &Page<SubscriptionId>,
) -> Result<Vec<SubscriptionState>, StoreError> {
    let mut query = subscriptions::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(subscriptions::wallet_id)))
        .filter(subscriptions::merchant_id.eq(Id(merchant_id)))
        .select((SubscriptionRow::as_select(), WalletRow::as_select()))
        .into_boxed();
    if let Some(connection_id) = filter.connection_id {
        query = query.filter(subscriptions::connection_id.eq(Id(connection_id)));
    }
    if let Some(status) = filter.status {
        query = query.filter(subscriptions::status.eq(word(&status)));
    }
    if let Some(after) = page.after {
        query = query.filter(subscriptions::subscription_id.lt(Id(after)));
    }
    let rows = query.order(subscriptions::subscription_id.desc()).limit(page.rows()).load(conn)?;
    states(conn, rows)
}

fn states(
    conn: &mut Conn,
    rows: Vec<(SubscriptionRow, WalletRow)>,
) -> Result<Vec<SubscriptionState>, StoreError> {
    let (rows, wallets): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    let subscriptions = with_configs(conn, rows)?;
    let pairs = subscriptions.iter().zip(&wallets);
    Ok(pairs.map(|(subscription, wallet)| subscription.state(&wallet.credits())).collect())
}

/// The subscriptions to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalScope {
    /// All.
    Everybody,
    /// The subscriptions of a merchant's customers.
    Merchant(MerchantId),
    /// The subscription of one connection.
    Connection(ConnectionId),
    /// The subscription with its credit in one wallet.
    Wallet(WalletId),
    /// One subscription.
    One(SubscriptionId),
}

/// The wallets of active subscriptions whose cycle has ended, at most `limit`.
///
/// They are in the order in which they are locked.
pub(crate) fn due_wallets(
    conn: &mut Conn,
    whose: RenewalScope,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<WalletId>, StoreError> {
    let mut query = subscriptions::table
        // A literal, because SQLite does not use the index of active subscriptions for a bound value.
        .filter(diesel::dsl::sql::<diesel::sql_types::Bool>("status = 'active'"))
        .filter(subscriptions::cycle_end_at.le(now.unix_micros()))
        .filter(subscriptions::merchant_id.ne_all(moved_merchants(conn)?))
        .select(subscriptions::wallet_id)
        .into_boxed();
    query = match whose {
        RenewalScope::Everybody => query,
        RenewalScope::Merchant(id) => query.filter(subscriptions::merchant_id.eq(Id(id))),
        RenewalScope::Connection(id) => query.filter(subscriptions::connection_id.eq(Id(id))),
        RenewalScope::One(id) => query.filter(subscriptions::subscription_id.eq(Id(id))),
        RenewalScope::Wallet(id) => query.filter(subscriptions::wallet_id.eq(Id(id))),
    };
    let wallets: Vec<Id<WalletId>> =
        query.order(subscriptions::cycle_end_at).limit(limit).load(conn)?;
    let mut wallets: Vec<_> = wallets.into_iter().map(Id::get).collect();
    wallets.sort_unstable();
    Ok(wallets)
}

/// Renews the subscriptions on these wallets up to now; `wallet_ids` ascend.
///
/// Call it in a write transaction.
pub(crate) fn renew(
    conn: &mut Conn,
    wallet_ids: &[WalletId],
    now: Timestamp,
) -> Result<(), StoreError> {
    for wallet_id in wallet_ids {
        LockedSubscription::lock(conn, *wallet_id, now)?.save(conn)?;
    }
    Ok(())
}
