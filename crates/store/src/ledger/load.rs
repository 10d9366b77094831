//! The load step of a group. No other part of the ledger reads the database.
//!
//! Rows that are known are not read again. Tables are locked in one order everywhere (records that are corrected, open
//! calls, counters of spend keys, budgets and runs, runs, wallets, tier counters), and rows of a table in the order of
//! their ids. So the groups of several nodes do not deadlock.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::settlement::{self, CallReport, Ending};
use tollgate_domain::{
    Budget, BudgetId, Connection, ConnectionId, Id as _, MerchantId, MeterVersion, PendingRecord,
    RequestId, Run, RunAccountId, SecretKeyId, SpendCounters, SpendKey, SpendKeyId, WalletId,
};

use super::command::{LedgerCommand, Settlement};
use super::config::{CachedSpendKey, CallConfig, ConfigCache, MerchantConfig, OwnWallet};
use super::context::LedgerContext;
use super::state::{Accounts, CallState, LedgerState};
use crate::conn::Conn;
use crate::dialect::group::{self, FoundRows, NeededRows};
use crate::dialect::{self, RowLock};
use crate::error::StoreError;
use crate::ids::Id;
use crate::meters::{self, MeterPricing};
use crate::rows::{CounterKey, RunRow, TierCounterRow, WalletRow, counter_key};
use crate::write_set::LedgerWallet;
use crate::{budgets, records, subscriptions};

/// The rows that a group needs, without its configuration.
#[derive(Default)]
pub(super) struct GroupNeeds {
    /// The open calls that the group settles.
    open_calls: BTreeSet<RequestId>,
    /// The settled calls that may be corrected.
    settled_calls: BTreeSet<RequestId>,
    accounts: AccountIds,
    counters: BTreeSet<CounterKey>,
    /// The spend keys of the settled calls.
    settled_keys: BTreeSet<(MerchantId, SpendKeyId)>,
    /// The budgets of the settled calls.
    settled_budgets: BTreeSet<(MerchantId, BudgetId)>,
    /// The merchants whose configuration the group is decided by.
    pub(super) merchants: BTreeSet<MerchantId>,
}

/// The open calls that this process has in memory.
#[derive(Clone, Copy)]
pub(super) struct CallMemory<'a> {
    pub(super) context: &'a LedgerContext,
    /// Whether a call in memory is used without a read.
    pub(super) is_trusted: bool,
}

#[derive(Default)]
struct AccountIds {
    wallets: BTreeSet<WalletId>,
    spend_keys: BTreeSet<SpendKeyId>,
    budgets: BTreeSet<BudgetId>,
    /// Without their limits and counters: a run that is not found is new.
    runs: BTreeMap<RunAccountId, Run>,
}

impl AccountIds {
    /// Adds the accounts that an admission needs.
    fn add(&mut self, named: &CallConfig<'_>) {
        self.spend_keys.extend(named.spend_key.map(|key| key.spend_key_id));
        self.budgets.extend(named.budget_ids.iter().copied());
        self.add_run(named.run.clone());
        self.wallets.extend(named.wallet_id());
        self.wallets.extend(named.guarded_wallet_id());
    }

    fn add_run(&mut self, run: Option<Run>) {
        self.runs.extend(run.map(|run| (run.account_id, run)));
    }
}

impl GroupNeeds {
    /// Adds the rows that an admission needs.
    pub(super) fn add_admission(&mut self, configs: &ConfigCache, call: &Call) {
        self.accounts.add(&configs.call_config(call));
    }
}

/// Whether all rows of a group are known and, where rows are locked, locked.
#[derive(PartialEq, Eq)]
pub(super) enum LoadOutcome {
    Ready,
    /// Another node has settled an open call since it was read. Its settlement may need other rows.
    Stale,
}

