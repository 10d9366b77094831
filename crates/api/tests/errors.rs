//! The table of errors agrees with its documentation.

use tollgate_api::ErrorCode;

#[test]
fn every_code_is_documented_with_its_status_and_no_other_is() {
    let pages = [
        include_str!("../../../docs/api/error-codes.md"),
        include_str!("../../../docs/api/error-codes-resources.md"),
        include_str!("../../../docs/api/error-codes-limits.md"),
    ];
    let chapters = pages.iter().flat_map(|page| page.split("\n## `").skip(1));
    let documented = chapters.map(|chapter| {
        let (code, text) = chapter.split_once("`\n\nHTTP ").unwrap();
        (code.to_owned(), text.get(..3).unwrap().parse::<u16>().unwrap())
    });
    let mut documented: Vec<_> = documented.collect();
    let mut expected: Vec<_> =
        ErrorCode::ALL.iter().map(|code| (code.name().to_owned(), code.status())).collect();
    expected.sort();
    documented.sort();
    assert_eq!(documented, expected);
}
