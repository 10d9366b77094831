//! A PostgreSQL server of the tests: its start, its owner, and its end.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::client::{self, USER};
use super::install::Installation;

/// The options of a server that does not wait for its disk.
pub(super) const QUICK: &str = "-c fsync=off -c full_page_writes=off";

const WATCHDOG: &str = include_str!("watchdog.sh");

/// A running server, by its directory.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The directory of its socket, data and logs.
    dir: PathBuf,
}

/// The process with which the server ends.
#[derive(Debug)]
pub(super) struct ClusterOwner {
    process: u32,
}

/// The owner of this process's server.
///
/// It is cargo if that is the parent, so that all its test processes share a server. Otherwise it is this
/// process, as a parent that is a shell may live for days.
pub(super) fn owner() -> ClusterOwner {
    let parent = parent_id();
    let by_cargo = name_of(parent).is_some_and(|name| name.contains("cargo"));
    ClusterOwner { process: if by_cargo { parent } else { process::id() } }
}

/// The name of a process's program, without its directory.
fn name_of(process: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).or_else(|_| {
        let ps = Command::new("ps").args(["-o", "comm=", "-p", &process.to_string()]).output()?;
        String::from_utf8(ps.stdout).map_err(io::Error::other)
    });
    let name = name.ok()?;
    name.trim().rsplit('/').next().map(str::to_owned)
}

impl Cluster {
    /// A server for this process alone, with options for `postgres`.
    pub(super) fn start_own(install: &Installation, options: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let temp = temp_dir();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lock = temp.join(format!("tollgate-postgres-own-{}-{number}.lock", process::id()));
        drop(open_or_create(&lock).expect("the lock file can be opened"));
        Self::start(install, options, &ClusterOwner { process: process::id() }, &temp, &lock)
    }

    /// The server of this owner: the one that another process has started, else a new one.
    pub(super) fn join_or_start(install: &Installation, owner: &ClusterOwner) -> Self {
        let temp = temp_dir();
        let lock_path = temp.join(format!("tollgate-postgres-{}.lock", owner.process));
        let mut lock = open_or_create(&lock_path).expect("the lock file can be opened");
        // One process starts the server, the others wait here. The system releases the lock of a process that
        // dies.
        lock.lock().expect("the lock can be taken");
        let mut dir = String::new();
        lock.read_to_string(&mut dir).expect("the lock file can be read");
        let running = Self { dir: PathBuf::from(dir) };
        if UnixStream::connect(running.socket()).is_ok() {
            return running;
        }

        let started = Self::start(install, QUICK, owner, &temp, &lock_path);
        lock.set_len(0).expect("the lock file can be emptied");
        lock.rewind().expect("the lock file can be rewound");
        let dir = started.dir.to_str().expect("temporary directories have plain names");
        lock.write_all(dir.as_bytes()).expect("the lock file can be written");
        started
    }

    fn start(
        install: &Installation,
        options: &str,
        owner: &ClusterOwner,
        temp: &Path,
        lock: &Path,
    ) -> Self {
        let dir = tempfile::Builder::new().prefix("tollgate-postgres-").tempdir_in(temp);
        // The watchdog removes the directory.
        let dir = dir.expect("a temporary directory can be made").keep();
        let mut watchdog = Command::new("sh");
        watchdog
            .args(["-c", WATCHDOG, "tollgate-postgres-watchdog", &owner.process.to_string()])
            .args([&dir, lock, install.bin()])
            .arg(options)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Signals to the process group of a test, as nextest sends on a timeout, must not reach the server
            // of all tests.
            .process_group(0);
        // The server refuses to run as root.
        if fs::metadata(&dir).expect("the directory is there").uid() == 0 {
            let (uid, gid) = unprivileged();
            for path in [dir.as_path(), lock] {
                chown(path, Some(uid), Some(gid)).expect("root may give files away");
            }
            watchdog.uid(uid).gid(gid);
        }
        let watchdog = watchdog.spawn().expect("a shell can be started");
        assert!(ready(watchdog), "PostgreSQL does not start:\n{}", logs(&dir));
        Self { dir }
    }

