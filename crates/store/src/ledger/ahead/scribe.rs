//! A thread that writes to the database, so that those who decide need not wait for it.
//!
//! There is one connection that writes. It is lent to the thread together with what is to be done, and
//! comes back with the outcome: while it is here, the thread does nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use r2d2::ManageConnection;

use crate::conn::{Conn, Manager};
use crate::error::StoreError;

/// What is done with the connection; an error is the end of what depends on it.
pub(super) type Errand = Box<dyn FnOnce(&mut Conn) -> Result<(), StoreError> + Send>;

type Outcome = Result<(), StoreError>;

pub(super) struct Scribe {
    /// The connection, while it is here.
    conn: Option<Conn>,
    errands: mpsc::Sender<(Conn, Errand)>,
    returns: mpsc::Receiver<(Conn, Outcome)>,
}

impl Scribe {
    /// Starts the thread, which ends with its [`Scribe`].
    pub(super) fn start(manager: &Manager) -> Result<Self, StoreError> {
        let conn = manager.connect()?;
        let (errands, ordered) = mpsc::channel::<(Conn, Errand)>();
        let (done, returns) = mpsc::channel();
        let serve = move || {
            for (mut conn, errand) in ordered {
                // A connection on which somebody panicked is not used again: it is not given back.
                let outcome = catch_unwind(AssertUnwindSafe(|| errand(&mut conn)));
                let Ok(outcome) = outcome else { return };
                if done.send((conn, outcome)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("ledger-scribe".to_owned());
        thread.spawn(serve).map_err(|cause| StoreError::Unavailable(cause.to_string()))?;
        Ok(Self { conn: Some(conn), errands, returns })
    }

    /// The connection, if it is here.
    pub(super) const fn conn(&mut self) -> Option<&mut Conn> {
        self.conn.as_mut()
    }

    /// Sends the thread on an errand. The connection must be here.
    pub(super) fn send(&mut self, errand: Errand) {
        if let Some(conn) = self.conn.take()
            && let Err(mpsc::SendError((conn, _))) = self.errands.send((conn, errand))
        {
            self.conn = Some(conn);
        }
    }

    /// What became of an errand, if it is done.
    pub(super) fn look(&mut self) -> Option<Outcome> {
        let back = match self.returns.try_recv() {
            Err(mpsc::TryRecvError::Empty) => return None,
            Err(mpsc::TryRecvError::Disconnected) => None,
            Ok(back) => Some(back),
        };
        Some(self.receive(back))
    }

    /// Waits for what becomes of an errand.
    pub(super) fn wait(&mut self) -> Outcome {
        let back = self.returns.recv().ok();
        self.receive(back)
    }

    fn receive(&mut self, back: Option<(Conn, Outcome)>) -> Outcome {
        let Some((conn, outcome)) = back else {
            log::error!("the thread that writes for the ledger has failed");
            return Err(StoreError::Interrupted);
        };
        self.conn = Some(conn);
        outcome
    }
}
