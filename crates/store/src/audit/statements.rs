//! The audit of monthly statements: their arithmetic, and that each begins as the one before has ended.

use diesel::prelude::*;
use tollgate_domain::{ConnectionId, MerchantId, StatementFault, TimeZone};

use super::findings::Audit;
use crate::conn::Conn;
use crate::error::StoreError;
use crate::ids::Id;
use crate::rows::WalletRow;
use crate::schema::{connections, wallets};
use crate::statements::{self, CustomerAccount};

/// Checks the statements of all customers, by UTC.
pub(super) fn check(conn: &mut Conn, audit: &mut Audit) -> Result<(), StoreError> {
    let customers: Vec<(Id<MerchantId>, Id<ConnectionId>, WalletRow)> = connections::table
        .inner_join(wallets::table.on(wallets::wallet_id.eq(connections::wallet_id)))
        .select((connections::merchant_id, connections::connection_id, WalletRow::as_select()))
        .load(conn)?;
    for (merchant_id, connection_id, wallet) in customers {
        let (merchant_id, connection_id) = (merchant_id.get(), connection_id.get());
        let customer =
            CustomerAccount { merchant_id, connection_id, wallet_id: wallet.wallet_id.get() };
        check_customer(conn, customer, &wallet, audit)?;
    }
    Ok(())
}

fn check_customer(
    conn: &mut Conn,
    customer: CustomerAccount,
    wallet: &WalletRow,
    audit: &mut Audit,
) -> Result<(), StoreError> {
    let id = customer.connection_id;
    let mut compare = |what: String, fault: StatementFault| {
        let [stated, computed] = [fault.stated, fault.computed].map(|units| {
            i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
        });
        audit.compare(format!("{what} {}", fault.figure), stated, computed);
    };
    let (mut balance, mut credit) = (0, 0);
    let months = statements::months(conn, customer.wallet_id, &TimeZone::UTC)?;
    for month in months.into_iter().rev() {
        let statement = statements::read(conn, customer, month, &TimeZone::UTC)?;
        let mut faults = statement.faults();
        for (figure, stated, computed) in [
            ("opening_balance", statement.opening_balance, balance),
            ("credit.opening", statement.credit.opening, credit),
        ] {
            faults.push(StatementFault { figure, stated, computed });
        }
        for fault in faults {
            compare(format!("statement {month} of customer {id}"), fault);
        }
        (balance, credit) = (statement.closing_balance, statement.credit.closing);
    }
    let kept_credit = i128::from(wallet.cycle_credit) + i128::from(wallet.bundle_credit);
    for (figure, stated, computed) in [
        ("closing_balance", wallet.balance.into(), balance),
        ("credit.closing", kept_credit, credit),
    ] {
        let fault = StatementFault { figure, stated, computed };
        compare(format!("last statement of customer {id}"), fault);
    }
    Ok(())
}
