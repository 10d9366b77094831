//! The page of pricing: plans with what they earn, and meters, which are the markups.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{MerchantMeter, Payer, SubscriptionConfigId};
use tollgate_pricing::{Amount, Rate, RateType};
use tollgate_store::subscription_configs::{self, ConfigDetails};
use tollgate_store::{Conn, Page, StoreError, meters};

use crate::answer::{PageError, respond};
use crate::meters::MeterItem;
use crate::page::{DashboardSection, Fact, FormChoice, Shell};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use tollgate_api::operations::plan_not_found as not_found;
use tollgate_api::{ApiError, App, Query};

/// The most plans and meters of the page.
const MOST: u32 = 200;

/// The earnings of a cycle of a plan if all of its included credit is used, by the lowest markup of its meters.
struct PlanEconomics {
    /// The cost of the providers and of the operator then.
    cost: Amount,
    /// The price of the plan, less that cost.
    margin: Amount,
    /// The markup, in percent.
    markup: String,
}

impl PlanEconomics {
    /// `None` where it depends on more than the markup: a fee per unit, or a base cost that the merchant pays.
    fn of(plan: &ConfigDetails, all: &[MerchantMeter], service_charge: Rate) -> Option<Self> {
        let terms = plan.config.terms();
        let drawing = all.iter().filter(|meter| terms.allows_draw(meter.meter_id));
        let mut lowest: Option<(Amount, String)> = None;
        for meter in drawing {
            let model = &meter.model;
            if model.meter.rate_type != RateType::Percentage
                || model.base_cost_payer != Payer::Wallet
                || model.service_charge_payer != Payer::Wallet
            {
                return None;
            }
            for tier in model.meter.tiers() {
                // The fee of a base cost of 100 USD.
                let fee = tier.rate.of(Amount::USD).ok()?;
                if lowest.as_ref().is_none_or(|(least, _)| fee < *least) {
                    lowest = Some((fee, tier.rate.to_string()));
                }
            }
        }
        let (fee, markup) = lowest.unwrap_or_else(|| (Amount::ZERO, "0".to_owned()));
        let hundred = Amount::from_cents(10_000).ok()?;
        let charge = service_charge.of(fee).ok()?;
        let whole = hundred.checked_add(fee).and_then(|sum| sum.checked_add(charge)).ok()?;
        let credit = terms.included_credit;
        // Of all that the credit pays, the fee stays with the merchant.
        let earned = credit.in_proportion(fee, whole).ok()??;
        let cost = credit.checked_sub(earned).ok()?;
        let margin = plan.config.period_amount.checked_sub(cost).ok()?;
        Some(Self { cost, margin, markup })
    }
}

struct PlanItem {
    id: String,
    name: String,
    price: String,
    credit: String,
    cost: Figure,
    margin: Figure,
    is_loss: bool,
}

impl PlanItem {
    fn of(plan: &ConfigDetails, economics: Option<&PlanEconomics>) -> Self {
        let config = &plan.config;
        let figure = |amount: Option<Amount>| match amount {
            Some(amount) => Figure::in_column(amount.units().into()),
            None => Figure { shown: "depends on use".to_owned(), exact: String::new() },
        };
        Self {
            id: config.subscription_config_id.to_string(),
            name: config.name.clone(),
            price: format!(
                "{} a {}",
                text::money(config.period_amount),
                text::word(&config.billing_interval)
            ),
            credit: text::money(config.terms().included_credit),
            cost: figure(economics.map(|one| one.cost)),
            margin: figure(economics.map(|one| one.margin)),
            is_loss: economics.is_some_and(|one| one.margin.is_negative()),
        }
    }
}

#[derive(Template)]
#[template(path = "pricing.html")]
struct PricingPage {
    shell: Shell,
    plans: Vec<PlanItem>,
    meters: Vec<MeterItem>,
    choices: Vec<FormChoice>,
    calculator: Calculator,
}

/// A markup and the margin that it leaves, if the customer pays the provider's cost and the service charge.
#[derive(Default)]
struct Calculator {
    markup: String,
    margin: String,
    problem: &'static str,
}

impl Calculator {
    /// The one that the query has, and the other computed from it.
    fn of(query: &Query, service_charge: Rate) -> Self {
        let text = |name| query.get(name).map(str::trim).unwrap_or_default().to_owned();
        let (markup, margin) = (text("markup"), text("margin"));
        let invalid = |problem| Self { problem, markup: markup.clone(), margin: margin.clone() };
        // In millionths: a part of the revenue, or of the provider's cost.
        let percent = |text: &str| {
            let amount: Amount = text.trim_end_matches('%').trim().parse().ok()?;
            Some(amount.units() / 1_000_000)
                .filter(|millionths| (0..=100_000_000).contains(millionths))
        };
        let charge = service_charge.of(Amount::USD).unwrap_or_default().units() / 10_000;
        let shown =
            |millionths: i64| format!("{}.{:02}", millionths / 10_000, millionths / 100 % 100);
        match (markup.as_str(), margin.as_str()) {
            ("", "") => Self::default(),
            (asked, "") => match percent(asked) {
                None => invalid(
                    "The markup must be a number from 0 to 10,000 with at most 10 decimals.",
                ),
                Some(fee) => {
                    let revenue = 1_000_000 + fee + fee * charge / 1_000_000;
                    Self { margin: shown(fee * 1_000_000 / revenue), ..invalid("") }
                }
            },
            (_, asked) => match percent(asked)
                .map(|part| (part, 1_000_000 - part - part * charge / 1_000_000))
            {
                Some((part, cost)) if cost > 0 => {
                    Self { markup: shown(part * 1_000_000 / cost), ..invalid("") }
                }
                _ => invalid(
                    "The margin must be a number from 0 to less than 100 with at most 10 decimals.",
                ),
            },
        }
    }
}

