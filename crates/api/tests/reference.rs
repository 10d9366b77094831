//! The page at `/docs`: it has everything that the document has, and no link on it is broken.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;

use serde_json::Value;
use tollgate_api::openapi;
use tollgate_testkit::TestRequest;

use crate::support::document::validator_at;
use crate::support::*;

async fn page(gateway: &Gateway<'_>) -> String {
    let page = TestRequest::new(gateway.address, "GET", "/docs").send().await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(
        page.header("content-security-policy").is_some_and(
            |it| it.contains("default-src 'none'; style-src 'self'; script-src 'self';")
        )
    );
    let with_slash = TestRequest::new(gateway.address, "GET", "/docs/").send().await;
    assert_eq!((with_slash.status, with_slash.header("location")), (307, Some("/docs")));
    let script = TestRequest::new(gateway.address, "GET", "/docs/reference.js").send().await;
    assert_eq!(script.header("content-type"), Some("text/javascript; charset=utf-8"));
    assert!(script.text().len() < 8_000);
    page.text().to_owned()
}

/// All values of an attribute.
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
                    let answer = TestRequest::new(gateway.address, "GET", link).send().await;
                    assert_eq!(answer.status, 200, "{link}");
                }
            }
        }
        assert!(values(&page, "src").iter().all(|link| link.starts_with('/')));
    });
}

/// The examples on the page are those of the document, so the page needs no test of its own.
#[test]
fn every_operation_has_an_example_that_fits_its_schemas() {
    // Their answers are not JSON, are very large, or are not available from a simulated provider.
    const WITHOUT: [&str; 22] = [
        "cohereChat",
        "cohereEmbed",
        "cohereRerank",
        "countInputTokens",
        "createCompletion",
        "createImage",
        "createImageEdit",
        "createModeration",
        "createSpeech",
        "createTranscription",
        "createTranslation",
        "connectLive",
        "connectLiveSession",
        "connectRealtime",
        "connectResponses",
        "getDocs",
        "getGoogleFileContent",
        "getMetrics",
        "getOpenApi",
        "getVideoContent",
        "rerank",
        // A provider signs it.
        "takeProviderEvent",
    ];
    let fits = |place: String, example: &Value| {
        let place = place.replace('{', "%7B").replace('}', "%7D");
        let issues: Vec<_> =
            validator_at(&place).iter_errors(example).map(|it| it.to_string()).collect();
        assert!(issues.is_empty(), "{place}: {example}: {issues:?}");
    };
    for (path, item) in openapi()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            let place = path.replace('~', "~0").replace('/', "~1");
            let place = format!("#/paths/{place}/{method}");
            let mut answers = 0;
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let json = &answer["content"]["application/json"];
                let Some(example) = json.get("example") else { continue };
                answers += 1;
                // Answers of providers have no example.
                if json.get("schema").is_some() {
                    let json = "content/application~1json/schema";
                    fits(format!("{place}/responses/{status}/{json}"), example);
                }
            }
            assert_eq!(answers, usize::from(!WITHOUT.contains(&id)), "{id}");
            if answers == 0 {
                continue;
            }
            // The body of an upload is a form.
            if let Some(json) = operation["requestBody"]["content"].get("application/json") {
                let schema = "requestBody/content/application~1json/schema";
                fits(format!("{place}/{schema}"), &json["example"]);
            }
            for (at, parameter) in
                operation["parameters"].as_array().into_iter().flatten().enumerate()
            {
                match parameter.get("example") {
                    Some(example) => fits(format!("{place}/parameters/{at}/schema"), example),
                    None => assert_ne!(parameter["required"], Value::Bool(true), "{id}"),
                }
            }
        }
    }
}

#[test]
fn the_page_shows_the_examples() {
    each_gateway(async |gateway| {
        let page = page(gateway).await;
        let page = page.replace("&#34;", "\"").replace("&#39;", "'").replace("&#38;", "&");
        let wallet = &openapi()["paths"]["/v1/wallets/{id}/credits"]["post"];
        let id = wallet["parameters"][0]["example"].as_str().unwrap();
        let body = &wallet["requestBody"]["content"]["application/json"]["example"];
        assert!(
            page.contains(&format!("curl -X POST \"$BASE/v1/wallets/{id}/credits\"")),
            "{page}"
        );
        assert!(page.contains(&format!("-d '{body}'")), "{page}");
        let answer = &wallet["responses"]["201"]["content"]["application/json"]["example"];
        assert!(page.contains(&serde_json::to_string_pretty(answer).unwrap()), "{page}");
    });
}
