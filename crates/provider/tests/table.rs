//! The provider table, row by row: the paths where the operator's key may be used, and others.

use std::collections::BTreeSet;
use std::path::Path;

use awc::http::Method;
use tollgate_provider::provider_pages;
use tollgate_usage::Operation;

use crate::common::TABLE;

const METHODS: [Method; 6] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];

/// Paths of a provider, or its siblings, that open the account of the key's owner.
const ELSEWHERE: [&str; 74] = [
    "/files",
    "/files/f",
    "/files/f/content",
    "/uploads",
    "/uploads/u/parts",
    "/batches",
    "/batches/b",
    "/batches/b/cancel",
    "/batch/jobs",
    "/fine_tuning/jobs",
    "/fine-tunes",
    "/finetuning/finetuned-models",
    "/assistants",
    "/assistants/a",
    "/threads",
    "/threads/t/runs",
    "/vector_stores",
    "/vector_stores/v/search",
    "/responses/r",
    "/responses/r/cancel",
    "/responses/r/input_items",
    "/responses/compact",
    "/chat/completions/c",
    "/chat/completions/c/messages",
    "/chat/deferred-completion/d",
    "/conversations",
    "/conversations/c/items",
    "/organization/admin_api_keys",
    "/organization/usage/completions",
    "/organizations/me",
    "/containers",
    "/containers/c/files",
    "/evals",
    "/videos",
    "/videos/v",
    "/realtime/sessions",
    "/realtime/client_secrets",
    "/realtime",
    "/messages/batches",
    "/messages/batches/m/results",
    "/skills",
    "/agents",
    "/agents/completions",
    "/conversations/c",
    "/libraries",
    "/datasets",
    "/embed-jobs",
    "/connectors",
    "/models/m/copy",
    "/cachedContents",
    "/cachedContents/c",
    "/tunedModels",
    "/corpora",
    "/models/m:batchGenerateContent",
    "/models/m:predictLongRunning",
    "/models/m:asyncBatchEmbedContent",
    "/operations/o",
    "/projects/p/locations/l/batchPredictionJobs",
    "/model/m/async-invoke",
    "/async-invoke",
    "/guardrail/g/version/v/apply",
    "/deployments",
    "/deployments/d",
    "/deployments/d/batches",
    "/deployments/d/extensions/chat/completions",
    "/voices",
    "/voices/add",
    "/history",
    "/user",
    "/user/subscription",
    "/projects",
    "/projects/p/keys",
    "/credits",
    "/generation",
];

/// A path that matches a pattern.
fn instance(pattern: &str) -> String {
    let segments = pattern.split('/').map(|segment| match segment.split_once('}') {
        Some((_, ending)) if segment.starts_with('{') => format!("x{ending}"),
        _ => segment.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

/// The method of a row, as the client has it.
fn method(row: &Operation) -> Method {
    let method = row.method.as_str().parse();
    method.unwrap_or_else(|_| unreachable!("{} is a method", row.method))
}

#[test]
fn every_row_of_every_provider_takes_the_managed_key() {
    let table = &*TABLE;
    let mut rows = 0;
    for provider in table.iter() {
        let base = &provider.base_url;
        for mount in &provider.mounts {
            for row in mount.operations() {
                let base = base.as_str().trim_end_matches('/');
                let url = format!("{base}{}{}", mount.path, instance(row.path));
                let found = table.resolve(&method(row), &url);
                let found = found.unwrap_or_else(|error| unreachable!("{url}: {error}"));
                assert_eq!(found.provider.name, provider.name, "{url}");
                assert_eq!(found.format.dialect, mount.dialect, "{url}");
                assert_eq!(found.format.operation, Some(row), "{} {url}", row.method);
                assert_eq!(found.format.metered(), row.metered, "{} {url}", row.method);
                assert!(found.allows_managed_key(), "{} {url}", row.method);
                rows += 1;
            }
        }
    }
    assert!(rows > 150, "{rows} rows");
}

/// Checks every listed path, and the paths beside it, at every provider with every method: the key
/// may be used on the exact row, and nowhere else.
#[test]
fn every_other_path_of_every_provider_is_refused_with_the_managed_key() {
    let table = &*TABLE;
    let everywhere: BTreeSet<String> = table
        .iter()
        .flat_map(|provider| &provider.mounts)
        .flat_map(|mount| mount.operations().map(|row| instance(row.path)))
        .chain(ELSEWHERE.iter().map(|path| (*path).to_owned()))
        .collect();
    let (mut refused, mut allowed) = (0, 0);
    for provider in table.iter() {
        for mount in &provider.mounts {
            for path in &everywhere {
                for method in METHODS {
                    let base = provider.base_url.as_str().trim_end_matches('/');
                    let url = format!("{base}{}{path}", mount.path);
                    let Ok(found) = table.resolve(&method, &url) else { continue };
                    let listed = provider.mounts.iter().any(|mount| {
                        mount.operations().any(|row| {
                            let full = format!("{base}{}{}", mount.path, instance(row.path));
                            row.method == method.as_str()
                                && (full == url || is_instance(&full, &url))
                        })
                    });
                    assert_eq!(found.allows_managed_key(), listed, "{method} {url}");
                    *(if listed { &mut allowed } else { &mut refused }) += 1;
                }
            }
        }
    }
    assert!(refused > 10_000 && allowed > 200, "{refused} refused, {allowed} allowed");
}

/// Whether `url` differs from the instance `row` of a pattern only in the segments `x`.
fn is_instance(row: &str, url: &str) -> bool {
    let (row, url): (Vec<_>, Vec<_>) = (row.split('/').collect(), url.split('/').collect());
    let alike = |(row, url): (&&str, &&str)| match row.strip_prefix('x') {
        Some("") => !url.is_empty(),
        Some(ending) if ending.starts_with(':') => {
            url.strip_suffix(ending).is_some_and(|rest| !rest.is_empty() && !rest.contains(':'))
        }
        _ => row == url,
    };
    row.len() == url.len() && row.iter().zip(&url).all(alike)
}

#[test]
fn the_pages_of_the_providers_are_what_the_table_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/features/providers");
    let pages = provider_pages();
    for (name, text) in &pages {
        let written = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let hint = "make it again: cargo run -p tollgate-provider --example providers";
        assert!(written == *text, "{name}: {hint}");
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), pages.len());
}
