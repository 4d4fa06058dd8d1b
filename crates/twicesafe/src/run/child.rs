//! The command that is run: started so that it dies with its runner, listened to, and waited for.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeWriter, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;

use super::captured::{Captured, Output};
use super::nursery::{Nursery, Raised};

/// The hidden first argument that makes this binary the shell of a child: see [`become_child`].
pub(crate) const BECOME_CHILD: &str = "__become-child";
/// What the shell says on stderr, with a word only its runner knows, when it could not become the command.
const NOT_STARTED: &str = "twicesafe-not-started";

/// This program, also after its file was replaced by a newer version.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";
const INTERRUPTED: &str = "interrupted before it was started";
/// How long one listens for what a killed command may still have said.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How a command ended.
pub(crate) enum Ended {
    /// It never started: nothing was done.
    NotStarted(String),
    /// With that exit status.
    Exited(Captured),
    /// Killed by that signal.
    Killed(i32),
}

/// The children that are running now, for passing signals on, and whether there may be further ones.
#[derive(Clone, Default)]
pub(crate) struct Current {
    children: Arc<Mutex<Children>>,
    nursery: Option<Arc<Nursery>>,
}

#[derive(Default)]
struct Children {
    pids: BTreeSet<u32>,
    /// Asked for, and without a number yet.
    unborn: usize,
    stopped_by: Option<Signal>,
}

impl Current {
    /// Many children of the same words will be started.
    pub(crate) fn with_nursery(words: &[OsString]) -> Self {
        // Without one each is started by itself, which only takes longer.
        Self { nursery: Nursery::start(words).ok().map(Arc::new), ..Self::default() }
    }

    /// Passes a signal on. Says whether there was somebody to pass it to.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let children = self.children();
        let alive = children.pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
        let passed_on = alive.filter(|pid| rustix::process::kill_process(*pid, signal).is_ok()).count();
        passed_on + children.unborn > 0
    }

    /// From now on nothing is started: somebody wants this to end.
    pub(crate) fn stop(&self, signal: Signal) {
        self.children().stopped_by.get_or_insert(signal);
    }

    /// The signal after which nothing was started any more.
    pub(crate) fn stopped_by(&self) -> Option<Signal> {
        self.children().stopped_by
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command, ready to be started.
pub(crate) struct Prepared {
    pub(crate) words: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// What it reads, where that was read before; otherwise what this process would read.
    pub(crate) stdin: Option<Bytes>,
    /// Whether its output is shown as it comes.
    pub(crate) shown: bool,
}

impl Prepared {
    /// Starts it, calls `started` with its number, listens until it ends.
    pub(crate) async fn run<F, Fut>(self, current: &Current, started: F) -> io::Result<Ended>
    where
        F: FnOnce(u32) -> Fut,
        Fut: Future<Output = ()>,
    {
        let birth = match resolve(&self.words[0]) {
            Ok(file) => Birth { file, word: nonce() },
            Err(why) => return Ok(Ended::NotStarted(why)),
        };
        let marker = birth.marker();
        let (mut child, stdout, stderr) = match self.start(&birth, current).await? {
            Ok(started) => started,
            Err(why) => return Ok(Ended::NotStarted(why)),
        };
        let pid = child.pid();
        let (shown, its_marker) = (self.shown, marker.clone());
        let listening = async move {
            tokio::join!(
                listen(stdout, shown.then(tokio::io::stdout), None),
                listen(stderr, shown.then(tokio::io::stderr), Some(its_marker.as_str()))
            )
        };
        let ending = async {
            let mut listening = pin!(listening);
            let heard = tokio::select! {
                heard = &mut listening => Some(heard),
                _ = child.wait() => None,
            };
            let status = child.wait().await;
            current.children().pids.remove(&pid);
            match (heard, &status) {
                (Some(heard), _) => (Some(heard), status),
                // What a killed command has started may hold its outputs open for as long as it likes.
                (None, Ok(killed)) if killed.signal().is_some() => {
                    (tokio::time::timeout(LAST_WORDS, listening).await.ok(), status)
                }
                (None, _) => (Some(listening.await), status),
            }
        };
        let ((heard, status), ()) = tokio::join!(ending, started(pid));
        drop(child);
        let (stdout, stderr) = match heard {
            Some((stdout, stderr)) => (stdout?, stderr?),
            None => Default::default(),
        };
        let said = String::from_utf8_lossy(&stderr.kept);
        if let Some((_, why)) = said.split_once(&marker) {
            return Ok(Ended::NotStarted(why.trim().to_owned()));
        }
        let status = status?;
        Ok(match (status.code(), status.signal()) {
            (Some(status), _) => Ended::Exited(Captured { status, stdout, stderr }),
            (None, signal) => Ended::Killed(signal.unwrap_or(0)),
        })
    }
}

/// A command that was started, and who can tell how it ends.
enum Child {
    Own(Box<tokio::process::Child>),
    Raised(Raised),
}

impl Child {
    fn pid(&self) -> u32 {
        match self {
            Self::Own(child) => child.id().unwrap_or(0),
            Self::Raised(child) => child.pid,
        }
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Own(child) => child.wait().await,
            Self::Raised(child) => child.wait().await,
        }
    }
}

