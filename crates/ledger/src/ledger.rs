//! The ledger: opening it, claiming, settling, looking.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, watch};
use twicesafe_core::{
    Action, Actor, Alert, Answer, Ask, Claim, Command, CommandId, Fingerprint, Grant, IntentId, Name, Notice,
    Outcome, Policy, Recipe, Refusal, Renew, Report, Salt, Settle, Source, Status, Timestamp, Verdict, Wait,
    WaitCause,
};
use twicesafe_store::{
    Address, Applied, Dossier, LedgerSecret, Options, Order, Store, StoreError, Stored, Tick,
};

use crate::attempt::{Attempt, Permit};
use crate::error::Error;
use crate::finish::Leftover;
use crate::heartbeat::Heartbeat;
use crate::intent::{Input, Intent, REQUEST_BYTES_MAX};
use crate::remote::Beliefs;
use crate::run::ANSWER_BYTES_MAX;
use crate::suspicion::Suspicion;

/// How long a report is tried to be stored when the store is away. What is known is worth some patience: without it
/// the intent is in doubt (S20).
const SETTLE_PATIENCE: Duration = Duration::from_secs(60);
const SETTLE_PAUSE: Duration = Duration::from_millis(200);
/// Alarms kept for a listener that is slow.
const ALARMS_MAX: usize = 1024;

/// Changes kept for a listener that is slow.
const CHANGES_MAX: usize = 4096;

/// A ledger of side effects, as used by somebody. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
    actor: Actor,
}

struct Inner {
    store: Store,
    alarms: broadcast::Sender<Alarm>,
    changes: broadcast::Sender<Arc<Stored>>,
    /// Those of them that are ready now. Apart, because most are not, and whoever waits for these would be woken for all.
    made_ready: broadcast::Sender<Arc<Stored>>,
    suspicion: Suspicion,
    beliefs: Beliefs,
    /// Acts and lookups that are under way here.
    under_way: watch::Sender<usize>,
    leftover: Leftover,
    settle_patience: Duration,
}

/// How a ledger is opened.
pub struct Open {
    address: String,
    actor: Option<Actor>,
    options: Options,
    settle_patience: Duration,
}

impl Open {
    /// A ledger at that address: `sqlite:PATH`, `postgres://USER@HOST/DATABASE` or `memory:`.
    pub fn at(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            actor: None,
            options: Options::default(),
            settle_patience: SETTLE_PATIENCE,
        }
    }

    /// Who acts, for the journal. Otherwise this process.
    #[must_use]
    pub fn actor(mut self, actor: Actor) -> Self {
        self.actor = Some(actor);
        self
    }

    /// The machine's clocks, for tests. A shared database has its own.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn twicesafe_store::Clock>) -> Self {
        self.options.clock = clock;
        self
    }

    /// The size a SQLite ledger may grow to.
    #[must_use]
    pub fn bytes_max(mut self, bytes_max: u64) -> Self {
        self.options.bytes_max = Some(bytes_max);
        self
    }

    /// How long what came of an act is tried to be stored while the ledger cannot be written: a minute unless said otherwise. After
    /// that it is [`Error::NotRecorded`].
    #[must_use]
    pub fn settle_patience(mut self, settle_patience: Duration) -> Self {
        self.settle_patience = settle_patience;
        self
    }

    /// Keeps what was settled or replayed lately in memory, up to 64 MB: for a process that stays and opens one ledger. Of a SQLite
    /// file it takes two descriptors until the process ends. No difference but speed: whether it is still so is asked each time.
    #[must_use]
    pub fn remembering(mut self) -> Self {
        self.options.remember = true;
        self
    }

    /// The ledger's secret, of at least 16 bytes: for a ledger in PostgreSQL the same for all who open it. A ledger in a file has one in a
    /// file beside it, unless this one is given when it is made.
    #[must_use]
    pub fn secret(mut self, secret: LedgerSecret) -> Self {
        self.options.secret = Some(secret);
        self
    }

    /// Opens it, making or migrating it where needed. It belongs to no runtime: a ledger on disk or in a database has a thread of its
    /// own for what must go on, and can be used from any runtime with timers.
    pub async fn open(self) -> Result<Ledger, Error> {
        let address = Address::parse(&self.address)?;
        let actor = match self.actor {
            Some(actor) => actor,
            None => Actor::new(&format!("process:{}", std::process::id()))?,
        };
        let store = Store::open(&address, self.options).await?;
        Ok(Ledger::of(store, actor, self.settle_patience))
    }
}

