//! The ledger's secret: what its servers know and its tables do not say.
//!
//! Who can read the ledger, or a backup of it, must not be able to sign approval links or to make up digests of rows. So the keys for
//! both come from a *lasting key* that the ledger keeps sealed, and from a secret that is elsewhere:
//!
//! * for a SQLite file in a file beside it, `<ledger>.secret`, made with the ledger and readable by its owner alone;
//! * for a PostgreSQL database in the configuration (`secret:`) or the environment (`TWICESAFE_SECRET`), the same for all who open it.
//!
//! A PostgreSQL ledger without a secret works: its lasting key is then sealed with nothing, and the server says so when it starts. The
//! first who opens it with a secret seals the lasting key with that one; from then on nobody opens it without. A ledger that is opened
//! without its secret, or with another one, is refused (TS0059).

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::private;

/// Shortest secret that is taken.
pub const SECRET_BYTES_MIN: usize = 16;
/// Longest file that is read as a secret.
const FILE_BYTES_MAX: u64 = 4096;
const KEY_BYTES: usize = 32;
/// The sealed lasting key, and what tells that it was unsealed with the right secret.
const SEALED_BYTES: usize = 2 * KEY_BYTES;

const SECRET_PURPOSE: &str = "twicesafe 2026-11 the ledger's secret";
const SEAL_PURPOSE: &str = "twicesafe 2026-11 seal of the lasting key";
const CHECK_PURPOSE: &str = "twicesafe 2026-11 check of the lasting key";

/// A ledger's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct LedgerSecret([u8; KEY_BYTES]);

impl std::fmt::Debug for LedgerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl LedgerSecret {
    /// Takes the place of a secret where there is none.
    const NONE: Self = Self([0; KEY_BYTES]);

    /// Reads a secret as an operator wrote it. White space around it does not count.
    pub fn of(text: &str) -> Result<Self, StoreError> {
        let text = text.trim();
        if text.len() < SECRET_BYTES_MIN {
            let why = format!("it is too short: at least {SECRET_BYTES_MIN} bytes");
            return Err(StoreError::Secret { place: "the secret".to_owned(), why });
        }
        Ok(Self(blake3::derive_key(SECRET_PURPOSE, text.as_bytes())))
    }

    /// Reads the secret beside a ledger. `None`: there is no such file.
    fn of_file(path: &Path) -> Result<Option<Self>, StoreError> {
        let refused = |why: String| StoreError::Secret { place: path.display().to_string(), why };
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(refused(format!("it cannot be read: {error}"))),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| refused(format!("it cannot be read: {error}")))?;
        Self::of(&text).map(Some).map_err(|_| refused("there is no secret in it".to_owned()))
    }

    /// Makes a secret in a file, unless there is one already: of several processes that start at once, one makes it.
    fn make_file(path: &Path) -> Result<Self, StoreError> {
        if let Some(there) = Self::of_file(path)? {
            return Ok(there);
        }
        let failed = |error: std::io::Error| StoreError::Secret {
            place: path.display().to_string(),
            why: format!("it cannot be made: {error}"),
        };
        let text: String = crate::random::<KEY_BYTES>().iter().map(|byte| format!("{byte:02x}")).collect();
        let number = u64::from_be_bytes(crate::random());
        let draft = path.with_extension(format!("secret-{number:016x}"));
        let mut file = private::new_file(&draft).map_err(failed)?;
        let made = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::hard_link(&draft, path));
        let removed = std::fs::remove_file(&draft);
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => removed.map_err(failed)?,
        }
        private::sync_folder(path);
        Self::of_file(path)?.ok_or_else(|| failed(ErrorKind::NotFound.into()))
    }
}

/// Where the secret of a SQLite ledger is.
pub(crate) fn beside(ledger: &Path) -> PathBuf {
    let mut name = ledger.as_os_str().to_owned();
    name.push(".secret");
    PathBuf::from(name)
}

/// What an open ledger derives keys from.
#[derive(Clone)]
pub(crate) struct Keys {
    lasting: [u8; KEY_BYTES],
    secret: LedgerSecret,
}

impl Keys {
    /// Of a ledger that ends with its process.
    pub(crate) fn random() -> Self {
        Self { lasting: crate::random(), secret: LedgerSecret(crate::random()) }
    }

    /// Returns the keys of a new ledger in a SQLite file. Its secret is the one in the file beside it, or else the configured one, or
    /// else made there.
    pub(crate) fn of_new_file(ledger: &Path, configured: Option<&LedgerSecret>) -> Result<Self, StoreError> {
        let path = beside(ledger);
        let secret = match (LedgerSecret::of_file(&path)?, configured) {
            (Some(there), _) => there,
            (None, Some(configured)) => configured.clone(),
            (None, None) => LedgerSecret::make_file(&path)?,
        };
        Ok(Self { lasting: crate::random(), secret })
    }

    /// Returns the keys of a ledger in a SQLite file.
    pub(crate) fn of_file(
        ledger: &Path,
        configured: Option<&LedgerSecret>,
        sealed: &[u8],
    ) -> Result<Self, StoreError> {
        let path = beside(ledger);
        let there = LedgerSecret::of_file(&path)?;
        let is_there = there.is_some();
        for secret in there.into_iter().chain(configured.cloned()) {
            if let Some(keys) = Self::unsealed(secret, sealed) {
                return Ok(keys);
            }
        }
        let why = match (is_there, configured) {
            (true, _) => "it is another ledger's",
            (false, Some(_)) => {
                "it is not there, and the configured secret is not the one the ledger was made with"
            }
            (false, None) => "it is not there; was the ledger moved or restored without it?",
        };
        Err(StoreError::Secret { place: path.display().to_string(), why: why.to_owned() })
    }

