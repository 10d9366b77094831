//! URLs from strangers: whatever resolves is written back letter by letter, leads to a host of the
//! table, and gets the operator's key only where a row lists it.
//!
//! Input: the method, then the URL.
#![no_main]

use awc::http::Method;
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::TABLE;

/// Host and port as they stand in the text, read without any parser.
fn authority(u: &str) -> &str {
    let (_, rest) = u.split_once("://").unwrap_or_default();
    rest.split(['/', '?', '#', '\\', '@']).next().unwrap_or_default()
}

fuzz_target!(|input: &[u8]| {
    let [method, url @ ..] = input else { return };
    let Ok(u) = std::str::from_utf8(url) else { return };
    let methods = [Method::POST, Method::GET, Method::DELETE, Method::PUT];
    let method = &methods[usize::from(*method) % methods.len()];
    let Ok(endpoint) = TABLE.resolve(method, u) else { return };
    assert_eq!(endpoint.url.as_str(), u, "written back as it came");
    assert!(u.is_ascii() && !u.contains(['\\', '#', ' ']));

    // It leads to where the table says, whoever reads it.
    let base = &endpoint.provider.base_url;
    assert_eq!(authority(base.as_str()), authority(u), "the origin of the provider");
    assert!(u.starts_with("https://"));
    let path = endpoint.url.path();
    let rest = path.strip_prefix(base.path().trim_end_matches('/'));
    let below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    assert!(below, "below the prefix of the provider's");
    let lower = path.to_ascii_lowercase();
    for trap in ["//", "/../", "/./", "%2f", "%5c", "%2e", "%25", "%00", "\\"] {
        assert!(!lower.contains(trap), "a path that can be read in two ways");
    }
    assert!(!lower.ends_with("/..") && !lower.ends_with("/."));

    // The operator's key goes to the rows of the table, by their method.
    if endpoint.allows_managed_key() {
        let row = endpoint.format.operation.expect("a row");
        assert_eq!(row.method.as_str(), method.as_str());
        let segments = |path: &str| path.split('/').skip(1).count();
        let rest = path.len().checked_sub(row.path.len());
        assert!(rest.is_some() || row.path.contains('{'), "as long as its row");
        assert!(segments(path) >= segments(row.path));
        assert_eq!(row.metered, endpoint.format.metered());
    }

    // What is recorded is a part of it, and resolves as well.
    let recorded = endpoint.recorded_url();
    assert!(recorded.len() <= u.len());
    let again = TABLE.resolve(method, &recorded).expect("the record can be called");
    assert_eq!(again.url.path(), path);
    assert_eq!(again.provider.name, endpoint.provider.name);
    for secret in ["key", "api_key", "access_token", "X-Amz-Signature"] {
        assert!(again.url.query_pairs().all(|(name, _)| name != secret), "a secret is recorded");
    }
});
