//! Values of expressions: borrowed from what is seen, or made on the way.

use std::rc::Rc;

use serde_json::Value;

use super::{Evaluated, Evaluation, Fault, wrong};

/// The types that can be named.
pub(super) const TYPES: [&str; 10] =
    ["int", "uint", "double", "string", "bool", "list", "map", "null_type", "bytes", "type"];

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float(f64),
    Text(Text<'a>),
    List(List<'a>),
    Map(Map<'a>),
    Type(&'static str),
}

#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Seen(&'a str),
    Made(Rc<str>),
}

#[derive(Clone, Debug)]
pub(super) enum List<'a> {
    Seen(&'a [Value]),
    Made(Rc<Vec<Val<'a>>>),
}

#[derive(Clone, Debug)]
pub(super) enum Map<'a> {
    Seen(&'a serde_json::Map<String, Value>),
    Made(Rc<Vec<(Val<'a>, Val<'a>)>>),
}

impl<'a> From<&'a Value> for Val<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            // All integers as one kind: who writes `amount * 100` does not think of signs.
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(integer), _) => Self::Int(integer),
                (None, Some(large)) => Self::UInt(large),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::text(text),
            Value::Array(items) => Self::List(List::Seen(items)),
            Value::Object(members) => Self::Map(Map::Seen(members)),
        }
    }
}

impl<'a> Val<'a> {
    pub(super) fn text(text: &'a str) -> Self {
        Self::Text(Text::Seen(text))
    }

    pub(super) fn made(text: String) -> Self {
        Self::Text(Text::Made(text.into()))
    }

    /// Returns its type, as an expression names it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::UInt(_) => "uint",
            Self::Float(_) => "double",
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
        }
    }

    /// Returns what kind of thing it is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::UInt(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Type(_) => "a type",
        }
    }

    /// Whether it can be the key of a map.
    pub(super) fn is_key(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Int(_) | Self::UInt(_) | Self::Float(_) | Self::Bool(_))
    }

    /// Returns how many there are to go through.
    pub(super) fn items(&self) -> Result<usize, Fault> {
        match self {
            Self::List(list) => Ok(list.len()),
            Self::Map(map) => Ok(map.len()),
            other => wrong(format!("{} is neither a list nor a map", other.kind())),
        }
    }

    /// Returns the items of a list with their numbers, or the entries of a map.
    pub(super) fn entries(&self) -> Vec<(Self, Self)> {
        let numbered = |(number, item)| (Self::Int(i64::try_from(number).unwrap_or(i64::MAX)), item);
        match self {
            Self::List(list) => list.iter().enumerate().map(numbered).collect(),
            Self::Map(map) => map.entries(),
            _ => Vec::new(),
        }
    }
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Seen(text) => text,
            Self::Made(text) => text,
        }
    }
}

impl<'a> List<'a> {
    pub(super) fn of(items: Vec<Val<'a>>) -> Self {
        Self::Made(Rc::new(items))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Seen(items) => items.len(),
            Self::Made(items) => items.len(),
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<Val<'a>> {
        match self {
            Self::Seen(items) => items.get(number).map(Val::from),
            Self::Made(items) => items.get(number).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Val<'a>> + '_ {
        (0..self.len()).filter_map(|number| self.get(number))
    }

    /// Returns this with more at its end. It is copied only if somebody else has it, too.
    pub(super) fn and(self, more: &Self) -> Self {
        let mut items = match self {
            Self::Made(items) => Rc::try_unwrap(items).unwrap_or_else(|items| items.to_vec()),
            seen @ Self::Seen(_) => seen.iter().collect(),
        };
        items.extend(more.iter());
        Self::of(items)
    }
}

impl<'a> Map<'a> {
    pub(super) fn of(entries: Vec<(Val<'a>, Val<'a>)>) -> Self {
        Self::Made(Rc::new(entries))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Seen(members) => members.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    /// Returns what it costs to find something in it.
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Seen(_) => 0,
            Self::Made(entries) => size_of::<Val<'_>>() * entries.len(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Self::Seen(members) => members.get(name).map(Val::from),
            Self::Made(entries) => {
                let is_it =
                    |(key, _): &&(Val<'_>, Val<'_>)| matches!(key, Val::Text(text) if text.as_str() == name);
                entries.iter().find(is_it).map(|(_, value)| value.clone())
            }
        }
    }

    pub(super) fn entries(&self) -> Vec<(Val<'a>, Val<'a>)> {
        match self {
            Self::Seen(members) => {
                members.iter().map(|(name, value)| (Val::text(name), value.into())).collect()
            }
            Self::Made(entries) => entries.to_vec(),
        }
    }
}

impl<'a> Evaluation<'a> {
    /// Returns a value as data.
    pub(super) fn json(&mut self, value: &Val<'a>) -> Result<Value, Fault> {
        self.take(1)?;
        Ok(match value {
            Val::Null => Value::Null,
            Val::Bool(value) => Value::Bool(*value),
            Val::Int(number) => Value::from(*number),
            Val::UInt(number) => Value::from(*number),
            Val::Float(number) => match serde_json::Number::from_f64(*number) {
                Some(number) => Value::Number(number),
                None => return wrong("it gives something that is not data"),
            },
            Val::Text(text) => {
                self.take_bytes(text.as_str().len())?;
                Value::from(text.as_str())
            }
            Val::List(list) => {
                let items = list.iter().map(|item| self.json(&item));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Val::Map(Map::Seen(members)) => {
                let members =
                    members.iter().map(|(name, value)| Ok((name.clone(), self.json(&value.into())?)));
                Value::Object(members.collect::<Result<_, Fault>>()?)
            }
            Val::Map(Map::Made(entries)) => {
                let entry = |(key, value): &(Val<'a>, Val<'a>)| match key {
                    Val::Text(name) => Ok((name.as_str().to_owned(), self.json(value)?)),
                    _ => wrong("it gives something that is not data"),
                };
                Value::Object(entries.iter().map(entry).collect::<Result<_, Fault>>()?)
            }
            Val::Type(_) => return wrong("it gives something that is not data"),
        })
    }

    /// Returns what stands at an index of a list, or at a key of a map.
    pub(super) fn at(&mut self, of: &Val<'a>, index: &Val<'a>) -> Evaluated<'a> {
        match (of, index) {
            (Val::List(list), index) => {
                let number = match index {
                    Val::Int(number) => usize::try_from(*number).ok(),
                    Val::UInt(number) => usize::try_from(*number).ok(),
                    Val::Float(number) if number.fract() == 0.0 && *number >= 0.0 => Some(*number as usize),
                    other => return wrong(format!("{} is not the number of an item", other.kind())),
                };
                number.and_then(|number| list.get(number)).map_or_else(|| wrong("there is no such item"), Ok)
            }
            (Val::Map(map), index) => match self.looked_up(map, index)? {
                Some(value) => Ok(value),
                None => wrong("there is no such field"),
            },
            (other, _) => wrong(format!("{} has no items", other.kind())),
        }
    }

    /// Looks for a key of a map.
    pub(super) fn looked_up(&mut self, map: &Map<'a>, key: &Val<'a>) -> Result<Option<Val<'a>>, Fault> {
        self.take_bytes(map.cost())?;
        match (map, key) {
            (_, Val::Text(name)) => Ok(map.get(name.as_str())),
            (Map::Made(entries), key) => {
                for (own, value) in entries.iter() {
                    if self.equal(own, key)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
            (Map::Seen(_), _) => Ok(None),
        }
    }
}
