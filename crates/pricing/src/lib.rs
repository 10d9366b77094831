#![doc = include_str!("../README.md")]

mod amount;
mod base_cost;
mod catalog;
mod exact;
mod meter;
mod quote;
mod rate;
mod usage;

pub use amount::{Amount, ParseAmountError};
pub use base_cost::BaseCost;
pub use catalog::{Band, Catalog, CatalogError, ModelPattern, PriceBook, PriceRow, PriceSource};
pub use exact::Overflow;
pub use meter::{Fee, FeeLine, Meter, MeterError, Payer, RateType, Tier, TierUnit, TokenBasis};
pub use quote::{Quote, ServiceCharge, Terms};
pub use rate::{ParseRateError, Rate};
pub use usage::{PerUnit, Scale, Side, Unit, UnitPrices, Usage};
