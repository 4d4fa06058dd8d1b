//! Make an effect safe to repeat.
//!
//! ```
//! use twicesafe_ledger::{Answer, Intent, Ledger};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("twicesafe-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("ledger.db");
//! let ledger = Ledger::open(&format!("sqlite:{}", path.display())).await?;
//!
//! let invoice = || Intent::new("billing/invoice.send", "order:10492").map(|intent| intent.input("total=120 EUR"));
//! let first = ledger
//!     .run(invoice()?, |attempt| async move {
//!         // Send it here. `attempt.destination_key()` is a key for destinations that deduplicate themselves.
//!         attempt.check_send()?;
//!         Ok(Answer::of("sent").with_external_id("INV-17"))
//!     })
//!     .await?;
//! assert!(!first.replayed);
//!
//! // The same intent again, here, after a crash or on another machine: not sent, answered from the ledger.
//! let again = ledger.run(invoice()?, |_| async { unreachable!("it was sent before") }).await?;
//! assert!(again.replayed);
//! assert_eq!(again.answer, first.answer);
//! # drop(ledger);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! The claim is on disk before the first byte leaves. An effect is carried out at most once as far as anyone can know.
//! Where nobody can know (a crash or a timeout between the act and the record), it does not guess: it does what the
//! intent's [`Recovery`] says the destination allows, and without one it asks a person. It does not promise
//! exactly-once; nobody can.
//!
//! # What the act returns
//!
//! `Ok(answer)` says that it happened. Any error turned into [`Trouble`] with `?` says that *nobody knows*; say
//! [`Trouble::not_sent`] or [`Trouble::refused`] only where that is certain.
//!
//! # Parts
//!
//! * [`Ledger::run`]: the whole of it in one call. [`Ledger::run_retrying`] tries again by itself.
//! * [`Ledger::claim`] and [`Permit::settle`]: the two halves, for those who need them apart.
//! * [`Ledger::transaction`]: act and record in one PostgreSQL transaction.
//! * [`Ledger::approve`], [`Ledger::resolve`] and their neighbours: what people decide.
//! * [`Ledger::sweep`] and [`Ledger::keep_sweeping`]: what time alone does.

mod accept;
mod attempt;
mod error;
mod finish;
mod heartbeat;
mod intent;
mod ledger;
mod people;
mod remote;
mod run;
mod suspicion;
mod sweep;
mod transaction;
mod trouble;
mod turn;
mod unused;

pub use accept::Accepted;
pub use attempt::{Attempt, Permit};
pub use error::Error;
pub use intent::{Intent, REQUEST_BYTES_MAX};
pub use ledger::{Alarm, Claimed, Given, Ledger, Open, UnderWay, new_command_id};
pub use people::{Adoption, By};
pub use remote::Held;
pub use run::{ANSWER_BYTES_MAX, Ended};
pub use sweep::{Sweeps, Swept};
pub use transaction::TransactionError;
pub use trouble::Trouble;
pub use twicesafe_core::{
    Actor, Alert, Answer, ApprovalRule, Backoff, Body, Code, CommandId, Counts, ExternalId, Fence, Finding,
    Fingerprint, Grant, IntentId, InvalidName, InvalidPolicy, Key, KeyPart, LaneName, Lookup, Meaning, Name,
    Noted, Notice, OnMismatch, OnReview, Outcome, PermitKind, PermitSecret, Policy, Recipe, Record, Recovery,
    Refusal, Replay, Report, Resolution, Scope, Source, Status, Timestamp, Verdict, VersionMeans, Wait,
    WaitCause, compensation_key, destination_key, journal, legible,
};
pub use twicesafe_store::{
    Address, Applied, BadLine, Clock, Count, Cursor, Dossier, DueIntent, EarlierAnswer, Export, Exported,
    FORMAT_VERSION, Facts, Filter, Header, Import, JournalFault, JournalRow, LaneState, LedgerSecret, Line,
    LineCodec, LineSeal, ManualClock, Page, SECRET_BYTES_MIN, Statistics, Store, StoreError, Stored,
    SystemClock, Totals,
};
