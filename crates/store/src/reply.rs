//! Telling many callers at once.
//!
//! Who waits for an answer is woken by the thread that writes; where callers have runtimes of one thread each, every wake-up from
//! elsewhere is a system call. So those of one runtime are told by a task of that runtime: one wake-up for all of them, and none of
//! the telling on the thread that everybody waits for. It must be driven meanwhile, as one is that awaits its answers: whoever asks on a
//! runtime and then blocks its only thread until the answer comes may wait for ever.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Where an answer goes.
pub(crate) struct Reply<T> {
    sender: oneshot::Sender<T>,
    /// Whose task waits for it, as far as that is known.
    runtime: Option<Handle>,
}

impl<T> Reply<T> {
    /// For the task that asks for it.
    pub(crate) fn channel() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, runtime: Handle::try_current().ok() }, receiver)
    }

    /// Tells it at once. Whoever asked may be gone; what was decided stands.
    pub(crate) fn send(self, answer: T) {
        let _ = self.sender.send(answer);
    }
}

/// Answers that are told together, when this is dropped.
pub(crate) struct Replies<T: Send + 'static> {
    runtimes: Vec<(Option<Handle>, Told<T>)>,
}

impl<T: Send + 'static> Default for Replies<T> {
    fn default() -> Self {
        Self { runtimes: Vec::new() }
    }
}

impl<T: Send + 'static> Replies<T> {
    pub(crate) fn push(&mut self, Reply { sender, runtime }: Reply<T>, answer: T) {
        let id = |runtime: &Option<Handle>| runtime.as_ref().map(Handle::id);
        let place = match self.runtimes.iter().position(|(known, _)| id(known) == id(&runtime)) {
            Some(place) => place,
            None => {
                self.runtimes.push((runtime, Told(Vec::new())));
                self.runtimes.len() - 1
            }
        };
        self.runtimes[place].1.0.push((sender, answer));
    }
}

impl<T: Send + 'static> Drop for Replies<T> {
    fn drop(&mut self) {
        for (runtime, told) in self.runtimes.drain(..) {
            if let Some(runtime) = runtime.filter(|_| told.0.len() > 1) {
                runtime.spawn(async move { drop(told) });
            }
        }
    }
}

/// Answers of one runtime. Also told where that runtime is gone: another one may wait for them.
struct Told<T>(Vec<(oneshot::Sender<T>, T)>);

impl<T> Drop for Told<T> {
    fn drop(&mut self) {
        for (sender, answer) in self.0.drain(..) {
            let _ = sender.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
    }

    #[test]
    fn everybody_is_told_wherever_they_wait() {
        let (one, other) = (runtime(), runtime());
        let ask = || Reply::<u32>::channel();
        let of_one: Vec<_> = (0..3).map(|_| one.block_on(async { ask() })).collect();
        let of_other = other.block_on(async { ask() });
        let of_none = ask();
        let mut replies = Replies::default();
        let mut answers = Vec::new();
        for (number, (reply, answer)) in (0..).zip(of_one.into_iter().chain([of_other, of_none])) {
            replies.push(reply, number);
            answers.push(answer);
        }
        assert_eq!(replies.runtimes.len(), 3);
        assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()), "not yet");
        drop(replies);
        let mut last = answers.split_off(3);
        assert_eq!(last.iter_mut().map(|answer| answer.try_recv()).collect::<Vec<_>>(), [Ok(3), Ok(4)]);
        let told = one.block_on(async {
            let mut told = Vec::new();
            for answer in answers {
                told.push(answer.await);
            }
            told
        });
        assert_eq!(told, [Ok(0), Ok(1), Ok(2)]);
    }

    #[test]
    fn answers_outlive_the_runtime_they_were_asked_for_on() {
        let gone = runtime();
        let (asked, again) = gone.block_on(async { (Reply::<u32>::channel(), Reply::channel()) });
        drop(gone);
        let mut replies = Replies::default();
        replies.push(asked.0, 1);
        replies.push(again.0, 2);
        drop(replies);
        assert_eq!((asked.1.blocking_recv(), again.1.blocking_recv()), (Ok(1), Ok(2)));
    }
}
