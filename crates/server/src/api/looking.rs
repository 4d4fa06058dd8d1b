//! Looking: one intent, many, what waits, figures.

use hyper::StatusCode;
use serde_json::{Map, json};
use twicesafe_ledger::{Cursor, Filter, Name, Page, Refusal, Status, Stored};

use super::Call;
use super::parse::Parameters;
use crate::access::{Principal, is_reserved};
use crate::alerts::is_stuck;
use crate::figures;
use crate::http::{Problem, Response};
use crate::server::Shared;
use crate::wire::{self, AnswerView, IntentView, JournalView, PageView, ShownIntent};

/// Intents on a page unless somebody says otherwise, and at most.
const PAGE_DEFAULT: usize = 100;
pub(super) const PAGE_MAX: usize = 1000;
/// Pages read to fill one, where most of what is there is out of reach.
const PAGES_READ_MAX: usize = 20;
/// How far back figures go unless somebody says otherwise.
const STATS_DEFAULT: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

pub(super) async fn intents(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let known =
        ["scope", "status", "work", "containing", "created_from", "created_before", "limit", "cursor"];
    let asked = Parameters::of(call.request, &known)?;
    let words = Status::ALL.map(Status::as_str).join(", ");
    let filter = Filter {
        scope: text(&asked, "scope")?,
        status: asked.read("status", &format!("One of: {words}."), Status::from_word)?,
        work: text(&asked, "work")?.map(|work| call.principal.own_name(&work)).transpose()?,
        containing: text(&asked, "containing")?,
        created_from: asked.time("created_from")?,
        created_before: asked.time("created_before")?,
    };
    page(shared, call, &asked, &[filter], |_| true).await
}

pub(super) async fn approvals(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    waiting(shared, call, &[Status::Held], |_| true).await
}

/// What is in review, then what is stuck (S47).
pub(super) async fn review(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let now = shared.ledger.store().now().await?;
    let statuses = [Status::Review, Status::Retryable, Status::Ready];
    waiting(shared, call, &statuses, |stored| stored.record.status == Status::Review || is_stuck(stored, now))
        .await
}

async fn waiting(
    shared: &Shared,
    call: &Call<'_>,
    statuses: &[Status],
    waits: impl Fn(&Stored) -> bool,
) -> Result<Response, Problem> {
    let asked = Parameters::of(call.request, &["scope", "limit", "cursor"])?;
    let scope = text(&asked, "scope")?;
    let with = |status: &Status| Filter { scope: scope.clone(), status: Some(*status), ..Filter::default() };
    let filters: Vec<Filter> = statuses.iter().map(with).collect();
    page(shared, call, &asked, &filters, |stored| !is_reserved(scope_of(stored)) && waits(stored)).await
}

/// What is looked for. Nothing that is kept has control characters in it, and not every database takes a question with NUL.
fn text(asked: &Parameters, name: &str) -> Result<Option<String>, Problem> {
    asked.read(name, "Leave out control characters.", |text| {
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    })
}

async fn page(
    shared: &Shared,
    call: &Call<'_>,
    asked: &Parameters,
    filters: &[Filter],
    is_wanted: impl Fn(&Stored) -> bool,
) -> Result<Response, Problem> {
    let limit = asked
        .read("limit", "A number from 1 to 1000.", |text| {
            text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit))
        })?
        .unwrap_or(PAGE_DEFAULT);
    let mut reached = asked
        .read("cursor", "Give back what `next` said.", |text| Reached::from_text(text, filters.len()))?
        .unwrap_or_default();
    let mut intents = Vec::new();
    for _ in 0..PAGES_READ_MAX {
        let filter = &filters[reached.list];
        let Page { intents: found, next } =
            shared.ledger.store().list(filter, reached.after, limit - intents.len()).await?;
        let is_shown = |stored: &&Stored| reaches(&call.principal, scope_of(stored)) && is_wanted(stored);
        intents.extend(found.iter().filter(is_shown).map(IntentView::of));
        reached = match next {
            Some(_) => Reached { after: next, ..reached },
            None => Reached { list: reached.list + 1, after: None },
        };
        if reached.list >= filters.len() || intents.len() >= limit {
            break;
        }
        // Others on this thread have their turn meanwhile.
        tokio::task::yield_now().await;
    }
    let next = (reached.list < filters.len()).then(|| reached.to_text());
    Ok(Response::json(StatusCode::OK, &PageView { intents, next }))
}

/// Where the next page starts, in lists that follow each other.
#[derive(Clone, Copy, Default)]
struct Reached {
    list: usize,
    after: Option<Cursor>,
}

impl Reached {
    fn to_text(self) -> String {
        format!("{}-{}", self.list, self.after.map_or_else(String::new, Cursor::to_text))
    }

    fn from_text(text: &str, lists: usize) -> Option<Self> {
        let (list, after) = text.split_once('-')?;
        let list = list.parse().ok().filter(|list| *list < lists)?;
        let after = (!after.is_empty()).then(|| Cursor::from_text(after).ok_or(())).transpose().ok()?;
        Some(Self { list, after })
    }
}

fn scope_of(stored: &Stored) -> &str {
    stored.record.name.as_ref().map_or("", |name| name.scope.as_str())
}

fn reaches(principal: &Principal, scope: &str) -> bool {
    principal.reaches_everything() || principal.reaches(scope)
}

pub(super) async fn intent(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = Parameters::of(call.request, &["scope", "key"])?;
    let name = Name::new(asked.required("scope")?, asked.required("key")?)?;
    call.principal.demand_scope(name.scope.as_str())?;
    let dossier = shared.ledger.dossier(&name).await?.ok_or(Refusal::NoSuchIntent)?;
    let record = &dossier.stored.record;
    let shown = ShownIntent {
        intent: IntentView::of(&dossier.stored),
        source: wire::source_word(record.source),
        recovery: record.policy.recovery.as_str(),
        answer: record.answer.as_ref().map(AnswerView::of),
        request: dossier.request.as_ref().map(|request| String::from_utf8_lossy(request).into_owned()),
        approved_by: record
            .approval
            .iter()
            .flat_map(|approval| &approval.approved_by)
            .map(|actor| actor.as_str().to_owned())
            .collect(),
        journal: dossier.journal.iter().map(JournalView::of).collect(),
    };
    Ok(Response::json(StatusCode::OK, &shown))
}

pub(super) async fn work(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    let asked = Parameters::of(call.request, &["id", "limit", "cursor"])?;
    let id = asked.required("id")?;
    if id.chars().count() > 255 || id.chars().any(char::is_control) {
        return Err(Problem::bad_request("the parameter `id` is not the name of a work", "Check it."));
    }
    let work = call.principal.own_name(id)?;
    page(shared, call, &asked, &[Filter { work: Some(work), ..Filter::default() }], |_| true).await
}

pub(super) async fn stats(shared: &Shared, call: &Call<'_>) -> Result<Response, Problem> {
    call.principal.demand_operator()?;
    let asked = Parameters::of(call.request, &["since", "until"])?;
    let store = shared.ledger.store();
    let until = match asked.time("until")? {
        Some(until) => until,
        None => store.now().await?,
    };
    let since = asked.time("since")?.unwrap_or_else(|| until.minus(STATS_DEFAULT));
    let counts = store.statistics(since, until).await?;
    let mut answer = Map::from_iter([
        ("since".to_owned(), json!(wire::time(since))),
        ("until".to_owned(), json!(wire::time(until))),
    ]);
    answer.extend(figures::as_json(&counts));
    Ok(Response::json(StatusCode::OK, &answer))
}
