//! The queue of the ledger's jobs, from which the writers take groups.
//!
//! A group costs the database far more than a call in it, so one large group is better than two small ones. The second
//! writer of a process therefore waits for the first, and the nodes of a database pause between their groups.
//!
//! Other writes can take as long as many calls. So they wait apart from calls, and a writer does few of them after each group.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::command::{CallJob, Job, WriteWork};

/// The most calls in one group. A larger group gains little, and its callers wait longer.
const MAX_GROUP_SIZE: usize = 128;
/// The time for which a group that is being booked delays the next one. A group that waits for a lock delays it no longer.
const PATIENCE: Duration = Duration::from_millis(20);
/// The longest pause after a group.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The receiving end of the queue, shared by the writers.
pub(super) struct JobQueue {
    jobs: Mutex<mpsc::Receiver<Job>>,
    /// Other writes that were taken from `jobs`, the oldest first.
    works: Mutex<VecDeque<WriteWork>>,
    patience: Duration,
    bookings: Mutex<Bookings>,
    ended: Condvar,
}

struct Bookings {
    /// The instants at which the groups that are being booked were taken.
    begun: Vec<Instant>,
    /// The end of the pause after the last group.
    pause_until: Instant,
}

/// The calls of a group. Its booking ends when this is dropped.
pub(super) struct JobGroup<'a> {
    pub(super) calls: Vec<CallJob>,
    queue: &'a JobQueue,
    begun: Instant,
    is_alone: bool,
    nodes: u32,
}

impl JobQueue {
    pub(super) fn new(jobs: mpsc::Receiver<Job>) -> Self {
        let bookings = Bookings { begun: Vec::new(), pause_until: Instant::now() };
        let (jobs, bookings) = (Mutex::new(jobs), Mutex::new(bookings));
        let works = Mutex::default();
        Self { jobs, works, patience: PATIENCE, bookings, ended: Condvar::new() }
    }

    /// Waits for a job, for the group that is being booked, and for the pause after a group. `nodes` is the number of nodes
    /// that share the database. Returns all calls that wait then, or `None` when the queue is closed and empty. There may be no
    /// calls if there is [another write](Self::next_work).
    pub(super) fn next_group(&self, nodes: u32) -> Option<JobGroup<'_>> {
        let mut jobs = held(&self.jobs);
        let mut calls = Vec::new();
        if held(&self.works).is_empty() {
            self.sort(jobs.blocking_recv()?, &mut calls);
        }
        let is_full = jobs.len() + calls.len() >= MAX_GROUP_SIZE;
        let begun = if is_full { Instant::now() } else { self.wait_for_turn() };
        while calls.len() < MAX_GROUP_SIZE
            && let Ok(job) = jobs.try_recv()
        {
            self.sort(job, &mut calls);
        }
        held(&self.bookings).begun.push(begun);
        Some(JobGroup { is_alone: calls.len() <= 1, calls, queue: self, begun, nodes })
    }

    fn sort(&self, job: Job, calls: &mut Vec<CallJob>) {
        match job {
            Job::Call(call) => calls.push(call),
            Job::Write(work) => held(&self.works).push_back(work),
        }
    }

    /// The next of the other writes.
    pub(super) fn next_work(&self) -> Option<WriteWork> {
        held(&self.works).pop_front()
    }

    /// The number of other writes that wait apart from calls.
    pub(super) fn waiting_works(&self) -> usize {
        held(&self.works).len()
    }

    /// Returns the instant at which the wait has ended.
    fn wait_for_turn(&self) -> Instant {
        let mut bookings = held(&self.bookings);
        while let Some(newest) = bookings.begun.iter().max()
            && let Some(rest) = self.patience.checked_sub(newest.elapsed())
        {
            let waited = self.ended.wait_timeout(bookings, rest);
            (bookings, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let pause = bookings.pause_until.saturating_duration_since(Instant::now());
        drop(bookings);
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        Instant::now()
    }
}

impl Drop for JobGroup<'_> {
    fn drop(&mut self) {
        let pause = match self.is_alone {
            // There are few calls.
            true => Duration::ZERO,
            false => pause_after(self.begun.elapsed(), self.nodes),
        };
        let mut bookings = held(&self.queue.bookings);
        bookings.begun.retain(|begun| *begun != self.begun);
        bookings.pause_until = Instant::now() + pause;
        drop(bookings);
        self.queue.ended.notify_one();
    }
}

