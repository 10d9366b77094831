//! A user of the dashboard, with the relevant features of a browser: a cookie, and forms that send their
//! origin.

use tollgate_testkit::{TestRequest, TestResponse};

use super::Gateway;

/// The origin of a gateway's pages, from the `Host` that calls of tests have.
pub const ORIGIN: &str = "http://test";

/// A session in a browser.
pub struct Browser<'a> {
    gateway: &'a Gateway<'a>,
    /// The whole `set-cookie` header.
    pub set_cookie: String,
    pub cookie: String,
    pub form_token: String,
}

/// The token of the forms of a page.
pub fn form_token(page: &str) -> String {
    let (_, after) = page.split_once("name=\"form_token\" value=\"").unwrap();
    after.split('"').next().unwrap().to_owned()
}

/// A call with the fields of a form.
pub fn form(call: TestRequest, fields: &[(&str, &str)]) -> TestRequest {
    let mut text = url::form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(fields);
    call.bytes("application/x-www-form-urlencoded", text.finish().as_bytes())
}

/// A request below `/dashboard`.
pub fn page(gateway: &Gateway<'_>, method: &str, path: &str) -> TestRequest {
    TestRequest::new(gateway.address, method, &format!("/dashboard{path}"))
}

/// Sends the form to sign in, with the dashboard's origin.
pub async fn try_sign_in(gateway: &Gateway<'_>, key: &str) -> TestResponse {
    let call = page(gateway, "POST", "/sign-in").header("origin", ORIGIN);
    form(call, &[("key", key)]).send().await
}

impl<'a> Browser<'a> {
    pub async fn sign_in(gateway: &'a Gateway<'a>, key: &str) -> Self {
        let answer = try_sign_in(gateway, key).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        assert_eq!(answer.header("location"), Some("/dashboard"));
        let set_cookie = answer.header("set-cookie").unwrap().to_owned();
        let cookie = set_cookie.split(';').next().unwrap().to_owned();
        let mut browser = Self { gateway, set_cookie, cookie, form_token: String::new() };
        browser.form_token = form_token(&browser.show("").await);
        browser
    }

    /// A request of this session, below `/dashboard`.
    pub fn call(&self, method: &str, path: &str) -> TestRequest {
        page(self.gateway, method, path).header("cookie", &self.cookie)
    }

    pub async fn get(&self, path: &str) -> TestResponse {
        self.call("GET", path).send().await
    }

    /// The text of a page, which must exist.
    pub async fn show(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.text().to_owned()
    }

    /// Sends a form with the token of a page that is loaded now.
    pub async fn send(&self, path: &str, fields: &[(&str, &str)]) -> TestResponse {
        let token = form_token(&self.show("/pricing").await);
        self.send_with(&token, path, fields).await
    }

    /// Follows the redirect of a form, with the cookie that it sets.
    pub async fn follow(&self, answer: &TestResponse) -> TestResponse {
        assert_eq!(answer.status, 303, "{}", answer.text());
        let path = answer.header("location").unwrap().strip_prefix("/dashboard").unwrap();
        let set = answer.header("set-cookie").unwrap_or_default();
        let cookie = format!("{}; {}", self.cookie, set.split(';').next().unwrap_or_default());
        page(self.gateway, "GET", path).header("cookie", &cookie).send().await
    }

    /// Sends a form with this token.
    pub async fn send_with(
        &self,
        token: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> TestResponse {
        let fields = [&[("form_token", token)], fields].concat();
        form(self.call("POST", path).header("origin", ORIGIN), &fields).send().await
    }
}

/// Every page and form, with its method, read from the source of the routes.
pub fn pages() -> Vec<(&'static str, &'static str)> {
    let source = include_str!("../../../dashboard/src/lib.rs").split_once("fn routes(").unwrap().1;
    let mut found = Vec::new();
    for mounted in source.split("route(\"").skip(1) {
        let (path, handlers) = mounted.split_once('"').unwrap();
        for (method, handler) in [("GET", "get().to("), ("POST", "post().to(")] {
            if handlers.contains(handler) {
                found.push((method, path));
            }
        }
    }
    assert!(found.len() >= 26, "{found:?}");
    found
}
