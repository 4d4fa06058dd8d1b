//! Versions as senders and callers write them: numbers and times. Later is higher.
//!
//! Times are microseconds since 1970, in whichever form they come, so that all of one sender can be compared. Whole numbers stay what they
//! are. A version such as `1.10` is not understood: nobody knows whether it is before `1.9`.

use jiff::civil::DateTime;
use jiff::fmt::rfc2822;
use jiff::tz::TimeZone;

/// Digits of whole seconds since 1970 in front of a fraction: from 1973 to 5138.
const SECONDS_DIGITS: std::ops::RangeInclusive<usize> = 9..=11;
/// Digits of a fraction of a second that are compared.
const FRACTION_DIGITS: usize = 6;

/// The number a version is compared by, if it is one that can be.
pub(crate) fn version_of(text: &str) -> Option<i64> {
    let text = text.trim();
    text.parse().ok().or_else(|| seconds(text)).or_else(|| Some(time(text)?.as_microsecond()))
}

/// Seconds since 1970 with a fraction, as Slack writes them: `1700000000.000300`.
fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.')?;
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !SECONDS_DIGITS.contains(&whole.len()) || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(FRACTION_DIGITS).collect();
    format!("{whole}{fraction}").parse().ok()
}

/// A time with an offset, a date of HTTP or mail, or a date or time without any offset, which is UTC.
fn time(text: &str) -> Option<jiff::Timestamp> {
    let is_utc = [" UTC", " GMT"].iter().find_map(|zone| text.strip_suffix(zone));
    let written = is_utc.unwrap_or(text);
    // `2026-01-03 00:00:00 +0100`.
    let joined = written.replace(" +", "+").replace(" -", "-");
    if let Ok(time) = joined.parse() {
        return Some(time);
    }
    if let Ok(time) = rfc2822::DateTimeParser::new().parse_timestamp(text) {
        return Some(time);
    }
    // A zone by its name would be ignored here.
    let local: DateTime = written.parse().ok().filter(|_| !written.contains('['))?;
    TimeZone::UTC.to_timestamp(local).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_in_whichever_form_they_come() {
        let midnight = version_of("2026-01-03T00:00:00Z");
        assert_eq!(midnight, Some(1_767_398_400_000_000));
        for same in [
            "2026-01-03",
            "2026-01-03T00:00:00",
            "2026-01-03 00:00:00",
            "2026-01-03 00:00:00 UTC",
            "2026-01-03 01:00:00 +0100",
            "2026-01-03T01:00:00.000+01:00",
            "Sat, 03 Jan 2026 00:00:00 GMT",
            "Sat, 03 Jan 2026 01:00:00 +0100",
            "1767398400.0",
        ] {
            assert_eq!(version_of(same), midnight, "{same}");
        }
    }

    #[test]
    fn fractions_of_seconds_are_times() {
        assert_eq!(version_of("1700000000.000300"), Some(1_700_000_000_000_300));
        assert_eq!(version_of("1700000000.000300"), version_of("2023-11-14T22:13:20.000300Z"));
        assert!(version_of("1700000000.5") > version_of("1700000000.49"));
    }

    #[test]
    fn whole_numbers_stay_what_they_are_and_what_is_ambiguous_is_none() {
        assert_eq!(version_of("7"), Some(7));
        assert_eq!(version_of("-7"), Some(-7));
        for text in
            ["", "soon", "1.3", "1.10", "v7", "2026-01-03T00:00:00[Europe/Berlin]", "12:00", "2026-13-01"]
        {
            assert_eq!(version_of(text), None, "{text}");
        }
    }
}
