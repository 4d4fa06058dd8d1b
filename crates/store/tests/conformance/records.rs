//! Every field of a record survives. [`World::tell`] compares; here every field is made to hold something.

use std::time::Duration;

use twicesafe_core::{
    Action, Answer, ApprovalRule, Approve, Ask, Backoff, Body, Finding, Lookup, OnMismatch, OnReview,
    Outcome, PermitKind, Policy, Recipe, Record, Recovery, Replay, Reset, Source, Status, Verdict,
    VersionMeans,
};
use twicesafe_store::Applied;

use super::audit;
use crate::orders::{about, answered, claim, looked_up, name, permit, settle};
use crate::world::World;

fn record(applied: &Applied) -> &Record {
    &applied.stored.as_ref().unwrap().record
}

/// An answer with something odd in every part.
fn odd_answer() -> Answer {
    let body: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let head = "200\ncontent-type: text/\u{20ac}\n\"quoted\" 'and' \\x".into();
    Answer { head, ..Answer::of(body).with_external_id("ch_3Nx '\u{e9}\"") }
}

pub async fn an_attempt_and_its_answer_survive(world: &World) {
    let order = claim("k", &Policy::default())
        .by("worker 'seven' \u{e9}")
        .in_lane("crm:contact:881 \u{e9}", Some(i64::MAX))
        .in_work("order 'ten' \u{e9}", "charge \"it\"");
    let claimed = world.tell(order).await;
    let attempt = record(&claimed).attempt.as_ref().unwrap();
    assert_eq!((attempt.kind, attempt.holder.as_str()), (PermitKind::Act, "worker 'seven' \u{e9}"));
    let done = world.tell(settle(&claimed, Outcome::Answered(odd_answer()))).await;
    assert_eq!(record(&done).answer, Some(odd_answer()));
    assert_eq!(record(&done).source, Some(Source::Act));
    assert!(record(&done).last_settle.is_some() && record(&done).settled_at.is_some());

    let held = world.tell(claim("held", &Policy::default()).held_by("process 'seven' \u{e9}")).await;
    assert_eq!(record(&held).attempt.as_ref().unwrap().holder.as_str(), "process 'seven' \u{e9}");

    let negative = world.tell(claim("negative", &Policy::default()).in_lane("lane", Some(-7))).await;
    world.tell(settle(&negative, Outcome::Answered(Answer::default()))).await;
    let replayed = world.tell(claim("negative", &Policy::default()).in_lane("lane", Some(-7))).await;
    assert!(matches!(
        replayed.verdict,
        Verdict::Replay(Replay { answer: Some(answer), .. }) if answer == Answer::default()
    ));
}

pub async fn s20_a_body_that_was_not_kept_survives(world: &World) {
    let answer = odd_answer().limited(1000);
    assert!(matches!(answer.body, Body::NotKept { bytes: 70_000, .. }));
    let claimed = world.tell(claim("k", &Policy::default())).await;
    let done = world.tell(settle(&claimed, Outcome::Answered(answer.clone()))).await;
    assert_eq!(record(&done).answer.as_ref(), Some(&answer));

    // It is still said in the answers of earlier generations (S29).
    world.tell(about(&done, "ann", Action::Reset(Reset { generation: 1, reason: "again".into() }))).await;
    let dossier = world.other.dossier(&name("k")).await.unwrap().unwrap();
    assert_eq!(dossier.earlier[0].answer, answer);
}

pub async fn s18_a_refusal_and_how_long_it_is_given_again_survive(world: &World) {
    let policy = world.policy(Recovery::Person);
    let claimed = world.tell(claim("k", &policy)).await;
    let refusal = Outcome::Refused { answer: Answer::of("no funds"), replay_for: world.tick * 3 };
    let failed = world.tell(settle(&claimed, refusal)).await;
    assert_eq!(record(&failed).status, Status::Failed);
    assert!(record(&failed).replay_until.is_some());
    let told = world.tell(claim("k", &policy)).await;
    assert!(matches!(told.verdict, Verdict::Replay(Replay { refused: true, .. })), "{:?}", told.verdict);
    world.pass(world.tick * 3).await;
    let again = world.tell(claim("k", &policy)).await;
    assert_eq!(permit(&again).generation, 2);
}

