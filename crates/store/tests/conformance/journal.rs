//! Every transition writes its row, in the same transaction, chained to the one before (S40).

use twicesafe_core::journal::Event;
use twicesafe_core::{
    Action, Answer, Ask, Finding, MarkUndone, Outcome, Policy, REASON_BYTES_MAX, Recovery, Reset, Status,
};

use crate::orders::{about, answered, claim, looked_up, name, settle};
use crate::world::World;

pub async fn s40_every_transition_has_its_row(world: &World) {
    let policy = world.policy(Recovery::Lookup(world.lookup()));
    let claimed = world.tell(claim("k", &policy).by("worker")).await;
    let doubtful = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    let asking = world.tell(about(&doubtful, "looker", Action::Ask(Ask))).await;
    let done = world.tell(looked_up(&asking, Finding::Found(Answer::of("there")))).await;
    world.tell(claim("k", &policy)).await;
    let mark = MarkUndone { generation: 1, reason: "refund 17".into() };
    let undone = world.tell(about(&done, "flow", Action::MarkUndone(mark))).await;
    let reset = Reset { generation: 1, reason: "again".into() };
    world.tell(about(&undone, "ann", Action::Reset(reset))).await;
    let claimed = world.tell(claim("k", &policy).by("worker")).await;
    world.tell(settle(&claimed, Outcome::not_sent("no route"))).await;

    let dossier = world.other.dossier(&name("k")).await.unwrap().unwrap();
    let rows: Vec<_> = dossier
        .journal
        .iter()
        .map(|row| {
            let entry = &row.entry;
            (row.number, entry.actor.as_str(), entry.event, entry.status, entry.generation, &*entry.reason)
        })
        .collect();
    assert_eq!(
        rows,
        [
            (1, "worker", Event::Claimed, Status::Pending, 1, ""),
            (2, "worker", Event::Unknown, Status::Pending, 1, "cut"),
            (3, "looker", Event::Asked, Status::Pending, 1, ""),
            (4, "looker", Event::Found, Status::Done, 1, ""),
            (5, "flow", Event::Undone, Status::Undone, 1, "refund 17"),
            (6, "ann", Event::Reset, Status::Ready, 2, "again"),
            (7, "worker", Event::Claimed, Status::Pending, 2, ""),
            (8, "worker", Event::NotSent, Status::Retryable, 2, "no route"),
        ]
    );
    let digests: Vec<u32> =
        dossier.journal.iter().filter(|row| row.digest.is_some()).map(|row| row.number).collect();
    assert_eq!(digests, [4], "a digest where something was said, and never the words");
    assert!(dossier.journal.iter().all(|row| row.entry.content.is_none()));
    assert!(dossier.journal.is_sorted_by_key(|row| row.entry.at));
}

pub async fn s40_words_of_any_kind_are_chained(world: &World) {
    let long = "\u{20ac}".repeat(REASON_BYTES_MAX);
    let words = ["it's", "\"", "\\", "a\nb\tc\r", "\u{1f4b6}\u{202e}", "\u{7}\u{1b}[31m", "", "null", &long];
    for (n, reason) in words.iter().enumerate() {
        let claimed = world.tell(claim(&format!("k{n}"), &Policy::default()).by("caf\u{e9} 'x'")).await;
        let settled = world.tell(settle(&claimed, Outcome::not_sent(reason))).await;
        let rows = world.other.journal(settled.stored.unwrap().id).await.unwrap();
        let kept = &rows.last().unwrap().entry.reason;
        assert!(
            reason.starts_with(&**kept) && kept.len() + 3 > reason.len().min(REASON_BYTES_MAX),
            "{reason:?}"
        );
    }
    // Not every database keeps NUL; so none does, and what was to be done is done.
    let claimed = world.tell(claim("nul", &Policy::default())).await;
    let settled = world
        .tell(settle(&claimed, Outcome::Unknown { reason: "a\0b".into(), retry_after: None, park: false }))
        .await;
    let rows = world.other.journal(settled.stored.unwrap().id).await.unwrap();
    assert_eq!(&*rows.last().unwrap().entry.reason, "ab");
    let odd_head = Answer { head: "a\nb\u{7}".into(), ..Answer::default() };
    let claimed = world.tell(claim("head", &Policy::default())).await;
    world.tell(settle(&claimed, Outcome::Answered(odd_head))).await;
    let claimed = world.tell(claim("plain", &Policy::default())).await;
    world.tell(settle(&claimed, answered("plain"))).await;
}

/// However long it gets, nothing of it is lost.
pub async fn s40_a_long_journal_is_whole(world: &World) {
    let policy = Policy::default();
    for generation in 1..=25 {
        let claimed = world.tell(claim("long", &policy)).await;
        let done = world.tell(settle(&claimed, answered("done"))).await;
        let mark = MarkUndone { generation, reason: "refund".into() };
        let undone = world.tell(about(&done, "flow", Action::MarkUndone(mark))).await;
        let reset = Reset { generation, reason: "again".into() };
        world.tell(about(&undone, "ann", Action::Reset(reset))).await;
    }
    let dossier = world.other.dossier(&name("long")).await.unwrap().unwrap();
    let numbers: Vec<u32> = dossier.journal.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    assert_eq!(dossier.stored.journal_end(), (100, dossier.journal[99].hash));
    assert_eq!(dossier.earlier.len(), 25);
    assert_eq!(world.other.verify_journal(&dossier.stored).await.unwrap(), None);
}
