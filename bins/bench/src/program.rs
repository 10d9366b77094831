//! The programs of a measurement. Each is ended by its own id when its guard is dropped: at the end, on
//! an error, and on Ctrl-C.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// The profile of installed programs, which are what is measured.
const PROFILE: &str = "dist";
/// The time within which a program must end by itself.
const PATIENCE: Duration = Duration::from_secs(40);

/// A program of this workspace: built now if cargo runs this one, else the one beside this one.
pub(crate) fn program_path(what: &[&str], program: &str) -> anyhow::Result<PathBuf> {
    let folder = std::env::current_exe()?.parent().context("no folder")?.to_owned();
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(folder.join(program));
    };
    let mut build = Command::new(cargo);
    build.args(["build", "--profile", PROFILE, "--manifest-path"]);
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).args(what);
    ensure!(build.status()?.success(), "{program} cannot be built");
    Ok(folder.with_file_name(PROFILE).join(program))
}

/// A program that runs until this is dropped.
pub(crate) struct ChildProgram {
    name: &'static str,
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl ChildProgram {
    /// Starts a program; its standard error is written to a file in `folder`.
    pub(crate) fn start(
        name: &'static str,
        command: &mut Command,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // A Ctrl-C of the terminal must reach only this program, which ends the others in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let stdout = child.stdout.take().map(BufReader::new);
        Ok(Self { name, child, stdout, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The origin, such as `127.0.0.1:4321`, of the URL that the program prints when it listens.
    pub(crate) fn printed_address(&mut self) -> anyhow::Result<String> {
        let stdout = self.stdout.as_mut().context("nothing is read from it")?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let origin = line.trim_end().split_once("http://").map(|(_, url)| url);
        let origin = origin.and_then(|url| url.split('/').next());
        match origin {
            Some(origin) => Ok(origin.to_owned()),
            None => bail!("{} did not say where it listens: {line:?}\n{}", self.name, self.log()),
        }
    }

    /// The text that it wrote to standard error.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if it has ended.
    pub(crate) fn expect_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}\n{}", self.name, self.log()),
        }
    }

    /// Sends it SIGTERM, waits for its end, and fails unless it succeeded.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.expect_running()?;
        let status = self.terminate()?;
        ensure!(status.success(), "{} ended with {status}\n{}", self.name, self.log());
        Ok(())
    }

    fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        // The process has not been waited for, so its id cannot have been reused.
        let id = Pid::from_raw(self.child.id().cast_signed()).context("not an id")?;
        kill_process(id, Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("{} did not end and was killed\n{}", self.name, self.log());
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        if let Err(why) = self.terminate() {
            eprintln!("{why:#}");
        }
    }
}