type Started = (Child, Receiver, Receiver);

impl Prepared {
    /// Starts it. An outer error: it may have been started. An inner one: it was not, and why.
    async fn start(&self, birth: &Birth, current: &Current) -> io::Result<Result<Started, String>> {
        let files = (|| {
            let stdin = self.stdin.as_deref().map(readable).transpose()?;
            Ok::<_, io::Error>((stdin, io::pipe()?, io::pipe()?))
        })();
        let (stdin, (out, its_out), (err, its_err)) = match files {
            Ok(files) => files,
            Err(error) => return Ok(Err(format!("what it reads and writes cannot be made: {error}"))),
        };
        let (stdout, stderr) = (Receiver::from_owned_fd(out.into())?, Receiver::from_owned_fd(err.into())?);
        let child = match (&current.nursery, &stdin) {
            (Some(nursery), Some(stdin)) if nursery.raises(&self.words) => {
                let files = [stdin.as_fd(), its_out.as_fd(), its_err.as_fd()];
                self.raise(birth, nursery, files, current).await?
            }
            _ => self.spawn(birth, stdin, its_out, its_err, current),
        };
        Ok(child.map(|child| (child, stdout, stderr)))
    }

    async fn raise(
        &self,
        birth: &Birth,
        nursery: &Nursery,
        files: [BorrowedFd<'_>; 3],
        current: &Current,
    ) -> io::Result<Result<Child, String>> {
        {
            let mut children = current.children();
            if children.stopped_by.is_some() {
                return Ok(Err(INTERRUPTED.to_owned()));
            }
            children.unborn += 1;
        }
        let raised = nursery.raise(birth, &self.environment, files).await;
        let mut children = current.children();
        children.unborn -= 1;
        match raised {
            Ok(child) => {
                children.pids.insert(child.pid);
                // Whoever wanted this to end meanwhile could not tell it.
                if let (Some(signal), Ok(pid)) = (children.stopped_by, i32::try_from(child.pid)) {
                    let _ = Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, signal));
                }
                Ok(Ok(Child::Raised(child)))
            }
            Err((error, false)) => Ok(Err(error.to_string())),
            Err((error, true)) => Err(error),
        }
    }

    fn spawn(
        &self,
        birth: &Birth,
        stdin: Option<File>,
        stdout: PipeWriter,
        stderr: PipeWriter,
        current: &Current,
    ) -> Result<Child, String> {
        let mut command = Command::new(THIS_PROGRAM);
        command.arg(BECOME_CHILD).arg(std::process::id().to_string());
        command.arg(&birth.word).arg(&birth.file).args(&self.words);
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        command.envs(environment).stdin(stdin.map_or_else(Stdio::inherit, Stdio::from));
        command.stdout(stdout).stderr(stderr).kill_on_drop(true);
        let mut children = current.children();
        if children.stopped_by.is_some() {
            return Err(INTERRUPTED.to_owned());
        }
        let child = Child::Own(Box::new(command.spawn().map_err(|error| error.to_string())?));
        children.pids.insert(child.pid());
        Ok(child)
    }
}

