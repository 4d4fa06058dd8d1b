//! Where the commands of a batch are born. Starting this program a second time for every line, only to ask the kernel to be
//! killed with its runner, costs as much as the line itself. The nursery is one such process for a whole batch: it splits
//! itself for every command, which is cheap because it is small, and allowed because it has one thread.
//!
//! The chain holds at every link: the nursery is killed when its runner dies, and a command when its nursery dies. A command
//! is not reaped before its runner says so: until then its number belongs to nobody else.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fork::Fork;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, WaitId, WaitIdOptions, WaitOptions, getpgid, pidfd_open, setpgid, waitid, waitpid,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::child::{Birth, THIS_PROGRAM, with_runner};

/// The hidden first argument that makes this binary a nursery.
pub(crate) const BECOME_NURSERY: &str = "__become-nursery";
/// Longest order: a path, a key and a few words.
const ORDER_BYTES_MAX: usize = 64 << 10;
/// What a command gets: stdin, stdout, stderr.
const FILES: usize = 3;

/// The runner's side.
pub(crate) struct Nursery {
    /// Every command born here is called by these words.
    words: Vec<OsString>,
    socket: Arc<UnixStream>,
    expecting: Arc<Mutex<Expecting>>,
    next: AtomicU64,
    _process: tokio::process::Child,
}

/// Who waits for news, by order.
#[derive(Default)]
struct Expecting {
    births: HashMap<u64, oneshot::Sender<u32>>,
    ends: HashMap<u64, oneshot::Sender<ExitStatus>>,
    /// The nursery is gone.
    is_in_vain: bool,
}

/// A command that lives, or has ended and was not let go yet.
pub(crate) struct Raised {
    order: u64,
    pub(crate) pid: u32,
    ended: oneshot::Receiver<ExitStatus>,
    socket: Arc<UnixStream>,
    /// How it ended; nothing inside: its nursery was killed, and it died too.
    end: Option<Option<ExitStatus>>,
}

impl Nursery {
    pub(crate) fn start(words: &[OsString]) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = tokio::process::Command::new(THIS_PROGRAM);
        command.arg(BECOME_NURSERY).arg(std::process::id().to_string()).args(words);
        // Ctrl-C is for the commands, which come back into the runner's group, and not for this.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0).kill_on_drop(true);
        let process = command.spawn()?;
        // A stream in name only: what is sent in one piece arrives in one piece.
        let socket = Arc::new(UnixStream::from_std(ours.into())?);
        let expecting = Arc::<Mutex<Expecting>>::default();
        tokio::spawn(hear(socket.clone(), expecting.clone()));
        Ok(Self { words: words.to_vec(), socket, expecting, next: AtomicU64::new(1), _process: process })
    }

    pub(crate) fn raises(&self, words: &[OsString]) -> bool {
        self.words == words && !lock(&self.expecting).is_in_vain
    }

    /// Starts a command. An error means that none was started, or that whether one was is not known (`true`).
    pub(super) async fn raise(
        &self,
        birth: &Birth,
        environment: &[(&'static str, String)],
        files: [BorrowedFd<'_>; FILES],
    ) -> Result<Raised, (io::Error, bool)> {
        let order = self.next.fetch_add(1, Ordering::Relaxed);
        let mut words: Vec<&[u8]> = vec![birth.file.as_os_str().as_bytes(), birth.word.as_bytes()];
        words.extend(environment.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]));
        let message = written(order, &words);
        let (told_born, born) = oneshot::channel();
        let (told_ended, ended) = oneshot::channel();
        {
            let mut expecting = lock(&self.expecting);
            if expecting.is_in_vain {
                return Err((io::Error::other("what starts commands was killed"), false));
            }
            expecting.births.insert(order, told_born);
            expecting.ends.insert(order, told_ended);
        }
        let sent = self.socket.async_io(Interest::WRITABLE, || send(&*self.socket, &message, &files)).await;
        if let Err(error) = sent {
            return Err((error, false));
        }
        match born.await {
            Ok(0) => Err((io::Error::other("there is no room for another process"), false)),
            Ok(pid) => Ok(Raised { order, pid, ended, socket: self.socket.clone(), end: None }),
            Err(_) => Err((io::Error::other("what starts commands was killed"), true)),
        }
    }
}

impl Raised {
    /// Waits for its end, which can be asked for again.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let end = match self.end {
            Some(end) => end,
            None => *self.end.insert((&mut self.ended).await.ok()),
        };
        end.ok_or_else(|| io::Error::other("what starts commands was killed, and the command with it"))
    }
}

