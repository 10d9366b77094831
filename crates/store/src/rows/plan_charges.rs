//! The rows of amounts that a merchant has to collect from a customer.

use diesel::prelude::*;
use tollgate_domain::{EventId, MerchantId, PlanCharge, SubscriptionId, WalletId};

use super::events::EventRow;
use crate::ids::Id;
use crate::schema::plan_charges;

#[derive(Clone, Debug, Queryable, Selectable, Insertable)]
#[diesel(table_name = plan_charges)]
pub(crate) struct PlanChargeRow {
    pub(crate) wallet_id: Id<WalletId>,
    pub(crate) charged_at: i64,
    pub(crate) event_id: Id<EventId>,
    pub(crate) merchant_id: Id<MerchantId>,
    pub(crate) subscription_id: Id<SubscriptionId>,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) amount: i64,
}

impl PlanChargeRow {
    /// Creates the row of a charge for the customer of a wallet.
    pub(crate) fn new(wallet_id: WalletId, event: &EventRow, charge: PlanCharge<'_>) -> Self {
        Self {
            wallet_id: Id(wallet_id),
            charged_at: event.created_at,
            event_id: event.event_id,
            merchant_id: event.merchant_id,
            subscription_id: Id(charge.subscription.subscription_id),
            kind: event.kind.clone(),
            name: charge.name.to_owned(),
            amount: charge.amount_due.units(),
        }
    }
}
