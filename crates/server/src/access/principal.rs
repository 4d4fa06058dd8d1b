//! What somebody may do.

use std::collections::BTreeSet;
use std::sync::Arc;

use twicesafe_ledger::{Actor, Code, InvalidName, Name};

use super::tokens::Token;
use crate::http::Problem;

/// What a token, or a person, may do.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Claim, renew, settle.
    Act,
    /// Say yes or no to what is held.
    Approve,
    /// Say what happened to what is in review.
    Review,
    /// Reset, forget, and watch the server itself.
    Admin,
}

impl Right {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Act, Self::Approve, Self::Review, Self::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Approve => "approve",
            Self::Review => "review",
            Self::Admin => "admin",
        }
    }

    /// The right with that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.as_str() == word)
    }
}

/// The first part of scopes that are the server's own: alerts and callbacks. Nobody else may claim or settle there, or an alert could be made
/// to look as if it had been sent.
pub(super) const RESERVED: &str = "twicesafe";

/// Whether a scope is the server's own. What is in it is nobody's to decide.
pub fn is_reserved(scope: &str) -> bool {
    scope.split('/').next() == Some(RESERVED)
}

/// What lanes begin with that are made by routes of destinations and by inboxes.
const LANES_OF_DOORS: [&str; 2] = ["to:", "in:"];
/// Longest names of scopes that are part of the name of a lane or a work; of longer ones a digest is.
const CONFINEMENT_BYTES_MAX: usize = 100;

/// The tenant that is there without being set up.
pub(crate) const TENANT_DEFAULT: &str = "default";

/// Somebody, with what they may do.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    /// Who, for the journal.
    pub(crate) actor: Actor,
    reach: Option<Reach>,
}

/// Where a token reaches. Somebody on the machine itself reaches everything.
#[derive(Clone, Debug)]
struct Reach {
    token: String,
    tenant: String,
    /// Tenants there are; their names are not scopes of others.
    tenants: Arc<BTreeSet<String>>,
    /// Scopes, or what they begin with up to a slash; none: all of the tenant's.
    prefixes: Vec<String>,
    rights: Vec<Right>,
}

impl Principal {
    pub(crate) fn anybody(actor: Actor) -> Self {
        Self { actor, reach: None }
    }

    pub(super) fn of(token: &Token, tenants: Arc<BTreeSet<String>>) -> Result<Self, InvalidName> {
        let actor = token.actor()?;
        let (tenant, prefixes, rights) = (token.tenant.clone(), token.scopes.clone(), token.rights.clone());
        let token = token.id.clone();
        Ok(Self { actor, reach: Some(Reach { token, tenant, tenants, prefixes, rights }) })
    }

    /// Whether it has a right at all.
    pub(crate) fn has(&self, right: Right) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.rights.contains(&right))
    }

    pub(crate) fn demand(&self, right: Right) -> Result<(), Problem> {
        match self.has(right) {
            true => Ok(()),
            false => Err(Problem::new(
                Code::NotAllowed,
                format!("this token does not have the right `{}`", right.as_str()),
                "Use a token that has it: twicesafe token create --rights.",
            )),
        }
    }

    /// Whether a scope is within reach (S3): another tenant's never is.
    pub(crate) fn reaches(&self, scope: &str) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach.covers(scope))
    }

    /// Whether it reaches everything, and nobody need look at scopes.
    pub(crate) fn reaches_everything(&self) -> bool {
        self.reach.is_none()
    }

    pub(crate) fn demand_scope(&self, scope: &str) -> Result<(), Problem> {
        match self.reaches(scope) {
            true => Ok(()),
            false => Err(Problem::new(
                Code::NotAllowed,
                "this token does not reach that scope",
                self.reach.as_ref().map_or_else(String::new, Reach::explained),
            )),
        }
    }

    /// What is about the whole ledger, and would tell one tenant about another, is for who runs it: somebody on the machine
    /// itself, or an admin of the default tenant who is not confined to scopes.
    pub(crate) fn demand_operator(&self) -> Result<(), Problem> {
        let runs_it = |reach: &Reach| {
            reach.rights.contains(&Right::Admin)
                && reach.tenant == TENANT_DEFAULT
                && reach.prefixes.is_empty()
        };
        match self.reach.as_ref().is_none_or(runs_it) {
            true => Ok(()),
            false => Err(Problem::new(
                Code::NotAllowed,
                "this is about the whole ledger",
                "Use a token of the default tenant with the right `admin` and without scopes.",
            )),
        }
    }

    /// Whether something may be done to a scope, beyond looking.
    pub(crate) fn demand_to_change(&self, scope: &str) -> Result<(), Problem> {
        if is_reserved(scope) {
            return Err(Problem::new(
                Code::NotAllowed,
                "scopes that begin with `twicesafe` are the server's own",
                "Take another scope.",
            ));
        }
        self.demand_scope(scope)
    }

    /// Whether this is somebody who may act on an intent. What was forgotten has no scope any more.
    pub(crate) fn may_act_on(&self, name: Option<&Name>) -> bool {
        self.has(Right::Act) && self.demand_to_change(name.map_or("", |name| name.scope.as_str())).is_ok()
    }

    /// Returns the name of a lane that a caller asks for as the ledger has it. Lanes of the gateway and of inboxes are not theirs to name.
    pub(crate) fn own_lane(&self, name: &str) -> Result<String, Problem> {
        match LANES_OF_DOORS.iter().any(|prefix| name.starts_with(prefix)) {
            true => Err(Problem::new(
                Code::NotAllowed,
                "lanes that begin with `to:` or `in:` are those of destinations and inboxes",
                "Take another name, or send the write through the destination.",
            )),
            false => self.own_name(name),
        }
    }

    /// Returns the name of a work, or of a lane that a caller names, as the ledger has it: those of one tenant are not those of another
    /// (S3), and those of a token that is confined to scopes are shared only with tokens confined to the same.
    pub(crate) fn own_name(&self, name: &str) -> Result<String, Problem> {
        match self.reach.as_ref().and_then(Reach::confinement) {
            Some(confinement) => self.tenants_name(&format!("{confinement}//{name}")),
            None => self.tenants_name(name),
        }
    }

    /// Returns the name of a lane of the tenant's as the ledger has it, whatever the token is confined to.
    pub(crate) fn tenants_name(&self, name: &str) -> Result<String, Problem> {
        let Some(reach) = &self.reach else { return Ok(name.to_owned()) };
        if reach.tenant != TENANT_DEFAULT {
            return Ok(format!("{}/{name}", reach.tenant));
        }
        let first = name.split('/').next().unwrap_or_default();
        match first != TENANT_DEFAULT && name.contains('/') && reach.tenants.contains(first) {
            true => Err(Problem::new(
                Code::NotAllowed,
                "names of lanes and works that begin with a tenant's name and a slash are that tenant's",
                "Take another name.",
            )),
            false => Ok(name.to_owned()),
        }
    }

    /// On whose behalf it acts.
    pub(crate) fn tenant(&self) -> &str {
        self.reach.as_ref().map_or(TENANT_DEFAULT, |reach| &reach.tenant)
    }

    /// The token's id, where there is one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.reach.as_ref().map(|reach| reach.token.as_str())
    }
}

