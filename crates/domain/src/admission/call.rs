//! A call before its admission, and the facts by which it is decided.

use super::bound::CostBound;
use crate::answer_report::AnswerReport;
use crate::budget::Budget;
use crate::connection::Connection;
use crate::id::{BudgetId, ConnectionId, MerchantId, RequestId, SecretKeyId, SpendKeyId, WalletId};
use crate::key::KeyHash;
use crate::meter::MerchantMeter;
use crate::record::ForwardedRequest;
use crate::run::{CallRun, Run, RunId};
use crate::spend_key::{RequestFormat, SpendKey};
use crate::time::Timestamp;
use crate::wallet::Wallet;

/// A call before its admission.
#[derive(Clone, Debug)]
pub struct Call {
    /// The id.
    pub request_id: RequestId,
    /// The merchant of its key.
    pub merchant_id: MerchantId,
    /// The key of the call.
    pub key: CallKey,
    /// The customer named in the credential.
    pub connection_id: Option<ConnectionId>,
    /// The meter named in the credential.
    pub meter_slug: Option<String>,
    /// Whether the credential requests that the customer is not billed.
    pub disable_billing: bool,
    /// The provider's side of the call.
    pub forwarded: ForwardedRequest,
    /// The format of its body, if it is one of the two.
    pub shape: Option<RequestFormat>,
    /// Whether its body names models that may serve it instead of the requested one.
    pub names_other_models: bool,
    /// The most that it can cost.
    pub bound: CostBound,
    /// The run that it names.
    pub run: Option<CallRun>,
    /// The report that the caller requests.
    pub report: Option<AnswerReport>,
    /// Whether its money is held before it is asked for, because the provider may begin it by itself. If it does not, no
    /// record remains.
    pub ahead: bool,
    /// The time of its arrival.
    pub created_at: Timestamp,
}

impl Call {
    /// The run that it belongs to, before its first call: the one that it names, else that of the day if its spend key
    /// limits its runs.
    pub fn run_under(&self, key: Option<&SpendKey>) -> Option<Run> {
        let named = self.run.as_ref().map(|run| run.run_id.clone());
        let is_limited = key.is_some_and(|key| key.rules.run_limit.is_some());
        let run_id = named.or_else(|| is_limited.then(RunId::of_the_day))?;
        let key_id = key.map(|key| key.spend_key_id);
        Some(Run::of_call(self.merchant_id, self.connection_id, key_id, run_id, self.request_id))
    }
}

/// The key of a call. A node's memory of keys may be old, so both kinds are looked up again at
/// admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKey {
    /// A secret key, which never changes.
    Secret(SecretKeyId),
    /// A spend key. Its id stays the same when the key is rotated.
    Spend(SpendKeyId, KeyHash),
}

/// The facts by which a call is decided, as read under the store's locks.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionFacts<'a> {
    /// The merchant's own account; absent when the key is no longer valid.
    pub account: Option<MerchantAccount<'a>>,
    /// The spend key of the call.
    pub spend_key: Option<&'a SpendKey>,
    /// The budgets that the call [counts against](crate::BudgetTree::of_call), by ascending id.
    pub budgets: &'a [&'a Budget],
    /// The budget among them that the spend key names, else the customer.
    pub own_budget_id: Option<BudgetId>,
    /// The run that the call [belongs to](Call::run_under).
    pub run: Option<&'a Run>,
    /// The customer that the credential names, if it belongs to this merchant.
    pub connection: Option<&'a Connection>,
    /// The customer whose wallet the spend key draws on.
    pub key_connection: Option<&'a Connection>,
    /// The wallet of the named customer, else of the spend key.
    pub wallet: Option<&'a Wallet>,
    /// The meter that the credential or the spend key names, if it belongs to this merchant.
    pub meter: Option<&'a MerchantMeter>,
    /// Whether the subscription behind the wallet's credit lets calls under the meter draw on it.
    pub draws_on_credit: bool,
}

/// A merchant's own account, without a limit unless the operator sets one.
#[derive(Clone, Copy, Debug)]
pub struct MerchantAccount<'a> {
    /// The wallet.
    pub wallet_id: WalletId,
    /// The wallet, if it has a limit or [almost no room](Wallet::LEAST_BALANCE) left. `None`
    /// otherwise: an admission then leaves its row alone, which all calls of the merchant share.
    pub guarded: Option<&'a Wallet>,
}
