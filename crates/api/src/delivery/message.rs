//! The messages that receivers get: resources as the API shows them, each under its noun.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{ConnectionId, Event, EventKind, News, RequestId, RequestRecord, Timestamp};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::Claimed;
use tollgate_store::{StoreError, requests};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::app::App;
use crate::openapi::types::*;
use crate::resources::connections::ConnectionView;
use crate::resources::credit_bundles::CreditBundleView;
use crate::resources::requests::RecordView;
use crate::resources::spend_keys::SpendKeyView;
use crate::resources::subscriptions::SubscriptionView;
use crate::resources::wallets::WalletView;
use crate::resources::webhooks::WebhookView;
use crate::settings::InterfaceShape;

/// A message. Its schema is assembled for each kind, with [`schema_of_data`].
#[derive(Serialize)]
pub(crate) struct Message<'a> {
    r#type: EventKind,
    timestamp: Timestamp,
    sequence: u64,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Connection(OfConnection),
    Wallet(OfWallet),
    SpendKey(OfSpendKey),
    Threshold(OfThreshold),
    Subscription(OfSubscription),
    Cycle(OfCycle),
    CreditBundle(OfCreditBundle),
    Price(OfPrice<'a>),
    Request(Box<OfRequest>),
    Webhook(OfWebhook),
}

#[derive(Serialize, ToSchema)]
struct OfConnection {
    connection: ConnectionView,
}

#[derive(Serialize, ToSchema)]
struct OfWallet {
    wallet: WalletView,
    /// The connection that owns the wallet; null for your own.
    #[schema(required)]
    connection_id: Option<ConnectionId>,
}

#[derive(Serialize, ToSchema)]
struct OfSpendKey {
    spend_key: SpendKeyView,
}

#[derive(Serialize, ToSchema)]
struct OfThreshold {
    spend_key: SpendKeyView,
    /// The used share of the spend limit, in percent: 80 or 95.
    threshold: u8,
}

#[derive(Serialize, ToSchema)]
struct OfSubscription {
    subscription: SubscriptionView,
}

#[derive(Serialize, ToSchema)]
struct OfCycle {
    subscription: SubscriptionView,
    /// The amount to collect for the cycle that has begun, in USD.
    amount_due: Amount,
}

#[derive(Serialize, ToSchema)]
struct OfCreditBundle {
    credit_bundle: CreditBundleView,
    subscription: SubscriptionView,
    /// The amount to collect for the bundle, in USD.
    amount_due: Amount,
}

#[derive(Serialize, ToSchema)]
struct OfPrice<'a> {
    price: MissingPriceView<'a>,
}

/// A missing price.
#[derive(Serialize, ToSchema)]
#[schema(as = MissingPrice)]
struct MissingPriceView<'a> {
    provider: &'a str,
    model: &'a str,
    /// The unit without a price; absent if the model has no price at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
struct OfRequest {
    request: RecordView,
}

#[derive(Serialize, ToSchema)]
struct OfWebhook {
    webhook: WebhookView,
}

/// The schema of the `data` of a kind. The schemas that it refers to are added to `referred`.
pub(crate) fn schema_of_data(
    kind: EventKind,
    referred: &mut Vec<(String, RefOr<Schema>)>,
) -> RefOr<Schema> {
    let mut of = Schemas(referred);
    match kind {
        EventKind::ConnectionCreated | EventKind::ConnectionDeleted => of.data::<OfConnection>(),
        EventKind::WalletBalanceLow | EventKind::WalletBalanceDepleted => of.data::<OfWallet>(),
        EventKind::SpendKeyThresholdReached => of.data::<OfThreshold>(),
        EventKind::SpendKeyLimitReached => of.data::<OfSpendKey>(),
        EventKind::SubscriptionCreated
        | EventKind::SubscriptionRenewed
        | EventKind::SubscriptionChanged => of.data::<OfCycle>(),
        EventKind::SubscriptionCancelled => of.data::<OfSubscription>(),
        EventKind::CreditBundlePurchased => of.data::<OfCreditBundle>(),
        EventKind::PriceMissing => of.data::<OfPrice<'static>>(),
        EventKind::RequestCompleted | EventKind::RequestFailed | EventKind::RequestSuspicious => {
            of.data::<OfRequest>()
        }
        EventKind::WebhookTest => of.data::<OfWebhook>(),
    }
}

