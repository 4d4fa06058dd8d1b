//! The evaluator against the interpreter of the crate that reads expressions, and its bounds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use cel::objects::{Key, Map};
use cel::{Context, Env, Program};
use serde_json::{Number, Value, json};

use crate::gateway::expression::{Expression, OF_REQUEST, Sight};

fn of_the_crate(text: &str, request: &Value) -> Option<Value> {
    let program = Program::compile(text).expect(text);
    let mut context = Context::with_env(Arc::new(Env::stdlib()));
    context.add_variable_from_value("request", to_cel(request));
    from_cel(&program.execute(&context).ok()?)
}

fn ours(text: &str, request: &Value) -> Result<Value, String> {
    let sight = Sight { request: Some(request), ..Sight::default() };
    Expression::parse(text, OF_REQUEST)?.value(&sight)
}

#[test]
fn values_are_those_of_the_crate() {
    let request = json!({ "body": {
        "text": "Grüße", "empty": "", "n": 7, "neg": -3, "zero": 0, "large": 18446744073709551615u64, "half": 0.5, "whole": 12.0,
        "tiny": 1e-9, "huge": 1e300, "yes": true, "no": false, "none": null, "digits": "42", "true": "true",
        "list": [1, 2.0, "a", null, [1], { "a": 1 }], "items": [{ "id": "x", "n": 1 }, { "id": "y" }, { "id": "z", "n": 3 }],
        "numbers": [3, 1, 2], "map": { "a": 1, "b": [1, 2] }, "nothing": [], "bare": {} } });
    let atoms = [
        "text", "empty", "n", "neg", "zero", "large", "half", "whole", "tiny", "huge", "yes", "no", "none",
        "digits", "true", "list", "items", "numbers", "map", "nothing", "bare", "missing",
    ];
    let atoms = atoms.map(|name| format!("request.body['{name}']"));
    let mut texts = Vec::new();
    for a in &atoms {
        for function in ["size", "string", "int", "uint", "double", "bool"] {
            texts.push(format!("{function}({a})"));
        }
        for kind in ["int", "uint", "double", "string", "bool", "list", "map", "null_type"] {
            texts.push(format!("type({a}) == {kind}"));
        }
        texts.extend([
            format!("!{a}"),
            format!("-{a}"),
            format!("{a}.size()"),
            format!("[{a}, 1]"),
            format!("{{'k': {a}}}"),
            format!("{{'k': {a}, 'k': 1}}"),
            format!("{{{a}: 1}}[{a}]"),
            format!("has({a}.a)"),
            format!("{a}.a"),
            format!("{a} ? 1 : 2"),
            format!("{a}.exists(x, x == 1)"),
            format!("{a}.all(x, x.n > 0)"),
            format!("{a}.exists(x, x.n > 1)"),
            format!("{a}.exists(x, x.n > 7)"),
            format!("{a}.exists_one(x, has(x.n))"),
            format!("{a}.map(x, x.id)"),
            format!("{a}.map(x, x)"),
            format!("{a}.map(x, [x, x])"),
            format!("{a}.map(x, has(x.n), x.n + 1)"),
            format!("{a}.filter(x, has(x.n))"),
            format!("{a}.map(x, {a}.map(y, x == y))"),
            format!("[{a}].map(x, [x] + [x]) + [{a}]"),
        ]);
        for b in &atoms {
            for operator in ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in"] {
                texts.push(format!("{a} {operator} {b}"));
            }
            texts.push(format!("{a}[{b}]"));
            for method in ["contains", "startsWith", "endsWith"] {
                texts.push(format!("{a}.{method}({b})"));
            }
        }
    }
    let mut differing = Vec::new();
    for text in texts {
        // The crate adds the keys of a map to a list, and goes through maps in any order.
        let is_special =
            ["'] + request.body['map']", "'] + request.body['bare']", "request.body['map'].map(x, "];
        if is_special.iter().any(|special| text.contains(special)) {
            continue;
        }
        let (theirs, own) = (of_the_crate(&text, &request), ours(&text, &request));
        if theirs.as_ref() != own.as_ref().ok() {
            differing.push(format!("{text}: {theirs:?}, ours {own:?}"));
        }
    }
    assert!(differing.is_empty(), "{} differ: {:#?}", differing.len(), &differing[..differing.len().min(60)]);
}

