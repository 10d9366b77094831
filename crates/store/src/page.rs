/// Where in a list to begin and how many to read. Lists are newest first, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<Id> {
    /// The last item already seen.
    pub after: Option<Id>,
    /// How many items at most.
    pub limit: u32,
}

impl<Id> Page<Id> {
    /// How many rows to read: one more than asked for, to tell whether there are more.
    pub(crate) fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }
}
