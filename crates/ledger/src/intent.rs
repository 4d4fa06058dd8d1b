//! One thing that should happen once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use twicesafe_core::{
    Actor, ApprovalRule, Finding, Fingerprint, InvalidName, LaneName, Name, OnMismatch, OnReview, Place,
    Policy, Recipe, Recovery, Step, VersionMeans,
};

use twicesafe_store::Stored;

use crate::attempt::Attempt;

/// Largest request kept for sending later.
pub const REQUEST_BYTES_MAX: usize = 8 << 20;
/// How long a duplicate waits for the first answer (S8).
const WAIT_DEFAULT: Duration = Duration::from_secs(25);

type LookupFuture = Pin<Box<dyn Future<Output = Finding> + Send>>;
pub(crate) type LookupFn = Arc<dyn Fn(Attempt) -> LookupFuture + Send + Sync>;
pub(crate) type LivesFn = Arc<dyn Fn(&str) -> bool + Send + Sync>;
type FingerprintFn = Arc<dyn Fn(&Recipe) -> Option<Fingerprint> + Send + Sync>;

/// One thing the business wants to happen once, and what is agreed about it.
///
/// The name is the scope and the key; everything else is frozen by the first claim. Without more, an unknown outcome is
/// left to a person ([`Recovery::Person`]).
#[derive(Clone)]
pub struct Intent {
    pub(crate) name: Name,
    pub(crate) input: Input,
    pub(crate) policy: Policy,
    pub(crate) place: Option<Place>,
    pub(crate) step: Option<Step>,
    pub(crate) request: Option<Bytes>,
    pub(crate) holder: Option<Actor>,
    pub(crate) wait: Duration,
    pub(crate) lookup: Option<LookupFn>,
    pub(crate) holder_lives: Option<LivesFn>,
    pub(crate) waits_for_people: bool,
    /// What is on record, as far as its caller has read.
    pub(crate) believed: Option<Arc<Stored>>,
    /// The generation that was read, for who carries it on.
    pub(crate) about: Option<u32>,
}

/// What the fingerprint is made of.
#[derive(Clone)]
pub(crate) enum Input {
    Bytes(Recipe, Bytes),
    Made(Recipe, FingerprintFn),
}

impl Input {
    /// The fingerprint by the recipe this input prefers, or by the one an earlier claim used.
    pub(crate) fn fingerprint(&self, recipe: Option<&Recipe>) -> Option<Fingerprint> {
        match self {
            Self::Bytes(preferred, bytes) => match recipe.unwrap_or(preferred) {
                recipe if recipe == preferred || *recipe == Recipe::raw() || *recipe == Recipe::json() => {
                    Some(Fingerprint::of(recipe, bytes))
                }
                _ => None,
            },
            Self::Made(preferred, make) => make(recipe.unwrap_or(preferred)),
        }
    }
}

impl Intent {
    /// The intent with that name: scope and key. The key must be the same on every retry: never a timestamp, a random
    /// id or the output of an AI step.
    pub fn new(scope: &str, key: &str) -> Result<Self, InvalidName> {
        Ok(Self::named(Name::new(scope, key)?))
    }

    /// The intent with that name.
    pub fn named(name: Name) -> Self {
        Self {
            name,
            input: Input::Bytes(Recipe::raw(), Bytes::new()),
            policy: Policy::default(),
            place: None,
            step: None,
            request: None,
            holder: None,
            wait: WAIT_DEFAULT,
            lookup: None,
            holder_lives: None,
            waits_for_people: false,
            believed: None,
            about: None,
        }
    }

