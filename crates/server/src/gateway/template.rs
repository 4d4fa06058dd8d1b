//! Texts with expressions in them: `/contacts?external_id={{ key }}`.

use serde_json::Value;

use super::expression::{Expression, Sight};

/// A text with expressions in it.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Value(Expression),
}

impl Template {
    /// Reads a template whose expressions may use those names.
    pub(crate) fn parse(text: &str, names: &[&str]) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (expression, after) =
                after.split_once("}}").ok_or_else(|| format!("`{text}`: {{{{ has no closing }}}}"))?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Value(Expression::parse(expression.trim(), names)?));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The expressions in it.
    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        self.0
            .iter()
            .filter_map(|part| match part {
                Part::Text(_) => None,
                Part::Value(expression) => Some(expression),
            })
            .collect()
    }

    /// The text, with what expressions come to put in as it is.
    pub(crate) fn filled(&self, sight: &Sight<'_>) -> Result<String, String> {
        self.written(sight, |text, into| into.push_str(text))
    }

    /// The text as part of an address: nothing an expression gives can become another path or parameter.
    pub(crate) fn filled_in_address(&self, sight: &Sight<'_>) -> Result<String, String> {
        self.written(sight, percent_encode).and_then(|address| {
            let path = address.split('?').next().unwrap_or_default();
            match path.split('/').any(|step| step == "." || step == "..") {
                true => Err("a value would lead to another address".to_owned()),
                false => Ok(address),
            }
        })
    }

    fn written(&self, sight: &Sight<'_>, put: impl Fn(&str, &mut String)) -> Result<String, String> {
        let mut all = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => all.push_str(text),
                Part::Value(expression) => put(&expression.name(sight)?.to_string(), &mut all),
            }
        }
        Ok(all)
    }
}

/// Everything but letters, digits and `-._~` as `%XX`.
pub(crate) fn percent_encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                into.push(char::from(byte))
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// A JSON document whose texts are templates.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Fixed(Value),
    Text(Template),
    List(Vec<Document>),
    Members(Vec<(String, Document)>),
}

impl Document {
    pub(crate) fn parse(value: &Value, names: &[&str]) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) => Self::Text(Template::parse(text, names)?),
            Value::Array(items) => {
                Self::List(items.iter().map(|item| Self::parse(item, names)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let member =
                    |(name, value): (&String, &Value)| Ok((name.clone(), Self::parse(value, names)?));
                Self::Members(members.iter().map(member).collect::<Result<_, String>>()?)
            }
            other => Self::Fixed(other.clone()),
        })
    }

    /// The expressions in it.
    pub(crate) fn expressions(&self) -> Vec<&Expression> {
        match self {
            Self::Fixed(_) => Vec::new(),
            Self::Text(template) => template.expressions(),
            Self::List(items) => items.iter().flat_map(Self::expressions).collect(),
            Self::Members(members) => members.iter().flat_map(|(_, value)| value.expressions()).collect(),
        }
    }

    pub(crate) fn filled(&self, sight: &Sight<'_>) -> Result<Value, String> {
        Ok(match self {
            Self::Fixed(value) => value.clone(),
            Self::Text(template) => Value::String(template.filled(sight)?),
            Self::List(items) => {
                Value::Array(items.iter().map(|item| item.filled(sight)).collect::<Result<_, _>>()?)
            }
            Self::Members(members) => {
                let member = |(name, value): &(String, Self)| Ok((name.clone(), value.filled(sight)?));
                Value::Object(members.iter().map(member).collect::<Result<_, String>>()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::expression::OF_LOOKUP;
    use super::*;

    #[test]
    fn what_is_put_into_an_address_stays_in_its_place() {
        let template = Template::parse("/c?id={{ key }}&x={{ 'a' + 'b' }}", OF_LOOKUP).expect("it is right");
        let sight = Sight { key: Some("1&admin=true/../ü"), ..Sight::default() };
        assert_eq!(
            template.filled_in_address(&sight).expect("it is there"),
            "/c?id=1%26admin%3Dtrue%2F..%2F%C3%BC&x=ab"
        );
        assert!(Template::parse("{{ key", OF_LOOKUP).is_err());
        let thing = Template::parse("/things/{{ key }}", OF_LOOKUP).expect("it is right");
        assert!(thing.filled_in_address(&Sight { key: Some(".."), ..Sight::default() }).is_err());
        assert!(Template::parse("{{ other }}", OF_LOOKUP).is_err());
    }
}
