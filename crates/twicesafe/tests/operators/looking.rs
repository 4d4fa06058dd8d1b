//! Looking at a ledger.

use twicesafe_ledger::{Recovery, Trouble};

use crate::operators::world::{World, check, doubtful, intent};

#[test]
fn intents_are_listed_newest_first_and_filtered() {
    check(
        "intents",
        World::history,
        &[
            &["intents"],
            &["intents", "--status", "review"],
            &["intents", "--scope", "billing/", "--limit", "2"],
            &["intents", "--work", "order-2"],
            &["intents", "--containing", "INV-9"],
            &["intents", "--since", "1h", "--scope", "crm/contact.update"],
            &["intents", "--until", "1h"],
            &["intents", "--json", "--limit", "1"],
            &["intents", "--json", "--status", "superseded"],
            &["intents", "--status", "lost"],
            &["intents", "--after", "nowhere"],
            &["intents", "--since", "yesterday"],
        ],
    );
}

#[test]
fn a_list_goes_on_where_the_last_one_ended() {
    for world in [World::sqlite(), World::postgres()] {
        let world = world.history();
        let all = lines(&world, &["intents", "--json"]);
        let (mut paged, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut arguments = vec!["intents", "--json", "--limit", "3"];
            arguments.extend(after.as_deref().into_iter().flat_map(|after| ["--after", after]));
            let mut page = lines(&world, &arguments);
            after = page.last().and_then(|last| last["next_cursor"].as_str()).map(str::to_owned);
            if after.is_some() {
                page.pop();
            }
            paged.extend(page);
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, all);
    }
}

#[test]
fn what_is_the_servers_own_waits_for_nobody() {
    let world = World::sqlite();
    world.with(async |ledger| {
        doubtful(ledger, intent("billing/invoice", "1"), "timeout").await;
        doubtful(ledger, intent("twicesafe/callback", "1:1"), "timeout").await;
    });
    let scopes = |arguments: &[&str]| -> Vec<String> {
        lines(&world, arguments).iter().map(|line| line["scope"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(scopes(&["review", "--json"]), ["billing/invoice"]);
    assert_eq!(
        scopes(&["intents", "--json", "--status", "review"]),
        ["twicesafe/callback", "billing/invoice"]
    );
}

#[test]
fn s47_what_is_stuck_is_listed_in_review() {
    let world = World::sqlite();
    world.with(async |ledger| {
        let update = || intent("crm/contact", "1").recovery(Recovery::Repeat).lane("contact:881", None);
        doubtful(ledger, update().unwrap(), "502").await;
    });
    assert!(lines(&world, &["review", "--json"]).is_empty(), "it is due again");
    world.with(async |ledger| {
        let update = intent("crm/contact", "1").wait(std::time::Duration::from_secs(10));
        let forbidden = |_| async { Err(Trouble::not_sent("403").passed_on()) };
        ledger.run(update, forbidden).await.unwrap_err();
    });
    let listed = lines(&world, &["review", "--json"]);
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["status"], &listed[0]["blocks_lane"]),
        (&"retryable".into(), &"contact:881".into())
    );
    let decide = ["resolve", "crm/contact", "1", "--give-up", "--reason", "nobody can tell"];
    assert!(world.run(&decide).status.success());
    assert!(lines(&world, &["review", "--json"]).is_empty());
}

#[test]
fn what_is_older_than_a_time_is_found_without_what_came_after() {
    let world = World::sqlite().history();
    // Half of it was an hour ago.
    world.tamper("UPDATE intent SET created_at = created_at - 3600000 WHERE id <= 4");
    let number = |line: &serde_json::Value| line["intent"].as_i64().unwrap();
    let old: Vec<i64> = lines(&world, &["intents", "--json", "--until", "30m"]).iter().map(number).collect();
    assert_eq!(old, [4, 3, 2, 1]);
    let new: Vec<i64> = lines(&world, &["intents", "--json", "--since", "30m"]).iter().map(number).collect();
    assert_eq!(new, [10, 9, 8, 7, 6, 5]);
}

fn lines(world: &World, arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = world.run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn everything_about_one_intent_is_shown() {
    check(
        "show",
        World::history,
        &[
            &["show", "billing/invoice.send", "order:1"],
            &["show", "billing/invoice.send", "order:1", "--answer"],
            &["show", "billing/invoice.send", "order:2"],
            &["show", "billing/invoice.send", "order:2", "--answer"],
            &["show", "billing/invoice.send", "order:2", "--json"],
            &["show", "shop/mail.send", "order:10"],
            &["show", "billing/refund.create", "order:3"],
            &["show", "crm/contact.update", "order:4"],
            &["show", "crm/contact.update", "order:5"],
            &["show", "billing/invoice.send", "order:6"],
            &["show", "billing/invoice.send", "order:7"],
            &["show", "billing/invoice.send", "order:9"],
            &["show", "billing/invoice.send", "order:9", "--json"],
            &["show", "billing/invoice.send", "order:404"],
            &["show", "billing/invoice.send", "order:404", "--json"],
            &["show", "billing//invoice.send", "order:1"],
            &["show", "billing/invoice.send", ""],
        ],
    );
}

#[test]
fn the_steps_of_a_work_say_what_is_safe_next() {
    check(
        "work",
        World::history,
        &[&["work", "order-1"], &["work", "order-2"], &["work", "order-2", "--json"], &["work", "order-404"]],
    );
}

#[test]
fn what_waits_for_a_person_is_listed_oldest_first() {
    let commands: [&[&str]; 4] =
        [&["approvals"], &["approvals", "--json"], &["review"], &["review", "--json"]];
    check("waiting", World::history, &commands);
    check("waiting-nothing", |world| world, &commands);
}

#[test]
fn figures_come_with_their_definition() {
    check(
        "stats",
        World::history,
        &[
            &["stats"],
            &["stats", "--json"],
            &["stats", "--until", "2020-01-01"],
            &["stats", "--since", "soon"],
        ],
    );
}

#[test]
fn s41_what_others_wrote_cannot_change_how_it_is_shown() {
    let key = "a\u{202e}b\u{2028}Status: done";
    let reason = "no\u{1b}[2J\r\nrow 9 approved by boss";
    for world in [World::sqlite(), World::postgres()] {
        world.with(async |ledger| {
            doubtful(ledger, intent("billing/invoice", key), reason).await;
        });
        for arguments in [
            &["show", "billing/invoice", key][..],
            &["review"],
            &["intents"],
            &["resolve", "billing/invoice", key, "--give-up", "--reason", reason],
            &["approve", "billing/invoice", key],
        ] {
            let output = world.run(arguments);
            let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            let is_plain = |c: char| c == '\n' || !c.is_control() && !"\u{202e}\u{2028}".contains(c);
            assert!(shown.chars().all(is_plain), "{arguments:?}: {shown:?}");
            assert!(!shown.lines().any(|line| line.starts_with("row 9")), "{arguments:?}: {shown}");
        }
        let listed = world.run(&["show", "billing/invoice", key]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("a\\u{202e}b\\u{2028}Status: done"), "{listed}");
        assert!(listed.contains("no\\u{1b}[2J"), "{listed}");
    }
}