/// The pause after a group that took so long: none for one node, and more for more nodes.
fn pause_after(took: Duration, nodes: u32) -> Duration {
    let share = took.checked_div(nodes).unwrap_or(took);
    took.saturating_sub(share).min(LONGEST_PAUSE)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tollgate_domain::{RequestId, Timestamp};

    use super::super::command::Settlement;
    use super::*;

    /// A queue with this number of calls, and its sending end.
    fn queue(calls: usize) -> (JobQueue, mpsc::Sender<Job>) {
        let (sender, receiver) = mpsc::channel(1_000);
        (0..calls).for_each(|_| send(&sender));
        (JobQueue::new(receiver), sender)
    }

    /// Sends a call.
    fn send(sender: &mpsc::Sender<Job>) {
        let request_id = RequestId::generate(Timestamp::from_unix_micros(0));
        let settlement = Box::new(Settlement { request_id, report: None, call: None });
        let (reply, _) = oneshot::channel();
        let call = Job::Call(CallJob::Settle(settlement, reply));
        sender.try_send(call).unwrap_or_else(|_| unreachable!("the queue is full"));
    }

    fn send_work(sender: &mpsc::Sender<Job>) {
        let work = WriteWork { run: Box::new(|_| {}), concerns_calls: false };
        sender.try_send(Job::Write(work)).unwrap_or_else(|_| unreachable!("the queue is full"));
    }

    fn pause_of(queue: &JobQueue) -> Instant {
        held(&queue.bookings).pause_until
    }

    /// The numbers of calls of the next groups.
    fn sizes(queue: &JobQueue, count: usize) -> Vec<usize> {
        (0..count).map(|_| queue.next_group(1).unwrap().calls.len()).collect()
    }

    #[test]
    fn a_group_has_all_calls_that_wait_up_to_its_limit() {
        let (queue, sender) = queue(300);
        drop(sender);
        assert_eq!(sizes(&queue, 3), [128, 128, 44]);
        assert!(queue.next_group(1).is_none());
    }

    #[test]
    fn calls_pass_other_writes_and_none_is_lost() {
        let (queue, sender) = queue(2);
        (0..200).for_each(|_| send_work(&sender));
        send(&sender);
        assert_eq!(sizes(&queue, 1), [3]);
        assert!(queue.next_work().is_some());
        send(&sender);
        assert_eq!(sizes(&queue, 2), [1, 0], "other writes wait, so it does not wait for a call");
        drop(sender);
        assert_eq!(queue.waiting_works(), 199);
        (0..199).for_each(|_| {
            assert_eq!(sizes(&queue, 1), [0]);
            assert!(queue.next_work().is_some());
        });
        assert!(queue.next_group(1).is_none());
    }

    #[test]
    fn a_second_writer_waits_for_the_group_of_the_first_and_takes_what_came_meanwhile() {
        let (mut queue, sender) = queue(1);
        queue.patience = Duration::from_secs(60);
        let first = queue.next_group(1).unwrap();
        let begun = Instant::now();
        thread::scope(|scope| {
            send(&sender);
            let second = scope.spawn(|| queue.next_group(1).unwrap().calls.len());
            thread::sleep(Duration::from_millis(5));
            send(&sender);
            drop(first);
            assert_eq!(second.join().unwrap(), 2);
        });
        assert!(begun.elapsed() < queue.patience / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_group_that_is_full_does_not_wait() {
        let (mut queue, sender) = queue(1);
        queue.patience = Duration::from_secs(60);
        let _first = queue.next_group(1).unwrap();
        (0..MAX_GROUP_SIZE).for_each(|_| send(&sender));
        assert_eq!(sizes(&queue, 1), [MAX_GROUP_SIZE]);
    }

    #[test]
    fn a_group_that_takes_long_delays_the_others_once() {
        let (queue, sender) = queue(1);
        let begun = Instant::now();
        let _slow = queue.next_group(1).unwrap();
        send(&sender);
        drop(queue.next_group(1).unwrap());
        assert!(begun.elapsed() >= PATIENCE / 2, "{:?}", begun.elapsed());
        let begun = Instant::now();
        (0..20).for_each(|_| {
            send(&sender);
            drop(queue.next_group(1).unwrap());
        });
        assert!(begun.elapsed() < PATIENCE * 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn nodes_that_share_a_database_pause_between_groups() {
        let took = Duration::from_millis(4);
        let pauses = [1, 2, 4].map(|nodes| pause_after(took, nodes).as_millis());
        assert_eq!(pauses, [0, 2, 3]);
        assert_eq!(pause_after(Duration::from_secs(1), 4), LONGEST_PAUSE);
        let (queue, sender) = queue(2);
        let group = queue.next_group(4).unwrap();
        thread::sleep(took);
        let begun = Instant::now();
        drop(group);
        send(&sender);
        drop(queue.next_group(4).unwrap());
        assert!(begun.elapsed() >= Duration::from_millis(3), "{:?}", begun.elapsed());
        // A job that was alone is followed by no pause.
        let lone = pause_of(&queue);
        assert!(lone <= Instant::now(), "the last group had one job");
    }
}
