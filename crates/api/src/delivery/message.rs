//! The messages that receivers get: resources as the API shows them, each under its noun.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{
    ConnectionId, Event, EventKind, EventPayload, Job, RequestRecord, Timestamp,
};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::ClaimedDelivery;
use tollgate_store::{Conn, RecordArchive, StoreError, jobs, requests};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::app::App;
use crate::openapi::types::*;
use crate::resources::budgets::BudgetView;
use crate::resources::connections::ConnectionView;
use crate::resources::credit_bundles::CreditBundleView;
use crate::resources::jobs::JobView;
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
    BudgetThreshold(BudgetThresholdData),
    Budget(BudgetData),
    Threshold(ThresholdData),
    Subscription(SubscriptionData),
    Cycle(CycleData),
    CreditBundle(CreditBundleData),
    Price(MissingPriceData<'a>),
    Request(Box<RequestData>),
    Job(Box<JobData>),
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
struct BudgetData {
    /// The budget.
    budget: BudgetView,
}

#[derive(Serialize, ToSchema)]
struct BudgetThresholdData {
    /// The budget.
    budget: BudgetView,
    /// The used share of the spend limit, in percent.
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
struct JobData {
    /// The job.
    job: JobView,
    /// The record of the call that created it.
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
        EventKind::BudgetThresholdReached => of.data::<BudgetThresholdData>(),
        EventKind::BudgetLimitReached => of.data::<BudgetData>(),
        EventKind::SubscriptionCreated
        | EventKind::SubscriptionRenewed
        | EventKind::SubscriptionChanged => of.data::<CycleData>(),
        EventKind::SubscriptionCancelled => of.data::<SubscriptionData>(),
        EventKind::CreditBundlePurchased => of.data::<CreditBundleData>(),
        EventKind::PriceMissing => of.data::<MissingPriceData<'static>>(),
        EventKind::RequestCompleted | EventKind::RequestFailed | EventKind::RequestSuspicious => {
            of.data::<RequestData>()
        }
        EventKind::JobSucceeded | EventKind::JobFailed | EventKind::JobLost => of.data::<JobData>(),
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
    /// The message of an event, as message `sequence` of a webhook. Without the resources that it needs there is no
    /// message.
    pub(crate) fn of(
        event: &'a Event,
        sequence: u64,
        resources: &EventResources,
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
            EventPayload::BudgetThresholdReached { budget, threshold } => {
                let budget = BudgetView::of(budget, event.created_at);
                EventData::BudgetThreshold(BudgetThresholdData { budget, threshold: *threshold })
            }
            EventPayload::BudgetLimitReached { budget } => {
                let budget = BudgetView::of(budget, event.created_at);
                EventData::Budget(BudgetData { budget })
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
                request: RecordView::of(resources.record.as_ref()?, shape),
            })),
            EventPayload::JobSucceeded { .. }
            | EventPayload::JobFailed { .. }
            | EventPayload::JobLost { .. } => EventData::Job(Box::new(JobData {
                job: JobView::of(resources.job.as_ref()?),
                request: RecordView::of(resources.record.as_ref()?, shape),
            })),
            EventPayload::WebhookTest { webhook } => {
                EventData::Webhook(WebhookData { webhook: WebhookView::of(webhook) })
            }
        };
        Some(Self { r#type: event.payload.kind(), timestamp: event.created_at, sequence, data })
    }
}

/// The resources of an event that are read when its message is written, because they no longer change.
#[derive(Default)]
pub struct EventResources {
    /// The record of the call.
    pub record: Option<RequestRecord>,
    /// The job.
    pub job: Option<Job>,
}

impl EventResources {
    /// Reads the resources of an event.
    ///
    /// # Errors
    /// [`StoreError`] when the database fails.
    pub fn read(
        conn: &mut Conn,
        archive: &RecordArchive,
        event: &Event,
    ) -> Result<Self, StoreError> {
        let merchant_id = event.merchant_id;
        let (request_id, job_id) = match event.payload {
            EventPayload::RequestCompleted { request_id }
            | EventPayload::RequestFailed { request_id }
            | EventPayload::RequestSuspicious { request_id } => (request_id, None),
            EventPayload::JobSucceeded { job_id, request_id }
            | EventPayload::JobFailed { job_id, request_id }
            | EventPayload::JobLost { job_id, request_id } => (request_id, Some(job_id)),
            _ => return Ok(Self::default()),
        };
        Ok(Self {
            record: requests::find(conn, archive, merchant_id, request_id)?,
            job: match job_id {
                Some(job_id) => jobs::find(conn, merchant_id, job_id)?,
                None => None,
            },
        })
    }
}

/// The type and the data of an event's message, as text for people. `None` if a resource that it needs is gone.
pub fn event_text(
    event: &Event,
    resources: &EventResources,
    shape: InterfaceShape,
) -> Option<String> {
    let mut message = serde_json::to_value(EventMessage::of(event, 0, resources, shape)?).ok()?;
    // Each webhook has its own numbers.
    message.as_object_mut()?.remove("sequence");
    serde_json::to_string_pretty(&message).ok()
}

/// The body of a message; `None` if a resource that it needs is gone.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(super) async fn render_body(
    app: &App,
    claimed: &ClaimedDelivery,
) -> Result<Option<Bytes>, StoreError> {
    let event = claimed.event.clone();
    let read =
        move |conn: &mut Conn, archive: &RecordArchive| EventResources::read(conn, archive, &event);
    let resources = app.store.read_records(read).await?;
    let (event, sequence) = (&claimed.event, claimed.sequence);
    let message = EventMessage::of(event, sequence, &resources, app.settings.shape);
    Ok(message.and_then(|message| serde_json::to_vec(&message).ok()).map(Bytes::from))
}
