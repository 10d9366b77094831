//! A page of a list.

/// The beginning and length of a page. Lists are newest first, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// The last item of the page before.
    pub after: Option<Id>,
    /// The most items of the page.
    pub limit: u32,
}

impl<Id> Page<Id> {
    /// The number of rows to read: one more than the limit, which shows whether there are more.
    pub(crate) fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// Cuts what was read to the page, and returns the id after which the list continues.
    pub fn cut<T>(&self, mut items: Vec<T>, id: impl Fn(&T) -> Id) -> (Vec<T>, Option<Id>) {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let has_more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| has_more).map(id);
        (items, next)
    }
}
