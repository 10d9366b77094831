//! The table of errors agrees with its documentation.

use tollgate_api::ErrorCode;

#[test]
fn every_code_is_documented_with_its_status_and_no_other_is() {
    let documented: Vec<_> = include_str!("../../../docs/ERRORS.md")
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let code = cells.next()?.trim_end_matches('`').to_owned();
            Some((code, cells.next()?.parse::<u16>().ok()?))
        })
        .collect();
    let mut expected: Vec<_> =
        ErrorCode::ALL.iter().map(|code| (code.name().to_owned(), code.status())).collect();
    let mut documented = documented;
    expected.sort();
    documented.sort();
    assert_eq!(documented, expected);
}
