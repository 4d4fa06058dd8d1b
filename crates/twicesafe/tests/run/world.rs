//! A ledger, a folder, and commands in it that leave traces which can be counted.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How long a test waits for what must come. Machines that build are slow.
const PATIENCE: Duration = Duration::from_secs(60);

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Makes tests of functions over a world: each once for every kind of store.
macro_rules! on_every_store {
    ($($name:ident)+) => {$(
        mod $name {
            use $crate::run::world::World;

            #[test]
            fn on_sqlite() {
                super::$name(&World::sqlite());
            }

            #[test]
            fn on_postgres() {
                super::$name(&World::postgres());
            }
        }
    )+};
}
pub(crate) use on_every_store;

/// A ledger of its own, and a folder that goes with the test.
pub(crate) struct World {
    pub(crate) address: String,
    folder: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World {
    fn new(address: impl FnOnce(&Path) -> String) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("twicesafe-run-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = address(&folder);
        let world = Self { address, folder };
        let made = Command::new("mkfifo").arg(world.file("gate")).status().unwrap();
        assert!(made.success(), "a gate can be made");
        world
    }

    /// An empty ledger in a file.
    pub(crate) fn sqlite() -> Self {
        Self::new(|folder| format!("sqlite:{}", folder.join("ledger.db").display()))
    }

    /// An empty ledger in a PostgreSQL database of its own.
    pub(crate) fn postgres() -> Self {
        Self::new(|_| {
            let admin =
                std::env::var("TWICESAFE_TEST_POSTGRES").expect("run scripts/test, which starts PostgreSQL");
            let name = format!("run_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            sql(&admin, &format!("CREATE DATABASE {name}"));
            format!("{}/{name}", admin.rsplit_once('/').unwrap().0)
        })
    }

    /// The path of the ledger, where it is a file.
    pub(crate) fn ledger_file(&self) -> Option<&Path> {
        self.address.strip_prefix("sqlite:").map(Path::new)
    }

    /// Writes to the database behind the ledger's back.
    pub(crate) fn tamper(&self, sqlite: &str, postgres: &str) {
        match self.ledger_file() {
            Some(path) => rusqlite::Connection::open(path).unwrap().execute_batch(sqlite).unwrap(),
            None => sql(&self.address, postgres),
        }
    }

    /// The name of the database, where it is not a file.
    pub(crate) fn database(&self) -> &str {
        self.address.rsplit('/').next().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    /// The lines of a file; none if it is not there.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        std::fs::read_to_string(self.file(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// How often the effect happened.
    pub(crate) fn effects(&self) -> usize {
        self.lines("effects").len()
    }

    /// A program in the folder of this world, with its ledger, as ann.
    pub(crate) fn program(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("TWICESAFE_LEDGER", &self.address)
            .env("TWICESAFE_ACTOR", "ann")
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }

    /// The real binary.
    pub(crate) fn twicesafe(&self, words: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_twicesafe"));
        command.args(words);
        command
    }

    /// `twicesafe run` of a shell script, under a key.
    pub(crate) fn guarded(&self, key: &str, flags: &[&str], script: &str) -> Command {
        self.guarded_words(key, flags, &["sh", "-c", script])
    }

    /// `twicesafe run` of a command, under a key.
    pub(crate) fn guarded_words(&self, key: &str, flags: &[&str], words: &[&str]) -> Command {
        let mut command = self.twicesafe(&["run", "--scope", "shop/mail.send", "--key", key]);
        command.args(flags).arg("--").args(words);
        command
    }

    /// The status of an intent, as the ledger tells it.
    pub(crate) fn status(&self, key: &str) -> String {
        let shown = said(self.twicesafe(&["show", "shop/mail.send", key, "--json"]));
        shown.check(0, &[]);
        let shown: serde_json::Value = serde_json::from_str(&shown.text()).unwrap();
        shown["status"].as_str().unwrap().to_owned()
    }

    /// Waits until a command has written its own number to the file `pid`.
    pub(crate) fn child(&self) -> Pid {
        let mut number = None;
        eventually("the command says who it is", || {
            let text = std::fs::read_to_string(self.file("pid")).unwrap_or_default();
            number = text.strip_suffix('\n').and_then(|text| text.parse().ok());
            number.is_some()
        });
        Pid::from_raw(number.unwrap()).unwrap()
    }

    /// Lets one command through that waits at the gate with `read _ < gate`.
    pub(crate) fn open_gate(&self) {
        std::fs::OpenOptions::new().write(true).open(self.file("gate")).unwrap().write_all(b"go\n").unwrap();
    }
}

/// A script that acts, says who it is, and waits at the gate unless the file `second` was there when it started.
pub(crate) const ACTS_THEN_WAITS: &str = "[ -e second ] && gate= || gate=gate; echo sent >> effects; \
    echo $$ > pid.new; mv pid.new pid; [ -z \"$gate\" ] || read _ < gate; echo thank you";

fn sql(address: &str, statement: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        drop(client);
        let _ = connection.await;
    });
}

/// What a command said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) status: Option<i32>,
}

impl Said {
    fn new(output: std::process::Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { stdout: output.stdout, stderr, status: output.status.code() }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks the exit status, and that all of these words were said on stderr.
    #[track_caller]
    pub(crate) fn check(&self, status: i32, words: &[&str]) -> &Self {
        assert_eq!(
            self.status,
            Some(status),
            "exit status; stdout: {}\nstderr: {}",
            self.text(),
            self.stderr
        );
        for word in words {
            assert!(self.stderr.contains(word), "stderr has no {word:?}: {}", self.stderr);
        }
        self
    }

    /// Checks stdout.
    #[track_caller]
    pub(crate) fn gave(&self, text: &str) -> &Self {
        assert_eq!(self.text(), text, "stdout; stderr: {}", self.stderr);
        self
    }
}

/// Runs a command to its end.
pub(crate) fn said(mut command: Command) -> Said {
    Said::new(command.output().unwrap())
}

/// Runs a command to its end, with something to read.
pub(crate) fn said_to(mut command: Command, input: &[u8]) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It need not read it.
    let _ = child.stdin.take().unwrap().write_all(input);
    Said::new(child.wait_with_output().unwrap())
}

/// A runner that is under way. Killed when the test is over.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    pub(crate) fn said(mut self) -> Said {
        Said::new(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "this did not come: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Says that something could not be checked on this machine.
pub(crate) fn unchecked(why: &str) {
    let _ = writeln!(std::io::stderr(), "not checked here: {why}");
}

/// Whether a process is there and not dead.
pub(crate) fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
