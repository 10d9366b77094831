//! Wallets and their ledger lines.

use actix_web::{HttpRequest, HttpResponse, web};
use deserr::Deserr;
use serde::Serialize;
use tollgate_domain::{
    Issue, LedgerAccount, RequestId, Timestamp, Transaction, TransactionId, TransactionKind,
    Wallet, WalletChanges, WalletId,
};
use tollgate_pricing::Amount;
use tollgate_store::subscriptions::RenewalScope;
use tollgate_store::wallets::{self, MovementOutcome, WalletMovement};
use tollgate_store::{Conn, Page, RecordArchive};
use utoipa::ToSchema;

use crate::app::App;
use crate::http::auth::Caller;
use crate::http::body::{ApiRequest, Input};
use crate::http::csv::{self, AnswerFormat, FormatQuery};
use crate::http::error::{ApiError, ErrorCode};
use crate::http::fields::{Issues, NameField, NonNegativeAmount, NullablePatch, PositiveAmount};
use crate::http::idempotency::{ApiResponse, IdempotencyHeader};
use crate::http::list::{ListView, PageQuery, Query, respond};
use crate::openapi::marks::refused;
use crate::openapi::types::*;

#[derive(Serialize, ToSchema)]
#[schema(as = Wallet)]
pub(crate) struct WalletView {
    /// The id of the wallet.
    wallet_id: WalletId,
    /// The money. It may be negative. The credit of a subscription is not part of it.
    balance: Amount,
    /// The amount that calls in flight hold, on the balance and on credit.
    held: Amount,
    /// `balance` + `overdraft_limit` + remaining credit − `held`. An `overdraft_limit` of null counts as 0.
    available: Amount,
    /// The amount by which the balance may fall below 0. Null: no limit.
    #[schema(required)]
    overdraft_limit: Option<Amount>,
    /// The amount below which the balance causes an event. Null: no event.
    #[schema(required)]
    low_balance_threshold: Option<Amount>,
    /// The time of creation.
    created_at: Timestamp,
}

impl WalletView {
    pub(crate) fn of(wallet: &Wallet) -> Self {
        Self {
            wallet_id: wallet.wallet_id,
            balance: wallet.balance,
            held: wallet.held.saturating_add(wallet.credits.held()),
            available: wallet.available(),
            overdraft_limit: wallet.overdraft_limit,
            low_balance_threshold: wallet.low_balance_threshold,
            created_at: wallet.created_at,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Transaction)]
pub(crate) struct TransactionView {
    /// The id of the transaction.
    transaction_id: TransactionId,
    /// The wallet.
    wallet_id: WalletId,
    /// The account of the wallet that changed.
    account: LedgerAccount,
    /// The reason for the transaction.
    kind: TransactionKind,
    /// The change of the account. A debit is negative.
    amount: Amount,
    /// The amount of the account after the transaction.
    balance_after: Amount,
    /// The record of the call that the transaction pays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request_id: Option<RequestId>,
    /// A text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    description: Option<String>,
    /// The time when the transaction took effect. The end of a cycle may be booked later, with the time of the end.
    created_at: Timestamp,
}

/// The columns of transactions as CSV: the fields of the view.
const COLUMNS: &[&str] = &[
    "transaction_id",
    "wallet_id",
    "account",
    "kind",
    "amount",
    "balance_after",
    "request_id",
    "description",
    "created_at",
];

impl TransactionView {
    fn of(transaction: &Transaction) -> Self {
        Self {
            transaction_id: transaction.transaction_id,
            wallet_id: transaction.wallet_id,
            account: transaction.account,
            kind: transaction.kind,
            amount: transaction.amount,
            balance_after: transaction.balance_after,
            request_id: transaction.request_id,
            description: transaction.description.clone(),
            created_at: transaction.created_at,
        }
    }
}

/// The error of a wallet that does not exist, or is of another merchant.
pub fn not_found() -> ApiError {
    ApiError::not_found(ErrorCode::WalletNotFound, "wallet")
}

/// Read the merchant's own wallet.
#[utoipa::path(
    get,
    path = "/wallet",
    operation_id = "getOwnWallet",
    responses((status = 200, description = "The wallet", body = WalletView), ApiError),
)]
pub(crate) async fn get_own(app: web::Data<App>, caller: Caller) -> Result<HttpResponse, ApiError> {
    let read = move |conn: &mut _| wallets::find_own(conn, caller.merchant_id);
    let wallet = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(WalletView::of(&wallet)))
}

/// Read a wallet.
#[utoipa::path(
    get,
    path = "/wallets/{id}",
    operation_id = "getWallet",
    params(("id" = WalletId, Path)),
    responses(
        (status = 200, description = "The wallet", body = WalletView),
        ApiError, refused::WalletNotFound,
    ),
)]
pub(crate) async fn get(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WalletId = id.parse().map_err(|_| not_found())?;
    app.store.renew(RenewalScope::Wallet(id)).await?;
    let read = move |conn: &mut _| wallets::find(conn, caller.merchant_id, id);
    let wallet = app.store.read(read).await?.ok_or_else(not_found)?;
    Ok(HttpResponse::Ok().json(WalletView::of(&wallet)))
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct UpdateWallet {
    /// The amount by which the balance may fall below 0. Null: no limit.
    #[deserr(default)]
    #[schema(value_type = Option<NonNegativeAmount>)]
    overdraft_limit: NullablePatch<NonNegativeAmount>,
    /// The amount below which the balance causes the event `wallet.balance_low`. Null: no event.
    #[deserr(default)]
    #[schema(value_type = Option<NonNegativeAmount>)]
    low_balance_threshold: NullablePatch<NonNegativeAmount>,
}

impl Input for UpdateWallet {
    const READ_ONLY: &'static [&'static str] =
        &["wallet_id", "balance", "held", "available", "created_at"];
}

