//! Checks the layers of the workspace: the dependencies that each manifest may have, and related rules.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The direct dependencies of a package, from one of the tables of its manifest.
fn dependencies(folder: &str, table: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let table = manifest.get(table).and_then(toml::Value::as_table);
    table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

/// The folders of all packages of the workspace.
pub(super) fn packages() -> Vec<String> {
    let folders = ["crates", "bins"].into_iter().flat_map(|above| {
        let entries = fs::read_dir(root().join(above)).unwrap();
        entries
            .map(move |entry| format!("{above}/{}", entry.unwrap().file_name().to_str().unwrap()))
    });
    let mut found: Vec<_> =
        folders.filter(|folder| root().join(folder).join("Cargo.toml").exists()).collect();
    found.sort();
    found
}

#[test]
fn arrows_point_one_way() {
    let allowed = |folder: &str| match folder {
        "crates/pricing" | "bins/simulator" => vec![],
        "crates/domain" | "crates/usage" | "crates/prices" | "crates/price-import" => {
            vec!["pricing"]
        }
        "crates/litellm-import" => vec!["domain", "pricing"],
        "bins/bench" => vec!["pricing", "testkit"],
        "crates/provider" => vec!["domain", "usage"],
        "crates/archive" => vec!["domain", "pricing"],
        "crates/store" => vec!["archive", "domain", "pricing"],
        "crates/testkit" => vec!["store", "domain", "pricing"],
        "crates/gateway" => vec!["store", "provider", "domain", "pricing", "usage"],
        "crates/api" => {
            vec!["gateway", "store", "provider", "domain", "pricing"]
        }
        "crates/dashboard" => vec!["api", "store", "domain", "pricing"],
        "bins/tollgate" => {
            vec![
                "api",
                "dashboard",
                "domain",
                "gateway",
                "litellm-import",
                "price-import",
                "prices",
                "pricing",
                "provider",
                "simulator",
                "store",
            ]
        }
        other => unreachable!("{other} is new: say here what it may know"),
    };
    for folder in packages() {
        let allowed: BTreeSet<_> =
            allowed(&folder).into_iter().map(|name| format!("tollgate-{name}")).collect();
        let found = dependencies(&folder, "dependencies")
            .into_iter()
            .filter(|name| name.starts_with("tollgate-"));
        let forbidden: Vec<_> = found.filter(|name| !allowed.contains(name)).collect();
        assert_eq!(forbidden, Vec::<String>::new(), "{folder} knows too much");
    }
}

#[test]
fn each_library_lives_in_its_room() {
    let rooms: [(&[&str], &[&str]); 15] = [
        (
            &["diesel", "diesel_migrations", "r2d2", "libsqlite3-sys", "pq-sys", "rusqlite"],
            &["crates/store"],
        ),
        (&["utoipa"], &["crates/api"]),
        (&["askama"], &["crates/api", "crates/dashboard"]),
        (&["socket2"], &["crates/api", "crates/store"]),
        (&["actix-web"], &["crates/api", "crates/dashboard", "bins/simulator", "bins/tollgate"]),
        (&["awc"], &["crates/provider", "bins/simulator"]),
        (&["mimalloc"], &["bins/tollgate"]),
        (&["actix-tls"], &["crates/provider", "crates/api"]),
        (&["object_store", "parquet", "reqwest"], &["crates/archive"]),
        (&["rustls"], &["crates/provider", "crates/api", "crates/archive", "crates/store"]),
        (&["anyhow", "clap", "env_logger", "toml"], &["bins/tollgate", "bins/bench"]),
        (&["clap_complete"], &["bins/tollgate"]),
        (&["tokio-util"], &["crates/provider", "crates/gateway"]),
        (&["prometheus-client"], &["crates/store", "crates/gateway", "crates/api"]),
        (
            &["tokio"],
            &[
                "crates/archive",
                "crates/provider",
                "crates/store",
                "crates/gateway",
                "crates/api",
                "crates/testkit",
                "bins/simulator",
                "bins/tollgate",
                "bins/bench",
            ],
        ),
    ];
    for folder in packages() {
        for library in dependencies(&folder, "dependencies") {
            for (libraries, homes) in rooms {
                let at_home =
                    !libraries.contains(&library.as_str()) || homes.contains(&folder.as_str());
                assert!(at_home, "{folder} must not depend on {library}");
            }
        }
    }
}

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |database: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(root().join("migrations").join(database)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names("sqlite"), names("postgres"));
}

