//! `tollgate export`: the costs of a month in forms that other programs read.

use anyhow::anyhow;
use clap::Subcommand;
use tollgate_api::operations::{focus_costs, focus_header};
use tollgate_domain::{Merchant, MerchantId, Month};
use tollgate_store::{Page, StoreError, merchants};

use crate::config::TollgateConfig;
use crate::database::{open, store_of};
use crate::output::{print_csv, with_issues};

#[derive(Subcommand)]
pub(crate) enum ExportCommand {
    /// Print FOCUS 1.2 as CSV: a row for each day, customer, provider and model.
    Focus {
        /// The calendar month of UTC, such as 2026-10.
        #[arg(long, value_name = "YYYY-MM")]
        month: String,
        /// The merchant; all merchants without it.
        #[arg(long, value_name = "MERCHANT_ID")]
        merchant: Option<MerchantId>,
    },
}

pub(crate) async fn run(config: &TollgateConfig, command: ExportCommand) -> anyhow::Result<()> {
    let ExportCommand::Focus { month, merchant } = command;
    let month: Month =
        month.parse().map_err(|_| anyhow!("{month} is not a month: name one such as 2026-10"))?;
    let store = match merchant {
        Some(merchant) => store_of(config, merchant).await?,
        None => open(config)?,
    };
    let read = move |conn: &mut _| match merchant {
        Some(id) => Ok(merchants::find(conn, id)?.into_iter().collect()),
        None => merchants::list(conn, &Page { after: None, limit: u32::MAX }),
    };
    let merchants: Vec<Merchant> = store.read::<_, StoreError>(read).await?;
    let mut is_first = true;
    for merchant in merchants {
        if let Some(cell) = merchant.moved_to {
            let id = merchant.merchant_id;
            log::warn!(
                "{id} moves to cell {cell}, or has moved there: its costs are not exported here"
            );
            continue;
        }
        let read = move |conn: &mut _| focus_costs(conn, &merchant, month);
        let text = store.read_snapshot(read).await.map_err(with_issues)?;
        print_csv(&text, is_first)?;
        is_first = false;
    }
    if is_first {
        log::warn!("there is no merchant here whose costs could be exported");
        print_csv(&focus_header().map_err(with_issues)?, true)?;
    }
    Ok(())
}