/// Change the limits of a wallet.
#[utoipa::path(
    patch,
    path = "/wallets/{id}",
    operation_id = "updateWallet",
    params(("id" = WalletId, Path)),
    request_body = UpdateWallet,
    responses(
        (status = 200, description = "The wallet as it is now", body = WalletView),
        ApiError, refused::WalletNotFound,
    ),
)]
pub(crate) async fn update(
    app: web::Data<App>,
    asked: ApiRequest<Caller, UpdateWallet>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    let id: WalletId = id.parse().map_err(|_| not_found())?;
    app.store.renew(RenewalScope::Wallet(id)).await?;
    let changes = WalletChanges {
        overdraft_limit: asked.what.overdraft_limit.into_option(|field| field.0),
        low_balance_threshold: asked.what.low_balance_threshold.into_option(|field| field.0),
    };
    app.write(None, move |conn| {
        let changed = wallets::update(conn, asked.caller.merchant_id, id, changes)?;
        Ok(ApiResponse::ok(&WalletView::of(&changed.ok_or_else(not_found)?)))
    })
    .await
}

#[derive(Deserr, ToSchema)]
#[deserr(error = Issues, deny_unknown_fields)]
pub(crate) struct MoveMoney {
    /// The amount in US dollars.
    amount: PositiveAmount,
    /// A text for people.
    #[deserr(default)]
    description: Option<NameField>,
}

impl Input for MoveMoney {}

/// Add money to a wallet.
#[utoipa::path(
    post,
    path = "/wallets/{id}/credits",
    operation_id = "creditWallet",
    params(("id" = WalletId, Path), IdempotencyHeader),
    request_body = MoveMoney,
    responses(
        (status = 201, description = "The transaction", body = TransactionView),
        ApiError, refused::WalletNotFound,
    ),
)]
pub(crate) async fn credit(
    app: web::Data<App>,
    asked: ApiRequest<Caller, MoveMoney>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    book(&app, asked, &id, TransactionKind::Credit).await
}

/// Take money from a wallet.
#[utoipa::path(
    post,
    path = "/wallets/{id}/debits",
    operation_id = "debitWallet",
    params(("id" = WalletId, Path), IdempotencyHeader),
    request_body = MoveMoney,
    responses(
        (status = 201, description = "The transaction", body = TransactionView),
        ApiError, refused::WalletNotFound,
    ),
)]
pub(crate) async fn debit(
    app: web::Data<App>,
    asked: ApiRequest<Caller, MoveMoney>,
    id: web::Path<String>,
) -> Result<HttpResponse, ApiError> {
    book(&app, asked, &id, TransactionKind::Debit).await
}

async fn book(
    app: &App,
    asked: ApiRequest<Caller, MoveMoney>,
    id: &str,
    kind: TransactionKind,
) -> Result<HttpResponse, ApiError> {
    let id: WalletId = id.parse().map_err(|_| not_found())?;
    let now = app.clock.now();
    let movement = WalletMovement {
        kind,
        amount: asked.what.amount.0,
        description: asked.what.description.map(|text| text.0),
    };
    let merchant_id = asked.caller.merchant_id;
    app.write(asked.idempotency_key, move |conn| {
        match wallets::book(conn, merchant_id, id, &movement, now)? {
            MovementOutcome::Booked(transaction) => {
                Ok(ApiResponse::created(&TransactionView::of(&transaction)))
            }
            MovementOutcome::NotFound => Err(not_found()),
            MovementOutcome::OutOfRange => Err(ApiError::invalid(vec![Issue::at(
                ["amount"],
                "would take the balance beyond 400000000 USD, or below -400000000 USD",
            )])),
        }
    })
    .await
}

/// List the transactions of a wallet.
#[utoipa::path(
    get,
    path = "/wallets/{id}/transactions",
    operation_id = "listTransactions",
    params(("id" = WalletId, Path), PageQuery, FormatQuery),
    responses(
        (
            status = 200,
            description = "A page",
            content((ListView<TransactionView> = "application/json"), (String = "text/csv")),
        ),
        ApiError, refused::WalletNotFound,
    ),
)]
pub(crate) async fn list_transactions(
    app: web::Data<App>,
    caller: Caller,
    id: web::Path<String>,
    http: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let id: WalletId = id.parse().map_err(|_| not_found())?;
    let query = Query::of(&http);
    let mut issues = Vec::new();
    let format = AnswerFormat::of(&http, &query, &mut issues);
    let page = query.page::<i64>(&mut issues)?;
    if !issues.is_empty() {
        return Err(ApiError::invalid(issues));
    }
    app.store.renew(RenewalScope::Wallet(id)).await?;
    let read = move |page: Page<i64>| {
        move |conn: &mut Conn, archive: &RecordArchive| {
            wallets::find(conn, caller.merchant_id, id)?.ok_or_else(not_found)?;
            Ok::<_, ApiError>(wallets::list_transactions(conn, archive, id, &page)?)
        }
    };
    if format == AnswerFormat::Csv {
        // A wallet that does not exist is an error, and not a file.
        app.store.read_records(read(Page { after: None, limit: 1 })).await?;
        let pages = move |after| {
            let page = Page { after, limit: csv::PAGE };
            let (app, read) = (app.clone(), read(page));
            async move {
                let found = app.store.read_records(read).await?;
                let (found, next) = page.cut(found, |one| one.number);
                Ok((found.iter().map(TransactionView::of).collect(), next))
            }
        };
        return Ok(csv::respond_pages("transactions.csv", COLUMNS, page.after, pages));
    }
    let limit = page.limit;
    let found = app.store.read_records(read(page)).await?;
    Ok(respond(found, limit, |one| one.number.to_string(), TransactionView::of))
}