#[test]
fn the_smallest_and_the_largest() {
    let request = json!({ "body": { "numbers": [3, 1, 2.5] } });
    for (text, value) in [
        ("min(request.body.numbers)", json!(1)),
        ("max(request.body.numbers)", json!(3)),
        ("max(1, 7, 2)", json!(7)),
        ("min([])", json!(null)),
        ("'ABC-ü'.lowerAscii()", json!("abc-ü")),
    ] {
        assert_eq!(ours(text, &request), Ok(value), "{text}");
    }
}

#[test]
fn s20_what_takes_too_long_is_refused_and_soon() {
    let items: Vec<Value> = (0..4000).map(|number| json!({ "id": number, "sku": "x" })).collect();
    let request = json!({ "body": { "items": items, "long": "a".repeat(1 << 20) } });
    let simple = "request.body.items.exists(i, i.sku == 'y' && i.id > 3 || i.id + 1 == 5000)";
    assert_eq!(ours(simple, &request), Ok(json!(false)), "one after the other is no trouble");
    let copied = ours("size(request.body.items.map(i, i.id).filter(i, i > 10))", &request);
    assert_eq!(copied, Ok(json!(3989)));
    for text in [
        "request.body.items.all(i, request.body.items.exists(j, j.id == i.id))",
        "request.body.items.exists(i, request.body.items.exists(j, j.id == -1))",
        "size(request.body.items.map(i, request.body.items.map(j, j.id))) > 0 || true",
        "request.body.items.map(i, request.body.items)",
        "request.body.items.exists(i, request.body.long + 'a' == 'b')",
        "request.body.items.exists(i, request.body.long.contains('ab'))",
        "request.body.items.exists(i, request.body.long.matches('ab'))",
        "request.body.items.exists(i, size(request.body.long) == 0)",
        "request.body.items.exists(i, request.body.items == request.body.items + [1] || request.body.items + [1] == [])",
        "[request.body.items].map(a, [a, a, a]).map(a, [a, a, a]).map(a, [a, a, a]).map(a, [a, a, a])",
    ] {
        let started = Instant::now();
        let said = ours(text, &request).map(|_| ()).expect_err(text);
        assert!(said.contains("more than 500000 steps"), "{text}: {said}");
        assert!(started.elapsed().as_secs() < 2, "{text}: {:?}", started.elapsed());
    }
}

fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        // All integers as one kind: who writes `amount * 100` does not think of signs.
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => cel::Value::Int(integer),
            (None, Some(large)) => cel::Value::UInt(large),
            (None, None) => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(members) => {
            let entry =
                |(name, value): (&String, &Value)| (Key::String(Arc::new(name.clone())), to_cel(value));
            cel::Value::Map(Map { map: Arc::new(members.iter().map(entry).collect::<HashMap<_, _>>()) })
        }
    }
}

fn from_cel(value: &cel::Value) -> Option<Value> {
    Some(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(value) => Value::Bool(*value),
        cel::Value::Int(number) => Value::from(*number),
        cel::Value::UInt(number) => Value::from(*number),
        cel::Value::Float(number) => Value::Number(Number::from_f64(*number)?),
        cel::Value::String(text) => Value::from(text.as_str()),
        cel::Value::List(items) => Value::Array(items.iter().map(from_cel).collect::<Option<_>>()?),
        cel::Value::Map(map) => {
            let entry = |(key, value): (&Key, &cel::Value)| match key {
                Key::String(name) => Some((name.to_string(), from_cel(value)?)),
                _ => None,
            };
            Value::Object(map.map.iter().map(entry).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
