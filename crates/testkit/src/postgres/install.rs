//! The installed PostgreSQL: where its programs are.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of PostgreSQL's programs.
#[derive(Debug)]
pub(super) struct Installation {
    bin: PathBuf,
}

const PROGRAMS: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

impl Installation {
    /// The programs on the path, else in the directory of `pg_config` or of a package.
    pub(super) fn find() -> Option<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = env::split_paths(&path).collect::<Vec<_>>();
        on_path.into_iter().chain(pg_config()).chain(packaged()).find_map(Self::at)
    }

    fn at(bin: PathBuf) -> Option<Self> {
        PROGRAMS.iter().all(|program| bin.join(program).is_file()).then_some(Self { bin })
    }

    pub(super) fn bin(&self) -> &Path {
        &self.bin
    }
}

fn pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// The directories of Debian's packages, newest version first, and of Homebrew.
fn packaged() -> Vec<PathBuf> {
    let mut versions: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    versions.sort_by_key(|path| {
        let version = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        std::cmp::Reverse(version)
    });
    let homebrew = ["/opt/homebrew/opt/postgresql/bin", "/usr/local/opt/postgresql/bin"];
    let homebrew = homebrew.into_iter().map(PathBuf::from);
    versions.into_iter().map(|version| version.join("bin")).chain(homebrew).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_all_programs_is_no_installation() {
        let dir = tempfile::tempdir().unwrap();
        for program in PROGRAMS {
            assert!(Installation::at(dir.path().to_owned()).is_none());
            fs::write(dir.path().join(program), "").unwrap();
        }
        assert!(Installation::at(dir.path().to_owned()).is_some());
    }
}
