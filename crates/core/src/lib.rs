//! The rules of Twicesafe, and nothing else.
//!
//! This crate is a pure function, [`decide`], over plain data: what the ledger believes about one intent
//! (a [`Record`]), what somebody wants ([`Command`]) and the time ([`Moment`]) go in; what is true afterwards, what
//! is written into the journal and what the caller is told (a [`Transition`]) come out.
//!
//! What this crate does not know: clocks, randomness, threads, databases, HTTP (but for what its statuses mean by S16 to S19). Time
//! and dice are arguments.
//! That is why the same rules run on three stores, under a property test and under a model checker, and why a
//! store can only be wrong about storing.
//!
//! Rules are cited as `S1` to `S51`; `docs/semantics.md` has their text.

mod answer;
mod code;
mod command;
mod decide;
mod fingerprint;
pub mod journal;
mod lane;
pub mod legible;
mod meaning;
mod moment;
mod name;
mod permit;
mod policy;
mod record;
mod transition;
mod verdict;

pub use answer::{
    Answer, Body, Content, Counts, ExternalId, Finding, Outcome, REASON_BYTES_MAX, Report, Source,
};
pub use code::Code;
pub use command::{
    Action, Adopt, Approve, Ask, Claim, Command, CommandId, Forget, Grant, MarkUndone, Purge, Reject, Renew,
    Reset, Resolution, Resolve, Salt, Settle,
};
pub use decide::decide;
pub use fingerprint::{Fingerprint, Recipe, canonical_json, canonical_json_of, has_duplicate_names};
pub use lane::{IntentId, Lane, LaneName, Place, Waiting};
pub use meaning::Meaning;
pub use moment::{MachineClock, Moment, Timestamp};
pub use name::{
    Actor, InvalidName, KEY_BYTES_MAX, Key, KeyPart, KeySuspicion, NAME_BYTES_MAX, Name, Scope, Step,
    compensation_key, destination_key,
};
pub use permit::{Fence, Permit, PermitKind, PermitSecret};
pub use policy::{
    ApprovalRule, Backoff, InvalidPolicy, Lookup, OnMismatch, OnReview, Policy, Recovery, VersionMeans,
};
pub use record::{Approval, Attempt, Decision, Receipt, Record, STUCK_AFTER, Status};
pub use transition::{After, Alert, Notice, Transition};
pub use verdict::{Hold, Noted, Refusal, Replay, Verdict, Wait, WaitCause};