/// Reads the calls that a group settles, and the configuration by which the group is decided. Returns the other rows
/// that it needs. With `memory`, calls that this process has admitted are taken from there.
pub(super) fn load_calls(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    state: &mut LedgerState,
    group: &[&LedgerCommand],
    memory: CallMemory<'_>,
) -> Result<GroupNeeds, StoreError> {
    let settlements: Vec<_> = group.iter().filter_map(|command| command.settlement()).collect();
    let calls: Vec<_> = group.iter().filter_map(|command| command.call()).collect();
    read_calls(conn, state, &settlements, memory)?;
    let mut needs = GroupNeeds::default();
    for settlement in settlements {
        needs.add_settlement(conn, configs, state, settlement)?;
    }
    needs.merchants.extend(calls.iter().map(|call| call.merchant_id));
    read_configs(conn, configs, &calls, &needs)?;
    Ok(needs)
}

/// Reads the rows that are needed and not known, and locks them where rows are locked.
pub(super) fn load_accounts(
    conn: &mut Conn,
    configs: &ConfigCache,
    state: &mut LedgerState,
    needs: &GroupNeeds,
) -> Result<LoadOutcome, StoreError> {
    let locks = dialect::has_row_locks(conn);
    let mut needed = unknown_accounts(&state.accounts, &needs.accounts);
    let unknown = needs.counters.iter().filter(|key| !state.counters.contains_key(*key));
    needed.counters = unknown.map(|key| TierCounterRow::new(key, 0)).collect();
    if locks {
        needed.open_calls = needs.open_calls.iter().copied().map(Id).collect();
        // Another node may have corrected them since they were read.
        reread_settled(conn, state, &needs.settled_calls)?;
    }
    if needed.is_empty() {
        return Ok(LoadOutcome::Ready);
    }
    let found = group::read(conn, &needed, RowLock::Rows)?;
    if found.open_calls < needed.open_calls.len() {
        return Ok(LoadOutcome::Stale);
    }
    let counters = needed.counters.iter().chain(&found.counters);
    let counters: Vec<_> = counters.map(|row| (row.key(), row.used)).collect();
    state.counters.extend(counters);
    add_accounts(conn, configs, &mut state.accounts, &needs.accounts.runs, &found)?;
    Ok(LoadOutcome::Ready)
}

/// The accounts that these calls draw on, read without a lock.
pub(super) fn read_unlocked<'a>(
    conn: &mut Conn,
    configs: &ConfigCache,
    calls: impl Iterator<Item = &'a Call>,
) -> Result<Accounts, StoreError> {
    let (mut accounts, mut ids) = (Accounts::default(), AccountIds::default());
    calls.for_each(|call| ids.add(&configs.call_config(call)));
    let found = group::read(conn, &unknown_accounts(&accounts, &ids), RowLock::No)?;
    add_accounts(conn, configs, &mut accounts, &ids.runs, &found)?;
    if !accounts.subscriptions.is_empty() {
        // A renewal may be committed between the two reads. Wallets that are read after their subscriptions are at
        // least as new, or the subscription is found to be due.
        let ids: Vec<_> = accounts.wallets.keys().copied().map(Id).collect();
        add_wallets(&mut accounts, &dialect::wallets(conn, &ids, RowLock::No)?)?;
    }
    Ok(accounts)
}

