//! Where a ledger is.

use std::path::PathBuf;

use crate::error::StoreError;

/// Where a ledger is.
#[derive(Clone, PartialEq, Eq)]
pub enum Address {
    /// In one file of this machine: `sqlite:PATH`, or a plain path.
    Sqlite(PathBuf),
    /// In a PostgreSQL database: `postgres://USER@HOST/DATABASE`.
    Postgres(String),
    /// In this process, gone with it: `memory:`. For tests.
    Memory,
}

impl Address {
    /// Reads an address.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let unknown = || Err(StoreError::Address(without_password(text)));
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", path)) if !path.is_empty() && !path.starts_with("//") => {
                Ok(Self::Sqlite(path.into()))
            }
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            Some((scheme, _)) if scheme.len() > 1 && scheme.chars().all(|c| c.is_ascii_alphanumeric()) => {
                unknown()
            }
            _ if text.is_empty() => unknown(),
            _ => Ok(Self::Sqlite(text.into())),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Addresses are shown to people and logged; passwords in them are not (S41).
fn without_password(url: &str) -> String {
    let hidden = || -> Option<String> {
        let (scheme, rest) = url.split_once("://")?;
        let (user, place) = rest.rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{place}"))
    };
    hidden().unwrap_or_else(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let got = Address::parse(text).map_or_else(|error| error.to_string(), |address| address.to_string());
        assert_eq!(got, expected, "{text}");
    }

    #[test]
    fn addresses_are_read_and_shown_without_passwords() {
        check("memory:", "memory:");
        check("sqlite:./a.db", "sqlite:./a.db");
        check("/var/lib/a.db", "sqlite:/var/lib/a.db");
        check("a.db", "sqlite:a.db");
        check("postgres://me@db/ledger", "postgres://me@db/ledger");
        check("postgres://me:s3cret@db/ledger", "postgres://me:***@db/ledger");
        check("mysql://me:s3cret@db", "`mysql://me:***@db` is not the address of a ledger");
        check("sqlite:", "`sqlite:` is not the address of a ledger");
        check("", "`` is not the address of a ledger");
    }
}
