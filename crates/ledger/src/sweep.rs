//! What time alone does: lapsed leases, expired approvals, lookups out of time, purging, and what is due.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use twicesafe_core::{Action, Actor, Command, IntentId, Purge, Verdict};
use twicesafe_store::{Order, Stored};

use crate::error::Error;
use crate::ledger::{Ledger, new_command_id};

/// Most intents in one step of a sweep, so that a sweep never holds up claims for long.
const STEP_MAX: usize = 200;
/// Most steps in one sweep; the rest is for the next one.
const STEPS_MAX: usize = 50;
/// When to look again at an intent that could not be purged because others need it.
const PURGE_AGAIN: Duration = Duration::from_secs(3600);

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Leases, approvals and lookups that were over.
    pub expired: usize,
    /// Answers and tombstones dropped.
    pub purged: usize,
}

/// Sweeps until it is dropped.
pub struct Sweeps(AbortHandle);

impl Drop for Sweeps {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Ledger {
    /// Does once what time alone does. Safe to run anywhere, at any time, several at once.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        for _ in 0..STEPS_MAX {
            let awake = self.store().awake(STEP_MAX).await?;
            let applied = self.apply_all(&awake, &Action::Expire).await;
            let changed = applied.iter().filter(|(_, changed)| *changed).count();
            swept.expired += changed;
            if changed == 0 {
                break;
            }
        }
        for _ in 0..STEPS_MAX {
            let old = self.store().kept_too_long(STEP_MAX).await?;
            if old.is_empty() {
                break;
            }
            let applied = self.apply_all(&old, &Action::Purge(Purge { work_is_open: false })).await;
            if applied.is_empty() {
                break;
            }
            swept.purged += applied.iter().filter(|(_, changed)| *changed).count();
            let now = self.store().now().await?;
            let later = applied.iter().filter(|(_, changed)| !changed).filter_map(|(stored, _)| {
                let stored = stored.as_ref()?;
                Some((stored.id, stored.record.keep_until().max(now + PURGE_AGAIN)))
            });
            self.store().keep_until(later.collect()).await?;
        }
        self.store().flush().await?;
        Ok(swept)
    }

    /// Sweeps again and again, until what is returned is dropped.
    pub fn keep_sweeping(&self, every: Duration) -> Sweeps {
        let ledger = self.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                if let Err(error) = ledger.sweep().await {
                    tracing::warn!(code = %error.code(), "a sweep failed: {error}");
                }
            }
        });
        Sweeps(task.abort_handle())
    }

    /// Hands every intent of a scope whose next attempt or lookup is due to `act`, which claims it and does it. Returns how many
    /// there were. For those who can act without the first caller (S31).
    pub async fn each_due<F, Fut>(&self, scope: &str, act: F) -> Result<usize, Error>
    where
        F: Fn(Arc<Stored>) -> Fut,
        Fut: Future<Output = ()>,
    {
        let mut handed = 0;
        for line in self.store().due(scope, None, STEP_MAX).await? {
            if let Some(stored) = self.store().find_id(line.at.1).await? {
                act(Arc::new(stored)).await;
                handed += 1;
            }
        }
        Ok(handed)
    }

    /// What came of it, of those it could be applied to.
    async fn apply_all(&self, ids: &[IntentId], action: &Action) -> Vec<(Option<Arc<Stored>>, bool)> {
        let order = |id: &IntentId| {
            let command = Command { id: new_command_id(), actor: Actor::sweep(), action: action.clone() };
            Order::numbered(*id, command)
        };
        let results = self.store().apply(ids.iter().map(order).collect()).await;
        // Somebody's own transaction may keep one, for long. The others need not wait for that.
        let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        if let Some(Err(error)) = failed.first() {
            tracing::warn!(code = %error.code(), "{} could not be swept, the first because: {error}", failed.len());
        }
        let mut applied = Vec::with_capacity(done.len());
        for one in done.into_iter().flatten() {
            self.raise(&one);
            let changed = matches!(one.verdict, Verdict::Noted(noted) if noted.changed);
            applied.push((one.stored, changed));
        }
        applied
    }
}
