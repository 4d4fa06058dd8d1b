//! A ledger moves to any store, and is the same there (S40).

use std::time::Duration;

use twicesafe_core::{
    Action, Adopt, Answer, ApprovalRule, Fingerprint, Forget, IntentId, Outcome, Policy, Recipe, Recovery,
    Refusal, Replay, Reset, Salt, Source, Status, Timestamp, Verdict,
};
use twicesafe_store::{
    Count, Exported, Facts, Filter, Header, LaneState, Line, LineCodec, Store, StoreError,
};

use super::audit;
use crate::orders::{about, answered, claim, name, on, permit, settle};
use crate::world::{Kind, World};

const PAGE: usize = 3;

/// Something in every status, and all that is seldom there.
async fn fill(world: &World) {
    let policy = world.policy(Recovery::Person);
    let body = Answer { head: "200 \u{e9}".into(), ..Answer::of(vec![0, 255, 7]).with_external_id("ch_1") };
    let done = world.tell(claim("done", &policy).with_request(b"POST \x00\xff").in_work("work", "one")).await;
    let done = world.tell(settle(&done, Outcome::Answered(body.clone()))).await;
    world.tell(about(&done, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    let again = world.tell(claim("done", &policy)).await;
    world.tell(settle(&again, Outcome::Answered(body.limited(2)))).await;
    let large = world.tell(claim("earlier", &policy)).await;
    let large = world.tell(settle(&large, Outcome::Answered(Answer::of("too large").limited(2)))).await;
    world.tell(about(&large, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    let refusal = Outcome::Refused { answer: Answer::of("no"), replay_for: world.tick };
    let failed = world.tell(claim("failed", &policy)).await;
    world.tell(settle(&failed, refusal)).await;
    let rule = ApprovalRule { people: 2, ..ApprovalRule::default() };
    world
        .tell(claim("held", &Policy { approval: Some(rule), ..policy.clone() }).with_request(&[7; 2_307]))
        .await;
    world
        .tell(claim("accepted", &policy).accepted(Duration::from_secs(3600)).in_lane("queue", Some(9)))
        .await;
    let unsent = world.tell(claim("unsent", &policy)).await;
    world.tell(settle(&unsent, Outcome::not_sent("connection refused"))).await;
    let doubtful = world.tell(claim("review", &policy).in_lane("lane", Some(5))).await;
    world.tell(settle(&doubtful, Outcome::unknown("timed out"))).await;
    world.tell(claim("waiting", &policy).in_lane("lane", Some(7))).await;
    let applied = world.tell(claim("applied", &policy).in_lane("other lane", Some(-3))).await;
    world.tell(settle(&applied, answered("applied"))).await;
    let forgotten = world.tell(claim("forgotten", &policy)).await;
    let forgotten = world.tell(settle(&forgotten, answered("a secret"))).await;
    world.tell(about(&forgotten, "ann", Action::Forget(Forget { reason: "asked to".into() }))).await;
    world.tell(on("adopted", "ann", adoption("ch_9"))).await;
    world.tell(claim("done", &policy)).await;
    world.tell(claim("lookup", &world.policy(Recovery::Lookup(world.lookup()))).with_request(b"")).await;
    let pending = world.tell(claim("pending", &policy).held_by("process 7")).await;
    let later = Timestamp::from_millis(2_000_000_000_000);
    world.store.keep_until(vec![(pending.stored.unwrap().id, later)]).await.unwrap();
    world.store.flush().await.unwrap();
}

fn adoption(external_id: &str) -> Action {
    Action::Adopt(Box::new(Adopt {
        name: name("adopted"),
        fingerprint: None,
        policy: Policy::default().into(),
        answer: Answer::default().with_external_id(external_id),
        reason: "the shop's export".into(),
        salt: Salt([3; 16]),
    }))
}

/// Everything a store knows.
#[derive(PartialEq, Debug)]
struct Everything {
    facts: Facts,
    intents: Vec<Exported>,
    lanes: Vec<LaneState>,
    counts: Vec<Count>,
}

async fn everything(store: &Store) -> Everything {
    let mut export = store.export().await.unwrap();
    let (mut intents, mut lanes): (Vec<Exported>, Vec<LaneState>) = Default::default();
    loop {
        let after = intents.last().map_or(IntentId::new(0), |last| last.stored.id);
        let page = export.intents(None, after, PAGE).await.unwrap();
        let ended = page.len() < PAGE;
        intents.extend(page);
        if ended {
            break;
        }
    }
    loop {
        let after = lanes.last().cloned().unwrap_or(LaneState::START);
        let page = export.lanes(&after, 1).await.unwrap();
        if page.is_empty() {
            break;
        }
        lanes.extend(page);
    }
    let counts = export.counts().await.unwrap();
    Everything { facts: export.facts().clone(), intents, lanes, counts }
}

/// The same, written down and read again.
fn by_letter(everything: Everything) -> Everything {
    let codec = LineCodec::default();
    let through = |line: Line| codec.from_text(&codec.to_text(&line)).unwrap();
    let Header::Whole(facts) = Header::from_text(&Header::Whole(everything.facts.clone()).to_text()).unwrap()
    else {
        panic!("a whole one")
    };
    let mut last = IntentId::new(0);
    let intents =
        everything.intents.into_iter().map(|intent| match through(Line::Intent(Box::new(intent))) {
            Line::Intent(intent) => {
                intent.check(&facts, last).unwrap();
                last = intent.stored.id;
                *intent
            }
            other => panic!("{other:?}"),
        });
    let intents = intents.collect();
    let lanes = everything.lanes.into_iter().map(|lane| match through(Line::Lane(lane)) {
        Line::Lane(lane) => lane,
        other => panic!("{other:?}"),
    });
    let counts = everything.counts.into_iter().map(|count| match through(Line::Count(count)) {
        Line::Count(count) => count,
        other => panic!("{other:?}"),
    });
    Everything { lanes: lanes.collect(), counts: counts.collect(), intents, facts }
}

async fn import(store: &Store, letter: &Everything) {
    let mut import = store.import(&letter.facts).await.unwrap();
    for page in letter.intents.chunks(PAGE) {
        import.intents(page.to_vec()).await.unwrap();
    }
    import.lanes(letter.lanes.clone()).await.unwrap();
    import.counts(letter.counts.clone()).await.unwrap();
    import.finish().await.unwrap();
}

pub async fn a_ledger_is_the_same_in_every_other_store(world: &World) {
    fill(world).await;
    let sent = everything(&world.store).await;
    let letter = by_letter(everything(&world.store).await);
    assert_eq!(letter.intents, sent.intents);
    assert_eq!((&letter.lanes, &letter.counts), (&sent.lanes, &sent.counts));
    for kind in [Kind::Memory, Kind::Sqlite, Kind::Postgres, Kind::PgBouncer] {
        let target = world.beside(kind).await;
        // What is given up leaves nothing.
        let mut given_up = target.store.import(&letter.facts).await.unwrap();
        given_up.intents(letter.intents.clone()).await.unwrap();
        drop(given_up);
        import(&target.store, &letter).await;
        let refused = target.store.import(&letter.facts).await.err();
        assert!(matches!(refused, Some(StoreError::NotEmpty)), "{refused:?}");
        for store in [&target.store, &target.open().await] {
            let came = everything(store).await;
            assert_eq!(came.intents, sent.intents, "{kind:?}");
            assert_eq!((&came.lanes, &came.counts), (&sent.lanes, &sent.counts), "{kind:?}");
            assert_eq!(came.facts.last_intent, sent.facts.last_intent);
            audit(store).await;
        }
        check_lists(&world.store, &target.store).await;
        check_who_was_there_before(&target).await;
        check_claims(&target, &sent).await;
        target.end().await;
    }
}

/// The agenda came along.
async fn check_lists(from: &Store, to: &Store) {
    for status in Status::ALL {
        let filter = Filter { status: Some(status), ..Filter::default() };
        let list = async |store: &Store| store.list(&filter, None, 100).await.unwrap().intents;
        assert_eq!(list(from).await, list(to).await, "{status}");
    }
}

/// Whoever opened the ledger while it was empty knows another key of names, and must not act on it.
async fn check_who_was_there_before(target: &World) {
    let policy = target.policy(Recovery::Person);
    for key in ["applied", "forgotten"] {
        match target.other.apply_one(claim(key, &policy).into()).await {
            Ok(told) => {
                assert!(matches!(told.verdict, Verdict::Replay(_) | Verdict::Refuse(Refusal::Purged)))
            }
            Err(error) => assert!(matches!(error, StoreError::Away(_)), "{error}"),
        }
    }
}

/// What was done is not done again, also under a forgotten name; and what is new is new.
async fn check_claims(target: &World, sent: &Everything) {
    let policy = target.policy(Recovery::Person);
    let store = target.open().await;
    let told = async |key| store.apply_one(claim(key, &policy).into()).await.unwrap();
    let replayed = told("applied").await.verdict;
    assert!(
        matches!(&replayed, Verdict::Replay(Replay { answer: Some(answer), .. }) if *answer == Answer::of("applied"))
    );
    let adopted = told("adopted").await.verdict;
    assert!(matches!(adopted, Verdict::Replay(Replay { source: Source::Person, .. })));
    assert_eq!(told("forgotten").await.verdict, Verdict::Refuse(Refusal::Purged));
    let fresh = told("fresh").await;
    assert_eq!(permit(&fresh).fence.number(), 1);
    assert!(fresh.stored.unwrap().id.number() > sent.facts.last_intent);
    let lane = store.apply_one(claim("late", &policy).in_lane("lane", Some(6)).into()).await.unwrap();
    assert!(matches!(lane.verdict, Verdict::Wait(_)), "the lane is closed: {:?}", lane.verdict);
}

pub async fn an_excerpt_has_one_scope_and_what_is_below_it(world: &World) {
    let policy = Policy::default();
    for scope in ["a", "a/b", "a/bc", "ab"] {
        let name = twicesafe_core::Name::new(scope, "k").unwrap();
        world.tell(claim("k", &policy).with_name(name)).await;
    }
    let mut export = world.store.export().await.unwrap();
    for (asked, expected) in
        [("a", vec!["a"]), ("a/", vec!["a/b", "a/bc"]), ("a/b", vec!["a/b"]), ("b", vec![]), ("A/", vec![])]
    {
        let found = export.intents(Some(asked), IntentId::new(0), 10).await.unwrap();
        let scopes: Vec<&str> =
            found.iter().map(|intent| intent.stored.record.name.as_ref().unwrap().scope.as_str()).collect();
        assert_eq!(scopes, expected, "{asked}");
    }
}

pub async fn an_export_shows_one_moment(world: &World) {
    let policy = world.policy(Recovery::Person);
    let claimed = world.tell(claim("k", &policy)).await;
    let mut export = world.store.export().await.unwrap();
    world.tell(settle(&claimed, answered("later"))).await;
    world.tell(claim("later", &policy)).await;
    let seen = export.intents(None, IntentId::new(0), 10).await.unwrap();
    let statuses: Vec<Status> = seen.iter().map(|intent| intent.stored.record.status).collect();
    assert_eq!(statuses, [Status::Pending]);
}

pub async fn what_happened_is_adopted(world: &World) {
    let policy = world.policy(Recovery::Person);
    let adopted = world.tell(on("adopted", "ann", adoption("ch_9"))).await;
    let record = &adopted.stored.as_ref().unwrap().record;
    assert_eq!((record.status, record.source), (Status::Done, Some(Source::Person)));
    let again = world.tell(on("adopted", "bob", adoption("ch_9"))).await;
    assert_eq!(again.stored, adopted.stored);
    let other = world.tell(on("adopted", "bob", adoption("ch_10"))).await;
    assert_eq!(other.verdict, Verdict::Refuse(Refusal::SettledOtherwise));
    // The first claim says what was asked for.
    let told = world.tell(claim("adopted", &policy)).await;
    let Verdict::Replay(Replay { answer: Some(answer), .. }) = told.verdict else { panic!() };
    assert_eq!(answer.external_id.unwrap().as_str(), "ch_9");
    assert_eq!(told.stored.unwrap().record.fingerprint, Some(Fingerprint::of(&Recipe::raw(), b"input")));
    let told = world.tell(claim("adopted", &policy).with_input(&Recipe::raw(), b"other")).await;
    assert_eq!(told.verdict, Verdict::Refuse(Refusal::Mismatch));
}
