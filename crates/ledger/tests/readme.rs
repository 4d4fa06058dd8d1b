//! The README's program, as it is written there, against a destination that answers with errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use twicesafe_ledger::{Error, Given};

use crate::world::Folder;

/// An HTTP client as Rust programs have it: a status is no error to it.
#[derive(Clone)]
struct Client {
    status: u16,
    sent: Arc<AtomicUsize>,
}

struct Reply(u16);

impl Client {
    fn post(self, _url: &str) -> Self {
        self
    }

    fn header(self, _name: &str, _value: String) -> Self {
        self
    }

    fn body(self, _body: String) -> Self {
        self
    }

    async fn send(self) -> Result<Reply, std::io::Error> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(Reply(self.status))
    }
}

impl Reply {
    fn status(&self) -> &Self {
        self
    }

    fn as_u16(&self) -> u16 {
        self.0
    }

    async fn bytes(self) -> Result<Vec<u8>, std::io::Error> {
        Ok(format!("page {}", self.0).into())
    }
}

#[rustfmt::skip]
async fn program(address: &str, client: Client) -> Result<Given, Box<dyn std::error::Error>> {
    let (url, body) = ("http://127.0.0.1/", String::from("total=120 EUR"));
// README begins
use twicesafe_ledger::{Answer, Intent, Ledger, Recovery};

let ledger = Ledger::open(address).await?;
let intent = Intent::new("billing/invoice.send", "order:10492")? // scope and key: the same on every retry
    .input(body.clone())                                         // other input under this key is refused
    .recovery(Recovery::Person);                                 // what may be done if nobody knows

let given = ledger
    .run(intent, move |attempt| async move {
        attempt.check_send()?;
        let reply = client.post(url).header("Idempotency-Key", attempt.destination_key()).body(body).send().await?;
        let status = reply.status().as_u16();                    // any error through `?` means: nobody knows
        attempt.by_http_status(status, Answer::of(reply.bytes().await?)) // so does a 500; a 429 was not taken, a 404 refused
    })
    .await?;                                                     // now, or from the ledger: given.replayed says
// README ends
    Ok(given)
}

#[test]
fn the_readme_has_the_program_that_is_tested() {
    let (_, program) = include_str!("readme.rs").split_once("// README begins\n").unwrap();
    let (program, _) = program.split_once("// README ends\n").unwrap();
    let program = program.replace("open(address)", "open(\"sqlite:ledger.db\")");
    assert!(include_str!("../../../README.md").contains(&program));
}

#[tokio::test]
async fn s17_an_error_page_is_not_stored_as_success() {
    for (status, first, second, sent) in [
        (200, "page 200", "page 200, replayed", 1),
        (500, "TS0016", "TS0016", 1),
        (503, "TS0016", "TS0016", 1),
        (408, "TS0016", "TS0016", 1),
        (207, "TS0016", "TS0016", 1),
        (429, "TS0015", "TS0015", 1),
        (400, "TS0018", "TS0018", 1),
        (404, "TS0018", "TS0018", 2),
    ] {
        let folder = Folder::new();
        let client = Client { status, sent: Arc::default() };
        let told = async || match program(&folder.sqlite(), client.clone()).await {
            Ok(given) => {
                let body = given.answer.unwrap().bytes().unwrap().clone();
                let body = String::from_utf8(body.to_vec()).unwrap();
                if given.replayed { format!("{body}, replayed") } else { body }
            }
            Err(error) => error.downcast::<Error>().unwrap().code().to_string(),
        };
        assert_eq!(told().await, first, "{status}");
        if status != 429 {
            assert_eq!(told().await, second, "{status}");
        }
        assert_eq!(client.sent.load(Ordering::SeqCst), sent, "{status}");
    }
}