    /// Runs `work` once in the life of the server, in the first process that calls this.
    pub(super) fn once(&self, what: &str, work: impl FnOnce()) {
        let mut done = open_or_create(&self.dir.join(what)).expect("the lock file can be opened");
        done.lock().expect("the lock can be taken");
        if done.metadata().expect("the file is there").len() == 0 {
            work();
            done.write_all(b"done").expect("the lock file can be written");
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    /// Runs `pg_ctl` as the server's user.
    fn control(&self, install: &Installation, arguments: &[&str]) {
        let mut control = Command::new(install.bin().join("pg_ctl"));
        control.args(arguments).arg("-D").arg(self.dir.join("data")).current_dir(&self.dir);
        let owner = fs::metadata(self.dir.join("data")).expect("the data is there");
        control.uid(owner.uid()).gid(owner.gid()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = control.status().expect("pg_ctl can be started");
        assert!(status.success(), "pg_ctl {arguments:?}:\n{}", logs(&self.dir));
    }

    /// Stops the server at once, as a crash would.
    pub(super) fn stop(&self, install: &Installation) {
        File::create(self.dir.join("stopped")).expect("the watchdog can be told");
        self.control(install, &["stop", "-m", "immediate"]);
    }

    /// Starts the server again with its last options and more, and waits until it accepts connections.
    pub(super) fn start_again(&self, install: &Installation, more: &str) {
        let options = fs::read_to_string(self.dir.join("data/postmaster.opts"));
        let options = options.expect("it was started before").replace('"', "");
        let options = options.trim().split_once(' ').map_or("", |(_, options)| options).to_owned();
        let log = self.dir.join("server.log");
        let log = log.to_str().expect("temporary directories have plain names");
        self.control(install, &["start", "-w", "-l", log, "-o", &format!("{options} {more}")]);
        fs::remove_file(self.dir.join("stopped")).expect("the watchdog can be told");
    }

    /// Writes a file into the data, as the server's user.
    pub(super) fn put_file(&self, name: &str, content: &str) {
        let data = self.dir.join("data");
        let owner = fs::metadata(&data).expect("the data is there");
        let file = data.join(name);
        fs::write(&file, content).expect("the file can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        if owner.uid() != fs::metadata(&file).expect("it was written").uid() {
            chown(&file, Some(owner.uid()), Some(owner.gid())).expect("root may give files away");
        }
    }

    /// Copies the data of the stopped server.
    pub(super) fn copy_data(&self) {
        self.replace("data", "kept");
    }

    /// Replaces the data of the stopped server by the copy.
    pub(super) fn restore_data(&self) {
        self.replace("kept", "data");
    }

    fn replace(&self, from: &str, to: &str) {
        let to = self.dir.join(to);
        if to.exists() {
            fs::remove_dir_all(&to).expect("the data can be removed");
        }
        let copied = Command::new("cp").arg("-a").arg(self.dir.join(from)).arg(to).status();
        assert!(copied.expect("cp can be started").success());
    }

    /// Signals all processes of the server, its first process before the others.
    pub(super) fn signal(&self, signal: &str) {
        let file = fs::read_to_string(self.dir.join("data/postmaster.pid"));
        let first = file.expect("it runs").lines().next().unwrap_or_default().to_owned();
        let children = || {
            let processes = fs::read_dir("/proc").expect("processes can be listed").flatten();
            let stats = processes.filter_map(|process| {
                let stat = fs::read_to_string(process.path().join("stat")).ok()?;
                // The name before may contain any character; the state and the parent follow.
                let parent = stat.rsplit_once(')')?.1.split(' ').nth(2)?.to_owned();
                (parent == first).then(|| process.file_name().into_string().ok())?
            });
            stats.collect::<Vec<_>>()
        };
        for processes in [vec![first.clone()], children()] {
            let sent = Command::new("kill").arg(signal).args(processes).status();
            assert!(sent.expect("signals can be sent").success());
        }
    }

    pub(super) fn url(&self, database: &str) -> String {
        format!("postgres:///{database}?host={}&user={USER}", self.dir.display())
    }

    pub(super) fn execute(&self, sql: &str) -> Result<(), String> {
        self.execute_in(USER, sql)
    }

    pub(super) fn execute_in(&self, database: &str, sql: &str) -> Result<(), String> {
        client::execute(&self.socket(), database, sql)
    }
}

/// Opens the file, and creates it only if it is missing. The lock belongs to the server's user, and Linux
/// refuses to open another user's file in `/tmp` with "create", even to root.
fn open_or_create(path: &Path) -> io::Result<File> {
    loop {
        let mut options = File::options();
        options.read(true).write(true);
        for create in [false, true] {
            match options.create_new(create).open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return opened,
            }
        }
    }
}

/// Waits until the server accepts connections or fails; the watchdog runs on.
fn ready(mut watchdog: Child) -> bool {
    let mut line = String::new();
    if let Some(output) = watchdog.stdout.take() {
        BufReader::new(output).read_line(&mut line).expect("the watchdog's output can be read");
    }
    line == "ready\n"
}

fn logs(dir: &Path) -> String {
    let read = |name| fs::read_to_string(dir.join(name)).unwrap_or_default();
    read("start.log") + &read("server.log")
}

/// A directory for temporary files that other users may enter.
///
/// The server may run as another user.
fn temp_dir() -> PathBuf {
    let temp = env::temp_dir();
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 1 == 1);
    if temp.ancestors().all(open) { temp } else { PathBuf::from("/tmp") }
}

/// The user and group id of `postgres`, else of the unprivileged system user.
pub(super) fn unprivileged() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").expect("the list of users can be read");
    let ids = |name: &str| {
        let mut fields = users.lines().find_map(|line| line.strip_prefix(name))?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids("postgres:").or_else(|| ids("nobody:")).expect("there is a user who is not root")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_server_ends_with_its_owner_and_leaves_nothing() {
        let Some(install) = Installation::find() else { return };
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let owner = ClusterOwner { process: process.id() };

        let cluster = Cluster::join_or_start(&install, &owner);
        let joined = Cluster::join_or_start(&install, &owner);
        assert_eq!(cluster.dir, joined.dir);
        cluster.execute("SELECT 1").unwrap();
        let lock = temp_dir().join(format!("tollgate-postgres-{}.lock", process.id()));
        assert!(lock.exists());

        let mut connection = UnixStream::connect(cluster.socket()).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        // The read ends when the server does.
        drop(connection.read_to_end(&mut Vec::new()));
        let start = Instant::now();
        while cluster.dir.exists() || lock.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "the server outlives its owner");
            std::thread::yield_now();
        }
        assert!(UnixStream::connect(cluster.socket()).is_err());
    }

    #[test]
    fn a_server_that_does_not_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("start.log"), "no such thing\n").unwrap();
        assert_eq!(logs(dir.path()), "no such thing\n");
    }
}
