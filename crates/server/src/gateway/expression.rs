//! Expressions over a request, or over an answer: CEL without a clock and without randomness (S6). What they name is checked
//! when the configuration is read; a field that is missing is an error, never an empty value (S2).

use std::sync::Arc;

use cel::common::ast::{EntryExpr, Expr, LiteralValue};
use cel::{IdedExpr, Program};
use serde_json::{Number, Value};

use super::evaluate::{Patterns, evaluate};

/// Longest expression, how many dots, brackets and operators it has, and how deep its brackets go: what reads it goes as deep.
const EXPRESSION_BYTES_MAX: usize = 2000;
const SIGNS_MAX: usize = 120;
const DEPTH_MAX: usize = 20;
/// What may be called, beside operators.
const FUNCTIONS: [&str; 14] = [
    "size",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "type",
    "min",
    "max",
    "lowerAscii",
];

/// What an expression can see.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sight<'a> {
    pub(crate) request: Option<&'a Value>,
    /// What arrived at an inbox.
    pub(crate) event: Option<&'a Value>,
    pub(crate) answer: Option<&'a Value>,
    /// The intent's key.
    pub(crate) key: Option<&'a str>,
    /// The key the destination is given: the same for every attempt of a generation.
    pub(crate) destination_key: Option<&'a str>,
}

/// The names an expression may use, by where it stands.
pub(crate) const OF_REQUEST: &[&str] = &["request"];
pub(crate) const OF_EVENT: &[&str] = &["event"];
pub(crate) const OF_ANSWER: &[&str] = &["request", "answer"];
pub(crate) const OF_LOOKUP: &[&str] = &["request", "key", "destination_key"];
pub(crate) const OF_LOOKUP_ANSWER: &[&str] = &["request", "answer", "key", "destination_key"];

/// What they have, whatever comes: a misspelt one would only be noticed by the first caller.
const MEMBERS: [(&str, &[&str]); 3] = [
    ("request", &["method", "path", "params", "query", "headers", "body"]),
    ("answer", &["status", "headers", "body", "output"]),
    ("event", &["headers", "query", "body"]),
];

/// An expression that was understood.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    text: Arc<str>,
    form: Arc<Form>,
}

#[derive(Debug)]
enum Form {
    /// `request.body.order.id`: most are, and need no interpreter.
    Path(String, Vec<Step>),
    Program(Program, Patterns),
}

#[derive(Debug)]
enum Step {
    Field(String),
    Item(usize),
}

/// Names of headers are small here, however somebody writes them: `request.headers['Idempotency-Key']`.
fn with_small_headers(text: &str) -> String {
    let mut parts = text.split("headers[");
    let mut small = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        small.push_str("headers[");
        let quoted = part.chars().next().filter(|first| "'\"".contains(*first));
        let end = quoted.and_then(|quote| part[1..].find(quote)).map_or(0, |end| end + 1);
        small.push_str(&part[..end].to_ascii_lowercase());
        small.push_str(&part[end..]);
    }
    small
}

