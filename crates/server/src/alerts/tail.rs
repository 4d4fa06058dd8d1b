//! Puts it before people that the database lost acknowledged writes (S43): as an intent in review, so that everybody who decides reviews is
//! told, and it stays until somebody says that it was dealt with.

use std::time::Duration;

use twicesafe_ledger::{Error, Intent, Ledger, Recovery, Timestamp, Trouble};

/// The scope of these intents. Their key is since when writes are missing.
pub(super) const SCOPE: &str = "ledger/tail.lost";

/// Puts a loss that this process noticed into review, once. `told`: since when writes were said to be missing before.
pub(super) async fn put_before_people(ledger: &Ledger, told: &mut Option<Timestamp>) -> Result<(), Error> {
    let Some(since) = ledger.store().lost_since().filter(|since| Some(*since) != *told) else {
        return Ok(());
    };
    let Ok(intent) = Intent::new(SCOPE, &since.to_string()) else { return Ok(()) };
    let intent = intent.recovery(Recovery::Person).wait(Duration::ZERO);
    // Nothing is done: that nobody knows what is missing is all there is to say.
    let lost = |_| async { Err(Trouble::unknown("the database lost writes that it had acknowledged")) };
    match ledger.run(intent, lost).await {
        Err(error @ Error::Store(_)) => Err(error),
        _ => {
            *told = Some(since);
            Ok(())
        }
    }
}
