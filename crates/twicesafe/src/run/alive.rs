//! Who holds a permit: a process of some machine, and whether it still lives.
//!
//! A lease that ran out says that nobody heard of its holder. Where the holder is a process of this very machine, one can
//! look: as long as it lives it may act, whatever the lease says.

use std::fmt;

/// A process, named so that no other process of any machine has the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    host: String,
    pid: u32,
    /// When it started, in the kernel's ticks: pids are used again.
    started: u64,
    /// The boot it belongs to: pids and ticks start anew.
    boot: String,
}

impl Process {
    /// The process with that number on this machine, if it is there.
    pub(crate) fn here(pid: u32) -> Option<Self> {
        Some(Self { host: crate::place::hostname(), pid, started: started(pid)?, boot: boot()? })
    }

    /// Whether it lives on this machine. `None`: it belongs to another machine, and cannot be looked at from here.
    pub(crate) fn lives(&self) -> Option<bool> {
        if self.host != crate::place::hostname() {
            return None;
        }
        Some(boot().as_ref() == Some(&self.boot) && started(self.pid) == Some(self.started))
    }

    /// The process named in a text, if one is.
    pub(crate) fn named_in(text: &str) -> Option<Self> {
        let name = text.split_whitespace().find_map(|word| word.strip_prefix("process:"))?;
        let mut parts = name.rsplitn(4, ':');
        let (boot, started, pid) = (parts.next()?, parts.next()?, parts.next()?);
        let host = parts.next()?.to_owned();
        Some(Self { host, pid: pid.parse().ok()?, started: started.parse().ok()?, boot: boot.to_owned() })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process:{}:{}:{}:{}", self.host, self.pid, self.started, self.boot)
    }
}

/// When a process started. A dead one that nobody has waited for yet counts as gone.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses and may contain anything; what follows is plain.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.chars().take(8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_name_and_a_dead_one_is_not_alive() {
        let me = Process::here(std::process::id()).expect("this process is here");
        let text = format!("by {me}");
        assert_eq!(Process::named_in(&text), Some(me.clone()));
        assert_eq!(me.lives(), Some(true));
        let earlier = Process { started: me.started - 1, ..me.clone() };
        assert_eq!(earlier.lives(), Some(false), "another process with the same number");
        let elsewhere = Process { host: "other.example:1".into(), ..me };
        assert_eq!(elsewhere.lives(), None);
        assert_eq!(Process::named_in(&elsewhere.to_string()), Some(elsewhere));
        assert_eq!(Process::named_in("alice@host"), None);
    }
}