impl Expression {
    /// Reads an expression that may use those names.
    pub(crate) fn parse(text: &str, names: &[&str]) -> Result<Self, String> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("the expression has more than {EXPRESSION_BYTES_MAX} bytes"));
        }
        let signs = text.chars().filter(|letter| ".([{+-*/%&|?<>=!".contains(*letter)).count();
        if depth(text) > DEPTH_MAX || signs > SIGNS_MAX {
            return Err(format!(
                "`{text}` has more than {SIGNS_MAX} signs, or brackets deeper than {DEPTH_MAX}"
            ));
        }
        let program = Program::compile(&with_small_headers(text)).map_err(|errors| {
            let errors = errors.to_string();
            let first = errors.lines().next().unwrap_or_default();
            format!("`{text}` is not an expression: {}", first.trim_start_matches("ERROR: "))
        })?;
        let mut patterns = Patterns::default();
        check(program.expression(), names, &mut Vec::new(), &mut patterns)
            .map_err(|why| format!("`{text}`: {why}"))?;
        let form = match path(program.expression()) {
            Some((root, steps)) => Form::Path(root, steps),
            None => Form::Program(program, patterns),
        };
        Ok(Self { text: text.into(), form: Arc::new(form) })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether what it comes to may depend on that part of an event: `["body"]`, `["headers", "x-id"]`.
    pub(crate) fn may_read(&self, part: &[&str]) -> bool {
        match &*self.form {
            Form::Path(root, steps) if root == "event" => {
                steps.iter().zip(part).all(|(step, part)| matches!(step, Step::Field(field) if field == part))
            }
            _ => true,
        }
    }

    /// Returns what it may read of the request, as paths: `["headers", "x-shop"]`. A path stands for everything below it, and an
    /// empty one for the whole request.
    pub(crate) fn reads(&self) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        match &*self.form {
            Form::Path(root, steps) if root == "request" => all.push(fields(steps)),
            Form::Path(..) => {}
            Form::Program(program, _) => note_reads(program.expression(), &mut all),
        }
        all
    }

    /// What it comes to, or why it does not.
    pub(crate) fn value(&self, sight: &Sight<'_>) -> Result<Value, String> {
        let wrong = |why: String| format!("`{}`: {why}", self.text);
        match &*self.form {
            Form::Path(root, steps) => followed(root, steps, sight).map_err(wrong),
            Form::Program(program, patterns) => {
                evaluate(program.expression(), patterns, sight).map_err(|fault| wrong(fault.to_string()))
            }
        }
    }

    /// Whether it may look into a body.
    pub(crate) fn speaks_of_bodies(&self) -> bool {
        // What names a part of the answer says so; whatever else it does, it may be about any of them.
        let parts = ["answer.status", "answer.headers", "answer['headers']", "answer['status']"];
        let others = parts.iter().fold(self.text.to_string(), |text, part| text.replace(part, ""));
        others.contains("answer")
    }

    /// Whether it holds. Anything but true and false is a mistake.
    pub(crate) fn holds(&self, sight: &Sight<'_>) -> Result<bool, String> {
        match self.value(sight)? {
            Value::Bool(holds) => Ok(holds),
            _ => Err(format!("`{}` gives neither true nor false", self.text)),
        }
    }

    /// A name: text, or an exact integer (S2). Missing, null and empty are mistakes.
    pub(crate) fn name(&self, sight: &Sight<'_>) -> Result<Named, String> {
        let wrong = |what: &str| Err(format!("`{}` is {what}", self.text));
        match self.value(sight)? {
            Value::String(text) if text.is_empty() => wrong("empty"),
            Value::String(text) => Ok(Named::Text(text)),
            Value::Number(number) => match exact(&number) {
                Some(number) => Ok(Named::Integer(number)),
                None => wrong("a number that is not an exact integer"),
            },
            Value::Null => wrong("null"),
            Value::Bool(_) => wrong("true or false, which names nothing"),
            Value::Array(_) | Value::Object(_) => wrong("not a text or an integer"),
        }
    }
}

/// How deep its brackets go at most, those in texts included.
fn depth(text: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' | '?' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

/// A name as a request has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Text(String),
    Integer(i64),
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
        }
    }
}

/// The integer that a number is, if it is one that every program reads the same.
fn exact(number: &Number) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match (number.as_i64(), number.as_f64()) {
        (Some(integer), _) => Some(integer),
        (None, Some(float)) if !number.is_u64() && float.fract() == 0.0 && float.abs() <= EXACT_MAX => {
            Some(float as i64)
        }
        _ => None,
    }
}

fn followed(root: &str, steps: &[Step], sight: &Sight<'_>) -> Result<Value, String> {
    let absent = || "there is no such value here".to_owned();
    let text = |text: Option<&str>| match (text, steps) {
        (Some(text), []) => Ok(Value::from(text)),
        _ => Err(absent()),
    };
    let mut here = match root {
        "request" => sight.request.ok_or_else(absent)?,
        "answer" => sight.answer.ok_or_else(absent)?,
        "event" => sight.event.ok_or_else(absent)?,
        "key" => return text(sight.key),
        _ => return text(sight.destination_key),
    };
    for step in steps {
        here = match step {
            Step::Field(name) => here.get(name).ok_or_else(|| format!("the {root} has no `{name}`")),
            Step::Item(number) => here.get(number).ok_or_else(|| format!("the {root} has no item {number}")),
        }?;
    }
    Ok(here.clone())
}

