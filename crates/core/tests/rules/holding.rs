//! Permits belong to who got them (S48).

use twicesafe_core::{
    Action, Actor, Fence, Permit, PermitSecret, Recovery, Refusal, Renew, Report, Salt, Settle, Status,
    Verdict,
};

use super::ledger::*;

#[test]
fn s48_only_who_got_a_permit_renews_and_settles_it() {
    let mut ledger = Ledger::new(Recovery::Person);
    let permit = ledger.permit();
    let before = ledger.journal.len();
    let guess = Permit { secret: PermitSecret::new([0; 16]), ..permit.clone() };
    let of_another = PermitSecret::of(Salt([1; 16]), permit.fence, 1, &Actor::new("caller").unwrap());
    for (who, permit) in [
        ("caller", &guess),
        ("caller", &Permit { secret: of_another, ..permit.clone() }),
        // Who has heard of the secret is not who was told it.
        ("stranger", &permit),
    ] {
        check_refused(ledger.settle_as(who, permit, Report::Act(answered("invented"))), Refusal::NotHolder);
        let Permit { fence, secret, .. } = *permit;
        check_refused(
            ledger.run(who, Action::Renew(Renew { fence, secret, holder: None })),
            Refusal::NotHolder,
        );
    }
    assert_eq!(ledger.journal.len(), before, "anybody could say so: it is not even evidence");
    permit_in(ledger.renew(&permit));
    ledger.acted(&permit, answered("first"));
    ledger.check(Status::Done, false);
}

#[test]
fn s48_a_late_report_needs_the_permit_too() {
    let mut ledger = Ledger::new(Recovery::Person);
    let late = ledger.lapse();
    ledger.check(Status::Review, true);
    for number in 0..4 {
        let (fence, secret) = (Fence::new(number), PermitSecret::new([0; 16]));
        let settle = Settle { fence, generation: 1, secret, report: Report::Act(answered("invented")) };
        check_refused(ledger.run("caller", Action::Settle(settle)), Refusal::NotHolder);
    }
    ledger.check(Status::Review, true);
    ledger.acted(&late, answered("late"));
    ledger.check(Status::Done, false);
}

#[test]
fn s48_a_claim_repeated_gets_the_same_secret_and_another_permit_has_another() {
    let mut ledger = Ledger::new(Recovery::Repeat);
    let claim = || Action::Claim(Box::new(Ledger::new(Recovery::Repeat).claim_of("input")));
    let first = permit_in(ledger.apply(7, "caller", claim()));
    let again = permit_in(ledger.apply(7, "caller", claim()));
    assert_eq!(first.secret, again.secret);
    ledger.acted(&first, unknown());
    let second = ledger.permit();
    assert_ne!(first.secret, second.secret);
    assert!(matches!(ledger.acted(&second, answered("second")), Verdict::Noted(_)));
}
