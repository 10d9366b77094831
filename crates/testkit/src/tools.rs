//! System tools that some tests need.

/// The tool that was found; `None`, with a warning on standard error, if it cannot be used.
///
/// # Panics
/// If it cannot be used although `CI` is `true`.
pub fn require_tool<T>(what: &str, found: Option<T>) -> Option<T> {
    check(what, found, std::env::var("CI").is_ok_and(|ci| ci == "true"))
}

fn check<T>(what: &str, found: Option<T>, ci: bool) -> Option<T> {
    assert!(!ci || found.is_some(), "{what} CANNOT BE USED");
    if found.is_none() {
        eprintln!("\n!!! {what} CANNOT BE USED: ITS TESTS PROVE NOTHING HERE !!!\n");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "CANNOT BE USED")]
    fn a_missing_tool_fails_in_continuous_integration() {
        check::<()>("a tool", None, true);
    }

    #[test]
    fn a_missing_tool_does_not_fail_at_home() {
        assert_eq!(check::<()>("a tool", None, false), None);
        assert_eq!(check("a tool", Some(1), true), Some(1));
    }
}
