//! Who asks, and what they may do.
//!
//! On a loopback address, and as long as no token was ever made, anybody on the machine may do everything: there is nothing to
//! set up. From the first token on, every request needs one. A token belongs to a tenant, may be confined to scopes, and
//! gives rights.

mod links;
mod origin;
mod principal;
mod tokens;

pub(crate) use links::{Links, Seen};
pub(crate) use origin::{check as check_origin, check_without_links};
pub(crate) use principal::{Principal, TENANT_DEFAULT};
pub use principal::{Right, is_reserved};
pub use tokens::{NewToken, Token, create, list, revoke};
pub(crate) use tokens::{Tokens, named};

use hyper::header::{FORWARDED, HeaderName, VIA};
use twicesafe_ledger::{Actor, Code};

use tokens::REFRESH;

use crate::http::{Problem, Request};

/// How a token is sent.
const HINT: &str =
    "Send it as `Authorization: Bearer TOKEN` or `Twicesafe-Token: TOKEN`. Make one: twicesafe token create.";
const OWN_TOKEN: HeaderName = HeaderName::from_static("twicesafe-token");
const ACTOR: HeaderName = HeaderName::from_static("twicesafe-actor");
/// What proxies add.
const OF_PROXIES: [HeaderName; 6] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-real-ip"),
];

/// Who may come in.
pub(crate) struct Access {
    tokens: Tokens,
}

impl Access {
    pub(crate) fn new(tokens: Tokens) -> Self {
        Self { tokens }
    }

    /// Who asks.
    pub(crate) async fn principal(&self, request: &Request) -> Result<Principal, Problem> {
        self.tokens.refresh(REFRESH).await?;
        self.who(request, presented(request)?, HINT).await
    }

    /// Who asks, by the tokens as they were last read if they cannot be read now: for those who watch a server, also while its
    /// ledger is away. What is not known to be good is not taken then either.
    pub(crate) async fn principal_as_last_known(&self, request: &Request) -> Result<Principal, Problem> {
        let _ = self.tokens.refresh(REFRESH).await;
        self.who(request, presented(request)?, HINT).await
    }

    /// Reads the tokens again if it is time, so that what follows goes by them.
    pub(crate) async fn refresh(&self) -> Result<(), Problem> {
        self.tokens.refresh(REFRESH).await
    }

    /// Whether it is time.
    pub(crate) fn is_stale(&self) -> bool {
        self.tokens.are_older_than(REFRESH)
    }

    /// Whether it is time, and nobody else does.
    pub(crate) fn is_due(&self) -> bool {
        self.tokens.are_due(REFRESH)
    }

    /// Who asks, by the tokens as they were last read, where `Authorization` is for somebody else.
    pub(crate) async fn principal_by_own_header(&self, request: &Request) -> Result<Principal, Problem> {
        let hint = "Send it as `Twicesafe-Token: TOKEN`: the header Authorization is the destination's. Make one: twicesafe token create.";
        self.who(request, in_own_header(request)?, hint).await
    }

    async fn who(
        &self,
        request: &Request,
        presented: Option<&str>,
        hint: &'static str,
    ) -> Result<Principal, Problem> {
        let Some(text) = presented else {
            if self.tokens.are_needed() {
                return Err(Problem::new(Code::TokenMissing, "a token is needed", hint));
            }
            return self.somebody_here(request);
        };
        match self.tokens.find(text).await? {
            Some(token) => Ok(Principal::of(&token, self.tokens.tenants())?),
            None => Err(Problem::new(
                Code::TokenRefused,
                "the token is not known, has expired or was revoked",
                "Make another one: twicesafe token create.",
            )),
        }
    }

    /// The tenants there are.
    /// The ids of all tokens that act as somebody.
    pub(crate) fn tokens_of(&self, actor: &Actor) -> Vec<String> {
        self.tokens.ids_of(actor)
    }

    pub(crate) fn tenants(&self) -> Vec<String> {
        let mut all: Vec<String> = self.tokens.tenants().iter().cloned().collect();
        if !all.iter().any(|tenant| tenant == principal::TENANT_DEFAULT) {
            all.push(principal::TENANT_DEFAULT.to_owned());
        }
        all
    }

    /// Returns the tenant whose scope it is.
    pub(crate) fn tenant_of(&self, scope: &str) -> String {
        principal::tenant_of(scope, &self.tokens.tenants()).to_owned()
    }

    /// The same somebody as of now: a token may have been revoked, and there may be tenants that were not there before.
    pub(crate) async fn renewed(&self, principal: &Principal) -> Result<Option<Principal>, Problem> {
        self.tokens.refresh(REFRESH).await?;
        match principal.token() {
            Some(id) => match self.tokens.by_id(id).await? {
                Some(token) => Ok(Some(Principal::of(&token, self.tokens.tenants())?)),
                None => Ok(None),
            },
            None => Ok((!self.tokens.are_needed()).then(|| principal.clone())),
        }
    }

    /// Without tokens there is no identity, only what callers say of themselves, for the journal.
    fn somebody_here(&self, request: &Request) -> Result<Principal, Problem> {
        if !request.peer.ip().to_canonical().is_loopback() {
            return Err(Problem::new(
                Code::TokenMissing,
                "only this machine may do without a token",
                "Make a token: twicesafe token create.",
            ));
        }
        origin::check_host(request)?;
        if OF_PROXIES.iter().any(|name| request.headers.contains_key(name)) {
            return Err(Problem::new(
                Code::TokenMissing,
                "this came through a proxy, so nobody knows who sent it",
                "Make a token: twicesafe token create.",
            ));
        }
        Ok(Principal::anybody(Actor::new(request.header(ACTOR).unwrap_or("local"))?))
    }
}

fn in_own_header(request: &Request) -> Result<Option<&str>, Problem> {
    let Some(value) = request.headers.get(OWN_TOKEN) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| {
        Problem::new(Code::TokenRefused, "the token is not text", "Copy it again, without line breaks.")
    })
}

/// The token a request carries, in either of two headers.
fn presented(request: &Request) -> Result<Option<&str>, Problem> {
    if let Some(token) = in_own_header(request)? {
        return Ok(Some(token));
    }
    let Some(value) = request.headers.get(hyper::header::AUTHORIZATION) else { return Ok(None) };
    let bearer = value.to_str().ok().and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.map(Some).ok_or_else(|| {
        Problem::new(
            Code::TokenRefused,
            "the Authorization header has no bearer token",
            "Send `Authorization: Bearer TOKEN`.",
        )
    })
}
