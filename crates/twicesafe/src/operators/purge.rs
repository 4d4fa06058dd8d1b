//! `twicesafe purge`: what time alone does, now.

use std::io::Write;

use serde_json::json;
use twicesafe_ledger::{Ledger, Swept};

use super::agreement::count;
use super::say;
use crate::failure::Failure;
use crate::output::print_json;

pub(super) async fn run(ledger: &Ledger, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let mut total = Swept::default();
    loop {
        // A sweep is bounded, so that it never holds up claims for long.
        let swept = ledger.sweep().await?;
        total.expired += swept.expired;
        total.purged += swept.purged;
        if swept == Swept::default() {
            break;
        }
    }
    if json {
        return Ok(print_json(out, &json!({ "expired": total.expired, "purged": total.purged }))?);
    }
    writeln!(out, "expired  {}", total.expired)?;
    writeln!(out, "purged   {}", total.purged)?;
    say(&format!(
        "{} ran out of time; {} dropped. What is open, or needed by open work, is kept.",
        count(total.expired as u64, "lease, approval or lookup", "leases, approvals or lookups"),
        count(total.purged as u64, "answer or tombstone was", "answers and tombstones were")
    ));
    Ok(())
}
