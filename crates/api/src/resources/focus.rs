//! The costs of a month as FOCUS 1.2, the FinOps Open Cost and Usage Specification: a row for each day, customer, provider
//! and model.

use bytes::Bytes;
use serde::Serialize;
use tollgate_domain::{Merchant, Month, TimeSpan, TimeZone, Timestamp};
use tollgate_store::requests::RequestFilter;
use tollgate_store::usage::{self, Dimension, GroupMembers, RollupSums};
use tollgate_store::{Conn, RecordArchive, connections};

use super::LargeAmount;
use super::usage::too_many;
use crate::http::csv;
use crate::http::error::ApiError;

/// The columns, in the order of the specification's dataset "Cost and Usage".
const COLUMNS: &[&str] = &[
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountStatus",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "x_FailedRequests",
    "x_Model",
];

/// The seller of the calls, who states their costs. The providers are its publishers.
const SELLER: &str = "Tollgate";

/// A row of the export. Names are those of the specification.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct FocusRow {
    billed_cost: LargeAmount,
    billing_account_id: String,
    billing_account_name: String,
    billing_currency: &'static str,
    billing_period_end: String,
    billing_period_start: String,
    charge_category: &'static str,
    charge_description: String,
    charge_frequency: &'static str,
    charge_period_end: String,
    charge_period_start: String,
    consumed_quantity: String,
    consumed_unit: &'static str,
    contracted_cost: LargeAmount,
    effective_cost: LargeAmount,
    invoice_issuer_name: &'static str,
    list_cost: LargeAmount,
    pricing_category: &'static str,
    pricing_quantity: String,
    pricing_unit: &'static str,
    provider_name: &'static str,
    publisher_name: String,
    service_category: &'static str,
    service_name: String,
    service_subcategory: &'static str,
    sub_account_id: Option<String>,
    sub_account_name: Option<String>,
    sub_account_type: Option<&'static str>,
    #[serde(rename = "x_FailedRequests")]
    failed_requests: i128,
    #[serde(rename = "x_Model")]
    model: Option<String>,
}

/// The CSV of a merchant's costs of a month of UTC. It has a header. Call it in a snapshot.
///
/// `BilledCost` is the `total_request_cost`, and `ListCost` the base cost of the calls.
///
/// # Errors
/// [`ApiError`] of the store, or for a day with too many groups.
pub fn costs_of_month(
    conn: &mut Conn,
    merchant: &Merchant,
    month: Month,
) -> Result<Bytes, ApiError> {
    let period = month.range(&TimeZone::UTC);
    let mut rows = Vec::new();
    let mut day = period.start;
    while day < period.end {
        let next = day.plus_millis(24 * 60 * 60 * 1_000);
        for (provider, sums) in by_provider(conn, merchant, &(day..next))? {
            for (members, sums) in sums {
                rows.push(row(conn, merchant, month, day, &provider, members, &sums)?);
            }
        }
        day = next;
    }
    to_csv(&rows)
}

/// The header of the CSV alone.
///
/// # Errors
/// [`ApiError`] if it cannot be written.
pub fn header() -> Result<Bytes, ApiError> {
    to_csv(&[])
}

fn to_csv(rows: &[FocusRow]) -> Result<Bytes, ApiError> {
    let columns: Vec<String> = COLUMNS.iter().map(|name| (*name).to_owned()).collect();
    csv::text(&columns, rows)
}

/// The sums of a day by customer and model, for each provider.
type ProviderSums = Vec<(String, Vec<(GroupMembers, RollupSums)>)>;

fn by_provider(
    conn: &mut Conn,
    merchant: &Merchant,
    day: &std::ops::Range<Timestamp>,
) -> Result<ProviderSums, ApiError> {
    let Ok(span) =
        TimeSpan::new(day.start, day.end, TimeZone::UTC, tollgate_domain::Interval::None)
    else {
        return Ok(Vec::new());
    };
    // All of these sums are in roll-ups.
    let archive = RecordArchive::left_out();
    let mut sums = |filter: &RequestFilter, by: &[Dimension]| {
        let found = usage::sums(conn, &archive, merchant.merchant_id, filter, by, &span)?;
        let found = found.ok_or_else(|| too_many(usage::MOST_SUMS))?.into_iter();
        let of_day =
            found.filter_map(|(members, days)| Some((members, days.into_values().next()?)));
        Ok::<_, ApiError>(of_day.collect::<Vec<_>>())
    };
    let providers = sums(&RequestFilter::default(), &[Dimension::Provider])?;
    let providers = providers.into_iter().filter_map(|(mut members, _)| members.pop()?);
    let of_provider = providers.map(|provider| {
        let filter = RequestFilter { provider: Some(provider.clone()), ..RequestFilter::default() };
        Ok((provider, sums(&filter, &[Dimension::Connection, Dimension::Model])?))
    });
    of_provider.collect()
}

/// A whole number as a decimal, which the specification requires for quantities.
fn decimal(number: i128) -> String {
    format!("{number}.0")
}

fn row(
    conn: &mut Conn,
    merchant: &Merchant,
    month: Month,
    day: Timestamp,
    provider: &str,
    mut members: GroupMembers,
    sums: &RollupSums,
) -> Result<FocusRow, ApiError> {
    let period = month.range(&TimeZone::UTC);
    let (model, connection) = (members.pop().flatten(), members.pop().flatten());
    let name = match connection.as_ref().and_then(|id| id.parse().ok()) {
        Some(id) => connections::find(conn, merchant.merchant_id, id)?
            .and_then(|customer| customer.name.or(customer.reference_id)),
        None => None,
    };
    let cost = LargeAmount(sums.request_cost());
    Ok(FocusRow {
        billed_cost: cost,
        billing_account_id: merchant.merchant_id.to_string(),
        billing_account_name: merchant.name.clone(),
        billing_currency: "USD",
        billing_period_end: period.end.to_string(),
        billing_period_start: period.start.to_string(),
        charge_category: "Usage",
        charge_description: match &model {
            Some(model) => format!("Requests to {model} at {provider}"),
            None => format!("Requests to {provider}"),
        },
        charge_frequency: "Usage-Based",
        charge_period_end: day.plus_millis(24 * 60 * 60 * 1_000).to_string(),
        charge_period_start: day.to_string(),
        consumed_quantity: decimal(sums.tokens()),
        consumed_unit: "Tokens",
        contracted_cost: cost,
        effective_cost: cost,
        invoice_issuer_name: SELLER,
        list_cost: LargeAmount(sums.usage_cost),
        pricing_category: "Standard",
        pricing_quantity: decimal(sums.requests),
        pricing_unit: "Requests",
        provider_name: SELLER,
        publisher_name: provider.to_owned(),
        service_category: "AI and Machine Learning",
        service_name: provider.to_owned(),
        service_subcategory: "Generative AI",
        sub_account_name: connection.as_ref().map(|id| name.unwrap_or_else(|| id.clone())),
        sub_account_type: connection.as_ref().map(|_| "Customer"),
        sub_account_id: connection,
        failed_requests: sums.failed,
        model,
    })
}
