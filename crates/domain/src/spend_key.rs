//! Spend keys: keys for calls alone, with limits.

use serde::{Deserialize, Serialize};
use tollgate_pricing::Amount;

use crate::answer_report::AnswerReport;
use crate::calendar::CycleCalendar;
use crate::cycle::Cycle;
use crate::id::{BudgetId, MerchantId, MeterId, SpendKeyId, WalletId};
use crate::span::TimeZone;
use crate::spend_counters::{LimitCalendars, SpendCounters, SpendLimit};
use crate::time::Timestamp;

/// The status of a spend key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpendKeyStatus {
    /// In use.
    #[default]
    Active,
    /// Refused until it is active again.
    Paused,
}

/// One of the two common request formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFormat {
    /// The format of `/v1/chat/completions` and related endpoints.
    #[default]
    ShapeA,
    /// The format of `/v1/messages`.
    ShapeB,
}

/// The request formats that a key accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestShape {
    /// Both formats, and every other one.
    #[default]
    Any,
    /// Only the format of `/v1/chat/completions` and related endpoints.
    ShapeA,
    /// Only the format of `/v1/messages`.
    ShapeB,
}

impl RequestShape {
    /// Returns whether requests of a format are accepted. `None` is any format except the two.
    pub fn accepts(self, format: Option<RequestFormat>) -> bool {
        match self {
            Self::Any => true,
            Self::ShapeA => format == Some(RequestFormat::ShapeA),
            Self::ShapeB => format == Some(RequestFormat::ShapeB),
        }
    }
}

/// The mode of a limit on money, for calls whose cost is known only afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// A call is admitted while anything is left. The limit is passed by less than the cost of one
    /// call.
    #[default]
    Bounded,
    /// A call is admitted if the most that it can cost is left. The limit is never passed.
    Strict,
}

/// The most calls that are admitted in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimit {
    /// The number of calls, at least 1.
    pub count: u64,
    /// The cycle after which it starts again.
    pub cycle: Cycle,
}

/// The rate limit of a key: see [`Gcra`](crate::Gcra).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Calls per 60 seconds, at least 1.
    pub rpm: u32,
    /// The number of calls that may come at once, at least 1.
    pub burst: u32,
}

/// The rules of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendRules {
    /// The status.
    pub status: SpendKeyStatus,
    /// The accepted request formats.
    pub request_shape: RequestShape,
    /// Model ids, or prefixes of ids followed by `*`; `None` allows all.
    pub allowed_models: Option<Vec<String>>,
    /// Provider names; `None` allows all.
    pub allowed_providers: Option<Vec<String>>,
    /// The spend limit.
    pub spend_limit: Option<SpendLimit>,
    /// The request limit.
    pub request_limit: Option<RequestLimit>,
    /// The rate limit.
    pub rate_limit: Option<RateLimit>,
    /// The most that each run of the key may spend, in USD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_limit: Option<Amount>,
    /// The mode of limits on money.
    pub enforcement: Enforcement,
    /// The time of expiry.
    pub expires_at: Option<Timestamp>,
    /// The report in the answers to its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<AnswerReport>,
    /// The calendar of the spend limit. Without that limit, it is that of UTC.
    #[serde(default, skip_serializing_if = "CycleCalendar::is_default")]
    pub spend_calendar: CycleCalendar,
    /// The calendar of the request limit. Without that limit, it is that of UTC.
    #[serde(default, skip_serializing_if = "CycleCalendar::is_default")]
    pub request_calendar: CycleCalendar,
}

impl SpendRules {
    /// Returns whether calls of `model` are allowed.
    pub fn allows_model(&self, model: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => pattern == model,
        };
        self.allowed_models.as_ref().is_none_or(|allowed| allowed.iter().any(matches))
    }

    /// Returns whether calls to `provider` are allowed.
    pub fn allows_provider(&self, provider: &str) -> bool {
        let allowed = self.allowed_providers.as_ref();
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == provider))
    }

    /// The calendars of its limits.
    pub const fn calendars(&self) -> LimitCalendars<'_> {
        LimitCalendars { spend: &self.spend_calendar, requests: &self.request_calendar }
    }

    /// The cycle by which spend is shown: the cycle of the spend limit, or the day.
    pub fn spend_cycle(&self) -> Cycle {
        self.spend_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }

    /// The cycle by which calls are shown: the cycle of the request limit, or the day.
    pub fn request_cycle(&self) -> Cycle {
        self.request_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }
}

