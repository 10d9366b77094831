//! The rows of subscriptions.

use diesel::prelude::*;
use tollgate_domain::{
    ConnectionId, MerchantId, PendingChange, PendingKind, Subscription, SubscriptionConfigId,
    SubscriptionId, Timestamp, WalletId,
};

use super::values::word;
use crate::ids::Id;
use crate::schema::subscriptions;

#[derive(Clone, Debug, Queryable, Selectable, Insertable, AsChangeset, Identifiable)]
#[diesel(table_name = subscriptions, primary_key(subscription_id), treat_none_as_null = true)]
pub(crate) struct SubscriptionRow {
    pub(crate) subscription_id: Id<SubscriptionId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) connection_id: Id<ConnectionId>,
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) subscription_config_id: Id<SubscriptionConfigId>,
    pub(crate) status: String,
    pub(crate) started_at: i64,
    pub(crate) cancelled_at: Option<i64>,
    pub(crate) anchor_at: i64,
    pub(crate) cycle: i64,
    pub(crate) cycle_start_at: i64,
    pub(crate) cycle_end_at: i64,
    pub(crate) pending_change: Option<String>,
    pub(crate) pending_config_id: Option<Id<SubscriptionConfigId>>,
}

impl From<&Subscription> for SubscriptionRow {
    fn from(subscription: &Subscription) -> Self {
        let (pending_change, pending_config_id) = match &subscription.pending_change {
            None => (None, None),
            Some(PendingChange::Cancellation) => (Some(PendingKind::Cancellation), None),
            Some(PendingChange::Downgrade(config)) => {
                (Some(PendingKind::Downgrade), Some(Id(config.subscription_config_id)))
            }
        };
        Self {
            subscription_id: Id(subscription.subscription_id),
            merchant_id: Id(subscription.merchant_id),
            connection_id: Id(subscription.connection_id),
            wallet_id: Id(subscription.wallet_id),
            subscription_config_id: Id(subscription.config.subscription_config_id),
            status: word(&subscription.status),
            started_at: subscription.started_at.unix_micros(),
            cancelled_at: subscription.cancelled_at.map(Timestamp::unix_micros),
            anchor_at: subscription.anchor_at.unix_micros(),
            cycle: subscription.cycle,
            cycle_start_at: subscription.cycle_start_at.unix_micros(),
            cycle_end_at: subscription.cycle_end_at.unix_micros(),
            pending_change: pending_change.map(|kind| word(&kind)),
            pending_config_id,
        }
    }
}
