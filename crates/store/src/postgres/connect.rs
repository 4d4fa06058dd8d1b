//! Connections: made, made again, and what their errors mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Connection, Socket};

use super::fitness;
use super::home::Home;
use super::tail::Tail;
use super::tls::{self, Stream, Tls};
use crate::address::{decoded, parameters};
use crate::error::StoreError;

/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How often a connection that is used is checked again: settings change beneath it, and a pooler may go over to another server.
const CHECKED_EVERY: Duration = Duration::from_secs(5);
/// How long a command is tried again while the database cannot be reached.
pub(super) const AWAY_MAX: Duration = Duration::from_secs(15);
/// How long sent bytes may stay unacknowledged, and an idle peer silent, before a connection counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often operators are told in the log why it cannot be reached.
const TOLD_AGAIN: Duration = Duration::from_secs(10);
/// Pauses between attempts to connect, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What `ledger_apply` says when the server was set up to lose what it acknowledges.
const UNSAFE_NOW: &str = "TS002";

/// What `ledger_apply` says on another timeline than the one the command was decided for.
const OTHER_TIMELINE: &str = "TS003";

/// What went wrong, as far as it matters for what to do next.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The connection is gone or cannot be had. What was sent may have been done (S12).
    Lost(String),
    /// Somebody else's lock was in the way. Nothing was done.
    InTheWay,
    /// Given up in favour of another transaction: a deadlock, a serialization failure; by SQLSTATE. Nothing was done.
    Overtaken(String),
    /// Trying again would not help. Nothing was done.
    Final(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Final(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(said) => Self::of(said.code(), said.message()),
            None => Self::Lost(because(&error)),
        }
    }
}

impl Failure {
    /// By SQLSTATE. Details and hints of the server are left out: they quote values (S41).
    fn of(code: &SqlState, message: &str) -> Self {
        let number = code.code();
        match *code {
            SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Overtaken(number.to_owned())
            }
            SqlState::LOCK_NOT_AVAILABLE => Self::InTheWay,
            SqlState::TOO_MANY_CONNECTIONS | SqlState::CANNOT_CONNECT_NOW => Self::Lost(message.to_owned()),
            // Somebody, or the server on its way down, ended the statement or the connection. PgBouncer says 08.
            _ if number.starts_with("57P") || number.starts_with("08") => Self::Lost(message.to_owned()),
            SqlState::QUERY_CANCELED => Self::Lost("a statement was canceled".into()),
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                Self::Final(StoreError::ReadOnly("the server takes no writes".into()))
            }
            SqlState::INSUFFICIENT_PRIVILEGE => Self::Final(StoreError::ReadOnly(message.to_owned())),
            SqlState::DISK_FULL => Self::Final(StoreError::DiskFull),
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
                Self::Final(StoreError::Damaged(message.to_owned()))
            }
            // The next connection looks what is there.
            _ if number == OTHER_TIMELINE => Self::Lost(message.to_owned()),
            // Of our own functions.
            _ if number == UNSAFE_NOW => Self::Final(StoreError::UnsafeDurability(message.to_owned())),
            // The message would quote the value.
            _ if number.starts_with("22") => Self::Final(StoreError::Value(number.to_owned())),
            _ if number.starts_with("23") => {
                Self::Final(StoreError::Damaged(format!("a constraint was broken ({number})")))
            }
            _ => Self::Final(StoreError::Away(format!("{message} ({number})"))),
        }
    }

    /// Whether somebody else was in the way, and trying again may help.
    pub(super) fn is_in_the_way(&self) -> bool {
        matches!(self, Self::InTheWay | Self::Overtaken(_))
    }

    /// What the caller is told when nothing more can be tried.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Lost(why) => StoreError::Away(why),
            Self::InTheWay | Self::Overtaken(_) => {
                StoreError::Away("another transaction has kept the intent locked".into())
            }
            Self::Final(error) => error,
        }
    }
}

