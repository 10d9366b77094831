//! What one transaction adds to the ledger: movements of money and credit, each of which some
//! wallet under lock has made, and the events that they cause. Written once, at its end.

use tollgate_domain::{
    CreditHold, Drawn, LedgerAccount, MerchantId, News, Step, Timestamp, TransactionId,
    TransactionKind, Wallet,
};
use tollgate_pricing::Amount;

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::events::EventRow;
use crate::rows::{TransactionRow, WalletRow, parsed, word};

/// Why something moved.
pub(crate) struct Reason<'a> {
    pub(crate) kind: TransactionKind,
    pub(crate) request_id: Option<&'a str>,
    pub(crate) description: Option<String>,
    /// No wallet books the same one twice; absent where a repeated order is caught elsewhere.
    pub(crate) idempotency_key: Option<String>,
}

pub(crate) struct Entries {
    now: Timestamp,
    transactions: Vec<TransactionRow>,
    events: Vec<EventRow>,
}

impl Entries {
    /// Nothing yet, of a transaction at this instant.
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self { now, transactions: Vec::new(), events: Vec::new() }
    }

    /// From here on, things are booked at `now`.
    pub(crate) const fn begin(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Moves `amount` on a balance; nothing when that would leave the range of an amount.
    pub(crate) fn move_balance(
        &mut self,
        wallet: &mut WalletRow,
        amount: i64,
        reason: Reason<'_>,
    ) -> Result<Option<&TransactionRow>, StoreError> {
        let before = wallet.balance;
        let Some(after) = before.checked_add(amount) else { return Ok(None) };
        wallet.balance = after;
        if amount < 0 {
            let wallet = Wallet::try_from(&*wallet)?;
            for news in wallet.news_since(Amount::from_units(before)) {
                self.tell(wallet.merchant_id, &news);
            }
        }
        self.add_line(wallet, LedgerAccount::Balance, amount, after, reason, self.now);
        Ok(self.transactions.last())
    }

    /// Ends what a call has reserved of a wallet's credits and draws its cost on them, each account
    /// as a line of its own; what is left is for the balance.
    pub(crate) fn draw_on_credit(
        &mut self,
        wallet: &mut WalletRow,
        hold: CreditHold,
        cost: i64,
        kind: TransactionKind,
        request_id: &str,
    ) -> i64 {
        let before = wallet.credits();
        let mut credits = before;
        let Drawn { cycle, bundle, balance, cycle_expired, bundle_expired } =
            credits.settle(hold, Amount::from_units(cost));
        wallet.set_credits(&credits);
        for (account, left, drawn, expired) in [
            (LedgerAccount::CycleCredit, before.cycle.remaining, cycle, cycle_expired),
            (LedgerAccount::BundleCredit, before.bundle.remaining, bundle, bundle_expired),
        ] {
            let mut left = left.units();
            for (kind, out) in [(kind, drawn), (TransactionKind::CreditExpiry, expired)] {
                if out.is_zero() {
                    continue;
                }
                left = left.saturating_sub(out.units());
                let reason = Reason {
                    kind,
                    request_id: Some(request_id),
                    description: None,
                    idempotency_key: Some(format!("{}:{request_id}:{account:?}", word(&kind))),
                };
                let amount = out.units().saturating_neg();
                self.add_line(wallet, account, amount, left, reason, self.now);
            }
        }
        balance.units()
    }

    /// What a subscription went through on the wallet that its credit lies on.
    pub(crate) fn add_steps(
        &mut self,
        wallet: &mut WalletRow,
        steps: impl IntoIterator<Item = Step>,
    ) -> Result<(), StoreError> {
        let merchant_id = parsed("wallets.merchant_id", &wallet.merchant_id)?;
        for step in steps {
            for movement in step.movements {
                let reason = Reason {
                    kind: movement.kind,
                    request_id: None,
                    description: None,
                    idempotency_key: movement.idempotency_key,
                };
                let (amount, left) = (movement.amount.units(), movement.balance_after.units());
                self.add_line(wallet, movement.account, amount, left, reason, step.at);
            }
            self.events.push(EventRow::new(merchant_id, &step.news, step.at, self.now));
        }
        Ok(())
    }

    /// An event.
    pub(crate) fn tell(&mut self, merchant_id: MerchantId, news: &News) {
        self.events.push(EventRow::new(merchant_id, news, self.now, self.now));
    }

    /// The movements.
    pub(crate) fn transactions(&self) -> &[TransactionRow] {
        &self.transactions
    }

    /// Writes it all, one statement per table.
    pub(crate) fn write(&self, conn: &mut Conn) -> Result<(), StoreError> {
        if !self.transactions.is_empty() {
            dialect::insert_transactions(conn, &self.transactions)?;
        }
        self.write_events(conn)
    }

    /// Writes the events.
    pub(crate) fn write_events(&self, conn: &mut Conn) -> Result<(), StoreError> {
        if !self.events.is_empty() {
            dialect::insert_events(conn, &self.events)?;
        }
        Ok(())
    }

    /// The line of a movement that a wallet has made and that takes effect `at` an instant, which
    /// may be before it is booked. Ids are of the booking, so that they grow.
    fn add_line(
        &mut self,
        wallet: &mut WalletRow,
        account: LedgerAccount,
        amount: i64,
        balance_after: i64,
        reason: Reason<'_>,
        at: Timestamp,
    ) {
        wallet.transactions = wallet.transactions.saturating_add(1);
        let transaction_id = TransactionId::generate(self.now).to_string();
        self.transactions.push(TransactionRow {
            wallet_id: wallet.wallet_id.clone(),
            account: word(&account),
            number: wallet.transactions,
            kind: word(&reason.kind),
            amount,
            balance_after,
            request_id: reason.request_id.map(str::to_owned),
            description: reason.description,
            idempotency_key: reason.idempotency_key.unwrap_or_else(|| transaction_id.clone()),
            created_at: at.unix_micros(),
            transaction_id,
        });
    }
}
