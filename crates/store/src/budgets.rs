//! Budgets and their counters.

use diesel::prelude::*;
use tollgate_domain::{
    BUDGET_LEVELS, Budget, BudgetId, BudgetStatus, BudgetTree, MATCHING_BUDGETS, MerchantId,
    ParentFault, SpendCounters, Timestamp,
};

use crate::conn::Conn;
use crate::dialect;
use crate::error::StoreError;
use crate::ids::Id;
use crate::imports::{self, ImportSource};
use crate::page::Page;
use crate::rows::{BudgetRow, SpendCountersRow};
use crate::schema::{budgets, connections, spend_counters, spend_keys};

/// The budgets of a merchant that take calls by their metadata, without their counters.
pub(crate) fn matching(
    conn: &mut Conn,
    merchant_id: MerchantId,
) -> Result<Vec<Budget>, StoreError> {
    let rows: Vec<BudgetRow> = budgets::table
        .filter(budgets::merchant_id.eq(Id(merchant_id)))
        .filter(budgets::matches)
        .filter(budgets::deleted_at.is_null())
        .select(BudgetRow::as_select())
        .load(conn)?;
    rows.into_iter().map(|row| row.with_counters(SpendCounters::default())).collect()
}

/// The budgets with these ids, deleted or not, without their counters.
pub(crate) fn by_id(conn: &mut Conn, ids: &[Id<BudgetId>]) -> Result<Vec<Budget>, StoreError> {
    let rows = dialect::budgets_by_id(conn, ids)?;
    rows.into_iter().map(|row| row.with_counters(SpendCounters::default())).collect()
}

/// A row of a budget with its counters.
type BudgetWithCounters = (BudgetRow, SpendCountersRow);

fn budget((row, counters): BudgetWithCounters) -> Result<Budget, StoreError> {
    row.with_counters((&counters).into())
}

macro_rules! present {
    () => {
        budgets::table
            .inner_join(spend_counters::table)
            .filter(budgets::deleted_at.is_null())
            .select((BudgetRow::as_select(), SpendCountersRow::as_select()))
    };
}

/// A merchant's budget that is not deleted.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn find(
    conn: &mut Conn,
    merchant_id: MerchantId,
    budget_id: BudgetId,
) -> Result<Option<Budget>, StoreError> {
    let row: Option<BudgetWithCounters> = present!()
        .filter(budgets::budget_id.eq(Id(budget_id)))
        .filter(budgets::merchant_id.eq(Id(merchant_id)))
        .first(conn)
        .optional()?;
    row.map(budget).transpose()
}

/// A merchant's budgets that are not deleted, newest first.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn list(
    conn: &mut Conn,
    merchant_id: MerchantId,
    page: &Page<BudgetId>,
) -> Result<Vec<Budget>, StoreError> {
    let mut query = present!().filter(budgets::merchant_id.eq(Id(merchant_id))).into_boxed();
    if let Some(after) = page.after {
        query = query.filter(budgets::budget_id.lt(Id(after)));
    }
    let rows: Vec<BudgetWithCounters> =
        query.order(budgets::budget_id.desc()).limit(page.rows()).load(conn)?;
    rows.into_iter().map(budget).collect()
}

/// A budget and all below it, with their counters; `None` if the merchant has no such budget.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn tree(
    conn: &mut Conn,
    merchant_id: MerchantId,
    budget_id: BudgetId,
) -> Result<Option<BudgetTree>, StoreError> {
    let Some(root) = find(conn, merchant_id, budget_id)? else { return Ok(None) };
    let mut tree = BudgetTree::default();
    let mut level = vec![Id(root.budget_id)];
    tree.insert(root);
    for _ in 1..BUDGET_LEVELS {
        let mut below = Vec::new();
        for parents in level.chunks(500) {
            let rows: Vec<BudgetWithCounters> = present!()
                .filter(budgets::merchant_id.eq(Id(merchant_id)))
                .filter(budgets::parent_id.eq_any(parents.iter().copied().map(Some)))
                .load(conn)?;
            for row in rows {
                let child = budget(row)?;
                below.push(Id(child.budget_id));
                tree.insert(child);
            }
        }
        level = below;
    }
    Ok(Some(tree))
}

/// The reason why a budget cannot be made or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetFault {
    /// The merchant has no such budget.
    NotFound,
    /// Its parent does not fit.
    Parent(ParentFault),
    /// The merchant has the most budgets that match calls already.
    TooManyMatching,
    /// A spend key or a customer names it, so it cannot match calls.
    IsNamed,
}

/// Makes a budget or, if the merchant has one with its id, changes all of it but its counters.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn save(
    conn: &mut Conn,
    changed: &Budget,
    is_new: bool,
) -> Result<Result<(), BudgetFault>, StoreError> {
    let (merchant_id, id) = (changed.merchant_id, changed.budget_id);
    // Two changes at once must not make a circle.
    dialect::lock_merchant(conn, merchant_id)?;
    if let Err(fault) = check(conn, changed, is_new)? {
        return Ok(Err(fault));
    }
    let row = BudgetRow::from(changed);
    if is_new {
        diesel::insert_into(budgets::table).values(&row).execute(conn)?;
        let counters = SpendCountersRow::new(Id(id).untyped(), merchant_id, &changed.counters);
        diesel::insert_into(spend_counters::table).values(&counters).execute(conn)?;
    } else {
        diesel::update(budgets::table.find(Id(id))).set(&row).execute(conn)?;
    }
    Ok(Ok(()))
}

