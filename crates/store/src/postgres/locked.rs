//! Commands in a transaction of several statements: where a lane has to be locked before anything can be decided, where
//! somebody else's transaction is in the way, and inside the caller's own transaction (see `guard`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::{
    Action, IntentId, Lane, LaneName, Moment, Purge, Timestamp, Verdict, Wait, WaitCause, Waiting,
};

use super::Shared;
use super::columns::{Line, get};
use super::connect::Failure;
use super::read;
use super::write::{self, Outcome};
use crate::NameHash;
use crate::plan::{
    Applied, Order, Planned, Stored, Target, check_name, place_of, plan, rank, rank_of_equals, version_of,
};
use crate::tally::Tally;

/// When to come back to what another transaction has locked and not committed yet.
const LOCKED_FOR: Duration = Duration::from_secs(1);

/// A command to be decided under lock.
pub(super) struct Candidate<'a> {
    pub(super) order: &'a Order,
    pub(super) hash: Option<NameHash>,
    /// The lane it is in, by what was last read of its intent.
    pub(super) lane: Option<LaneName>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(shared: &Shared, order: &'a Order, found: Option<&Stored>) -> Self {
        let lane = place_of(found, order).map(|place| place.lane.clone());
        Self { order, hash: shared.hash_of(order), lane }
    }

    fn is_claim(&self) -> bool {
        matches!(self.order.command.action, Action::Claim(_))
    }

    /// A claim may be told to wait, and come back; anything else waits itself, alone, for somebody's own transaction.
    fn is_patient(candidates: &[&Self]) -> bool {
        matches!(candidates, [alone] if !alone.is_claim())
    }
}

/// What came of a command under lock.
#[derive(Clone)]
pub(super) enum Came {
    /// It was applied, or told to wait.
    Applied(Applied),
    /// What was believed of its intent has changed meanwhile. Nothing was done.
    Mistaken,
    /// Somebody's own transaction keeps its lane. Nothing was done.
    Kept,
}

