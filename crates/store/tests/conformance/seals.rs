//! Records that somebody else has changed are not acted on (S49), and what is forgotten is gone.

use twicesafe_core::{Action, Alert, Code, Forget, Outcome, Policy, Purge, Refusal, Reset, Status, Verdict};
use twicesafe_store::{Applied, Header, Line, LineCodec, Order, Store};

use crate::orders::{about, answered, claim, command, name, settle};
use crate::world::{Kind, World};

async fn done(world: &World, key: &str) -> Applied {
    let claimed = world.tell(claim(key, &Policy::default()).with_request(b"POST /charge 100")).await;
    let answer = twicesafe_core::Answer { head: "200".into(), ..twicesafe_core::Answer::of("paid 100") };
    world.tell(settle(&claimed, Outcome::Answered(answer.with_external_id("ch_1")))).await
}

/// A process that believes nothing: what others remember is true, whatever the tables say.
async fn told_afresh(world: &World, key: &str) -> Applied {
    world.open().await.apply_one(claim(key, &Policy::default()).into()).await.unwrap()
}

async fn fault(store: &Store, key: &str) -> Option<&'static str> {
    let stored = store.find(&name(key)).await.unwrap().unwrap();
    store.verify_journal(&stored).await.unwrap().map(|fault| fault.what)
}

pub async fn s49_a_changed_record_is_not_acted_on(world: &World) {
    let changes = [
        "status = 'retryable'",
        "generation = generation + 1",
        "external_id = 'ch_2'",
        "doubt = NOT doubt",
        "fence = 7",
        "policy = replace(policy, 'attempts=', 'attempts=1')",
        "recipe = 'raw2'",
        "settled_at = settled_at - 1",
        "requested_by = 'mallory'",
        "version = version + 1",
        "tries = 0",
        "due_at = 1",
        "request_digest = NULL",
        "work = 'w', step = 's'",
        "lane = 'l'",
        "detail = '{\"entombed_at\":1}'",
        "source = 'person'",
        "created_at = 1",
        "fingerprint = (SELECT o.fingerprint FROM intent o WHERE o.key = 'other')",
    ];
    let other = claim("other", &Policy::default()).with_input(&twicesafe_core::Recipe::raw(), b"another");
    world.tell(other).await;
    for (n, change) in changes.into_iter().enumerate() {
        let key = format!("k{n}");
        done(world, &key).await;
        assert_eq!(fault(&world.other, &key).await, None, "{change}");
        world.sql(&format!("UPDATE intent SET {change} WHERE key = '{key}'")).await;
        assert_eq!(fault(&world.other, &key).await, Some("the record does not fit its seal"), "{change}");
        let told = told_afresh(world, &key).await;
        assert_eq!(told.verdict, Verdict::Refuse(Refusal::Altered), "{change}");
        assert_eq!(told.alerts, [Alert::Altered], "{change}");
        assert!(!told.changed);
        let stored = told.stored.unwrap();
        let reset = Action::Reset(Reset { generation: stored.record.generation, reason: "again".into() });
        let told = world.open().await.apply_one(Order::numbered(stored.id, command("ann", reset))).await;
        assert_eq!(told.unwrap().verdict, Verdict::Refuse(Refusal::Altered), "{change}");
    }
}

pub async fn s49_a_changed_answer_is_not_given_again(world: &World) {
    for (n, column) in ["head", "body"].into_iter().enumerate() {
        let key = format!("k{n}");
        let id = done(world, &key).await.stored.unwrap().id.number();
        let text = if column == "head" { "'201'" } else { "CAST('paid 999' AS BLOB)" };
        let there = if column == "head" { "'201'" } else { "'paid 999'::bytea" };
        world
            .sql_of(
                &format!("UPDATE answer SET {column} = {text} WHERE intent = {id}"),
                &format!("UPDATE intent SET answer_{column} = {there} WHERE id = {id}"),
            )
            .await;
        assert_eq!(fault(&world.other, &key).await, Some("the record does not fit its seal"));
        assert_eq!(told_afresh(world, &key).await.verdict, Verdict::Refuse(Refusal::Altered));
    }
}

