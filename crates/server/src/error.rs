//! Why the server cannot do what its operator asked for.

use twicesafe_ledger::{Code, Error, StoreError};

/// Why the server cannot start, or what an operator asked for cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// Asked for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(String),
    /// A secret is not there.
    #[error("{0}")]
    Secret(String),
    /// Others could reach the server, and nobody would ask them who they are.
    #[error("{0} can be reached from other machines, and there is no token")]
    TokensNeeded(std::net::SocketAddr),
    /// The socket cannot be had.
    #[error("cannot listen on {address}: {error}")]
    CannotListen {
        /// Where.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// The configuration cannot change this way while the server runs.
    #[error("{0}")]
    Reload(String),
    /// There is no such token.
    #[error("there is no token `{0}` that could be revoked")]
    NoSuchToken(String),
    /// There is no such inbox.
    #[error("there is no inbox `{0}` in the configuration")]
    NoSuchInbox(String),
    /// An event cannot be put in.
    #[error("{0}")]
    Event(String),
    /// An event is too large.
    #[error("the event has more than {0} bytes")]
    EventTooLarge(usize),
}

impl ServerError {
    pub(crate) fn usage(words: String) -> Self {
        Self::Usage(words)
    }

    /// The stable code.
    pub fn code(&self) -> Option<Code> {
        Some(match self {
            Self::Ledger(error) => error.code(),
            Self::Usage(_) => return None,
            Self::Configuration(_) => Code::ConfigurationInvalid,
            Self::Secret(_) => Code::SecretMissing,
            Self::TokensNeeded(_) => Code::TokensNeeded,
            Self::CannotListen { .. } => Code::CannotListen,
            Self::Reload(_) => Code::ReloadRefused,
            Self::NoSuchToken(_) => Code::TokenUnknown,
            Self::NoSuchInbox(_) => Code::NoSuchInbox,
            Self::Event(_) => Code::EventUnnamed,
            Self::EventTooLarge(_) => Code::InputTooLarge,
        })
    }

    /// What to do about it, in one sentence.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Ledger(Error::Store(error)) => error.remedy(),
            Self::Ledger(_) | Self::Usage(_) => "Change what you asked for.",
            Self::Configuration(_) => "Mend the file; twicesafe config check says whether it is right.",
            Self::Secret(_) => "Set the environment variable, or write the file, and start again.",
            Self::TokensNeeded(_) => {
                "Make one (twicesafe token create --name NAME --rights act), or listen on 127.0.0.1."
            }
            Self::CannotListen { .. } => {
                "Stop what uses the address, or choose another with listen: or --listen."
            }
            Self::Reload(_) => "The old configuration stays in force; restart the server to change this.",
            Self::NoSuchToken(_) => "List them: twicesafe token list.",
            Self::NoSuchInbox(_) => {
                "Name it under `inboxes:`, or look how it is spelled: twicesafe inbox list."
            }
            Self::EventTooLarge(_) => "Put in less, or raise `bytes_max` of the inbox.",
            Self::Event(_) => "Give it an id with --id, or send the field that `id:` of the inbox names.",
        }
    }
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self::Ledger(error.into())
    }
}
