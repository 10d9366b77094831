//! Spend keys: what a restricted key may do, and what was done with it.

use serde::{Deserialize, Serialize};

use crate::cycle::Cycle;
use crate::id::{MerchantId, MeterId, SpendKeyId, WalletId};
use crate::spend_counters::{SpendCounters, SpendLimit};
use crate::time::Timestamp;

/// Whether a key may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpendKeyStatus {
    /// It may.
    #[default]
    Active,
    /// Not until it is active again.
    Paused,
}

/// The format of a request: each of the two is known from the provider that made it common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFormat {
    /// That of `/v1/chat/completions` and its siblings.
    #[default]
    ShapeA,
    /// That of `/v1/messages`.
    ShapeB,
}

/// The formats of requests that a key accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestShape {
    /// Both formats, and every other one.
    #[default]
    Any,
    /// That of `/v1/chat/completions` and its siblings alone.
    ShapeA,
    /// That of `/v1/messages` alone.
    ShapeB,
}

impl RequestShape {
    /// Whether requests of a format are accepted; none is another format than the two.
    pub fn accepts(self, format: Option<RequestFormat>) -> bool {
        match self {
            Self::Any => true,
            Self::ShapeA => format == Some(RequestFormat::ShapeA),
            Self::ShapeB => format == Some(RequestFormat::ShapeB),
        }
    }
}

/// How a limit on money is kept when calls cost what is known only afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// A call is admitted while anything is left: the limit is passed by less than the cost of one
    /// call.
    #[default]
    Bounded,
    /// A call is admitted if the most it can cost is left: the limit is never passed.
    Strict,
}

/// How many calls may be admitted in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLimit {
    /// At least 1.
    pub count: u64,
    /// When it begins anew.
    pub cycle: Cycle,
}

/// How fast calls may follow each other: see [`Gcra`](crate::Gcra).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Calls per 60 seconds, at least 1.
    pub rpm: u32,
    /// How many may come at once, at least 1.
    pub burst: u32,
}

/// What a key may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendRules {
    /// Whether it may be used.
    pub status: SpendKeyStatus,
    /// The format of requests it accepts.
    pub request_shape: RequestShape,
    /// Model ids, or beginnings of ids with a `*` behind; `None` allows all.
    pub allowed_models: Option<Vec<String>>,
    /// Names of providers; `None` allows all.
    pub allowed_providers: Option<Vec<String>>,
    /// How much may be spent.
    pub spend_limit: Option<SpendLimit>,
    /// How many calls may be made.
    pub request_limit: Option<RequestLimit>,
    /// How fast.
    pub rate_limit: Option<RateLimit>,
    /// How limits on money are kept.
    pub enforcement: Enforcement,
    /// From when on it may not be used any more.
    pub expires_at: Option<Timestamp>,
}

impl SpendRules {
    /// Whether calls of `model` are allowed.
    pub fn allows_model(&self, model: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => pattern == model,
        };
        self.allowed_models.as_ref().is_none_or(|allowed| allowed.iter().any(matches))
    }

    /// Whether calls to `provider` are allowed.
    pub fn allows_provider(&self, provider: &str) -> bool {
        let allowed = self.allowed_providers.as_ref();
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == provider))
    }

    /// The cycle by which spend is shown: that of its limit, or the day.
    pub fn spend_cycle(&self) -> Cycle {
        self.spend_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }

    /// The cycle by which calls are shown: that of their limit, or the day.
    pub fn request_cycle(&self) -> Cycle {
        self.request_limit.map_or(Cycle::Daily, |limit| limit.cycle)
    }
}

/// A restricted key: it forwards within its rules, at the cost of its wallet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendKey {
    /// Its id.
    pub spend_key_id: SpendKeyId,
    /// Whose key it is.
    pub merchant_id: MerchantId,
    /// The wallet that pays.
    pub wallet_id: WalletId,
    /// The meter that prices its calls.
    pub meter_id: Option<MeterId>,
    /// Display name.
    pub name: String,
    /// The first characters of the key.
    pub key_preview: String,
    /// What it may do.
    pub rules: SpendRules,
    /// What was done with it.
    pub counters: SpendCounters,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What a merchant states of a new key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSpendKey {
    /// Display name.
    pub name: String,
    /// The wallet that pays; the merchant's own when absent.
    pub wallet_id: Option<WalletId>,
    /// The meter that prices its calls.
    pub meter_id: Option<MeterId>,
    /// What it may do.
    pub rules: SpendRules,
}

/// What changes in a key: `None` leaves a field as it is, `Some(None)` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpendKeyChanges {
    /// Display name.
    pub name: Option<String>,
    /// The meter that prices its calls.
    pub meter_id: Option<Option<MeterId>>,
    /// Whether it may be used.
    pub status: Option<SpendKeyStatus>,
    /// The format of requests it accepts.
    pub request_shape: Option<RequestShape>,
    /// Which models.
    pub allowed_models: Option<Option<Vec<String>>>,
    /// Which providers.
    pub allowed_providers: Option<Option<Vec<String>>>,
    /// How much may be spent.
    pub spend_limit: Option<Option<SpendLimit>>,
    /// How many calls may be made.
    pub request_limit: Option<Option<RequestLimit>>,
    /// How fast.
    pub rate_limit: Option<Option<RateLimit>>,
    /// How limits on money are kept.
    pub enforcement: Option<Enforcement>,
    /// From when on it may not be used any more.
    pub expires_at: Option<Option<Timestamp>>,
}

impl SpendRules {
    /// The rules after `changes`.
    pub fn changed(mut self, changes: SpendKeyChanges) -> Self {
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
        set(&mut self.enforcement, changes.enforcement);
        set(&mut self.expires_at, changes.expires_at);
        self
    }
}
