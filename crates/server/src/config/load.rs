//! Reading the file, and saying what is wrong with it: where, and what was probably meant.

use std::path::Path;

use super::Configuration;
use crate::error::ServerError;

/// Largest configuration file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a configuration file.
pub fn load(path: &Path) -> Result<Configuration, ServerError> {
    let wrong =
        |why: &dyn std::fmt::Display| ServerError::Configuration(format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if size > FILE_BYTES_MAX {
        return Err(wrong(&format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let mut configuration = parse(&text).map_err(|why| wrong(&why))?;
    stay_beside(&mut configuration, path);
    Ok(configuration)
}

/// A ledger that is written without its folder is beside the file that names it, wherever somebody stands: cron jobs would
/// get an empty one of their own otherwise.
fn stay_beside(configuration: &mut Configuration, path: &Path) {
    let written = configuration.ledger.as_ref().filter(|ledger| ledger.is_written_out());
    let address = written.and_then(|ledger| ledger.reveal().ok());
    let relative = address.as_deref().and_then(|address| address.strip_prefix("sqlite:"));
    if let (Some(relative), Some(folder)) = (relative.map(Path::new), path.parent())
        && relative.is_relative()
        && !folder.as_os_str().is_empty()
    {
        configuration.ledger = Some(format!("sqlite:{}", folder.join(relative).display()).as_str().into());
    }
}

/// Reads a configuration; what is wrong is said with its line.
pub fn parse(text: &str) -> Result<Configuration, String> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Configuration::default());
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let error = error.without_snippet();
        let place = error
            .location()
            .map_or_else(String::new, |place| format!("line {}, column {}: ", place.line(), place.column()));
        format!("{place}{}", suggesting(&plain(&error.to_string())))
    })
}

/// The first line of what the parser says, without where: that is said already.
fn plain(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = match line.split_once(": ") {
        Some((before, after)) if before.contains("line") && before.contains("column") => after,
        _ => line,
    };
    // The parser's advice is for whoever programs with it.
    let line = line.split(", set DuplicateKeyPolicy").next().unwrap_or(line);
    line.split(" at line ").next().unwrap_or(line).to_owned()
}

/// Adds what was probably meant to "unknown field `x`, expected one of y, z".
pub(crate) fn suggesting(message: &str) -> String {
    let meant = || {
        let (unknown, known) = message.strip_prefix("unknown ")?.split_once(", expected ")?;
        let wrong = unknown.split('`').nth(1)?;
        let names = known.trim_start_matches("one of ").split([',', ' ']).map(|name| name.trim_matches('`'));
        Some(probably_meant(wrong, names.filter(|name| !name.is_empty() && *name != "or")))
    };
    format!("{message}{}", meant().unwrap_or_default())
}

/// What was probably meant, to be put behind what is wrong; nothing, if nothing is near.
pub(crate) fn probably_meant<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    names
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len().max(wrong.len()) / 2)
        .map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, said: &str) {
        assert_eq!(parse(text).map(|_| ()).expect_err("it is wrong"), said);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        check(
            "ledgr: sqlite:x\n",
            "line 1, column 1: unknown field `ledgr`, expected one of listen, ledger, secret, tls, people, links, alerts, smtp, \
             destinations, inboxes, callbacks, traces, logs; did you mean `ledger`?",
        );
        check(
            "people:\n  ops:\n    rigts: [approve]\n",
            "line 3, column 5: unknown field `rigts`, expected one of alert, rights, scopes; did you mean `rights`?",
        );
        check(
            "people: {a: {rights: [aprove]}}\n",
            "line 1, column 23: unknown variant `aprove`, expected one of act, approve, review, admin; did you mean `approve`?",
        );
        check(
            "listen: here\n",
            "line 1, column 9: `here` is not an address to listen on; write 127.0.0.1:4080",
        );
        check(
            "links: { expire: 5 }\n",
            "line 1, column 18: `5` is not a span; write 300ms, 25s, 5m, 2h or 30d",
        );
        check(
            "zebra: 1\n",
            "line 1, column 1: unknown field `zebra`, expected one of listen, ledger, secret, tls, people, links, alerts, smtp, destinations, inboxes, callbacks, traces, logs",
        );
        assert!(
            parse("listen: [\n").is_err() && parse("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n").is_err()
        );
    }

    #[test]
    fn a_file_says_what_it_says() {
        let text = "
listen: { public: 127.0.0.1:4080, admin: ':4081' }
ledger: sqlite:./twicesafe.db
people:
  ops: { alert: \"https://hooks.slack.example/T1\", rights: [approve, review] }
  ann:
    alert: [ mailto:ann@example.com, { webhook: \"${HOOK}\" } ]
    rights: [approve]
    scopes: [billing/]
links: { base: https://t.example.com, expire: 2h }
logs: json
";
        let configuration = parse(text).expect("it is right");
        assert_eq!(configuration.listen.admin.to_string(), "0.0.0.0:4081");
        assert_eq!(configuration.people["ann"].alert.0.len(), 2);
        assert!(configuration.people["ann"].cares_for("billing/x"));
        assert!(!configuration.people["ann"].cares_for("billings"));
        assert!(parse("# nothing\n").is_ok());
        assert!(parse("").is_ok());
    }
}
