//! The page for developers: the secret keys, the address of the interface, and its reference.

use actix_web::{HttpResponse, web};
use askama::Template;
use tollgate_store::{Page, merchants};

use crate::answer::{PageError, respond};
use crate::page::{DashboardSection, Shell};
use crate::session::SessionUser;
use tollgate_api::App;

/// The most keys of the page.
const MOST: u32 = 100;

struct SecretKeyItem {
    id: String,
    name: String,
    key_preview: String,
    created_at: String,
    /// Whether this session was opened with it.
    is_own: bool,
}

#[derive(Template)]
#[template(path = "developers.html")]
struct DevelopersPage {
    shell: Shell,
    keys: Vec<SecretKeyItem>,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
) -> Result<HttpResponse, PageError> {
    let merchant_id = visitor.merchant_id();
    let newest = Page { after: None, limit: MOST };
    let read = move |conn: &mut _| merchants::list_secret_keys(conn, merchant_id, &newest);
    let found = app.store.read(read).await?;
    let shell = Shell::new(&visitor, DashboardSection::Developers, "Developers");
    let keys = found.into_iter().map(|key| SecretKeyItem {
        id: key.secret_key_id.to_string(),
        name: key.name,
        is_own: key.key_preview == shell.key_preview,
        key_preview: key.key_preview,
        created_at: visitor.clock.day(key.created_at),
    });
    respond(&DevelopersPage { keys: keys.collect(), shell })
}