impl GroupNeeds {
    /// Adds the rows that a settlement needs.
    fn add_settlement(
        &mut self,
        conn: &mut Conn,
        configs: &mut ConfigCache,
        state: &LedgerState,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        let id = settlement.request_id;
        let (call, has_paid) = match state.calls.get(&id) {
            Some(CallState::Open(call)) => {
                self.open_calls.insert(id);
                (call, false)
            }
            Some(CallState::Unadmitted(call)) => (call, false),
            // Only a settlement of the sweeper is corrected.
            Some(CallState::Settled(settled)) => {
                if !settled.record.swept || settlement.report.is_none() {
                    return Ok(());
                }
                self.settled_calls.insert(id);
                (&settled.call, !settled.merchant_paid.is_zero())
            }
            None => return Ok(()),
        };
        let version = match call.meter {
            Some(meter) => {
                let version = meter_pricing(conn, configs, meter)?;
                self.counters.insert(counter_key(call, meter.meter_id, version.tier_period));
                Some(version)
            }
            None => None,
        };
        self.accounts.wallets.extend(call.wallet_id);
        if let Some(spend_key_id) = call.spend_key_id {
            self.accounts.spend_keys.insert(spend_key_id);
            self.settled_keys.insert((call.merchant_id, spend_key_id));
            self.merchants.insert(call.merchant_id);
        }
        if !call.budgets.ids.is_empty() {
            self.accounts.budgets.extend(call.budgets.ids.iter().copied());
            let budgets = call.budgets.ids.iter().map(|id| (call.merchant_id, *id));
            self.settled_budgets.extend(budgets);
            self.merchants.insert(call.merchant_id);
        }
        self.accounts.add_run(call.run());
        if has_paid || may_charge_merchant(call, settlement.report.as_deref(), version) {
            self.accounts.wallets.insert(call.merchant_wallet_id);
        }
        Ok(())
    }
}

/// Whether the merchant's own wallet must be locked. All calls of the merchant share that row.
fn may_charge_merchant(
    call: &PendingRecord,
    report: Option<&CallReport>,
    version: Option<&MeterPricing>,
) -> bool {
    let ending = report.map_or(Ending::Lost, |report| report.ending);
    let meter = version.map(|version| &version.model);
    !call.merchant_hold.is_zero()
        || settlement::merchant_may_pay(
            call.wallet_id.is_some(),
            call.disable_billing,
            ending,
            meter,
        )
}

/// Reads the calls to be settled, from memory or the database.
fn read_calls(
    conn: &mut Conn,
    state: &mut LedgerState,
    settlements: &[&Settlement],
    memory: CallMemory<'_>,
) -> Result<(), StoreError> {
    let unknown = settlements.iter().map(|one| one.request_id);
    let unknown = unknown.filter(|id| !state.calls.contains_key(id));
    let mut unknown: BTreeSet<_> = unknown.collect();
    if memory.is_trusted {
        let open_calls = memory.context.open_calls();
        unknown.retain(|id| match open_calls.get(id) {
            Some(call) => state.calls.insert(*id, CallState::Open(Arc::clone(call))).is_some(),
            None => true,
        });
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = unknown.iter().copied().map(Id).collect();
    for row in dialect::open_calls(conn, &ids)? {
        let call = PendingRecord::try_from(&row)?;
        unknown.remove(&call.request_id);
        state.calls.insert(call.request_id, CallState::Open(Arc::new(call)));
    }
    let known = settlements.iter().filter_map(|one| Some((one.request_id, one.call.as_ref()?)));
    let merchants = known.map(|(id, call)| (id, call.merchant_id)).collect();
    read_settled(conn, state, &unknown, &merchants, RowLock::No)?;
    // A database that was restored or failed over without its last commits may not know a call.
    for settlement in settlements {
        let id = settlement.request_id;
        let in_memory = || memory.context.open_calls().get(&id).cloned();
        if !state.calls.contains_key(&id)
            && let Some(call) = in_memory().or_else(|| settlement.call.clone())
        {
            log::warn!("{id} is not in the database: it is admitted and settled");
            let call = Arc::new(PendingRecord::clone(&call).without_holds());
            state.calls.insert(id, CallState::Unadmitted(call));
        }
    }
    Ok(())
}

/// Reads settled calls again, under a lock.
fn reread_settled(
    conn: &mut Conn,
    state: &mut LedgerState,
    ids: &BTreeSet<RequestId>,
) -> Result<(), StoreError> {
    let mut merchants = HashMap::new();
    for id in ids {
        if let Some(CallState::Settled(settled)) = state.calls.get(id) {
            merchants.insert(*id, settled.call.merchant_id);
        }
    }
    read_settled(conn, state, ids, &merchants, RowLock::Rows)
}

/// Reads settled calls. `merchants` gives the owners of some of them.
fn read_settled(
    conn: &mut Conn,
    state: &mut LedgerState,
    ids: &BTreeSet<RequestId>,
    merchants: &HashMap<RequestId, MerchantId>,
    lock: RowLock,
) -> Result<(), StoreError> {
    let mut by_merchant: BTreeMap<MerchantId, Vec<Id<RequestId>>> = BTreeMap::new();
    let mut others = Vec::new();
    for id in ids {
        match merchants.get(id) {
            Some(merchant_id) => by_merchant.entry(*merchant_id).or_default().push(Id(*id)),
            None => others.push(Id(*id)),
        }
    }
    if !others.is_empty() {
        for (merchant_id, id) in dialect::request_keys(conn, &others)? {
            by_merchant.entry(merchant_id.get()).or_default().push(id);
        }
    }
    for (merchant_id, mut ids) in by_merchant {
        ids.sort_unstable();
        let mut rows = dialect::requests(conn, merchant_id, &ids, lock)?;
        records::correct(conn, &mut rows)?;
        for row in rows {
            let settled = CallState::Settled(row.settled_call(None)?);
            state.calls.insert(row.request_id.get(), settled);
        }
    }
    Ok(())
}

/// Returns a meter version, read once and kept.
fn meter_pricing<'a>(
    conn: &mut Conn,
    configs: &'a mut ConfigCache,
    meter: MeterVersion,
) -> Result<&'a MeterPricing, StoreError> {
    match configs.versions.entry(meter) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(unknown) => {
            let MeterVersion { meter_id, version } = meter;
            Ok(unknown.insert(meters::model_of(conn, meter_id, version)?))
        }
    }
}