    /// An intent as it is on record: for who carries it on without its first caller (S31). `None`: it was forgotten. What is claimed is
    /// believed to be so, and need not be looked for first; if it was corrected or started afresh meanwhile, the claim is refused
    /// ([`twicesafe_core::Refusal::Moved`]), so that what was read does not replace what was asked for since.
    pub fn on_record(stored: &Arc<Stored>) -> Option<Self> {
        let record = &stored.record;
        let fingerprint = record.fingerprint.clone()?;
        let mut intent = Self::named(record.name.clone()?).policy((*record.policy).clone());
        intent.place = record.place.clone();
        intent.step = record.step.clone();
        intent.believed = Some(stored.clone());
        intent.about = Some(record.generation);
        // Whatever the recipe: what is carried on is what was asked for.
        Some(intent.fingerprint(fingerprint.recipe().clone(), move |_| Some(fingerprint.clone())))
    }

    /// What it is called.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What is asked for. The same key with other input is refused.
    #[must_use]
    pub fn input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = Input::Bytes(Recipe::raw(), input.into());
        self
    }

    /// What is asked for, as JSON: spaces and the order of names do not matter.
    #[must_use]
    pub fn json_input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = Input::Bytes(Recipe::json(), input.into());
        self
    }

    /// What is asked for, by a recipe of the caller's own. `make` must be able to follow recipes it used before.
    #[must_use]
    pub fn fingerprint(
        mut self,
        recipe: Recipe,
        make: impl Fn(&Recipe) -> Option<Fingerprint> + Send + Sync + 'static,
    ) -> Self {
        self.input = Input::Made(recipe, Arc::new(make));
        self
    }

    /// What may be done about an unknown outcome.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.policy.recovery = recovery;
        self
    }

    /// How the destination can be asked whether it happened. Used only where the recovery class allows it.
    #[must_use]
    pub fn lookup<F, Fut>(mut self, lookup: F) -> Self
    where
        F: Fn(Attempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Finding> + Send + 'static,
    {
        self.lookup = Some(Arc::new(move |attempt| Box::pin(lookup(attempt))));
        self
    }

    /// The whole agreement.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long a permit is good for without a heartbeat.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self.policy.act_max = self.policy.act_max.max(lease);
        self
    }

    /// Attempts in one round.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.policy.attempts_max = attempts;
        self
    }

    /// How long the answer is kept after settling.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.policy.retention = retention;
        self
    }

    /// A person must say yes first.
    #[must_use]
    pub fn approval(mut self, rule: ApprovalRule) -> Self {
        self.policy.approval = Some(rule);
        self
    }

    /// What the same key with other input gets.
    #[must_use]
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> Self {
        self.policy.on_mismatch = on_mismatch;
        self
    }

    /// Touches a shared entity: one intent at a time.
    pub fn lane(mut self, entity: &str, version: Option<i64>) -> Result<Self, InvalidName> {
        self.place = Some(Place { lane: LaneName::new(entity)?, version });
        Ok(self)
    }

    /// What the version in the lane means, and whether an intent in review lets the others pass.
    #[must_use]
    pub fn lane_rules(mut self, version_means: VersionMeans, on_review: OnReview) -> Self {
        self.policy.version_means = version_means;
        self.policy.on_review = on_review;
        self
    }

    /// A step of a unit of work.
    pub fn step(mut self, work: &str, step: &str) -> Result<Self, InvalidName> {
        self.step = Some(Step::new(work, step)?);
        Ok(self)
    }

    /// What would be sent, kept so that it can be sent later without its caller. Without credentials.
    #[must_use]
    pub fn request(mut self, request: impl Into<Bytes>) -> Self {
        self.request = Some(request.into());
        self
    }

    /// Which process acts, where that says more than who asks.
    #[must_use]
    pub fn holder(mut self, holder: Actor) -> Self {
        self.holder = Some(holder);
        self
    }

    /// How to see whether a holder, by the name it gave itself, still lives. As long as it does nobody else is given leave,
    /// whatever its lease says.
    #[must_use]
    pub fn holder_lives(mut self, lives: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.holder_lives = Some(Arc::new(lives));
        self
    }

    /// While it is held, wait for a person's yes as for anything else.
    #[must_use]
    pub fn wait_for_people(mut self) -> Self {
        self.waits_for_people = true;
        self
    }

    /// How long to wait for another's answer, a lane or a due time before giving up with [`crate::Error::Pending`].
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}
