//! The command that is run: started so that it dies with its runner, listened to, and waited for.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Command;

use super::captured::{Captured, Output};

/// The hidden first argument that makes this binary the shell of a child: see [`become_child`].
pub(crate) const BECOME_CHILD: &str = "__become-child";
/// What the shell says on stderr, with a word only its runner knows, when it could not become the command.
const NOT_STARTED: &str = "twicesafe-not-started";

/// This program, also after its file was replaced by a newer version.
const THIS_PROGRAM: &str = "/proc/self/exe";
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
pub(crate) struct Current(Arc<Mutex<Children>>);

#[derive(Default)]
struct Children {
    pids: BTreeSet<u32>,
    stopped_by: Option<Signal>,
}

impl Current {
    /// Passes a signal on. Says whether there was somebody to pass it to.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let children = self.children();
        let alive = children.pids.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
        alive.filter(|pid| rustix::process::kill_process(*pid, signal).is_ok()).count() > 0
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let program = match resolve(&self.words[0]) {
            Ok(program) => program,
            Err(why) => return Ok(Ended::NotStarted(why)),
        };
        let stdin = match self.stdin.as_deref().map(readable).transpose() {
            Ok(stdin) => stdin.unwrap_or_else(Stdio::inherit),
            Err(error) => return Ok(Ended::NotStarted(format!("its stdin cannot be made: {error}"))),
        };
        let word = nonce();
        let mut command = Command::new(THIS_PROGRAM);
        command.arg(BECOME_CHILD).arg(std::process::id().to_string()).arg(&word);
        command.arg(program).args(&self.words);
        command.envs(self.environment).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let (mut child, pid) = {
            let mut children = current.children();
            if children.stopped_by.is_some() {
                return Ok(Ended::NotStarted("interrupted before it was started".to_owned()));
            }
            let child = match command.spawn() {
                Ok(child) => child,
                Err(error) => return Ok(Ended::NotStarted(error.to_string())),
            };
            let pid = child.id().unwrap_or(0);
            children.pids.insert(pid);
            (child, pid)
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let marker = format!("{NOT_STARTED} {word}");
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

/// Something to read that is there as a whole before the command starts. Through a pipe, a command whose runner is killed
/// would see the end of its input a moment before it dies, and act on half of it.
fn readable(bytes: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(rustix::fs::memfd_create("twicesafe-stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Keeps what comes, and shows it as it comes. A watcher that is slow holds the command up, and not this process: the
/// lease must be kept alive meanwhile.
async fn listen<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    from: Option<R>,
    mut show: Option<W>,
    hide: Option<&str>,
) -> io::Result<Output> {
    let mut output = Output::default();
    let Some(mut from) = from else { return Ok(output) };
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

/// Becomes the command. Called in a new process, before anything else.
///
/// It first asks the kernel to be killed when its runner dies, which outlives becoming another program; then looks whether
/// the runner died before it could ask.
pub(crate) fn become_child(arguments: &mut dyn Iterator<Item = OsString>) -> ! {
    let runner = arguments.next().and_then(|pid| pid.to_str()?.parse::<u32>().ok());
    let word = arguments.next().unwrap_or_default();
    // Its file has been found before; looking for it again would cost a try for every folder of PATH.
    let file = arguments.next().unwrap_or_default();
    let program = arguments.next().unwrap_or_default();
    let asked = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let why = if asked.is_err() || parent != runner {
        "its runner is gone".to_owned()
    } else {
        std::process::Command::new(&file).arg0(&program).args(arguments).exec().to_string()
    };
    // In one piece, so that the runner can tell it from what a command says.
    let line = format!("{NOT_STARTED} {} {}: {why}\n", word.to_string_lossy(), program.to_string_lossy());
    let _ = io::stderr().write_all(line.as_bytes());
    std::process::exit(127)
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
