//! Usage that did not pass through this service, reported to be billed.

use actix_web::{HttpResponse, web};
use deserr::Deserr;
use tollgate_domain::admission::Refusal;
use tollgate_domain::{ForwardedRequest, Issue, MissingPrice, PricedUsage, ProviderKeyType};
use tollgate_pricing::{PerUnit, Usage};
use tollgate_store::{ReportOutcome, ReportedUsage};
use utoipa::ToSchema;

use super::super::connections::not_found as connection_not_found;
use super::view::RecordView;
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{CountField, Issues, MetadataField, NameField, SecondsField};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::openapi::marks::refused;
use crate::openapi::types::*;
use tollgate_gateway::Tariff;

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct ReportUsage {
    /// Your own id of this usage. It is unique per merchant, permanently. The record shows it as `reference_id`.
    request_id: NameField,
    /// The connection that used it.
    #[schema(value_type = ConnectionId)]
    connection_id: NameField,
    /// The short name of the meter that prices it.
    meter_slug: NameField,
    /// The provider. With `model`, the base cost is shown at the listed price. Default: `unknown`.
    #[deserr(default)]
    provider: Option<NameField>,
    /// The model. The base cost is shown when `provider` is given, too.
    #[deserr(default)]
    model: Option<NameField>,
    /// Pairs of strings that you can filter by.
    #[deserr(default)]
    metadata: Option<MetadataField>,
    /// Tokens of input. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>, nullable = false)]
    input_tokens: CountField,
    /// Tokens of output. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>, nullable = false)]
    output_tokens: CountField,
    /// Characters of input. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>, nullable = false)]
    input_characters: CountField,
    /// Characters of output. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<CountField>, nullable = false)]
    output_characters: CountField,
    /// Seconds of input, also in a string with up to six decimals: `"1.5"`. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<SecondsField>, nullable = false)]
    input_seconds: SecondsField,
    /// Seconds of output, likewise. Default: 0.
    #[deserr(default)]
    #[schema(value_type = Option<SecondsField>, nullable = false)]
    output_seconds: SecondsField,
}

impl Input for ReportUsage {}

impl ReportUsage {
    fn usage(&self) -> Usage {
        let quantities = PerUnit {
            input: self.input_tokens.0,
            output: self.output_tokens.0,
            input_characters: self.input_characters.0,
            output_characters: self.output_characters.0,
            input_second: self.input_seconds.0,
            output_second: self.output_seconds.0,
            request: 1,
            ..PerUnit::default()
        };
        Usage { quantities, provider_cost: None }
    }

    /// The usage as it is booked. The provider has billed the merchant for it, under any key.
    fn reported(self, tariff: &Tariff<'_>) -> Result<ReportedUsage, ApiError> {
        let usage = self.usage();
        let (provider, model) = (self.provider.map(|name| name.0), self.model.map(|name| name.0));
        let served = provider.as_deref().zip(model.as_deref());
        let (stated, priced) = tariff.price_stated(served, usage);
        let missing =
            served.and_then(|(provider, model)| MissingPrice::of(provider, model, &usage, &priced));
        Ok(ReportedUsage {
            reference_id: self.request_id.0,
            connection_id: self.connection_id.0.parse().map_err(|_| connection_not_found())?,
            meter_slug: self.meter_slug.0,
            forwarded: ForwardedRequest {
                provider: provider.unwrap_or_else(|| "unknown".to_owned()),
                endpoint: "POST /v1/requests".to_owned(),
                metered: true,
                provider_key_type: ProviderKeyType::Unmanaged,
                model,
                metadata: self.metadata.unwrap_or_default().0,
                socket_id: None,
                input_estimate: PricedUsage::nothing(),
            },
            priced: stated,
            applied: priced.applied,
            missing,
        })
    }
}

/// Report usage that did not pass through this service.
///
/// A repetition with the same `request_id` answers with the record that has it.
#[utoipa::path(
    post,
    path = "/requests",
    operation_id = "reportUsage",
    tag = "requests",
    params(IdempotencyHeader),
    request_body = ReportUsage,
    responses(
        (status = 201, description = "Booked", body = RecordView),
        (status = 200, description = "The record that was already reported under this id", body = RecordView),
        ApiError, refused::ConnectionNotFound, refused::ConnectionDisabled, refused::MeterNotFound,
        refused::IdempotencyKeyReused,
    ),
)]
pub(crate) async fn report(
    app: web::Data<App>,
    asked: ApiRequest<Caller, ReportUsage>,
) -> Result<HttpResponse, ApiError> {
    let reported = asked.what.reported(&app.gateway.tariff(app.clock.now()))?;
    let (merchant_id, shape, store) =
        (asked.caller.merchant_id, app.settings.shape, app.store.clone());
    // No transaction waits for the archive, so what it has is found before.
    let archived = store.find_archived_report(merchant_id, reported.clone()).await?;
    app.write(asked.idempotency_key, move |conn| {
        let outcome = match archived {
            Some(known) => known,
            None => store.report(conn, merchant_id, &reported)?,
        };
        match outcome {
            ReportOutcome::Booked(record) => {
                Ok(ApiResponse::created(&RecordView::of(&record, shape)))
            }
            ReportOutcome::Known(record) => Ok(ApiResponse::ok(&RecordView::of(&record, shape))),
            ReportOutcome::ConnectionNotFound => Err(connection_not_found()),
            ReportOutcome::ConnectionDisabled => Err(Refusal::ConnectionDisabled.into()),
            ReportOutcome::MeterNotFound => {
                Err(ApiError::not_found(ErrorCode::MeterNotFound, "meter"))
            }
            ReportOutcome::OutOfRange => Err(ApiError::invalid(vec![Issue::at(
                [],
                "costs more than an amount, or the balance after it, can say",
            )])),
            ReportOutcome::ReferenceReused => Err(ApiError::with_issues(
                ErrorCode::IdempotencyKeyReused,
                "Other usage was reported under this request_id.",
                vec![Issue::at(["request_id"], "was used before; each usage needs one of its own")],
            )),
        }
    })
    .await
}