pub async fn s30_an_approval_by_two_survives(world: &World) {
    let rule = ApprovalRule { people: 2, ..ApprovalRule::default() };
    let policy = Policy { approval: Some(rule), ..Policy::default() };
    let held = world.tell(claim("k", &policy).by("asker").with_request(b"POST")).await;
    let approving =
        || Action::Approve(Approve { generation: 1, fingerprint: record(&held).fingerprint.clone() });
    let half = world.tell(about(&held, "ann \u{e9}", approving())).await;
    let approval = record(&half).approval.clone().unwrap();
    assert_eq!((record(&half).status, approval.approved_by.len()), (Status::Held, 1));
    assert!(approval.decision.is_none());
    let ready = world.tell(about(&half, "bob", approving())).await;
    let approval = record(&ready).approval.clone().unwrap();
    assert_eq!((record(&ready).status, approval.approved_by.len()), (Status::Ready, 2));
    assert_eq!(approval.decision.unwrap().by.as_str(), "bob");
    assert!(record(&ready).due_at.is_some());
    permit(&world.tell(claim("k", &policy)).await);
}

pub async fn s11_a_kept_answer_and_evidence_survive(world: &World) {
    let policy = world.policy(Recovery::Repeat);
    for (key, answer) in [("whole", odd_answer()), ("cut", odd_answer().limited(9))] {
        let first = world.tell(claim(key, &policy)).await;
        world.pass(policy.lease).await;
        let second = world.tell(claim(key, &policy)).await;
        let kept = world.tell(settle(&first, Outcome::Answered(answer.clone()))).await;
        assert_eq!(record(&kept).kept.as_ref(), Some(&answer));
        assert!(record(&kept).last_evidence.is_some());
        assert!(
            record(&kept).doubt && record(&kept).first_sent_at.is_some() && record(&kept).quiet_at.is_some()
        );
        let done = world.tell(settle(&second, Outcome::unknown("cut"))).await;
        assert_eq!((record(&done).status, record(&done).answer.as_ref()), (Status::Done, Some(&answer)));
    }
}

pub async fn s24_what_is_known_of_a_lookup_survives(world: &World) {
    let policy = world.policy(Recovery::Lookup(world.lookup()));
    let claimed = world.tell(claim("k", &policy)).await;
    let doubtful = world.tell(settle(&claimed, Outcome::unknown("cut"))).await;
    assert!(record(&doubtful).ask_until.is_some());
    let asking = world.tell(about(&doubtful, "sweep", Action::Ask(Ask))).await;
    assert_eq!(permit(&asking).kind, PermitKind::Lookup);
    let silent = world.tell(looked_up(&asking, Finding::Silent { reason: "503".into() })).await;
    assert_eq!((record(&silent).asks, record(&silent).status), (1, Status::Pending));
    let asking = world.tell(about(&silent, "sweep", Action::Ask(Ask))).await;
    let found = world.tell(looked_up(&asking, Finding::Found(odd_answer()))).await;
    assert_eq!(record(&found).source, Some(Source::Lookup));
    assert_eq!(record(&found).answer, Some(odd_answer()));
}

pub async fn s31_requests_survive_until_the_next_generation(world: &World) {
    let request = async |key: &str| {
        let dossier = world.other.dossier(&name(key)).await.unwrap().unwrap();
        dossier.request.map(|body| String::from_utf8(body.to_vec()).unwrap())
    };
    let policy = Policy::default();
    let claimed = world.tell(claim("k", &policy).with_request(b"first")).await;
    assert_eq!(request("k").await.as_deref(), Some("first"));
    world.tell(claim("k", &policy).with_request(b"a repetition")).await;
    assert_eq!(request("k").await.as_deref(), Some("first"));
    world.tell(settle(&claimed, Outcome::refused(Answer::of("bad")))).await;
    let better = claim("k", &policy).with_input(&Recipe::raw(), b"2").with_request(b"second");
    let claimed = world.tell(better).await;
    assert_eq!(request("k").await.as_deref(), Some("second"));
    world.tell(settle(&claimed, Outcome::refused(Answer::of("bad")))).await;
    world.tell(claim("k", &policy).with_input(&Recipe::raw(), b"3")).await;
    assert_eq!(request("k").await, None, "what was asked for before must not be sent for what is asked now");
}

/// Ends alike, however much of its end is taken.
const BODY: [u8; 9000] = {
    let mut body = [b'.'; 9000];
    let mut at = 0;
    while at < body.len() {
        body[at] = b'!' + (at % 89) as u8;
        at += 1;
    }
    body
};

