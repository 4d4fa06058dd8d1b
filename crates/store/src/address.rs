//! Where a ledger is.

use std::borrow::Cow;
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
    // A password that is not escaped may have an `@` in it, so that all before the last one is hidden.
    let hidden = || -> Option<String> {
        let (scheme, rest) = url.split_once("://")?;
        let (user, place) = rest.rsplit_once('@')?;
        let (user, _) = user.split_once(':')?;
        Some(format!("{scheme}://{user}:***@{place}"))
    };
    let hidden = hidden().unwrap_or_else(|| url.to_owned());
    let (place, parameters) = parameters(&hidden);
    let mut shown = place.to_owned();
    for (n, (text, name, _)) in parameters.enumerate() {
        shown.push(if n == 0 { '?' } else { '&' });
        match name.to_ascii_lowercase().contains("password") {
            true => shown.push_str("password=***"),
            false => shown.push_str(text),
        }
    }
    shown
}

/// What comes before the parameters of an address, and the parameters: as they are written, their names, and their values as they are
/// written. Everything before an `@` is who asks, whatever is in it.
pub(crate) fn parameters(url: &str) -> (&str, impl Iterator<Item = (&str, Cow<'_, str>, &str)>) {
    let who = url.find('@').map_or(0, |at| at + 1);
    let (place, rest) = match url[who..].find('?') {
        Some(mark) => (&url[..who + mark], Some(&url[who + mark + 1..])),
        None => (url, None),
    };
    let parameter = |text| {
        let (name, value) = str::split_once(text, '=').unwrap_or((text, ""));
        (text, decoded(name), value)
    };
    (place, rest.into_iter().flat_map(|rest| rest.split('&')).map(parameter))
}

/// Text of an address without its escapes.
pub(crate) fn decoded(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
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
        check("postgres://me:s3?cret@db/ledger?a=b", "postgres://me:***@db/ledger?a=b");
        check("postgres://me:s3@c?ret@db/ledger?a=b", "postgres://me:***@db/ledger?a=b");
        check("postgres://me@db/ledger?password=s3@cret&a=b", "postgres://me@db/ledger?password=***&a=b");
        check("postgres://me@db/ledger?a=b&pass%77ord=s3cret", "postgres://me@db/ledger?a=b&password=***");
        check("mysql://me:s3cret@db", "`mysql://me:***@db` is not the address of a ledger");
        check("sqlite:", "`sqlite:` is not the address of a ledger");
        check("", "`` is not the address of a ledger");
    }
}