/// Reads the configuration that these calls name, and the spend keys of settled calls.
fn read_configs(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    calls: &[&Call],
    needs: &GroupNeeds,
) -> Result<(), StoreError> {
    let unknown = needs.merchants.iter().filter(|id| !configs.merchants.contains_key(id));
    let unknown: Vec<_> = unknown.copied().map(Id).collect();
    if !unknown.is_empty() {
        // The versions first: a change during the reads below then gives a newer version.
        let versions = group::config_versions(conn, &unknown)?;
        for id in unknown {
            let version = versions.get(&id).copied().unwrap_or_default();
            configs
                .merchants
                .insert(id.get(), MerchantConfig { version, ..MerchantConfig::default() });
        }
    }
    let known = |merchant_id: MerchantId| configs.merchants.get(&merchant_id);
    let (mut secret_keys, mut spend_keys) = (BTreeSet::new(), BTreeSet::new());
    spend_keys.extend(needs.settled_keys.iter().copied());
    for call in calls {
        match call.key {
            CallKey::Secret(id) => secret_keys.insert((call.merchant_id, id)),
            CallKey::Spend(id, _) => spend_keys.insert((call.merchant_id, id)),
        };
    }
    secret_keys.retain(|(merchant_id, id)| {
        known(*merchant_id).is_none_or(|config| !config.secret_keys.contains_key(id))
    });
    spend_keys.retain(|(merchant_id, id)| {
        known(*merchant_id).is_none_or(|config| !config.spend_keys.contains_key(id))
    });
    read_secret_keys(conn, configs, &secret_keys)?;
    read_spend_keys(conn, configs, &spend_keys)?;
    read_connections(conn, configs, calls)?;
    read_budgets(conn, configs, calls, &needs.settled_budgets)?;
    read_meters(conn, configs, calls)
}

fn read_secret_keys(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    ids: &BTreeSet<(MerchantId, SecretKeyId)>,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ids.iter().map(|(_, id)| Id(*id)).collect();
    let facts = dialect::secret_key_facts(conn, &ids)?;
    for (id, merchant_id, wallet_id, is_guarded, has_moved) in facts {
        if let Some(config) = configs.merchants.get_mut(&merchant_id.get()) {
            let own_wallet = OwnWallet { wallet_id: wallet_id.get(), is_guarded, has_moved };
            config.secret_keys.insert(id.get(), own_wallet);
        }
    }
    Ok(())
}

