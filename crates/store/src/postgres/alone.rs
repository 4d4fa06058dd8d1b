//! One command in a transaction of its own: where a lane has to be locked before anything can be decided, where somebody
//! else's transaction is in the way, and inside the caller's own transaction (see `guard`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use twicesafe_core::{Action, IntentId, Place, Purge, Timestamp, Verdict, Wait, WaitCause};

use super::Shared;
use super::columns::{Line, get};
use super::connect::Failure;
use super::read;
use super::write::{self, Manner};
use crate::error::StoreError;
use crate::plan::{Applied, Change, Order, Planned, Queued, Stored, plan};
use crate::tally::Tally;
use crate::{NameHash, plan::Target};

/// How often a decision is made anew because the intent changed meanwhile.
const DECISIONS_MAX: usize = 10;
/// How often a transaction is tried again because somebody was in the way.
const TURNS_MAX: u32 = 5;
/// When to come back to a name that another transaction has claimed and not committed yet.
const HELD_FOR: Duration = Duration::from_secs(1);

/// Applies one command in a transaction of its own.
pub(super) async fn apply(
    client: &Client,
    shared: &Shared,
    order: &Order,
    manner: &Manner,
) -> Result<Applied, Failure> {
    let mut turn = 0;
    loop {
        match transaction(client, shared, order, manner).await {
            Err(Failure::InTheWay) if turn < TURNS_MAX => {
                turn += 1;
                tokio::time::sleep(Duration::from_millis(u64::from(shared.dice.roll() % (10 << turn)))).await;
            }
            other => return other,
        }
    }
}

async fn transaction(
    client: &Client,
    shared: &Shared,
    order: &Order,
    manner: &Manner,
) -> Result<Applied, Failure> {
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let applied = async {
        if matches!(order.command.action, Action::Claim(_)) && !may_share_name(client, shared, order).await? {
            return Ok(held(shared.now(client).await?));
        }
        inside(client, shared, order, manner).await
    };
    match applied.await {
        Ok(applied) => {
            client.batch_execute("COMMIT").await?;
            Ok(applied)
        }
        Err(failure @ Failure::Lost(_)) => Err(failure),
        Err(failure) => {
            client.batch_execute("ROLLBACK").await?;
            Err(failure)
        }
    }
}

/// Somebody's own transaction has the name; what comes of it is known when it ends.
pub(super) fn held(now: Timestamp) -> Applied {
    Applied {
        verdict: Verdict::Wait(Wait { until: now + HELD_FOR, cause: WaitCause::Pending }),
        stored: None,
        alerts: Vec::new(),
        notices: Vec::new(),
        at: now,
    }
}

/// Whether no transaction of somebody else keeps the name (see `guard`). Ours share it, and order themselves by rows.
async fn may_share_name(client: &Client, shared: &Shared, order: &Order) -> Result<bool, Failure> {
    let Some(hash) = shared.hash_of(order) else { return Ok(true) };
    let sql = "SELECT pg_try_advisory_xact_lock_shared($1)";
    let row = client.query_typed_one(sql, &[(&name_lock(&hash), Type::INT8)]).await?;
    let free: bool = get(&row, 0)?;
    if !free {
        shared.expect_held(hash);
    }
    Ok(free)
}

/// The number of the advisory lock on a name.
pub(super) fn name_lock(hash: &NameHash) -> i64 {
    i64::from_be_bytes(hash[..8].try_into().expect("a hash has 16 bytes"))
}

/// Decides and writes one command inside a transaction that is open. After a failure nothing but rolling back helps.
pub(super) async fn inside(
    client: &Client,
    shared: &Shared,
    order: &Order,
    manner: &Manner,
) -> Result<Applied, Failure> {
    let hash = shared.hash_of(order);
    let (mut believed, mut locked): (Option<Arc<Stored>>, Option<Place>) = (None, None);
    for _ in 0..DECISIONS_MAX {
        let (reading, recovering_since) = shared.reading(client).await?;
        let found = match believed.take() {
            Some(believed) => Some(believed),
            None => look(client, shared, order, hash.as_ref()).await?,
        };
        let place = place_of(found.as_deref(), order).cloned();
        if place != locked
            && let Some(place) = place
        {
            lock_lane(client, shared, &place).await?;
            // What was read before the lock may be over.
            locked = Some(place);
            continue;
        }
        let id = match &found {
            Some(found) => Some(found.id),
            None if place.is_some() => Some(next_number(client, shared).await?),
            None => None,
        };
        let lane = match (&place, id) {
            (Some(place), Some(id)) => {
                Some(read::lane(client, shared, place.lane.as_str(), id, reading.now).await?)
            }
            _ => None,
        };
        let policy = shared.policy_of(found.as_deref(), order);
        let moment = reading.moment(policy, recovering_since, shared.dice.roll());
        let order = with_open_work(client, shared, order, found.as_deref()).await?;
        let fresh_id = id.unwrap_or(IntentId::new(0));
        let Planned { change, mut applied } = plan(found.as_ref(), fresh_id, lane.as_ref(), &order, &moment);
        let Some(change) = change else {
            shared.count(moment.now, &applied.verdict);
            return Ok(applied);
        };
        let line = Line::new(change, id, hash, &shared.policies, (moment.now, &applied.verdict));
        let lines = [line];
        let written = write::changes(client, shared, &lines, &Tally::default(), manner).await?;
        if let Some(id) = written.first().copied().flatten() {
            let [line] = lines;
            write_lane(client, shared, id, &line.change).await?;
            drop(line);
            applied.stored.iter_mut().for_each(|stored| Arc::make_mut(stored).id = id);
            return Ok(applied);
        }
    }
    Err(Failure::InTheWay)
}

