//! Months that are written, read back, and searched.

use std::fs;
use std::sync::Arc;

use tollgate_archive::{
    Archive, ArchiveError, Cells, Column, ColumnType, Condition, Location, Manifest, Selection,
    Table, Value, decimal,
};
use tollgate_pricing::Amount;

/// A row with a column of each type, absent values among them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    merchant: String,
    id: String,
    note: Option<String>,
    count: Option<i64>,
    is_odd: bool,
    created_at: i64,
    cost: Amount,
}

impl Table for Row {
    type Row = Self;

    const NAME: &'static str = "rows";
    const ID: &'static str = "row_id";
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            name: "merchant_id",
            kind: ColumnType::Text,
            value: |row| (&*row.merchant).into(),
        },
        Column { name: "row_id", kind: ColumnType::Text, value: |row| (&*row.id).into() },
        Column { name: "note", kind: ColumnType::Text, value: |row| row.note.clone().into() },
        Column { name: "count", kind: ColumnType::Integer, value: |row| row.count.into() },
        Column {
            name: "is_odd",
            kind: ColumnType::Boolean,
            value: |row| Value::Boolean(row.is_odd),
        },
        Column {
            name: "created_at",
            kind: ColumnType::Time,
            value: |row| Value::Integer(row.created_at),
        },
        Column { name: "cost", kind: ColumnType::Amount, value: |row| Value::Amount(row.cost) },
    ];
    const READ: &'static [&'static str] =
        &["merchant_id", "row_id", "note", "count", "is_odd", "created_at", "cost"];

    fn read(cells: &mut Cells) -> Result<Self, ArchiveError> {
        Ok(Self {
            merchant: cells.text("merchant_id")?,
            id: cells.text("row_id")?,
            note: cells.optional_text("note")?,
            count: cells.optional_integer("count")?,
            is_odd: cells.boolean("is_odd")?,
            created_at: cells.integer("created_at")?,
            cost: cells.amount("cost")?,
        })
    }
}

/// Rows of three merchants: one has few, and one has several groups of a file.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (merchant, count) in [("mch_A", 3), ("mch_B", 20_000), ("mch_C", 9_000)] {
        for number in 0..count {
            rows.push(Row {
                merchant: merchant.to_owned(),
                id: format!("row_{number:06}"),
                note: (number % 3 > 0).then(|| format!("note {}", number % 11)),
                count: (number % 5 > 0).then_some(i64::MAX - number),
                is_odd: number % 2 == 1,
                created_at: 1_700_000_000_000_000 + number,
                cost: Amount::from_units(number * 12_345_678_901 - 7),
            });
        }
    }
    rows
}

fn archive(folder: &std::path::Path) -> Archive {
    Archive::new(Location::new(&format!("file://{}", folder.display()), None).unwrap())
}

fn write(archive: &Archive, month: &str, previous: Option<&str>) -> (Arc<Manifest>, String) {
    let mut writer = archive.begin(month, "database", previous).unwrap();
    writer.write::<Row, ArchiveError>(rows().into_iter().map(Ok), || Ok(())).unwrap();
    writer.seal::<ArchiveError>(|| Ok(())).unwrap()
}

#[test]
fn rows_are_read_back_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let (manifest, digest) = write(&archive, "2026-01", None);
    assert_eq!(*archive.manifest("2026-01", &digest).unwrap(), *manifest);
    let mut walk = archive.ascending::<Row>(Arc::clone(&manifest), None);
    let mut found = Vec::new();
    while let Some(row) = walk.next_row().unwrap() {
        found.push(row);
    }
    assert!(found == rows(), "the rows differ");
    for merchant in ["mch_A", "mch_B", "mch_C", "mch_Z"] {
        let expected: Vec<_> = rows().into_iter().filter(|row| row.merchant == merchant).collect();
        let mut walk = archive.ascending::<Row>(Arc::clone(&manifest), Some(merchant.to_owned()));
        let mut found = Vec::new();
        while let Some(row) = walk.next_row().unwrap() {
            found.push(row);
        }
        assert!(found == expected, "the rows of {merchant} differ");
        archive.verify_files_of::<Row>(&manifest, merchant).unwrap();
    }

    let sums = archive.verify::<Row>(&manifest, || {}).unwrap();
    for merchant in ["mch_A", "mch_B", "mch_C"] {
        let of_merchant: Vec<_> =
            rows().into_iter().filter(|row| row.merchant == merchant).collect();
        let sum = of_merchant.iter().map(|row| i128::from(row.cost.units())).sum();
        let found = sums.get(merchant).unwrap();
        assert_eq!(found.rows, u64::try_from(of_merchant.len()).unwrap());
        assert_eq!(found.amounts.get("cost"), Some(&decimal(sum)));
    }
}