fn choices(all: &[MerchantMeter]) -> Vec<FormChoice> {
    let choices = all
        .iter()
        .map(|meter| FormChoice { id: meter.meter_id.to_string(), name: meter.name.clone() });
    choices.collect()
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn| {
        let newest = Page { after: None, limit: MOST };
        let plans = subscription_configs::list(conn, merchant_id, &newest)?;
        let newest = Page { after: None, limit: MOST };
        Ok::<_, StoreError>((plans, meters::list(conn, merchant_id, &newest)?))
    };
    let (plans, meters) = app.store.read(read).await?;
    let service_charge = app.store.service_charge_rate();
    let plans = plans.iter().map(|plan| {
        let economics = PlanEconomics::of(plan, &meters, service_charge);
        PlanItem::of(plan, economics.as_ref())
    });
    respond(&PricingPage {
        shell: Shell::new(&visitor, DashboardSection::Pricing, "Pricing"),
        plans: plans.collect(),
        choices: choices(&meters),
        calculator: Calculator::of(&Query::of(&http), service_charge),
        meters: meters.iter().map(|meter| MeterItem::of(meter, service_charge)).collect(),
    })
}

#[derive(Template)]
#[template(path = "plan.html")]
struct PlanPage {
    shell: Shell,
    id: String,
    name: String,
    credit: String,
    rollover: String,
    bundle_rollover: String,
    economics: Vec<String>,
    is_loss: bool,
    bundles: Vec<BundleItem>,
    facts: Vec<Fact>,
}

struct BundleItem {
    id: String,
    name: String,
    cost: String,
    credit: String,
}

pub(crate) async fn show_plan(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
) -> Result<HttpResponse, PageError> {
    let id: SubscriptionConfigId = id.parse().map_err(|_| not_found())?;
    let merchant_id = visitor.merchant_id();
    let read = move |conn: &mut Conn| {
        let plan = subscription_configs::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let newest = Page { after: None, limit: MOST };
        Ok::<_, ApiError>((plan, meters::list(conn, merchant_id, &newest)?))
    };
    let (plan, meters) = app.store.read(read).await?;
    let economics = PlanEconomics::of(&plan, &meters, app.store.service_charge_rate());
    let (config, terms) = (&plan.config, plan.config.terms());
    let linked = meters.iter().filter(|meter| terms.meter_ids.contains(&meter.meter_id));
    let linked: Vec<_> = linked.map(|meter| meter.name.clone()).collect();
    let facts = vec![
        Fact::new("Id (a subscription configuration in the API)", id.to_string()),
        Fact::new(
            "Price",
            format!(
                "{} a {}",
                text::money(config.period_amount),
                text::word(&config.billing_interval)
            ),
        ),
        Fact::new(
            "Its credit pays calls of",
            if linked.is_empty() { "every meter".to_owned() } else { linked.join(", ") },
        ),
        Fact::new("Made", visitor.clock.time(config.created_at)),
    ];
    let is_loss = economics.as_ref().is_some_and(|one| one.margin.is_negative());
    let economics = match economics {
        None => vec![
            "What full use costs depends on the calls: a meter of the plan has a fee per unit, or you pay the \
             provider's cost."
                .to_owned(),
        ],
        Some(one) => vec![
            format!(
                "If all {} of credit are used at the lowest markup, {}%, the calls cost you {}.",
                text::money(terms.included_credit),
                one.markup,
                Figure::of(one.cost.units().into()).shown
            ),
            match is_loss {
                true => format!(
                    "The plan then loses {} in each cycle.",
                    Figure::of((-one.margin).units().into()).shown
                ),
                false => format!(
                    "The plan then earns {} in each cycle.",
                    Figure::of(one.margin.units().into()).shown
                ),
            },
        ],
    };
    let bundles = plan.credit_bundles.iter().map(|bundle| BundleItem {
        id: bundle.credit_bundle_id.to_string(),
        name: bundle.name.clone(),
        cost: text::money(bundle.cost),
        credit: text::money(bundle.credit_amount),
    });
    respond(&PlanPage {
        shell: Shell::new(&visitor, DashboardSection::Pricing, config.name.clone()),
        id: id.to_string(),
        name: config.name.clone(),
        credit: text::field(terms.included_credit),
        rollover: text::word(&terms.rollover_type),
        bundle_rollover: text::word(&terms.bundle_rollover_type),
        economics,
        is_loss,
        bundles: bundles.collect(),
        facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computed(name: &str, text: &str, charge: &str) -> (String, String) {
        let query = Query::new(vec![(name.to_owned(), text.to_owned())]);
        let Calculator { markup, margin, .. } = Calculator::of(&query, charge.parse().unwrap());
        (markup, margin)
    }

    #[test]
    fn a_markup_and_the_margin_that_it_leaves_are_computed_from_each_other() {
        let pair = |markup: &str, margin: &str| (markup.to_owned(), margin.to_owned());
        assert_eq!(computed("markup", "25", "0"), pair("25", "20.00"));
        assert_eq!(computed("margin", "20%", "0"), pair("25.00", "20%"));
        // Of 100 USD: a fee of 25, and a tenth of it for the operator.
        assert_eq!(computed("markup", "25", "0.1"), pair("25", "19.60"));
        assert_eq!(computed("margin", "19.6078", "0.1").0, "24.99");
        for text in ["100", "-1", "x", "10001"] {
            assert_eq!(computed("margin", text, "0").0, "", "{text}");
        }
        assert_eq!(computed("markup", "x", "0").1, "");
    }
}