fn place_of<'a>(found: Option<&'a Stored>, order: &'a Order) -> Option<&'a Place> {
    match (found, &order.command.action) {
        (Some(stored), _) => stored.record.place.as_ref(),
        (None, Action::Claim(claim)) => claim.place.as_ref(),
        (None, _) => None,
    }
}

async fn look(
    client: &Client,
    shared: &Shared,
    order: &Order,
    hash: Option<&NameHash>,
) -> Result<Option<Arc<Stored>>, Failure> {
    let found = match (&order.target, hash) {
        (Target::Id(id), _) => read::look(client, shared, &[], &[*id]).await?,
        (Target::Name(_), Some(hash)) => read::look(client, shared, &[*hash], &[]).await?,
        (Target::Name(_), None) => Vec::new(),
    };
    let Some((_, stored)) = found.into_iter().next() else { return Ok(None) };
    check_name(order, &stored)?;
    Ok(Some(Arc::new(stored)))
}

/// Two names with the same hash would be taken for one.
pub(super) fn check_name(order: &Order, stored: &Stored) -> Result<(), StoreError> {
    match (&order.target, &stored.record.name) {
        (Target::Name(name), Some(there)) if there != name => {
            Err(StoreError::Damaged("two names have the same hash".into()))
        }
        _ => Ok(()),
    }
}

/// Fills in what a purge must know and only the store can see.
async fn with_open_work<'a>(
    client: &Client,
    shared: &Shared,
    order: &'a Order,
    found: Option<&Stored>,
) -> Result<Cow<'a, Order>, Failure> {
    let step = found.and_then(|found| found.record.step.as_ref());
    if let (Action::Purge(_), Some(step)) = (&order.command.action, step)
        && !read::open_works(client, shared, &[step.work()]).await?.is_empty()
    {
        return Ok(Cow::Owned(told_of_open_work(order)));
    }
    Ok(Cow::Borrowed(order))
}

pub(super) fn told_of_open_work(order: &Order) -> Order {
    let mut order = order.clone();
    order.command.action = Action::Purge(Purge { work_is_open: true });
    order
}

/// Locks a lane until the end of the transaction, making it if necessary.
async fn lock_lane(client: &Client, shared: &Shared, place: &Place) -> Result<(), Failure> {
    let sql = shared.within("SELECT @ledger_lock($1)");
    client.query_typed(&sql, &[(&place.lane.as_str(), Type::TEXT)]).await?;
    Ok(())
}

/// Lanes refer to numbers, so that one is needed before the decision.
async fn next_number(client: &Client, shared: &Shared) -> Result<IntentId, Failure> {
    let sql = shared.within("SELECT nextval('@intent_number')");
    Ok(IntentId::new(get(&client.query_typed_one(&sql, &[]).await?, 0)?))
}

/// Writes what a change means for its lane.
async fn write_lane(client: &Client, shared: &Shared, id: IntentId, change: &Change) -> Result<(), Failure> {
    let number = id.number();
    let place = change.after.as_ref().and_then(|after| after.record.place.as_ref());
    if let (Some(lane), Some(place)) = (&change.lane, place) {
        let sql = shared.within("UPDATE @lane SET holder = $2, applied = $3 WHERE name = $1");
        let holder = lane.holder.map(IntentId::number);
        let name = place.lane.as_str();
        let values = [(&name as _, Type::TEXT), (&holder as _, Type::INT8), (&lane.applied as _, Type::INT8)];
        client.query_typed(&sql, &values).await?;
    }
    let before = change.before.as_ref().and_then(|stored| Queued::of(stored));
    let after = change.after.as_ref().and_then(|stored| Queued::of(stored));
    if before == after {
        return Ok(());
    }
    if let Some(place) = before {
        let sql = shared.within("DELETE FROM @lane_waiting WHERE lane = $1 AND rank = $2 AND intent = $3");
        let values =
            [(&place.lane as _, Type::TEXT), (&place.rank as _, Type::INT8), (&number as _, Type::INT8)];
        client.query_typed(&sql, &values).await?;
    }
    if let Some(place) = after {
        let sql =
            shared.within("INSERT INTO @lane_waiting (lane, rank, intent, until) VALUES ($1, $2, $3, $4)");
        let until = place.until.as_millis();
        let values = [
            (&place.lane as _, Type::TEXT),
            (&place.rank as _, Type::INT8),
            (&number as _, Type::INT8),
            (&until as _, Type::INT8),
        ];
        client.query_typed(&sql, &values).await?;
    }
    Ok(())
}
