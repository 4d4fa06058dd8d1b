//! Ledgers with a history, on every kind of store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use twicesafe_ledger::{
    Actor, Answer, ApprovalRule, Claimed, Error, Intent, Ledger, LedgerSecret, Name, Open, Policy, Recovery,
    Trouble,
};

use crate::snapshot;

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A ledger of its own, and a folder that goes with the test.
pub(crate) struct World {
    pub(crate) address: String,
    folder: PathBuf,
    runtime: tokio::runtime::Runtime,
}

/// The secret of ledgers in PostgreSQL; others have theirs in a file.
pub(crate) const SECRET: &str = "the secret of ledgers in a database";

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World {
    fn new(address: impl FnOnce(&Path, &tokio::runtime::Runtime) -> String) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("twicesafe-operators-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { address: address(&folder, &runtime), folder, runtime }
    }

    /// An empty ledger in a file.
    pub(crate) fn sqlite() -> Self {
        Self::new(|folder, _| format!("sqlite:{}", folder.join("ledger.db").display()))
    }

    /// An empty ledger in a PostgreSQL database of its own.
    pub(crate) fn postgres() -> Self {
        Self::new(|_, runtime| {
            let admin =
                std::env::var("TWICESAFE_TEST_POSTGRES").expect("run scripts/test, which starts PostgreSQL");
            let name = format!("operators_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            sql(runtime, &admin, &format!("CREATE DATABASE {name}"));
            format!("{}/{name}", admin.rsplit_once('/').unwrap().0)
        })
    }

    /// A file in the folder of this world.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs the binary on this ledger, as ann.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(Path::new(env!("CARGO_BIN_EXE_twicesafe"))).args(arguments).output().unwrap()
    }

    /// A program that finds this ledger.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if self.address.starts_with("postgres") {
            command.env("TWICESAFE_SECRET", SECRET);
        }
        command
            .env("TWICESAFE_LEDGER", &self.address)
            .env("TWICESAFE_ACTOR", "ann")
            .current_dir(&self.folder);
        command
    }

    /// Writes to the database behind the ledger's back.
    pub(crate) fn tamper(&self, statement: &str) {
        match self.address.strip_prefix("sqlite:") {
            Some(path) => rusqlite::Connection::open(path).unwrap().execute_batch(statement).unwrap(),
            None if statement.contains(" journal ") => {
                let unfold = include_str!("../../../store/tests/journal/unfold.sql");
                let fold = include_str!("../../../store/tests/journal/fold.sql");
                sql(&self.runtime, &self.address, &format!("{unfold}{statement}{fold}"));
            }
            None => sql(&self.runtime, &self.address, statement),
        }
    }

    /// Uses the ledger as a program called `cron@shop` does.
    pub(crate) fn with<T>(&self, act: impl AsyncFnOnce(&Ledger) -> T) -> T {
        self.runtime.block_on(async {
            let mut ledger = Open::at(&self.address).actor(Actor::new("cron@shop").unwrap());
            if self.address.starts_with("postgres") {
                ledger = ledger.secret(LedgerSecret::of(SECRET).unwrap());
            }
            let ledger = ledger.open().await.unwrap();
            let result = act(&ledger).await;
            ledger.store().flush().await.unwrap();
            result
        })
    }

    /// A shop that has had a bad day.
    pub(crate) fn history(self) -> Self {
        self.with(async |ledger| {
            done(ledger, invoice("order:1"), "INV-1").await;
            for _ in 0..2 {
                done(ledger, invoice("order:1"), "never sent").await;
            }
            let other = invoice("order:1").input("other");
            assert!(ledger.claim(&other).await.is_err());
            doubtful(ledger, invoice("order:2"), "connection reset after the request was sent").await;
            held(ledger, "order:2", 1).await;
            let refused = intent("billing/refund.create", "order:3");
            let refusal = Answer { head: "status=422".into(), ..Answer::of("amount is too high") };
            act(ledger, refused, Err(Trouble::refused(refusal))).await;
            let update = |key, version| {
                intent("crm/contact.update", key).lane("crm:contact:881", Some(version)).unwrap()
            };
            doubtful(ledger, update("order:4", 7), "timed out after 30 s").await;
            assert!(matches!(ledger.claim(&update("order:5", 8)).await.unwrap(), Claimed::Wait { .. }));
            act(ledger, invoice("order:6").attempts(1), Err(Trouble::not_sent("connection refused"))).await;
            // Whoever has it does not come back.
            let Claimed::Proceed(permit) = ledger.claim(&invoice("order:7")).await.unwrap() else { panic!() };
            drop(permit);
            assert!(matches!(ledger.claim(&invoice("order:7")).await.unwrap(), Claimed::Wait { .. }));
            done(ledger, invoice("order:9"), "INV-9").await;
            self::reset(ledger, "order:9").await;
            done(ledger, invoice("order:9"), "INV-9b").await;
            held(ledger, "order:10", 2).await;
        });
        self
    }
}

fn sql(runtime: &tokio::runtime::Runtime, address: &str, statement: &str) {
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
    });
}

/// An intent in doubt of which nothing can arrive any more by the time somebody looks.
pub(crate) fn intent(scope: &str, key: &str) -> Intent {
    let mut policy = Policy::new(Recovery::Person);
    policy.lease = Duration::from_secs(300);
    policy.in_flight_max = Duration::from_millis(1);
    let work = key.replace(':', "-");
    let step = scope.rsplit('/').next().unwrap();
    Intent::new(scope, key).unwrap().input("socks").policy(policy).step(&work, step).unwrap()
}

pub(crate) fn invoice(key: &str) -> Intent {
    intent("billing/invoice.send", key)
}

pub(crate) async fn done(ledger: &Ledger, intent: Intent, external_id: &str) {
    let answer = Answer { head: "status=0".into(), ..Answer::of("sent\n").with_external_id(external_id) };
    act(ledger, intent, Ok(answer)).await;
}

pub(crate) async fn doubtful(ledger: &Ledger, intent: Intent, why: &'static str) {
    act(ledger, intent, Err(Trouble::unknown(why))).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
}

async fn held(ledger: &Ledger, key: &str, people: u8) {
    let rule = ApprovalRule { people, ..ApprovalRule::default() };
    let mail = intent("shop/mail.send", key).approval(rule);
    assert!(matches!(ledger.claim(&mail).await.unwrap(), Claimed::Hold { .. }));
}

pub(crate) async fn reset(ledger: &Ledger, key: &str) {
    let name = Name::new("billing/invoice.send", key).unwrap();
    let seen = ledger.existing(&name).await.unwrap();
    ledger.reset(&Actor::new("bob").unwrap(), &seen, "the address was wrong").await.unwrap();
}

async fn act(ledger: &Ledger, intent: Intent, result: Result<Answer, Trouble>) {
    let result: Result<_, Error> = ledger.run(intent, |_| async move { result }).await;
    drop(result);
}

/// Runs commands one after the other on a ledger of every kind; all of it must be what the snapshot says.
pub(crate) fn check(name: &str, prepare: impl Fn(World) -> World, commands: &[&[&str]]) {
    for world in [World::sqlite(), World::postgres()] {
        let world = prepare(world);
        let run = |arguments: &&[&str]| snapshot::transcript(arguments, &world.run(arguments));
        snapshot::check(name, &commands.iter().map(run).collect::<String>());
    }
}
