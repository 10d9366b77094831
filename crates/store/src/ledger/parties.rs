//! Who takes part in calls: what settlements and admissions name, and do not change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::settlement::{self, Ending, Report};
use tollgate_domain::{
    Connection, ConnectionId, MerchantId, MerchantMeter, MeterId, MeterVersion, PendingRecord,
    SecretKeyId, SpendCounters, SpendKey, SpendKeyId, WalletId,
};

use crate::conn::Conn;
use crate::dialect;
use crate::dialect::group::Basis;
use crate::error::StoreError;
use crate::ids::Id;
use crate::meters::{self, Version};
use crate::rows::SpendKeyRow;

/// Meter versions.
pub(super) type Versions = HashMap<MeterVersion, Version>;

/// A meter's version, read once and remembered.
pub(super) fn known_version<'a>(
    conn: &mut Conn,
    versions: &'a mut Versions,
    meter: MeterVersion,
) -> Result<&'a Version, StoreError> {
    match versions.entry(meter) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(unknown) => {
            let MeterVersion { meter_id, version } = meter;
            Ok(unknown.insert(meters::model_of(conn, meter_id, version)?))
        }
    }
}

/// Whether the merchant's own wallet has to be locked: it is a row that all its calls share.
pub(super) fn may_touch_merchant(
    call: &PendingRecord,
    report: Option<&Report>,
    version: Option<&Version>,
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

/// A merchant's own account, as a key leads to it.
struct Holder {
    merchant_id: MerchantId,
    wallet_id: WalletId,
    wallet_is_guarded: bool,
}

impl Holder {
    /// What tells whether the wallet is still guarded, or not.
    fn mark(&self) -> Mark {
        let guarded = if self.wallet_is_guarded { "t" } else { "f" };
        format!("{} {guarded}", Id(self.wallet_id).of_any())
    }
}

/// A mark of a row, of the [`Basis`].
type Mark = String;

struct KnownKey {
    row: SpendKeyRow,
    /// The same, but for its counters.
    spend_key: SpendKey,
    holder: Holder,
    mark: Mark,
}

/// All that calls and their endings name, but for what they change.
#[derive(Default)]
pub(super) struct Parties {
    secret_keys: HashMap<SecretKeyId, Holder>,
    spend_keys: HashMap<SpendKeyId, KnownKey>,
    connections: HashMap<ConnectionId, (Connection, Mark)>,
    /// Those that spend keys name, by id.
    meters: HashMap<MeterId, MerchantMeter>,
    /// Those that credentials name, by merchant and slug.
    meters_by_slug: HashMap<(MerchantId, String), MerchantMeter>,
}

/// What one call names.
pub(super) struct Party<'a> {
    /// The merchant's own wallet and whether it is guarded; absent when the key is not valid.
    pub(super) account: Option<(WalletId, bool)>,
    /// Without its counters.
    pub(super) spend_key: Option<&'a SpendKey>,
    pub(super) connection: Option<&'a Connection>,
    /// Whose wallet the spend key draws on.
    pub(super) key_connection: Option<&'a Connection>,
    pub(super) meter: Option<&'a MerchantMeter>,
}

impl Party<'_> {
    /// The wallet of the request: the connection's, else the spend key's.
    pub(super) fn wallet_id(&self) -> Option<WalletId> {
        let of_connection = self.connection.map(|one| one.wallet_id);
        of_connection.or_else(|| self.spend_key.map(|key| key.wallet_id))
    }

    /// The merchant's own wallet, if admissions have to look at it: one that has neither a limit nor
    /// almost no room guards nothing, and is not locked for them.
    pub(super) fn guarded_account(&self) -> Option<WalletId> {
        self.account.filter(|(_, is_guarded)| *is_guarded).map(|(wallet_id, _)| wallet_id)
    }
}

