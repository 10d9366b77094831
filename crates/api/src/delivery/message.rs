//! The messages that receivers get: resources as the API shows them, each under its noun.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, Event, EventKind, EventPayload, RequestId, RequestRecord, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::ClaimedDelivery;
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
pub(crate) struct EventMessage<'a> {
    r#type: EventKind,
    timestamp: Timestamp,
    sequence: u64,
    data: EventData<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventData<'a> {
    Connection(ConnectionData),
    Wallet(WalletData),
    SpendKey(SpendKeyData),
    Threshold(ThresholdData),
    Subscription(SubscriptionData),
    Cycle(CycleData),
    CreditBundle(CreditBundleData),
    Price(MissingPriceData<'a>),
    Request(Box<RequestData>),
    Webhook(WebhookData),
}

#[derive(Serialize, ToSchema)]
struct ConnectionData {
    /// The customer.
    connection: ConnectionView,
}

#[derive(Serialize, ToSchema)]
struct WalletData {
    /// The wallet.
    wallet: WalletView,
    /// The connection that owns the wallet; null for your own.
    #[schema(required)]
    connection_id: Option<ConnectionId>,
}

#[derive(Serialize, ToSchema)]
struct SpendKeyData {
    /// The spend key.
    spend_key: SpendKeyView,
}

#[derive(Serialize, ToSchema)]
struct ThresholdData {
    /// The spend key.
    spend_key: SpendKeyView,
    /// The used share of the spend limit, in percent: 80 or 95.
    threshold: u8,
}

#[derive(Serialize, ToSchema)]
struct SubscriptionData {
    /// The subscription.
    subscription: SubscriptionView,
}

#[derive(Serialize, ToSchema)]
struct CycleData {
    /// The subscription.
    subscription: SubscriptionView,
    /// The amount to collect for the cycle that has begun, in USD.
    amount_due: Amount,
}

#[derive(Serialize, ToSchema)]
struct CreditBundleData {
    /// The credit bundle.
    credit_bundle: CreditBundleView,
    /// The subscription.
    subscription: SubscriptionView,
    /// The amount to collect for the bundle, in USD.
    amount_due: Amount,
}

#[derive(Serialize, ToSchema)]
struct MissingPriceData<'a> {
    /// The model or unit without a price.
    price: MissingPriceView<'a>,
}

/// A missing price.
#[derive(Serialize, ToSchema)]
#[schema(as = MissingPrice)]
struct MissingPriceView<'a> {
    /// The provider's name in the configuration.
    provider: &'a str,
    /// The model.
    model: &'a str,
    /// The unit without a price; absent if the model has no price at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
struct RequestData {
    /// The record of the call.
    request: RecordView,
}

#[derive(Serialize, ToSchema)]
struct WebhookData {
    /// The webhook.
    webhook: WebhookView,
}

/// The schema of the `data` of a kind. The schemas that it refers to are added to `referred`.
pub(crate) fn schema_of_data(
    kind: EventKind,
    referred: &mut Vec<(String, RefOr<Schema>)>,
) -> RefOr<Schema> {
    let mut of = SchemaCollector(referred);
    match kind {
        EventKind::ConnectionCreated | EventKind::ConnectionDeleted => of.data::<ConnectionData>(),
        EventKind::WalletBalanceLow | EventKind::WalletBalanceDepleted => of.data::<WalletData>(),
        EventKind::SpendKeyThresholdReached => of.data::<ThresholdData>(),
        EventKind::SpendKeyLimitReached => of.data::<SpendKeyData>(),
        EventKind::SubscriptionCreated
        | EventKind::SubscriptionRenewed
        | EventKind::SubscriptionChanged => of.data::<CycleData>(),
        EventKind::SubscriptionCancelled => of.data::<SubscriptionData>(),
        EventKind::CreditBundlePurchased => of.data::<CreditBundleData>(),
        EventKind::PriceMissing => of.data::<MissingPriceData<'static>>(),
        EventKind::RequestCompleted | EventKind::RequestFailed | EventKind::RequestSuspicious => {
            of.data::<RequestData>()
        }
        EventKind::WebhookTest => of.data::<WebhookData>(),
    }
}

struct SchemaCollector<'a>(&'a mut Vec<(String, RefOr<Schema>)>);

impl SchemaCollector<'_> {
    fn data<T: ToSchema>(&mut self) -> RefOr<Schema> {
        T::schemas(self.0);
        <T as PartialSchema>::schema()
    }
}