impl Drop for Raised {
    /// Lets it go. One that nobody waits for any more is killed.
    fn drop(&mut self) {
        // Without a nursery the number may be somebody else's by now.
        let lives = self.end.is_none() && self.ended.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        if let Some(pid) = Pid::from_raw(self.pid.cast_signed()).filter(|_| lives) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        // Should the socket be full, it stays a zombie until the nursery ends: no harm in that.
        let _ = send(&*self.socket, &written(self.order, &[]), &[]);
    }
}

/// Hands news on until there is none any more; then nobody waits in vain.
async fn hear(socket: Arc<UnixStream>, expecting: Arc<Mutex<Expecting>>) {
    let mut news = [0; 16];
    loop {
        let heard = socket.async_io(Interest::READABLE, || {
            let mut none = RecvAncillaryBuffer::default();
            let mut into = [IoSliceMut::new(&mut news)];
            Ok(recvmsg(&*socket, &mut into, &mut none, RecvFlags::empty())?.bytes)
        });
        if !heard.await.is_ok_and(|bytes| bytes == 16) {
            *lock(&expecting) = Expecting { is_in_vain: true, ..Expecting::default() };
            return;
        }
        let News { order, born, status } = News::read(news);
        let mut expecting = lock(&expecting);
        // Whoever does not wait any more need not hear it.
        if let Some(pid) = born {
            let _ = expecting.births.remove(&order).map(|told| told.send(pid));
        } else {
            let _ = expecting.ends.remove(&order).map(|told| told.send(ExitStatus::from_raw(status)));
        }
    }
}

fn lock(expecting: &Mutex<Expecting>) -> MutexGuard<'_, Expecting> {
    expecting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command was born (with which number; 0: it could not be), or has ended.
struct News {
    order: u64,
    born: Option<u32>,
    status: i32,
}

impl News {
    fn write(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.order.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.born.map_or(u32::MAX, |pid| pid).to_be_bytes());
        bytes[12..].copy_from_slice(&self.status.to_be_bytes());
        bytes
    }

    fn read(bytes: [u8; 16]) -> Self {
        let (order, rest) = bytes.split_at(8);
        let (pid, status) = rest.split_at(4);
        let pid = u32::from_be_bytes(pid.try_into().expect("4 bytes"));
        Self {
            order: u64::from_be_bytes(order.try_into().expect("8 bytes")),
            born: (pid != u32::MAX).then_some(pid),
            status: i32::from_be_bytes(status.try_into().expect("4 bytes")),
        }
    }
}

/// An order, or without words: that it can be let go.
fn written(order: u64, words: &[&[u8]]) -> Vec<u8> {
    let mut message = order.to_be_bytes().to_vec();
    for word in words {
        message.extend_from_slice(&(word.len() as u32).to_be_bytes());
        message.extend_from_slice(word);
    }
    message
}

fn read(message: &[u8]) -> Option<(u64, Vec<&OsStr>)> {
    let (order, mut rest) = message.split_first_chunk::<8>()?;
    let mut words = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (word, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        words.push(OsStr::from_bytes(word));
        rest = after;
    }
    Some((u64::from_be_bytes(*order), words))
}

fn send(socket: impl AsFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Raises commands until its runner is gone. Called in a new process, before anything else: it must have one thread.
pub(crate) fn become_nursery(arguments: &mut dyn Iterator<Item = OsString>) -> ! {
    let runner = arguments.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok()).and_then(Pid::from_raw);
    let words: Vec<OsString> = arguments.collect();
    let status = match runner.filter(|runner| with_runner(*runner)) {
        Some(runner) => i32::from(serve(runner, &words).is_err()),
        None => 1,
    };
    std::process::exit(status)
}

/// A command that the nursery has to look after.
struct Ward {
    order: u64,
    pid: Pid,
    /// Readable when it has ended; nobody looks any more once that was told.
    ended: Option<OwnedFd>,
    /// Nobody wants to know how it ends.
    is_let_go: bool,
}