fn read_spend_keys(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    ids: &BTreeSet<(MerchantId, SpendKeyId)>,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<_> = ids.iter().map(|(_, id)| Id(*id)).collect();
    for (row, wallet_id, is_guarded, has_moved) in dialect::spend_key_facts(conn, &ids)? {
        let Some(config) = configs.merchants.get_mut(&row.merchant_id.get()) else { continue };
        let own_wallet = OwnWallet { wallet_id: wallet_id.get(), is_guarded, has_moved };
        let spend_key = row.clone().with_counters(SpendCounters::default())?;
        config
            .spend_keys
            .insert(spend_key.spend_key_id, CachedSpendKey { row, spend_key, own_wallet });
    }
    Ok(())
}

fn read_connections(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    calls: &[&Call],
) -> Result<(), StoreError> {
    let mut unknown: BTreeSet<Id<ConnectionId>> = BTreeSet::new();
    for call in calls {
        let Some(config) = configs.merchants.get(&call.merchant_id) else { continue };
        let of_key = config.matching_spend_key(call).and_then(|key| key.row.connection_id);
        let named = call.connection_id.map(Id).into_iter().chain(of_key);
        unknown.extend(named.filter(|id| !config.connections.contains_key(&id.get())));
    }
    if unknown.is_empty() {
        return Ok(());
    }
    for row in dialect::connections_by_id(conn, &Vec::from_iter(unknown))? {
        let connection = Connection::try_from(row)?;
        if let Some(config) = configs.merchants.get_mut(&connection.merchant_id) {
            config.connections.insert(connection.connection_id, connection);
        }
    }
    Ok(())
}

