//! What is expected of an answer, and whether it is so (S35).

use jsonschema::Validator;
use serde_json::Value;

use crate::config::destinations::ExpectRules;
use crate::gateway::expression::{Expression, OF_ANSWER, Sight};

/// Longest schema in a header.
pub(crate) const HEADER_BYTES_MAX: usize = 16 << 10;
/// Largest compiled pattern of a schema, and how many patterns a schema in a header may have.
const PATTERN_BYTES_MAX: usize = 256 << 10;
const HEADER_PATTERNS_MAX: usize = 20;
/// Most answers that are asked for until one is as expected.
const SAMPLES_MAX: u32 = 10;
/// Most that is said of what is wrong.
const WORDS_BYTES_MAX: usize = 400;

/// What is expected.
#[derive(Debug)]
pub(crate) struct Expectation {
    schema: Option<Validator>,
    rule: Option<Expression>,
    pub(crate) samples: u32,
    /// Tells this one from others: what an answer was held against is kept with it.
    digest: String,
}

/// What came of holding an answer against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evaluation {
    digest: String,
    /// Where and why it is not as expected.
    pub(crate) violation: Option<(String, String)>,
}

impl Expectation {
    pub(crate) fn read(rules: &ExpectRules) -> Result<Self, String> {
        let samples = rules.samples.unwrap_or(1);
        if !(1..=SAMPLES_MAX).contains(&samples) {
            return Err(format!("`samples` is a number from 1 to {SAMPLES_MAX}"));
        }
        if rules.schema.is_none() && rules.rule.is_none() {
            return Err("it names neither a `schema:` nor a `rule:`".to_owned());
        }
        let schema = match &rules.schema {
            Some(schema) => Some(validator(schema)?),
            None => None,
        };
        let rule = match &rules.rule {
            Some(text) => Some(Expression::parse(text, OF_ANSWER)?),
            None => None,
        };
        let words = format!("{:?} {:?}", rules.schema.as_ref().map(Value::to_string), rules.rule);
        Ok(Self { schema, rule, samples, digest: digest(&words) })
    }

    /// A schema of the caller's own, beside what the route expects.
    pub(crate) fn of_header(text: &str) -> Result<Self, String> {
        if text.len() > HEADER_BYTES_MAX {
            return Err(format!("it has more than {HEADER_BYTES_MAX} bytes"));
        }
        let schema: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        if patterns(&schema) > HEADER_PATTERNS_MAX {
            return Err(format!("it has more than {HEADER_PATTERNS_MAX} patterns"));
        }
        Self::read(&ExpectRules { schema: Some(schema), ..ExpectRules::default() })
    }

    /// Holds an answer against it, every choice of it.
    pub(crate) fn evaluate(&self, request: &Value, answers: &[Value]) -> Evaluation {
        let violation = answers.iter().find_map(|answer| self.violation(request, answer));
        let violation = violation.map(|(path, words)| (escaped(&path), tidy(&words)));
        Evaluation { digest: self.digest.clone(), violation }
    }

    fn violation(&self, request: &Value, answer: &Value) -> Option<(String, String)> {
        let output = answer.get("output").unwrap_or(&Value::Null);
        let of_schema = self.schema.as_ref().and_then(|schema| {
            let error = schema.iter_errors(output).next()?;
            let path = error.instance_path().to_string();
            Some((
                if path.is_empty() { "/".to_owned() } else { path },
                error.masked_with("what was written").to_string(),
            ))
        });
        let of_rule = || {
            let rule = self.rule.as_ref()?;
            let sight = Sight { request: Some(request), answer: Some(answer), ..Sight::default() };
            match rule.holds(&sight) {
                Ok(true) => None,
                Ok(false) => Some(("/".to_owned(), format!("`{}` does not hold", rule.text()))),
                Err(why) => Some(("/".to_owned(), why)),
            }
        };
        of_schema.or_else(of_rule)
    }

    /// What came of it before, if it was this that the answer was held against.
    pub(crate) fn remembered(&self, kept: &str) -> Option<Evaluation> {
        Evaluation::from_kept(kept).filter(|evaluation| evaluation.digest == self.digest)
    }
}

impl Evaluation {
    /// As it is kept with the answer.
    pub(crate) fn kept(&self) -> String {
        match &self.violation {
            None => format!("{} valid", self.digest),
            Some((path, words)) => format!("{} invalid {path} {words}", self.digest),
        }
    }

