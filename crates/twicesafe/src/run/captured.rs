//! What a command said and how it ended, as an answer that can be given again.

use std::io::{self, Write};

use bytes::Bytes;
use serde_json::{Value, json};
use twicesafe_ledger::{Answer, Given};

/// Most that is kept of what a command writes to stdout, and as much of stderr.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Output of one kind, kept up to a limit.
#[derive(Default, Clone)]
pub(crate) struct Output {
    pub(crate) kept: Vec<u8>,
    pub(crate) bytes: u64,
}

impl Output {
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let room = OUTPUT_BYTES_MAX.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        self.bytes += chunk.len() as u64;
    }
}

/// What a command said and how it ended.
#[derive(Default, Clone)]
pub(crate) struct Captured {
    pub(crate) status: i32,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
}

impl Captured {
    /// As an answer: both outputs one after the other, and in the head where one ends.
    pub(crate) fn into_answer(self) -> Answer {
        let head = json!({
            "exit": self.status,
            "stdout": self.stdout.kept.len(),
            "stdout_bytes": self.stdout.bytes,
            "stderr_bytes": self.stderr.bytes,
        });
        let mut body = self.stdout.kept;
        body.extend_from_slice(&self.stderr.kept);
        Answer {
            external_id: None,
            head: head.to_string().into(),
            body: twicesafe_ledger::Body::Kept(body.into()),
        }
    }

    /// From an answer. One that did not come from a command (a person's word, a lookup) is a success without output.
    pub(crate) fn from_given(given: &Given) -> Self {
        let Some(answer) = &given.answer else { return Self::default() };
        let Ok(head) = serde_json::from_str::<Value>(&answer.head) else { return Self::default() };
        let body = answer.bytes().cloned().unwrap_or_else(Bytes::new);
        let number = |name: &str| head[name].as_u64().unwrap_or(0);
        let split = usize::try_from(number("stdout")).unwrap_or(0).min(body.len());
        Self {
            status: i32::try_from(head["exit"].as_i64().unwrap_or(0)).unwrap_or(0),
            stdout: Output { kept: body[..split].to_vec(), bytes: number("stdout_bytes") },
            stderr: Output { kept: body[split..].to_vec(), bytes: number("stderr_bytes") },
        }
    }

    /// Whether there is anything to give again.
    pub(crate) fn said_something(&self) -> bool {
        self.stdout.bytes + self.stderr.bytes > 0
    }

    /// Gives the outputs again, each where it went the first time.
    pub(crate) fn replay(&self) -> io::Result<()> {
        io::stdout().write_all(&self.stdout.kept)?;
        io::stdout().flush()?;
        let mut stderr = io::stderr();
        stderr.write_all(&self.stderr.kept)?;
        for (name, output) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let lost = output.bytes - output.kept.len() as u64;
            if lost > 0 {
                writeln!(stderr, "twicesafe: {lost} bytes of {name} were not kept")?;
            }
        }
        Ok(())
    }
}