/// Makes a budget of another service, with what was spent there in its present cycle.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn import(
    conn: &mut Conn,
    new: &Budget,
    source: &ImportSource,
) -> Result<Result<(), BudgetFault>, StoreError> {
    let counters = SpendCounters::imported(source.spent, source.imported_at);
    let made = save(conn, &Budget { counters, ..new.clone() }, true)?;
    if made.is_ok() {
        imports::write(conn, Id(new.budget_id).untyped(), source)?;
    }
    Ok(made)
}

fn check(
    conn: &mut Conn,
    changed: &Budget,
    is_new: bool,
) -> Result<Result<(), BudgetFault>, StoreError> {
    let (merchant_id, id) = (changed.merchant_id, changed.budget_id);
    let before = match is_new {
        true => None,
        false => match find(conn, merchant_id, id)? {
            None => return Ok(Err(BudgetFault::NotFound)),
            before => before,
        },
    };
    if let Some(parent_id) = changed.parent_id
        && before.as_ref().is_none_or(|before| before.parent_id != Some(parent_id))
    {
        let child = before.as_ref().map(|_| id);
        if let Err(fault) = check_parent(conn, merchant_id, child, parent_id)? {
            return Ok(Err(BudgetFault::Parent(fault)));
        }
    }
    let is_active = |budget: &Budget| budget.rules.status == BudgetStatus::Active;
    if changed.rules.is_matching() && is_active(changed) {
        let others = matching(conn, merchant_id)?;
        let others = others.iter().filter(|one| one.budget_id != id && is_active(one));
        if others.count() >= MATCHING_BUDGETS {
            return Ok(Err(BudgetFault::TooManyMatching));
        }
    }
    if changed.rules.pairs.is_some() && !is_new && is_named(conn, id)? {
        return Ok(Err(BudgetFault::IsNamed));
    }
    Ok(Ok(()))
}

/// Whether a budget may be below another one.
fn check_parent(
    conn: &mut Conn,
    merchant_id: MerchantId,
    child: Option<BudgetId>,
    parent_id: BudgetId,
) -> Result<Result<(), ParentFault>, StoreError> {
    let mut tree = BudgetTree::default();
    let mut above = Some(parent_id);
    for _ in 0..BUDGET_LEVELS {
        let Some(budget) = above.map(|id| find(conn, merchant_id, id)).transpose()?.flatten()
        else {
            break;
        };
        above = budget.parent_id;
        tree.insert(budget);
    }
    if let Some(child) = child {
        let below = self::tree(conn, merchant_id, child)?.unwrap_or_default();
        below.into_budgets().for_each(|budget| tree.insert(budget));
    }
    Ok(tree.check_parent(child, parent_id))
}

/// Whether a spend key or a customer that is not deleted names a budget.
fn is_named(conn: &mut Conn, id: BudgetId) -> Result<bool, StoreError> {
    let keys = spend_keys::table
        .filter(spend_keys::budget_id.eq(Id(id)))
        .filter(spend_keys::deleted_at.is_null());
    let customers = connections::table
        .filter(connections::budget_id.eq(Id(id)))
        .filter(connections::deleted_at.is_null());
    Ok(diesel::select(diesel::dsl::exists(keys)).get_result(conn)?
        || diesel::select(diesel::dsl::exists(customers)).get_result(conn)?)
}

/// The outcome of [`delete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetDeletion {
    /// Deleted.
    Deleted,
    /// The merchant has no such budget.
    NotFound,
    /// A budget, a spend key or a customer names it.
    InUse,
}

/// Deletes a budget that nothing names.
///
/// Call it in a write transaction.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn delete(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
    now: Timestamp,
) -> Result<BudgetDeletion, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    if find(conn, merchant_id, id)?.is_none() {
        return Ok(BudgetDeletion::NotFound);
    }
    let children =
        budgets::table.filter(budgets::parent_id.eq(Id(id))).filter(budgets::deleted_at.is_null());
    let has_children: bool = diesel::select(diesel::dsl::exists(children)).get_result(conn)?;
    if has_children || is_named(conn, id)? {
        return Ok(BudgetDeletion::InUse);
    }
    diesel::update(budgets::table.find(Id(id)))
        .set((budgets::deleted_at.eq(Some(now.unix_micros())), budgets::matches.eq(false)))
        .execute(conn)?;
    Ok(BudgetDeletion::Deleted)
}

/// Whether a spend key or a customer of the merchant may name a budget: it exists and does not match calls.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub(crate) fn can_be_named(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
) -> Result<bool, StoreError> {
    let found = find(conn, merchant_id, id)?;
    Ok(found.is_some_and(|budget| budget.rules.pairs.is_none()))
}

/// A merchant's budget that is to be changed. No call counts against it until the transaction ends.
///
/// # Errors
/// [`StoreError`] when the database fails.
pub fn lock(
    conn: &mut Conn,
    merchant_id: MerchantId,
    id: BudgetId,
) -> Result<Option<Budget>, StoreError> {
    dialect::lock_merchant(conn, merchant_id)?;
    let locked = dialect::lock_spend_counters(conn, &[Id(id).untyped()])?;
    let found = find(conn, merchant_id, id)?;
    Ok(found.map(|budget| Budget {
        counters: locked.first().map_or(budget.counters, SpendCounters::from),
        ..budget
    }))
}