struct Schemas<'a>(&'a mut Vec<(String, RefOr<Schema>)>);

impl Schemas<'_> {
    fn data<T: ToSchema>(&mut self) -> RefOr<Schema> {
        T::schemas(self.0);
        <T as PartialSchema>::schema()
    }
}

impl<'a> Message<'a> {
    /// The message of an event, as message `sequence` of a webhook. `record` is the record of the call, for
    /// an event about one; without it there is no message.
    pub(crate) fn of(
        event: &'a Event,
        sequence: u64,
        record: Option<&RequestRecord>,
        shape: InterfaceShape,
    ) -> Option<Self> {
        let data = match &event.news {
            News::ConnectionCreated { connection } | News::ConnectionDeleted { connection } => {
                Data::Connection(OfConnection { connection: ConnectionView::of(connection) })
            }
            News::WalletBalanceLow { wallet } | News::WalletBalanceDepleted { wallet } => {
                let connection_id = wallet.connection_id;
                Data::Wallet(OfWallet { wallet: WalletView::of(wallet), connection_id })
            }
            News::SpendKeyThresholdReached { spend_key, threshold } => {
                let spend_key = SpendKeyView::of(spend_key, event.created_at);
                Data::Threshold(OfThreshold { spend_key, threshold: *threshold })
            }
            News::SpendKeyLimitReached { spend_key } => {
                let spend_key = SpendKeyView::of(spend_key, event.created_at);
                Data::SpendKey(OfSpendKey { spend_key })
            }
            News::SubscriptionCreated { subscription, amount_due }
            | News::SubscriptionRenewed { subscription, amount_due }
            | News::SubscriptionChanged { subscription, amount_due } => {
                let subscription = SubscriptionView::of(subscription);
                Data::Cycle(OfCycle { subscription, amount_due: *amount_due })
            }
            News::SubscriptionCancelled { subscription } => {
                let subscription = SubscriptionView::of(subscription);
                Data::Subscription(OfSubscription { subscription })
            }
            News::CreditBundlePurchased { credit_bundle, subscription, amount_due } => {
                Data::CreditBundle(OfCreditBundle {
                    credit_bundle: CreditBundleView::of(credit_bundle),
                    subscription: SubscriptionView::of(subscription),
                    amount_due: *amount_due,
                })
            }
            News::PriceMissing { provider, model, unit } => {
                let unit = unit.as_deref();
                Data::Price(OfPrice { price: MissingPriceView { provider, model, unit } })
            }
            News::RequestCompleted { .. }
            | News::RequestFailed { .. }
            | News::RequestSuspicious { .. } => {
                Data::Request(Box::new(OfRequest { request: RecordView::of(record?, shape) }))
            }
            News::WebhookTest { webhook } => {
                Data::Webhook(OfWebhook { webhook: WebhookView::of(webhook) })
            }
        };
        Some(Self { r#type: event.news.kind(), timestamp: event.created_at, sequence, data })
    }
}

/// The body of a message; `None` if the record that it needs is gone.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(super) async fn body(app: &App, claimed: &Claimed) -> Result<Option<Bytes>, StoreError> {
    let event = &claimed.event;
    let record = match event.news {
        News::RequestCompleted { request_id }
        | News::RequestFailed { request_id }
        | News::RequestSuspicious { request_id } => record(app, claimed, request_id).await?,
        _ => None,
    };
    let message = Message::of(event, claimed.sequence, record.as_ref(), app.settings.shape);
    Ok(message.and_then(|message| serde_json::to_vec(&message).ok()).map(Bytes::from))
}

async fn record(
    app: &App,
    claimed: &Claimed,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    let merchant_id = claimed.event.merchant_id;
    app.store.read(move |conn| requests::find(conn, merchant_id, request_id)).await
}
