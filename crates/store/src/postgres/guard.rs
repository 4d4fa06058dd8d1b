//! Guarding an effect inside the caller's own transaction.
/// g
pub struct Guard;
/// g
pub struct Guarded;
