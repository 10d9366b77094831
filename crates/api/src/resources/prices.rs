//! Prices: what is charged at the providers, by the operator's own list and the catalogue.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use tollgate_domain::{Issue, Timestamp};
use tollgate_pricing::{PriceRow, PriceSource};

use crate::app::App;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::list::{self, Query};

/// A row with whose it is.
#[derive(Serialize)]
struct PriceView<'a> {
    list: PriceSource,
    #[serde(flatten)]
    row: &'a PriceRow,
}

/// `GET /prices`: the rows that hold on a day, the operator's own first. With `model` only those by
/// which that model would be priced at each provider, of which one or more may be for some hours.
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
    // A provider may be priced by another one's list.
    let stand_in = provider.and_then(|name| app.providers.get(name)).map(|known| &known.price_list);
    let wanted = |row: &PriceRow| match query.get("model") {
        Some(model) => app
            .prices
            .find_all(provider.unwrap_or(&row.provider), model, on)
            .iter()
            .any(|listed| std::ptr::eq(listed.row, row)),
        None => provider.is_none_or(|name| row.provider == name || Some(&row.provider) == stand_in),
    };
    // The list of a day is the same as long as the process runs, so places in it are a cursor.
    let rows = app.prices.rows_on(on).enumerate().filter(|(_, (row, _))| wanted(row));
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
