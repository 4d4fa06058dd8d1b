//! Writing: a batch of changes is one call of `ledger_apply`, and so one statement and one transaction.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use twicesafe_core::{IntentId, Timestamp};

use super::Shared;
use super::columns::{self, COLUMNS, Line, at, get};
use super::connect::Failure;
use super::rows::{Field, RowType, Rows, inner_rows};
use crate::NameHash;
use crate::codec;
use crate::plan::{Agenda, Queued, Stored};
use crate::tally::Tally;

/// Parameters of `ledger_apply`.
const PARAMETERS: usize = 15;
/// So long after a first claim it is looked whether its permit is still out: seldom, by then, and what is claimed and not
/// looked at yet has to be read by whoever asks for all permits that are out.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// So many entries of a journal make a page.
const PAGE_ENTRIES: u32 = 16;

/// The call of `ledger_apply`.
pub(super) fn apply_sql(schema: &str) -> String {
    let parameters: Vec<String> = (1..=PARAMETERS).map(|number| format!("${number}")).collect();
    format!(
        "SELECT now, recovering_since, first, written, there, mistaken FROM {schema}ledger_apply({})",
        parameters.join(", ")
    )
}

/// The types of the rows that are sent.
pub(super) struct RowTypes {
    pub(super) intent: RowType,
    pub(super) agenda: RowType,
    pub(super) lane: RowType,
    pub(super) lane_waiting: RowType,
    pub(super) entry: RowType,
    pub(super) seldom: RowType,
}

/// What came of a change.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// It was written; the intent has this number.
    Written(IntentId),
    /// Nothing of it was written: it is about something new, and this was there.
    Found(Arc<Stored>),
    /// Nothing of it was written: the belief behind it was wrong.
    Mistaken,
}

/// What came of a batch.
pub(super) struct Written {
    /// Of its changes, in their order.
    pub(super) outcomes: Vec<Outcome>,
    /// Of its beliefs: which are not true, or not any more.
    pub(super) mistaken: HashSet<usize>,
}

/// Writes changes, and looks whether what is believed of other intents is still so. `unwritten` are counts of what needed no write.
/// What is `relaxed` may be acknowledged before it is on disk (S7).
pub(super) async fn changes(
    client: &Client,
    shared: &Shared,
    lines: &[Line],
    believed: &[&Stored],
    unwritten: &Tally,
    relaxed: bool,
) -> Result<Written, Failure> {
    let mut batch = Batch::new(&shared.row_types);
    for stored in believed {
        batch.believed.push(stored.id.number());
        batch.believed_versions.push(stored.version);
        batch.believed_heads.push(stored.journal_head.to_vec());
    }
    // Positions are given to inserts first, then to updates, then to removals; by hash and by number, so that two batches
    // lock rows in the same order.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by_key(|index| {
        let (change, hash) = (&lines[*index].change, lines[*index].hash());
        let before = change.before.as_ref();
        (before.is_some(), change.after.is_none(), before.map(|before| before.id), hash)
    });
    let mut kinds: BTreeMap<&Tally, i64> = BTreeMap::new();
    for (position, index) in (1..).zip(&order) {
        let line = &lines[*index];
        batch.put(position, line);
        let next = kinds.len() as i64 + 1;
        let kind = *kinds.entry(&line.tally).or_insert(next);
        batch.is_of_kind(kind);
    }
    let rest = kinds.len() as i64 + 1;
    kinds.into_iter().for_each(|(tally, kind)| batch.count(kind, tally));
    if !unwritten.is_empty() {
        batch.count(rest, unwritten);
        batch.times.push(1);
    }
    let counts = batch.counted();
    let seldom = batch.seldom(&shared.row_types.seldom);
    let known_key = shared.hasher.key();
    let timeline = shared.tail.timeline();
    let parameters: [(&(dyn ToSql + Sync), Type); PARAMETERS] = [
        (&relaxed, Type::BOOL),
        (&known_key.bytes(), Type::BYTEA),
        batch.inserts.parameter(),
        (&batch.numbered, Type::BOOL),
        batch.updates.parameter(),
        (&batch.updated_ids, Type::INT8_ARRAY),
        (&batch.remind_at, Type::INT8),
        (&counts, Type::TEXT),
        (&batch.kinds, Type::INT8_ARRAY),
        (&batch.times, Type::INT8_ARRAY),
        (&batch.believed, Type::INT8_ARRAY),
        (&batch.believed_versions, Type::INT8_ARRAY),
        (&batch.believed_heads, Type::BYTEA_ARRAY),
        seldom.parameter(),
        (&timeline, Type::TEXT),
    ];
    let row = client.query_typed_one(&shared.apply_sql, &parameters).await?;
    shared.time.sample(Timestamp::from_millis(get(&row, 0)?), at(&row, 1)?);
    let written = match (get(&row, 3)?, get::<Option<i64>>(&row, 2)?) {
        (Some(written), _) => written,
        (None, first) => batch.numbers_from(first),
    };
    // It is written: what cannot be read of what was there is left to whoever asks for it alone.
    let there = get::<Option<&[u8]>>(&row, 4)?.and_then(|rows| inner_rows(rows).ok()).unwrap_or_default();
    let found = there.iter().filter_map(|row| {
        Some((columns::hash(row).ok()?, Arc::new(columns::stored(row, &shared.rows).ok()?)))
    });
    let mut found: HashMap<NameHash, Arc<Stored>> = found.collect();
    if !found.is_empty() {
        // Found before the same batch changed it.
        let changed: HashSet<IntentId> =
            lines.iter().filter_map(|line| Some(line.change.before.as_ref()?.id)).collect();
        found.retain(|_, stored| !changed.contains(&stored.id));
    }
    let mut outcomes = vec![Outcome::Mistaken; lines.len()];
    for (index, id) in order.into_iter().zip(written) {
        let there = || found.remove(&lines[index].hash()?).map(Outcome::Found);
        if let Some(outcome) = id.map(|id| Outcome::Written(IntentId::new(id))).or_else(there) {
            outcomes[index] = outcome;
        }
    }
    let mistaken = get::<Vec<i64>>(&row, 5)?.into_iter().filter_map(|place| usize::try_from(place - 1).ok());
    Ok(Written { outcomes, mistaken: mistaken.collect() })
}

