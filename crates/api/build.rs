//! Tells utoipa which types of `openapi/types.rs` stand for those of the layers below, which do not know
//! it: `AmountSchema` for `Amount`.

use utoipa_config::Config;

const TYPES: [&str; 58] = [
    "Amount",
    "AnswerReport",
    "BillingInterval",
    "BudgetEnforcement",
    "BudgetId",
    "BudgetStatus",
    "ConnectionId",
    "ConnectionStatus",
    "CreditBundleId",
    "Cycle",
    "DeliveryFault",
    "DeliveryId",
    "DeliveryStatus",
    "Enforcement",
    "EventId",
    "EventKind",
    "FailureSource",
    "Issue",
    "JobId",
    "JobKind",
    "JobState",
    "LedgerAccount",
    "LimitQuantity",
    "LocalTime",
    "MerchantId",
    "Metadata",
    "MeterId",
    "Payer",
    "PendingKind",
    "PriceRow",
    "PriceSource",
    "ProviderKeyType",
    "Rate",
    "RateLimit",
    "RateType",
    "RefusalId",
    "RequestId",
    "RequestShape",
    "RequestStatus",
    "Rollover",
    "RunId",
    "SecretKeyId",
    "SocketId",
    "SpendKeyId",
    "SpendKeyStatus",
    "SubscriptionConfigId",
    "SubscriptionId",
    "SubscriptionStatus",
    "TierPeriod",
    "TierUnit",
    "Timestamp",
    "TokenBasis",
    "TransactionId",
    "TransactionKind",
    "UpgradeRule",
    "UsageSource",
    "WalletId",
    "WebhookId",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let names = TYPES.map(|name| (name, format!("{name}Schema")));
    let config =
        names.iter().fold(Config::new(), |all, (name, schema)| all.alias_for(name, schema));
    config.write_to_file();
}