/// A key for calls alone: it has rules, and its wallet pays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendKey {
    /// The id.
    pub spend_key_id: SpendKeyId,
    /// The merchant that owns it.
    pub merchant_id: MerchantId,
    /// The wallet that pays.
    pub wallet_id: WalletId,
    /// The meter that prices its calls.
    pub meter_id: Option<MeterId>,
    /// The budget that its calls count against.
    #[serde(default)]
    pub budget_id: Option<BudgetId>,
    /// Display name.
    pub name: String,
    /// The first characters of the key.
    pub key_preview: String,
    /// The rules.
    pub rules: SpendRules,
    /// The counters.
    pub counters: SpendCounters,
    /// The time of creation.
    pub created_at: Timestamp,
}

impl SpendKey {
    /// The counters at `now`.
    pub fn counters_at(&self, now: Timestamp) -> SpendCounters {
        self.counters.at(now, self.rules.calendars())
    }
}

/// The fields of a new key, as the merchant states them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSpendKey {
    /// Display name.
    pub name: String,
    /// The wallet that pays; the merchant's own when absent.
    pub wallet_id: Option<WalletId>,
    /// The meter that prices its calls.
    pub meter_id: Option<MeterId>,
    /// The budget that its calls count against.
    pub budget_id: Option<BudgetId>,
    /// The rules.
    pub rules: SpendRules,
}

/// The changes of a key. `None` keeps a field, `Some(None)` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpendKeyChanges {
    /// Display name.
    pub name: Option<String>,
    /// The meter that prices its calls.
    pub meter_id: Option<Option<MeterId>>,
    /// The budget that its calls count against.
    pub budget_id: Option<Option<BudgetId>>,
    /// The status.
    pub status: Option<SpendKeyStatus>,
    /// The accepted request formats.
    pub request_shape: Option<RequestShape>,
    /// The allowed models.
    pub allowed_models: Option<Option<Vec<String>>>,
    /// The allowed providers.
    pub allowed_providers: Option<Option<Vec<String>>>,
    /// The spend limit.
    pub spend_limit: Option<Option<SpendLimit>>,
    /// The time zone of the spend limit.
    pub spend_zone: Option<TimeZone>,
    /// The request limit.
    pub request_limit: Option<Option<RequestLimit>>,
    /// The time zone of the request limit.
    pub request_zone: Option<TimeZone>,
    /// The rate limit.
    pub rate_limit: Option<Option<RateLimit>>,
    /// The limit of each run, in USD.
    pub run_limit: Option<Option<Amount>>,
    /// The mode of limits on money.
    pub enforcement: Option<Enforcement>,
    /// The time of expiry.
    pub expires_at: Option<Option<Timestamp>>,
    /// The report in the answers to its calls.
    pub report: Option<Option<AnswerReport>>,
}

impl SpendRules {
    /// The rules after `changes` at `now`. `last_used_at` is that of the key's counters.
    pub fn changed(
        mut self,
        changes: SpendKeyChanges,
        now: Timestamp,
        last_used_at: Option<Timestamp>,
    ) -> Self {
        fn set<T>(field: &mut T, change: Option<T>) {
            if let Some(value) = change {
                *field = value;
            }
        }
        set(&mut self.status, changes.status);
        set(&mut self.request_shape, changes.request_shape);
        set(&mut self.allowed_models, changes.allowed_models);
        set(&mut self.allowed_providers, changes.allowed_providers);
        set(&mut self.spend_limit, changes.spend_limit);
        set(&mut self.request_limit, changes.request_limit);
        set(&mut self.rate_limit, changes.rate_limit);
        set(&mut self.run_limit, changes.run_limit);
        set(&mut self.enforcement, changes.enforcement);
        set(&mut self.expires_at, changes.expires_at);
        set(&mut self.report, changes.report);
        if let Some(zone) = changes.spend_zone {
            self.spend_calendar.change(zone, now, last_used_at);
        }
        if let Some(zone) = changes.request_zone {
            self.request_calendar.change(zone, now, last_used_at);
        }
        self
    }
}
