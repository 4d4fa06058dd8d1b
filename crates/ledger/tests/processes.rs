//! The examples, run as processes: two at once, killed, run again.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use twicesafe_ledger::{Claimed, Clock, Intent, Open, Policy, Recovery, SystemClock};

use crate::world::{Folder, postgres};

fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    Command::new(path.join("examples").join(name))
}

/// A shop and the program that sends to it.
struct Sender {
    folder: Folder,
    ledger: String,
}

impl Sender {
    fn command(&self, key: &str, class: &str) -> Command {
        let mut command = example("send_once");
        command.arg(&self.ledger).arg(self.folder.file("shop")).arg(key).arg(class);
        command
    }

    fn run(&self, key: &str, class: &str) -> String {
        let output = self.command(key, class).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts it, waits until it has come so far, and kills it.
    fn kill(&self, key: &str, class: &str, pause: &str) {
        let mut child = self.command(key, class).arg(pause).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "paused");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Effects at the destination.
    fn effects(&self, key: &str) -> usize {
        let orders = std::fs::read_to_string(self.folder.file("shop")).unwrap_or_default();
        orders.lines().filter(|line| line.starts_with(&format!("{key} "))).count()
    }
}

fn killed_then_run_again(sender: &Sender) {
    // Class, where it was killed, what the second run says, effects in all.
    let cases = [
        ("person", "pause-after-claim", "in review", 0),
        ("person", "pause-after-send", "in review", 1),
        ("lookup", "pause-after-claim", "sent now", 1),
        ("lookup", "pause-after-send", "sent before", 1),
        ("native-key", "pause-after-claim", "sent now", 1),
        ("native-key", "pause-after-send", "sent now", 1),
        ("repeat", "pause-after-claim", "sent now", 1),
        ("repeat", "pause-after-send", "sent now", 2),
    ];
    for (class, pause, says, effects) in cases {
        let key = format!("{class}-{pause}");
        sender.kill(&key, class, pause);
        let said = sender.run(&key, class);
        assert!(said.starts_with(says), "{class}, {pause}: {said}");
        assert_eq!(sender.effects(&key), effects, "{class}, {pause}");
        let again = sender.run(&key, class);
        let expected = if class == "person" { "in review" } else { "sent before" };
        assert!(again.starts_with(expected), "{class}, {pause}, third run: {again}");
        assert_eq!(sender.effects(&key), effects, "{class}, {pause}, third run");
    }
}

fn two_at_once(sender: &Sender) {
    for round in 0..5 {
        let key = format!("both-{round}");
        let start = || sender.command(&key, "person").stdout(Stdio::piped()).spawn().unwrap();
        let said = [start(), start()]
            .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap());
        assert_eq!(said.iter().filter(|line| line.starts_with("sent now")).count(), 1, "{said:?}");
        assert_eq!(said.iter().filter(|line| line.starts_with("sent before")).count(), 1, "{said:?}");
        assert_eq!(sender.effects(&key), 1);
    }
}

#[test]
fn s42_killed_then_run_again_on_sqlite() {
    let folder = Folder::new();
    let ledger = folder.sqlite();
    killed_then_run_again(&Sender { folder, ledger });
}

#[tokio::test]
async fn s42_killed_then_run_again_on_postgres() {
    killed_then_run_again(&Sender { folder: Folder::new(), ledger: postgres().await });
}

#[test]
fn s8_two_at_once_on_sqlite() {
    let folder = Folder::new();
    let ledger = folder.sqlite();
    two_at_once(&Sender { folder, ledger });
}

#[tokio::test]
async fn s8_two_at_once_on_postgres() {
    two_at_once(&Sender { folder: Folder::new(), ledger: postgres().await });
}

/// The clock of this machine, as it was before it was set back by a day.
#[derive(Default)]
struct DayAhead(SystemClock);

impl Clock for DayAhead {
    fn system_millis(&self) -> i64 {
        self.0.system_millis() + 86_400_000
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn boot(&self) -> i64 {
        self.0.boot()
    }
}

#[tokio::test]
async fn s10_a_clock_moved_back_a_day_between_two_runs() {
    let folder = Folder::new();
    let ledger = folder.sqlite();
    let sender = Sender { folder, ledger };
    // As the example claims; it sends, and is not heard of again.
    let policy = Policy {
        lease: Duration::from_millis(800),
        in_flight_max: Duration::from_millis(200),
        ..Policy::new(Recovery::Person)
    };
    let intent = Intent::new("shop/order.send", "k").unwrap().input("1 pair of socks").policy(policy);
    let ahead = Open::at(&sender.ledger).clock(Arc::new(DayAhead::default())).open().await.unwrap();
    let claimed = ahead.claim(&intent).await.unwrap();
    assert!(matches!(claimed, Claimed::Proceed(_)));
    std::mem::forget(claimed);
    std::fs::write(sender.folder.file("shop"), "k sent\n").unwrap();
    drop(ahead);
    // Its lease still ends, though the clock says that it was given tomorrow.
    let said = sender.run("k", "person");
    assert!(said.starts_with("in review"), "{said}");
    assert!(sender.run("other", "person").starts_with("sent now"));
    assert!(sender.run("other", "person").starts_with("sent before"));
    assert_eq!((sender.effects("k"), sender.effects("other")), (1, 1));
}

#[tokio::test]
async fn the_example_in_a_transaction_reserves_once_and_rolls_back_with_its_record() {
    let url = postgres().await;
    let run = |words: &[&str]| {
        let output = example("in_transaction").arg(&url).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(run(&["order:1", "fail"]), "reserved now; 0 in all");
    assert_eq!(run(&["order:1"]), "reserved now; 1 in all");
    assert_eq!(run(&["order:1"]), "reserved before; 1 in all");
    assert_eq!(run(&["order:2"]), "reserved now; 2 in all");
}
