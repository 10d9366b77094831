//! What calls cost here: the operator's providers and prices, asked without making a call.

use actix_web::http::Method;
use tollgate_domain::admission::CostBound;
use tollgate_domain::{PricedUsage, Timestamp, UsageSource};
use tollgate_pricing::{Listed, Overflow, PriceBook, Priced, Quote, Served, Terms, Usage};
use tollgate_provider::{CallBody, ProviderTable};

use crate::forward::outbound::{body_invalid, endpoint};
use crate::forward::price;
use crate::http::error::ApiError;
use crate::settings::Unpriced;

/// Where calls may go and what they cost at a time.
#[derive(Clone, Copy, Debug)]
pub struct Tariff<'a> {
    /// Where calls may go.
    pub providers: &'a ProviderTable,
    /// What is charged there.
    pub prices: &'a PriceBook,
    /// What to do without a price.
    pub unpriced: Unpriced,
    /// When: prices are those of its day and hour, in UTC.
    pub at: Timestamp,
}

impl<'a> Tariff<'a> {
    /// The price row of a model. An endpoint may have none by nature: then only a row for all of them
    /// is one.
    pub fn find(&self, provider: &str, model: Option<&str>) -> Option<Listed<'a>> {
        self.prices.find(provider, model.unwrap_or_default(), self.at)
    }

    /// What a call costs at its provider. A cost that no amount has room for leaves it unpriced.
    pub fn price(&self, served: &Served<'_>) -> Priced {
        priced(self.prices.price(served), served)
    }

    /// The same, by the row that was found for the call's own model.
    pub(crate) fn price_by(&self, served: &Served<'_>, own: Option<Listed<'_>>) -> Priced {
        priced(self.prices.price_by(served, own), served)
    }

    /// What a stated usage of a model costs at its provider, if either is named.
    pub fn price_stated(
        &self,
        served: Option<(&str, &str)>,
        usage: Usage,
    ) -> (PricedUsage, Priced) {
        let (provider, model) = served.unzip();
        let priced = self.price(&Served {
            provider: provider.unwrap_or_default(),
            models: model.as_slice(),
            tiers: &[],
            on: self.at.date(),
            time: Some(self.at.time()),
            usage: &usage,
            parts: &[],
        });
        let stated = PricedUsage {
            usage,
            usage_source: UsageSource::Reported,
            base: priced.base,
            price_source: priced.source,
        };
        (stated, priced)
    }

    /// The most that a body can cost when it is posted to a URL with the operator's key.
    ///
    /// # Errors
    /// As the call itself would be refused: issues are within `url` and `body`.
    pub fn bound(&self, url: &str, body: &[u8]) -> Result<Bound, ApiError> {
        let endpoint = endpoint(&Method::POST, url, true, self.providers)
            .map_err(|refused| refused.within("url"))?;
        let in_body = |refused: ApiError| refused.within("body");
        let body = CallBody::inspect(body, &endpoint, true)
            .map_err(|issues| in_body(body_invalid(issues)))?;
        let listed = self.find(&endpoint.provider.name, body.model.as_deref());
        match endpoint.metered() {
            true => price::bound(&endpoint, &body, true, listed, self)
                .map(|bound| Bound(Some(bound)))
                .map_err(in_body),
            false => Ok(Bound(None)),
        }
    }
}

fn priced(priced: Result<Priced, Overflow>, served: &Served<'_>) -> Priced {
    priced.unwrap_or_else(|Overflow| {
        log::error!("a call at {} costs more than an amount can say", served.provider);
        Priced::default()
    })
}

/// The most that a call can cost at its provider; none for one that is free.
#[derive(Clone, Debug)]
pub struct Bound(Option<CostBound>);

impl Bound {
    /// The most that it can cost in all: what it would hold.
    ///
    /// # Errors
    /// It is more than any call may hold.
    pub fn hold(&self, terms: &Terms<'_>) -> Result<Quote, ApiError> {
        match &self.0 {
            Some(bound) => {
                bound.hold(terms).map_err(|refused| ApiError::from(refused).within("body"))
            }
            None => Ok(Quote::free(terms)),
        }
    }

    /// What it rests on.
    pub fn cost(&self) -> Option<&CostBound> {
        self.0.as_ref()
    }
}
