//! The operator's tools: look, decide, prove.
//!
//! * looking: `intents`, `show`, `work`, `waiting` (approvals and reviews), `pins`, `stats`;
//! * deciding: `decide`, `restored`;
//! * keeping and proving: `purge`, `journal`;
//! * the command about itself: `manual`.
//!
//! What an intent looks like to people and programs is in `portrait`, `agreement` and `next`.

mod agreement;
mod decide;
mod intents;
mod journal;
mod manual;
mod next;
mod pins;
mod portrait;
mod purge;
mod restored;
mod show;
mod stats;
mod waiting;
mod work;

use std::io::Write;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::say;
use crate::{Common, place};
pub(crate) use next::command;

/// Intents read at a time where all of them are wanted.
const PAGE: usize = 1000;

/// Commands of operators.
#[derive(Subcommand)]
pub(crate) enum Operate {
    /// Lists intents, newest first.
    Intents(intents::Intents),
    /// Shows everything about one intent, with its journal and what can be done next.
    Show(show::Show),
    /// Shows the steps of a unit of work, and what is safe to do about each.
    Work(work::Work),
    /// Lists what waits for a person's yes, oldest first.
    Approvals,
    /// Lists what may or may not have happened and waits for a person's finding, oldest first.
    Review,
    /// Says yes to an intent that is held.
    Approve(decide::Approve),
    /// Says no to an intent that is held.
    Reject(decide::Reject),
    /// Says what happened to an intent in review.
    Resolve(decide::Resolve),
    /// Starts a settled intent afresh: the next claim acts again.
    Reset(decide::Reset),
    /// Drops key, answers and request of a settled intent; it still does not happen again.
    Forget(decide::Forget),
    /// Lists, shows and forgets pinned answers of AI models.
    #[command(subcommand)]
    Pins(pins::Pins),
    /// Does now what time alone does: ends what is over, drops what need not be kept. Retention is never cut short: what is settled goes
    /// when that is over, and up to an hour later (act_max of its policy).
    Purge,
    /// Prints figures, each with its definition.
    Stats(stats::Stats),
    /// Proves that the journal is whole.
    #[command(subcommand)]
    Journal(journal::Journal),
    /// Tells the ledger that it was restored from a backup, or that this is over.
    Restored(restored::Restored),
    /// Prints completions for a shell.
    Completions(manual::Completions),
    /// Prints the manual page.
    Man,
}

pub(crate) async fn run(operate: Operate, common: &Common, out: &mut impl Write) -> Result<(), Failure> {
    let operate = match operate {
        Operate::Completions(completions) => return manual::completions(&completions, out),
        Operate::Man => return manual::page(out),
        operate => operate,
    };
    let ledger = &place::open(common).await?;
    let json = common.json;
    match operate {
        Operate::Intents(asked) => intents::run(ledger, asked, json, out).await,
        Operate::Show(asked) => show::run(ledger, asked, json, out).await,
        Operate::Work(asked) => work::run(ledger, asked, json, out).await,
        Operate::Approvals => waiting::approvals(ledger, json, out).await,
        Operate::Review => waiting::review(ledger, json, out).await,
        Operate::Approve(asked) => decide::approve(ledger, asked, json, out).await,
        Operate::Reject(asked) => decide::reject(ledger, asked, json, out).await,
        Operate::Resolve(asked) => decide::resolve(ledger, asked, json, out).await,
        Operate::Reset(asked) => decide::reset(ledger, asked, json, out).await,
        Operate::Forget(asked) => decide::forget(ledger, asked, json, out).await,
        Operate::Pins(asked) => pins::run(ledger, asked, json, out).await,
        Operate::Purge => purge::run(ledger, json, out).await,
        Operate::Stats(asked) => stats::run(ledger, asked, json, out).await,
        Operate::Journal(asked) => journal::run(ledger, asked, json, out).await,
        Operate::Restored(asked) => restored::run(ledger, asked, json, out).await,
        Operate::Completions(_) | Operate::Man => unreachable!("they need no ledger"),
    }
}