impl Parties {
    /// Reads what these calls name, and these spend keys of others that end; what is known is not read
    /// again.
    pub(super) fn read<'a>(
        &mut self,
        conn: &mut Conn,
        calls: impl Iterator<Item = &'a Call> + Clone,
        ending: impl Iterator<Item = SpendKeyId>,
    ) -> Result<(), StoreError> {
        let mut secret_ids = BTreeSet::new();
        let mut spend_ids: BTreeSet<_> = ending.collect();
        for call in calls.clone() {
            match call.key {
                CallKey::Secret(id) => secret_ids.insert(id),
                CallKey::Spend(id, _) => spend_ids.insert(id),
            };
        }
        secret_ids.retain(|id| !self.secret_keys.contains_key(id));
        self.secret_keys.extend(secret_keys(conn, secret_ids)?);
        spend_ids.retain(|id| !self.spend_keys.contains_key(id));
        self.spend_keys.extend(spend_keys(conn, spend_ids)?);
        let mut connection_ids: BTreeSet<_> =
            calls.clone().filter_map(|call| call.connection_id).collect();
        let keys = calls.clone().filter_map(|call| self.opened_spend_key(call));
        connection_ids.extend(keys.filter_map(|key| key.row.connection_id.map(Id::get)));
        connection_ids.retain(|id| !self.connections.contains_key(id));
        if !connection_ids.is_empty() {
            let ids: Vec<_> = connection_ids.into_iter().map(Id).collect();
            for (row, mark) in dialect::connections_by_id(conn, &ids)? {
                let mark = format!("{} {mark}", row.connection_id.of_any());
                let id = row.connection_id.get();
                self.connections.insert(id, (Connection::try_from(row)?, mark));
            }
        }
        for call in calls {
            let key = self.opened_spend_key(call);
            if self.meter(call, key).is_some() {
                continue;
            }
            if let Some(slug) = &call.meter_slug {
                let found = meters::find_by_slug(conn, call.merchant_id, slug)?;
                let name = (call.merchant_id, slug.clone());
                self.meters_by_slug.extend(found.map(|meter| (name, meter)));
            } else if let Some(meter_id) = key.and_then(|key| key.spend_key.meter_id) {
                let found = meters::find(conn, call.merchant_id, meter_id)?;
                self.meters.extend(found.map(|meter| (meter_id, meter)));
            }
        }
        Ok(())
    }

    /// How many rows are known.
    pub(super) fn len(&self) -> usize {
        let meters = self.meters.len() + self.meters_by_slug.len();
        self.secret_keys.len() + self.spend_keys.len() + self.connections.len() + meters
    }

    /// By which rows these calls, and the ends of calls of these spend keys, are decided: that they
    /// still stand as they were read must be known when all is locked.
    pub(super) fn basis<'a>(
        &self,
        calls: impl Iterator<Item = &'a Call>,
        ending: impl Iterator<Item = SpendKeyId>,
    ) -> Basis {
        let mut basis = Basis::default();
        let Basis { secret_keys, spend_keys, connections, meters, accounts, marks } = &mut basis;
        for key in ending.filter_map(|id| self.spend_keys.get(&id)) {
            add(spend_keys, marks, key.row.spend_key_id, key.mark.clone());
        }
        for call in calls {
            let holder = match call.key {
                CallKey::Secret(id) => {
                    let holder = self.secret_keys.get(&id);
                    if holder.is_some() {
                        add(secret_keys, marks, Id(id), Id(id).of_any().to_string());
                    }
                    holder
                }
                CallKey::Spend(id, _) => self.spend_keys.get(&id).map(|key| {
                    add(spend_keys, marks, key.row.spend_key_id, key.mark.clone());
                    &key.holder
                }),
            };
            if let Some(holder) = holder {
                add(accounts, marks, Id(holder.wallet_id), holder.mark());
            }
            let key = self.opened_spend_key(call);
            let of_key = key.and_then(|key| key.row.connection_id);
            for id in call.connection_id.map(Id).into_iter().chain(of_key) {
                if let Some((_, mark)) = self.connections.get(&id.get()) {
                    add(connections, marks, id, mark.clone());
                }
            }
            if let Some(meter) = self.meter(call, key) {
                let MerchantMeter { meter_id, version, slug, .. } = meter;
                let id = Id(*meter_id);
                add(meters, marks, id, format!("{} {version} {slug}", id.of_any()));
            }
        }
        basis
    }

    /// A spend key by its id, deleted or not.
    pub(super) fn spend_key(&self, id: SpendKeyId) -> Option<&SpendKey> {
        self.spend_keys.get(&id).map(|key| &key.spend_key)
    }

    /// What a call names, as far as it is there and its merchant's.
    pub(super) fn of(&self, call: &Call) -> Party<'_> {
        let spend_key = self.opened_spend_key(call);
        let holder = match call.key {
            CallKey::Secret(id) => self.secret_keys.get(&id),
            CallKey::Spend(..) => spend_key.map(|key| &key.holder),
        };
        let holder = holder.filter(|holder| holder.merchant_id == call.merchant_id);
        let connection = call.connection_id.and_then(|id| self.connection(id));
        let key_connection = spend_key.and_then(|key| key.row.connection_id);
        Party {
            key_connection: key_connection.and_then(|id| self.connection(id.get())),
            account: holder.map(|holder| (holder.wallet_id, holder.wallet_is_guarded)),
            spend_key: spend_key.map(|key| &key.spend_key),
            connection: connection.filter(|one| one.merchant_id == call.merchant_id),
            meter: self.meter(call, spend_key),
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id).map(|(connection, _)| connection)
    }

    /// The spend key of a call, if the key that was shown still opens it.
    fn opened_spend_key(&self, call: &Call) -> Option<&KnownKey> {
        let CallKey::Spend(id, hash) = call.key else { return None };
        self.spend_keys.get(&id).filter(|key| key.row.is_opened_by(&hash))
    }

    /// The meter that a call names, or else the spend key that it opens.
    fn meter(&self, call: &Call, key: Option<&KnownKey>) -> Option<&MerchantMeter> {
        match &call.meter_slug {
            Some(slug) => self.meters_by_slug.get(&(call.merchant_id, slug.clone())),
            None => self.meters.get(&key?.spend_key.meter_id?),
        }
    }
}

