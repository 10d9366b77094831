//! The parts that all HTML pages of the service share: headers, style sheet and icon.

use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use actix_web::web::{ServiceConfig, get};
use sha2::{Digest, Sha256};

/// Sent with every page. Only the service's own style sheet and icon are loaded, no script runs, a page
/// cannot be framed, and forms go to this origin only. The referrer stays within the site; with none at all,
/// browsers would not send the origin of a form.
pub const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The policy of the interface's own page, which has one script: search and copy buttons.
pub(crate) const REFERENCE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
     img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("../templates/style.css");
const SCRIPT: &str = include_str!("../templates/reference.js");
const ICON: &str = include_str!("../templates/icon.svg");

/// The name of the style sheet. It changes with the sheet, so browsers may keep it.
pub fn style_name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| versioned("style.css", STYLE));
    &NAME
}

/// The name of an asset with a part that changes with its text.
pub fn versioned(name: &str, text: &str) -> String {
    let hash = Sha256::digest(text);
    let hash: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}?{hash}")
}

/// Mounts the style sheet, the icon and the script of the interface's own page. They are no operations.
pub(crate) fn assets(config: &mut ServiceConfig) {
    config
        .route("/docs/style.css", get().to(style))
        .route("/docs/icon.svg", get().to(icon))
        .route("/docs/reference.js", get().to(script));
}

async fn script() -> HttpResponse {
    asset("text/javascript; charset=utf-8", SCRIPT)
}

/// The style sheet.
pub async fn style() -> HttpResponse {
    asset("text/css; charset=utf-8", STYLE)
}

/// The icon.
pub async fn icon() -> HttpResponse {
    asset("image/svg+xml", ICON)
}

/// An asset that browsers keep for a day.
pub fn asset(content_type: &'static str, text: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, content_type))
        .insert_header((CACHE_CONTROL, "public, max-age=86400"))
        .body(text)
}