pub async fn s31_requests_of_every_length_survive(world: &World) {
    let policy = Policy::default();
    let request = async |key: &str| world.other.dossier(&name(key)).await.unwrap().unwrap().request;
    for length in [1, 2_028, 2_029, 2_307, 2_680, 2_681, 9_000] {
        let key = format!("of {length}");
        let body: &'static [u8] = &BODY[BODY.len() - length..];
        let claimed = world.tell(claim(&key, &policy).with_request(body)).await;
        assert_eq!(request(&key).await.as_deref(), Some(body), "{length}");
        // Shorter, so that nothing of the first may be left behind it.
        world.tell(settle(&claimed, Outcome::refused(Answer::of("bad")))).await;
        let better = claim(&key, &policy).with_input(&Recipe::raw(), b"2").with_request(b"second");
        let claimed = world.tell(better).await;
        assert_eq!(request(&key).await.as_deref(), Some(&b"second"[..]), "{length}");
        world.tell(settle(&claimed, Outcome::refused(Answer::of("bad")))).await;
        let longer = claim(&key, &policy).with_input(&Recipe::raw(), b"3").with_request(body);
        let claimed = world.tell(longer).await;
        assert_eq!(request(&key).await.as_deref(), Some(body), "{length}");
        world.tell(settle(&claimed, answered("done"))).await;
    }
}

pub async fn s29_answers_of_earlier_generations_survive(world: &World) {
    let policy = Policy::default();
    let endings = [
        Outcome::Answered(odd_answer()),
        Outcome::Answered(Answer::default()),
        Outcome::refused(Answer { head: "402".into(), ..Answer::of("no") }),
    ];
    for (ending, generation) in endings.into_iter().zip(1..) {
        let claimed = world.tell(claim("k", &policy)).await;
        let settled = world.tell(settle(&claimed, ending)).await;
        let reset = Reset { generation, reason: "again".into() };
        let fresh = world.tell(about(&settled, "ann", Action::Reset(reset))).await;
        assert_eq!((record(&fresh).answer.as_ref(), record(&fresh).generation), (None, generation + 1));
        assert!(record(&fresh).last_decision.is_some());
    }
    let dossier = world.other.dossier(&name("k")).await.unwrap().unwrap();
    let earlier: Vec<_> =
        dossier.earlier.iter().map(|e| (e.generation, e.status, e.answer.clone())).collect();
    assert_eq!(
        earlier,
        [
            (1, Status::Done, odd_answer()),
            (2, Status::Done, Answer::default()),
            (3, Status::Failed, Answer { head: "402".into(), ..Answer::of("no") }),
        ]
    );
    permit(&world.tell(claim("k", &policy)).await);
}

pub async fn everything_is_there_after_a_restart(world: &World) {
    let policy = Policy::default();
    for (n, outcome) in [
        answered("done"),
        Outcome::not_sent("no route"),
        Outcome::unknown("cut"),
        Outcome::refused(odd_answer()),
    ]
    .into_iter()
    .enumerate()
    {
        let claimed = world.tell(claim(&format!("k{n}"), &policy).in_lane(&format!("lane {n}"), None)).await;
        world.tell(settle(&claimed, outcome)).await;
    }
    world.tell(claim("pending", &policy)).await;
    let again = world.open().await;
    assert_eq!(audit(&again).await, audit(&world.other).await);
    let told = again.apply_one(claim("k0", &policy).into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Replay(_)), "{:?}", told.verdict);
    let told = again.apply_one(claim("pending", &policy).into()).await.unwrap();
    assert!(matches!(told.verdict, Verdict::Wait(_)), "{:?}", told.verdict);
}

pub async fn times_and_figures_of_every_policy_survive(world: &World) {
    let millis = Duration::from_millis;
    let lookup = Lookup { lag: millis(1), lookup_for: millis(999_999) };
    let classes = [
        Recovery::Repeat,
        Recovery::Person,
        Recovery::Lookup(lookup.clone()),
        Recovery::NativeKey { retention: millis(86_400_001), lookup: None },
        Recovery::NativeKey { retention: millis(86_400_001), lookup: Some(lookup) },
    ];
    for (n, recovery) in classes.into_iter().enumerate() {
        let rule = ApprovalRule { expires_after: millis(77_777), people: 3, requester_may_approve: true };
        let policy = Policy {
            recovery,
            lease: millis(60_001),
            act_max: millis(70_002),
            in_flight_max: millis(30_003),
            attempts_max: u32::MAX,
            backoff: Backoff { base: millis(11), cap: millis(22) },
            retention: Duration::from_secs(100 * 365 * 86_400),
            tombstone: millis(0),
            approval: (n % 2 == 0).then_some(rule),
            on_mismatch: if n % 2 == 0 { OnMismatch::Replay } else { OnMismatch::Note },
            version_means: VersionMeans::Snapshot,
            on_review: OnReview::Pass,
            unattended: n % 2 == 0,
        };
        policy.check().unwrap();
        let told = world.tell(claim(&format!("k{n}"), &policy)).await;
        assert_eq!(*record(&told).policy, policy);
    }
}
