//! Tokens: made by an operator, kept as hashes in the ledger, read again and again by every server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;
use twicesafe_ledger::{Actor, Code, Filter, InvalidName, Ledger, Scope, Timestamp};

use super::principal::{Principal, RESERVED, Right, TENANT_DEFAULT};
use crate::error::ServerError;
use crate::http::Problem;

/// The kind of note that a token is.
const KIND: &str = "token";
/// What a token begins with, so that people and scanners know one when they see it.
const PREFIX: &str = "twicesafe";
/// How long a server goes on believing what it read: a revoked token is refused after that at the latest.
pub(super) const REFRESH: Duration = Duration::from_secs(2);
/// How long reading may take, and how long it then counts as failed.
const READ_WITHIN: Duration = Duration::from_secs(2);
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How often a token that nobody knows makes a server read again.
const REFRESH_FOR_UNKNOWN: Duration = Duration::from_millis(200);

/// A token, as it is kept: without what would let anybody use it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
    /// Its id, which is also part of the token.
    #[serde(skip)]
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Where it reaches; nothing: everywhere in the tenant.
    pub scopes: Vec<String>,
    /// What it may do.
    pub rights: Vec<Right>,
    /// Who acts with it, where that is a person of the configuration.
    pub person: Option<String>,
    /// BLAKE3 of its secret part.
    hash: String,
    /// When it was made, in ledger time.
    created_at: i64,
    /// When it ends.
    expires_at: Option<i64>,
    /// When it was revoked.
    revoked_at: Option<i64>,
}

impl Token {
    /// Who acts with it.
    pub(super) fn actor(&self) -> Result<Actor, InvalidName> {
        match &self.person {
            Some(person) => Actor::new(&format!("person:{person}")),
            None => Actor::new(&format!("token:{}", self.name)),
        }
    }

    /// When it was made.
    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_millis(self.created_at)
    }

    /// When it ends by itself.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at.map(Timestamp::from_millis)
    }

    /// When it was revoked.
    pub fn revoked_at(&self) -> Option<Timestamp> {
        self.revoked_at.map(Timestamp::from_millis)
    }

    fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at().is_none_or(|end| now < end)
    }
}

/// What a token should be.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What it is called.
    pub name: String,
    /// Whose it is; otherwise the default tenant's.
    pub tenant: Option<String>,
    /// Where it reaches.
    pub scopes: Vec<String>,
    /// What it may do.
    pub rights: Vec<Right>,
    /// Who acts with it.
    pub person: Option<String>,
    /// How long it is good.
    pub expires_after: Option<Duration>,
}

/// Makes a token. What is returned is all there ever is of it.
pub async fn create(ledger: &Ledger, new: NewToken) -> Result<(String, Token), ServerError> {
    let tenant = new.tenant.unwrap_or_else(|| TENANT_DEFAULT.to_owned());
    if Scope::new(&tenant).is_err() || tenant.contains('/') || tenant == RESERVED {
        return Err(ServerError::usage(format!("`{tenant}` cannot be a tenant: it is one part of a scope")));
    }
    for scope in &new.scopes {
        Scope::new(scope.trim_end_matches('/'))
            .map_err(|error| ServerError::usage(format!("`{scope}`: {error}")))?;
    }
    twicesafe_ledger::Actor::new(&new.name).map_err(|error| ServerError::usage(error.to_string()))?;
    if new.rights.is_empty() {
        return Err(ServerError::usage("a token without a right is good for nothing".to_owned()));
    }
    let known = list(ledger).await?;
    if known.iter().any(|token| token.name == new.name && token.revoked_at.is_none()) {
        return Err(ServerError::usage(format!(
            "there is a token `{}` already; revoke it, or take another name",
            new.name
        )));
    }
    let is_new = tenant != TENANT_DEFAULT && known.iter().all(|token| token.tenant != tenant);
    if is_new && is_used(ledger, &tenant).await? {
        return Err(ServerError::usage(format!(
            "scopes that begin with `{tenant}/` are in use by the default tenant; take another name for the tenant"
        )));
    }
    let (id, secret) = (encoded(&random::<6>()), encoded(&random::<32>()));
    let now = ledger.store().now().await?;
    let token = Token {
        id,
        name: new.name,
        tenant,
        scopes: new.scopes,
        rights: new.rights,
        person: new.person,
        hash: hash(&secret),
        created_at: now.as_millis(),
        expires_at: new.expires_after.map(|span| (now + span).as_millis()),
        revoked_at: None,
    };
    keep(ledger, &token).await?;
    Ok((format!("{PREFIX}.{}.{secret}", token.id), token))
}

