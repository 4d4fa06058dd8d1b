//! `twicesafe show`: everything about one intent.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use twicesafe_core::{Code, PermitKind, legible};
use twicesafe_ledger::{
    Answer, Body, Dossier, EarlierAnswer, ExternalId, Filter, JournalFault, JournalRow, Ledger, Name, Record,
    Refusal, Source, Status, Store, Stored, Timestamp, destination_key,
};

use super::{PAGE, agreement, next, portrait};
use crate::failure::Failure;
use crate::output::{Table, print_json, time};

#[derive(Args)]
pub(crate) struct Show {
    /// The intent's scope.
    scope: String,
    /// Its key.
    key: String,
    /// Prints the stored answer's body as it is, and nothing else.
    #[arg(long)]
    answer: bool,
}

pub(super) async fn run(
    ledger: &Ledger,
    asked: Show,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let name = Name::new(&asked.scope, &asked.key)?;
    let dossier = ledger.dossier(&name).await?;
    let dossier = dossier.ok_or_else(|| twicesafe_ledger::Error::from(Refusal::NoSuchIntent))?;
    if asked.answer {
        return Ok(out.write_all(kept_body(&dossier.stored.record)?)?);
    }
    let store = ledger.store();
    let facts = Facts {
        now: store.now().await?,
        fault: store.verify_journal(&dossier.stored).await?,
        blocker: blocker(store, &dossier.stored).await?,
        dossier,
        name,
    };
    match json {
        true => Ok(print_json(out, &facts.as_json())?),
        false => facts.print(out),
    }
}

fn kept_body(record: &Record) -> Result<&[u8], Failure> {
    let status = record.status;
    let (code, cause, remedy) = match &record.answer {
        _ if record.is_tombstone() => (
            Code::Gone,
            "its answer is no longer kept".to_owned(),
            "What is left of it: twicesafe show SCOPE KEY.",
        ),
        Some(Answer { body: Body::Kept(bytes), .. }) => return Ok(bytes),
        Some(Answer { body: Body::NotKept { bytes, .. }, .. }) => (
            Code::Gone,
            format!("its answer had {bytes} bytes, which was too much to keep"),
            "Its length and hash: twicesafe show SCOPE KEY --json.",
        ),
        None => (
            Code::WrongStatus,
            format!("there is no answer: the intent is {status}"),
            "What can be done next: twicesafe show SCOPE KEY.",
        ),
    };
    Err(Failure::coded(code, cause, remedy))
}