/// Returns the tenant that a scope belongs to: the one whose name is its first part, and otherwise the default tenant.
pub(super) fn tenant_of<'a>(scope: &'a str, tenants: &BTreeSet<String>) -> &'a str {
    let first = scope.split('/').next().unwrap_or_default();
    if tenants.contains(first) { first } else { TENANT_DEFAULT }
}

impl Reach {
    /// Names what the token is confined to, the same for all that are confined to the same.
    fn confinement(&self) -> Option<String> {
        let mut prefixes: Vec<&str> =
            self.prefixes.iter().map(|prefix| prefix.trim_end_matches('/')).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let named = prefixes.join(",");
        match named.len() {
            0 => None,
            1..=CONFINEMENT_BYTES_MAX => Some(named),
            _ => Some(format!("#{}", &blake3::hash(named.as_bytes()).to_hex()[..16])),
        }
    }

    fn covers(&self, scope: &str) -> bool {
        let owner = tenant_of(scope, &self.tenants);
        let within = |prefix: &String| match prefix.ends_with('/') {
            true => scope.starts_with(prefix.as_str()),
            false => {
                scope == prefix
                    || scope.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('/'))
            }
        };
        !scope.is_empty()
            && owner == self.tenant
            && (self.prefixes.is_empty() || self.prefixes.iter().any(within))
    }

    fn explained(&self) -> String {
        match (self.prefixes.as_slice(), self.tenant.as_str()) {
            ([], TENANT_DEFAULT) => {
                "Its scopes are those that do not begin with the name of another tenant.".to_owned()
            }
            ([], tenant) => format!("Its scopes begin with `{tenant}/`."),
            (prefixes, _) => format!("Its scopes are: {}.", prefixes.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(tenant: &str, prefixes: &[&str]) -> Reach {
        Reach {
            token: String::new(),
            tenant: tenant.to_owned(),
            tenants: Arc::new(["acme", "default", "acm"].map(str::to_owned).into()),
            prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
            rights: vec![],
        }
    }

    #[test]
    fn s15_confined_tokens_share_names_only_with_those_confined_to_the_same() {
        let name = |tenant: &str, prefixes: &[&str]| {
            let reach = Some(reach(tenant, prefixes));
            Principal { actor: Actor::new("a").expect("a name"), reach }.own_name("x").expect("a name")
        };
        assert_eq!(name("default", &[]), "x");
        assert_eq!(name("acme", &[]), "acme/x");
        assert_eq!(name("default", &["sandbox/"]), "sandbox//x");
        assert_eq!(name("default", &["crm", "billing/"]), name("default", &["billing", "crm/"]));
        assert_eq!(name("acme", &["acme/crm"]), "acme/acme/crm//x");
        assert!(name("default", &["s".repeat(200).as_str()]).len() < 30);
    }

    #[test]
    fn s3_a_token_never_reaches_another_tenants_scope() {
        for (tenant, prefixes, scope, covered) in [
            ("default", &[][..], "billing/invoice", true),
            ("default", &[], "default/billing/invoice", true),
            ("default", &[], "acme/billing", false),
            ("default", &[], "acme", false),
            ("default", &[], "acmes/billing", true),
            ("default", &[], "", false),
            ("acme", &[], "acme/billing", true),
            ("acme", &[], "acm/billing", false),
            ("acme", &[], "billing/invoice", false),
            ("acme", &["acme/crm"], "acme/crm/contact.create", true),
            ("acme", &["acme/crm"], "acme/crm", true),
            ("acme", &["acme/crm"], "acme/crmx", false),
            ("acme", &["acme/crm/"], "acme/crm", false),
            ("acme", &["billing/"], "billing/invoice", false),
            ("default", &["acme/"], "acme/billing", false),
        ] {
            assert_eq!(reach(tenant, prefixes).covers(scope), covered, "{tenant} {prefixes:?} {scope}");
        }
    }
}
