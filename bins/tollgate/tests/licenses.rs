//! Checks the licences and the sources of all libraries that are built here, by the lists of `deny.toml`.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

use std::fs;
use std::process::Command;

use serde::Deserialize;

use super::layers::root;

/// The lists of `deny.toml`.
#[derive(Deserialize)]
struct DenyList {
    licenses: LicenseList,
    bans: BanList,
}

#[derive(Deserialize)]
struct LicenseList {
    allow: Vec<String>,
    exceptions: Vec<LicenseException>,
}

/// Licences that one library may have, too.
#[derive(Deserialize)]
struct LicenseException {
    #[serde(rename = "crate")]
    library: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct BanList {
    deny: Vec<String>,
}

/// A package as `cargo metadata` describes it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// Absent for a package of the workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    source: Option<String>,
}

/// The platform of this machine.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

/// All packages that are built on this machine, with all features.
fn packages() -> Vec<Package> {
    #[derive(Deserialize)]
    struct CargoMetadata {
        packages: Vec<Package>,
    }
    let arguments = ["metadata", "--format-version=1", "--locked", "--all-features"];
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--filter-platform", &host()])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<CargoMetadata>(&output.stdout).unwrap().packages
}

#[test]
fn each_library_has_a_licence_and_a_source_that_are_allowed() {
    const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
    let list: DenyList =
        toml::from_str(&fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap();
    let licensees = |allow: &[String]| -> Vec<spdx::Licensee> {
        allow.iter().map(|name| spdx::Licensee::parse(name).unwrap()).collect()
    };
    let packages = packages();
    assert!(packages.len() > 200, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in &packages {
        let Package { name, version, license, source, dependencies } = package;
        let exceptions = list.licenses.exceptions.iter().filter(|one| one.library == *name);
        let mut allowed = licensees(&list.licenses.allow);
        allowed.extend(exceptions.flat_map(|one| licensees(&one.allow)));
        let license = license.as_deref().unwrap_or_default();
        // Some crates still write `MIT/Apache-2.0`.
        let expression = spdx::Expression::parse_mode(license, spdx::ParseMode::LAX);
        let is_allowed = expression.is_ok_and(|expression| {
            expression.evaluate(|needed| allowed.iter().any(|licensee| licensee.satisfies(needed)))
        });
        if !is_allowed {
            wrong.push(format!("{name} {version} has the licence {license:?}"));
        }
        if list.bans.deny.contains(name) {
            wrong.push(format!("{name} {version} is banned"));
        }
        match source.as_deref() {
            None => wrong.extend(
                dependencies
                    .iter()
                    .filter(|library| library.source.is_some() && library.req == "*")
                    .map(|library| format!("{name} takes any version of {}", library.name)),
            ),
            Some(REGISTRY) => {}
            Some(other) => wrong.push(format!("{name} {version} is from {other}")),
        }
    }
    assert!(wrong.is_empty(), "see deny.toml: {wrong:#?}");
}
