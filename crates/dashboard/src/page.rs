//! The parts that all pages share: the frame, the style, facts, choices and lists.

use actix_web::{HttpRequest, HttpResponse};
use tollgate_domain::{Connection, ConnectionId, MerchantId, SpendKey, SpendKeyId};
use tollgate_store::{Conn, Page, StoreError, connections, meters};

use crate::answer::PageError;
use crate::session::SessionUser;
use tollgate_api::{ApiError, ErrorCode, Query};

/// The section of the dashboard that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DashboardSection {
    Home,
    Usage,
    Requests,
    Customers,
    Keys,
    Budgets,
    Pricing,
    Webhooks,
    Developers,
    Settings,
}

impl DashboardSection {
    const ALL: [Self; 10] = [
        Self::Home,
        Self::Usage,
        Self::Requests,
        Self::Customers,
        Self::Keys,
        Self::Budgets,
        Self::Pricing,
        Self::Webhooks,
        Self::Developers,
        Self::Settings,
    ];

    /// The section of a form's path.
    pub(crate) fn of_path(path: &str) -> Self {
        let has = |place: &Self| {
            place.href_and_label().0 != "/dashboard" && path.starts_with(place.href_and_label().0)
        };
        Self::ALL.into_iter().find(has).unwrap_or(Self::Home)
    }

    const fn href_and_label(self) -> (&'static str, &'static str) {
        match self {
            Self::Home => ("/dashboard", "Home"),
            Self::Usage => ("/dashboard/usage", "Usage"),
            Self::Requests => ("/dashboard/requests", "Requests"),
            Self::Customers => ("/dashboard/customers", "Customers"),
            Self::Keys => ("/dashboard/spend-keys", "Keys"),
            Self::Budgets => ("/dashboard/budgets", "Budgets"),
            Self::Pricing => ("/dashboard/pricing", "Pricing"),
            Self::Webhooks => ("/dashboard/webhooks", "Webhooks"),
            Self::Developers => ("/dashboard/developers", "Developers"),
            Self::Settings => ("/dashboard/settings", "Settings"),
        }
    }
}

/// The frame around a page.
pub(crate) struct Shell {
    pub(crate) title: String,
    pub(crate) merchant: String,
    pub(crate) key_preview: String,
    /// The token that each form of this session carries.
    pub(crate) form_token: String,
    /// The base URL of calls, for examples to paste.
    pub(crate) base: String,
    /// The name of the zone of days and times.
    pub(crate) zone: String,
    /// The colours: `system`, `light` or `dark`.
    pub(crate) colors: &'static str,
    place: DashboardSection,
}

pub(crate) struct NavLink {
    pub(crate) href: &'static str,
    pub(crate) label: &'static str,
    pub(crate) is_here: bool,
}

impl Shell {
    pub(crate) fn new(
        visitor: &SessionUser,
        place: DashboardSection,
        title: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            merchant: visitor.session.merchant.name.clone(),
            key_preview: visitor.session.key_preview.clone(),
            form_token: visitor.form_token.clone(),
            base: visitor.origin.clone(),
            zone: visitor.clock.zone_name().to_owned(),
            colors: visitor.display.colors,
            place,
        }
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = NavLink> {
        DashboardSection::ALL.into_iter().map(|place| {
            let (href, label) = place.href_and_label();
            NavLink { href, label, is_here: place == self.place }
        })
    }
}

pub(crate) async fn not_found() -> Result<HttpResponse, PageError> {
    Err(ApiError::new(ErrorCode::RouteNotFound, "There is no such page.").into())
}

pub(crate) async fn method_not_allowed() -> Result<HttpResponse, PageError> {
    let message = "This page is not asked for in this way.";
    Err(ApiError::new(ErrorCode::MethodNotAllowed, message).into())
}

/// The rows of a list.
const ROWS: u32 = 25;

/// The page of a list. The query says where it begins; an invalid id begins at the newest.
pub(crate) fn page_of<Id: std::str::FromStr>(http: &HttpRequest) -> Page<Id> {
    let after = Query::of(http).get("after").and_then(|id| id.parse().ok());
    Page { after, limit: ROWS }
}