/// The whole chain of causes: the first alone says little more than "error connecting to server".
fn because(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How to reach the database.
#[derive(Clone)]
pub(super) struct Place {
    config: Config,
    tls: Tls,
    /// Whether it was ever reached: then it can be trusted, and if it cannot now, that may pass.
    was_reached: Arc<AtomicBool>,
    /// When its operators were last told that it is away.
    told_at: Arc<std::sync::Mutex<Option<Instant>>>,
    /// What must be there.
    tail: Option<Arc<Tail>>,
}

impl Place {
    /// Looks, on every connection, whether what was acknowledged is there.
    pub(super) fn remembering(self, tail: Arc<Tail>) -> Self {
        Self { tail: Some(tail), ..self }
    }

    /// Checks whether a connection may hold a ledger: that nothing acknowledged will be lost (S42), and that nothing was (S43).
    async fn check(&self, client: &Client) -> Result<(), Failure> {
        let checks = async {
            fitness::check(client).await?;
            match &self.tail {
                Some(tail) => tail.check(client).await,
                None => Ok(()),
            }
        };
        let checked = tokio::time::timeout(CONNECT_MAX, checks).await;
        checked.unwrap_or_else(|_| Err(Failure::Lost("the server does not answer".into())))
    }

    async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), Failure> {
        let connected = match self.attempt(&self.config).await {
            // As libpq does: a server that cannot, or does not want it, is taken as it is where nobody insists.
            Err(Failure::Final(_)) if self.config.get_ssl_mode() == SslMode::Prefer => {
                self.attempt(self.config.clone().ssl_mode(SslMode::Disable)).await
            }
            result => result,
        };
        if let Err(Failure::Lost(why)) = &connected {
            self.tell(why);
        }
        connected
    }

    /// A connection that may hold a ledger, and the task that it needs.
    async fn client(&self) -> Result<Client, Failure> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = because(&error), "a connection ended");
            }
        });
        self.check(&client).await?;
        Ok(client)
    }

    /// Says why, seldom: callers are only told that the ledger is away, and many of them before it was given up.
    fn tell(&self, why: &str) {
        let mut told_at = self.told_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told_at.is_none_or(|at| at.elapsed() >= TOLD_AGAIN) {
            *told_at = Some(Instant::now());
            tracing::warn!("the database cannot be reached: {why}");
        }
    }

    async fn attempt(&self, config: &Config) -> Result<(Client, Connection<Socket, Stream>), Failure> {
        let (tls, insists) = (self.tls.once(), config.get_ssl_mode() == SslMode::Require);
        let connecting = tokio::time::timeout(CONNECT_MAX * 2, config.connect(tls.clone())).await;
        match connecting {
            Ok(Ok(connected)) => {
                self.was_reached.store(true, Ordering::Relaxed);
                Ok(connected)
            }
            Ok(Err(error)) => Err(match tls.why_refused(&error) {
                Some(why) if insists && self.was_reached.load(Ordering::Relaxed) => Failure::Lost(why),
                Some(why) => StoreError::NotTrusted(why).into(),
                None => error.into(),
            }),
            Err(_) => Err(Failure::Lost("the server does not answer".into())),
        }
    }
}

/// Reads the address of a database. Its parameters win over what is usual here.
pub(super) fn place(url: &str) -> Result<Place, StoreError> {
    let (plain, said) = without(url, &tls::PARAMETERS);
    let mut config: Config = plain.parse().map_err(|_| {
        // The parser's message may quote the password.
        StoreError::Address(crate::Address::Postgres(url.to_owned()).to_string())
    })?;
    if config.get_application_name().is_none() {
        config.application_name("twicesafe");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_MAX);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_MAX);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_idle(SILENCE_MAX).keepalives_interval(SILENCE_MAX / 5).keepalives_retries(3);
    }
    let tls = tls::of(&mut config, &said)?;
    Ok(Place { config, tls, was_reached: Arc::default(), told_at: Arc::default(), tail: None })
}

