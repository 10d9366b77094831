//! The page of settings: the merchant's time zone, and the look of the pages in this browser.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{Issue, TimeZone};
use tollgate_store::merchants;

use crate::answer::{PageError, respond};
use crate::form::SessionForm;
use crate::page::{DashboardSection, Shell};
use crate::session::{Display, SessionUser};
use tollgate_api::{ApiError, App};

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    zones: Vec<String>,
    now: String,
    display: Display,
}

pub(crate) async fn show(visitor: SessionUser) -> Result<HttpResponse, PageError> {
    respond(&SettingsPage {
        shell: Shell::new(&visitor, DashboardSection::Settings, "Settings"),
        zones: TimeZone::names(),
        now: visitor.clock.time(visitor.clock.now),
        display: visitor.display,
    })
}

pub(crate) async fn save(
    app: web::Data<App>,
    http: HttpRequest,
    form: SessionForm,
) -> Result<HttpResponse, PageError> {
    let Some(zone) = TimeZone::named(form.fields.text("time_zone")) else {
        let issue = Issue::at(["time_zone"], "must be an IANA name such as Europe/Berlin");
        return form.refuse(&app, ApiError::invalid(vec![issue])).await;
    };
    let merchant_id = form.visitor.merchant_id();
    let set = move |conn: &mut _| merchants::set_time_zone(conn, merchant_id, &zone);
    app.store.write_outside_calls(set).await?;
    let display = Display::of(form.fields.text("colors"), form.fields.text("times"));
    let mut answer = form.accept(&app, "/dashboard/settings").await?;
    display.keep(&http, &mut answer)?;
    Ok(answer)
}
