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
pub use catalog::{
    Catalog, CatalogError, CatalogFile, CostError, PriceBook, PriceMatch, PriceSource,
};
pub use exact::Overflow;
pub use hours::{DailyHours, Moment};
pub use meter::{Fee, FeeLine, Meter, MeterError, Payer, RateType, Tier, TierUnit, TokenBasis};
pub use model::ModelPattern;
pub use price::{AppliedPrices, CostBreakdown, PerModelUsage, ServedCall};
pub use price_row::{EffectivePrices, PriceBand, PriceRow, TierPrices};
pub use quote::{PricingTerms, Quote, ServiceCharge};
pub use rate::{ParseRateError, Rate};
pub use usage::{CostSide, PerUnit, PriceScale, Unit, UnitPrices, Usage, UsageSource};