pub async fn s49_a_changed_request_is_not_sent(world: &World) {
    let stored = done(world, "k").await.stored.unwrap();
    world
        .sql_of(
            "UPDATE request SET body = CAST('POST /charge 999' AS BLOB)",
            "UPDATE intent SET request = 'POST /charge 999'::bytea",
        )
        .await;
    assert_eq!(world.other.request(stored.id).await.unwrap_err().code(), Code::RecordAltered);
    assert_eq!(fault(&world.other, "k").await, Some("the request does not fit the record"));
    let dossier = world.other.dossier(&name("k")).await.unwrap().unwrap();
    assert_eq!(dossier.request, None);
}

pub async fn s49_what_is_put_back_fits_again(world: &World) {
    done(world, "k").await;
    world.sql("UPDATE intent SET status = 'failed' WHERE key = 'k'").await;
    assert_eq!(told_afresh(world, "k").await.verdict, Verdict::Refuse(Refusal::Altered));
    world.sql("UPDATE intent SET status = 'done' WHERE key = 'k'").await;
    assert!(matches!(told_afresh(world, "k").await.verdict, Verdict::Replay(_)));
}

pub async fn s49_a_journal_that_is_cut_and_put_together_again_does_not_fit(world: &World) {
    let stored = done(world, "k").await.stored.unwrap();
    let id = stored.id.number();
    world
        .sql_of(
            &format!(
                "DELETE FROM journal WHERE intent = {id} AND number = 2;
                 UPDATE intent SET journal_rows = 1, journal_head = (SELECT hash FROM journal WHERE intent = {id})"
            ),
            "UPDATE intent SET entries = entries[1:1], journal_rows = 1, journal_head = (entries[1]).hash",
        )
        .await;
    assert_eq!(fault(&world.other, "k").await, Some("the record does not fit its seal"));
}

pub async fn s49_a_record_that_moved_to_another_name_does_not_fit(world: &World) {
    done(world, "mine").await;
    world.tell(claim("yours", &Policy::default())).await;
    let forgotten = done(world, "gone").await;
    world.tell(about(&forgotten, "ann", Action::Forget(Forget { reason: "asked to".into() }))).await;
    let id = forgotten.stored.unwrap().id;
    assert!(world.other.find_id(id).await.unwrap().unwrap().fits_seal);
    world
        .sql(&format!(
            "UPDATE intent SET hash = (SELECT salt FROM intent WHERE key = 'mine') WHERE id = {}",
            id.number()
        ))
        .await;
    assert!(!world.other.find_id(id).await.unwrap().unwrap().fits_seal);
}

/// The text of an export as the command line writes it.
async fn exported(store: &Store) -> Vec<String> {
    let mut export = store.export().await.unwrap();
    let codec = LineCodec::default();
    let mut lines = vec![Header::Whole(export.facts().clone()).to_text()];
    for intent in export.intents(None, twicesafe_core::IntentId::new(0), 100).await.unwrap() {
        lines.push(codec.to_text(&Line::Intent(Box::new(intent))));
    }
    lines
}

fn seal_of(store: &Store, lines: &[String]) -> String {
    let mut seal = store.line_seal();
    lines.iter().for_each(|line| seal.add(line));
    seal.text()
}

pub async fn s49_an_edited_export_does_not_fit_its_seal(world: &World) {
    done(world, "k").await;
    let lines = exported(&world.other).await;
    let seal = seal_of(&world.store, &lines);
    assert!(world.other.line_seal().text() != seal, "an empty one has another");
    for (from, to) in
        [("\"status\":\"done\"", "\"status\":\"retryable\""), ("ch_1", "ch_2"), ("export", "Export")]
    {
        let edited: Vec<String> = lines.iter().map(|line| line.replace(from, to)).collect();
        assert_ne!(edited, lines, "{from}");
        assert_ne!(seal_of(&world.store, &edited), seal, "{from}");
    }
    let beside = world.beside(Kind::Sqlite).await;
    assert_ne!(seal_of(&beside.store, &lines), seal, "another ledger has another secret");
    beside.end().await;
}

