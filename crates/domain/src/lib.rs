//! The business of Tollgate.

mod issue;

pub use issue::Issue;
