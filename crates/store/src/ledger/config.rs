//! The configuration by which calls are decided and which calls do not change: keys, connections, meters, and whether a
//! merchant's own wallet has a limit.
//!
//! It changes rarely, so it is kept from group to group. On PostgreSQL another node may change it. Triggers count its
//! changes for each merchant in `config_versions`. The statement that writes a group reads the count. A group that was
//! decided by an older configuration is decided again.

use std::collections::{BTreeSet, HashMap};

use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::{
    Budget, BudgetId, BudgetTree, Connection, ConnectionId, MerchantId, MerchantMeter, MeterId,
    MeterVersion, Run, SecretKeyId, SpendKey, SpendKeyId, WalletId,
};

use crate::dialect::group::ConfigBasis;
use crate::ids::Id;
use crate::meters::MeterPricing;
use crate::rows::SpendKeyRow;

/// The known configurations.
#[derive(Default)]
pub(super) struct ConfigCache {
    pub(super) merchants: HashMap<MerchantId, MerchantConfig>,
    /// Meter versions are immutable, so these are kept for ever.
    pub(super) versions: HashMap<MeterVersion, MeterPricing>,
}

/// The known part of a merchant's configuration.
#[derive(Default)]
pub(super) struct MerchantConfig {
    /// The number of changes before any of it was read.
    pub(super) version: i64,
    pub(super) secret_keys: HashMap<SecretKeyId, OwnWallet>,
    pub(super) spend_keys: HashMap<SpendKeyId, CachedSpendKey>,
    pub(super) connections: HashMap<ConnectionId, Connection>,
    /// The budgets that were needed, each with all that include it. Without their counters.
    pub(super) budgets: BudgetTree,
    /// Whether all budgets that take calls by their metadata are among them.
    pub(super) has_matching_budgets: bool,
    /// The meters of spend keys, by id.
    pub(super) meters: HashMap<MeterId, MerchantMeter>,
    /// The meters of credentials, by slug.
    pub(super) meters_by_slug: HashMap<String, MerchantMeter>,
}

/// A merchant's own wallet.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnWallet {
    pub(super) wallet_id: WalletId,
    /// Whether admissions check its balance: it has a limit, or almost no room.
    pub(super) is_guarded: bool,
    /// Whether the merchant moves to another cell: then no call is admitted here.
    pub(super) has_moved: bool,
}

pub(super) struct CachedSpendKey {
    pub(super) row: SpendKeyRow,
    /// The key of the row, without its counters.
    pub(super) spend_key: SpendKey,
    pub(super) own_wallet: OwnWallet,
}

/// The part of the configuration that one call names.
#[derive(Clone, Default)]
pub(super) struct CallConfig<'a> {
    /// Absent when the key is not valid here.
    pub(super) own_wallet: Option<OwnWallet>,
    /// Without its counters.
    pub(super) spend_key: Option<&'a SpendKey>,
    pub(super) connection: Option<&'a Connection>,
    /// The connection whose wallet the spend key draws on.
    pub(super) key_connection: Option<&'a Connection>,
    pub(super) meter: Option<&'a MerchantMeter>,
    /// The budgets that the call counts against, by ascending id.
    pub(super) budget_ids: Vec<BudgetId>,
    /// The budget that the spend key names, else the customer.
    pub(super) own_budget_id: Option<BudgetId>,
    /// The run of the call, without its limit and its counters.
    pub(super) run: Option<Run>,
}

impl CallConfig<'_> {
    /// The wallet of the request: the connection's, else the spend key's.
    pub(super) fn wallet_id(&self) -> Option<WalletId> {
        let of_connection = self.connection.map(|one| one.wallet_id);
        of_connection.or_else(|| self.spend_key.map(|key| key.wallet_id))
    }

    /// The merchant's own wallet, if admissions check its balance. A wallet without a limit is not checked and not
    /// locked.
    pub(super) fn guarded_wallet_id(&self) -> Option<WalletId> {
        self.own_wallet.filter(|wallet| wallet.is_guarded).map(|wallet| wallet.wallet_id)
    }
}

