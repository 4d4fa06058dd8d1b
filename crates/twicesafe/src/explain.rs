//! `twicesafe explain`: the pages of `docs/errors/`, compiled in, so that they fit the version at hand.

use std::io::Write;

use serde_json::json;
use twicesafe_core::Code;

use crate::failure::Failure;

macro_rules! pages {
    ($($name:ident $file:literal)*) => {
        /// The page about a code. A code without a page does not compile.
        fn page(code: Code) -> &'static str {
            match code {
                $(Code::$name => include_str!(concat!("../../../docs/errors/", $file, ".md")),)*
            }
        }
    };
}

pages! {
    KeyMissing "TS0001"
    KeyInvalid "TS0002"
    NameInvalid "TS0003"
    PolicyInvalid "TS0004"
    InputTooLarge "TS0005"
    PolicyDiffers "TS0006"
    SuspiciousKey "TS0007"
    Mismatch "TS0010"
    Rejected "TS0011"
    Superseded "TS0012"
    Gone "TS0013"
    GivenUp "TS0014"
    Pending "TS0015"
    Review "TS0016"
    Held "TS0017"
    Refused "TS0018"
    StaleFence "TS0020"
    SettledOtherwise "TS0021"
    ActMax "TS0022"
    SendBy "TS0023"
    NotRecorded "TS0024"
    NotHolder "TS0025"
    DecidedOtherwise "TS0030"
    OwnRequest "TS0031"
    Moved "TS0032"
    TooEarly "TS0033"
    WrongStatus "TS0034"
    NoSuchIntent "TS0035"
    LedgerAway "TS0040"
    LedgerNotOurs "TS0041"
    LedgerNewer "TS0042"
    LedgerReadOnly "TS0043"
    DiskFull "TS0044"
    NetworkFileSystem "TS0045"
    UnsafeDurability "TS0046"
    LedgerDamaged "TS0047"
    ClockJumped "TS0048"
    LedgerAddress "TS0049"
    Overloaded "TS0050"
    LedgerNotNamed "TS0051"
    LedgerNotEmpty "TS0052"
    LedgerNotTrusted "TS0053"
    ValueRefused "TS0054"
    LedgerUnfit "TS0055"
    StartAgain "TS0056"
    OtherDatabase "TS0057"
    LedgerSecondName "TS0058"
    LedgerSecret "TS0059"
    CommandNotStarted "TS0060"
    BadInputFile "TS0061"
    RecordAltered "TS0062"
    TailLost "TS0064"
    BadRequest "TS0070"
    NoSuchPage "TS0071"
    TokenMissing "TS0072"
    TokenRefused "TS0073"
    NotAllowed "TS0074"
    OtherSite "TS0075"
    LinkInvalid "TS0076"
    TooSlow "TS0077"
    ConfigurationInvalid "TS0080"
    TokensNeeded "TS0081"
    CannotListen "TS0082"
    SecretMissing "TS0083"
    ReloadRefused "TS0084"
    AlertNotSent "TS0085"
    TokenUnknown "TS0086"
    NoSuchDestination "TS0090"
    ExpressionFailed "TS0091"
    DestinationAway "TS0092"
    Paused "TS0093"
    RequestNotKept "TS0094"
    CallbackRefused "TS0095"
    ExpectationFailed "TS0096"
    NoRoute "TS0099"
    CouldBeAnother "TS0100"
    NoSuchInbox "TS0110"
    NotVerified "TS0111"
    OutOfTime "TS0112"
    EventUnnamed "TS0113"
}

/// Prints the page about a code, or the list of all codes.
pub(crate) fn run(text: Option<&str>, as_json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let Some(text) = text else { return list(as_json, out) };
    let code = find(text).ok_or_else(|| Failure::Usage(unknown(text)))?;
    if as_json {
        let value = json!({ "code": code.as_str(), "title": code.title(), "page": page(code) });
        writeln!(out, "{value}")?;
    } else {
        out.write_all(page(code).as_bytes())?;
    }
    Ok(())
}

fn list(as_json: bool, out: &mut impl Write) -> Result<(), Failure> {
    if as_json {
        let entry = |code: &Code| json!({ "code": code.as_str(), "title": code.title() });
        let entries: Vec<_> = Code::ALL.iter().map(entry).collect();
        writeln!(out, "{}", json!(entries))?;
    } else {
        for code in Code::ALL {
            writeln!(out, "{code}  {}", code.title())?;
        }
    }
    Ok(())
}

/// The code meant by `TS0010`, `ts10`, `0010` or `10`.
fn find(text: &str) -> Option<Code> {
    let number = number_in(text)?;
    Code::ALL.iter().copied().find(|code| number_of(*code) == number)
}

fn unknown(text: &str) -> String {
    let nearest = match number_in(text) {
        Some(number) => Code::ALL.iter().min_by_key(|code| number_of(**code).abs_diff(number)),
        None => with_title_like(text),
    };
    let hint = match nearest {
        Some(code) => format!("the nearest is {code}: {}", code.title()),
        None => "a code looks like TS0010.".to_owned(),
    };
    format!(
        "there is no code `{}`; {hint} `twicesafe explain` lists all codes.",
        text.escape_debug().collect::<String>()
    )
}

/// For those who remember a word and not the number.
fn with_title_like(text: &str) -> Option<&'static Code> {
    let text = text.trim().to_lowercase();
    Code::ALL.iter().find(|code| text.len() >= 3 && code.title().to_lowercase().contains(&text))
}

fn number_in(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits = match text.get(..2) {
        Some(prefix) if prefix.eq_ignore_ascii_case("TS") => &text[2..],
        _ => text,
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u32::MAX))
}

fn number_of(code: Code) -> u32 {
    number_in(code.as_str()).expect("codes are TS and four digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_starts_with_its_code_and_title_and_has_the_same_sections() {
        for code in Code::ALL {
            let title = format!("# {code}: {}", code.title().trim_end_matches('.'));
            assert_eq!(page(*code).lines().next(), Some(title.as_str()));
            let sections: Vec<_> = page(*code).lines().filter(|line| line.starts_with("## ")).collect();
            assert_eq!(
                sections,
                ["## What happened", "## Why", "## What to do", "## Related rules"],
                "sections of {code}"
            );
        }
    }

    #[test]
    fn codes_are_found_however_they_are_written() {
        for text in ["TS0010", "ts0010", "Ts10", "0010", "10", " TS0010\n"] {
            assert_eq!(find(text), Some(Code::Mismatch), "{text:?}");
        }
        for text in ["", "TS", "TS00x0", "-10", "10.0", "é", "99999999999999999999"] {
            assert_eq!(find(text), None, "{text:?}");
        }
    }

    #[test]
    fn unknown_codes_name_the_nearest() {
        let check = |text: &str, nearest: &str| {
            let said = unknown(text);
            assert!(said.contains(nearest), "{text}: {said}");
        };
        check("TS0019", "TS0018");
        check("99999999999999999999", Code::ALL.last().expect("there are codes").as_str());
        check("mismatch", "a code looks like");
        check("disk", "TS0044");
        check("\u{1b}[31m", "\\u{1b}[31m");
    }
}
