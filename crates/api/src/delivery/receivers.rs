//! Who is being told at the moment, so that one receiver that is slow or dead takes no room from
//! others.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tollgate_domain::WebhookId;
use tollgate_store::deliveries::{Ended, Room};

/// How many attempts are under way at once, in all: each is a connection.
const AT_ONCE: usize = 512;
/// How many at one webhook.
const AT_ONE: usize = 16;
/// How many at one whose last attempt has failed: enough to see when it is back.
const AT_ONE_THAT_FAILS: usize = 1;
/// How long such a one is left alone, so that what waits for a dead receiver costs next to nothing,
/// however much it is.
const REST: Duration = Duration::from_millis(500);

/// Attempts that are under way.
#[derive(Default)]
pub(super) struct Receivers {
    attempts: JoinSet<Option<Ended>>,
    whose: HashMap<Id, WebhookId>,
    under_way: BTreeMap<WebhookId, usize>,
    /// Those whose last attempt has failed, and when.
    failing: BTreeMap<WebhookId, Instant>,
    is_closed: bool,
}

impl Receivers {
    /// Begins an attempt.
    pub(super) fn begin(
        &mut self,
        webhook_id: WebhookId,
        attempt: impl Future<Output = Option<Ended>> + 'static,
    ) {
        let task = self.attempts.spawn_local(attempt);
        self.whose.insert(task.id(), webhook_id);
        let count = self.under_way.entry(webhook_id).or_default();
        *count = count.saturating_add(1);
    }

    /// Waits until an attempt ends, or for so long, or for the end of all; answers with all that have
    /// ended.
    pub(super) async fn wait(
        &mut self,
        at_most: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Vec<Ended> {
        let first = tokio::select! {
            joined = self.attempts.join_next_with_id(), if !self.attempts.is_empty() => joined,
            () = tokio::time::sleep(at_most) => None,
            // It fails only when nobody can stop it any more, which is the end, too.
            _ = stopped.wait_for(|is_stopped| *is_stopped), if !self.is_closed => None,
        };
        let mut ended: Vec<_> = first.and_then(|joined| self.end(joined)).into_iter().collect();
        while let Some(joined) = self.attempts.try_join_next_with_id() {
            ended.extend(self.end(joined));
        }
        ended
    }

    fn end(&mut self, joined: Result<(Id, Option<Ended>), JoinError>) -> Option<Ended> {
        let (id, ended) = match joined {
            Ok((id, ended)) => (id, ended),
            // Nothing is booked of an attempt that panicked: it is made again.
            Err(failed) => (failed.id(), None),
        };
        let webhook_id = self.whose.remove(&id)?;
        if let Some(count) = self.under_way.get_mut(&webhook_id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.under_way.remove(&webhook_id);
            }
        }
        match ended.as_ref().is_some_and(|ended| ended.outcome.has_arrived()) {
            true => self.failing.remove(&webhook_id),
            false => self.failing.insert(webhook_id, Instant::now()),
        };
        ended
    }

    /// Begins nothing any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether nothing is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.attempts.is_empty()
    }

    /// How many more attempts can be made.
    pub(super) fn room(&self) -> Room {
        if self.is_closed {
            return Room::default();
        }
        let busy = self.under_way.keys().chain(self.failing.keys());
        let less = busy.map(|webhook_id| {
            let most = match self.failing.get(webhook_id) {
                Some(failed_at) if failed_at.elapsed() < REST => 0,
                Some(_) => AT_ONE_THAT_FAILS,
                None => AT_ONE,
            };
            let count = self.under_way.get(webhook_id).copied().unwrap_or(0);
            (*webhook_id, most.saturating_sub(count))
        });
        Room {
            free: AT_ONCE.saturating_sub(self.attempts.len()),
            of_each: AT_ONE,
            less: less.collect(),
        }
    }
}