#[test]
fn a_merchant_s_rows_are_found_from_any_id_downwards() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let (manifest, _) = write(&archive, "2026-01", None);
    let bounds = [None, Some("row_000000"), Some("row_000002"), Some("row_008192"), Some("row_9")];
    for merchant in ["mch_A", "mch_B", "mch_C", "mch_", "mch_BB", "mch_Z"] {
        for (below, from) in bounds.into_iter().flat_map(|below| bounds.map(|from| (below, from))) {
            let expected = rows().into_iter().rev().filter(|row| {
                row.merchant == merchant
                    && below.is_none_or(|below| *row.id < *below)
                    && from.is_none_or(|from| *row.id >= *from)
            });
            let selection = Selection {
                below: below.map(str::to_owned),
                from: from.map(str::to_owned),
                ..Selection::of(merchant.to_owned())
            };
            let mut walk = archive.descending::<Row>(Arc::clone(&manifest), &selection);
            let mut found = Vec::new();
            while let Some(part) = walk.next_part(5_000).unwrap() {
                assert!(part.rows.len() <= 5_000);
                assert_eq!(part.passed, part.rows.len());
                assert_eq!(part.rows.last().map(|row| &row.id), part.last.as_ref());
                found.extend(part.rows);
            }
            assert!(found.into_iter().eq(expected), "{merchant} {below:?} {from:?}");
        }
    }
    let found: Option<Row> = archive.find(Arc::clone(&manifest), "mch_B", "row_012345").unwrap();
    assert_eq!(found.unwrap().id, "row_012345");
    for (merchant, id) in [("mch_A", "row_012345"), ("mch_B", "row_012345x"), ("mch_B", "")] {
        let found: Option<Row> = archive.find(Arc::clone(&manifest), merchant, id).unwrap();
        assert_eq!(found, None);
    }
}

#[test]
fn rows_that_meet_conditions_are_found_and_the_others_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let (manifest, _) = write(&archive, "2026-01", None);
    let conditions: [fn() -> Vec<Condition<'static>>; 5] = [
        || vec![condition("is_odd", |value| *value == Value::Boolean(true))],
        || vec![condition("note", |value| *value == Value::Text("note 7".to_owned()))],
        || vec![condition("note", |value| *value == Value::Absent)],
        || {
            let few = |value: &Value| matches!(value, Value::Amount(cost) if cost.units() < 2_000);
            vec![condition("is_odd", |_| true), condition("cost", few)]
        },
        || {
            vec![
                condition("count", |_| false),
                condition("note", |value| unreachable!("{value:?}")),
            ]
        },
    ];
    let is_met: [fn(&Row) -> bool; 5] = [
        |row| row.is_odd,
        |row| row.note.as_deref() == Some("note 7"),
        |row| row.note.is_none(),
        |row| row.cost.units() < 2_000,
        |_| false,
    ];
    for (conditions, is_met) in conditions.into_iter().zip(is_met) {
        for (merchant, most) in [("mch_A", 1), ("mch_B", 1_000), ("mch_B", 100_000)] {
            let conditions = conditions();
            let selection = Selection { conditions, ..Selection::of(merchant.to_owned()) };
            let mut walk = archive.descending::<Row>(Arc::clone(&manifest), &selection);
            let all: Vec<_> = rows().into_iter().filter(|row| row.merchant == merchant).collect();
            let (mut found, mut passed) = (Vec::new(), 0);
            while let Some(part) = walk.next_part(most).unwrap() {
                assert!(part.rows.len() <= most);
                passed += part.passed;
                found.extend(part.rows);
                // All rows down to the last one were looked at.
                let reached = &all[all.len() - passed..];
                assert_eq!(reached.first().map(|row| &row.id), part.last.as_ref());
                assert!(found.iter().eq(reached.iter().rev().filter(|row| is_met(row))));
            }
            assert_eq!(passed, all.len());
        }
    }
}