/// The expression as a plain path, if it is one.
fn path(expression: &IdedExpr) -> Option<(String, Vec<Step>)> {
    match &expression.expr {
        Expr::Ident(name) => Some((name.clone(), Vec::new())),
        Expr::Select(select) if !select.test => {
            let (root, mut steps) = path(&select.operand)?;
            steps.push(Step::Field(select.field.clone()));
            Some((root, steps))
        }
        Expr::Call(call) if call.func_name == "_[_]" => {
            let [of, index] = call.args.as_slice() else { return None };
            let (root, mut steps) = path(of)?;
            steps.push(match &index.expr {
                Expr::Literal(LiteralValue::String(name)) => Step::Field(name.inner().to_owned()),
                Expr::Literal(LiteralValue::Int(number)) => {
                    Step::Item(usize::try_from(*number.inner()).ok()?)
                }
                _ => return None,
            });
            Some((root, steps))
        }
        _ => None,
    }
}

/// The fields that a path names, up to the first item of a list.
fn fields(steps: &[Step]) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::Field(name) => Some(name.clone()),
        Step::Item(_) => None,
    };
    steps.iter().map_while(name).collect()
}

/// Notes every part of the request that an expression may read. What is not plainly one part is all that is above it.
fn note_reads(expression: &IdedExpr, all: &mut Vec<Vec<String>>) {
    if let Some((root, steps)) = path(expression) {
        if root == "request" {
            all.push(fields(&steps));
        }
        return;
    }
    match &expression.expr {
        Expr::Select(select) => match path(&select.operand) {
            // `has(request.body.x)` is no path itself.
            Some((root, steps)) if root == "request" && fields(&steps).len() == steps.len() => {
                all.push([fields(&steps), vec![select.field.clone()]].concat());
            }
            _ => note_reads(&select.operand, all),
        },
        Expr::Call(call) => {
            if let ("@in", [name, of]) = (call.func_name.as_str(), call.args.as_slice())
                && let Expr::Literal(LiteralValue::String(name)) = &name.expr
                && let Some((root, steps)) = path(of)
                && fields(&steps).len() == steps.len()
            {
                if root == "request" {
                    all.push([fields(&steps), vec![name.inner().to_owned()]].concat());
                }
                return;
            }
            call.target.iter().for_each(|target| note_reads(target, all));
            call.args.iter().for_each(|argument| note_reads(argument, all));
        }
        Expr::Comprehension(loops) => {
            let parts =
                [&loops.iter_range, &loops.accu_init, &loops.loop_cond, &loops.loop_step, &loops.result];
            parts.into_iter().for_each(|part| note_reads(part, all));
        }
        Expr::List(list) => list.elements.iter().for_each(|item| note_reads(item, all)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                note_reads(&entry.key, all);
                note_reads(&entry.value, all);
            }
            EntryExpr::StructField(field) => note_reads(&field.value, all),
        }),
        // What cannot be made here reads nothing.
        Expr::Struct(_) | Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}

