//! The page of the providers' prices that hold today.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_pricing::{PriceRow, PriceScale, PriceSource, Unit};

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Shell};
use crate::session::SessionUser;
use tollgate_api::{App, Query};

/// The most rows of the page.
const MOST: usize = 50;

struct PriceItem {
    provider: String,
    models: String,
    input: String,
    output: String,
    /// The prices of other units, each with its unit.
    others: Vec<String>,
    since: String,
    is_custom: bool,
}

impl PriceItem {
    fn of(row: &PriceRow, list: PriceSource) -> Self {
        let price = |unit| row.prices.get(unit).map(|rate| format!("${rate}"));
        let is_main = |unit: &Unit| matches!(unit, Unit::Input | Unit::Output);
        let others = Unit::ALL.iter().copied().filter(|unit| !is_main(unit)).filter_map(|unit| {
            let per = match unit.scale() {
                PriceScale::PerMillion => "per million",
                PriceScale::Each => "each",
            };
            Some(format!("{} {} {per}", unit.price_key().replace('_', " "), price(unit)?))
        });
        let mut others: Vec<_> = others.collect();
        others.extend(row.bands.iter().map(|band| {
            format!("other prices for prompts above {} tokens", band.above_input_tokens)
        }));
        others.extend(row.tiers.keys().map(|tier| format!("other prices as {tier}")));
        let models = row.models.iter().map(|model| model.as_str());
        Self {
            provider: row.provider.clone(),
            models: models.collect::<Vec<_>>().join(", "),
            input: price(Unit::Input).unwrap_or_else(|| "–".to_owned()),
            output: price(Unit::Output).unwrap_or_else(|| "–".to_owned()),
            others,
            since: row.effective_from.map_or_else(String::new, |day| day.to_string()),
            is_custom: list == PriceSource::Custom,
        }
    }

    fn has(&self, words: &[String]) -> bool {
        let text = format!("{} {}", self.provider, self.models).to_lowercase();
        words.iter().all(|word| text.contains(word))
    }
}

#[derive(Template)]
#[template(path = "prices.html")]
struct PricesPage {
    shell: Shell,
    search: String,
    found: usize,
    prices: Vec<PriceItem>,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let search = Query::of(&http).get("q").unwrap_or_default().trim().to_owned();
    let words: Vec<_> = search.to_lowercase().split_whitespace().map(str::to_owned).collect();
    // Prices are by days in UTC.
    let prices = app.gateway.prices();
    let rows = prices.rows_on(visitor.clock.now.date());
    let mut prices: Vec<_> = rows.map(|(row, list)| PriceItem::of(row, list)).collect();
    prices.retain(|price| price.has(&words));
    let found = prices.len();
    prices.truncate(MOST);
    respond(&PricesPage {
        shell: Shell::new(&visitor, DashboardSection::Pricing, "Prices of providers"),
        search,
        found,
        prices,
    })
}