pub async fn s49_an_export_says_which_records_do_not_fit(world: &World) {
    done(world, "k").await;
    world.sql("UPDATE intent SET status = 'failed' WHERE key = 'k'").await;
    let lines = exported(&world.other).await;
    let Ok(Line::Intent(intent)) = LineCodec::default().from_text(&lines[1]) else { panic!("{}", lines[1]) };
    assert!(!intent.stored.fits_seal);
}

/// A person has seen it.
pub fn happened(record: &twicesafe_core::Record, seen: twicesafe_core::Answer) -> Action {
    let resolution = twicesafe_core::Resolution::Happened(seen);
    let reason = "ann-why".into();
    Action::Resolve(twicesafe_core::Resolve { about: record.fence, resolution, reason })
}

pub async fn s40_forgetting_takes_everything_that_was_said(world: &World) {
    let claiming = claim("ann-key", &Policy::default())
        .by("ann-requester")
        .in_lane("ann-lane", Some(7))
        .in_work("ann-work", "ann-step")
        .with_request(b"ann-request");
    let claimed = world.tell(claiming).await;
    let unknown = world.tell(settle(&claimed, Outcome::unknown("ann-reason"))).await;
    let stored = unknown.stored.clone().unwrap();
    assert_eq!(stored.record.status, Status::Review);
    let seen = twicesafe_core::Answer::of("ann-answer").with_external_id("ann-external");
    let done = world.tell(about(&unknown, "ann-person", happened(&stored.record, seen))).await;
    assert_eq!(done.stored.as_ref().unwrap().record.status, Status::Done);
    assert!(world.dump().await.contains("ann-lane"));
    let rows = stored.journal_end().0;
    let told = world.tell(about(&done, "ada", Action::Forget(Forget { reason: "asked to".into() }))).await;
    assert!(told.changed, "{:?}", told.verdict);
    let dump = world.dump().await;
    let hexed = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for text in [
        "ann-key",
        "ann-requester",
        "ann-lane",
        "ann-work",
        "ann-step",
        "ann-request",
        "ann-reason",
        "ann-person",
        "ann-why",
        "ann-answer",
        "ann-external",
    ] {
        assert!(!dump.contains(text) && !dump.contains(&hexed(text)), "{text} is still there");
    }
    let journal = world.other.journal(stored.id).await.unwrap();
    assert!(journal.len() as u32 > rows);
    assert_eq!(&*journal.last().unwrap().entry.reason, "asked to", "why it was forgotten stays");
    assert_eq!(journal.last().unwrap().entry.actor.as_str(), "ada");
    assert!(journal[..journal.len() - 1].iter().all(|row| row.entry.is_forgotten()));
    // What comes later is chained on.
    let reset = Action::Reset(Reset { generation: 1, reason: "back".into() });
    world.tell(about(&told, "ada", reset)).await;
    let again = world.tell(claim("ann-key", &Policy::default())).await;
    world.tell(settle(&again, answered("new"))).await;
}

pub async fn s15_a_lane_goes_when_nobody_is_in_it_any_more(world: &World) {
    let policy = Policy {
        retention: world.tick,
        tombstone: world.tick,
        act_max: world.tick,
        lease: world.tick,
        ..Policy::default()
    };
    let mut ids = Vec::new();
    for (key, version) in [("a", 1), ("b", 2)] {
        let claimed = world.tell(claim(key, &policy).in_lane("the-lane", Some(version))).await;
        world.tell(settle(&claimed, answered("done"))).await;
        ids.push(claimed.stored.unwrap().id);
    }
    let purge = async |id| {
        let purge = command("sweep", Action::Purge(Purge { work_is_open: false }));
        world.tell(Order::numbered(id, purge)).await
    };
    for id in &ids {
        assert!(world.dump().await.contains("the-lane"));
        for _ in 0..2 {
            world.pass(world.tick * 2).await;
            assert!(purge(*id).await.changed);
        }
        assert!(world.other.find_id(*id).await.unwrap().is_none());
    }
    assert!(!world.dump().await.contains("the-lane"), "it goes with the last of them");
    let claimed = world.tell(claim("c", &policy).in_lane("the-lane", Some(1))).await;
    assert!(matches!(claimed.verdict, Verdict::Proceed(_)), "{:?}", claimed.verdict);
}