/// What is sent.
struct Batch {
    inserts: Rows,
    inserted: i64,
    /// Whether some of them have their numbers.
    numbered: bool,
    /// When to look at them again.
    remind_at: Option<i64>,
    updates: Rows,
    updated_ids: Vec<i64>,
    /// By position: which of the counts are its own.
    kinds: Vec<i64>,
    /// By kind: how many there are.
    times: Vec<i64>,
    removals: Vec<i64>,
    removed_versions: Vec<i64>,
    archived: Vec<i64>,
    not_kept: Vec<Option<String>>,
    answered: Vec<i64>,
    unrequested: Vec<i64>,
    buried: Vec<i64>,
    agenda_before: Rows,
    agenda_after: Rows,
    lane_changes: Vec<i64>,
    lanes: Rows,
    waiting_before: Rows,
    waiting_after: Rows,
    reminder_kinds: Vec<&'static str>,
    reminder_times: Vec<i64>,
    reminded: Vec<i64>,
    paged: Vec<i64>,
    forgotten: Vec<i64>,
    unplaced: Vec<i64>,
    left_lanes: Vec<String>,
    counts: Vec<serde_json::Value>,
    believed: Vec<i64>,
    believed_versions: Vec<i64>,
    believed_heads: Vec<Vec<u8>>,
}

impl Batch {
    fn new(types: &RowTypes) -> Self {
        Self {
            inserts: Rows::of(&types.intent),
            inserted: 0,
            numbered: false,
            remind_at: None,
            updates: Rows::of(&types.intent),
            updated_ids: Vec::new(),
            kinds: Vec::new(),
            times: Vec::new(),
            removals: Vec::new(),
            removed_versions: Vec::new(),
            archived: Vec::new(),
            not_kept: Vec::new(),
            answered: Vec::new(),
            unrequested: Vec::new(),
            buried: Vec::new(),
            agenda_before: Rows::of(&types.agenda),
            agenda_after: Rows::of(&types.agenda),
            lane_changes: Vec::new(),
            lanes: Rows::of(&types.lane),
            waiting_before: Rows::of(&types.lane_waiting),
            waiting_after: Rows::of(&types.lane_waiting),
            reminder_kinds: Vec::new(),
            reminder_times: Vec::new(),
            reminded: Vec::new(),
            paged: Vec::new(),
            forgotten: Vec::new(),
            unplaced: Vec::new(),
            left_lanes: Vec::new(),
            counts: Vec::new(),
            believed: Vec::new(),
            believed_versions: Vec::new(),
            believed_heads: Vec::new(),
        }
    }

