//! The table.

use std::io::Write;
use std::time::Duration;

use crate::harness::Run;

pub(crate) struct Report;

impl Report {
    pub(crate) fn start() -> Self {
        let report = Self;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        report.line(&format!("{cores} cores; medians; ratios are ours over theirs"));
        report
    }

    pub(crate) fn line(&self, text: &str) {
        // A reader that went away does not stop a measurement.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    pub(crate) fn heading(&self, text: &str) {
        self.line(&format!("\n## {text}"));
    }

    /// Two subjects under the same load.
    pub(crate) fn compare(
        &self,
        what: &str,
        theirs_name: &str,
        theirs: &[Run],
        ours_name: &str,
        ours: &[Run],
        wanted: Option<f64>,
    ) {
        let (theirs, ours) = (median(theirs), median(ours));
        self.line(&format!(
            "{what}: {theirs_name} {:.0}/s, {ours_name} {:.0}/s (p50 {:.2} ms, p99 {:.2} ms), ratio {:.2}{}",
            theirs.ops_per_second,
            ours.ops_per_second,
            millis(ours.p50),
            millis(ours.p99),
            ours.ops_per_second / theirs.ops_per_second,
            goal(ours.ops_per_second / theirs.ops_per_second, wanted),
        ));
    }

    /// The ratios of the rounds by themselves: a machine that changes from minute to minute changes them less.
    pub(crate) fn paired(&self, what: &str, theirs: &[Run], ours: &[Run]) {
        let of_rounds =
            theirs.iter().zip(ours).map(|(theirs, ours)| ours.ops_per_second / theirs.ops_per_second);
        let mut ratios: Vec<f64> = of_rounds.collect();
        let ratio = middle(&mut ratios);
        self.line(&format!(
            "{what}, round by round: {ratio:.2} ({:.2} to {:.2})",
            ratios.first().unwrap_or(&f64::NAN),
            ratios.last().unwrap_or(&f64::NAN)
        ));
    }

    pub(crate) fn rate(&self, what: &str, runs: &[Run], wanted: f64) {
        let rate = median(runs).ops_per_second;
        self.line(&format!("{what}: {rate:.0}/s{}", goal(rate, Some(wanted))));
    }

    /// How far the slow ones are from the usual ones.
    pub(crate) fn tail(&self, what: &str, runs: &[Run], at_most: f64) {
        let mut ratios: Vec<f64> =
            runs.iter().map(|run| run.p99.as_secs_f64() / run.p50.as_secs_f64()).collect();
        let ratio = middle(&mut ratios);
        let met = if ratio <= at_most { "met" } else { "MISSED" };
        self.line(&format!("{what}: p99 is {ratio:.1} times p50 [goal at most {at_most}: {met}]"));
    }

    pub(crate) fn at_most(&self, what: &str, value: f64, unit: &str, at_most: f64) {
        let met = if value <= at_most { "met" } else { "MISSED" };
        self.line(&format!("{what}: {value:.3} {unit} [goal at most {at_most}: {met}]"));
    }

    pub(crate) fn at_least(&self, what: &str, value: f64, wanted: f64) {
        self.line(&format!("{what}: {value:.2}{}", goal(value, Some(wanted))));
    }
}

fn goal(value: f64, wanted: Option<f64>) -> String {
    match wanted {
        Some(wanted) if value >= wanted => format!(" [goal {wanted}: met]"),
        Some(wanted) => format!(" [goal {wanted}: MISSED]"),
        None => String::new(),
    }
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

/// The figure in the middle.
pub(crate) fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The run in the middle, by rate.
pub(crate) fn median(runs: &[Run]) -> Run {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.ops_per_second.total_cmp(&b.ops_per_second));
    runs.swap_remove(runs.len() / 2)
}