/// The links to the other pages of a list.
pub(crate) struct Pager {
    /// Whether newer rows were left out.
    pub(crate) has_newer: bool,
    /// The link to the first page.
    pub(crate) newest: String,
    /// The link to the next page; empty on the last one.
    pub(crate) older: String,
}

impl Pager {
    /// Cuts `items` to a page. They are one more than its rows when there are more.
    pub(crate) fn cut<T, Id>(
        http: &HttpRequest,
        page: &Page<Id>,
        items: &mut Vec<T>,
        id: impl Fn(&T) -> String,
    ) -> Self {
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let has_older = items.len() > limit;
        items.truncate(limit);
        Self::new(http, page, items.last().filter(|_| has_older).map(id))
    }

    /// Links to the newest page, and to the one after the id `next`.
    pub(crate) fn new<Id>(http: &HttpRequest, page: &Page<Id>, next: Option<String>) -> Self {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let kept = url::form_urlencoded::parse(http.query_string().as_bytes());
        query.extend_pairs(kept.filter(|(name, value)| name != "after" && !value.is_empty()));
        let filters = query.finish();
        let link = |more: String| {
            let query = [filters.clone(), more];
            let query: Vec<_> = query.into_iter().filter(|part| !part.is_empty()).collect();
            format!("{}?{}", http.path(), query.join("&"))
        };
        Self {
            has_newer: page.after.is_some(),
            newest: link(String::new()),
            older: next.map_or_else(String::new, |next| link(format!("after={next}"))),
        }
    }
}

/// A fact about a resource: its name, its value, and a link.
pub(crate) struct Fact {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) href: String,
}

impl Fact {
    pub(crate) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), href: String::new() }
    }

    pub(crate) fn leading(name: &'static str, value: impl Into<String>, href: String) -> Self {
        Self { name, value: value.into(), href }
    }

    /// A spend key, which may be deleted.
    pub(crate) fn of_spend_key(id: SpendKeyId, key: Option<SpendKey>) -> Self {
        let href = key.as_ref().map(|_| format!("/dashboard/spend-keys/{id}"));
        let name = key.map_or_else(|| format!("{id} (deleted)"), |key| key.name);
        Self::leading("Spend key", name, href.unwrap_or_default())
    }
}

/// A link of a choice, and whether it is the chosen one.
pub(crate) struct ChoiceLink {
    pub(crate) href: String,
    pub(crate) label: &'static str,
    pub(crate) is_chosen: bool,
}

/// The name of a customer for people.
pub(crate) fn name_of(connection: &Connection) -> String {
    let name = connection.name.clone().or_else(|| connection.reference_id.clone());
    name.unwrap_or_else(|| connection.connection_id.to_string())
}

/// A choice of a form.
pub(crate) struct FormChoice {
    pub(crate) id: String,
    pub(crate) name: String,
}

/// The most choices of a form.
const CHOICES: u32 = 100;

/// The newest connections by name, and the chosen one. Without the chosen one, a browser would send another choice in
/// its place.
pub(crate) fn connection_choices(
    conn: &mut Conn,
    merchant_id: MerchantId,
    chosen: Option<ConnectionId>,
) -> Result<Vec<FormChoice>, StoreError> {
    let newest = Page { after: None, limit: CHOICES };
    let mut found = connections::list(conn, merchant_id, &newest)?;
    if let Some(id) = chosen.filter(|id| found.iter().all(|one| one.connection_id != *id)) {
        found.extend(connections::find(conn, merchant_id, id)?);
    }
    let choice =
        |one: &Connection| FormChoice { id: one.connection_id.to_string(), name: name_of(one) };
    Ok(found.iter().map(choice).collect())
}

/// The newest meters, by name.
pub(crate) fn meter_choices(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<FormChoice>, StoreError> {
    let newest = Page { after: None, limit: CHOICES };
    let found = meters::list(conn, merchant_id, &newest)?;
    Ok(found
        .into_iter()
        .map(|one| FormChoice { id: one.meter_id.to_string(), name: one.name })
        .collect())
}