    fn put(&mut self, position: i64, line: &Line) {
        let change = &line.change;
        let (before, after) = (change.before.as_deref(), change.after.as_deref());
        match (before, after) {
            (None, _) => {
                self.inserts.push(COLUMNS.iter().map(|column| column.value(line)));
                self.inserted += 1;
                self.numbered |= line.id.is_some();
            }
            (Some(before), Some(_)) => {
                self.updates.push(COLUMNS.iter().map(|column| column.value(line)));
                self.updated_ids.push(before.id.number());
            }
            (Some(before), None) => {
                self.removals.push(before.id.number());
                self.removed_versions.push(before.version);
            }
        }
        if let Some(before) = change.archived() {
            self.archived.push(position);
            self.not_kept.push(before.record.answer.as_ref().and_then(codec::not_kept_text));
        }
        if after.is_some_and(|after| after.record.answer.is_some()) && !change.answer_changes() {
            self.answered.push(position);
        }
        if change.drops_request() {
            self.unrequested.push(position);
        }
        let is_buried = |stored: &crate::plan::Stored| stored.record.is_tombstone();
        if after.is_some_and(is_buried) && !before.is_some_and(is_buried) {
            self.buried.push(position);
        }
        self.schedule(position, before, after);
        self.remind(position, line);
        if let (Some(before), Some(after)) = (before, after)
            && before.journal_rows / PAGE_ENTRIES != after.journal_rows / PAGE_ENTRIES
        {
            self.paged.push(position);
        }
        if change.forgets() {
            self.forgotten.push(position);
        }
        if let Some(lane) = change.left_lane() {
            self.unplaced.extend(after.map(|_| position));
            self.left_lanes.push(lane.to_owned());
        }
        if let (Some(lane), Some(place)) = (&change.lane, change.place()) {
            self.lane_changes.push(position);
            let name = Field::Text(Some(place.lane.as_str()));
            let holder = Field::int(lane.holder.map(IntentId::number));
            self.lanes.push([name, holder, Field::int(lane.applied)]);
        }
        let (waits_before, waits_after) = (before.and_then(Queued::of), after.and_then(Queued::of));
        if waits_before != waits_after {
            waits_before.iter().for_each(|place| self.waiting_before.push(waiting_fields(position, place)));
            waits_after.iter().for_each(|place| self.waiting_after.push(waiting_fields(position, place)));
        }
    }

