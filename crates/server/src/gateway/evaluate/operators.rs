//! Operators and functions of expressions.

use std::cmp::Ordering;

use super::values::{Map, Val};
use super::{Evaluated, Evaluation, Fault, wrong};

impl<'a> Evaluation<'a> {
    /// Applies a function or an operator to its operands; of a method, the first one is what it is called on.
    pub(super) fn apply(&mut self, name: &str, is_method: bool, values: &[Val<'a>]) -> Evaluated<'a> {
        let compared = |this: &mut Self, left, right, holds: fn(Ordering) -> bool| {
            Ok(Val::Bool(holds(this.compared(left, right)?)))
        };
        match (name, values) {
            ("_==_", [left, right]) => Ok(Val::Bool(self.equal(left, right)?)),
            ("_!=_", [left, right]) => Ok(Val::Bool(!self.equal(left, right)?)),
            ("_<_", [left, right]) => compared(self, left, right, Ordering::is_lt),
            ("_<=_", [left, right]) => compared(self, left, right, Ordering::is_le),
            ("_>_", [left, right]) => compared(self, left, right, Ordering::is_gt),
            ("_>=_", [left, right]) => compared(self, left, right, Ordering::is_ge),
            ("_[_]", [of, index]) => self.at(of, index),
            ("@in", [item, of]) => self.is_in(item, of),
            ("!_", [Val::Bool(value)]) => Ok(Val::Bool(!value)),
            ("-_", [Val::Int(number)]) => whole(number.checked_neg()),
            ("-_", [Val::Float(number)]) => Ok(Val::Float(-number)),
            ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [left, right]) => self.arithmetic(name, left, right),
            ("min" | "max", values) if !is_method => self.extreme(name == "max", values),
            ("contains" | "startsWith" | "endsWith" | "matches", [Val::Text(text), Val::Text(other)]) => {
                let (text, other) = (text.as_str(), other.as_str());
                self.take_bytes(if name == "contains" { text.len() } else { other.len() })?;
                Ok(Val::Bool(match name {
                    "contains" => text.contains(other),
                    "startsWith" => text.starts_with(other),
                    "endsWith" => text.ends_with(other),
                    _ => {
                        self.take_bytes(8 * text.len())?;
                        let pattern = self.patterns.0.get(other);
                        pattern.map_or_else(
                            || wrong("this pattern was not known"),
                            |found| Ok(found.is_match(text)),
                        )?
                    }
                }))
            }
            ("lowerAscii", [Val::Text(text)]) => {
                self.take_bytes(text.as_str().len())?;
                Ok(Val::made(text.as_str().to_ascii_lowercase()))
            }
            ("size", [of]) => {
                let size = match of {
                    Val::Text(text) => {
                        self.take_bytes(text.as_str().len())?;
                        text.as_str().chars().count()
                    }
                    of => of.items()?,
                };
                Ok(Val::Int(i64::try_from(size).unwrap_or(i64::MAX)))
            }
            ("type", [of]) if !is_method => Ok(Val::Type(of.type_name())),
            ("string" | "int" | "uint" | "double" | "bool", [of]) if !is_method => converted(name, of),
            _ => {
                let kinds: Vec<&str> = values.iter().map(Val::kind).collect();
                let name = name.trim_matches(['_', '@']);
                wrong(format!("`{name}` cannot be applied to {}", kinds.join(" and ")))
            }
        }
    }

    /// Whether two values are equal. Numbers are compared by what they are worth.
    pub(super) fn equal(&mut self, left: &Val<'a>, right: &Val<'a>) -> Result<bool, Fault> {
        self.take(1)?;
        Ok(match (left, right) {
            (Val::Null, Val::Null) => true,
            (Val::Bool(left), Val::Bool(right)) => left == right,
            (Val::Type(left), Val::Type(right)) => left == right,
            (Val::Text(left), Val::Text(right)) => {
                let (left, right) = (left.as_str(), right.as_str());
                left.len() == right.len() && {
                    self.take_bytes(left.len())?;
                    left == right
                }
            }
            (Val::List(left), Val::List(right)) => {
                if left.len() != right.len() {
                    return Ok(false);
                }
                for (left, right) in left.iter().zip(right.iter()) {
                    if !self.equal(&left, &right)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Val::Map(left), Val::Map(right)) => self.same_entries(left, right)?,
            (left, right) => numbers(left, right).is_some_and(Ordering::is_eq),
        })
    }

    fn same_entries(&mut self, left: &Map<'a>, right: &Map<'a>) -> Result<bool, Fault> {
        if left.len() != right.len() {
            return Ok(false);
        }
        self.take(left.len())?;
        for (key, value) in left.entries() {
            match self.looked_up(right, &key)? {
                Some(other) if self.equal(&value, &other)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn compared(&mut self, left: &Val<'a>, right: &Val<'a>) -> Result<Ordering, Fault> {
        let compared = match (left, right) {
            (Val::Text(left), Val::Text(right)) => {
                self.take_bytes(left.as_str().len().min(right.as_str().len()))?;
                Some(left.as_str().cmp(right.as_str()))
            }
            (Val::Bool(left), Val::Bool(right)) => Some(left.cmp(right)),
            (left, right) => numbers(left, right),
        };
        compared
            .map_or_else(|| wrong(format!("{} cannot be compared with {}", left.kind(), right.kind())), Ok)
    }

    fn is_in(&mut self, item: &Val<'a>, of: &Val<'a>) -> Evaluated<'a> {
        match of {
            Val::List(list) => {
                for other in list.iter() {
                    if self.equal(item, &other)? {
                        return Ok(Val::Bool(true));
                    }
                }
                Ok(Val::Bool(false))
            }
            Val::Map(_) if !item.is_key() => wrong(format!("{} cannot be the key of a map", item.kind())),
            Val::Map(map) => Ok(Val::Bool(self.looked_up(map, item)?.is_some())),
            other => wrong(format!("nothing can be in {}", other.kind())),
        }
    }

    /// The largest or the smallest, of a list or of what is given.
    fn extreme(&mut self, is_max: bool, values: &[Val<'a>]) -> Evaluated<'a> {
        let listed: Vec<Val<'a>>;
        let values = match values {
            [Val::List(list)] => {
                self.take(list.len())?;
                listed = list.iter().collect();
                &listed
            }
            values => values,
        };
        let Some((first, rest)) = values.split_first() else { return Ok(Val::Null) };
        let mut found = first;
        for other in rest {
            let kept = if is_max { Ordering::Greater } else { Ordering::Less };
            if self.compared(found, other)? != kept {
                found = other;
            }
        }
        Ok(found.clone())
    }

    fn arithmetic(&mut self, operator: &str, left: &Val<'a>, right: &Val<'a>) -> Evaluated<'a> {
        match (operator, left, right) {
            (_, Val::Int(left), Val::Int(right)) => whole(match operator {
                "_+_" => left.checked_add(*right),
                "_-_" => left.checked_sub(*right),
                "_*_" => left.checked_mul(*right),
                "_/_" => left.checked_div(*right),
                _ => left.checked_rem(*right),
            }),
            (_, Val::UInt(left), Val::UInt(right)) => {
                let result = match operator {
                    "_+_" => left.checked_add(*right),
                    "_-_" => left.checked_sub(*right),
                    "_*_" => left.checked_mul(*right),
                    "_/_" => left.checked_div(*right),
                    _ => left.checked_rem(*right),
                };
                result.map(Val::UInt).ok_or_else(out_of_range)
            }
            ("_+_", Val::Float(left), Val::Float(right)) => Ok(Val::Float(left + right)),
            ("_-_", Val::Float(left), Val::Float(right)) => Ok(Val::Float(left - right)),
            ("_*_", Val::Float(left), Val::Float(right)) => Ok(Val::Float(left * right)),
            ("_/_", Val::Float(left), Val::Float(right)) => Ok(Val::Float(left / right)),
            ("_+_", Val::Text(left), Val::Text(right)) => {
                let (left, right) = (left.as_str(), right.as_str());
                self.take_bytes(left.len() + right.len())?;
                Ok(Val::made([left, right].concat()))
            }
            ("_+_", Val::List(left), Val::List(right)) => {
                self.take(left.len() + right.len())?;
                Ok(Val::List(left.clone().and(right)))
            }
            (_, left, right) => {
                let operator = operator.trim_matches('_');
                wrong(format!("`{operator}` cannot be applied to {} and {}", of_type(left), of_type(right)))
            }
        }
    }
}

/// Names what was given where the exact type matters.
fn of_type(value: &Val<'_>) -> String {
    match value {
        Val::Int(_) | Val::UInt(_) | Val::Float(_) => format!("a number of type {}", value.type_name()),
        other => other.kind().to_owned(),
    }
}

fn out_of_range() -> Fault {
    Fault::Wrong("a number is out of range, or divided by zero".to_owned())
}

fn whole<'a>(number: Option<i64>) -> Evaluated<'a> {
    number.map(Val::Int).ok_or_else(out_of_range)
}

/// Compares two numbers, whatever their types are.
fn numbers(left: &Val<'_>, right: &Val<'_>) -> Option<Ordering> {
    match (left, right) {
        (Val::Int(left), Val::Int(right)) => Some(left.cmp(right)),
        (Val::UInt(left), Val::UInt(right)) => Some(left.cmp(right)),
        (Val::Float(left), Val::Float(right)) => left.partial_cmp(right),
        (Val::Int(left), Val::UInt(right)) => {
            Some(u64::try_from(*left).map_or(Ordering::Less, |left| left.cmp(right)))
        }
        (Val::Int(left), Val::Float(right)) => (*left as f64).partial_cmp(right),
        (Val::UInt(left), Val::Float(right)) => (*left as f64).partial_cmp(right),
        (Val::UInt(_) | Val::Float(_), Val::Int(_)) | (Val::Float(_), Val::UInt(_)) => {
            numbers(right, left).map(Ordering::reverse)
        }
        _ => None,
    }
}

fn converted<'a>(to: &str, of: &Val<'a>) -> Evaluated<'a> {
    let not = || wrong(format!("{} cannot be made a value of type {to}", of.kind()));
    match (to, of) {
        ("string", Val::Text(_))
        | ("int", Val::Int(_))
        | ("uint", Val::UInt(_))
        | ("double", Val::Float(_)) => Ok(of.clone()),
        ("string", Val::Int(number)) => Ok(Val::made(number.to_string())),
        ("string", Val::UInt(number)) => Ok(Val::made(number.to_string())),
        ("string", Val::Float(number)) => Ok(Val::made(number.to_string())),
        ("string", Val::Bool(value)) => Ok(Val::made(value.to_string())),
        ("int", Val::UInt(number)) => whole(i64::try_from(*number).ok()),
        ("int", Val::Float(number)) if *number > i64::MIN as f64 && *number < i64::MAX as f64 => {
            Ok(Val::Int(*number as i64))
        }
        ("int", Val::Text(text)) => {
            text.as_str().parse().map_or_else(|_| not(), |number| Ok(Val::Int(number)))
        }
        ("uint", Val::Int(number)) => u64::try_from(*number).map(Val::UInt).map_err(|_| out_of_range()),
        ("uint", Val::Float(number)) if *number >= 0.0 && *number < u64::MAX as f64 => {
            Ok(Val::UInt(*number as u64))
        }
        ("uint", Val::Text(text)) => {
            text.as_str().parse().map_or_else(|_| not(), |number| Ok(Val::UInt(number)))
        }
        ("double", Val::Int(number)) => Ok(Val::Float(*number as f64)),
        ("double", Val::UInt(number)) => Ok(Val::Float(*number as f64)),
        ("double", Val::Text(text)) => {
            text.as_str().parse().map_or_else(|_| not(), |number| Ok(Val::Float(number)))
        }
        ("bool", Val::Bool(_)) => Ok(of.clone()),
        ("bool", Val::Text(text)) => match text.as_str() {
            "1" | "t" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
            _ => not(),
        },
        _ => not(),
    }
}