/// Everything it names must be there.
fn check(
    expression: &IdedExpr,
    names: &[&str],
    bound: &mut Vec<String>,
    patterns: &mut Patterns,
) -> Result<(), String> {
    match &expression.expr {
        Expr::Ident(name) => {
            let is_type = ["int", "uint", "double", "string", "bool", "list", "map", "null_type", "bytes"];
            if names.contains(&name.as_str()) || bound.contains(name) || is_type.contains(&name.as_str()) {
                return Ok(());
            }
            Err(format!("there is no `{name}`; it can use {}", names.join(", ")))
        }
        Expr::Call(call) => {
            let name = call.func_name.as_str();
            let is_operator = name.starts_with(['_', '!', '-', '@']);
            if !is_operator && !FUNCTIONS.contains(&name) {
                return Err(format!("there is no function `{name}`; there are {}", FUNCTIONS.join(", ")));
            }
            if name == "matches" {
                // A pattern from a request could be made to take long, and is nobody's who wrote the configuration.
                match call.args.last().map(|pattern| &pattern.expr) {
                    Some(Expr::Literal(LiteralValue::String(pattern))) => patterns.add(pattern.inner())?,
                    _ => return Err("the pattern of `matches` must be written out, in quotes".to_owned()),
                }
            }
            call.target.iter().try_for_each(|target| check(target, names, bound, patterns))?;
            call.args.iter().try_for_each(|argument| check(argument, names, bound, patterns))
        }
        Expr::Comprehension(loops) => {
            check(&loops.iter_range, names, bound, patterns)?;
            check(&loops.accu_init, names, bound, patterns)?;
            let before = bound.len();
            bound.extend([loops.iter_var.clone(), loops.accu_var.clone()]);
            bound.extend(loops.iter_var2.clone());
            for part in [&loops.loop_cond, &loops.loop_step, &loops.result] {
                check(part, names, bound, patterns)?;
            }
            bound.truncate(before);
            Ok(())
        }
        Expr::List(list) => list.elements.iter().try_for_each(|item| check(item, names, bound, patterns)),
        Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
            EntryExpr::MapEntry(entry) => {
                check(&entry.key, names, bound, patterns)?;
                check(&entry.value, names, bound, patterns)
            }
            EntryExpr::StructField(field) => check(&field.value, names, bound, patterns),
        }),
        Expr::Select(select) => {
            if let Expr::Ident(root) = &select.operand.expr
                && !bound.contains(root)
                && let Some((_, members)) = MEMBERS.iter().find(|(name, _)| name == root)
                && !members.contains(&select.field.as_str())
            {
                return Err(format!("the {root} has no `{}`; it has {}", select.field, members.join(", ")));
            }
            check(&select.operand, names, bound, patterns)
        }
        Expr::Struct(_) => Err("structs cannot be made here".to_owned()),
        Expr::Literal(LiteralValue::Bytes(_)) => Err("bytes cannot be used here".to_owned()),
        Expr::Literal(_) | Expr::Unspecified => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(text: &str) -> Result<Value, String> {
        let request = json!({
            "body": { "id": "a", "amount": 100.5, "n": 7, "whole": 12.0, "large": 9007199254740993u64, "none": null,
                      "empty": "", "items": [{ "id": "x" }] },
            "headers": { "x-order": "o-1" }
        });
        let sight = Sight { request: Some(&request), key: Some("k"), ..Sight::default() };
        Expression::parse(text, OF_LOOKUP)?.value(&sight)
    }

    #[test]
    fn s20_patterns_are_written_out_and_valid() {
        for (text, said) in [
            ("'a'.matches(request.body.id)", "must be written out"),
            ("matches('a', request.body.id)", "must be written out"),
            ("request.body.id.matches('a' + 'b')", "must be written out"),
            ("request.body.id.matches('(')", "is not valid"),
            ("request.body.id.matches('(a{1000}){1000}')", "is not valid"),
            ("request.?body.id", "unsupported syntax"),
            ("request[?'body']", "unsupported syntax"),
            ("[?request.body]", "unsupported syntax"),
            ("b'a' == b'a'", "bytes"),
        ] {
            let error = Expression::parse(text, OF_LOOKUP).map(|_| ()).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        assert_eq!(seen("request.body.id.matches('^(a|b)+$')"), Ok(json!(true)));
    }

    #[test]
    fn expressions_see_the_request() {
        for (text, value) in [
            ("request.body.id", json!("a")),
            ("request.headers['x-order']", json!("o-1")),
            ("request.body.items[0].id", json!("x")),
            ("request.body.amount > 100", json!(true)),
            ("request.body.n * 100 > 600", json!(true)),
            ("size(request.body.items) > 0", json!(true)),
            ("request.body.items.exists(i, i.id == 'x')", json!(true)),
            ("has(request.body.missing) ? 1 : 2", json!(2)),
            ("'contact:' + string(request.body.n)", json!("contact:7")),
            ("key", json!("k")),
            ("request.body.id.startsWith('a')", json!(true)),
        ] {
            assert_eq!(seen(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn bodies_are_read_unless_an_expression_is_plainly_about_something_else() {
        for (text, may) in [
            ("event.headers['x-github-delivery']", false),
            ("event.query.id", false),
            ("event['headers'].id", false),
            ("event.body", true),
            ("event.body.id", true),
            ("event['body'].id", true),
            ("event", true),
            ("event.headers.id + string(event.body.n)", true),
            ("event['bo' + 'dy']", true),
        ] {
            let expression = Expression::parse(text, OF_EVENT).expect("it is one");
            assert_eq!(expression.may_read(&["body"]), may, "{text}");
        }
    }

    #[test]
    fn headers_are_shown_unless_an_expression_is_plainly_about_something_else() {
        for (text, may) in [
            ("event.headers['X-Id']", true),
            ("event.headers['x-other']", false),
            ("event.headers", true),
            ("event", true),
            ("event.body.headers", false),
            ("event.headers['x-' + 'id']", true),
            ("'x-id' in event.headers ? 'a' : 'b'", true),
        ] {
            let expression = Expression::parse(text, OF_EVENT).expect("it is one");
            assert_eq!(expression.may_read(&["headers", "x-id"]), may, "{text}");
        }
    }

    #[test]
    fn s4_what_an_expression_reads_of_a_request_is_known() {
        for (text, expected) in [
            ("request.headers['X-Shop']", vec!["headers.x-shop"]),
            ("'x-shop' in request.headers ? request.headers['x-shop'] : 'own'", vec!["headers.x-shop"]),
            ("has(request.body.a.b) && request.body.n > 1", vec!["body.a.b", "body.n"]),
            ("request.body.items[0].id", vec!["body.items"]),
            ("request.body.items.exists(i, i.id == request.query.x)", vec!["body.items", "query.x"]),
            ("request.headers[request.body.which] == 'a'", vec!["body.which", "headers"]),
            ("size(request.headers) > 3", vec!["headers"]),
            ("string(request) == key", vec![""]),
            ("[request.path, {'a': request.method}] == []", vec!["method", "path"]),
            ("answer.body.id", vec![]),
        ] {
            let expression = Expression::parse(text, OF_LOOKUP_ANSWER).expect(text);
            let mut reads: Vec<String> = expression.reads().iter().map(|path| path.join(".")).collect();
            reads.sort();
            reads.dedup();
            assert_eq!(reads, expected, "{text}");
        }
    }

    #[test]
    fn s6_a_bad_expression_is_refused_when_it_is_read() {
        for (text, said) in [
            ("now()", "there is no function `now`"),
            ("timestamp('2026-01-01T00:00:00Z')", "there is no function `timestamp`"),
            ("answer.body.id", "there is no `answer`; it can use request, key, destination_key"),
            ("requst.body.id", "there is no `requst`"),
            ("1 +", "is not an expression"),
            ("", "is not an expression"),
        ] {
            let error = Expression::parse(text, OF_LOOKUP).map(|_| ()).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        for deep in ["(", "[", "!", "- ", "request.a ? request.b : "] {
            assert!(Expression::parse(&(deep.repeat(200) + "request"), OF_REQUEST).is_err(), "{deep}");
        }
        // As deep as may be.
        for (begins, goes_on) in
            [("request", ".a"), ("request", "[0]"), ("1", " + 1"), ("true", " && true"), ("", "!"), ("", "-")]
        {
            let text = begins.to_owned()
                + &goes_on.repeat(SIGNS_MAX / 2)
                + if begins.is_empty() { "request" } else { "" };
            drop(Expression::parse(&text, OF_REQUEST).map(|read| read.value(&Sight::default())));
        }
        drop(Expression::parse(&("(".repeat(DEPTH_MAX) + "1" + &")".repeat(DEPTH_MAX)), OF_REQUEST));
    }

    #[test]
    fn s2_missing_null_empty_and_inexact_are_no_names() {
        let request = json!({ "body": { "id": "a", "n": 7, "whole": 12.0, "half": 0.5, "none": null, "empty": "", "yes": true,
            "large": 18446744073709551615u64, "list": [] } });
        let sight = Sight { request: Some(&request), ..Sight::default() };
        let name = |text: &str| {
            Expression::parse(&format!("request.body.{text}"), OF_REQUEST).expect("it is right").name(&sight)
        };
        assert_eq!(name("id"), Ok(Named::Text("a".to_owned())));
        assert_eq!(name("n"), Ok(Named::Integer(7)));
        assert_eq!(name("whole"), Ok(Named::Integer(12)));
        for wrong in ["half", "none", "empty", "yes", "large", "list", "missing"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        let misspelt = Expression::parse("request.bdy.id", OF_REQUEST).map(|_| ());
        assert_eq!(
            misspelt,
            Err("`request.bdy.id`: the request has no `bdy`; it has method, path, params, query, headers, body".to_owned())
        );
    }
}
