//! The script of a provider, and the counts of its calls.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::{mpsc, watch};

use super::request::RecordedRequest;
use super::response::ScriptedResponse;
use crate::socket::TestSocket;

/// The state that the provider and its connections share.
#[derive(Debug)]
pub(super) struct ProviderState {
    pub(super) script: Mutex<Script>,
    pub(super) counts: watch::Sender<CallCounts>,
    /// The sockets that were opened.
    pub(super) opened: mpsc::UnboundedSender<TestSocket>,
}

#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) replies: VecDeque<ScriptedResponse>,
    pub(super) always: Option<ScriptedResponse>,
    pub(super) requests: Vec<RecordedRequest>,
}

/// The counts so far; tests can wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallCounts {
    pub(super) connections: usize,
    pub(super) calls: usize,
    pub(super) answered: usize,
    pub(super) hang_ups: usize,
}

impl ProviderState {
    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("nothing panics while it holds the script")
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut CallCounts)) {
        self.counts.send_modify(change);
    }

    /// Whether the script has no answer of its own for the next call.
    pub(super) fn has_ended(&self) -> bool {
        self.script().replies.is_empty()
    }

    /// Records a call whose head has arrived; returns its index and the answer.
    pub(super) fn begin(&self, request: RecordedRequest) -> (usize, ScriptedResponse) {
        let mut script = self.script();
        let index = script.requests.len();
        script.requests.push(request);
        let reply = script.replies.pop_front().or_else(|| script.always.clone());
        drop(script);
        self.count(|counts| counts.calls += 1);
        (
            index,
            reply.unwrap_or_else(|| {
                ScriptedResponse::json(500, r#"{"error":"the script has ended"}"#)
            }),
        )
    }
}