    fn schedule(&mut self, position: i64, before: Option<&Stored>, after: Option<&Stored>) {
        fn line(position: i64, stored: &Stored) -> Option<(Agenda, [Field<'_>; 5])> {
            let line = Agenda::of(stored).filter(|_| columns::wake_at(stored).is_none())?;
            let (status, wake_at) = (Field::Text(Some(line.status.as_str())), Field::at(Some(line.wake_at)));
            let (due_at, scope) = (Field::at(line.due_at), Field::Text(line.scope(stored)));
            Some((line, [status, wake_at, Field::Int(Some(position)), due_at, scope]))
        }
        let before = before.and_then(|stored| line(position, stored));
        let after = after.and_then(|stored| line(position, stored));
        if before.as_ref().map(|line| line.0) != after.as_ref().map(|line| line.0) {
            before.into_iter().for_each(|(_, fields)| self.agenda_before.push(fields));
            after.into_iter().for_each(|(_, fields)| self.agenda_after.push(fields));
        }
    }

    fn remind(&mut self, position: i64, line: &Line) {
        let (before, after) = (line.change.before.as_deref(), line.change.after.as_deref());
        let (wake_before, wake_after) = (before.and_then(columns::wake_at), after.and_then(columns::wake_at));
        let keep_until = |stored: Option<&Stored>| stored.map(|stored| stored.record.keep_until());
        let Some(keep_after) = keep_until(after) else { return };
        let Some(keep_before) = keep_until(before) else {
            let times = [Some(line.at + FIRST_LOOK), wake_after, Some(keep_after)];
            let first_look = times.into_iter().flatten().map(Timestamp::as_millis);
            self.remind_at = first_look.chain(self.remind_at).min();
            return;
        };
        let mut remind = |kind, at: Timestamp| {
            self.reminder_kinds.push(kind);
            self.reminder_times.push(at.as_millis());
            self.reminded.push(position);
        };
        // What is put off is found out when the reminder comes.
        if let Some(wake_at) = wake_after
            && wake_before.is_none_or(|before| wake_at < before)
        {
            remind("wake", wake_at);
        }
        if keep_after < keep_before {
            remind("keep", keep_after);
        }
    }

    /// The next change is of that kind. Kinds are numbered as they come.
    fn is_of_kind(&mut self, kind: i64) {
        self.kinds.push(kind);
        if kind > self.times.len() as i64 {
            self.times.push(0);
        }
        self.times[kind as usize - 1] += 1;
    }

    /// What is counted with each change of a kind.
    fn count(&mut self, kind: i64, tally: &Tally) {
        let rows = tally.rows();
        let counts = rows.map(|(hour, name, n)| json!({ "kind": kind, "hour": hour, "name": name, "n": n }));
        self.counts.extend(counts);
    }

    /// All that is counted. Without anything that is counted and without intents to look at there is nothing to keep of it.
    fn counted(&mut self) -> Option<String> {
        let counts = std::mem::take(&mut self.counts);
        (self.inserted > 0 || !counts.is_empty()).then(|| serde_json::Value::Array(counts).to_string())
    }

    /// The numbers of what was written, by position, if all of it was, and nothing is removed.
    fn numbers_from(&self, first: Option<i64>) -> Vec<Option<i64>> {
        let inserts = first.into_iter().flat_map(|first| first..first + self.inserted);
        inserts.chain(self.updated_ids.iter().copied()).map(Some).collect()
    }

    /// What few batches have: one row, or none.
    fn seldom(&self, row_type: &RowType) -> Rows {
        let kinds: Vec<Option<&str>> = self.reminder_kinds.iter().copied().map(Some).collect();
        let not_kept: Vec<Option<&str>> = self.not_kept.iter().map(Option::as_deref).collect();
        let left_lanes: Vec<Option<&str>> = self.left_lanes.iter().map(|lane| Some(&**lane)).collect();
        let fields = self.seldom_fields(&kinds, &not_kept, &left_lanes);
        let mut seldom = Rows::of(row_type);
        if !fields.iter().all(|(_, field)| field.is_empty()) {
            seldom.push(fields.map(|(_, field)| field));
        }
        seldom
    }

    /// In the order of the type.
    fn seldom_fields<'a>(
        &'a self,
        reminder_kinds: &'a [Option<&'a str>],
        not_kept: &'a [Option<&'a str>],
        left_lanes: &'a [Option<&'a str>],
    ) -> [(&'static str, Field<'a>); 20] {
        [
            ("removals", Field::Ints(&self.removals)),
            ("removed_versions", Field::Ints(&self.removed_versions)),
            ("paged", Field::Ints(&self.paged)),
            ("archived", Field::Ints(&self.archived)),
            ("not_kept", Field::Texts(not_kept)),
            ("answered", Field::Ints(&self.answered)),
            ("unrequested", Field::Ints(&self.unrequested)),
            ("buried", Field::Ints(&self.buried)),
            ("reminder_kinds", Field::Texts(reminder_kinds)),
            ("reminder_times", Field::Ints(&self.reminder_times)),
            ("reminded", Field::Ints(&self.reminded)),
            ("agenda_before", Field::Rows(&self.agenda_before)),
            ("agenda_after", Field::Rows(&self.agenda_after)),
            ("lane_changes", Field::Ints(&self.lane_changes)),
            ("lanes", Field::Rows(&self.lanes)),
            ("waiting_before", Field::Rows(&self.waiting_before)),
            ("waiting_after", Field::Rows(&self.waiting_after)),
            ("forgotten", Field::Ints(&self.forgotten)),
            ("unplaced", Field::Ints(&self.unplaced)),
            ("left_lanes", Field::Texts(left_lanes)),
        ]
    }
}

fn waiting_fields<'a>(position: i64, place: &Queued<'a>) -> [Field<'a>; 4] {
    let (rank, until) = (Field::Int(Some(place.rank)), Field::at(Some(place.until)));
    [Field::Text(Some(place.lane)), rank, Field::Int(Some(position)), until]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seldom_is_in_the_order_of_the_type() {
        let row_type = || RowType::new("t", 1, 2);
        let types = RowTypes {
            intent: row_type(),
            agenda: row_type(),
            lane: row_type(),
            lane_waiting: row_type(),
            entry: row_type(),
            seldom: row_type(),
        };
        let batch = Batch::new(&types);
        let names = batch.seldom_fields(&[], &[], &[]).map(|(name, _)| name);
        let sql = super::super::open::MIGRATIONS[0];
        let of_type = sql.split_once("CREATE TYPE seldom AS (").and_then(|(_, rest)| rest.split_once("\n)"));
        let lines =
            of_type.expect("there is a type").0.lines().filter_map(|line| line.split_whitespace().next());
        assert_eq!(lines.collect::<Vec<_>>(), names);
        assert!(batch.seldom(&types.seldom).is_empty());
    }
}
