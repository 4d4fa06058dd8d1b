//! Writes that are no questions and have no key: passed on, and journalled.

use std::sync::Arc;

use twicesafe_ledger::{Actor, Code, Error, Intent, Key, Name, Policy, Recovery, Resolution, Scope};

use super::call::Wish;
use super::flight::{Beginning, End, Flight, Follower};
use super::record::{Manner, Recorder};
use super::{ACT_TIME_MAX, PASSED_RETENTION};
use crate::gateway::sending::Sending;
use crate::gateway::{Arrival, guarded};
use crate::http::{Problem, Request, Response};

/// Passes a write on that nobody gave a key: each time it comes it goes, and the journal says so.
pub(super) async fn passed(
    arrival: &Arrival<'_>,
    request: &mut Request,
    wish: Wish,
) -> Result<Response, Problem> {
    let room = Arc::new(request.taken.take());
    let sending: Arc<Sending> = Arc::new(arrival.sending(request, None));
    let action = format!("passed.{}", guarded::made_action(&sending.method, &arrival.path));
    let scope = Scope::new(&format!("{}/{}/{action}", arrival.principal.tenant(), arrival.destination.name))?;
    arrival.principal.demand_to_change(scope.as_str())?;
    let random = u128::from_be_bytes(twicesafe_ledger::new_command_id().bytes());
    let key = Key::new(&format!("passed:{random:032x}"))?;
    let mut policy = Policy::new(Recovery::Person);
    policy.retention = arrival.route.policy.retention.min(PASSED_RETENTION);
    policy.act_max = ACT_TIME_MAX.max(arrival.route.timeout);
    // Nobody compares it with anything.
    let input = key.as_str().to_owned();
    let mut intent = Intent::named(Name { scope, key }).policy(policy).input(input);
    if let Some(work) = &wish.work {
        intent = intent.step(&arrival.principal.own_name(work)?, &action)?;
    }
    let (flight, follower) = Flight::alone(&arrival.shared.flights);
    let recorder = Recorder {
        destination: arrival.destination.clone(),
        route: arrival.route.clone(),
        sending,
        flight: flight.clone(),
        manner: Manner::Effect,
        held: Arc::default(),
        _room: room,
    };
    let ledger = arrival.shared.ledger.acting_as(&arrival.principal.actor);
    tokio::spawn(async move {
        let acting = recorder.clone();
        let ended = ledger
            .carry_out(&intent, std::future::ready(()), move |attempt| acting.clone().act(attempt))
            .await;
        if let (Err(Error::Review), Some(stored)) = (&ended.result, &ended.stored) {
            // It may have happened, and its caller was told what was heard. Nobody can ask for it again by its key: there is
            // nothing a person could decide.
            let why = "it was passed on without a key";
            if let Err(error) = ledger.resolve(&Actor::sweep(), stored, Resolution::GiveUp, why).await {
                tracing::warn!(code = %error.code(), "what was passed on is left in review: {error}");
            }
        }
        flight.end(match ended.result {
            Err(error) => End::Problem(Arc::new(error.into())),
            Ok(_) => End::Cut,
        });
    });
    following(follower).await
}

async fn following(mut follower: Follower) -> Result<Response, Problem> {
    match follower.beginning().await {
        Beginning::Live(status, headers) => Ok(Response { status, headers, body: follower.body() }),
        Beginning::Problem(problem) => Err((*problem).clone()),
        Beginning::Given(_) | Beginning::Cut => Err(Problem::new(
            Code::DestinationAway,
            "the destination gave no answer",
            "Look at what was made there before you send it again.",
        )),
    }
}