/// The address without these parameters, and what they say.
fn without(url: &str, names: &[&str]) -> (String, BTreeMap<String, String>) {
    let (place, parameters) = parameters(url);
    let (mut left, mut said) = (Vec::new(), BTreeMap::new());
    for (text, name, value) in parameters {
        match names.contains(&&*name) {
            true => drop(said.insert(name.into_owned(), decoded(value).into_owned())),
            false => left.push(text),
        }
    }
    let rest = if left.is_empty() { place.to_owned() } else { format!("{place}?{}", left.join("&")) };
    (rest, said)
}

/// A connection, and when it was last checked.
struct Checked {
    client: Arc<Client>,
    at: Instant,
}

/// One connection. It is made when it is needed, and made again when it was lost.
pub(super) struct Link {
    place: Place,
    home: Arc<Home>,
    client: Mutex<Option<Checked>>,
}

impl Link {
    pub(super) fn new(place: Place, home: Arc<Home>) -> Self {
        Self { place, home, client: Mutex::default() }
    }

    /// Another connection to the same place.
    pub(super) fn another(&self) -> Self {
        Self::new(self.place.clone(), self.home.clone())
    }

    /// Connects, if necessary; once. What must not hold a ledger any more is as good as not connected.
    pub(super) async fn client(&self) -> Result<Arc<Client>, Failure> {
        let mut held = self.client.lock().await;
        if let Some(there) = held.as_mut().filter(|there| !there.client.is_closed()) {
            let client = there.client.clone();
            if there.at.elapsed() >= CHECKED_EVERY {
                self.place.check(&client).await?;
                there.at = Instant::now();
            }
            return Ok(client);
        }
        *held = None;
        let place = self.place.clone();
        let client = Arc::new(self.home.run(async move { place.client().await }).await?);
        *held = Some(Checked { client: client.clone(), at: Instant::now() });
        Ok(client)
    }

    /// Gives a connection up whose state is not known any more.
    pub(super) async fn drop_client(&self) {
        *self.client.lock().await = None;
    }
}