/// Adds a row to a [`Basis`], once.
fn add<T>(ids: &mut Vec<Id<T>>, marks: &mut BTreeSet<Mark>, id: Id<T>, mark: Mark) {
    if marks.insert(mark) {
        ids.push(id);
    }
}

fn secret_keys(
    conn: &mut Conn,
    ids: BTreeSet<SecretKeyId>,
) -> Result<HashMap<SecretKeyId, Holder>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<_> = ids.into_iter().map(Id).collect();
    let found = dialect::secret_key_facts(conn, &ids)?.into_iter();
    let holders = found.map(|(id, Id(merchant_id), Id(wallet_id), wallet_is_guarded)| {
        (id.get(), Holder { merchant_id, wallet_id, wallet_is_guarded })
    });
    Ok(holders.collect())
}

fn spend_keys(
    conn: &mut Conn,
    ids: BTreeSet<SpendKeyId>,
) -> Result<HashMap<SpendKeyId, KnownKey>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<_> = ids.into_iter().map(Id).collect();
    let found = dialect::spend_key_facts(conn, &ids)?.into_iter();
    let keys = found.map(|(row, Id(wallet_id), wallet_is_guarded, mark)| {
        let holder = Holder { merchant_id: row.merchant_id.get(), wallet_id, wallet_is_guarded };
        let mark = format!("{} {mark}", row.spend_key_id.of_any());
        let spend_key = row.clone().with_counters(SpendCounters::default())?;
        Ok((spend_key.spend_key_id, KnownKey { row, spend_key, holder, mark }))
    });
    keys.collect()
}
