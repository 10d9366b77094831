#![doc = include_str!("../README.md")]

mod amount;
mod base_cost;
#[cfg(feature = "catalog")]
mod catalog;
mod decimal;
mod error;
mod exact;
#[cfg(feature = "catalog")]
mod hours;
mod meter;
#[cfg(feature = "catalog")]
mod model;
#[cfg(feature = "catalog")]
mod price;
#[cfg(feature = "catalog")]
mod price_row;
mod rate;
#[cfg(feature = "catalog")]
mod row_errors;
mod usage;

pub use amount::{Amount, ParseAmountError};
pub use base_cost::BaseCost;
pub use error::Error;
pub use exact::Overflow;
pub use meter::{
    Fee, FeeLine, Meter, MeterError, RateType, Tier, TierErrors, TierUnit, TokenBasis,
};
pub use rate::{ParseRateError, Rate};
pub use usage::{
    CostSide, PerModelUsage, PerUnit, PriceScale, Unit, UnitPrices, Usage, UsageSource,
};

#[cfg(feature = "catalog")]
pub use catalog::{Catalog, CatalogFile, PriceBook, PriceMatch, PriceSource};
#[cfg(feature = "catalog")]
pub use error::CatalogError;
#[cfg(feature = "catalog")]
pub use hours::{DailyHours, Moment};
#[cfg(feature = "catalog")]
pub use model::ModelPattern;
#[cfg(feature = "catalog")]
pub use price::{AppliedPrices, CostBreakdown, ServedCall};
#[cfg(feature = "catalog")]
pub use price_row::{EffectivePrices, PriceBand, PriceRow, TierPrices};
#[cfg(feature = "catalog")]
pub use row_errors::PriceRowError;
