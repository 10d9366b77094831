//! What an event looks like to a receiver: resources as the API shows them, each under its noun.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{EventKind, News, RequestId, Timestamp};
use tollgate_pricing::Amount;
use tollgate_store::deliveries::Claimed;
use tollgate_store::{StoreError, requests};

use crate::app::App;
use crate::resources::connections::ConnectionView;
use crate::resources::credit_bundles::CreditBundleView;
use crate::resources::requests::RecordView;
use crate::resources::spend_keys::SpendKeyView;
use crate::resources::subscriptions::SubscriptionView;
use crate::resources::wallets::WalletView;
use crate::resources::webhooks::WebhookView;

#[derive(Serialize)]
struct Message<'a> {
    r#type: EventKind,
    timestamp: Timestamp,
    sequence: u64,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Connection {
        connection: ConnectionView,
    },
    Wallet {
        wallet: WalletView,
    },
    SpendKey {
        spend_key: SpendKeyView,
        #[serde(skip_serializing_if = "Option::is_none")]
        threshold: Option<u8>,
    },
    Subscription {
        subscription: SubscriptionView,
        #[serde(skip_serializing_if = "Option::is_none")]
        amount_due: Option<Amount>,
    },
    CreditBundle {
        credit_bundle: CreditBundleView,
        subscription: SubscriptionView,
        amount_due: Amount,
    },
    Price {
        price: MissingPriceView<'a>,
    },
    Request {
        request: Box<RecordView>,
    },
    Webhook {
        webhook: WebhookView,
    },
}

/// What has no price.
#[derive(Serialize)]
struct MissingPriceView<'a> {
    provider: &'a str,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
}

/// The body of a message; `None` when what it tells of is not there any more.
///
/// # Errors
/// Those of the store, which knows the records of calls.
pub(super) async fn of(app: &App, claimed: &Claimed) -> Result<Option<Bytes>, StoreError> {
    let event = &claimed.event;
    let data = match &event.news {
        News::ConnectionCreated { connection } | News::ConnectionDeleted { connection } => {
            Data::Connection { connection: ConnectionView::of(connection) }
        }
        News::WalletBalanceLow { wallet } | News::WalletBalanceDepleted { wallet } => {
            Data::Wallet { wallet: WalletView::of(wallet) }
        }
        News::SpendKeyThresholdReached { spend_key, threshold } => Data::SpendKey {
            spend_key: SpendKeyView::of(spend_key, event.created_at),
            threshold: Some(*threshold),
        },
        News::SpendKeyLimitReached { spend_key } => Data::SpendKey {
            spend_key: SpendKeyView::of(spend_key, event.created_at),
            threshold: None,
        },
        News::SubscriptionCreated { subscription, amount_due }
        | News::SubscriptionRenewed { subscription, amount_due }
        | News::SubscriptionChanged { subscription, amount_due } => Data::Subscription {
            subscription: SubscriptionView::of(subscription),
            amount_due: Some(*amount_due),
        },
        News::SubscriptionCancelled { subscription } => Data::Subscription {
            subscription: SubscriptionView::of(subscription),
            amount_due: None,
        },
        News::CreditBundlePurchased { credit_bundle, subscription, amount_due } => {
            Data::CreditBundle {
                credit_bundle: CreditBundleView::of(credit_bundle),
                subscription: SubscriptionView::of(subscription),
                amount_due: *amount_due,
            }
        }
        News::PriceMissing { provider, model, unit } => {
            Data::Price { price: MissingPriceView { provider, model, unit: unit.as_deref() } }
        }
        News::RequestCompleted { request_id } | News::RequestFailed { request_id } => {
            match record(app, claimed, *request_id).await? {
                Some(record) => Data::Request { request: Box::new(record) },
                None => return Ok(None),
            }
        }
        News::WebhookTest { webhook } => Data::Webhook { webhook: WebhookView::of(webhook) },
    };
    let (kind, timestamp) = (event.news.kind(), event.created_at);
    let message = Message { r#type: kind, timestamp, sequence: claimed.sequence, data };
    Ok(serde_json::to_vec(&message).ok().map(Bytes::from))
}

async fn record(
    app: &App,
    claimed: &Claimed,
    request_id: RequestId,
) -> Result<Option<RecordView>, StoreError> {
    let merchant_id = claimed.event.merchant_id;
    let read = move |conn: &mut _| requests::find(conn, merchant_id, request_id);
    let record = app.store.read(read).await?;
    Ok(record.map(|record| RecordView::of(&record, app.settings.shape)))
}
