//! The tables with rows of merchants.

/// A table with rows of merchants.
#[derive(Clone, Copy)]
pub(super) struct MovedTable {
    pub(super) name: &'static str,
    /// The rows that are copied before the pause.
    pub(super) early_rows: EarlyRows,
    /// Whether rows of it are in the archive.
    pub(super) is_archived: bool,
    /// The column that the other database fills itself.
    pub(super) numbered: Option<&'static str>,
    /// Whether rows refer to rows of the same table, so that all are inserted at once.
    pub(super) is_tree: bool,
}

/// The rows of a table that are copied before the pause.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyRows {
    None,
    /// Those with an id in this column below that of the calls that may change.
    Old(&'static str),
    /// All series of sums. Later ones are copied in the pause.
    Series,
    /// The sums of quarter hours that no longer change.
    Sums,
}

impl MovedTable {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            early_rows: EarlyRows::None,
            is_archived: false,
            numbered: None,
            is_tree: false,
        }
    }

    const fn archived(name: &'static str) -> Self {
        Self { is_archived: true, ..Self::new(name) }
    }

    const fn growing(name: &'static str, id: &'static str) -> Self {
        Self { early_rows: EarlyRows::Old(id), ..Self::archived(name) }
    }

    const fn of_sums(name: &'static str, early_rows: EarlyRows) -> Self {
        Self { early_rows, ..Self::new(name) }
    }

    /// Whether rows of it are written before the pause.
    pub(super) fn is_early(self) -> bool {
        self.is_archived || self.early_rows != EarlyRows::None
    }

    const fn numbered(name: &'static str, column: &'static str) -> Self {
        Self { numbered: Some(column), ..Self::new(name) }
    }

    const fn tree(name: &'static str) -> Self {
        Self { is_tree: true, ..Self::new(name) }
    }
}

pub(super) const REQUESTS: MovedTable = MovedTable::growing("requests", "request_id");
pub(super) const REQUEST_INDEX: MovedTable = MovedTable::growing("request_index", "request_id");
pub(super) const TRANSACTIONS: MovedTable = MovedTable::growing("transactions", "transaction_id");
/// Old ones may be deleted at any time.
pub(super) const REFUSALS: MovedTable = MovedTable::archived("refusals");

/// The tables, so that a row refers to rows before it. Not among them are sessions, which carry the number of the old cell;
/// the queue of the roll-ups, which is folded before; and what belongs to the database and not to a merchant.
pub(super) const TABLES: &[MovedTable] = &[
    MovedTable::new("merchants"),
    MovedTable::new("secret_keys"),
    MovedTable::new("wallets"),
    MovedTable::tree("budgets"),
    MovedTable::new("connections"),
    MovedTable::new("meters"),
    MovedTable::new("meter_versions"),
    MovedTable::new("tier_counters"),
    MovedTable::new("spend_keys"),
    MovedTable::new("spend_counters"),
    MovedTable::new("imports"),
    MovedTable::new("runs"),
    MovedTable::new("subscription_configs"),
    MovedTable::new("subscription_config_versions"),
    MovedTable::new("credit_bundles"),
    MovedTable::new("subscriptions"),
    MovedTable::new("plan_charges"),
    MovedTable::new("open_calls"),
    MovedTable::new("jobs"),
    MovedTable::new("provider_objects"),
    REQUESTS,
    REQUEST_INDEX,
    TRANSACTIONS,
    MovedTable::new("transaction_keys"),
    MovedTable::new("corrections"),
    MovedTable::new("repricings"),
    MovedTable::new("reported_usage"),
    MovedTable::of_sums("usage_series", EarlyRows::Series),
    MovedTable::of_sums("usage_rollups", EarlyRows::Sums),
    MovedTable::new("metadata_sets"),
    MovedTable::of_sums("metadata_rollups", EarlyRows::Sums),
    MovedTable::new("high_cardinality_keys"),
    REFUSALS,
    MovedTable::new("refusal_counts"),
    MovedTable::new("missing_prices"),
    MovedTable::new("idempotent_answers"),
    MovedTable::new("webhooks"),
    MovedTable::numbered("events", "number"),
    MovedTable::new("deliveries"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The tables whose rows belong to no merchant, or do not move.
    const OTHERS: [&str; 12] = [
        "sessions",
        "rollup_queue",
        "provider_events",
        "serving",
        "nodes",
        "cell",
        "breaking_migrations",
        "price_lists",
        "archived_months",
        "archive_state",
        "archived_sums",
        "archived_transactions",
    ];

    #[test]
    fn every_table_moves_or_is_known_to_stay() {
        let schema = include_str!("../schema.rs");
        let tables = schema.split("diesel::table! {").skip(1);
        let tables: BTreeSet<_> =
            tables.filter_map(|text| text.split_whitespace().next()).collect();
        let known: BTreeSet<_> = TABLES.iter().map(|table| table.name).chain(OTHERS).collect();
        assert_eq!(tables, known);
    }
}
