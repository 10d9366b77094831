//! Attempts under way, by receiver, so that a slow or dead receiver takes no room from others.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tollgate_domain::{MerchantId, WebhookId};
use tollgate_store::deliveries::{AttemptCapacity, CapacityShare, EndedAttempt};

/// The most attempts under way at once, in all: each is a connection.
pub(super) const AT_ONCE: usize = 512;
/// The most at the webhooks of one merchant. Its slow receivers leave room for other merchants.
const AT_ONE_MERCHANT: usize = 64;
/// The most at one webhook.
const AT_ONE: usize = 16;
/// The most at a webhook whose last attempt has failed: one is enough to see when it is back.
const AT_ONE_THAT_FAILS: usize = 1;
/// The pause of a webhook after a failure. By it a dead receiver costs little, however long its queue is.
const REST: Duration = Duration::from_millis(500);
/// The time for which a failure is remembered.
const FORGET_AFTER: Duration = Duration::from_secs(10 * 60);

/// The attempts that are under way.
#[derive(Default)]
pub(super) struct AttemptPool {
    attempts: JoinSet<Option<EndedAttempt>>,
    targets: HashMap<Id, (MerchantId, WebhookId)>,
    /// The webhooks whose last attempt has failed, and when.
    failing: BTreeMap<WebhookId, Instant>,
    is_closed: bool,
}

impl AttemptPool {
    /// Begins an attempt.
    pub(super) fn begin(
        &mut self,
        whose: (MerchantId, WebhookId),
        attempt: impl Future<Output = Option<EndedAttempt>> + 'static,
    ) {
        let task = self.attempts.spawn_local(attempt);
        self.targets.insert(task.id(), whose);
    }

    /// Waits until an attempt ends, for `at_most`, or for the stop. Returns all attempts that have ended.
    pub(super) async fn wait(
        &mut self,
        at_most: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Vec<EndedAttempt> {
        let first = tokio::select! {
            joined = self.attempts.join_next_with_id(), if !self.attempts.is_empty() => joined,
            () = tokio::time::sleep(at_most) => None,
            // An error means that the sender is gone, which is a stop, too.
            _ = stopped.wait_for(|is_stopped| *is_stopped), if !self.is_closed => None,
        };
        let mut ended: Vec<_> = first.and_then(|joined| self.end(joined)).into_iter().collect();
        while let Some(joined) = self.attempts.try_join_next_with_id() {
            ended.extend(self.end(joined));
        }
        ended
    }

    fn end(
        &mut self,
        joined: Result<(Id, Option<EndedAttempt>), JoinError>,
    ) -> Option<EndedAttempt> {
        let (id, ended) = match joined {
            Ok((id, ended)) => (id, ended),
            // An attempt that panicked is not booked: it is made again.
            Err(failed) => (failed.id(), None),
        };
        let (_, webhook_id) = self.targets.remove(&id)?;
        match ended.as_ref().is_some_and(|ended| ended.outcome.has_arrived()) {
            true => self.failing.remove(&webhook_id),
            false => self.failing.insert(webhook_id, Instant::now()),
        };
        ended
    }

    /// Begins no more attempts.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether no attempt is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.attempts.is_empty()
    }

    /// The room for more attempts.
    pub(super) fn room(&mut self) -> AttemptCapacity {
        if self.is_closed {
            return AttemptCapacity::default();
        }
        self.failing.retain(|_, failed_at| failed_at.elapsed() < FORGET_AFTER);
        let mut webhooks = CapacityShare { each: AT_ONE, reduced: BTreeMap::new() };
        let mut merchants = CapacityShare { each: AT_ONE_MERCHANT, reduced: BTreeMap::new() };
        for (webhook_id, failed_at) in &self.failing {
            let rests = failed_at.elapsed() < REST;
            webhooks.reduced.insert(*webhook_id, if rests { 0 } else { AT_ONE_THAT_FAILS });
        }
        for (merchant_id, webhook_id) in self.targets.values() {
            webhooks.take(*webhook_id, 1);
            merchants.take(*merchant_id, 1);
        }
        let free = AT_ONCE.saturating_sub(self.attempts.len());
        AttemptCapacity { free, webhooks, merchants }
    }
}
