//! Why a command did not do what was asked, and what the user is told.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use serde_json::json;
use twicesafe_core::{Code, legible};
use twicesafe_ledger::{Error, StoreError};

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Asked for something that does not exist; the text says what to do instead.
    Usage(String),
    /// What was looked for was found, and it should not be there; the text says what to do.
    Found(String),
    /// Its output could not be written.
    Output(io::Error),
    /// Something with a code. Its page says more.
    Coded {
        /// The code.
        code: Code,
        /// What happened, in one sentence.
        cause: String,
        /// What to do, in one sentence.
        remedy: String,
    },
}

impl Failure {
    pub(crate) fn coded(code: Code, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Coded { code, cause: cause.into(), remedy: remedy.into() }
    }

    /// Says it on stderr; the exit status says the rest (S27).
    pub(crate) fn tell(self, as_json: bool) -> ExitCode {
        let status = self.exit_status();
        let words = match self {
            // The reader has seen enough: `twicesafe explain | head -1`.
            Self::Output(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Self::Output(error) => format!("twicesafe: cannot write the output: {error}"),
            Self::Usage(words) | Self::Found(words) => format!("twicesafe: {words}"),
            Self::Coded { code, cause, remedy } if as_json => {
                json!({ "code": code.as_str(), "message": cause, "hint": remedy }).to_string()
            }
            Self::Coded { code, cause, remedy } => {
                format!("twicesafe: {code}: {cause}\n  {remedy}\n  More: twicesafe explain {code}")
            }
        };
        // If stderr is closed as well, the exit status is all that is left to say.
        let _ = writeln!(io::stderr(), "{}", legible::block(&words));
        ExitCode::from(status)
    }

    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Output(_) | Self::Found(_) => 1,
            Self::Usage(_) => 2,
            Self::Coded { code, .. } => exit_status_of(*code),
        }
    }
}

/// The exit status for a code: one table for every command (S27).
pub(crate) fn exit_status_of(code: Code) -> u8 {
    match code {
        Code::NotRecorded => 118,
        Code::Gone => 119,
        Code::Pending => 120,
        Code::Review | Code::GivenUp | Code::RecordAltered => 121,
        Code::Held => 122,
        Code::Rejected => 123,
        Code::Mismatch => 124,
        Code::LedgerAway
        | Code::LedgerNotOurs
        | Code::LedgerNewer
        | Code::LedgerReadOnly
        | Code::DiskFull
        | Code::NetworkFileSystem
        | Code::LedgerSecondName
        | Code::LedgerSecret
        | Code::UnsafeDurability
        | Code::LedgerNotTrusted
        | Code::LedgerDamaged
        | Code::ValueRefused
        | Code::LedgerUnfit
        | Code::StartAgain
        | Code::OtherDatabase
        | Code::Overloaded => 125,
        Code::KeyMissing
        | Code::KeyInvalid
        | Code::NameInvalid
        | Code::PolicyInvalid
        | Code::InputTooLarge
        | Code::LedgerAddress
        | Code::LedgerNotNamed
        | Code::BadInputFile
        | Code::ConfigurationInvalid
        | Code::SecretMissing
        | Code::TokensNeeded
        | Code::TokenUnknown => 2,
        Code::CommandNotStarted => 127,
        _ => 1,
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::coded(error.code(), error.to_string(), error.remedy())
    }
}

impl From<twicesafe_ledger::InvalidName> for Failure {
    fn from(error: twicesafe_ledger::InvalidName) -> Self {
        Self::from(Error::from(error))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let remedy = match &error {
            Error::Store(error) => return error.clone().into(),
            Error::NotRecorded(_) => {
                "Do not do it by hand. Mend the ledger, then run the same line again: nothing is run twice."
            }
            Error::Review => "Look at the destination, then say what happened: twicesafe resolve SCOPE KEY.",
            Error::Held { .. } => "Somebody else must say yes: twicesafe approve SCOPE KEY.",
            Error::Pending { .. } => "Try again later with the same key.",
            Error::Refused(_) => "Mend the cause, then try again with the same key.",
            Error::Name(_) => "A key is 1 to 255 bytes of text; a scope is names separated by slashes.",
            Error::Policy(_) | Error::TooLarge { .. } | Error::Recipe(_) => "Change what you asked for.",
            Error::Ledger(refusal) => remedy_of(refusal),
        };
        Self::coded(error.code(), error.to_string(), remedy)
    }
}

fn remedy_of(refusal: &twicesafe_ledger::Refusal) -> &'static str {
    use twicesafe_ledger::Refusal;
    match refusal {
        Refusal::Mismatch => "Another thing needs another key; the same thing must have the same input.",
        Refusal::Rejected | Refusal::Undone | Refusal::Purged | Refusal::GivenUp => {
            "If it should be done afresh: twicesafe reset SCOPE KEY --reason TEXT."
        }
        Refusal::Superseded => "Nothing to do: a newer version is in place.",
        Refusal::OwnRequest => "Ask somebody else.",
        Refusal::Moved | Refusal::WrongStatus(_) => "Look again: twicesafe show SCOPE KEY.",
        Refusal::TooEarly(_) => "Wait until then, look at the destination again, and decide.",
        Refusal::Altered => "Copy the ledger, then find out who wrote to it: twicesafe journal verify.",
        Refusal::NoSuchIntent => "Check scope, key and ledger: twicesafe intents lists what there is.",
        Refusal::DecidedOtherwise(_) => "The first decision stands; talk to who made it.",
        Refusal::NotHolder => "Settle with the permit that you were given, as the one it was given to.",
        Refusal::StaleFence | Refusal::SettledOtherwise | Refusal::ActMax => {
            "The report was kept in the journal: twicesafe show SCOPE KEY."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses of codes as the documentation has them: `TS0001 to TS0005, TS0049`.
    fn documented() -> Vec<(u8, String)> {
        let table =
            include_str!("../../../docs/exit-statuses.md").lines().filter(|line| line.starts_with("| "));
        let mut all = Vec::new();
        for line in table {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [status, _, codes] = cells.as_slice() else { panic!("{line}") };
            let Ok(status) = status.parse() else { continue };
            for part in codes.split(", ").filter(|part| !part.is_empty()) {
                let number =
                    |code: &str| code.strip_prefix("TS").and_then(|digits| digits.parse::<u16>().ok());
                let (first, last) = part.split_once(" to ").unwrap_or((part, part));
                let range = number(first).zip(number(last)).expect(part);
                all.extend((range.0..=range.1).map(|number| (status, format!("TS{number:04}"))));
            }
        }
        all
    }

    #[test]
    fn s27_the_documentation_has_the_exit_status_of_each_code() {
        let documented = documented();
        for (status, code) in &documented {
            let known = Code::ALL.iter().find(|known| known.as_str() == code);
            assert!(known.is_none_or(|known| exit_status_of(*known) == *status), "{code} is not {status}");
        }
        // Those of 1 that no command line has are left out there.
        for code in Code::ALL.iter().filter(|code| exit_status_of(**code) != 1) {
            assert!(documented.iter().any(|(_, own)| own == code.as_str()), "{code} is missing");
        }
        for code in [Code::NoSuchInbox, Code::EventUnnamed, Code::CannotListen] {
            assert!(documented.contains(&(1, code.as_str().to_owned())), "{code} is missing");
        }
    }
}
