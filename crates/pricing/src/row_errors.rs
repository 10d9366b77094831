//! The errors of a price list file that parses.

use std::collections::BTreeMap;
use std::fmt;

use time::Date;

use crate::catalog::CatalogFile;
use crate::hours::DailyHours;
use crate::model::ModelPattern;
use crate::price_row::{PROVISIONED, PriceRow, TierPrices};
use crate::usage::UnitPrices;

/// An error in a row of a price list file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceRowError {
    /// The index of the row, from 0.
    pub row: usize,
    /// The provider and first model of the row.
    pub subject: String,
    /// The description of the error.
    pub text: String,
}

impl fmt::Display for PriceRowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows[{}] ({}): {}", self.row, self.subject, self.text)
    }
}

impl CatalogFile {
    /// All errors of the rows; empty for a valid file.
    pub fn row_errors(&self) -> Vec<PriceRowError> {
        row_errors(&self.rows)
    }
}

fn row_errors(rows: &[PriceRow]) -> Vec<PriceRowError> {
    let mut found = Vec::new();
    type ListingKey<'a> = (&'a str, String, Option<Date>);
    let mut listed: BTreeMap<ListingKey<'_>, Vec<Option<DailyHours>>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let name = row.models.first().map_or("no model", ModelPattern::as_str);
        let subject = format!("{} {name}", row.provider);
        let mut error = |text: String| {
            found.push(PriceRowError { row: place, subject: subject.clone(), text });
        };
        if row.provider.is_empty() {
            error("provider: must not be empty".to_owned());
        }
        if row.models.is_empty() || row.models.iter().any(|model| model.as_str().is_empty()) {
            error("models: must name at least one, and none may be empty".to_owned());
        }
        match (row.prices.is_all_zero(), row.free) {
            (true, false) => error("has no price above 0; if that is meant, set free".to_owned()),
            (_, true) if !row.all_prices().all(UnitPrices::is_all_zero) => {
                error("free: has prices above 0".to_owned());
            }
            _ => (),
        }
        for model in row.models.iter().filter(|model| row.free && !model.is_exact()) {
            let model = model.as_str();
            error(format!("free: {model} is a pattern, and only ids can be free"));
        }
        if let (Some(from), Some(to)) = (row.effective_from, row.effective_to)
            && to < from
        {
            error(format!("effective_to: {to} is before effective_from {from}"));
        }
        let mut all_bands = vec![("bands".to_owned(), &row.bands)];
        for (tier, prices) in &row.tiers {
            // Usage paid for in advance costs nothing, whatever is listed here.
            let at_nothing = row.free || tier == PROVISIONED;
            match prices {
                TierPrices::Factor { factor } if factor.is_zero() && !at_nothing => {
                    error(format!("tiers.{tier}: a factor of 0 would make every token free"));
                }
                TierPrices::Factor { .. } => (),
                TierPrices::Prices { prices, bands } => {
                    if prices.is_all_zero() && !at_nothing {
                        error(format!("tiers.{tier}: has no price above 0"));
                    }
                    if tier != PROVISIONED {
                        all_bands.push((format!("tiers.{tier}.bands"), bands));
                    }
                }
            }
        }
        for (key, bands) in all_bands {
            let starts = bands.iter().map(|band| band.above_input_tokens);
            if !starts.clone().zip(starts.skip(1)).all(|(one, next)| one < next) {
                error(format!("{key}: above_input_tokens must ascend"));
            }
            for band in bands.iter().filter(|band| band.prices.is_all_zero() && !row.free) {
                let above = band.above_input_tokens;
                error(format!("{key}: the one above {above} has no price above 0"));
            }
        }
        for model in &row.models {
            let model = model.as_str();
            let id = (&*row.provider, model.to_ascii_lowercase(), row.effective_from);
            let others = listed.entry(id).or_default();
            if others.contains(&row.hours) {
                let same = if row.hours.is_some() { "day and hours" } else { "day" };
                error(format!("{model} is listed twice for the same {same}"));
            } else if let Some(hours) = row.hours {
                let other = others.iter().flatten().find(|other| other.overlaps(hours));
                if let Some(other) = other {
                    error(format!(
                        "hours: {hours} overlap {other}, for which {model} is listed, too"
                    ));
                }
            }
            others.push(row.hours);
        }
    }
    found
}
