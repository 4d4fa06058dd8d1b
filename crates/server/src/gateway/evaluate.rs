//! Evaluates expressions in a bounded number of steps. What is seen is borrowed, never copied: a body of megabytes costs only what
//! an expression looks at.

mod operators;
#[cfg(test)]
mod tests;
mod values;

use std::collections::HashMap;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use self::values::{List, Map, Val};
use super::expression::Sight;

/// Most steps of one evaluation: some ten milliseconds. A list of 4,000 can be gone through with 100 steps for each item.
pub(super) const STEPS_MAX: u64 = 500_000;
/// So many bytes that are read or copied are a step.
const BYTES_A_STEP: usize = 64;
/// Largest compiled pattern: the time that it takes for a byte depends on this.
const PATTERN_BYTES_MAX: usize = 256 << 10;

/// Why an expression has no value.
#[derive(Debug)]
pub(super) enum Fault {
    Wrong(String),
    /// It takes too many steps. No `||` or `&&` around it makes up for that.
    Exhausted,
}

type Evaluated<'a> = Result<Val<'a>, Fault>;

fn wrong<T>(words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Wrong(words.into()))
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wrong(words) => f.write_str(words),
            Self::Exhausted => {
                write!(f, "it takes more than {STEPS_MAX} steps with what it was given; make it simpler")
            }
        }
    }
}

/// Patterns of `matches`, compiled when the expression is read.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Regex>);

impl Patterns {
    /// Compiles a pattern. It runs in linear time, whatever it is held against.
    pub(super) fn add(&mut self, pattern: &str) -> Result<(), String> {
        let built = RegexBuilder::new(pattern)
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|error| format!("the pattern '{pattern}' is not valid: {error}"))?;
        self.0.insert(pattern.to_owned(), built);
        Ok(())
    }
}

/// Evaluates an expression that was checked.
pub(super) fn evaluate(
    expression: &IdedExpr,
    patterns: &Patterns,
    sight: &Sight<'_>,
) -> Result<Value, Fault> {
    let mut evaluation = Evaluation { sight, patterns, bound: Vec::new(), steps_left: STEPS_MAX };
    let value = evaluation.value(expression)?;
    evaluation.json(&value)
}

/// One evaluation.
struct Evaluation<'a> {
    sight: &'a Sight<'a>,
    patterns: &'a Patterns,
    /// Names that macros have bound, the innermost last.
    bound: Vec<(&'a str, Val<'a>)>,
    steps_left: u64,
}

impl<'a> Evaluation<'a> {
    fn take(&mut self, steps: usize) -> Result<(), Fault> {
        let left = self.steps_left.checked_sub(steps as u64);
        self.steps_left = left.unwrap_or(0);
        left.map(drop).ok_or(Fault::Exhausted)
    }

    /// Takes the steps that it costs to go through so many bytes.
    fn take_bytes(&mut self, bytes: usize) -> Result<(), Fault> {
        self.take(bytes / BYTES_A_STEP)
    }

