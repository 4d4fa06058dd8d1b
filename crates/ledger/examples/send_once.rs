//! Sends one order to a small shop, once, however often this program is started.
//!
//! ```text
//! cargo run -p twicesafe-ledger --example send_once -- sqlite:ledger.db shop.txt order:10492 lookup
//! ```
//!
//! The shop is a text file with one line an effect. Start it twice, start two at once, or kill it: with a third word
//! `pause-after-claim` or `pause-after-send` it stops there and waits to be killed. Then start it again and look into the
//! shop. The last word is the recovery class: what may be done when nobody knows whether the first one was sent.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use twicesafe_ledger::{Answer, Attempt, Error, Finding, Intent, Ledger, Lookup, Policy, Recovery, Trouble};

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match order().await {
        Ok(line) => {
            say(&line);
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            say(&format!("no answer: {error}"));
            std::process::ExitCode::FAILURE
        }
    }
}

async fn order() -> Result<String, Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, shop, key, class, rest @ ..] = words.as_slice() else {
        return Err("usage: send_once LEDGER SHOP-FILE KEY repeat|native-key|lookup|person [pause-after-claim|pause-after-send]".into());
    };
    let pause = rest.first().cloned().unwrap_or_default();
    let shop = PathBuf::from(shop);
    let ledger = Ledger::open(address).await?;

    let intent = Intent::new("shop/order.send", key)?.input("1 pair of socks").policy(policy(class)?);
    let asked = shop.clone();
    let intent = intent.lookup(move |attempt| {
        let shop = asked.clone();
        async move { ask(&shop, &attempt) }
    });
    let native = class == "native-key";
    let given =
        ledger.run_retrying(intent, move |attempt| send(shop.clone(), attempt, native, pause.clone())).await;
    match given {
        Ok(given) => {
            let id = given
                .answer
                .and_then(|answer| answer.external_id)
                .map_or_else(String::new, |id| id.as_str().to_owned());
            Ok(format!("{} {id}", if given.replayed { "sent before:" } else { "sent now:" }))
        }
        Err(Error::Review) => Ok("in review: a person must look into the shop".to_owned()),
        Err(error) => Err(error.into()),
    }
}

/// Short times, so that one can watch. Real destinations need the defaults.
fn policy(class: &str) -> Result<Policy, String> {
    let lookup = Lookup { lag: Duration::from_millis(50), lookup_for: Duration::from_secs(10) };
    let recovery = match class {
        "repeat" => Recovery::Repeat,
        "native-key" => Recovery::NativeKey { retention: Duration::from_secs(3600), lookup: None },
        "lookup" => Recovery::Lookup(lookup),
        "person" => Recovery::Person,
        other => return Err(format!("`{other}` is not a recovery class")),
    };
    let mut policy = Policy::new(recovery);
    policy.lease = Duration::from_millis(800);
    policy.in_flight_max = Duration::from_millis(200);
    policy.backoff.base = Duration::from_millis(50);
    Ok(policy)
}

async fn send(shop: PathBuf, attempt: Attempt, native: bool, pause: String) -> Result<Answer, Trouble> {
    if pause == "pause-after-claim" {
        wait_to_be_killed().await;
    }
    attempt.check_send()?;
    // A shop with native keys deduplicates by itself; the others make an order of whatever arrives.
    let known = std::fs::read_to_string(&shop).unwrap_or_default();
    if !(native && known.contains(&attempt.destination_key())) {
        let mut file = std::fs::File::options().create(true).append(true).open(&shop)?;
        file.write_all(format!("{} {}\n", attempt.name().key, attempt.destination_key()).as_bytes())?;
        file.sync_all()?;
    }
    if pause == "pause-after-send" {
        wait_to_be_killed().await;
    }
    Ok(Answer::of("thank you").with_external_id(&attempt.destination_key()[..8]))
}

/// Asks the shop whether the order arrived.
fn ask(shop: &Path, attempt: &Attempt) -> Finding {
    match std::fs::read_to_string(shop) {
        Ok(orders) if orders.contains(&attempt.destination_key()) => {
            Finding::Found(Answer::of("found").with_external_id(&attempt.destination_key()[..8]))
        }
        Ok(_) => Finding::NotFound,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Finding::NotFound,
        Err(error) => Finding::Silent { reason: error.to_string().into() },
    }
}

async fn wait_to_be_killed() {
    say("paused");
    tokio::time::sleep(Duration::from_secs(600)).await;
}

fn say(line: &str) {
    // Whoever started this may be gone.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