fn serve(runner: Pid, words: &[OsString]) -> io::Result<()> {
    let socket = io::stdin();
    let mut wards: Vec<Ward> = Vec::new();
    let mut room = vec![0; ORDER_BYTES_MAX];
    loop {
        for ward in wards.extract_if(.., |ward| ward.is_let_go && ward.ended.is_none()) {
            waitpid(Some(ward.pid), WaitOptions::empty())?;
        }
        let (ended, is_asked) = {
            let running = wards.iter().filter_map(|ward| ward.ended.as_ref());
            let mut polled: Vec<PollFd<'_>> = running.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            polled.push(PollFd::new(&socket, PollFlags::IN));
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                done => done?,
            };
            let mut ready = polled.iter().map(|one| !one.revents().is_empty()).collect::<Vec<bool>>();
            let is_asked = ready.pop().unwrap_or(false);
            (ready, is_asked)
        };
        let running = wards.iter_mut().filter(|ward| ward.ended.is_some());
        for (ward, _) in running.zip(ended).filter(|(_, has_ended)| *has_ended) {
            let fd = ward.ended.take().expect("only those are looked at");
            if !ward.is_let_go {
                let status = status_of(&fd)?;
                send(&socket, &News { order: ward.order, born: None, status }.write(), &[])?;
            }
        }
        if !is_asked {
            continue;
        }
        let mut room_for_files = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut room_for_files);
        let mut into = [IoSliceMut::new(&mut room)];
        let bytes = recvmsg(&socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let Some((order, order_words)) = read(&room[..bytes]) else { return Ok(()) };
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                files.extend(fds);
            }
        }
        match order_words.as_slice() {
            [] => wards.iter_mut().filter(|ward| ward.order == order).for_each(|ward| ward.is_let_go = true),
            [file, word, environment @ ..] => {
                let born = bear(runner, file, word, words, environment, files);
                let pid = born.as_ref().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
                if let Ok(pid) = born {
                    let ended = Some(pidfd_open(pid, PidfdFlags::empty())?);
                    wards.push(Ward { order, pid, ended, is_let_go: false });
                }
                send(&socket, &News { order, born: Some(pid), status: 0 }.write(), &[])?;
            }
            [_] => return Ok(()),
        }
    }
}

/// How it ended, as the kernel writes it; it stays to be reaped. Nothing here may turn into a success: who cannot tell fails.
fn status_of(ended: &OwnedFd) -> io::Result<i32> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::PidFd(ended.as_fd()), look)?;
    match status.map(|status| (status.exit_status(), status.terminating_signal())) {
        Some((Some(code), _)) => Ok((code & 0xff) << 8),
        Some((None, Some(signal))) => Ok(signal),
        _ => Err(io::Error::other("it has ended, and nobody can say how")),
    }
}

fn bear(
    runner: Pid,
    file: &OsStr,
    word: &OsStr,
    words: &[OsString],
    environment: &[&OsStr],
    files: Vec<OwnedFd>,
) -> io::Result<Pid> {
    let nursery = rustix::process::getpid();
    match fork::fork()? {
        Fork::Parent(pid) => Pid::from_raw(pid).ok_or_else(|| io::Error::other("a child without a number")),
        Fork::Child => {
            let birth = Birth { file: file.into(), word: word.to_string_lossy().into_owned() };
            let why = match dressed(runner, nursery, &files) {
                Ok(()) => {
                    let mut command = Command::new(&birth.file);
                    command.envs(environment.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                    birth.become_command(command, words)
                }
                Err(error) => error.to_string(),
            };
            birth.not_started(words, &why)
        }
    }
}

/// Makes a part of the nursery a child of the runner's making: what it reads and writes, whose signals it gets, with whom it
/// dies.
fn dressed(runner: Pid, nursery: Pid, files: &[OwnedFd]) -> io::Result<()> {
    let [stdin, stdout, stderr] = files else { return Err(io::Error::other("its files did not arrive")) };
    rustix::stdio::dup2_stderr(stderr)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stdin(stdin)?;
    setpgid(None, Some(getpgid(Some(runner))?))?;
    if !with_runner(nursery) {
        return Err(io::Error::other("its runner is gone"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_news_arrive_as_they_were_sent() {
        let message = written(7, &[b"/bin/true", b"", b"KEY"]);
        let (order, words) = read(&message).expect("it is whole");
        assert_eq!((order, words), (7, vec![OsStr::new("/bin/true"), OsStr::new(""), OsStr::new("KEY")]));
        assert!(read(&message[..message.len() - 1]).is_none(), "cut");
        assert!(read(b"").is_none());
        for (born, status) in [(Some(0), 0), (Some(4_194_304), 0), (None, 9), (None, 3 << 8)] {
            let news = News::read(News { order: 1 << 40, born, status }.write());
            assert_eq!((news.order, news.born, news.status), (1 << 40, born, status));
        }
    }
}
