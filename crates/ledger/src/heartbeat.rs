//! Keeps a lease alive while the act goes on (S10).

use std::time::Duration;

use tokio::task::AbortHandle;
use twicesafe_core::{Action, Refusal, Renew, Verdict};
use twicesafe_store::{Order, Tick};

use crate::attempt::Attempt;
use crate::ledger::Ledger;

/// Beats until it is dropped.
pub(crate) struct Heartbeat(AbortHandle);

impl Heartbeat {
    pub(crate) fn start(ledger: Ledger, attempt: Attempt) -> Self {
        Self(tokio::spawn(beat(ledger, attempt)).abort_handle())
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(ledger: Ledger, attempt: Attempt) {
    let lease = attempt.permit().lease;
    let mut pause = lease / 3;
    loop {
        tokio::time::sleep(pause).await;
        let since = Tick::now();
        let (fence, secret) = (attempt.permit().fence, attempt.permit().secret);
        let command = ledger.command(Action::Renew(Renew { fence, secret, holder: None }));
        let order = Order::believing(attempt.believed(), command);
        match ledger.store().apply_one(order).await {
            Ok(applied) => match (applied.verdict, applied.stored) {
                (Verdict::Proceed(renewed), Some(stored)) => {
                    attempt.renewed(since, &renewed, stored);
                    pause = lease / 3;
                }
                (Verdict::Refuse(refusal), _) => {
                    let code = refusal.code();
                    tracing::warn!(%code, intent = %attempt.believed().id, "the lease is not extended any more: {refusal}");
                    if refusal != Refusal::ActMax {
                        return;
                    }
                    pause = lease;
                }
                _ => return,
            },
            // The send-by bounds what can still go wrong; try again while there is time.
            Err(error) => {
                tracing::warn!(code = %error.code(), "a heartbeat was not written: {error}");
                pause = (lease / 12).max(Duration::from_millis(10));
            }
        }
    }
}