/// Something that is under way: a claim, an act, a lookup.
pub struct UnderWay(Ledger);

impl UnderWay {
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.inner.under_way.send_modify(|count| *count -= 1);
    }
}

/// Something an owner should be told.
#[derive(Clone, Debug)]
pub struct Alarm {
    /// About which intent.
    pub intent: IntentId,
    /// What it is called, unless it was forgotten.
    pub name: Option<Name>,
    /// What it is about.
    pub alert: Alert,
}

/// An answer, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// What the destination said. `None`: a person said that it happened, and no more is known.
    pub answer: Option<Answer>,
    /// Whether this is the first answer given again.
    pub replayed: bool,
    /// How it came to be known.
    pub source: Source,
    /// The input differs from the first one, and the policy says to answer all the same.
    pub mismatch: bool,
    /// The intent's number.
    pub intent: IntentId,
    /// Its generation.
    pub generation: u32,
    /// How many attempts its last round took.
    pub attempts: u32,
    /// Until when the answer is kept.
    pub kept_until: Option<Timestamp>,
}

/// What a claim came to.
pub enum Claimed {
    /// Act now, once.
    Proceed(Permit),
    /// It is done; this is the first answer.
    Replay(Given),
    /// The destination had said no; the refusal is given again.
    Refused(Given),
    /// Not now.
    Wait {
        /// When to ask again.
        retry_after: Duration,
        /// What for.
        cause: WaitCause,
        /// What is known of the intent, to wait for a change of.
        known: Option<(IntentId, i64)>,
    },
    /// A person must say yes first.
    Hold {
        /// Until when, in ledger time.
        expires_at: Timestamp,
    },
    /// It may or may not have happened; a person decides.
    Review,
}

impl Ledger {
    /// Opens the ledger at an address; see [`Open::open`].
    pub async fn open(address: &str) -> Result<Self, Error> {
        Open::at(address).open().await
    }

    /// The ledger in a store that is open already.
    pub fn on(store: Store, actor: Actor) -> Self {
        Self::of(store, actor, SETTLE_PATIENCE)
    }

    fn of(store: Store, actor: Actor, settle_patience: Duration) -> Self {
        let (alarms, _) = broadcast::channel(ALARMS_MAX);
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let (made_ready, _) = broadcast::channel(CHANGES_MAX);
        let (suspicion, beliefs, leftover) = Default::default();
        let (under_way, _) = watch::channel(0);
        let inner = Inner {
            store,
            alarms,
            changes,
            made_ready,
            suspicion,
            beliefs,
            under_way,
            leftover,
            settle_patience,
        };
        Self { inner: Arc::new(inner), actor }
    }

    /// Notes that something is under way, until what is returned is dropped: [`Ledger::at_rest`] waits for it.
    #[must_use = "it is under way as long as this lives"]
    pub fn begin(&self) -> UnderWay {
        self.inner.under_way.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }

    /// Waits until everything that was begun here is settled: acts go on when their callers have left (S13), and a process
    /// that ends meanwhile leaves them in doubt. What needs no more than the ledger, to store an outcome or to give back a permit
    /// that nobody used, is done without this, too: a runtime that ends waits for it for up to 5 s.
    pub async fn at_rest(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.inner.under_way.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Its store: queries, and commands for those who know what they do.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Who acts.
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn with_actor(&self, actor: Actor) -> Self {
        Self { inner: self.inner.clone(), actor }
    }

    pub(crate) fn leftover(&self) -> &Leftover {
        &self.inner.leftover
    }

    pub(crate) fn beliefs(&self) -> &Beliefs {
        &self.inner.beliefs
    }

    /// What becomes of intents by commands of this process, from now on.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.inner.changes.subscribe()
    }

    /// What becomes ready by commands of this process, from now on: accepted, or somebody said yes.
    pub fn made_ready(&self) -> broadcast::Receiver<Arc<Stored>> {
        self.inner.made_ready.subscribe()
    }

    /// What owners should be told, from now on.
    pub fn alarms(&self) -> broadcast::Receiver<Alarm> {
        self.inner.alarms.subscribe()
    }