/// Patience with a database that cannot be reached.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Counted from when the caller began to wait.
    pub(super) fn since(start: Instant) -> Self {
        Self { until: start + AWAY_MAX, pause: PAUSES.0 }
    }

    /// Waits a little before the next attempt. `false`: it has lasted too long.
    pub(super) async fn pause(&mut self) -> bool {
        if Instant::now() + self.pause > self.until {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }

    /// Bounds the wait for an answer by what is left, but always leaves time for one.
    pub(super) async fn bound<T>(
        &self,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let left = self.until.saturating_duration_since(Instant::now()).max(CONNECT_MAX);
        let answered = tokio::time::timeout(left, answer).await;
        answered.unwrap_or_else(|_| Err(Failure::Lost("the database does not answer".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str, expected: &str) {
        let failure = Failure::of(&SqlState::from_code(code), "said the server");
        assert_eq!(format!("{failure:?}"), expected, "{code}");
    }

    #[test]
    fn errors_are_told_apart_by_what_can_be_done_about_them() {
        check("40P01", r#"Overtaken("40P01")"#);
        check("40001", r#"Overtaken("40001")"#);
        check("55P03", "InTheWay");
        check("57P01", r#"Lost("said the server")"#);
        check("57P03", r#"Lost("said the server")"#);
        check("53300", r#"Lost("said the server")"#);
        check("08P01", r#"Lost("said the server")"#);
        check("53100", "Final(DiskFull)");
        check("25006", r#"Final(ReadOnly("the server takes no writes"))"#);
        check("42501", r#"Final(ReadOnly("said the server"))"#);
        check("22021", r#"Final(Value("22021"))"#);
        check("23505", r#"Final(Damaged("a constraint was broken (23505)"))"#);
        check("TS002", r#"Final(UnsafeDurability("said the server"))"#);
        check("42703", r#"Final(Away("said the server (42703)"))"#);
    }

    #[test]
    fn an_address_that_is_not_understood_is_shown_without_its_password() {
        let error = place("postgres://me:s3cret@db:port/ledger").err().expect("no such port");
        assert_eq!(error.to_string(), "`postgres://me:***@db:port/ledger` is not the address of a ledger");
    }

    fn mode(url: &str) -> String {
        place(url)
            .map_or_else(|error| error.to_string(), |place| format!("{:?}", place.config.get_ssl_mode()))
    }

    #[test]
    fn only_on_this_machine_nobody_asks_for_tls() {
        assert_eq!(mode("postgres://me@localhost/ledger"), "Disable");
        assert_eq!(mode("postgres://me@127.0.0.1:6432/ledger"), "Disable");
        assert_eq!(mode("postgres://me@%2Frun%2Fpostgresql/ledger"), "Disable");
        assert_eq!(mode("postgres:///ledger?host=/run/postgresql&application_name=x"), "Disable");
        assert_eq!(mode("postgres://me@db/ledger"), "Prefer");
        assert_eq!(mode("postgres://me@localhost,db/ledger"), "Prefer");
        assert_eq!(mode("postgres://me@localhost/ledger?hostaddr=10.0.0.1"), "Prefer");
    }

    #[test]
    fn what_is_asked_for_is_done_or_refused() {
        assert_eq!(mode("postgres://me@db/ledger?sslmode=disable"), "Disable");
        assert_eq!(mode("postgres://me@localhost/ledger?application_name=x&sslmode=require"), "Require");
        assert_eq!(mode("postgres://me@db/ledger?sslmode=verify-full&sslrootcert=system"), "Require");
        assert_eq!(mode("postgres://me@db/ledger?sslrootcert=system"), "Require", "and that host");
        // As the parser has it, which decodes names, and takes everything before the `@` for who asks.
        assert_eq!(mode("postgres://me:pa?ss@db/ledger?ssl%6Dode=require"), "Require");
        assert_eq!(mode("postgres://me@localhost/ledger?sslmode=disable&sslmode=require"), "Require");
        assert!(mode("postgres://me@db/ledger?sslmode=verify").contains("sslmode is one of"));
        assert!(mode("postgres://me@db/ledger?sslmode=Require").contains("sslmode is one of"));
        assert!(mode("postgres://me@db/ledger?sslcert=a.pem").contains("sslcert and sslkey go together"));
        for weak in ["disable", "prefer"] {
            let url = format!("postgres://me@db/ledger?sslrootcert=/ca.pem&sslmode={weak}");
            assert!(mode(&url).contains("sslrootcert needs"), "{weak}");
            let url = format!("postgres://me@db/ledger?sslnegotiation=direct&sslmode={weak}");
            assert!(mode(&url).contains("sslnegotiation=direct needs"), "{weak}");
        }
        // Anybody can have a certificate of an authority that everybody knows.
        for nobody in [
            "sslmode=verify-ca",
            "sslmode=verify-ca&sslrootcert=system",
            "sslmode=require&sslrootcert=system",
        ] {
            let refused = mode(&format!("postgres://me@db/ledger?{nobody}"));
            assert!(refused.contains("authority of your own"), "{nobody}: {refused}");
        }
        assert!(mode("postgres://me@db/ledger?channel_binding=require").contains("channel_binding"));
        let missing = mode("postgres://me@db/ledger?sslmode=verify-ca&sslrootcert=%2Fno%2Fsuch.pem");
        assert!(missing.contains("/no/such.pem"), "{missing}");
        let empty = mode("postgres://me@db/ledger?sslmode=verify-ca&sslrootcert=/dev/null");
        assert!(empty.contains("there is no certificate in it"), "{empty}");
    }
}
