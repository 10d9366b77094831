//! The CPU time and memory of processes, from Linux's `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Reads CPU time.
pub(crate) struct CpuClock {
    micros_per_tick: u64,
}

/// A line of `/proc/…/stat`.
struct ProcessStat {
    name: String,
    parent: u32,
    ticks: u64,
}

impl CpuClock {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let output = Command::new("getconf").arg("CLK_TCK").output().context("getconf")?;
        let per_second: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
        let micros_per_tick = 1_000_000_u64.checked_div(per_second).context("no clock ticks")?;
        Ok(Self { micros_per_tick })
    }

    /// The CPU time of a process and its descendants, in user space and in the kernel.
    pub(crate) fn of_tree_micros(&self, root: u32) -> anyhow::Result<u64> {
        let stats = stats("/proc")?;
        let tree = tree(root, &stats);
        let ticks = stats.iter().filter(|(id, _)| tree.contains(id)).map(|(_, stat)| stat.ticks);
        Ok(ticks.sum::<u64>() * self.micros_per_tick)
    }

    /// The CPU time of a process, without its descendants.
    pub(crate) fn of_process_micros(&self, id: u32) -> anyhow::Result<u64> {
        let path = format!("/proc/{id}/stat");
        let line = std::fs::read_to_string(&path)?;
        Ok(parse(&line).context(path)?.ticks * self.micros_per_tick)
    }

    /// The CPU time of those present threads of a process whose names start with `name`.
    pub(crate) fn of_threads_micros(&self, id: u32, name: &str) -> anyhow::Result<u64> {
        let threads = stats(&format!("/proc/{id}/task"))?;
        let threads = threads.values().filter(|stat| stat.name.starts_with(name));
        Ok(threads.map(|stat| stat.ticks).sum::<u64>() * self.micros_per_tick)
    }

    /// The CPU time of all processes of this name.
    pub(crate) fn of_name_micros(&self, name: &str) -> anyhow::Result<u64> {
        let stats = stats("/proc")?;
        let ticks = stats.values().filter(|stat| stat.name == name).map(|stat| stat.ticks);
        Ok(ticks.sum::<u64>() * self.micros_per_tick)
    }
}

/// Raises the limit of open files, of this process and of those that it starts, to its maximum.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(())
}

/// The resident memory of a process.
pub(crate) fn memory_kib(id: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let now = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(now.and_then(|rest| rest.split_whitespace().next()).context("no memory")?.parse()?)
}

/// The sum of the peak resident memory of a process and of its descendants, each at its own time.
pub(crate) fn peak_memory_kib(root: u32) -> anyhow::Result<u64> {
    let mut sum = 0;
    for id in tree(root, &stats("/proc")?) {
        // A process that has ended since is left out.
        let Ok(status) = std::fs::read_to_string(format!("/proc/{id}/status")) else { continue };
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0");
        sum += peak.parse::<u64>()?;
    }
    Ok(sum)
}

/// All processes, or all threads of one, by the folder that lists them.
fn stats(folder: &str) -> anyhow::Result<BTreeMap<u32, ProcessStat>> {
    let mut stats = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process or thread that has ended since is left out.
        let Ok(line) = std::fs::read_to_string(format!("{folder}/{id}/stat")) else { continue };
        let stat = parse(&line).with_context(|| format!("{folder}/{id}/stat: {line}"))?;
        stats.insert(id, stat);
    }
    Ok(stats)
}

/// Parses `1 (name) S parent …`, where the name may have any character, also parentheses.
fn parse(line: &str) -> Option<ProcessStat> {
    let (start, rest) = line.rsplit_once(')')?;
    let (_, name) = start.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    // Fields 4, 14 and 15 of proc(5); the third is the first after the name.
    let (parent, user, system) = (number(1)?, number(11)?, number(12)?);
    Some(ProcessStat {
        name: name.to_owned(),
        parent: parent.try_into().ok()?,
        ticks: user.checked_add(system)?,
    })
}

fn tree(root: u32, stats: &BTreeMap<u32, ProcessStat>) -> BTreeSet<u32> {
    let mut tree = BTreeSet::from([root]);
    loop {
        let known = tree.len();
        let children = stats.iter().filter(|(_, stat)| tree.contains(&stat.parent));
        let children: Vec<u32> = children.map(|(&id, _)| id).collect();
        tree.extend(children);
        if tree.len() == known {
            return tree;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name() {
        let line = "7 (a) b (c)) S 3 7 7 0 -1 4194560 9 8 7 6 50 25 1 2 20 0 1 0 5 6 7\n";
        let stat = parse(line).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.ticks), ("a) b (c)", 3, 75));
    }

    #[test]
    fn a_tree_has_children_of_children() {
        let stat = |parent| ProcessStat { name: String::new(), parent, ticks: 1 };
        let stats = BTreeMap::from([(2, stat(5)), (5, stat(1)), (9, stat(1)), (3, stat(2))]);
        assert_eq!(tree(5, &stats), BTreeSet::from([2, 3, 5]));
    }

    #[test]
    fn this_process_uses_something() {
        let id = std::process::id();
        assert!(peak_memory_kib(id).unwrap() > 0);
        let clock = CpuClock::new().unwrap();
        while clock.of_tree_micros(id).unwrap() == 0 {}
        assert!(clock.of_process_micros(id).unwrap() > 0);
    }

    #[test]
    fn a_child_that_ends_meanwhile_is_no_error() {
        let (done, wait) = std::sync::mpsc::channel();
        let children = std::thread::spawn(move || {
            while wait.try_recv().is_err() {
                Command::new("true").status().unwrap();
            }
        });
        for _ in 0..500 {
            assert!(peak_memory_kib(std::process::id()).unwrap() > 0);
        }
        done.send(()).unwrap();
        children.join().unwrap();
    }

    #[test]
    fn threads_are_told_apart_by_their_names() {
        let (done, wait) = std::sync::mpsc::channel();
        let busy = std::thread::Builder::new().name("busy-0".to_owned());
        let thread = busy.spawn(move || while wait.try_recv().is_err() {}).unwrap();
        let (id, clock) = (std::process::id(), CpuClock::new().unwrap());
        while clock.of_threads_micros(id, "busy-").unwrap() == 0 {}
        assert_eq!(clock.of_threads_micros(id, "idle-").unwrap(), 0);
        done.send(()).unwrap();
        thread.join().unwrap();
    }
}