    /// Claims an intent: leave to act, or what came of it. Does not wait. Dropped before it is done, it gives a permit back.
    pub async fn claim(&self, intent: &Intent) -> Result<Claimed, Error> {
        let started = Tick::now();
        let told = self.claim_for_one_who_may_leave(intent, started).await?;
        self.claimed(intent, started, told.into_applied())
    }

    /// Accepts an intent without acting: somebody claims it when it is due.
    pub async fn accept(&self, intent: &Intent, due_in: Duration) -> Result<Claimed, Error> {
        self.claim_with(intent, new_command_id(), Grant::Accept { due_in }).await
    }

    /// Claims with a command id of the caller's, which makes the claim itself safe to repeat (S12).
    pub async fn claim_with(&self, intent: &Intent, id: CommandId, grant: Grant) -> Result<Claimed, Error> {
        let started = Tick::now();
        let applied = self.claim_applied(intent, id, grant).await?;
        self.claimed(intent, started, applied)
    }

    pub(crate) async fn claim_applied(
        &self,
        intent: &Intent,
        id: CommandId,
        grant: Grant,
    ) -> Result<Applied, Error> {
        let mut order = Order::named(intent.name.clone(), self.claim_command(intent, id, grant)?);
        order.believed = intent.believed.clone();
        let mut applied = self.apply(order).await?;
        if let Verdict::Recompute(recipe) = &applied.verdict {
            let command = self.claim_command_by(recipe, intent, id, grant)?;
            applied = self.apply(Order::named(intent.name.clone(), command)).await?;
        }
        self.tell_notices(intent, &applied);
        Ok(applied)
    }

    /// The same claim with its fingerprint made by the recipe of the first one (S4).
    pub(crate) fn claim_command_by(
        &self,
        recipe: &Recipe,
        intent: &Intent,
        id: CommandId,
        grant: Grant,
    ) -> Result<Command, Error> {
        let mut command = self.claim_command(intent, id, grant)?;
        let again = intent.input.fingerprint(Some(recipe));
        let fingerprint = again.ok_or_else(|| Error::Recipe(recipe.as_str().to_owned()))?;
        if let Action::Claim(claim) = &mut command.action {
            claim.fingerprint = fingerprint;
        }
        Ok(command)
    }

    pub(crate) fn claim_command(
        &self,
        intent: &Intent,
        id: CommandId,
        grant: Grant,
    ) -> Result<Command, Error> {
        intent.policy.check()?;
        if let Some(bytes) =
            intent.request.as_ref().map(bytes::Bytes::len).filter(|bytes| *bytes > REQUEST_BYTES_MAX)
        {
            return Err(Error::TooLarge { bytes, bytes_max: REQUEST_BYTES_MAX });
        }
        let fingerprint =
            intent.input.fingerprint(None).ok_or_else(|| Error::Recipe("of the caller's own".to_owned()))?;
        Ok(self.claim_by(intent, fingerprint, Arc::new(intent.policy.clone()), id, grant))
    }

    pub(crate) fn claim_by(
        &self,
        intent: &Intent,
        fingerprint: Fingerprint,
        policy: Arc<Policy>,
        id: CommandId,
        grant: Grant,
    ) -> Command {
        let claim = Claim {
            name: intent.name.clone(),
            fingerprint,
            policy,
            place: intent.place.clone(),
            step: intent.step.clone(),
            request: intent.request.clone(),
            salt: Salt(random()),
            holder: intent.holder.clone(),
            grant,
            about: intent.about,
        };
        Command { id, actor: self.actor.clone(), action: Action::Claim(Box::new(claim)) }
    }

    pub(crate) fn tell_notices(&self, intent: &Intent, applied: &Applied) {
        let caller = &self.actor;
        for notice in &applied.notices {
            match notice {
                Notice::SuspiciousKey(why) => {
                    tracing::warn!(code = "TS0007", %caller, scope = %intent.name.scope, "the key may differ on the next run: {why}");
                }
                Notice::PolicyDiffers => {
                    tracing::warn!(code = "TS0006", %caller, scope = %intent.name.scope, "the policy of the first claim stands");
                }
            }
        }
        // Most claims of a busy ledger are replays: what is looked at for others only must not cost them anything.
        if let (Verdict::Proceed(_), Some(fingerprint)) =
            (&applied.verdict, applied.stored.as_ref().and_then(|stored| stored.record.fingerprint.as_ref()))
            && !intent.policy.unattended
            && intent.name.key.suspicion().is_none()
        {
            let empty = matches!(&intent.input, Input::Bytes(_, bytes) if bytes.is_empty());
            if self.inner.suspicion.notice(&intent.name, fingerprint, empty) {
                tracing::warn!(code = "TS0007", %caller, scope = %intent.name.scope, "the same input came under another key within the hour");
            }
        }
    }

