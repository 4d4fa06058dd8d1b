//! Twicesafe's store as something to measure: claim and settle, as the library does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use twicesafe_core::{
    Action, Actor, Answer, Claim, Command, CommandId, Fingerprint, Grant, Name, Outcome, Policy, Recipe,
    Report, Salt, Settle, Verdict,
};
use twicesafe_store::{Address, Options, Order, Store};

use crate::harness::{FILLED, Key, Subject};

pub(crate) const ANSWER_BYTES: usize = 1024;
pub(crate) const SCOPE: &str = "default/live/payments/charge.create";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) store: Store,
    policy: Arc<Policy>,
    actor: Actor,
    answer: Answer,
    prefix: Arc<str>,
}

impl Guarded {
    pub(crate) async fn sqlite(path: &Path, batch_max: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let options = Options { batch_max, ..Options::default() };
        Self::open(&Address::Sqlite(path.to_owned()), options, Policy::default()).await
    }

    pub(crate) async fn open(
        address: &Address,
        options: Options,
        policy: Policy,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self {
            store: Store::open(address, options).await?,
            policy: Arc::new(policy),
            actor: Actor::new("bench")?,
            answer: Answer::of(vec![b'r'; ANSWER_BYTES]),
            prefix: "".into(),
        })
    }

    /// The same store with keys of its own, so that measurements one after the other do not meet.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Self {
        Self { prefix: prefix.into(), ..self.clone() }
    }

    /// Makes the intents that repetitions ask for.
    pub(crate) async fn fill(&self, intents: u64) -> Result<(), Box<dyn std::error::Error>> {
        self.fill_from(0, intents.max(FILLED)).await
    }

    pub(crate) async fn fill_from(&self, from: u64, to: u64) -> Result<(), Box<dyn std::error::Error>> {
        let next = Arc::new(std::sync::atomic::AtomicU64::new(from));
        let callers: Vec<_> = (0..512)
            .map(|_| {
                let (next, subject) = (next.clone(), self.clone());
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    loop {
                        let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if number >= to {
                            return Ok::<_, Failure>(());
                        }
                        subject
                            .effect(Key { asked_by: 0, caller: 0, number, by_chance: false }, &mut took)
                            .await?;
                        took.clear();
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn command(&self, action: Action, random: &mut u128) -> Command {
        *random += 1;
        Command { id: CommandId::new(random.to_be_bytes()), actor: self.actor.clone(), action }
    }
}

impl Subject for Guarded {
    async fn effect(&self, key: Key, took: &mut Vec<Duration>) -> Result<(), Failure> {
        let started = Instant::now();
        let name = Name::new(SCOPE, &format!("{}{}", self.prefix, key.text()))?;
        let mut random =
            (key.caller as u128) << 80 | u128::from(key.number) << 8 | (took.len() as u128) << 96;
        let claim = Claim {
            name: name.clone(),
            fingerprint: Fingerprint::of(&Recipe::raw(), b"{\"amount\":1200,\"currency\":\"eur\"}"),
            policy: self.policy.clone(),
            place: None,
            step: None,
            request: None,
            salt: Salt(random.to_be_bytes()),
            holder: None,
            grant: Grant::Permit,
            about: None,
        };
        let command = self.command(Action::Claim(Box::new(claim)), &mut random);
        let applied = self.store.apply_one(Order::named(name, command)).await?;
        took.push(started.elapsed());
        let permit = match applied.verdict {
            Verdict::Proceed(permit) => permit,
            Verdict::Replay(replay) => {
                let bytes = replay.answer.as_ref().and_then(Answer::bytes).map_or(0, bytes::Bytes::len);
                assert_eq!(bytes, ANSWER_BYTES, "a repeated key has its answer");
                return Ok(());
            }
            other => return Err(format!("neither a permit nor an answer: {other:?}").into()),
        };
        let started = Instant::now();
        let settle = Settle {
            fence: permit.fence,
            generation: permit.generation,
            secret: permit.secret,
            report: Report::Act(Outcome::Answered(self.answer.clone())),
        };
        let command = self.command(Action::Settle(settle), &mut random);
        let believed = applied.stored.ok_or("a permit for nothing")?;
        self.store.apply_one(Order::believing(believed, command)).await?;
        took.push(started.elapsed());
        Ok(())
    }
}
