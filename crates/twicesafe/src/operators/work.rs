//! `twicesafe work`: the steps of a unit of work, and what is safe to do about each.

use std::io::Write;

use clap::Args;
use twicesafe_core::Code;
use twicesafe_ledger::Ledger;

use super::{next, portrait};
use crate::failure::Failure;
use crate::output::{Table, print_json};

#[derive(Args)]
pub(crate) struct Work {
    /// The unit of work: one order, one event, one row.
    id: String,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Work,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let store = ledger.store();
    let mut steps = store.work(&asked.id).await?;
    for step in &mut steps {
        // What time alone has decided is decided first (S24).
        if let Some(name) = &step.record.name
            && let Some(stored) = ledger.look(name).await?
        {
            *step = (*stored).clone();
        }
    }
    if steps.is_empty() {
        let cause = format!("no intent is a step of the work `{}`", asked.id);
        let remedy = "Check the name and the ledger: twicesafe intents lists what there is.";
        return Err(Failure::coded(Code::NoSuchIntent, cause, remedy));
    }
    let now = store.now().await?;
    if json {
        return Ok(steps.iter().try_for_each(|stored| print_json(out, &portrait::as_json(stored, now)))?);
    }
    let mut table = Table::new(&["step", "scope", "key", "status", "external id", "what is safe next"]);
    for stored in &steps {
        let record = &stored.record;
        let step = record.step.as_ref().map_or("", |step| step.step()).to_owned();
        let [scope, key] = portrait::scope_and_key(stored);
        let external_id = portrait::external_id(record).unwrap_or_default().to_owned();
        table.row(vec![step, scope, key, portrait::status(record), external_id, next::step(stored, now)]);
    }
    Ok(table.print(out)?)
}