    pub(crate) fn claimed(&self, intent: &Intent, started: Tick, applied: Applied) -> Result<Claimed, Error> {
        let known = applied.stored.as_ref().map(|stored| (stored.id, stored.version));
        Ok(match applied.verdict {
            Verdict::Proceed(permit) => {
                let stored = applied.stored.ok_or_else(|| damaged("a permit for nothing"))?;
                let attempt = Attempt::new(intent.name.clone(), permit, started, stored);
                let heartbeat = Heartbeat::start(self.clone(), attempt.clone());
                Claimed::Proceed(Permit { ledger: self.clone(), attempt, heartbeat })
            }
            Verdict::Replay(replay) => {
                let stored = applied.stored.ok_or_else(|| damaged("an answer to nothing"))?;
                let given = given(&stored, true, replay.mismatch);
                if replay.refused { Claimed::Refused(given) } else { Claimed::Replay(given) }
            }
            Verdict::Wait(Wait { until, cause }) => {
                Claimed::Wait { retry_after: until.since(applied.at), cause, known }
            }
            Verdict::Hold(hold) => Claimed::Hold { expires_at: hold.expires_at },
            Verdict::Review => Claimed::Review,
            Verdict::Refuse(refusal) => return Err(refusal.into()),
            Verdict::Recompute(recipe) => return Err(Error::Recipe(recipe.as_str().to_owned())),
            Verdict::Noted(_) => return Err(damaged("a claim was only noted").into()),
        })
    }

    /// Asks for leave to look up whether an intent in doubt happened. `None`: not now.
    pub(crate) async fn ask(&self, name: &Name, id: IntentId) -> Result<Option<Permit>, Error> {
        let started = Tick::now();
        let applied = self.apply(Order::numbered(id, self.command(Action::Ask(Ask)))).await?;
        match (applied.verdict, applied.stored) {
            (Verdict::Proceed(permit), Some(stored)) => {
                let attempt = Attempt::new(name.clone(), permit, started, stored);
                let heartbeat = Heartbeat::start(self.clone(), attempt.clone());
                Ok(Some(Permit { ledger: self.clone(), attempt, heartbeat }))
            }
            _ => Ok(None),
        }
    }

