//! What can go wrong around a ledger: each is a coded error or is survived, nothing acted, nothing lost (S7, S20, S42).

mod absent;
mod cut;
mod failover;
mod files;
mod foreign;
mod full;
mod proxy;
mod remembered;
mod restart;
mod secrets;
mod synced;
mod tls;

use twicesafe_core::Code;
use twicesafe_store::{Address, Options, Store};

/// Checks that a ledger is refused with that code, and that the error says what to do.
async fn check_refused(address: &Address, expected: Code) {
    let error = Store::open(address, Options::default()).await.err().expect("it must not open");
    assert_eq!(error.code(), expected, "{error}");
    assert!(!error.remedy().is_empty());
}
