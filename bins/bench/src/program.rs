//! The programs around the measurement. Each is ended by its own id when its guard is dropped:
//! at the end, on an error, and on Ctrl-C.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// What is measured is built as it is installed.
const PROFILE: &str = "dist";
/// How long a program may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(40);

/// A program of this workspace: built now if cargo runs us, else the one that lies beside us.
pub(crate) fn built(what: &[&str], program: &str) -> anyhow::Result<PathBuf> {
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
pub(crate) struct Program {
    name: &'static str,
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Program {
    /// Starts a program; what it writes to standard error goes to a file in `folder`.
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
            // A Ctrl-C of the terminal's is for us: we end the others, in order.
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

    /// What it wrote to standard error.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails when it has ended.
    pub(crate) fn expect_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}\n{}", self.name, self.log()),
        }
    }

    /// Tells it to end, waits for that, and fails unless it ended well.
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
        // It has not been waited for, so the id is still its own.
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

impl Drop for Program {
    fn drop(&mut self) {
        if let Err(why) = self.terminate() {
            eprintln!("{why:#}");
        }
    }
}