    /// Stores a report, patiently: the same command is sent again until the store has it.
    pub(crate) async fn settle(&self, attempt: &Attempt, report: Report) -> Result<Arc<Stored>, Error> {
        let permit = attempt.permit();
        let report = report.limited(ANSWER_BYTES_MAX);
        // Without doubt only a holder that says so has sent nothing.
        let may_have_acted = permit.doubt || !matches!(report, Report::Act(Outcome::NotSent { .. }));
        let (fence, generation, secret) = (permit.fence, permit.generation, permit.secret);
        let settle = Settle { fence, generation, secret, report };
        let command = self.command(Action::Settle(settle));
        let started = Tick::now();
        loop {
            match self.apply(Order::believing(attempt.believed(), command.clone())).await {
                Ok(applied) => {
                    return match (applied.verdict, applied.stored) {
                        (Verdict::Refuse(gone), _) if may_have_acted && is_record_gone(&gone) => {
                            Err(Error::NotRecorded(damaged(&format!(
                                "the record of what was sent is gone: {gone}"
                            ))))
                        }
                        (Verdict::Refuse(refusal), _) => Err(refusal.into()),
                        (_, Some(stored)) => Ok(stored),
                        (_, None) => Err(damaged("what was settled is not there").into()),
                    };
                }
                Err(Error::Store(error)) if started.elapsed() < self.inner.settle_patience => {
                    tracing::error!(code = %error.code(), intent = %attempt.believed().id, "an outcome is not stored yet: {error}");
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                Err(Error::Store(error)) if may_have_acted => return Err(Error::NotRecorded(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Notes which process acts under a permit, where that has become known only after the claim.
    pub async fn name_holder(&self, attempt: &Attempt, holder: Actor) -> Result<(), Error> {
        let since = Tick::now();
        let (fence, secret) = (attempt.permit().fence, attempt.permit().secret);
        let renew = Renew { fence, secret, holder: Some(holder) };
        let applied =
            self.apply(Order::believing(attempt.believed(), self.command(Action::Renew(renew)))).await?;
        match (applied.verdict, applied.stored) {
            (Verdict::Proceed(renewed), Some(stored)) => attempt.renewed(since, &renewed, stored),
            (Verdict::Refuse(refusal), _) => return Err(refusal.into()),
            _ => {}
        }
        Ok(())
    }

    /// What is believed of an intent. Decides first what time alone has decided (S24).
    pub async fn look(&self, name: &Name) -> Result<Option<Arc<Stored>>, Error> {
        let Some(stored) = self.inner.store.find(name).await? else { return Ok(None) };
        if stored.record.wake_at() > self.inner.store.now().await? {
            return Ok(Some(Arc::new(stored)));
        }
        let command = Command { id: new_command_id(), actor: Actor::sweep(), action: Action::Expire };
        let applied = self.apply(Order::believing(Arc::new(stored), command)).await?;
        Ok(applied.stored)
    }

    /// Everything about one intent, with its journal.
    pub async fn dossier(&self, name: &Name) -> Result<Option<Dossier>, Error> {
        self.look(name).await?;
        Ok(self.inner.store.dossier(name).await?)
    }

    pub(crate) fn command(&self, action: Action) -> Command {
        Command { id: new_command_id(), actor: self.actor.clone(), action }
    }

    /// Applies a command, and passes on what owners should be told.
    pub(crate) async fn apply(&self, order: Order) -> Result<Applied, Error> {
        let applied = self.inner.store.apply_one(order).await?;
        self.raise(&applied);
        Ok(applied)
    }

    pub(crate) fn raise(&self, applied: &Applied) {
        let Some(stored) = &applied.stored else { return };
        if applied.changed && self.inner.changes.receiver_count() > 0 {
            // Whoever listened may be gone by now.
            let _ = self.inner.changes.send(stored.clone());
        }
        if applied.changed
            && stored.record.status == Status::Ready
            && self.inner.made_ready.receiver_count() > 0
        {
            let _ = self.inner.made_ready.send(stored.clone());
        }
        for alert in &applied.alerts {
            tracing::warn!(intent = %stored.id, ?alert, "somebody should look");
            let alarm = Alarm { intent: stored.id, name: stored.record.name.clone(), alert: alert.clone() };
            // Nobody may be listening.
            let _ = self.inner.alarms.send(alarm);
        }
    }
}

/// The answer in a record.
pub(crate) fn given(stored: &Stored, replayed: bool, mismatch: bool) -> Given {
    let record = &stored.record;
    Given {
        answer: record
            .answer
            .clone()
            .filter(|_| record.source != Some(Source::Person) || has_content(record.answer.as_ref())),
        replayed,
        source: record.source.unwrap_or(Source::Act),
        mismatch,
        intent: stored.id,
        generation: record.generation,
        attempts: record.tries,
        kept_until: record.settled_at.map(|settled_at| settled_at + record.policy.retention),
    }
}

fn has_content(answer: Option<&Answer>) -> bool {
    answer.is_some_and(|answer| *answer != Answer::default())
}

/// Returns whether a report was refused because its record is not the one it was made for: lost, or changed by something else.
fn is_record_gone(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NoSuchIntent | Refusal::NotHolder | Refusal::Altered)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.to_owned())
}

/// A fresh id for a command.
pub fn new_command_id() -> CommandId {
    CommandId::new(random())
}

/// Random bytes, taken from the system some hundred at a time.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    const AT_A_TIME: usize = 512;
    thread_local! {
        static LEFT: RefCell<(usize, [u8; AT_A_TIME])> = const { RefCell::new((0, [0; AT_A_TIME])) };
    }
    LEFT.with_borrow_mut(|(left, bytes)| {
        if *left < N {
            getrandom::fill(bytes).expect("a system without randomness cannot run anything safely");
            *left = AT_A_TIME;
        }
        *left -= N;
        let mut taken = [0; N];
        taken.copy_from_slice(&bytes[*left..*left + N]);
        // Given once.
        bytes[*left..*left + N].fill(0);
        taken
    })
}
