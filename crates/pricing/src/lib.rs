#![doc = include_str!("../README.md")]

mod amount;
mod base_cost;
mod catalog;
mod exact;
mod hours;
pub mod import;
mod meter;
mod model;
mod price;
mod price_row;
mod quote;
mod rate;
mod usage;

pub use amount::{Amount, ParseAmountError};
pub use base_cost::BaseCost;
pub use catalog::{Catalog, CatalogError, CatalogFile, CostError, Listed, PriceBook, PriceSource};
pub use exact::Overflow;
pub use hours::{Hours, Moment};
pub use meter::{Fee, FeeLine, Meter, MeterError, Payer, RateType, Tier, TierUnit, TokenBasis};
pub use model::ModelPattern;
pub use price::{AppliedPrices, Part, Priced, Served};
pub use price_row::{Band, PriceRow, Selected, TierPrices};
pub use quote::{Quote, ServiceCharge, Terms};
pub use rate::{ParseRateError, Rate};
pub use usage::{PerUnit, Scale, Side, Unit, UnitPrices, Usage, UsageSource};