/// Reads the budgets that calls may count against, those of settled calls, and all that include these.
fn read_budgets(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    calls: &[&Call],
    settled: &BTreeSet<(MerchantId, BudgetId)>,
) -> Result<(), StoreError> {
    let merchants: BTreeSet<_> = calls.iter().map(|call| call.merchant_id).collect();
    for merchant_id in merchants {
        if let Some(config) = configs.merchants.get_mut(&merchant_id)
            && !config.has_matching_budgets
        {
            for budget in budgets::matching(conn, merchant_id)? {
                config.budgets.insert(budget);
            }
            config.has_matching_budgets = true;
        }
    }
    let named = calls.iter().flat_map(|call| {
        let config = configs.merchants.get(&call.merchant_id);
        let ids = config.into_iter().flat_map(|config| config.named_budgets(call));
        ids.map(|id| (call.merchant_id, id))
    });
    let mut wanted: BTreeSet<_> = named.chain(settled.iter().copied()).collect();
    wanted.extend(
        configs.merchants.iter().flat_map(|(merchant_id, config)| {
            config.budgets.parents().map(|id| (*merchant_id, id))
        }),
    );
    loop {
        wanted.retain(|(merchant_id, id)| configs.budget(*merchant_id, *id).is_none());
        let ids: Vec<_> = wanted.iter().map(|(_, id)| Id(*id)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        wanted.clear();
        for budget in budgets::by_id(conn, &ids)? {
            let merchant_id = budget.merchant_id;
            wanted.extend(budget.parent_id.map(|parent_id| (merchant_id, parent_id)));
            if let Some(config) = configs.merchants.get_mut(&merchant_id) {
                config.budgets.insert(budget);
            }
        }
    }
}

fn read_meters(
    conn: &mut Conn,
    configs: &mut ConfigCache,
    calls: &[&Call],
) -> Result<(), StoreError> {
    for call in calls {
        if configs.call_config(call).meter.is_some() {
            continue;
        }
        let Some(config) = configs.merchants.get_mut(&call.merchant_id) else { continue };
        if let Some(slug) = &call.meter_slug {
            let found = meters::find_by_slug(conn, call.merchant_id, slug)?;
            config.meters_by_slug.extend(found.map(|meter| (slug.clone(), meter)));
        } else if let Some(meter_id) =
            config.matching_spend_key(call).and_then(|key| key.spend_key.meter_id)
        {
            let found = meters::find(conn, call.merchant_id, meter_id)?;
            config.meters.extend(found.map(|meter| (meter_id, meter)));
        }
    }
    Ok(())
}

/// The accounts that are needed and not known.
fn unknown_accounts(accounts: &Accounts, ids: &AccountIds) -> NeededRows {
    let unknown_keys = ids.spend_keys.iter().filter(|id| !accounts.spend_keys.contains_key(*id));
    let unknown_budgets = ids.budgets.iter().filter(|id| !accounts.budgets.contains_key(*id));
    let unknown_budgets = unknown_budgets.map(|id| Id(*id).untyped());
    let unknown_runs = ids.runs.keys().filter(|id| !accounts.runs.contains_key(*id));
    let runs: Vec<_> = unknown_runs.copied().map(Id).collect();
    let unknown_keys = unknown_keys.map(|id| Id(*id).untyped());
    let mut limited: Vec<_> =
        unknown_keys.chain(unknown_budgets).chain(runs.iter().map(|id| id.untyped())).collect();
    limited.sort_unstable();
    let unknown_wallets = ids.wallets.iter().filter(|id| !accounts.wallets.contains_key(*id));
    NeededRows {
        limited,
        runs,
        wallets: unknown_wallets.copied().map(Id).collect(),
        ..NeededRows::default()
    }
}

/// Adds accounts that were read, with the subscriptions of the wallets. Those of `runs` that were not found are new.
fn add_accounts(
    conn: &mut Conn,
    configs: &ConfigCache,
    accounts: &mut Accounts,
    runs: &BTreeMap<RunAccountId, Run>,
    found: &FoundRows,
) -> Result<(), StoreError> {
    let run_rows: BTreeMap<_, _> =
        found.runs.iter().map(|row| (row.account_id.untyped(), row)).collect();
    for counters in &found.spend_counters {
        let (merchant_id, bytes) =
            (counters.merchant_id.get(), *counters.account_id.get().as_bytes());
        let (key_id, budget_id) = (SpendKeyId::from_bytes(bytes), BudgetId::from_bytes(bytes));
        if let Some(key) = configs.spend_key(merchant_id, key_id) {
            let key = SpendKey { counters: counters.into(), ..key.clone() };
            accounts.spend_keys.insert(key_id, key);
        } else if let Some(budget) = configs.budget(merchant_id, budget_id) {
            let budget = Budget { counters: counters.into(), ..budget.clone() };
            accounts.budgets.insert(budget_id, budget);
        } else if let Some(row) = run_rows.get(&counters.account_id) {
            let run = RunRow::clone(row).with_counters(counters.into());
            accounts.runs.insert(run.account_id, run);
        }
    }
    for (id, run) in runs {
        accounts.runs.entry(*id).or_insert_with(|| run.clone());
    }
    let wallets = &found.wallets;
    let ids: Vec<_> = wallets.iter().filter_map(|row| row.subscription_id).collect();
    if !ids.is_empty() {
        let rows = dialect::subscriptions(conn, &ids)?;
        let found = subscriptions::with_configs(conn, rows)?.into_iter();
        accounts.subscriptions.extend(found.map(|found| (found.wallet_id, found)));
    }
    add_wallets(accounts, wallets)
}

fn add_wallets(accounts: &mut Accounts, rows: &[WalletRow]) -> Result<(), StoreError> {
    for row in rows {
        let wallet = LedgerWallet::try_from(row)?;
        accounts.wallets.insert(wallet.wallet.wallet_id, wallet);
    }
    Ok(())
}