    fn value(&mut self, expression: &'a IdedExpr) -> Evaluated<'a> {
        self.take(1)?;
        match &expression.expr {
            Expr::Literal(literal) => literal_value(literal),
            Expr::Ident(name) => self.named(name),
            Expr::Select(select) => {
                let of = self.value(&select.operand)?;
                let Val::Map(map) = &of else {
                    return wrong(format!("{} has no `{}`", of.kind(), select.field));
                };
                self.take_bytes(map.cost())?;
                match (map.get(&select.field), select.test) {
                    (found, true) => Ok(Val::Bool(found.is_some())),
                    (Some(value), false) => Ok(value),
                    (None, false) => wrong(format!("there is no `{}`", select.field)),
                }
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let items = list.elements.iter().map(|item| self.value(item));
                Ok(Val::List(List::of(items.collect::<Result<_, _>>()?)))
            }
            Expr::Map(map) => {
                let mut entries: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(map.entries.len());
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return wrong("structs cannot be made here");
                    };
                    let (key, value) = (self.value(&entry.key)?, self.value(&entry.value)?);
                    if !key.is_key() || matches!(key, Val::Float(_)) {
                        return wrong(format!("{} cannot be the key of a map", key.kind()));
                    }
                    for (other, _) in &entries {
                        if self.equal(other, &key)? {
                            return wrong("a map has two entries of the same key");
                        }
                    }
                    entries.push((key, value));
                }
                Ok(Val::Map(Map::of(entries)))
            }
            Expr::Comprehension(loops) => self.comprehension(loops),
            Expr::Struct(_) | Expr::Unspecified => wrong("structs cannot be made here"),
        }
    }

    fn named(&mut self, name: &str) -> Evaluated<'a> {
        if let Some((_, value)) = self.bound.iter().rev().find(|(bound, _)| *bound == name) {
            return Ok(value.clone());
        }
        let seen = |value: Option<&'a Value>| value.map_or(Val::Null, Val::from);
        Ok(match name {
            "request" => seen(self.sight.request),
            "answer" => seen(self.sight.answer),
            "event" => seen(self.sight.event),
            "key" => Val::text(self.sight.key.unwrap_or_default()),
            "destination_key" => Val::text(self.sight.destination_key.unwrap_or_default()),
            _ => match values::TYPES.iter().find(|known| **known == name) {
                Some(known) => Val::Type(known),
                None => return wrong(format!("there is no `{name}`")),
            },
        })
    }

    fn truth(&mut self, expression: &'a IdedExpr) -> Result<bool, Fault> {
        match self.value(expression)? {
            Val::Bool(value) => Ok(value),
            other => wrong(format!("{} is neither true nor false", other.kind())),
        }
    }

    fn call(&mut self, call: &'a CallExpr) -> Evaluated<'a> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            ("_?_:_", [when, yes, no]) => {
                let chosen = if self.truth(when)? { yes } else { no };
                self.value(chosen)
            }
            ("_||_", [left, right]) => self.either(left, right, true),
            ("_&&_", [left, right]) => self.either(left, right, false),
            ("@not_strictly_false", [of]) => match self.truth(of) {
                Err(Fault::Exhausted) => Err(Fault::Exhausted),
                other => Ok(Val::Bool(other.unwrap_or(true))),
            },
            ("_+_", [left, right]) if self.is_result(left) => self.appended(right),
            (name, arguments) => {
                let target = call.target.iter().map(|target| &**target);
                let values = target.chain(arguments).map(|argument| self.value(argument));
                let values = values.collect::<Result<Vec<_>, _>>()?;
                self.apply(name, call.target.is_some(), &values)
            }
        }
    }

    /// `left || right`, or `left && right`: decided by either side, even if the other one has no value.
    fn either(&mut self, left: &'a IdedExpr, right: &'a IdedExpr, decides: bool) -> Evaluated<'a> {
        let first = match self.truth(left) {
            Err(Fault::Exhausted) => return Err(Fault::Exhausted),
            Ok(first) if first == decides => return Ok(Val::Bool(decides)),
            first => first,
        };
        let second = self.truth(right)?;
        match first {
            Err(fault) if second != decides => Err(fault),
            _ => Ok(Val::Bool(second)),
        }
    }

    /// Whether this names the list that a `map` or `filter` is making.
    fn is_result(&self, expression: &IdedExpr) -> bool {
        let Expr::Ident(name) = &expression.expr else { return false };
        let makes = |(bound, value): &(&str, Val<'_>)| bound == name && matches!(value, Val::List(_));
        name == RESULT && self.bound.iter().rev().find(|(bound, _)| bound == name).is_some_and(makes)
    }

    /// The list that is being made, with more at its end: nothing of it is copied.
    fn appended(&mut self, more: &'a IdedExpr) -> Evaluated<'a> {
        self.take(1)?;
        let more = self.value(more)?;
        let result = self.bound.iter_mut().rev().find(|(bound, _)| *bound == RESULT);
        let made = result.map_or(Val::Null, |(_, value)| std::mem::replace(value, Val::Null));
        let (Val::List(made), Val::List(more)) = (made, more) else {
            return wrong("only lists can be added to a list");
        };
        self.take(more.len())?;
        Ok(Val::List(made.and(&more)))
    }

    fn comprehension(&mut self, loops: &'a ComprehensionExpr) -> Evaluated<'a> {
        let first = self.value(&loops.accu_init)?;
        let range = self.value(&loops.iter_range)?;
        let depth = self.bound.len();
        let ended = self.run(loops, first, &range);
        self.bound.truncate(depth);
        ended
    }

    fn run(&mut self, loops: &'a ComprehensionExpr, first: Val<'a>, range: &Val<'a>) -> Evaluated<'a> {
        let decides = decides(loops);
        self.bound.push((&loops.accu_var, first));
        let result_at = self.bound.len() - 1;
        // A later item may still decide what one left open.
        let mut left_open: Option<Fault> = None;
        self.take(range.items()?)?;
        for (key, item) in range.entries() {
            if !self.truth(&loops.loop_cond)? {
                break;
            }
            match (&loops.iter_var2, range) {
                (Some(second), _) => {
                    self.bound.extend([(loops.iter_var.as_str(), key), (second.as_str(), item)]);
                }
                (None, Val::Map(_)) => self.bound.push((&loops.iter_var, key)),
                (None, _) => self.bound.push((&loops.iter_var, item)),
            }
            let step = self.value(&loops.loop_step);
            self.bound.truncate(result_at + 1);
            match (step, decides) {
                (Err(Fault::Exhausted), _) => return Err(Fault::Exhausted),
                (Err(fault), Some(_)) => left_open = Some(fault),
                (Err(fault), None) => return Err(fault),
                (Ok(step), decides) => {
                    let has_decided = |decides| matches!(step, Val::Bool(value) if value == decides);
                    if left_open.is_none() || decides.is_some_and(has_decided) {
                        left_open = None;
                        self.bound[result_at].1 = step;
                    }
                }
            }
        }
        match left_open {
            Some(fault) => Err(fault),
            None => self.value(&loops.result),
        }
    }
}

/// The name that macros give to what they make. Nobody can write it.
const RESULT: &str = "@result";

/// What decides an `exists` or an `all`, whatever the other items are.
fn decides(loops: &ComprehensionExpr) -> Option<bool> {
    let Expr::Call(call) = &loops.loop_step.expr else { return None };
    let is_result = |of: &IdedExpr| matches!(&of.expr, Expr::Ident(name) if *name == loops.accu_var);
    match call.func_name.as_str() {
        "_||_" if call.args.first().is_some_and(is_result) => Some(true),
        "_&&_" if call.args.first().is_some_and(is_result) => Some(false),
        _ => None,
    }
}

fn literal_value(literal: &LiteralValue) -> Evaluated<'_> {
    Ok(match literal {
        LiteralValue::Boolean(value) => Val::Bool(*value.inner()),
        LiteralValue::Double(value) => Val::Float(*value.inner()),
        LiteralValue::Int(value) => Val::Int(*value.inner()),
        LiteralValue::UInt(value) => Val::UInt(*value.inner()),
        LiteralValue::String(value) => Val::text(value.inner()),
        LiteralValue::Null => Val::Null,
        LiteralValue::Bytes(_) => return wrong("bytes cannot be used here"),
    })
}