/// Something to read that is there as a whole before the command starts. Through a pipe, a command whose runner is killed
/// would see the end of its input a moment before it dies, and act on half of it.
fn readable(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("twicesafe-stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Keeps what comes, and shows it as it comes. A watcher that is slow holds the command up, and not this process: the
/// lease must be kept alive meanwhile.
async fn listen<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut from: R,
    mut show: Option<W>,
    hide: Option<&str>,
) -> io::Result<Output> {
    let mut output = Output::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(output);
        }
        let chunk = &buffer[..n];
        output.push(chunk);
        let hidden =
            hide.is_some_and(|word| chunk.windows(word.len()).any(|window| window == word.as_bytes()));
        if let Some(show_to) = show.as_mut().filter(|_| !hidden)
            && (show_to.write_all(chunk).await.is_err() || show_to.flush().await.is_err())
        {
            // Whoever watched has gone; the command goes on and is kept.
            show = None;
        }
    }
}

/// What a new process needs to become the command.
pub(super) struct Birth {
    /// The program's file. It has been found before; looking for it again would cost a try for every folder of PATH.
    pub(super) file: PathBuf,
    /// Known to the runner only, for saying that it could not.
    pub(super) word: String,
}

impl Birth {
    fn marker(&self) -> String {
        format!("{NOT_STARTED} {}", self.word)
    }

    /// Becomes the command, or says why not.
    pub(super) fn become_command(&self, mut command: std::process::Command, words: &[OsString]) -> String {
        let (name, arguments) = words
            .split_first()
            .map_or((self.file.as_os_str(), words), |(name, rest)| (name.as_os_str(), rest));
        command.arg0(name).args(arguments).exec().to_string()
    }

    /// Ends a process that could not become the command.
    pub(super) fn not_started(&self, words: &[OsString], why: &str) -> ! {
        let name = words.first().map_or(self.file.as_os_str(), OsString::as_os_str);
        // In one piece, so that the runner can tell it from what a command says.
        let line = format!("{} {}: {why}\n", self.marker(), name.to_string_lossy());
        let _ = io::stderr().write_all(line.as_bytes());
        std::process::exit(127)
    }
}

/// Asks the kernel to kill this process when its parent dies, which outlives becoming another program; then looks whether
/// the parent died before it could be asked.
pub(super) fn with_runner(parent: Pid) -> bool {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_ok()
        && rustix::process::getppid() == Some(parent)
}

/// Becomes the command. Called in a new process, before anything else.
pub(crate) fn become_child(arguments: &mut dyn Iterator<Item = OsString>) -> ! {
    let runner = arguments.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok()).and_then(Pid::from_raw);
    let word = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let birth = Birth { file: arguments.next().unwrap_or_default().into(), word };
    let words: Vec<OsString> = arguments.collect();
    let why = match runner.is_some_and(with_runner) {
        true => birth.become_command(std::process::Command::new(&birth.file), &words),
        false => "its runner is gone".to_owned(),
    };
    birth.not_started(&words, &why)
}

/// Where a program is, the way a shell looks for it.
fn resolve(program: &OsStr) -> Result<PathBuf, String> {
    let shown = program.to_string_lossy();
    let executable = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).map(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if Path::new(program).components().count() > 1 || shown.starts_with('/') {
        return match executable(Path::new(program)) {
            Ok(true) => Ok(program.into()),
            Ok(false) => Err(format!("{shown} may not be executed")),
            Err(error) => Err(format!("{shown}: {error}")),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|candidate| executable(candidate).unwrap_or(false))
        .ok_or_else(|| format!("{shown} was not found in PATH"))
}

/// A word nobody can guess.
fn nonce() -> String {
    let mut bytes = [0_u8; 16];
    match std::fs::File::open("/dev/urandom").and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
    {
        Ok(()) => format!("{:032x}", u128::from_be_bytes(bytes)),
        Err(_) => format!("{}-{:?}", std::process::id(), std::time::Instant::now()),
    }
}
