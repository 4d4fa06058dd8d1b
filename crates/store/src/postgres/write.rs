//! Writing: a batch of changes is one call of `ledger_apply`, and so one statement and one transaction.

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::{IntentId, Timestamp};

use super::Shared;
use super::columns::{COLUMNS, Line, Values, at, get};
use super::connect::Failure;
use crate::plan::{Agenda, Change, JournalRow};
use crate::tally::Tally;

/// Parameters of `ledger_apply` before those of [`COLUMNS`], and after them.
const PARAMETERS: usize = 11 + COLUMNS.len() + 12 + 4;

/// The call of `ledger_apply`.
pub(super) fn apply_sql(schema: &str) -> String {
    let parameters: Vec<String> = (1..=PARAMETERS).map(|number| format!("${number}")).collect();
    format!("SELECT now, recovering_since, written FROM {schema}ledger_apply({})", parameters.join(", "))
}

/// How a batch is written.
pub(super) struct Manner {
    /// It may be acknowledged before it is on disk (S7).
    pub(super) relaxed: bool,
    /// Whose counts are added to.
    pub(super) slot: i64,
}

/// Writes changes. Answers, in their order, with the numbers of the intents; `None` where the belief behind a change
/// was wrong and nothing of it was written. `unwritten` are counts of what needed no write.
pub(super) async fn changes(
    client: &Client,
    shared: &Shared,
    lines: &[Line],
    unwritten: &Tally,
    manner: &Manner,
) -> Result<Vec<Option<IntentId>>, Failure> {
    let inserts = lines.iter().filter(|line| line.change.before.is_none()).count() as i64;
    let removals = lines.iter().filter(|line| line.change.after.is_none()).count() as i64;
    let agenda: Vec<Agendas> = lines.iter().map(|line| Agendas::of(&line.change)).collect();
    let ints = |value: &dyn Fn(&Line) -> Option<i64>| Values::Int(lines.iter().map(value).collect());
    let bools =
        |value: &dyn Fn(&Line) -> bool| Values::Bool(lines.iter().map(|line| Some(value(line))).collect());
    let mut values = vec![
        ints(&|line| Some(line.change.before.as_ref()?.version)),
        Values::Text(agenda.iter().map(|agenda| Some(agenda.dropped?.status.as_str())).collect()),
        Values::Int(agenda.iter().map(|agenda| Some(agenda.dropped?.wake_at.as_millis())).collect()),
        bools(&|line| line.change.archived().is_some()),
        bools(&|line| line.change.answer_changes()),
        Values::Int(agenda.iter().map(|agenda| Some(agenda.put?.wake_at.as_millis())).collect()),
        ints(&|line| line.id.map(IntentId::number)),
    ];
    values.extend(COLUMNS.iter().map(|column| column.values(lines)));
    let journal: Vec<(i64, &JournalRow)> = (1..)
        .zip(lines)
        .flat_map(|(place, line)| line.change.journal.iter().map(move |row| (place, row)))
        .collect();
    values.extend(journal_values(&journal));
    let counts: Vec<(i64, (i64, &str, i64))> = (1..)
        .zip(lines.iter().map(|line| &line.tally))
        .chain([(0, unwritten)])
        .flat_map(|(place, tally)| tally.rows().map(move |row| (place, row)))
        .collect();
    values.extend([
        Values::Int(counts.iter().map(|(place, _)| Some(*place)).collect()),
        Values::Int(counts.iter().map(|(_, (hour, _, _))| Some(*hour)).collect()),
        Values::Text(counts.iter().map(|(_, (_, name, _))| Some(*name)).collect()),
        Values::Int(counts.iter().map(|(_, (_, _, n))| Some(*n)).collect()),
    ]);
    let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![
        (&inserts, Type::INT8),
        (&removals, Type::INT8),
        (&manner.relaxed, Type::BOOL),
        (&manner.slot, Type::INT8),
    ];
    parameters.extend(values.iter().map(Values::parameter));
    let row = client.query_typed_one(&shared.apply_sql, &parameters).await?;
    shared.time.sample(Timestamp::from_millis(get(&row, 0)?), at(&row, 1)?);
    let written: Vec<Option<i64>> = get(&row, 2)?;
    Ok(written.into_iter().map(|id| id.map(IntentId::new)).collect())
}

fn journal_values<'a>(rows: &[(i64, &'a JournalRow)]) -> [Values<'a>; 12] {
    let ints = |value: &dyn Fn(&'a JournalRow) -> i64| {
        Values::Int(rows.iter().map(|(_, row)| Some(value(row))).collect())
    };
    let texts = |value: &dyn Fn(&'a JournalRow) -> &'a str| {
        Values::Text(rows.iter().map(|(_, row)| Some(value(row))).collect())
    };
    [
        Values::Int(rows.iter().map(|(place, _)| Some(*place)).collect()),
        ints(&|row| row.number.into()),
        ints(&|row| row.entry.at.as_millis()),
        texts(&|row| row.entry.actor.as_str()),
        texts(&|row| row.entry.event.as_str()),
        texts(&|row| row.entry.status.as_str()),
        Values::Bool(rows.iter().map(|(_, row)| Some(row.entry.doubt)).collect()),
        ints(&|row| row.entry.generation.into()),
        ints(&|row| row.entry.fence.number() as i64),
        texts(&|row| &row.entry.reason),
        Values::Bytes(rows.iter().map(|(_, row)| row.digest.as_ref().map(|digest| &digest[..])).collect()),
        Values::Bytes(rows.iter().map(|(_, row)| Some(&row.hash[..])).collect()),
    ]
}

/// What happens to the agenda.
struct Agendas {
    dropped: Option<Agenda>,
    put: Option<Agenda>,
}

impl Agendas {
    fn of(change: &Change) -> Self {
        let before = change.before.as_ref().and_then(|stored| Agenda::of(stored));
        let after = change.after.as_ref().and_then(|stored| Agenda::of(stored));
        let key = |line: &Agenda| (line.status, line.wake_at);
        Self {
            dropped: before.filter(|before| after.as_ref().map(key) != Some(key(before))),
            put: after.filter(|_| before != after),
        }
    }
}