/// Nodes of the version before work with the schema until they are stopped. A migration whose name ends with `_contract`
/// runs only after that.
#[test]
fn a_migration_only_adds_unless_it_contracts() {
    // Those of the first release.
    const FIRST: &str = "20261130000001";
    for database in ["sqlite", "postgres"] {
        for entry in fs::read_dir(root().join("migrations").join(database)).unwrap() {
            let folder = entry.unwrap().path();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let (version, _) = name.split_once('_').unwrap();
            if version <= FIRST {
                continue;
            }
            let sql = fs::read_to_string(folder.join("up.sql")).unwrap();
            let faults = faults_of_migration(version, &sql, name.ends_with("_contract"));
            assert_eq!(faults, Vec::<String>::new(), "{}", folder.display());
        }
    }
}

/// The statements that a migration may not have.
fn faults_of_migration(version: &str, sql: &str, contracts: bool) -> Vec<String> {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join(" ");
    let statements =
        text.split(';').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut statements = statements.filter(|statement| !statement.is_empty());
    if contracts {
        let note = format!("INSERT INTO breaking_migrations (version) VALUES ('{version}')");
        return match statements.any(|statement| statement == note) {
            true => Vec::new(),
            false => vec![format!("must have {note}")],
        };
    }
    let only_adds = |statement: &String| {
        let is_column = statement.starts_with("ALTER TABLE ")
            && statement.contains(" ADD COLUMN ")
            // Groups of rows are written whole on PostgreSQL, so an unknown column gets NULL.
            && !statement.contains("NOT NULL");
        is_column
            || ["CREATE TABLE ", "CREATE INDEX ", "INSERT INTO "]
                .iter()
                .any(|begin| statement.starts_with(begin))
    };
    statements.filter(|statement| !only_adds(statement)).collect()
}

#[test]
fn a_migration_that_breaks_older_programs_is_found() {
    let version = "20270101000000";
    let adds = "CREATE TABLE a (b TEXT); -- DROP TABLE a;\nALTER TABLE a ADD COLUMN c BIGINT;";
    assert_eq!(faults_of_migration(version, adds, false), Vec::<String>::new());
    for sql in [
        "DROP TABLE a",
        "ALTER TABLE a DROP COLUMN b",
        "ALTER TABLE a ADD COLUMN b TEXT NOT NULL",
        "ALTER TABLE a ADD COLUMN b BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE a RENAME TO b",
        "UPDATE a SET b = 1",
        "CREATE UNIQUE INDEX a_b ON a (b)",
    ] {
        assert_eq!(faults_of_migration(version, sql, false), [sql]);
    }
    assert_eq!(faults_of_migration(version, "DROP TABLE a", true).len(), 1);
    let noted =
        "DROP TABLE a; INSERT INTO breaking_migrations (version) VALUES ('20270101000000');";
    assert_eq!(faults_of_migration(version, noted, true), Vec::<String>::new());
}

/// A file that `all.rs` does not name would silently run no test.
#[test]
fn every_file_of_tests_is_part_of_a_program() {
    for folder in packages() {
        let tests = root().join(&folder).join("tests");
        let Ok(all) = fs::read_to_string(tests.join("all.rs")) else { continue };
        let manifest = fs::read_to_string(root().join(&folder).join("Cargo.toml")).unwrap();
        for entry in fs::read_dir(&tests).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_part = all.contains(&format!("\nmod {name};\n"))
                || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            assert!(!is_source || name == "all" || is_part, "{}", path.display());
        }
    }
}

/// The text of all Rust and Python files below a folder.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" || extension == "py" => {
                fs::read_to_string(&path).unwrap()
            }
            _ => String::new(),
        })
        .collect()
}

#[test]
fn every_test_that_a_promise_names_is_there() {
    let sources = ["crates", "bins"].map(|folder| sources(&root().join(folder))).concat();
    for document in ["security-promises", "reliability", "failures"] {
        let document =
            fs::read_to_string(root().join(format!("docs/internals/{document}.md"))).unwrap();
        let in_code = document.split('`').skip(1).step_by(2);
        // A word in code with four underscores or more is the name of a test.
        let named: Vec<_> = in_code
            .filter(|text| !text.contains(|c: char| !c.is_ascii_lowercase() && c != '_'))
            .filter(|text| text.matches('_').count() >= 4)
            .collect();
        assert!(named.len() >= 20, "{named:?}");
        for name in named {
            let is_there = ["fn", "def"].map(|word| sources.contains(&format!("{word} {name}(")));
            assert!(is_there.contains(&true), "{name}");
        }
    }
}