/// The statistics of a group tell that none of its rows was made at a wanted time.
#[test]
fn groups_without_a_wanted_number_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let (manifest, _) = write(&archive, "2026-01", None);
    let at = |number: i64| 1_700_000_000_000_000 + number;
    let walk = |wanted: &[(i64, i64)]| {
        let wanted = wanted.iter().map(|(first, past)| at(*first)..at(*past)).collect();
        let conditions = vec![Condition::integers("created_at", wanted)];
        let selection = Selection { conditions, ..Selection::of("mch_B".to_owned()) };
        let mut walk = archive.descending::<Row>(Arc::clone(&manifest), &selection);
        let (mut found, mut passed) = (Vec::new(), 0);
        while let Some(part) = walk.next_part(100_000)? {
            passed += part.passed;
            found.extend(part.rows.into_iter().map(|row| row.created_at - at(0)));
        }
        Ok::<_, ArchiveError>((found, passed))
    };
    // The merchant has 8,189 rows of the first group, 8,192 of the second, and the first ones of the third. The rest of that is
    // another merchant's, which were made from the beginning on.
    assert_eq!(walk(&[]).unwrap(), (vec![], 0));
    assert_eq!(walk(&[(-10, 0), (20_000, 30_000)]).unwrap(), (vec![], 0));
    assert_eq!(walk(&[(5, 8)]).unwrap(), (vec![7, 6, 5], 8_189 + 3_619));
    assert_eq!(walk(&[(8_189, 8_190)]).unwrap(), (vec![8_189], 8_192 + 3_619));
    let all = walk(&[(-2, 1), (3, 4), (8_188, 8_190), (19_998, 20_001)]).unwrap();
    assert_eq!(all, (vec![19_999, 19_998, 8_189, 8_188, 3, 0], 20_000));
}

fn condition(column: &'static str, is_met: fn(&Value) -> bool) -> Condition<'static> {
    Condition::new(column, is_met)
}

#[test]
fn an_attempt_that_did_not_end_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let rest = folder.path().join("rows/month=2026-01/00007.parquet");
    let add = || {
        fs::create_dir_all(rest.parent().unwrap()).unwrap();
        fs::write(&rest, "half a file").unwrap();
    };
    add();
    let (manifest, _) = write(&archive, "2026-01", None);
    assert!(!rest.exists());
    // A file that comes later is found.
    add();
    let found = archive.verify::<Row>(&manifest, || {}).unwrap_err().to_string();
    assert!(found.contains("00007.parquet"), "{found}");
    // A month that is written again is the same.
    let (_, first) = write(&archive, "2026-01", None);
    let (manifest, again) = write(&archive, "2026-01", None);
    assert_eq!(first, again);
    archive.verify::<Row>(&manifest, || {}).unwrap();
}

#[test]
fn a_writer_that_may_not_go_on_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let mut late = archive.begin("2026-01", "database", None).unwrap();
    let (manifest, digest) = write(&archive, "2026-01", None);
    let stop = || Err(ArchiveError::Location("another one works".to_owned()));
    let few = rows().into_iter().take(10).map(Ok);
    late.write::<Row, ArchiveError>(few, stop).unwrap_err();
    late.seal::<ArchiveError>(stop).unwrap_err();
    assert_eq!(*archive.manifest("2026-01", &digest).unwrap(), *manifest);
    archive.verify::<Row>(&manifest, || {}).unwrap();
}

#[test]
fn manifests_form_a_chain() {
    let folder = tempfile::tempdir().unwrap();
    let archive = archive(folder.path());
    let (first, digest) = write(&archive, "2026-01", None);
    let (second, _) = write(&archive, "2026-02", Some(&digest));
    archive.verify_chain(&first, None).unwrap();
    archive.verify_chain(&second, Some(&digest)).unwrap();
    assert!(archive.verify_chain(&second, None).is_err());
    let wrong = archive.manifest("2026-02", &digest).unwrap_err().to_string();
    assert!(wrong.contains("manifests/2026-02.json"), "{wrong}");
    let missing = archive.manifest("2026-03", &digest).unwrap_err();
    assert!(matches!(missing, ArchiveError::Missing(_)), "{missing}");
}

#[test]
fn a_location_is_a_folder_or_a_bucket() {
    for url in [
        "archive",
        "ftp://host/archive",
        "file://host/archive",
        "file:archive",
        "file:///",
        "file:///a?b=c",
        "s3://",
        "s3:///prefix",
        "s3://user:password@bucket/prefix",
    ] {
        let wrong = Location::new(url, None).unwrap_err();
        assert!(matches!(wrong, ArchiveError::Location(_)), "{url}: {wrong}");
    }
    assert!(Location::new("s3://bucket/prefix", Some("http://127.0.0.1:1")).is_ok());
}
