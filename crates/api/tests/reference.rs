//! The page at `/docs`: it has all that the document has, and every link on it leads somewhere.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;

use serde_json::Value;
use tollgate_api::openapi;
use tollgate_testkit::Call;

use crate::support::document::validator_at;
use crate::support::*;

async fn page(gateway: &Gateway<'_>) -> String {
    let page = Call::new(gateway.address, "GET", "/docs").send().await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(
        page.header("content-security-policy").is_some_and(|it| it.contains("default-src 'none'"))
    );
    page.text().to_owned()
}

/// What stands in an attribute, everywhere.
fn values<'a>(page: &'a str, attribute: &str) -> BTreeSet<&'a str> {
    let begin = format!(" {attribute}=\"");
    page.split(&begin).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn the_reference_has_every_operation_and_schema_and_its_links_lead_somewhere() {
    each_gateway(async |gateway| {
        let page = page(gateway).await;
        let ids = values(&page, "id");
        for item in openapi()["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values() {
                assert!(ids.contains(operation["operationId"].as_str().unwrap()), "{operation}");
            }
        }
        for name in openapi()["components"]["schemas"].as_object().unwrap().keys() {
            assert!(ids.contains(format!("schema-{name}").as_str()), "{name}");
        }
        for kind in openapi()["webhooks"].as_object().unwrap().keys() {
            assert!(ids.contains(format!("message-{kind}").as_str()), "{kind}");
        }
        for link in values(&page, "href") {
            match link.strip_prefix('#') {
                Some(id) => assert!(ids.contains(id), "{link} leads nowhere"),
                None => {
                    assert!(link.starts_with('/'), "{link} is elsewhere");
                    let answer = Call::new(gateway.address, "GET", link).send().await;
                    assert_eq!(answer.status, 200, "{link}");
                }
            }
        }
        assert!(values(&page, "src").iter().all(|link| link.starts_with('/')));
    });
}

/// What is to be pasted is taken.
#[test]
fn the_body_of_every_example_fits_the_schema_of_its_operation() {
    each_gateway(async |gateway| {
        let page = page(gateway).await;
        let mut bodies = 0;
        for (path, item) in openapi()["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                let (_, shown) = page.split_once(&format!(" id=\"{id}\"")).unwrap();
                let example = shown.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap();
                let example =
                    example.replace("&#34;", "\"").replace("&#39;", "'").replace("&#38;", "&");
                let Some((_, body)) = example.split_once("-d '") else { continue };
                let body: Value = serde_json::from_str(body.strip_suffix('\'').unwrap()).unwrap();
                let place = path.replace('~', "~0").replace('/', "~1");
                let schema = format!(
                    "#/paths/{place}/{method}/requestBody/content/application~1json/schema"
                );
                let validator = validator_at(&schema.replace('{', "%7B").replace('}', "%7D"));
                let issues: Vec<_> =
                    validator.iter_errors(&body).map(|it| it.to_string()).collect();
                assert!(issues.is_empty(), "{id}: {body}: {issues:?}");
                bodies += 1;
            }
        }
        assert!(bodies > 20, "{bodies}");
    });
}
