//! Runs: the calls of one task of an agent, which may have a limit in total.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tollgate_pricing::{Amount, Overflow};

use crate::calendar::CycleCalendar;
use crate::cycle::Cycle;
use crate::id::{ConnectionId, Id as _, MerchantId, RequestId, RunAccountId, SpendKeyId};
use crate::span::TimeZone;
use crate::spend_counters::{LimitCalendars, SpendCounters};
use crate::time::Timestamp;

/// The most characters of an id of a run.
pub const RUN_ID_CHARS: usize = 128;

/// The id of a run, as the caller chose it: 1 to [`RUN_ID_CHARS`] of `A-Za-z0-9._:-`. It is empty for the calls of a day
/// that name no run and whose spend key limits its runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

/// The error of a text that is no id of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseRunIdError;

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, ParseRunIdError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let is_id = (1..=RUN_ID_CHARS).contains(&text.len()) && text.bytes().all(is_allowed);
        is_id.then(|| Self(text.to_owned())).ok_or(ParseRunIdError)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RunId {
    /// The id of the run of a day.
    pub const fn of_the_day() -> Self {
        Self(String::new())
    }

    /// The id with this text, which was stored.
    pub const fn stored(text: String) -> Self {
        Self(text)
    }

    /// Whether it is that of the run of a day.
    pub const fn is_of_the_day(&self) -> bool {
        self.0.is_empty()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The run that a call names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRun {
    /// The id.
    pub run_id: RunId,
    /// The limit that the call sets, in USD.
    pub limit: Option<Amount>,
}

/// A run: the calls of a spend key, else of a customer, else of a merchant, that have one id of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The account of its counters.
    pub account_id: RunAccountId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The customer that it belongs to, if it belongs to no spend key.
    pub connection_id: Option<ConnectionId>,
    /// The spend key that it belongs to.
    pub spend_key_id: Option<SpendKeyId>,
    /// The id.
    pub run_id: RunId,
    /// The limit that its calls have set, in USD.
    pub limit: Option<Amount>,
    /// The counters. Only their totals have a meaning.
    pub counters: SpendCounters,
    /// The time of its first call; `None` before it.
    pub first_at: Option<Timestamp>,
}

impl Run {
    /// The run of a call, before its first call.
    ///
    /// Its account follows from the owner and the id, so no node has to look it up. The run of a day has the day in UTC of
    /// `request_id`.
    pub fn of_call(
        merchant_id: MerchantId,
        connection_id: Option<ConnectionId>,
        spend_key_id: Option<SpendKeyId>,
        run_id: RunId,
        request_id: RequestId,
    ) -> Self {
        let connection_id = connection_id.filter(|_| spend_key_id.is_none());
        let mut hash = Sha256::new();
        hash.update(merchant_id.as_bytes());
        hash.update(connection_id.map_or([0; 16], |id| *id.as_bytes()));
        hash.update(spend_key_id.map_or([0; 16], |id| *id.as_bytes()));
        if run_id.is_of_the_day() {
            hash.update(request_id.created_at().days_since_1970().to_be_bytes());
        }
        hash.update(run_id.as_str());
        let mut account_id = [0; 16];
        account_id.iter_mut().zip(hash.finalize()).for_each(|(place, byte)| *place = byte);
        Self {
            account_id: RunAccountId::from_bytes(account_id),
            merchant_id,
            connection_id,
            spend_key_id,
            run_id,
            limit: None,
            counters: SpendCounters::default(),
            first_at: None,
        }
    }

    /// The limit that counts: the smaller one of its own and that of its spend key for each run.
    pub fn limit_with(&self, of_key: Option<Amount>) -> Option<Amount> {
        self.limit.into_iter().chain(of_key).min()
    }

    /// The cycle after which another run counts: none, or the day of a run of a day. Its counters are those in total in
    /// both cases.
    pub const fn cycle(&self) -> Cycle {
        match self.run_id.is_of_the_day() {
            true => Cycle::Daily,
            false => Cycle::Total,
        }
    }

    /// The calendars of its counters. A run has no cycles.
    pub const fn calendars() -> LimitCalendars<'static> {
        static UTC: CycleCalendar = CycleCalendar::of(TimeZone::UTC);
        LimitCalendars { spend: &UTC, requests: &UTC }
    }

    /// Counts a call of `created_at` that is admitted without a decision and holds nothing. Such calls may come in any
    /// order.
    ///
    /// # Errors
    /// As [`SpendCounters::admit`].
    pub fn admit(&mut self, created_at: Timestamp) -> Result<(), Overflow> {
        self.first_at = self.first_at.into_iter().chain([created_at]).min();
        let at = self.counters.admitted_at(created_at);
        self.counters.admit(at, Amount::ZERO, Self::calendars())
    }

    /// Whether it counts a call of `created_at` that was admitted before. An earlier run with its id may have been
    /// forgotten.
    pub fn counts(&self, created_at: Timestamp) -> bool {
        self.first_at.is_some_and(|first_at| first_at <= created_at)
    }

    /// Ends a call: releases `hold` and counts `cost`. For a correction, `cost` is the difference.
    ///
    /// # Errors
    /// As [`SpendCounters::settle`].
    pub fn settle(
        &mut self,
        admitted_at: Timestamp,
        hold: Amount,
        cost: Amount,
    ) -> Result<(), Overflow> {
        self.counters.settle(admitted_at, hold, cost, Self::calendars())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_micros(1_795_219_200_000_000);

    #[test]
    fn an_id_of_a_run_has_letters_digits_and_four_signs() {
        for text in ["a", "Task_1", "run.2026-11-26:7", &"x".repeat(128)] {
            assert!(text.parse::<RunId>().is_ok(), "{text}");
        }
        for text in ["", " a", "a b", "é", "a/b", &"x".repeat(129)] {
            assert_eq!(text.parse::<RunId>(), Err(ParseRunIdError), "{text}");
        }
    }

    #[test]
    fn the_account_of_a_run_is_that_of_its_owner_its_id_and_its_day() {
        let (merchant, connection, key) =
            (MerchantId::generate(NOW), ConnectionId::generate(NOW), SpendKeyId::generate(NOW));
        let run = |connection, key, id: &str, at| {
            let run_id = RunId::stored(id.to_owned());
            Run::of_call(merchant, connection, key, run_id, RequestId::generate(at)).account_id
        };
        let tomorrow = NOW.plus_millis(86_400_000);
        let of_key = run(None, Some(key), "a", NOW);
        assert_eq!(of_key, run(Some(connection), Some(key), "a", tomorrow), "a key comes first");
        let others = [
            run(None, None, "a", NOW),
            run(Some(connection), None, "a", NOW),
            run(None, Some(key), "b", NOW),
            run(None, Some(key), "", NOW),
            run(None, Some(key), "", tomorrow),
            of_key,
        ];
        let different: std::collections::BTreeSet<_> = others.into_iter().collect();
        assert_eq!(different.len(), others.len());
        assert_eq!(run(None, Some(key), "", NOW), run(None, Some(key), "", NOW.plus_millis(1)));
    }

    #[test]
    fn calls_without_a_decision_may_come_in_any_order() {
        let (merchant, at) = (MerchantId::generate(NOW), |millis| NOW.plus_millis(millis));
        let run_id = "a".parse().unwrap();
        let mut run = Run::of_call(merchant, None, None, run_id, RequestId::generate(NOW));
        for millis in [5_000, 0, 9_000] {
            run.admit(at(millis)).unwrap();
        }
        assert_eq!((run.first_at, run.counters.requests.total), (Some(NOW), 3));
        assert!(run.counts(NOW) && !run.counts(at(-1)));
    }
}
