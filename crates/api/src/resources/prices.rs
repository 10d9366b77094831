//! The provider prices, of the operator's own price list and of the catalogue.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{Issue, Timestamp};
use tollgate_pricing::{PriceRow, PriceSource};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::list::{self, ListView, PageQuery, Query};
use crate::openapi::types::*;

/// A price row, and the list that it is in.
#[derive(Serialize, ToSchema)]
#[schema(as = Price)]
pub(crate) struct PriceView<'a> {
    /// The price list: `custom` is the operator's own, and `catalog` is the catalogue.
    list: PriceSource,
    #[serde(flatten)]
    #[schema(value_type = PriceRow)]
    row: &'a PriceRow,
}

/// The filters of the list of prices, as documents have them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by its derive only")]
struct PriceQuery {
    /// The name of a provider. Default: all.
    provider: Option<String>,
    /// A model. The list then has only the rows by which the model would be priced at each provider: one row, and
    /// those for some hours of the day. Default: all.
    model: Option<String>,
    /// A UTC day. Default: today.
    #[param(format = Date)]
    on: Option<String>,
}

/// List the prices that hold on a day.
///
/// The operator's own prices come first.
#[utoipa::path(
    get,
    path = "/prices",
    operation_id = "listPrices",
    params(PriceQuery, PageQuery),
    responses((status = 200, description = "A page", body = ListView<PriceView>), ApiError),
)]
pub(crate) async fn list(
    app: web::Data<App>,
    _caller: Caller,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let on = match query.get("on").map(|day| format!("{day}T00:00:00Z").parse::<Timestamp>()) {
        None => app.clock.now().date(),
        Some(Ok(midnight)) => midnight.date(),
        Some(Err(_)) => {
            issues.push(Issue::at(["on"], "must be a date, such as 2026-11-21"));
            app.clock.now().date()
        }
    };
    let page = query.page::<usize>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    let provider = query.get("provider");
    let prices = app.gateway.prices();
    // A provider may be priced by another provider's list.
    let stand_in = provider
        .and_then(|name| app.gateway.providers.get(name))
        .map(|known| &known.traits.price_list);
    let wanted = |row: &PriceRow| match query.get("model") {
        Some(model) => prices
            .find_all(provider.unwrap_or(&row.provider), model, on)
            .iter()
            .any(|listed| std::ptr::eq(listed.row, row)),
        None => provider.is_none_or(|name| row.provider == name || Some(&row.provider) == stand_in),
    };
    // The list of a day seldom changes, so places in it serve as cursors.
    let rows = prices.rows_on(on).enumerate().filter(|(_, (row, _))| wanted(row));
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    let rows = rows.filter(|(place, _)| page.after.is_none_or(|after| *place > after));
    let found: Vec<_> = rows.take(limit.saturating_add(1)).collect();
    Ok(list::respond(
        found,
        page.limit,
        |(place, _)| place.to_string(),
        |(_, (row, list))| PriceView { list: *list, row },
    ))
}