/// Whether anything was claimed under that first part of a scope.
async fn is_used(ledger: &Ledger, tenant: &str) -> Result<bool, ServerError> {
    for scope in [format!("{tenant}/"), tenant.to_owned()] {
        let filter = Filter { scope: Some(scope), ..Filter::default() };
        if !ledger.store().list(&filter, None, 1).await?.intents.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// All tokens, oldest first.
pub async fn list(ledger: &Ledger) -> Result<Vec<Token>, ServerError> {
    let mut tokens = Vec::new();
    for (id, value) in ledger.store().notes(KIND).await? {
        let token: Token = serde_json::from_str(&value)
            .map_err(|_| twicesafe_ledger::StoreError::Damaged(format!("the token {id} cannot be read")))?;
        tokens.push(Token { id, ..token });
    }
    tokens.sort_by_key(|token| token.created_at);
    Ok(tokens)
}

/// Revokes the tokens with that name or id. Servers refuse them within two seconds.
pub async fn revoke(ledger: &Ledger, which: &str) -> Result<Vec<Token>, ServerError> {
    let now = ledger.store().now().await?;
    let mut revoked = named(ledger, which).await?;
    for token in &mut revoked {
        token.revoked_at = Some(now.as_millis());
        keep(ledger, token).await?;
    }
    Ok(revoked)
}

/// The tokens with that name or id that are not revoked.
pub(crate) async fn named(ledger: &Ledger, which: &str) -> Result<Vec<Token>, ServerError> {
    let is_it = |token: &Token| (token.name == which || token.id == which) && token.revoked_at.is_none();
    let named: Vec<Token> = list(ledger).await?.into_iter().filter(is_it).collect();
    match named.is_empty() {
        true => Err(ServerError::NoSuchToken(which.to_owned())),
        false => Ok(named),
    }
}

async fn keep(ledger: &Ledger, token: &Token) -> Result<(), ServerError> {
    let value = serde_json::to_string(token).expect("a token is text and numbers");
    Ok(ledger.store().put_note(KIND, &token.id, Some(&value)).await?)
}

/// The tokens as a server knows them.
pub(crate) struct Tokens {
    ledger: Ledger,
    known: RwLock<Known>,
    /// When reading failed last.
    reading: Mutex<Option<Instant>>,
}

struct Known {
    tokens: BTreeMap<String, Arc<Token>>,
    tenants: Arc<BTreeSet<String>>,
    read_at: Instant,
}

impl Tokens {
    /// Reads them.
    pub(crate) async fn read(ledger: &Ledger) -> Result<Self, ServerError> {
        let known = read(ledger).await?;
        Ok(Self { ledger: ledger.clone(), known: RwLock::new(known), reading: Mutex::new(None) })
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a token was ever made: from then on nobody does without.
    pub(crate) fn are_needed(&self) -> bool {
        !self.known().tokens.is_empty()
    }

    /// Returns everybody who may act, by tenant, with a token that reaches `TENANT/TAIL`.
    pub(crate) fn holders_reaching(&self, tail: &str, now: Timestamp) -> BTreeMap<String, BTreeSet<String>> {
        let known = self.known();
        let mut holders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for token in known.tokens.values().filter(|token| token.is_good(now)) {
            let Ok(holder) = Principal::of(token, known.tenants.clone()) else { continue };
            if holder.has(Right::Act) && holder.reaches(&format!("{}/{tail}", token.tenant)) {
                holders.entry(token.tenant.clone()).or_default().insert(holder.actor.as_str().to_owned());
            }
        }
        holders
    }

    pub(super) fn tenants(&self) -> Arc<BTreeSet<String>> {
        self.known().tenants.clone()
    }

    /// The ids of all tokens that act as somebody.
    pub(super) fn ids_of(&self, actor: &Actor) -> Vec<String> {
        let known = self.known();
        let acts = |token: &&Arc<Token>| token.actor().is_ok_and(|own| own == *actor);
        known.tokens.values().filter(acts).map(|token| token.id.clone()).collect()
    }

    /// The token that this text is, if it is good now.
    pub(super) async fn find(&self, text: &str) -> Result<Option<Arc<Token>>, Problem> {
        let mut parts = text.split('.');
        let (Some(PREFIX), Some(id), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Ok(None);
        };
        if !self.known().tokens.contains_key(id) {
            // It may have been made a moment ago. Who is guessing waits here, and all of them for one reading.
            let age = self.known().read_at.elapsed();
            tokio::time::sleep(REFRESH_FOR_UNKNOWN.saturating_sub(age)).await;
            self.refresh(REFRESH_FOR_UNKNOWN).await?;
        }
        let Some(token) = self.known().tokens.get(id).cloned() else { return Ok(None) };
        match bool::from(hash(secret).as_bytes().ct_eq(token.hash.as_bytes())) {
            true => self.by_id(id).await,
            false => Ok(None),
        }
    }

    /// The token with that id, if it is good now.
    pub(super) async fn by_id(&self, id: &str) -> Result<Option<Arc<Token>>, Problem> {
        let Some(token) = self.known().tokens.get(id).cloned() else { return Ok(None) };
        // Tokens end by ledger time; most have no end, and then nobody need ask for it.
        let now = match token.expires_at {
            // Boxed, as below.
            Some(_) => match tokio::time::timeout(READ_WITHIN, Box::pin(self.ledger.store().now())).await {
                Ok(now) => now?,
                Err(_) => return Err(away()),
            },
            None => Timestamp::default(),
        };
        Ok(Some(token).filter(|token| token.is_good(now)))
    }

    /// Reads again what was read longer ago than that; many who come at once wait for one reading.
    pub(super) async fn refresh(&self, older_than: Duration) -> Result<(), Problem> {
        if self.known().read_at.elapsed() < older_than {
            return Ok(());
        }
        // Boxed: rare, and every request would otherwise hold room for it.
        Box::pin(self.read_again(older_than)).await
    }

    pub(super) fn are_older_than(&self, span: Duration) -> bool {
        self.known().read_at.elapsed() >= span
    }

    /// Whether they are to be read again, and nobody is about to, or has just tried in vain.
    pub(super) fn are_due(&self, older_than: Duration) -> bool {
        let may_read = |failed_at: Option<Instant>| failed_at.is_none_or(|at| at.elapsed() >= FAILED_FOR);
        self.are_older_than(older_than) && self.reading.try_lock().is_ok_and(|failed_at| may_read(*failed_at))
    }

    async fn read_again(&self, older_than: Duration) -> Result<(), Problem> {
        let mut failed_at = self.reading.lock().await;
        if self.known().read_at.elapsed() < older_than {
            return Ok(());
        }
        // Those who waited here are told the same; each finding out for itself would make them wait for ever.
        if failed_at.is_some_and(|at| at.elapsed() < FAILED_FOR) {
            return Err(away());
        }
        match tokio::time::timeout(READ_WITHIN, read(&self.ledger)).await {
            Ok(Ok(fresh)) => {
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                *failed_at = None;
                Ok(())
            }
            failed => {
                *failed_at = Some(Instant::now());
                Err(match failed {
                    Ok(Err(error)) => error.into(),
                    _ => away(),
                })
            }
        }
    }
}

fn away() -> Problem {
    Problem::new(Code::LedgerAway, Code::LedgerAway.title(), "Ask again, or ask another server.")
        .retry_after(FAILED_FOR)
}

async fn read(ledger: &Ledger) -> Result<Known, ServerError> {
    let read_at = Instant::now();
    let tokens: BTreeMap<_, _> =
        list(ledger).await?.into_iter().map(|token| (token.id.clone(), Arc::new(token))).collect();
    let tenants =
        tokens.values().map(|token| token.tenant.clone()).chain([TENANT_DEFAULT.to_owned()]).collect();
    Ok(Known { tokens, tenants: Arc::new(tenants), read_at })
}

fn hash(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("a system without randomness cannot keep anybody out");
    bytes
}

impl From<ServerError> for Problem {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Ledger(error) => error.into(),
            other => Self::new(Code::LedgerDamaged, other.to_string(), other.remedy()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Tokens of a ledger that works, last read too long ago.
    async fn stale() -> Tokens {
        let ledger = Ledger::open("memory:").await.expect("memory is there");
        let tokens = Tokens::read(&ledger).await.expect("a ledger without tokens");
        let long_ago = Instant::now().checked_sub(REFRESH * 2).expect("the machine has run for seconds");
        tokens.known.write().unwrap_or_else(PoisonError::into_inner).read_at = long_ago;
        tokens
    }

    #[tokio::test]
    async fn who_comes_after_a_failed_reading_is_told_the_same_at_once() {
        let tokens = stale().await;
        *tokens.reading.lock().await = Some(Instant::now());
        let refused = tokens.refresh(REFRESH).await.expect_err("it failed a moment ago");
        assert_eq!(refused.code, Code::LedgerAway);
        assert!(tokens.known().read_at.elapsed() >= REFRESH, "nobody has read");
    }

    #[tokio::test]
    async fn after_a_while_it_is_tried_again_and_the_failure_is_forgotten() {
        let tokens = stale().await;
        *tokens.reading.lock().await = Instant::now().checked_sub(FAILED_FOR);
        assert!(tokens.refresh(REFRESH).await.is_ok());
        assert!(tokens.known().read_at.elapsed() < REFRESH);
        assert_eq!(*tokens.reading.lock().await, None);
    }

    #[tokio::test]
    async fn figures_are_given_by_the_tokens_as_last_read_while_they_cannot_be_read() {
        let ledger = Ledger::open("memory:").await.expect("memory is there");
        let new = NewToken {
            name: "watcher".to_owned(),
            tenant: None,
            scopes: Vec::new(),
            rights: vec![Right::Admin],
            person: None,
            expires_after: None,
        };
        let (token, _) = create(&ledger, new).await.expect("a token");
        let configuration = crate::config::parse("listen: 127.0.0.1:0\n").expect("a configuration");
        let server = crate::server::Server::start(ledger, configuration).await.expect("it starts");
        let (shared, control) = (server.shared(), server.control());
        let (url, _) = server.addresses().remove(0);
        let address = url.trim_start_matches("http://").to_owned();
        let serving = tokio::spawn(server.serve());
        let asked = async |path: &str, token: &str| {
            let tokens = &shared.access.tokens;
            let long_ago = Instant::now().checked_sub(REFRESH * 2).expect("the machine has run for seconds");
            tokens.known.write().unwrap_or_else(PoisonError::into_inner).read_at = long_ago;
            *tokens.reading.lock().await = Some(Instant::now());
            let mut stream = tokio::net::TcpStream::connect(&address).await.expect("it listens");
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: localhost\r\ntwicesafe-token: {token}\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.expect("it is read");
            let mut heard = String::new();
            stream.read_to_string(&mut heard).await.expect("it answers");
            heard.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(asked("/metrics", &token).await, "200");
        assert_eq!(asked("/v1/intents", &token).await, "503");
        // What may have been made meanwhile is not believed, and what is wrong is not taken.
        assert_eq!(asked("/metrics", "twicesafe.unknown.secret").await, "503");
        assert_eq!(asked("/metrics", &format!("{token}x")).await, "401");
        control.stop();
        serving.await.expect("it stops");
    }

    #[tokio::test]
    async fn many_who_come_at_once_wait_for_one_reading() {
        let tokens = Arc::new(stale().await);
        let reading = tokens.reading.lock().await;
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let tokens = tokens.clone();
                tokio::spawn(async move { tokens.refresh(REFRESH).await.map_err(|problem| problem.code) })
            })
            .collect();
        tokio::task::yield_now().await;
        // The one reading under way fails, and nobody starts another.
        let mut reading = reading;
        *reading = Some(Instant::now());
        drop(reading);
        for one in waiting {
            assert_eq!(one.await.ok(), Some(Err(Code::LedgerAway)));
        }
        assert!(tokens.known().read_at.elapsed() >= REFRESH, "nobody has read");
    }
}