impl ConfigCache {
    /// The configuration that a call names, as far as it exists and belongs to the call's merchant.
    pub(super) fn call_config(&self, call: &Call) -> CallConfig<'_> {
        self.merchants
            .get(&call.merchant_id)
            .map(|config| config.call_config(call))
            .unwrap_or_default()
    }

    /// A spend key, deleted or not.
    pub(super) fn spend_key(&self, merchant_id: MerchantId, id: SpendKeyId) -> Option<&SpendKey> {
        let key = self.merchants.get(&merchant_id)?.spend_keys.get(&id)?;
        Some(&key.spend_key)
    }

    /// A budget, deleted or not.
    pub(super) fn budget(&self, merchant_id: MerchantId, id: BudgetId) -> Option<&Budget> {
        self.merchants.get(&merchant_id)?.budgets.get(id)
    }

    /// The configuration versions of these merchants, compared when the group is written.
    pub(super) fn basis(&self, merchants: &BTreeSet<MerchantId>) -> ConfigBasis {
        let known = merchants.iter().filter_map(|id| Some((*id, self.merchants.get(id)?.version)));
        ConfigBasis::new(known)
    }

    /// Forgets the configurations of these merchants, after a change.
    pub(super) fn forget(&mut self, merchants: &BTreeSet<MerchantId>) {
        self.merchants.retain(|id, _| !merchants.contains(id));
    }

    /// The number of known rows.
    pub(super) fn len(&self) -> usize {
        self.merchants.values().map(MerchantConfig::len).sum()
    }
}

impl MerchantConfig {
    fn call_config(&self, call: &Call) -> CallConfig<'_> {
        let key = self.matching_spend_key(call);
        let own_wallet = match call.key {
            CallKey::Secret(id) => self.secret_keys.get(&id).copied(),
            CallKey::Spend(..) => key.map(|key| key.own_wallet),
        };
        let connection = |id: ConnectionId| self.connections.get(&id);
        let named = || self.named_budgets(call);
        CallConfig {
            budget_ids: self.budgets.of_call(named(), &call.forwarded.metadata),
            own_budget_id: named().next(),
            run: call.run_under(key.map(|key| &key.spend_key)),
            own_wallet: own_wallet.filter(|wallet| !wallet.has_moved),
            spend_key: key.map(|key| &key.spend_key),
            connection: call.connection_id.and_then(connection),
            key_connection: key.and_then(|key| connection(key.row.connection_id?.get())),
            meter: match &call.meter_slug {
                Some(slug) => self.meters_by_slug.get(slug),
                None => key.and_then(|key| self.meters.get(&key.spend_key.meter_id?)),
            },
        }
    }

    /// The spend key of a call, if the presented key matches it.
    pub(super) fn matching_spend_key(&self, call: &Call) -> Option<&CachedSpendKey> {
        let CallKey::Spend(id, hash) = call.key else { return None };
        self.spend_keys.get(&id).filter(|key| key.row.matches_hash(&hash))
    }

    /// The budgets that the spend key of a call and its customers name.
    pub(super) fn named_budgets(&self, call: &Call) -> impl Iterator<Item = BudgetId> {
        let key = self.matching_spend_key(call);
        let of_key = key.and_then(|key| key.row.connection_id).map(Id::get);
        let connections = call.connection_id.into_iter().chain(of_key);
        let connections = connections.filter_map(|id| self.connections.get(&id)?.budget_id);
        key.and_then(|key| key.spend_key.budget_id).into_iter().chain(connections)
    }

    fn len(&self) -> usize {
        self.secret_keys.len()
            + self.spend_keys.len()
            + self.connections.len()
            + self.budgets.len()
            + self.meters.len()
            + self.meters_by_slug.len()
    }
}