impl<'a> EventMessage<'a> {
    /// The message of an event, as message `sequence` of a webhook. `record` is the record of the call, for
    /// an event about one; without it there is no message.
    pub(crate) fn of(
        event: &'a Event,
        sequence: u64,
        record: Option<&RequestRecord>,
        shape: InterfaceShape,
    ) -> Option<Self> {
        let data = match &event.payload {
            EventPayload::ConnectionCreated { connection }
            | EventPayload::ConnectionDeleted { connection } => {
                EventData::Connection(ConnectionData { connection: ConnectionView::of(connection) })
            }
            EventPayload::WalletBalanceLow { wallet }
            | EventPayload::WalletBalanceDepleted { wallet } => {
                let connection_id = wallet.connection_id;
                EventData::Wallet(WalletData { wallet: WalletView::of(wallet), connection_id })
            }
            EventPayload::SpendKeyThresholdReached { spend_key, threshold } => {
                let spend_key = SpendKeyView::of(spend_key, event.created_at);
                EventData::Threshold(ThresholdData { spend_key, threshold: *threshold })
            }
            EventPayload::SpendKeyLimitReached { spend_key } => {
                let spend_key = SpendKeyView::of(spend_key, event.created_at);
                EventData::SpendKey(SpendKeyData { spend_key })
            }
            EventPayload::SubscriptionCreated { subscription, amount_due }
            | EventPayload::SubscriptionRenewed { subscription, amount_due }
            | EventPayload::SubscriptionChanged { subscription, amount_due } => {
                let subscription = SubscriptionView::of(subscription);
                EventData::Cycle(CycleData { subscription, amount_due: *amount_due })
            }
            EventPayload::SubscriptionCancelled { subscription } => {
                let subscription = SubscriptionView::of(subscription);
                EventData::Subscription(SubscriptionData { subscription })
            }
            EventPayload::CreditBundlePurchased { credit_bundle, subscription, amount_due } => {
                EventData::CreditBundle(CreditBundleData {
                    credit_bundle: CreditBundleView::of(credit_bundle),
                    subscription: SubscriptionView::of(subscription),
                    amount_due: *amount_due,
                })
            }
            EventPayload::PriceMissing { provider, model, unit } => {
                let unit = unit.as_deref();
                EventData::Price(MissingPriceData {
                    price: MissingPriceView { provider, model, unit },
                })
            }
            EventPayload::RequestCompleted { .. }
            | EventPayload::RequestFailed { .. }
            | EventPayload::RequestSuspicious { .. } => EventData::Request(Box::new(RequestData {
                request: RecordView::of(record?, shape),
            })),
            EventPayload::WebhookTest { webhook } => {
                EventData::Webhook(WebhookData { webhook: WebhookView::of(webhook) })
            }
        };
        Some(Self { r#type: event.payload.kind(), timestamp: event.created_at, sequence, data })
    }
}

/// The type and the data of an event's message, as text for people. `None` if the record that it needs is gone.
pub fn event_text(
    event: &Event,
    record: Option<&RequestRecord>,
    shape: InterfaceShape,
) -> Option<String> {
    let mut message = serde_json::to_value(EventMessage::of(event, 0, record, shape)?).ok()?;
    // Each webhook has its own numbers.
    message.as_object_mut()?.remove("sequence");
    serde_json::to_string_pretty(&message).ok()
}

/// The body of a message; `None` if the record that it needs is gone.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(super) async fn render_body(
    app: &App,
    claimed: &ClaimedDelivery,
) -> Result<Option<Bytes>, StoreError> {
    let event = &claimed.event;
    let record = match event.payload {
        EventPayload::RequestCompleted { request_id }
        | EventPayload::RequestFailed { request_id }
        | EventPayload::RequestSuspicious { request_id } => {
            record(app, claimed, request_id).await?
        }
        _ => None,
    };
    let message = EventMessage::of(event, claimed.sequence, record.as_ref(), app.settings.shape);
    Ok(message.and_then(|message| serde_json::to_vec(&message).ok()).map(Bytes::from))
}

async fn record(
    app: &App,
    claimed: &ClaimedDelivery,
    request_id: RequestId,
) -> Result<Option<RequestRecord>, StoreError> {
    let merchant_id = claimed.event.merchant_id;
    app.store.read(move |conn| requests::find(conn, merchant_id, request_id)).await
}