/// Applies commands in a transaction of their own: at most one an intent, at most one a lane.
pub(super) async fn transaction(
    client: &Client,
    shared: &Shared,
    candidates: &[Candidate<'_>],
) -> Result<Vec<Came>, Failure> {
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let applied = async {
        let held = held_names(client, shared, candidates).await?;
        let is_held = |candidate: &Candidate<'_>| candidate.hash.is_some_and(|hash| held.contains(&hash));
        let (waiting, free): (Vec<_>, Vec<_>) = (0..candidates.len()).partition(|i| is_held(&candidates[*i]));
        let chosen: Vec<&Candidate<'_>> = free.iter().map(|i| &candidates[*i]).collect();
        let mut results = vec![Came::Mistaken; candidates.len()];
        for (i, came) in free.into_iter().zip(inside(client, shared, &chosen).await?) {
            results[i] = came;
        }
        for i in waiting {
            results[i] = Came::Applied(told_to_wait(shared, shared.now(client).await?, WaitCause::Pending));
        }
        Ok(results)
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

/// What a claim is told that somebody's own transaction keeps from being decided: what comes of it is known when it ends.
pub(super) fn told_to_wait(shared: &Shared, now: Timestamp, cause: WaitCause) -> Applied {
    let verdict = Verdict::Wait(Wait { until: now + LOCKED_FOR, cause });
    shared.count(now, &verdict);
    Applied { verdict, stored: None, alerts: Vec::new(), notices: Vec::new(), at: now, changed: false }
}

/// Names of claims that somebody's own transaction keeps (see `guard`). Ours share names, and order themselves by rows.
pub(super) async fn held_names(
    client: &Client,
    shared: &Shared,
    candidates: &[Candidate<'_>],
) -> Result<HashSet<NameHash>, Failure> {
    let claims = candidates.iter().filter(|candidate| candidate.is_claim());
    let hashes: Vec<NameHash> = claims.filter_map(|candidate| candidate.hash).collect();
    if hashes.is_empty() {
        return Ok(HashSet::new());
    }
    let locks: Vec<i64> = hashes.iter().map(name_lock).collect();
    let sql = "SELECT pg_try_advisory_xact_lock_shared(n) FROM unnest($1) n";
    let rows = client.query_typed(sql, &[(&locks, Type::INT8_ARRAY)]).await?;
    let mut held = HashSet::new();
    for (hash, row) in hashes.into_iter().zip(&rows) {
        if !get::<bool>(row, 0)? {
            shared.expect_held(hash);
            held.insert(hash);
        }
    }
    Ok(held)
}

/// The number of the advisory lock on a name: of the half of its hash that is its own.
pub(super) fn name_lock(hash: &NameHash) -> i64 {
    i64::from_be_bytes(hash[8..].try_into().expect("a hash has 16 bytes"))
}

/// Decides and writes commands inside a transaction that is open; see [`transaction`]. After a failure nothing but rolling
/// back helps.
pub(super) async fn inside(
    client: &Client,
    shared: &Shared,
    candidates: &[&Candidate<'_>],
) -> Result<Vec<Came>, Failure> {
    let (now, recovering_since) = shared.reading(client).await?;
    // Sent together, carried out one after the other: what is read is what the locks keep as it is.
    let (lanes, known) = futures_util::future::try_join(
        lock_lanes(client, shared, candidates, now),
        look(client, shared, candidates),
    )
    .await?;
    let equals = first_equals(client, shared, candidates, &lanes, &known, now).await?;
    let works = open_works(client, shared, candidates, &known).await?;
    let mut results = vec![Came::Mistaken; candidates.len()];
    let (mut lines, mut planned): (Vec<Line>, Vec<(usize, Applied)>) = Default::default();
    for (index, candidate) in candidates.iter().enumerate() {
        let found = known.of(candidate);
        let order = candidate.order;
        if let Some(found) = found {
            check_name(order, found)?;
        }
        let place = place_of(found.map(|found| &**found), order);
        if place.map(|place| &place.lane) != candidate.lane.as_ref() {
            continue;
        }
        let locked = place.and_then(|place| lanes.get(place.lane.as_str()));
        if place.is_some() && locked.is_none() {
            results[index] = match candidate.is_claim() {
                true => Came::Applied(told_to_wait(shared, now, WaitCause::Lane(None))),
                false => Came::Kept,
            };
            continue;
        }
        let lane = locked.map(|locked| Lane {
            first_equal: equals.get(&index).copied(),
            ..locked.seen_by(found.map(|found| found.id))
        });
        let moment = Moment { dice: shared.dice.roll(), recovering_since, ..Moment::at(now) };
        let told = found.and_then(|found| told_of_open_work(order, found, &works));
        let order = told.as_ref().unwrap_or(order);
        let fresh_id = lane.as_ref().map_or(IntentId::new(0), |lane| lane.me);
        let Planned { change, applied } =
            plan(found, fresh_id, lane.as_ref(), order, &moment, &shared.hasher);
        let Some(change) = change else {
            shared.count(moment.now, &applied.verdict);
            results[index] = Came::Applied(applied);
            continue;
        };
        let id = found.map(|found| found.id).or(lane.map(|lane| lane.me));
        let counted = (moment.now, &applied.verdict);
        lines.push(Line::new(change, id, candidate.hash, shared, counted));
        planned.push((index, applied));
    }
    if !lines.is_empty() {
        let written = write::changes(client, shared, &lines, &[], &Tally::default(), false).await?;
        drop(lines);
        for ((index, mut applied), outcome) in planned.into_iter().zip(written.outcomes) {
            if let Outcome::Written(id) = outcome {
                applied.stored.iter_mut().for_each(|stored| Arc::make_mut(stored).id = id);
                results[index] = Came::Applied(applied);
            }
        }
    }
    Ok(results)
}

/// A lane that is locked.
struct LockedLane {
    holder: Option<IntentId>,
    applied: Option<i64>,
    /// A number for the intent that is decided, should it be new: lanes refer to numbers.
    fresh_id: IntentId,
    /// The first two that wait: one of them may be the one that is decided.
    waiting: Vec<Waiting>,
}

impl LockedLane {
    fn seen_by(&self, id: Option<IntentId>) -> Lane {
        let me = id.unwrap_or(self.fresh_id);
        let first_waiting = self.waiting.iter().find(|waiting| waiting.intent != me).copied();
        Lane { me, holder: self.holder, applied: self.applied, first_waiting, first_equal: None }
    }
}

/// Locks lanes until the end of the transaction, making them if necessary. Those that somebody's own transaction keeps are
/// missing.
async fn lock_lanes(
    client: &Client,
    shared: &Shared,
    candidates: &[&Candidate<'_>],
    now: Timestamp,
) -> Result<HashMap<String, LockedLane>, Failure> {
    let mut names: Vec<&str> =
        candidates.iter().filter_map(|candidate| Some(candidate.lane.as_ref()?.as_str())).collect();
    let mut lanes: HashMap<String, LockedLane> = HashMap::new();
    if names.is_empty() {
        return Ok(lanes);
    }
    // In the order of names, so that two transactions never wait for each other.
    names.sort_unstable();
    let sql = shared
        .within("SELECT name, holder, applied, fresh_id, rank, intent, until FROM @ledger_lock($1, $2, $3)");
    let (now, patient) = (now.as_millis(), Candidate::is_patient(candidates));
    let values: [(&(dyn ToSql + Sync), Type); 3] =
        [(&names, Type::TEXT_ARRAY), (&now, Type::INT8), (&patient, Type::BOOL)];
    let rows = client.query_typed(&sql, &values).await?;
    for row in &rows {
        let lane = lanes.entry(get(row, 0)?).or_insert(LockedLane {
            holder: get::<Option<i64>>(row, 1)?.map(IntentId::new),
            applied: get(row, 2)?,
            fresh_id: IntentId::new(get(row, 3)?),
            waiting: Vec::new(),
        });
        if let Some(rank) = get::<Option<i64>>(row, 4)? {
            lane.waiting.push(Waiting {
                version: version_of(rank),
                intent: IntentId::new(get(row, 5)?),
                until: Timestamp::from_millis(get(row, 6)?),
            });
        }
    }
    Ok(lanes)
}

/// The first that wait with the same version, where that matters, by position of the candidate. Often the first that waits is
/// the one, or newer; behind an older one they must be looked for.
async fn first_equals(
    client: &Client,
    shared: &Shared,
    candidates: &[&Candidate<'_>],
    lanes: &HashMap<String, LockedLane>,
    known: &Known,
    now: Timestamp,
) -> Result<HashMap<usize, Waiting>, Failure> {
    let mut equals = HashMap::new();
    let (mut behind, mut names, mut ranks, mut own): (Vec<usize>, Vec<&str>, Vec<i64>, Vec<i64>) =
        Default::default();
    for (index, candidate) in candidates.iter().enumerate() {
        let found = known.of(candidate).map(|found| &**found);
        let Some(at) = rank_of_equals(found, candidate.order) else { continue };
        let Some((name, locked)) =
            place_of(found, candidate.order).and_then(|place| lanes.get_key_value(place.lane.as_str()))
        else {
            continue;
        };
        let seen = locked.seen_by(found.map(|found| found.id));
        match seen.first_waiting {
            Some(first) if rank(first.version) == at => drop(equals.insert(index, first)),
            Some(first) if rank(first.version) < at => {
                behind.push(index);
                names.push(name);
                ranks.push(at);
                own.push(seen.me.number());
            }
            _ => {}
        }
    }
    if behind.is_empty() {
        return Ok(equals);
    }
    let sql = shared.within(
        "SELECT q.n, w.rank, w.intent, w.until FROM unnest($1, $2, $3) WITH ORDINALITY q (lane, rank, me, n)
         CROSS JOIN LATERAL (
             SELECT w.rank, w.intent, w.until FROM @lane_waiting w
             WHERE w.lane = q.lane AND w.rank = q.rank AND w.intent <> q.me AND w.until > $4
             ORDER BY w.intent LIMIT 1) w",
    );
    let now = now.as_millis();
    let values: [(&(dyn ToSql + Sync), Type); 4] = [
        (&names, Type::TEXT_ARRAY),
        (&ranks, Type::INT8_ARRAY),
        (&own, Type::INT8_ARRAY),
        (&now, Type::INT8),
    ];
    for row in client.query_typed(&sql, &values).await? {
        let position: i64 = get(&row, 0)?;
        let waiting = Waiting {
            version: version_of(get(&row, 1)?),
            intent: IntentId::new(get(&row, 2)?),
            until: Timestamp::from_millis(get(&row, 3)?),
        };
        equals.insert(behind[position as usize - 1], waiting);
    }
    Ok(equals)
}

/// What there is.
struct Known {
    by_hash: HashMap<NameHash, Arc<Stored>>,
    by_id: HashMap<IntentId, Arc<Stored>>,
}

impl Known {
    fn of(&self, candidate: &Candidate<'_>) -> Option<&Arc<Stored>> {
        match &candidate.order.target {
            Target::Id(id) => self.by_id.get(id),
            Target::Name(_) => self.by_hash.get(&candidate.hash?),
        }
    }
}

/// What there is of the intent a command is about.
pub(super) async fn find(client: &Client, shared: &Shared, order: &Order) -> Result<Option<Stored>, Failure> {
    let found = match (&order.target, shared.hash_of(order)) {
        (Target::Id(id), _) => read::look(client, shared, &[], &[*id]).await?,
        (Target::Name(_), hash) => read::look(client, shared, hash.as_slice(), &[]).await?,
    };
    Ok(found.into_iter().next().map(|(_, stored)| stored))
}

async fn look(client: &Client, shared: &Shared, candidates: &[&Candidate<'_>]) -> Result<Known, Failure> {
    let (mut hashes, mut ids): (Vec<NameHash>, Vec<IntentId>) = Default::default();
    for candidate in candidates {
        match (&candidate.order.target, candidate.hash) {
            (Target::Id(id), _) => ids.push(*id),
            (Target::Name(_), hash) => hashes.extend(hash),
        }
    }
    let mut known = Known { by_hash: HashMap::new(), by_id: HashMap::new() };
    for (hash, stored) in read::look(client, shared, &hashes, &ids).await? {
        let stored = Arc::new(stored);
        known.by_id.insert(stored.id, stored.clone());
        known.by_hash.insert(hash, stored);
    }
    Ok(known)
}

async fn open_works(
    client: &Client,
    shared: &Shared,
    candidates: &[&Candidate<'_>],
    known: &Known,
) -> Result<HashSet<String>, Failure> {
    let works: Vec<&str> = candidates
        .iter()
        .filter_map(|candidate| work_to_purge(candidate.order, known.of(candidate)?))
        .collect();
    if works.is_empty() { Ok(HashSet::new()) } else { read::open_works(client, shared, &works).await }
}

/// The unit of work a purge must know about.
pub(super) fn work_to_purge<'a>(order: &Order, found: &'a Stored) -> Option<&'a str> {
    match order.command.action {
        Action::Purge(_) => Some(found.record.step.as_ref()?.work()),
        _ => None,
    }
}

/// Fills in what a purge must know and only the store can see. `None`: nothing to fill in.
pub(super) fn told_of_open_work(order: &Order, found: &Stored, open: &HashSet<String>) -> Option<Order> {
    let work = work_to_purge(order, found)?;
    open.contains(work).then(|| {
        let mut order = order.clone();
        order.command.action = Action::Purge(Purge { work_is_open: true });
        order
    })
}
