//! Who takes part in calls: what settlements and admissions name, and do not change.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use tollgate_domain::admission::{Call, CallKey};
use tollgate_domain::settlement::{self, Ending, Report};
use tollgate_domain::{
    Connection, MerchantId, MerchantMeter, MeterVersion, PendingRecord, SpendCounters, SpendKey,
    SpendKeyId, WalletId,
};

use crate::conn::Conn;
use crate::dialect;
use crate::dialect::group::Basis;
use crate::error::StoreError;
use crate::meters::{self, Version};
use crate::rows::parsed;
use crate::spend_keys::SpendKeyRow;

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
            Ok(unknown.insert(meters::model_of(conn, &meter_id.to_string(), version)?))
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
    fn new(
        merchant_id: &str,
        wallet_id: &str,
        wallet_is_guarded: bool,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            merchant_id: parsed("merchants.merchant_id", merchant_id)?,
            wallet_id: parsed("merchants.wallet_id", wallet_id)?,
            wallet_is_guarded,
        })
    }

    /// What tells whether the wallet is still guarded, or not.
    fn mark(&self) -> Mark {
        let guarded = if self.wallet_is_guarded { "t" } else { "f" };
        format!("{} {guarded}", self.wallet_id)
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
    secret_keys: HashMap<String, Holder>,
    spend_keys: HashMap<SpendKeyId, KnownKey>,
    connections: HashMap<String, (Connection, Mark)>,
    /// Those that spend keys name, by id.
    meters: HashMap<String, MerchantMeter>,
    /// Those that credentials name, by [merchant and slug](of_merchant).
    meters_by_slug: HashMap<String, MerchantMeter>,
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
                CallKey::Secret(id) => secret_ids.insert(id.to_string()),
                CallKey::Spend(id, _) => spend_ids.insert(id),
            };
        }
        secret_ids.retain(|id| !self.secret_keys.contains_key(id));
        self.secret_keys.extend(secret_keys(conn, secret_ids)?);
        spend_ids.retain(|id| !self.spend_keys.contains_key(id));
        self.spend_keys.extend(spend_keys(conn, spend_ids)?);
        let mut connection_ids: BTreeSet<_> =
            calls.clone().filter_map(|call| call.connection_id).map(|id| id.to_string()).collect();
        let keys = calls.clone().filter_map(|call| self.opened_spend_key(call));
        connection_ids.extend(keys.filter_map(|key| key.row.connection_id.clone()));
        connection_ids.retain(|id| !self.connections.contains_key(id));
        if !connection_ids.is_empty() {
            let ids: Vec<_> = connection_ids.into_iter().collect();
            for (row, mark) in dialect::connections_by_id(conn, &ids)? {
                let mark = format!("{} {mark}", row.connection_id);
                let id = row.connection_id.clone();
                self.connections.insert(id, (Connection::try_from(row)?, mark));
            }
        }
        for call in calls {
            let key = self.opened_spend_key(call);
            if self.meter(call, key).is_some() {
                continue;
            }
            if let Some(slug) = &call.meter_slug {
                let found = meters::find_by_slug(conn, &call.merchant_id.to_string(), slug)?;
                let name = of_merchant(call.merchant_id, slug);
                self.meters_by_slug.extend(found.map(|meter| (name, meter)));
            } else if let Some(meter_id) = key.and_then(|key| key.row.meter_id.clone()) {
                let id = parsed("spend_keys.meter_id", &meter_id)?;
                let found = meters::find(conn, call.merchant_id, id)?;
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
        let add = |ids: &mut Vec<String>, marks: &mut BTreeSet<Mark>, id: &str, mark: Mark| {
            if marks.insert(mark) {
                ids.push(id.to_owned());
            }
        };
        let Basis { secret_keys, spend_keys, connections, meters, accounts, marks } = &mut basis;
        for key in ending.filter_map(|id| self.spend_keys.get(&id)) {
            add(spend_keys, marks, &key.row.spend_key_id, key.mark.clone());
        }
        for call in calls {
            let holder = match call.key {
                CallKey::Secret(id) => {
                    let id = id.to_string();
                    let holder = self.secret_keys.get(&id);
                    if holder.is_some() {
                        add(secret_keys, marks, &id, id.clone());
                    }
                    holder
                }
                CallKey::Spend(id, _) => self.spend_keys.get(&id).map(|key| {
                    add(spend_keys, marks, &key.row.spend_key_id, key.mark.clone());
                    &key.holder
                }),
            };
            if let Some(holder) = holder {
                add(accounts, marks, &holder.wallet_id.to_string(), holder.mark());
            }
            let key = self.opened_spend_key(call);
            let of_key = key.and_then(|key| key.row.connection_id.clone());
            let named = call.connection_id.map(|id| id.to_string());
            for id in named.into_iter().chain(of_key) {
                if let Some((_, mark)) = self.connections.get(&id) {
                    add(connections, marks, &id, mark.clone());
                }
            }
            if let Some(meter) = self.meter(call, key) {
                let MerchantMeter { meter_id, version, slug, .. } = meter;
                let id = meter_id.to_string();
                add(meters, marks, &id, format!("{id} {version} {slug}"));
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
            CallKey::Secret(id) => self.secret_keys.get(&id.to_string()),
            CallKey::Spend(..) => spend_key.map(|key| &key.holder),
        };
        let holder = holder.filter(|holder| holder.merchant_id == call.merchant_id);
        let connection = call.connection_id.and_then(|id| self.connection(&id.to_string()));
        let key_connection = spend_key.and_then(|key| key.row.connection_id.as_ref());
        Party {
            key_connection: key_connection.and_then(|id| self.connection(id)),
            account: holder.map(|holder| (holder.wallet_id, holder.wallet_is_guarded)),
            spend_key: spend_key.map(|key| &key.spend_key),
            connection: connection.filter(|one| one.merchant_id == call.merchant_id),
            meter: self.meter(call, spend_key),
        }
    }

    fn connection(&self, id: &str) -> Option<&Connection> {
        self.connections.get(id).map(|(connection, _)| connection)
    }

    /// The spend key of a call, if the key that was shown still opens it.
    fn opened_spend_key(&self, call: &Call) -> Option<&KnownKey> {
        let CallKey::Spend(id, hash) = call.key else { return None };
        self.spend_keys.get(&id).filter(|key| key.row.is_opened_by(&hash))
    }

    /// The meter that a call names, or else the spend key that it opens.
    fn meter(&self, call: &Call, key: Option<&KnownKey>) -> Option<&MerchantMeter> {
        match &call.meter_slug {
            Some(slug) => self.meters_by_slug.get(&of_merchant(call.merchant_id, slug)),
            None => self.meters.get(key?.row.meter_id.as_ref()?),
        }
    }
}

/// A slug is one merchant's.
fn of_merchant(merchant_id: MerchantId, slug: &str) -> String {
    format!("{merchant_id} {slug}")
}

fn secret_keys(
    conn: &mut Conn,
    ids: BTreeSet<String>,
) -> Result<HashMap<String, Holder>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<_> = ids.into_iter().collect();
    let found = dialect::secret_key_facts(conn, &ids)?.into_iter();
    let holders = found.map(|(id, merchant_id, wallet_id, wallet_is_guarded)| {
        Ok((id, Holder::new(&merchant_id, &wallet_id, wallet_is_guarded)?))
    });
    holders.collect()
}

fn spend_keys(
    conn: &mut Conn,
    ids: BTreeSet<SpendKeyId>,
) -> Result<HashMap<SpendKeyId, KnownKey>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<_> = ids.iter().map(SpendKeyId::to_string).collect();
    let found = dialect::spend_key_facts(conn, &ids)?.into_iter();
    let keys = found.map(|(row, wallet_id, wallet_is_guarded, mark)| {
        let holder = Holder::new(&row.merchant_id, &wallet_id, wallet_is_guarded)?;
        let mark = format!("{} {mark}", row.spend_key_id);
        let spend_key = row.clone().with_counters(SpendCounters::default())?;
        Ok((spend_key.spend_key_id, KnownKey { row, spend_key, holder, mark }))
    });
    keys.collect()
}