    fn from_kept(kept: &str) -> Option<Self> {
        let (digest, rest) = kept.split_once(' ')?;
        let violation = match rest {
            "valid" => None,
            _ => {
                let (path, words) = rest.strip_prefix("invalid ")?.split_once(' ')?;
                Some((path.to_owned(), words.to_owned()))
            }
        };
        Some(Self { digest: digest.to_owned(), violation })
    }
}

/// Looks for nothing elsewhere: a schema stands for itself.
fn validator(schema: &Value) -> Result<Validator, String> {
    // Patterns run in linear time: those that would need to go back are refused.
    let patterns =
        jsonschema::PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    jsonschema::options()
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| format!("the schema is not one: {error}"))
}

/// Counts the patterns of a schema.
fn patterns(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Object(members) => {
            let own = usize::from(members.contains_key("pattern"));
            let of_names = members.get("patternProperties").and_then(Value::as_object);
            members.values().map(patterns).sum::<usize>() + own + of_names.map_or(0, serde_json::Map::len)
        }
        _ => 0,
    }
}

fn digest(words: &str) -> String {
    blake3::hash(words.as_bytes()).to_hex()[..16].to_owned()
}

/// A path in one word, of letters that a header can hold.
fn escaped(path: &str) -> String {
    let mut word = String::new();
    for byte in path.bytes().take(WORDS_BYTES_MAX) {
        match byte.is_ascii_graphic() && byte != b'%' {
            true => word.push(char::from(byte)),
            false => word.push_str(&format!("%{byte:02X}")),
        }
    }
    word
}

/// One line, of letters that a header can hold.
fn tidy(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).collect();
    line.truncate(WORDS_BYTES_MAX);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expectation(rules: Value) -> Result<Expectation, String> {
        Expectation::read(&serde_json::from_value(rules).expect("rules"))
    }

    #[test]
    fn s35_what_is_wrong_is_named_by_its_path() {
        let schema = json!({ "type": "object", "required": ["total"], "properties": { "total": { "type": "number" },
            "lines": { "type": "array", "items": { "type": "string" } } } });
        let expected = expectation(json!({ "schema": schema, "rule": "answer.output.total > 0.0" }))
            .expect("it is right");
        let violation = |output: Value| {
            expected.evaluate(&Value::Null, &[json!({ "output": output })]).violation.map(|(path, _)| path)
        };
        assert_eq!(violation(json!({ "total": 1.5, "lines": ["a"] })), None);
        assert_eq!(violation(json!({ "total": 1.5, "lines": ["a", 2] })), Some("/lines/1".to_owned()));
        assert_eq!(violation(json!({})), Some("/".to_owned()));
        assert_eq!(violation(json!("text")), Some("/".to_owned()));
        assert_eq!(violation(json!({ "total": -1.0 })), Some("/".to_owned()));
    }

    #[test]
    fn s35_an_evaluation_is_kept_with_what_it_was_of() {
        let one = expectation(json!({ "schema": { "type": "object" } })).expect("it is right");
        let other = expectation(json!({ "schema": { "type": "string" } })).expect("it is right");
        for output in [json!({}), json!("line\nbreak é")] {
            let evaluation = one.evaluate(&Value::Null, &[json!({ "output": output })]);
            assert_eq!(one.remembered(&evaluation.kept()), Some(evaluation.clone()));
            assert_eq!(other.remembered(&evaluation.kept()), None);
        }
        assert_eq!(one.remembered("nonsense"), None);
        let named =
            expectation(json!({ "schema": { "properties": { "first name": { "type": "string" } } } }));
        let evaluation = named.expect("it is right").evaluate(
            &Value::Null,
            &[json!({}), json!({ "output": { "first name": 1 } })]
                .map(|one| json!({ "output": one["output"] })),
        );
        assert_eq!(evaluation.violation.map(|(path, _)| path).as_deref(), Some("/first%20name"));
    }

    #[test]
    fn nonsense_is_refused_and_nothing_is_fetched() {
        for rules in [
            json!({}),
            json!({ "schema": { "type": 7 } }),
            json!({ "rule": "answer.output ==" }),
            json!({ "rule": "key == 'a'" }),
            json!({ "rule": "true", "samples": 0 }),
            json!({ "rule": "true", "samples": 11 }),
            json!({ "schema": { "$ref": "http://127.0.0.1:1/schema.json" } }),
            json!({ "schema": { "$ref": "file:///etc/passwd" } }),
        ] {
            assert!(expectation(rules.clone()).is_err(), "{rules}");
        }
        assert!(Expectation::of_header("{").is_err());
    }
}
