//! The pages of wallets: balance, holds and ledger lines.

use actix_web::{HttpRequest, HttpResponse, web};
use askama::Template;
use tollgate_domain::{ConnectionId, Transaction, Wallet, WalletId};
use tollgate_pricing::Amount;
use tollgate_store::subscriptions::RenewalScope;
use tollgate_store::{Conn, RecordArchive, StoreError, connections, wallets};

use crate::answer::{PageError, respond};
use crate::clock::{Moment, PageClock};
use crate::page::{DashboardSection, Fact, Pager, Shell, name_of, page_of};
use crate::session::SessionUser;
use crate::text::{self, Figure};
use tollgate_api::operations::wallet_not_found as not_found;
use tollgate_api::{ApiError, App};

/// The figures of a wallet.
pub(crate) struct WalletSummary {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) balance: Figure,
    pub(crate) held: Figure,
    pub(crate) credit: Figure,
    pub(crate) available: Figure,
    pub(crate) is_low: bool,
}

impl WalletSummary {
    pub(crate) fn of(wallet: &Wallet, owner: String) -> Self {
        let figure = |amount: Amount| Figure::in_column(amount.units().into());
        Self {
            id: wallet.wallet_id.to_string(),
            owner,
            balance: figure(wallet.balance),
            held: figure(wallet.held.saturating_add(wallet.credits.held())),
            credit: figure(wallet.credits.remaining()),
            available: figure(wallet.available()),
            is_low: Self::is_low(wallet),
        }
    }

    /// Whether a customer's money is at or below the threshold of its wallet.
    pub(crate) fn is_low(wallet: &Wallet) -> bool {
        let bottom = wallet.low_balance_threshold.unwrap_or_default();
        wallet.connection_id.is_some() && wallet.available() <= bottom
    }
}

#[derive(Template)]
#[template(path = "wallets.html")]
struct WalletsPage {
    shell: Shell,
    own: Option<WalletSummary>,
    wallets: Vec<WalletSummary>,
    pager: Pager,
}

pub(crate) async fn list(
    app: web::Data<App>,
    visitor: SessionUser,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let (page, merchant_id) = (page_of::<ConnectionId>(&http), visitor.merchant_id());
    app.store.renew(RenewalScope::Merchant(merchant_id)).await?;
    let read = move |conn: &mut Conn| {
        let own = wallets::find_own(conn, merchant_id)?;
        let found = connections::list(conn, merchant_id, &page)?;
        let mut shown = Vec::new();
        for connection in found {
            let wallet = wallets::find(conn, merchant_id, connection.wallet_id)?;
            shown.extend(wallet.map(|wallet| (connection, wallet)));
        }
        Ok::<_, StoreError>((own, shown))
    };
    let (own, mut found) = app.store.read(read).await?;
    let pager = Pager::cut(&http, &page, &mut found, |(one, _)| one.connection_id.to_string());
    let wallets = found.iter().map(|(one, wallet)| WalletSummary::of(wallet, name_of(one)));
    respond(&WalletsPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, "Wallets"),
        own: own.map(|wallet| WalletSummary::of(&wallet, "Your own".to_owned())),
        wallets: wallets.collect(),
        pager,
    })
}

/// A ledger line.
struct TransactionItem {
    created_at: Moment,
    kind: String,
    account: String,
    description: String,
    request_id: String,
    amount: String,
    is_out: bool,
    balance_after: String,
}

impl TransactionItem {
    fn of(transaction: &Transaction, clock: &PageClock) -> Self {
        Self {
            created_at: clock.moment(transaction.created_at),
            kind: text::word(&transaction.kind),
            account: text::word(&transaction.account),
            description: transaction.description.clone().unwrap_or_default(),
            request_id: transaction.request_id.map_or_else(String::new, |id| id.to_string()),
            amount: text::money(transaction.amount),
            is_out: transaction.amount.units() < 0,
            balance_after: text::money(transaction.balance_after),
        }
    }
}

#[derive(Template)]
#[template(path = "wallet.html")]
struct WalletPage {
    shell: Shell,
    wallet: WalletSummary,
    facts: Vec<Fact>,
    transactions: Vec<TransactionItem>,
    /// Whether the transactions in the archive could be read, too.
    is_whole: bool,
    pager: Pager,
}

pub(crate) async fn show(
    app: web::Data<App>,
    visitor: SessionUser,
    id: web::Path<String>,
    http: HttpRequest,
) -> Result<HttpResponse, PageError> {
    let id: WalletId = id.parse().map_err(|_| not_found())?;
    let (page, merchant_id) = (page_of::<i64>(&http), visitor.merchant_id());
    app.store.renew(RenewalScope::Wallet(id)).await?;
    let read = move |conn: &mut Conn| {
        let wallet = wallets::find(conn, merchant_id, id)?.ok_or_else(not_found)?;
        let connection = match wallet.connection_id {
            Some(id) => connections::find(conn, merchant_id, id)?,
            None => None,
        };
        Ok::<_, ApiError>((wallet, connection))
    };
    let clock = &visitor.clock;
    let (wallet, connection) = app.store.read(read).await?;
    let list = move |conn: &mut Conn, archive: &RecordArchive| {
        wallets::list_transactions(conn, archive, id, &page)
    };
    let (mut found, is_whole) = match app.store.read_records(list).await {
        Err(StoreError::Archive(_) | StoreError::Busy(_)) => {
            let list = move |conn: &mut Conn| list(conn, &RecordArchive::left_out());
            (app.store.read_snapshot(list).await?, false)
        }
        found => (found?, true),
    };
    let pager = Pager::cut(&http, &page, &mut found, |one| one.number.to_string());
    let mut facts = vec![Fact::new("Id", wallet.wallet_id.to_string())];
    let owner = match connection {
        None => "Your own wallet".to_owned(),
        Some(one) => {
            let name = name_of(&one);
            let href = format!("/dashboard/customers/{}", one.connection_id);
            facts.push(Fact::leading("Customer", name.clone(), href));
            format!("Wallet of {name}")
        }
    };
    facts.extend([
        Fact::new(
            "Overdraft",
            match wallet.overdraft_limit {
                None => "without limit".to_owned(),
                Some(limit) => format!("up to {}", text::money(limit)),
            },
        ),
        Fact::new(
            "Told when below",
            match wallet.low_balance_threshold {
                None => "never".to_owned(),
                Some(line) => text::money(line),
            },
        ),
        Fact::new("Made", clock.time(wallet.created_at)),
    ]);
    respond(&WalletPage {
        shell: Shell::new(&visitor, DashboardSection::Customers, owner.clone()),
        wallet: WalletSummary::of(&wallet, owner),
        facts,
        transactions: found.iter().map(|one| TransactionItem::of(one, clock)).collect(),
        is_whole,
        pager,
    })
}
