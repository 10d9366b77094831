//! Sets the commit of the build and its day: `BUILD_COMMIT` of the environment; else the output of git; else, without
//! git, the files of the repository; else `unknown`. The day is known from git only.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The commit that is checked out, read from the files of the repository.
fn current_commit() -> Option<String> {
    let folder = Path::new("../../.git");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let head = read("HEAD")?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.clone(),
        Some(branch) => read(branch).or_else(|| {
            let packed = read("packed-refs")?;
            let line = packed.lines().find(|line| line.ends_with(&format!(" {branch}")))?;
            Some(line.to_owned())
        })?,
    };
    commit.get(..12).map(str::to_owned)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    // This file gets a line with each commit.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let given = std::env::var("BUILD_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit =
        given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"])).or_else(current_commit);
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit.unwrap_or("unknown".to_owned()));
    let day = git(&["log", "-1", "--format=%cs"]);
    println!("cargo::rustc-env=BUILD_DAY={}", day.unwrap_or_default());
}
