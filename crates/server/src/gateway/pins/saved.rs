//! What was not spent twice: tokens, and money where prices are known.

use std::collections::BTreeMap;

use hyper::HeaderMap;
use twicesafe_ledger::Timestamp;

use super::record::{MODEL, USAGE};
use super::shape::Usage;
use crate::config::destinations::Price;
use crate::server::Shared;

/// Models that are counted by name; names come from elsewhere.
const MODELS_MAX: usize = 200;
const MODEL_BYTES_MAX: usize = 80;
/// What the names of counts begin with.
pub(crate) const ANSWERS: &str = "saved answers/";
pub(crate) const TOKENS: &str = "saved tokens/";
pub(crate) const MICRODOLLARS: &str = "saved microdollars/";
const TOKENS_A_PRICE_IS_FOR: f64 = 1e6;

/// What one answer cost, and would have cost again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    model: Option<String>,
    usage: Option<Usage>,
}

impl Cost {
    pub(super) fn new(model: Option<&str>, usage: Option<Usage>) -> Self {
        Self { model: model.map(str::to_owned), usage }
    }

    /// Takes what is kept about it out of the headers of an answer.
    pub(super) fn taken_from(headers: &mut HeaderMap) -> Self {
        let mut text =
            |name: &str| headers.remove(name).and_then(|value| value.to_str().ok().map(str::to_owned));
        Self { model: text(MODEL), usage: text(USAGE).and_then(|text| usage_from_kept(&text)) }
    }

    pub(super) fn tokens(&self) -> Option<u64> {
        self.usage.map(|usage| usage.input + usage.output)
    }

    /// In millionths of a dollar; `None`: nobody knows its price.
    pub(super) fn microdollars(&self, prices: &BTreeMap<String, Price>) -> Option<u64> {
        let (model, usage) = (self.model.as_deref()?, self.usage?);
        // A date may follow the name; anything else is another model, whose price nobody knows.
        let fits = |(name, _): &(&String, &Price)| {
            let rest = model.strip_prefix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-20"))
        };
        let (_, price) = prices.iter().filter(fits).max_by_key(|(name, _)| name.len())?;
        let cached = usage.cached.min(usage.input);
        let dollars = (usage.input - cached) as f64 * price.input
            + cached as f64 * price.cached_input.unwrap_or(price.input)
            + usage.output as f64 * price.output;
        // Dollars for a million tokens are millionths of a dollar for one.
        Some((dollars * 1e6 / TOKENS_A_PRICE_IS_FOR).round().max(0.0) as u64)
    }

    /// Counts that it was not spent again, so many times.
    pub(super) fn save(&self, shared: &Shared, prices: Option<&BTreeMap<String, Price>>, times: u64) {
        if times == 0 {
            return;
        }
        let model = shared.metrics.model(self.model.as_deref().unwrap_or("unknown"));
        let now = Timestamp::from_millis(jiff::Timestamp::now().as_millisecond());
        let counts = [
            (ANSWERS, Some(1)),
            (TOKENS, self.tokens()),
            (MICRODOLLARS, prices.and_then(|prices| self.microdollars(prices))),
        ];
        for (what, n) in counts {
            if let Some(n) = n.map(|n| n * times).filter(|n| *n > 0) {
                shared.metrics.saved(what, &model, n);
                shared.ledger.store().count(now, &format!("{what}{model}"), n);
            }
        }
    }
}

/// Models as they are counted: as many as there is room for, and the others together.
pub(crate) fn counted_model<'a>(model: &str, known: impl Iterator<Item = &'a String>) -> String {
    let is_fit = model.len() <= MODEL_BYTES_MAX
        && model.chars().all(|c| c.is_ascii_graphic() && !"\"\\{}".contains(c));
    let mut count = 0;
    let is_known = known.inspect(|_| count += 1).any(|own| own == model);
    match is_fit && (is_known || count < MODELS_MAX) {
        true => model.to_owned(),
        false => "other".to_owned(),
    }
}

pub(super) fn kept_usage(usage: &Usage) -> String {
    format!("input={} cached={} output={}", usage.input, usage.cached, usage.output)
}

fn usage_from_kept(text: &str) -> Option<Usage> {
    let mut usage = Usage::default();
    for pair in text.split(' ') {
        let (name, value) = pair.split_once('=')?;
        let value = value.parse().ok()?;
        match name {
            "input" => usage.input = value,
            "cached" => usage.cached = value,
            "output" => usage.output = value,
            _ => return None,
        }
    }
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_that_of_the_model_and_its_dated_versions() {
        let price = |input, cached_input, output| Price { input, cached_input, output };
        let prices = BTreeMap::from([
            ("gpt-4o".to_owned(), price(2.5, Some(1.25), 10.0)),
            ("gpt-4o-mini".to_owned(), price(0.15, None, 0.6)),
        ]);
        let usage = Usage { input: 1000, cached: 200, output: 100 };
        let cost = |model| Cost::new(Some(model), Some(usage)).microdollars(&prices);
        assert_eq!(cost("gpt-4o-2024-08-06"), Some(2000 + 250 + 1000));
        assert_eq!(cost("gpt-4o-mini"), Some(150 + 60));
        let mut own = prices.clone();
        own.insert("gpt-4o-2024-08-06".to_owned(), price(1.0, None, 0.0));
        assert_eq!(Cost::new(Some("gpt-4o-2024-08-06"), Some(usage)).microdollars(&own), Some(1000));
        assert_eq!((cost("gpt-4o-pro"), cost("gpt-4.1"), cost("llama")), (None, None, None));
        assert_eq!(Cost::new(Some("gpt-4o"), None).microdollars(&prices), None);
        assert_eq!(usage_from_kept(&kept_usage(&usage)), Some(usage));
        assert_eq!(usage_from_kept("input=x"), None);
    }

    #[test]
    fn names_of_models_do_not_grow_without_end() {
        let known: Vec<String> = (0..MODELS_MAX).map(|number| number.to_string()).collect();
        assert_eq!(counted_model("7", known.iter()), "7");
        assert_eq!(counted_model("new", known.iter()), "other");
        assert_eq!(counted_model("new", known[1..].iter()), "new");
        assert_eq!(counted_model("bad\"name", [].iter()), "other");
    }
}
