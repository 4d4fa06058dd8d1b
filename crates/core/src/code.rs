//! Stable codes of everything that can go wrong. Each has a page under `docs/errors/`.

use std::fmt;

macro_rules! codes {
    ($($number:literal $name:ident $title:literal)*) => {
        /// The stable code of something that went wrong. Codes are never renumbered and never reused.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code as people and machines see it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => concat!("TS", $number),)* }
            }

            /// One line that says what it is about.
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    "0001" KeyMissing "The key is missing or empty."
    "0002" KeyInvalid "The key is too long, has control characters or is badly quoted."
    "0003" NameInvalid "A scope, work, step, lane or actor is not a valid name."
    "0004" PolicyInvalid "The figures of a policy do not fit together."
    "0005" InputTooLarge "A request or an answer is over its limit."
    "0006" PolicyDiffers "The policy of the first claim stands; a later one differs."
    "0007" SuspiciousKey "The key looks as if it were made anew on every run."
    "0010" Mismatch "The same key was used with other input."
    "0011" Rejected "A person said no, or nobody said yes in time."
    "0012" Superseded "A newer version was already applied."
    "0013" Gone "It was settled, and is undone or no longer kept."
    "0014" GivenUp "A person gave it up without knowing whether it happened."
    "0015" Pending "It is under way, or not due yet."
    "0016" Review "It may or may not have happened; a person decides."
    "0017" Held "A person must say yes first."
    "0018" Refused "The destination said no."
    "0020" StaleFence "The permit is over."
    "0021" SettledOtherwise "The permit was settled with another outcome."
    "0022" ActMax "The attempt has taken as long as its policy allows."
    "0023" SendBy "It is too late to send: the lease may lapse before the request arrives."
    "0024" NotRecorded "It was sent, and what came of it is not recorded."
    "0025" NotHolder "The permit was given to somebody else."
    "0030" DecidedOtherwise "The opposite was decided before."
    "0031" OwnRequest "Who asked for it may not approve it."
    "0032" Moved "It has changed since it was looked at."
    "0033" TooEarly "A request could still arrive; it is too early to say that it did not happen."
    "0034" WrongStatus "Its status does not allow this."
    "0035" NoSuchIntent "There is no such intent."
    "0040" LedgerAway "The ledger cannot be reached."
    "0041" LedgerNotOurs "The file or database is not a Twicesafe ledger."
    "0042" LedgerNewer "The ledger was made by a newer version."
    "0043" LedgerReadOnly "The ledger cannot be written."
    "0044" DiskFull "The disk is full."
    "0045" NetworkFileSystem "SQLite on a network file system loses data."
    "0046" UnsafeDurability "The database is set up to lose what it acknowledged."
    "0047" LedgerDamaged "The ledger contains something it cannot contain."
    "0048" ClockJumped "The clock jumped."
    "0049" LedgerAddress "The ledger's address is not understood."
    "0050" Overloaded "Too many commands are waiting for the ledger."
    "0051" LedgerNotNamed "No ledger was named, and nobody is watching."
    "0052" LedgerNotEmpty "Only an empty ledger takes an import."
    "0053" LedgerNotTrusted "The connection to the database is not as safe as was asked for."
    "0054" ValueRefused "The database cannot hold a value."
    "0055" LedgerUnfit "The database cannot hold a ledger as it is set up."
    "0056" StartAgain "The transaction has to be started again."
    "0057" OtherDatabase "The transaction is on another database than the ledger."
    "0058" LedgerSecondName "The ledger's file has a second name."
    "0059" LedgerSecret "The ledger's secret is missing, or is another one."
    "0060" CommandNotStarted "The command could not be started."
    "0061" BadInputFile "A file does not have the form it should have."
    "0062" RecordAltered "A record does not fit its seal."
    "0064" TailLost "The database lost writes that it had acknowledged."
    "0070" BadRequest "The request is not understood."
    "0071" NoSuchPage "There is nothing at this address, or not for this method."
    "0072" TokenMissing "A token is needed."
    "0073" TokenRefused "The token is not known, has expired or was revoked."
    "0074" NotAllowed "The token does not give this right here."
    "0075" OtherSite "A page of another site, or another host name, sent this."
    "0076" LinkInvalid "The link is not valid, or not any more."
    "0077" TooSlow "The request took too long to arrive."
    "0080" ConfigurationInvalid "The configuration is not valid."
    "0081" TokensNeeded "A server that others can reach needs tokens."
    "0082" CannotListen "The server cannot listen there."
    "0083" SecretMissing "A secret that the configuration names is not there."
    "0084" ReloadRefused "The new configuration cannot be taken while the server runs."
    "0085" AlertNotSent "An alert could not be sent."
    "0086" TokenUnknown "There is no such token."
    "0090" NoSuchDestination "There is no such destination."
    "0091" ExpressionFailed "An expression of the route cannot be worked out for this request."
    "0092" DestinationAway "The destination gave no answer."
    "0093" Paused "The destination or the token is paused."
    "0094" RequestNotKept "The request cannot be kept until a person has decided."
    "0095" CallbackRefused "Answers may not be posted to that address."
    "0096" ExpectationFailed "What an AI answered is not what was expected of it."
    "0099" NoRoute "The destination takes no write that matches no route."
    "0100" CouldBeAnother "The request could be taken for another one."
    "0110" NoSuchInbox "There is no such inbox."
    "0111" NotVerified "The event is not signed by who has the secret."
    "0112" OutOfTime "The event was signed too long ago, or in the future."
    "0113" EventUnnamed "The event cannot be named."
}

impl Code {
    /// The code with that text, in upper or lower case.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