    /// Returns the keys of a new ledger in a database.
    pub(crate) fn of_new_database(configured: Option<&LedgerSecret>) -> Self {
        Self { lasting: crate::random(), secret: configured.cloned().unwrap_or(LedgerSecret::NONE) }
    }

    /// Returns the keys of a ledger in a database, and whether they are to be sealed anew: it had no secret, and has one now.
    pub(crate) fn of_database(
        shown: &str,
        configured: Option<&LedgerSecret>,
        sealed: &[u8],
    ) -> Result<(Self, bool), StoreError> {
        let without = Self::unsealed(LedgerSecret::NONE, sealed);
        let why = match (without, configured) {
            (Some(keys), None) => return Ok((keys, false)),
            (Some(keys), Some(configured)) => return Ok((Self { secret: configured.clone(), ..keys }, true)),
            (None, Some(configured)) => match Self::unsealed(configured.clone(), sealed) {
                Some(keys) => return Ok((keys, false)),
                None => "the configured secret is not the one that the others who use this ledger have",
            },
            (None, None) => "the ledger has a secret, and none is configured here",
        };
        Err(StoreError::Secret { place: format!("the secret of {shown}"), why: why.to_owned() })
    }

    /// Returns whether the secret is somewhere else than in the ledger.
    pub(crate) fn have_secret(&self) -> bool {
        self.secret != LedgerSecret::NONE
    }

    /// Returns a key that stays the same when the ledger is given another secret: for what is written into rows.
    pub(crate) fn lasting(&self, purpose: &str) -> [u8; KEY_BYTES] {
        blake3::derive_key(purpose, &self.lasting)
    }

    /// Returns a key that only those can derive who have the secret of now.
    pub(crate) fn of_secret(&self, purpose: &str) -> [u8; KEY_BYTES] {
        blake3::derive_key(purpose, &[self.lasting, self.secret.0].concat())
    }

    pub(crate) fn secret(&self) -> &LedgerSecret {
        &self.secret
    }

    /// Returns what the ledger keeps.
    pub(crate) fn sealed(&self) -> [u8; SEALED_BYTES] {
        let mut sealed = [0; SEALED_BYTES];
        let (key, check) = sealed.split_at_mut(KEY_BYTES);
        key.copy_from_slice(&masked(&self.secret, self.lasting));
        check.copy_from_slice(check_of(&self.secret, &self.lasting).as_bytes());
        sealed
    }

    pub(crate) fn unsealed(secret: LedgerSecret, sealed: &[u8]) -> Option<Self> {
        let (key, check) = sealed.split_first_chunk::<KEY_BYTES>()?;
        let lasting = masked(&secret, *key);
        // Compared in constant time.
        (check_of(&secret, &lasting) == *<&[u8; KEY_BYTES]>::try_from(check).ok()?)
            .then_some(Self { lasting, secret })
    }
}

/// The lasting key is random and sealed once with a secret, so that a mask that follows from the secret is enough.
fn masked(secret: &LedgerSecret, key: [u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
    let mask = blake3::derive_key(SEAL_PURPOSE, &secret.0);
    std::array::from_fn(|place| key[place] ^ mask[place])
}

fn check_of(secret: &LedgerSecret, lasting: &[u8; KEY_BYTES]) -> blake3::Hash {
    blake3::keyed_hash(&blake3::derive_key(CHECK_PURPOSE, &secret.0), lasting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> LedgerSecret {
        LedgerSecret::of(text).expect("long enough")
    }

    #[test]
    fn s41_a_secret_is_never_shown_and_a_short_one_is_refused() {
        assert_eq!(format!("{:?}", secret("correct horse battery")), "Secret(***)");
        assert!(LedgerSecret::of("too short").is_err());
        assert_eq!(secret(" correct horse battery\n"), secret("correct horse battery"));
    }

    #[test]
    fn s41_a_ledger_without_a_secret_takes_one_on_and_is_then_not_opened_without() {
        let (a, b) = (secret("the first secret there is"), secret("another secret than that"));
        let none = Keys::of_new_database(None);
        assert!(!none.have_secret());
        let (adopted, is_new) = Keys::of_database("db", Some(&a), &none.sealed()).expect("it takes it on");
        assert!(is_new && adopted.have_secret());
        assert_eq!(adopted.lasting("x"), none.lasting("x"), "what is in rows stays valid");
        assert_ne!(
            adopted.of_secret("x"),
            none.of_secret("x"),
            "who read the ledger before cannot derive it"
        );
        let sealed = adopted.sealed();
        assert!(Keys::of_database("db", None, &sealed).is_err());
        assert!(Keys::of_database("db", Some(&b), &sealed).is_err());
        let (again, is_new) = Keys::of_database("db", Some(&a), &sealed).expect("the same secret");
        assert!(!is_new);
        assert_eq!(again.of_secret("x"), adopted.of_secret("x"));
        assert!(Keys::of_database("db", Some(&a), &sealed[..40]).is_err());
    }
}