/// Who has the lane that an intent waits for. Looked for among what is open, on one page a status: an answer in time
/// is worth more than an answer in every case.
async fn blocker(store: &Store, stored: &Stored) -> Result<Option<Stored>, Failure> {
    let record = &stored.record;
    let waits = matches!(record.status, Status::Ready | Status::Retryable) && !record.holds_lane();
    let Some(place) = record.place.as_ref().filter(|_| waits) else { return Ok(None) };
    for status in [Status::Review, Status::Pending, Status::Retryable] {
        let filter = Filter { status: Some(status), ..Filter::default() };
        let page = store.list(&filter, None, PAGE).await?;
        let holds = |other: &Stored| {
            other.id != stored.id
                && other.record.holds_lane()
                && other.record.place.as_ref().is_some_and(|other| other.lane == place.lane)
        };
        if let Some(other) = page.intents.into_iter().find(holds) {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

struct Facts {
    name: Name,
    now: Timestamp,
    dossier: Dossier,
    fault: Option<JournalFault>,
    blocker: Option<Stored>,
}

impl Facts {
    fn next_step(&self) -> String {
        match &self.blocker {
            Some(other) => {
                let [scope, key] = portrait::scope_and_key(other);
                format!(
                    "Wait for {scope} {key}, which has the lane. About that one: {}",
                    next::step(other, self.now)
                )
            }
            None => next::step(&self.dossier.stored, self.now),
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let facts = self.lines();
        let width = facts.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
        for (what, fact) in &facts {
            writeln!(out, "{}", format!("{what:width$}  {}", legible::line(fact)).trim_end())?;
        }
        writeln!(out)?;
        let headings = ["row", "at", "who", "what", "status", "doubt", "generation", "permit", "why"];
        let mut table = Table::new(&headings);
        for JournalRow { number, entry, .. } in &self.dossier.journal {
            table.row(vec![
                number.to_string(),
                time(entry.at),
                entry.actor.to_string(),
                entry.event.to_string(),
                entry.status.to_string(),
                yes_or_no(entry.doubt).to_owned(),
                entry.generation.to_string(),
                entry.fence.to_string(),
                entry.reason.to_string(),
            ]);
        }
        Ok(table.print(out)?)
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let Dossier { stored, journal, earlier, request } = &self.dossier;
        let record = &stored.record;
        let [scope, key] = portrait::scope_and_key(stored);
        let mut lines = vec![
            ("scope", scope),
            ("key", key),
            ("intent", format!("{}, generation {}", stored.id, record.generation)),
            ("status", format!("{}: {}", portrait::status(record), agreement::meaning(record.status))),
            ("next", self.next_step()),
            ("asked by", format!("{}, {}", record.requested_by, time(record.created_at))),
            ("attempts", format!("{} in this round, of {}", record.tries, record.policy.attempts_max)),
        ];
        let mut add = |what, fact: Option<String>| lines.extend(fact.map(|fact| (what, fact)));
        add("doubt", doubt(record));
        add("permit out", permit(record));
        add("due", record.due_at.map(time));
        add("settled", record.settled_at.map(time));
        add("external id", portrait::external_id(record).map(str::to_owned));
        add("answer", answer(record));
        add(
            "head",
            record.answer.as_ref().map(|answer| answer.head.to_string()).filter(|head| !head.is_empty()),
        );
        add("kept until", kept_until(record).map(time));
        add("approval", approval(record));
        add("work / step", Some(portrait::work(record)).filter(|work| !work.is_empty()));
        add("lane", self.lane());
        add("request", request.as_ref().map(|request| format!("{} bytes, kept", request.len())));
        add("sent key", Some(destination_key(&self.name, record.generation)));
        for (index, line) in
            agreement::in_words(&record.policy, record.place.is_some()).into_iter().enumerate()
        {
            add(if index == 0 { "agreed" } else { "" }, Some(line));
        }
        for earlier in earlier {
            add("earlier", Some(generation(earlier)));
        }
        add("journal", Some(self.journal(journal)));
        lines
    }

    fn lane(&self) -> Option<String> {
        let record = &self.dossier.stored.record;
        let place = record.place.as_ref()?;
        let version = place.version.map_or_else(String::new, |version| format!(", version {version}"));
        let standing = match &self.blocker {
            Some(other) => {
                format!(", taken by {} ({})", portrait::scope_and_key(other).join(" "), other.record.status)
            }
            None if record.holds_lane() => ", which others wait for".to_owned(),
            None => String::new(),
        };
        Some(format!("{}{version}{standing}", place.lane))
    }

    fn journal(&self, journal: &[JournalRow]) -> String {
        let rows = agreement::count(journal.len() as u64, "row", "rows");
        match &self.fault {
            Some(fault) => format!("NOT WHOLE at row {}: {}", fault.number, fault.what),
            None => format!("{rows}, whole"),
        }
    }

    fn as_json(&self) -> Value {
        let Dossier { stored, journal, earlier, request } = &self.dossier;
        let record = &stored.record;
        let mut value = portrait::as_json(stored, self.now);
        value["next_step"] = json!(self.next_step());
        value["fence"] = json!(record.fence.number());
        value["permit"] = json!(record.attempt.as_ref().map(|attempt| json!({
            "kind": kind(attempt.kind),
            "holder": attempt.holder.as_str(),
            "granted_at": time(attempt.granted_at),
            "send_by": time(attempt.send_by),
            "lease_until": time(attempt.lease_until),
        })));
        value["doubt_since"] = json!(record.first_sent_at.map(time));
        value["quiet_at"] = json!(record.quiet_at.map(time));
        value["source"] = json!(record.source.map(Source::as_str));
        value["answer"] = json!(record.answer.as_ref().map(answer_json));
        value["kept_until"] = json!(kept_until(record).map(time));
        value["approval"] = json!(record.approval.as_ref().map(|approval| json!({
            "expires_at": time(approval.expires_at),
            "approved_by": approval.approved_by.iter().map(|who| who.as_str()).collect::<Vec<_>>(),
            "approved": approval.decision.as_ref().map(|decision| decision.approved),
            "decided_by": approval.decision.as_ref().map(|decision| decision.by.as_str()),
        })));
        value["request_bytes"] = json!(request.as_ref().map(|request| request.len()));
        value["sent_key"] = json!(destination_key(&self.name, record.generation));
        value["policy"] = agreement::as_json(&record.policy);
        value["lane_taken_by"] = json!(self.blocker.as_ref().map(|other| portrait::as_json(other, self.now)));
        value["earlier"] = earlier
            .iter()
            .map(|EarlierAnswer { generation, status, answer }| {
                json!({ "generation": generation, "status": status.as_str(), "answer": answer_json(answer) })
            })
            .collect();
        value["journal_whole"] = json!(self.fault.is_none());
        value["journal_fault"] =
            json!(self.fault.as_ref().map(|fault| json!({ "row": fault.number, "what": fault.what })));
        value["journal"] = journal.iter().map(row_json).collect();
        value
    }
}

fn doubt(record: &Record) -> Option<String> {
    if !record.doubt {
        return None;
    }
    let since =
        record.first_sent_at.map_or_else(String::new, |since| format!(", at {} or later", time(since)));
    let quiet = record
        .quiet_at
        .map_or_else(String::new, |quiet_at| format!("; nothing of it can arrive after {}", time(quiet_at)));
    Some(format!("it may have happened{since}{quiet}"))
}

fn permit(record: &Record) -> Option<String> {
    let attempt = record.attempt.as_ref()?;
    let (kind, holder) = (kind(attempt.kind), &attempt.holder);
    let (since, until) = (time(attempt.granted_at), time(attempt.lease_until));
    Some(format!("number {} to {kind}, {holder} since {since}, lapses at {until}", record.fence))
}

fn kind(kind: PermitKind) -> &'static str {
    match kind {
        PermitKind::Act => "act",
        PermitKind::Lookup => "look up",
    }
}

fn answer(record: &Record) -> Option<String> {
    let answer = record.answer.as_ref().filter(|_| !record.is_tombstone())?;
    let known = match record.source {
        Some(Source::Lookup) => ", found by a lookup",
        Some(Source::Person) => ", as a person said",
        _ => "",
    };
    Some(match &answer.body {
        Body::Kept(bytes) if bytes.is_empty() => format!("empty{known}"),
        Body::Kept(bytes) => format!("{} bytes{known}; --answer prints them", bytes.len()),
        Body::NotKept { bytes, .. } => format!("{bytes} bytes{known}, too much to keep"),
    })
}

fn answer_json(answer: &Answer) -> Value {
    let (bytes, kept) = match &answer.body {
        Body::Kept(bytes) => (bytes.len() as u64, true),
        Body::NotKept { bytes, .. } => (*bytes, false),
    };
    let digest = match &answer.body {
        Body::NotKept { digest, .. } => Some(blake3::Hash::from(*digest).to_hex().to_string()),
        Body::Kept(_) => None,
    };
    json!({
        "external_id": answer.external_id.as_ref().map(ExternalId::as_str),
        "head": &*answer.head,
        "bytes": bytes,
        "kept": kept,
        "blake3": digest,
    })
}

fn kept_until(record: &Record) -> Option<Timestamp> {
    let answer_ends = record.settled_at? + record.policy.retention;
    Some(if record.is_tombstone() { answer_ends + record.policy.tombstone } else { answer_ends })
}

fn approval(record: &Record) -> Option<String> {
    let approval = record.approval.as_ref()?;
    let names: Vec<&str> = approval.approved_by.iter().map(|who| who.as_str()).collect();
    Some(match &approval.decision {
        Some(decision) if decision.approved => format!("yes, by {}", names.join(" and ")),
        Some(decision) => format!("no, by {}", decision.by),
        None => {
            let people = record.policy.approval.as_ref().map_or(1, |rule| rule.people);
            format!("{} of {people} said yes; waits until {}", names.len(), time(approval.expires_at))
        }
    })
}

fn generation(earlier: &EarlierAnswer) -> String {
    let id = earlier.answer.external_id.as_ref().map_or_else(String::new, |id| format!(", {}", id.as_str()));
    format!("generation {} ended {}{id}", earlier.generation, earlier.status)
}

fn row_json(row: &JournalRow) -> Value {
    let entry = &row.entry;
    json!({
        "row": row.number,
        "at": time(entry.at),
        "actor": entry.actor.as_str(),
        "event": entry.event.as_str(),
        "status": entry.status.as_str(),
        "doubt": entry.doubt,
        "generation": entry.generation,
        "fence": entry.fence.number(),
        "reason": &*entry.reason,
        "hash": blake3::Hash::from(row.hash).to_hex().as_str(),
    })
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}
